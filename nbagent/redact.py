"""Secrets kept out of a log: where text enters, each known value becomes a mark with its name.

What is masked are the values of the environment's variables whose names end in `_KEY`, `_TOKEN` or
`_SECRET`, and what a session was given as `redact=[…]`. In JSON text they are found in the forms in
which JSON may write them. A mark never becomes a value again, except in a person's edit of
arguments that held the value already: otherwise a model could have a secret sent that it was never
shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from nbagent.errors import ConfigError

__all__ = ["LEAST", "Mask", "StreamMask", "check_redact", "mask_of"]

LEAST = 12
"""Characters of a variable's value, from which on it counts as a secret."""
LEAST_GIVEN = 4
"""Characters of a text in `redact`: a shorter one would be found everywhere."""

_ENDINGS = ("_KEY", "_TOKEN", "_SECRET")

Pattern = re.Pattern[str]


class _Form(NamedTuple):
    """One way in which a secret may be written."""

    text: str
    mark: str
    encoded: bytes
    """As it stands in a line of the log."""


class Mask:
    """What is masked in one run; its repr tells nothing.

    Examples
    --------
    >>> mask = Mask({"secret APP_KEY": "abc-123-def-456"}, [])
    >>> mask.value({"text": "it is abc-123-def-456", "n": 5})
    {'text': 'it is [secret APP_KEY]', 'n': 5}
    """

    __slots__ = ("_forms", "_patterns", "_values")

    def __init__(self, secrets: Mapping[str, str], patterns: Sequence[Pattern]) -> None:
        self._values = {f"[{name}]": value for name, value in secrets.items()}
        forms = {form: mark for mark, value in self._values.items() for form in _written(value)}
        longest_first = sorted(forms.items(), key=lambda item: -len(item[0]))
        self._forms = [_Form(form, mark, _encoded(form)) for form, mark in longest_first]
        self._patterns = tuple(patterns)

    def __repr__(self) -> str:
        return f"<Mask of {len(self._values)} values and {len(self._patterns)} patterns>"

    def hits(self, encoded: bytes) -> bool:
        """Whether a JSON text may hold something to mask."""
        if self._patterns:
            return True
        return any(form.encoded in encoded for form in self._forms)

    def text(self, text: str) -> str:
        """The text with marks."""
        for form in self._forms:
            if form.text in text:
                text = text.replace(form.text, form.mark)
        for number, pattern in enumerate(self._patterns, 1):
            text = pattern.sub(f"[secret pattern {number}]", text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value with marks in all its texts and keys; the same object if there are none."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value)
            return {self.text(key): self.value(item) for key, item in items.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast("Sequence[Any]", value)]
        return value

    def arguments(self, text: str) -> str:
        r"""The arguments of a call, JSON text as a model wrote it, with marks.

        Examples
        --------
        >>> mask = Mask({"secret APP_KEY": "abc-123-def-456"}, [])
        >>> mask.arguments(r'{"a": "abc\u002d123-def-456"}')
        '{"a":"[secret APP_KEY]"}'
        """
        masked = self.text(text)
        if "\\" not in masked:
            return masked
        try:  # JSON may write any character as an escape
            value = orjson.loads(masked)
        except orjson.JSONDecodeError:
            return masked
        found = self.value(value)
        return masked if found == value else orjson.dumps(found).decode()

    def restored(self, value: Any, before: bytes) -> Any:
        """Undo the marks in a person's edit, of those secrets that the arguments held before."""
        held = {
            form.mark: self._values[form.mark] for form in self._forms if form.encoded in before
        }
        return _put_back(value, held) if held else value

    def stream(self) -> StreamMask:
        """A mask for a text that comes in pieces."""
        return StreamMask(self)

    def open_end(self, text: str) -> int:
        """From where on the text may go on with something to mask; whole secrets stay whole."""
        end = text.rfind("\n") + 1 if self._patterns else len(text)
        end = min([end, *(_begun(text, form.text) for form in self._forms)])
        crossing = True
        while crossing:
            crossing = False
            for form in self._forms:
                at = text.find(form.text, max(0, end - len(form.text) + 1), end + len(form.text))
                if 0 <= at < end:
                    end, crossing = at, True
        return end


class StreamMask:
    """Masks a text that comes in pieces; what may be the beginning of a secret is held back."""

    __slots__ = ("_held", "_mask")

    def __init__(self, mask: Mask) -> None:
        self._mask, self._held = mask, ""

    def feed(self, piece: str) -> str:
        """What can be told of the text so far, behind what was told before."""
        text = self._held + piece
        end = self._mask.open_end(text)
        masked = self._mask.text(text[:end])
        self._held = text[end:]
        return masked

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return self._mask.text(held)


def mask_of(given: Sequence[str | Pattern], environ: Mapping[str, str]) -> Mask | None:
    """The mask of a session's `redact` and of the environment; None if there is nothing to mask."""
    secrets: dict[str, str] = {}
    for name in sorted(environ):
        value = environ[name].strip()
        if name.upper().endswith(_ENDINGS) and len(value) >= LEAST:
            secrets[f"secret {re.sub('[^A-Za-z0-9_]', '_', name)}"] = value
    texts = [each for each in given if isinstance(each, str)]
    secrets |= {f"secret {number}": text for number, text in enumerate(texts, 1)}
    patterns = [each for each in given if not isinstance(each, str)]
    return Mask(secrets, patterns) if secrets or patterns else None


def check_redact(given: Iterable[Any]) -> tuple[str | Pattern, ...]:
    """What a session was given as `redact`.

    Raises
    ------
    ConfigError
        If it holds something else than texts and patterns, or what would be found everywhere.
    """
    if isinstance(given, str | bytes | re.Pattern):
        msg = "redact is a list: write redact=[…]"
        raise ConfigError(msg)
    out: list[str | Pattern] = []
    for number, each in enumerate(given):
        if isinstance(each, str):
            if len(each) < LEAST_GIVEN:
                msg = f"redact[{number}] has {len(each)} characters; give at least {LEAST_GIVEN}, shorter texts are found everywhere"
                raise ConfigError(msg)
        elif not _is_pattern(each):
            msg = f"redact[{number}] is a {type(each).__name__}, neither text nor re.compile(…)"
            raise ConfigError(msg)
        elif cast("Pattern", each).search(""):
            msg = f"redact[{number}] is a pattern that fits the empty text: it would be found everywhere"
            raise ConfigError(msg)
        out.append(cast("str | Pattern", each))
    return tuple(out)


def _begun(text: str, secret: str) -> int:
    """Where a beginning of the secret stands at the end of the text; its length if nowhere."""
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[0], at + 1)
    return at if at >= 0 else len(text)


def _is_pattern(given: Any) -> bool:
    return isinstance(given, re.Pattern) and isinstance(cast("Pattern", given).pattern, str)


def _written(value: str) -> set[str]:
    """The forms of a text, in plain text and in JSON text, with or without optional escapes."""
    inside = [json.dumps(value, ensure_ascii=ascii_)[1:-1] for ascii_ in (True, False)]
    return {value, *inside, *(text.replace("/", "\\/") for text in inside)}


def _encoded(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode("utf-8", "replace")[1:-1]


def _put_back(value: Any, held: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for mark, secret in held.items():
            value = value.replace(mark, secret)
        return value
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {_put_back(key, held): _put_back(item, held) for key, item in items.items()}
    if isinstance(value, list):
        return [_put_back(item, held) for item in cast("list[Any]", value)]
    return value

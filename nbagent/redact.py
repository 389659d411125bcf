"""Secrets kept out of a log: where text enters, each known value becomes a mark with its name.

What is masked are the values of the environment's variables whose names end in `_KEY`, `_TOKEN` or
`_SECRET`, and what a session was given as `redact=[…]`. They are found also where JSON or Python has
written characters as escapes, one text inside of another. Only texts that somebody else wrote are
looked through, never the log's own words (see `nbagent.events.words`). A mark never becomes a value
again, except in a person's edit of arguments that held the value already: otherwise a model could
have a secret sent that it was never shown.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from nbagent.environment import holds
from nbagent.errors import ConfigError
from nbagent.unescape import Layer, layers, open_escape

__all__ = ["Mask", "Shape", "StreamMask", "check_redact", "mask_of"]

LEAST_GIVEN = 4
"""Characters of a text in `redact`: a shorter one would be found everywhere."""
LEAST_CUT = 8
"""Characters of the beginning of a secret, in front of an ellipsis, that are masked, too."""

_CUT = "…"
_CUT_BYTES = _CUT.encode()

Pattern = re.Pattern[str]
Span = tuple[int, int, str]
"""Start, end, mark."""


class Shape(NamedTuple):
    """A dict of the log, whose keys are its own words: which values are, too, and which are not."""

    own: frozenset[str] = frozenset()
    """Keys of words that only nbagent writes: never masked."""
    json: frozenset[str] = frozenset()
    """Keys of texts that are JSON, which they stay."""
    inner: Mapping[str, Shape] = {}
    """Keys of such dicts, or of lists of them; any other value is foreign, with its keys."""
    foreign: frozenset[str] | None = None
    """If given, only these values are foreign; the others are of this same shape, all the way."""

    def of(self, key: str) -> Shape | None:
        """The shape of a value; None for a foreign one."""
        if self.foreign is not None and key not in self.foreign:
            return self
        return self.inner.get(key)


class _Secret(NamedTuple):
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

    __slots__ = ("_encoded", "_marks", "_patterns", "_secrets", "_texts", "by_line", "named")

    def __init__(self, secrets: Mapping[str, str], patterns: Sequence[Pattern]) -> None:
        self.named = dict(secrets)
        """Name → value."""
        # A half surrogate pair, as of bytes that are no UTF-8, stands in the log as U+FFFD.
        forms = [
            (form, f"[{name}]")
            for name, value in secrets.items()
            for form in {value, value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
        ]
        forms.sort(key=lambda item: -len(item[0]))
        self._secrets = [_Secret(form, mark, _encoded(form)) for form, mark in forms]
        self._texts = tuple(secret.text for secret in self._secrets)
        self._encoded = tuple(secret.encoded for secret in self._secrets)
        self._patterns = [
            (pattern, f"[secret pattern {number}]") for number, pattern in enumerate(patterns, 1)
        ]
        self.by_line = bool(patterns)
        """Whether what streams must be looked through by whole lines."""
        marks = [secret.mark for secret in self._secrets] + [mark for _, mark in self._patterns]
        self._marks = re.compile("|".join(map(re.escape, marks)))

    def __repr__(self) -> str:
        return f"<Mask of {len(self._secrets)} values and {len(self._patterns)} patterns>"

    def hits(self, encoded: bytes) -> bool:
        """Whether a JSON text may hold something to mask."""
        # A text inside may have escapes of its own; a value may be cut off.
        if self._patterns or b"\\\\" in encoded or _CUT_BYTES in encoded:
            return True
        for form in self._encoded:  # noqa: SIM110 - `any` takes twice the time, nine times a step
            if form in encoded:
                return True
        return False

    def _clear(self, text: str) -> bool:
        """Whether there is plainly nothing to mask."""
        if self._patterns or "\\" in text or _CUT in text:
            return False
        for form in self._texts:  # noqa: SIM110 - the same
            if form in text:
                return False
        return True

    def text(self, text: str) -> str:
        r"""The text with marks.

        Examples
        --------
        >>> Mask({"secret APP_KEY": "abc-123-def-456"}, []).text(r"abc\u002d123-def-456")
        '[secret APP_KEY]'
        """
        if self._clear(text):
            return text
        spans = [*self._values(text), *self._fits(text)]
        return _marked(text, spans, self._marks) if spans else text

    def value(self, value: Any) -> Any:
        """A JSON value with marks in all its texts and keys; keys that get the same mark stay two."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            out: dict[str, Any] = {}
            for key, item in cast("dict[str, Any]", value).items():
                out[_unused(self.text(key), out)] = self.value(item)
            return out
        if isinstance(value, list | tuple):
            return [self.value(item) for item in cast("Sequence[Any]", value)]
        return value

    def shaped(self, value: Any, shape: Shape) -> Any:
        """A value of the log with marks in what others wrote; `shape` says what that is."""
        if isinstance(value, list):
            return [self.shaped(item, shape) for item in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return self.value(value)
        return {
            key: self._field(key, item, shape)
            for key, item in cast("dict[str, Any]", value).items()
        }

    def _field(self, key: str, item: Any, shape: Shape) -> Any:
        if key in shape.own and not isinstance(item, dict):
            return item
        if key in shape.json and isinstance(item, str):
            return self.arguments(item)
        inner = shape.of(key)
        return self.value(item) if inner is None else self.shaped(item, inner)

    def arguments(self, text: str) -> str:
        """A call's arguments or other JSON text as it was written, with marks; it stays JSON if it was.

        Examples
        --------
        >>> mask = Mask({"secret APP_KEY": "abc-123-def-456"}, [])
        >>> mask.arguments('{"a": "abc-123-def-456"}')
        '{"a":"[secret APP_KEY]"}'
        """
        if self._clear(text):
            return text
        try:
            value = orjson.loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return self.text(text)
        found = self.value(value)
        if found != value:
            return orjson.dumps(found).decode()
        return self.text(text) if self._values(text) else text  # where a key stands twice

    def restored(self, value: Any, before: bytes) -> Any:
        """Undo the marks in a person's edit, of those secrets that the arguments held before."""
        held = {secret.mark: secret.text for secret in self._secrets if secret.encoded in before}
        return _put_back(value, held) if held else value

    def stream(self) -> StreamMask:
        """A mask for a text that comes in pieces."""
        return StreamMask(self)

    def open_end(self, text: str) -> int:
        """From where on the text may go on with something to mask; whole secrets stay whole."""
        if self._clear(text):
            return min([_begun(text, form) for form in self._texts])
        end = _line_start(text, len(text)) if self._patterns else len(text)
        end = min(end, *(self._begun(layer) for layer in layers(text)))
        spans = self._values(text)
        while True:
            crossing = min((start for start, stop, _ in spans if start < end < stop), default=end)
            found = _line_start(text, crossing) if self._patterns else crossing
            if found == end:
                return end
            end = found

    def _values(self, text: str) -> list[Span]:
        """Where values stand, in whatever spelling."""
        return [span for layer in layers(text) for span in self._in_layer(layer)]

    def _in_layer(self, layer: Layer) -> Iterator[Span]:
        text = layer.text
        for secret in self._secrets:
            at = text.find(secret.text)
            while at >= 0:
                end = at + len(secret.text)
                yield layer.start(at), layer.end(end), secret.mark
                at = text.find(secret.text, at + 1)
            yield from _shortened(layer, secret)

    def _fits(self, text: str) -> Iterator[Span]:
        """Where patterns fit."""
        for layer in layers(text) if self._patterns else ():
            for pattern, mark in self._patterns:
                for found in pattern.finditer(layer.text):
                    if found.end() > found.start():
                        yield layer.start(found.start()), layer.end(found.end()), mark

    def _begun(self, layer: Layer) -> int:
        """Where the beginning of a value or of an escape stands at the end of a text."""
        text = layer.text
        end = open_escape(text)
        whole = text[:end]
        at = min((_begun(whole, secret.text) for secret in self._secrets), default=end)
        return layer.start(at)


class StreamMask:
    """Masks a text that comes in pieces; what may be the beginning of a secret is held back."""

    __slots__ = ("_held", "_mask")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held: list[str] = []

    def feed(self, piece: str) -> str:
        """What can be told of the text so far, behind what was told before."""
        self._held.append(piece)
        if self._mask.by_line and "\n" not in piece:
            return ""
        text = "".join(self._held)
        end = self._mask.open_end(text)
        self._held = [text[end:]]
        return self._mask.text(text[:end]) if end else ""

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = "".join(self._held), []
        return self._mask.text(held)


def mask_of(
    given: Sequence[str | Pattern], environ: Mapping[str, str], before: Mask | None = None
) -> Mask | None:
    """The mask of a session's `redact` and of the environment; None if there is nothing to mask.

    What `before` masks stays masked: a value that has left the environment may still be in use.
    """
    texts = [each for each in given if isinstance(each, str)]
    numbered = ((f"secret {number}", text) for number, text in enumerate(texts, 1))
    secrets = (
        (f"secret {re.sub('[^A-Za-z0-9_]', '_', name)}", environ[name].strip())
        for name in sorted(environ)
        if holds(name, environ[name])
    )
    named = {} if before is None else dict(before.named)
    known = set(named.values())
    for name, text in (*secrets, *numbered):
        if text not in known:
            known.add(text)
            named[_unused(name, named)] = text
    patterns = [each for each in given if not isinstance(each, str)]
    return Mask(named, patterns) if named or patterns else None


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


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _begun(text: str, secret: str) -> int:
    """Where a beginning of the secret stands at the end of the text; its length if nowhere."""
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[0], at + 1)
    return at if at >= 0 else len(text)


def _shortened(layer: Layer, secret: _Secret) -> Iterator[Span]:
    """Where the beginning of a secret stands in front of the sign that something is cut off."""
    text, at = layer.text, layer.text.find(_CUT)
    while at >= 0:
        window = text[max(0, at - len(secret.text)) : at]
        length = len(window) - _begun(window, secret.text)
        if length >= LEAST_CUT:
            yield layer.start(at - length), layer.end(at), secret.mark
        at = text.find(_CUT, at + 1)


def _marked(text: str, spans: list[Span], marks: Pattern) -> str:
    """The text with one mark for each group of spans that overlap; marks in it stay whole."""
    kept = [found.span() for found in marks.finditer(text)]
    starts = [start for start, _ in kept]
    pieces: list[str] = []
    last = 0
    for start, end, mark in _merged(spans, kept, starts):
        pieces += (text[last:start], mark)
        last = end
    return "".join([*pieces, text[last:]])


def _merged(
    spans: list[Span], kept: Sequence[tuple[int, int]], starts: Sequence[int]
) -> Iterator[Span]:
    group: Span | None = None
    for start, end, mark in sorted(spans, key=lambda span: (span[0], -span[1])):
        first, last = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
        if first >= 0 and end <= kept[first][1]:
            continue  # inside of a mark
        if first >= 0 and start < kept[first][1]:
            start = kept[first][0]  # noqa: PLW2901
        if last >= 0:
            end = max(end, kept[last][1])  # noqa: PLW2901
        if group is not None and start < group[1]:
            group = (group[0], max(group[1], end), group[2])
            continue
        if group is not None:
            yield group
        group = (start, end, mark)
    if group is not None:
        yield group


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or with the first number that makes it one that is free."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name} {number}", number + 1
    return found


def _is_pattern(given: Any) -> bool:
    return isinstance(given, re.Pattern) and isinstance(cast("Pattern", given).pattern, str)


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

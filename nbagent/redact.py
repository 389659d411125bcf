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
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from nbagent.errors import ConfigError

__all__ = ["LEAST", "Mask", "Shape", "StreamMask", "check_redact", "environment", "mask_of"]

LEAST = 12
"""Characters of a variable's value, from which on it counts as a secret."""
LEAST_GIVEN = 4
"""Characters of a text in `redact`: a shorter one would be found everywhere."""
LEAST_CUT = 8
"""Characters of the beginning of a secret, in front of an ellipsis, that are masked, too."""

_CUT = "…"
_CUT_BYTES = _CUT.encode()
_ENDINGS = ("_KEY", "_TOKEN", "_SECRET")

_LAYERS = 5
"""How often texts may be written inside of texts: JSON in arguments in JSON."""
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8}))|([\"'\\/bfnrt]))"
)
"""A character as JSON or Python may write it."""
_BEGUN = re.compile(
    r"\\(?:u(?:[0-9a-fA-F]{0,3}|[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)"
    r"|x[0-9a-fA-F]?|U[0-9a-fA-F]{0,7})?\Z"
)
"""An escape that is not all there."""
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

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

    __slots__ = ("_marks", "_patterns", "_secrets", "named")

    def __init__(self, secrets: Mapping[str, str], patterns: Sequence[Pattern]) -> None:
        self.named = dict(secrets)
        """Name → value."""
        # A half surrogate pair, as of bytes that are no UTF-8, stands in the log as U+FFFD.
        forms = [
            (form, f"[{name}]")
            for name, value in secrets.items()
            for form in dict.fromkeys((value, _encodable(value)))
        ]
        forms.sort(key=lambda item: -len(item[0]))
        self._secrets = [_Secret(form, mark, _encoded(form)) for form, mark in forms]
        self._patterns = [
            (pattern, f"[secret pattern {number}]") for number, pattern in enumerate(patterns, 1)
        ]
        marks = [secret.mark for secret in self._secrets] + [mark for _, mark in self._patterns]
        self._marks = re.compile("|".join(map(re.escape, marks)))

    def __repr__(self) -> str:
        return f"<Mask of {len(self._secrets)} values and {len(self._patterns)} patterns>"

    @property
    def by_line(self) -> bool:
        """Whether what streams must be looked through by whole lines."""
        return bool(self._patterns)

    def hits(self, encoded: bytes) -> bool:
        """Whether a JSON text may hold something to mask."""
        # A text inside may have escapes of its own; a value may be cut off.
        if self._patterns or b"\\\\" in encoded or _CUT_BYTES in encoded:
            return True
        return any(secret.encoded in encoded for secret in self._secrets)

    def text(self, text: str) -> str:
        r"""The text with marks.

        Examples
        --------
        >>> Mask({"secret APP_KEY": "abc-123-def-456"}, []).text(r"abc\u002d123-def-456")
        '[secret APP_KEY]'
        """
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
        if not self._values(text) and not self._patterns:
            return text
        try:
            value = orjson.loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return self.text(text)
        found = self.value(value)
        return text if found == value else orjson.dumps(found).decode()

    def restored(self, value: Any, before: bytes) -> Any:
        """Undo the marks in a person's edit, of those secrets that the arguments held before."""
        held = {secret.mark: secret.text for secret in self._secrets if secret.encoded in before}
        return _put_back(value, held) if held else value

    def stream(self) -> StreamMask:
        """A mask for a text that comes in pieces."""
        return StreamMask(self)

    def open_end(self, text: str) -> int:
        """From where on the text may go on with something to mask; whole secrets stay whole."""
        end = _line_start(text, len(text)) if self._patterns else len(text)
        end = min(end, *(self._begun(layer) for layer in _layers(text)))
        spans = self._values(text)
        while True:
            crossing = min((start for start, stop, _ in spans if start < end < stop), default=end)
            found = _line_start(text, crossing) if self._patterns else crossing
            if found == end:
                return end
            end = found

    def _values(self, text: str) -> list[Span]:
        """Where values stand, in whatever spelling."""
        return [span for layer in _layers(text) for span in self._in_layer(layer)]

    def _in_layer(self, layer: _Layer) -> Iterator[Span]:
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
        for layer in _layers(text) if self._patterns else ():
            for pattern, mark in self._patterns:
                for found in pattern.finditer(layer.text):
                    if found.end() > found.start():
                        yield layer.start(found.start()), layer.end(found.end()), mark

    def _begun(self, layer: _Layer) -> int:
        """Where the beginning of a value or of an escape stands at the end of a text."""
        text = layer.text
        open_escape = _open_escape(text)
        whole = text[:open_escape]
        at = min((_begun(whole, secret.text) for secret in self._secrets), default=open_escape)
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


class _Environment:
    """The environment's variables that hold secrets; read again only when it has changed."""

    def __init__(self) -> None:
        self._now: tuple[Mapping[Any, Any], Mapping[str, str]] = ({}, {})

    def secrets(self) -> Mapping[str, str]:
        """Name → value; the same object as long as the environment is the same."""
        # What lies behind os.environ is compared in a hundredth of the time that reading it takes.
        behind: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
        seen, secrets = self._now
        if behind != seen:
            seen = dict(behind)
            secrets = {name: value for name, value in os.environ.items() if _holds(name, value)}
            self._now = (seen, secrets)
        return secrets


environment = _Environment()


def _holds(name: str, value: str) -> bool:
    return name.upper().endswith(_ENDINGS) and len(value.strip()) >= LEAST


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
        if _holds(name, environ[name])
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


class _Layer(NamedTuple):
    """A text with its escapes undone, and where its characters come from."""

    text: str
    below: _Layer | None = None
    at: Sequence[int] = ()
    """Places in `text` of what was an escape."""
    escapes: Sequence[tuple[int, int]] = ()
    """Start and end of each in the text below."""

    def start(self, place: int) -> int:
        """Where a character begins in the text at the bottom."""
        if self.below is None:
            return place
        number = bisect_right(self.at, place) - 1
        if number >= 0:
            at, (start, end) = self.at[number], self.escapes[number]
            place = start if place == at else end + place - at - 1
        return self.below.start(place)

    def end(self, place: int) -> int:
        """Where a stretch ends there that ends in front of `place` here; it is not empty."""
        if self.below is None:
            return place
        number = bisect_right(self.at, place - 1) - 1
        if number >= 0:
            place = self.escapes[number][1] + place - self.at[number] - 1
        return self.below.end(place)


def _layers(text: str) -> Iterator[_Layer]:
    """The text, then with its escapes undone, once more, and so on."""
    layer = _Layer(text)
    yield layer
    for _ in range(_LAYERS):
        if "\\" not in layer.text:
            return
        above = _undone(layer)
        if not above.at:
            return
        yield above
        layer = above


def _undone(below: _Layer) -> _Layer:
    pieces: list[str] = []
    at: list[int] = []
    escapes: list[tuple[int, int]] = []
    length = last = 0
    for found in _ESCAPE.finditer(below.text):
        start, end = found.span()
        pieces += (below.text[last:start], _character(found))
        length += start - last
        at.append(length)
        escapes.append((start, end))
        length, last = length + 1, end
    pieces.append(below.text[last:])
    return _Layer("".join(pieces), below, at, escapes)


def _character(found: re.Match[str]) -> str:
    high, low, *codes, short = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    if short:
        return _SHORT.get(short, short)
    code = int(next(filter(None, codes)), 16)
    return chr(code) if code < 0x110000 else "\N{REPLACEMENT CHARACTER}"


def _open_escape(text: str) -> int:
    """Where an escape begins that may go on behind the text; its length if none does."""
    at = text.rfind("\\", max(0, len(text) - 12))
    while at > 0 and text[at - 1] == "\\":
        at -= 1  # the first of those in a row says which of them begin something
    found = None
    while at >= 0 and found is None:
        whole = _ESCAPE.match(text, at)
        found = _BEGUN.match(text, at)
        if whole is None:
            break
        at = text.find("\\", whole.end())
    return len(text) if found is None else found.start()


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _begun(text: str, secret: str) -> int:
    """Where a beginning of the secret stands at the end of the text; its length if nowhere."""
    at = text.find(secret[0], max(0, len(text) - len(secret) + 1))
    while at >= 0 and not secret.startswith(text[at:]):
        at = text.find(secret[0], at + 1)
    return at if at >= 0 else len(text)


def _shortened(layer: _Layer, secret: _Secret) -> Iterator[Span]:
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


def _encodable(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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

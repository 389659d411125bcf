"""Texts with their escapes undone, as JSON and Python write them, and where each character stood."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Layer", "layers", "open_escape"]

_MOST = 5
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


class Layer(NamedTuple):
    """A text with its escapes undone, and where its characters come from."""

    text: str
    below: Layer | None = None
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


def layers(text: str) -> Iterator[Layer]:
    """The text, then with its escapes undone, once more, and so on."""
    layer = Layer(text)
    yield layer
    for _ in range(_MOST):
        if "\\" not in layer.text:
            return
        above = _undone(layer)
        if not above.at:
            return
        yield above
        layer = above


def _undone(below: Layer) -> Layer:
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
    return Layer("".join(pieces), below, at, escapes)


def _character(found: re.Match[str]) -> str:
    high, low, *codes, short = found.groups()
    if high:
        return chr(0x10000 + ((int(high, 16) & 0x3FF) << 10) + (int(low, 16) & 0x3FF))
    if short:
        return _SHORT.get(short, short)
    code = int(next(filter(None, codes)), 16)
    return chr(code) if code < 0x110000 else "\N{REPLACEMENT CHARACTER}"


def open_escape(text: str) -> int:
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

"""Rows and columns as lines of text that fit into a width."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from nbagent.escape import clean

__all__ = ["text_table"]

FIRST, LAST = 20, 80
"""Of a longer table, so many rows are shown from its begin and its end."""

GAP = "  "
ENOUGH = 20
"""Cells are cut to this before any heading is cut."""

HEADING = 10
"""Headings are cut to this before any cell is cut to less than `ENOUGH`."""

MARKS = "_,;:/-"
"""A line may end behind these, as at a space."""

CUT = 6
"""Cells and headings are cut to no less than this."""


def text_table(
    names: Sequence[str], rows: Sequence[Sequence[Any]], width: int, lines: int = 1
) -> str:
    """A heading, and for each row as many lines as its cells need; columns without a value are left out.

    Parameters
    ----------
    width
        Columns of the terminal.
    lines
        Most lines of a row; cells that need more are cut.

    Examples
    --------
    >>> print(text_table(["name", "ms"], [["add", 1.5], ["search", None]], 80))
    name    ms
    add     1.5
    search
    """
    left_out = len(rows) - FIRST - LAST
    chosen = rows if left_out <= 1 else [*rows[:FIRST], *rows[-LAST:]]
    columns = [
        [name, *(_cell(row[n]) for row in chosen)]
        for n, name in enumerate(names)
        if any(row[n] is not None for row in chosen)
    ]
    widths = _fit(
        [max(map(_width, column[1:])) for column in columns], [len(c[0]) for c in columns], width
    )
    heading, *blocks = (_row(cells, widths, lines) for cells in zip(*columns, strict=True))
    if left_out > 1:
        blocks.insert(FIRST, [f"… {left_out} rows more"])
    return "\n".join([*heading, *(line for block in blocks for line in block)])


def _row(cells: Sequence[str], widths: Sequence[int], lines: int) -> list[str]:
    wrapped = [_wrapped(cell, wide, lines) for cell, wide in zip(cells, widths, strict=True)]
    return [
        GAP.join(_pad(piece, wide) for piece, wide in zip(pieces, widths, strict=True)).rstrip()
        for pieces in zip_longest(*wrapped, fillvalue="")
    ]


def _wrapped(text: str, width: int, lines: int) -> list[str]:
    """The text in lines, broken behind a mark where one comes late enough, cut behind the last."""
    pieces: list[str] = []
    while _width(text) > width and len(pieces) < lines - 1:
        room = len(_cut(text, width + 1)[0]) - 1
        breaks = [
            n for n in range(room // 2 + 1, room + 1) if text[n] == " " or text[n - 1] in MARKS
        ]
        end = breaks[-1] if breaks else room
        pieces.append(text[:end].rstrip(" "))
        text = text[end:].lstrip(" ")
    return [*pieces, text]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:,.1f}"
    # A cell is cut far behind any width before the costly part, since a result may have megabytes.
    return " ".join(clean(str(value)[:2000]).split())


def _fit(cells: list[int], headings: list[int], width: int) -> list[int]:
    """Widths that fit: the longest cells are cut first, then headings, then all alike."""
    widths = [max(pair) for pair in zip(cells, headings, strict=True)]
    room = width - len(GAP) * (len(widths) - 1)
    whole = [max(heading, ENOUGH) for heading in headings]
    begun = [
        max(min(heading, HEADING), min(cell, ENOUGH))
        for cell, heading in zip(cells, headings, strict=True)
    ]
    for floors in (whole, begun, [CUT] * len(widths)):
        while sum(widths) > room:
            able = [n for n, wide in enumerate(widths) if wide > floors[n]]
            if not able:
                break
            widths[max(able, key=widths.__getitem__)] -= 1
    return widths


def _pad(text: str, width: int) -> str:
    wide = _width(text)
    if wide > width:
        text, wide = _cut(text, width)
    return text + " " * (width - wide)


def _cut(text: str, width: int) -> tuple[str, int]:
    """The text's begin and an ellipsis, and how wide that is."""
    wide = 0
    for n, character in enumerate(text):
        step = _width(character)
        if wide + step > width - 1:
            return text[:n] + "…", wide + 1
        wide += step
    return text, wide


def _width(text: str) -> int:
    """Columns that the text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )

"""Tables that read well: as HTML in a notebook, as text elsewhere.

This module alone loads pandas at its top, since a class has to stand in a module to be pickled;
import it in functions only.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from nbagent.escape import escape
from nbagent.frames.explain_text import cut
from nbagent.frames.html import CELL, SHORT, block
from nbagent.frames.text_table import text_table

__all__ = ["View"]

NOTHING = "<NA>"
"""How a missing value looks, whatever the dtype: as pandas' own nullable dtypes print it."""

FIRST, LAST = 30, 30
"""Of a longer table, so many rows are shown from its begin and its end."""

CELL_CHARS = 1000

ROW_LINES = 8
"""Most lines of a row in a terminal."""


class View(pd.DataFrame):
    """A DataFrame that differs from others by its looks only.

    It shows the columns that are looked at first and names the others, wraps long texts, has one
    word for nothing, and takes no text of models and tools for markup or formulas. Whatever is made
    of it (by selecting, filtering, grouping, joining, copying) is an ordinary DataFrame.
    """

    _metadata = ["hidden"]  # noqa: RUF012 - pandas' own way of naming attributes to keep

    hidden: tuple[str, ...] = ()
    """Columns that are only named when the table is shown."""

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def _repr_html_(self) -> str | None:
        if not pd.get_option("display.notebook_repr_html"):
            return None
        if not self._is_plain():
            return super()._repr_html_()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        return as_html(self, *self._shown())

    def __repr__(self) -> str:
        if not self._is_plain():
            return super().__repr__()
        return as_text(self, *self._shown())

    def _is_plain(self) -> bool:
        """Whether it still has one level of names and of row labels, and each name once."""
        return self.index.nlevels == self.columns.nlevels == 1 and self.columns.is_unique

    def _shown(self) -> tuple[list[Any], list[Any]]:
        """The columns that are shown, and those that are only named."""
        hidden = set(self.hidden or ())
        names = list(self.columns)
        return [n for n in names if n not in hidden], [n for n in names if n in hidden]


def as_text(frame: pd.DataFrame, names: Sequence[Any], others: Sequence[Any]) -> str:
    """The table as lines that fit the terminal (or pandas' `display.width`, where there is none)."""
    width = shutil.get_terminal_size((pd.get_option("display.width") or 80, 24)).columns
    size = textwrap.fill(f"[{_size(frame, names, others)}]", width)
    rows, left_out = _rows(frame, names)
    if not rows:
        return size
    cells = [[label, *(NOTHING if v is None else v for v in values)] for label, *values in rows]
    if left_out:
        cells.insert(FIRST, [f"… {left_out:,} rows more", *[""] * len(names)])
    return f"{text_table(['', *map(str, names)], cells, width, ROW_LINES)}\n{size}"


def as_html(frame: pd.DataFrame, names: Sequence[Any], others: Sequence[Any]) -> str:
    """The table as HTML with inline styles only; every text is escaped."""
    head = "".join(f'<th style="text-align:left">{escape(str(name))}</th>' for name in names)
    rows, left_out = _rows(frame, names)
    lines = [
        f"<tr><th>{escape(label or '')}</th>{''.join(map(_html_cell, values))}</tr>"
        for label, *values in rows
    ]
    if left_out:
        cell = f'<td colspan="{len(names) + 1}" style="{CELL}">… {left_out:,} rows more</td>'
        lines.insert(FIRST, f"<tr>{cell}</tr>")
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return block(f'{table}<div style="opacity:.7">{escape(_size(frame, names, others))}</div>')


def _html_cell(text: str | None) -> str:
    if text is None:
        return f'<td style="{SHORT};opacity:.5">{escape(NOTHING)}</td>'
    # What may break anywhere has no width of its own: a short cell would be squeezed by a long one.
    style = SHORT if len(text) <= 30 else f"{CELL};min-width:12em;max-width:40em"
    return f'<td style="{style}">{escape(text)}</td>'


def _size(frame: pd.DataFrame, names: Sequence[Any], others: Sequence[Any]) -> str:
    size = f"{len(frame):,} row{'' if len(frame) == 1 else 's'}"
    if not len(frame):
        size += f"; columns: {', '.join(map(str, names))}"
    return f"{size}; more columns: {', '.join(map(str, others))}" if others else size


def _rows(frame: pd.DataFrame, names: Sequence[Any]) -> tuple[list[list[str | None]], int]:
    """Label and values as text of the rows that are shown, None for nothing; how many are not."""
    left_out = len(frame) - FIRST - LAST
    chosen: Any = frame
    if left_out > 1:
        chosen = frame.iloc[[*range(FIRST), *range(len(frame) - LAST, len(frame))]]
    columns: list[Any] = [chosen.index, *(chosen[name].astype(object) for name in names)]
    rows = [[_text(value) for value in row] for row in zip(*columns, strict=True)]
    return rows, len(frame) - len(chosen)


def _text(value: Any) -> str | None:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    if isinstance(value, float):
        return f"{value:,.1f}" if not value or abs(value) >= 1 else f"{value:.3g}"
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return cut(str(value), CELL_CHARS)

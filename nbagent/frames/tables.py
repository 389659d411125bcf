"""All tables, and the one function that makes them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from nbagent.errors import ConfigError
from nbagent.frames.columns import Column, Table, build
from nbagent.frames.log_tables import COMPACTIONS, EVENTS, NOTES
from nbagent.frames.model_tables import ATTEMPTS, MESSAGES, STEPS, VERDICTS
from nbagent.frames.reading import read
from nbagent.frames.small import small_table
from nbagent.frames.tool_tables import APPROVALS, TOOLS
from nbagent.frames.usage_table import USAGE
from nbagent.log import collector_paused

if TYPE_CHECKING:
    import pandas as pd

    from nbagent.log import Log

__all__ = ["TABLES", "Wanted", "describe", "table"]

_T = TypeVar("_T")

TABLES = {
    each.name: each
    for each in (
        STEPS,
        EVENTS,
        MESSAGES,
        ATTEMPTS,
        TOOLS,
        VERDICTS,
        APPROVALS,
        COMPACTIONS,
        USAGE,
        NOTES,
    )
}
"""The tables by name."""

Wanted = Sequence["str | Column"] | Literal["short"] | None
"""Which columns: a list of names, "short", or None for all."""


def table(
    log: Log,
    name: str,
    start: int = 0,
    end: int | None = None,
    columns: Wanted = None,
) -> pd.DataFrame:
    """One table of a session, or of the stretch of it that is one run.

    Parameters
    ----------
    log
        May be in use: what is appended meanwhile is not in the table.
    name
        A key of `TABLES`: steps, events, messages, attempts, tools, verdicts, approvals,
        compactions, usage, notes.
    start, end
        Events `start` up to, not with, `end`. A row belongs to the stretch if its latest event does.
    columns
        Names of the columns wanted, or columns of your own; "short" gives the eight or so that are
        looked at first; None gives all of the table's, of which it shows those first.

    Returns
    -------
    pd.DataFrame
        One row per what `TABLES[name].doc` says, in the log's order; one column per
        `TABLES[name].columns`, each with a line on what it says. Whatever the content, even without
        rows, dtypes are Int64, Float64, boolean, string, category of a closed set, and
        datetime64[ms, UTC]. A unit stands at the end of a number's name, columns that end in `_json`
        hold JSON as text, and `attrs["schema"]` is "nbagent.NAME/1".

    Raises
    ------
    ConfigError
        If there is no table or column of that name.
    """
    chosen = _find(name, TABLES, "table")
    specs = _columns(chosen, columns)
    with collector_paused():
        frame = build(name, specs, chosen.rows(read(log, start, end)))
    if columns is None:
        short = chosen.short.split()
        frame.hidden = tuple(each.name for each in specs if each.name not in short)
    return frame


def describe(name: str | None = None) -> pd.DataFrame:
    """What the columns of a table mean; without a name, which tables there are.

    Parameters
    ----------
    name
        As in `result.to_pandas(name)`: steps, tools, attempts, ….

    Returns
    -------
    pd.DataFrame
        One row per column, in the table's order: name, dtype, unit (missing if it has none),
        meaning. Without a name one row per table: name, rows (one per what), columns (those that
        are looked at first).

    Raises
    ------
    ConfigError
        If there is no table of that name.

    Examples
    --------
    >>> describe("tools")["name"].to_list()[:4]
    ['turn', 'step', 'name', 'args_json']
    """
    if name is None:
        tables = [(each.name, each.doc, ", ".join(each.short.split())) for each in TABLES.values()]
        return small_table(tables, ["name", "rows", "columns"])
    columns = _find(name, TABLES, "table").columns
    rows = [(each.name, each.dtype, each.unit or None, each.meaning) for each in columns]
    return small_table(rows, ["name", "dtype", "unit", "meaning"])


def _columns(chosen: Table, columns: Wanted) -> Sequence[Column]:
    if columns is None:
        return chosen.columns
    if isinstance(columns, str) and columns != "short":
        msg = f'columns is "short" or a list of names, not {columns!r}: write columns=[{columns!r}]'
        raise ConfigError(msg)
    known = {column.name: column for column in chosen.columns}
    what = f'column of "{chosen.name}"'
    wanted = chosen.short.split() if isinstance(columns, str) else columns
    return [_find(each, known, what) if isinstance(each, str) else each for each in wanted]


def _find(name: str, known: dict[str, _T], what: str) -> _T:
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    msg = f"there is no {what} {name!r}; {hint}there are: {', '.join(known)}"
    raise ConfigError(msg)

"""All tables, and the one function that makes them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from nbagent.errors import ConfigError
from nbagent.frames.columns import Column, build
from nbagent.frames.log_tables import COMPACTIONS, EVENTS, NOTES
from nbagent.frames.model_tables import ATTEMPTS, MESSAGES, STEPS, USAGE, VERDICTS
from nbagent.frames.reading import read
from nbagent.frames.tool_tables import APPROVALS, TOOLS
from nbagent.log import collector_paused

if TYPE_CHECKING:
    import pandas as pd

    from nbagent.log import Log

__all__ = ["TABLES", "table"]

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


def table(
    log: Log,
    name: str,
    start: int = 0,
    end: int | None = None,
    columns: Sequence[str | Column] | None = None,
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
        Names of the columns wanted, or columns of your own; None gives the table's.

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
    known = {column.name: column for column in chosen.columns}
    wanted = chosen.columns if columns is None else columns
    specs = [
        _find(each, known, f'column of "{name}"') if isinstance(each, str) else each
        for each in wanted
    ]
    with collector_paused():
        return build(name, specs, chosen.rows(read(log, start, end)))


def _find(name: str, known: dict[str, _T], what: str) -> _T:
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    msg = f"there is no {what} {name!r}; {hint}there are: {', '.join(known)}"
    raise ConfigError(msg)

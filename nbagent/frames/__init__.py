"""Tables of what happened, the exact requests behind them, and a summary in text."""

from nbagent.frames.brief import brief
from nbagent.frames.columns import Column, Table
from nbagent.frames.explain import Changes, Difference, Explanation, explain
from nbagent.frames.export import export
from nbagent.frames.show import show
from nbagent.frames.small import small_table
from nbagent.frames.tables import TABLES, Wanted, describe, table

__all__ = [
    "TABLES",
    "Changes",
    "Column",
    "Difference",
    "Explanation",
    "Table",
    "Wanted",
    "brief",
    "describe",
    "explain",
    "export",
    "show",
    "small_table",
    "table",
]

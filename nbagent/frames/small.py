"""Small tables of text that come from an object, not from a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["small_table"]


def small_table(rows: Sequence[Sequence[str | None]], columns: Sequence[str]) -> pd.DataFrame:
    """A table of text, one row each, with its columns even if it is empty; None is a missing text."""
    from nbagent.frames.view import View

    return View([list(row) for row in rows], columns=list(columns), dtype="string")

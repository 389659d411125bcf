"""Small tables of text that come from an object, not from a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["small_table"]


def small_table(rows: Sequence[Sequence[str]], columns: Sequence[str]) -> pd.DataFrame:
    """A table of text, one row each, with its columns even if it is empty."""
    import pandas as pd

    return pd.DataFrame([list(row) for row in rows], columns=list(columns), dtype="string")

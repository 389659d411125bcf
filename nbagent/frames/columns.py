"""A table is a list of columns; a column is a name, a kind and how to get its value from a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import orjson

if TYPE_CHECKING:
    from nbagent.frames.reading import Reading
    from nbagent.frames.view import View

__all__ = ["Column", "Kind", "Table", "build", "json_text"]

Kind = Literal["int", "float", "bool", "text", "category", "time"]
"""Int64, Float64, boolean, string (never an empty one), category, datetime64[ms, UTC]."""

DTYPES: dict[Kind, str] = {
    "int": "Int64",
    "float": "Float64",
    "bool": "boolean",
    "text": "string",
    "category": "category",
    "time": "datetime64[ms, UTC]",
}

UNITS = {
    "_ms": "ms",
    "_usd": "US dollars",
    "tokens": "tokens",
    "_chars": "characters",
}
"""Units by the end of a number's name."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    Examples
    --------
    >>> Column("asked", "bool", lambda call: bool(call.questions), doc="Whether a person was asked.").name
    'asked'
    """

    name: str
    """snake_case, with the unit of a number at its end (`duration_ms`)."""
    kind: Kind
    get: Callable[[Any], Any]
    """From a row of the table to the value; None is a missing one, a time is UTC ms."""
    categories: tuple[str, ...] = ()
    """The closed set of a category, in its order; other values that occur are added behind."""
    doc: str = ""
    """What the column says, one line."""
    unit: str = ""
    """Of a number or time; from the end of a number's name (`UNITS`) if it is not given."""

    def __post_init__(self) -> None:
        if self.kind in ("int", "float") and not self.unit:
            by_name = next((unit for end, unit in UNITS.items() if self.name.endswith(end)), "")
            object.__setattr__(self, "unit", by_name)

    @property
    def dtype(self) -> str:
        """The dtype in pandas' words."""
        return DTYPES[self.kind]

    @property
    def meaning(self) -> str:
        """`doc`, with the closed set of a category if it is small."""
        listed = ", ".join(self.categories)
        return f"{self.doc} One of: {listed}." if 0 < len(self.categories) <= 20 else self.doc


@dataclass(frozen=True, slots=True)
class Table:
    """One table: what its rows are, and its columns. Append a `Column` to `columns` to have one more."""

    name: str
    doc: str
    """One row per what, in which order."""
    rows: Callable[[Reading], Sequence[Any]]
    columns: list[Column] = field(default_factory=list[Column])
    short: str = ""
    """Names of the columns that are looked at first, with spaces between."""


def build(name: str, columns: Sequence[Column], rows: Sequence[Any]) -> View:
    """The rows as a table whose dtypes don't depend on what is in it."""
    from nbagent.frames.view import View

    arrays: dict[str, Any] = {}
    for column in columns:
        values = list(map(column.get, rows))
        arrays[column.name] = _array(column.kind, column.categories, values)
    frame = View(arrays, copy=False)
    frame.attrs["schema"] = f"nbagent.{name}/1"
    return frame


def json_text(value: Any) -> str | None:
    """The value as JSON text; None for None."""
    return None if value is None else orjson.dumps(value).decode()


def _array(kind: Kind, categories: tuple[str, ...], values: list[Any]) -> Any:
    """One column's values as an array of its kind's dtype."""
    import numpy as np
    import pandas as pd

    match kind:
        case "int":
            return _masked(pd.arrays.IntegerArray, "int64", values)
        case "float":
            return _masked(pd.arrays.FloatingArray, "float64", values)
        case "bool":
            return _masked(pd.arrays.BooleanArray, "bool", values)
        case "text":
            return pd.array([value or None for value in values], dtype="string")
        case "category":
            return _category(categories, values)
        case "time":
            missing = np.iinfo(np.int64).min  # NaT
            stamps = np.array([missing if v is None else v for v in values], dtype=np.int64)
            return pd.DatetimeIndex(stamps.view("M8[ms]")).tz_localize("UTC")


def _masked(array: Any, dtype: str, values: list[Any]) -> Any:
    """Values and a mask, which takes a tenth of the time of letting pandas look at each value."""
    import numpy as np

    if None not in values:
        return array(np.array(values, dtype=dtype), np.zeros(len(values), dtype=bool))
    mask = np.array([value is None for value in values], dtype=bool)
    return array(np.array([value or 0 for value in values], dtype=dtype), mask)


def _category(categories: tuple[str, ...], values: list[Any]) -> Any:
    import numpy as np
    import pandas as pd

    code_of: dict[Any, int] = {category: code for code, category in enumerate(categories)}
    code_of.update({value: len(code_of) + n for n, value in enumerate(_others(values, code_of))})
    index = pd.Index(list(code_of), dtype=None if code_of else object)
    code_of[None] = -1
    codes = np.array(list(map(code_of.__getitem__, values)), dtype=np.int32)
    return pd.Categorical.from_codes(codes, categories=index)  # pyright: ignore[reportUnknownMemberType, reportArgumentType]


def _others(values: list[Any], known: dict[Any, int]) -> list[Any]:
    """Values outside of the closed set, as they first appear: a newer log may have some."""
    found = set(values).difference(known)
    found.discard(None)
    return [value for value in dict.fromkeys(values) if value in found] if found else []

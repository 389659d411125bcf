"""Values of any kind as plain JSON values; pandas, numpy and pydantic are recognised, not loaded."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import fractions
import json
import math
import os
import re
import types
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing
from typing import Any

from nbagent.messages import scrub

__all__ = ["collected", "plain"]

MOST_DEPTH = 60
MOST_REPR = 1_000
MOST_LAZY = 1_000
"""Items taken from an iterator, async ones included."""
UNREAD = "… (more items were not read)"
MOST_ARRAY = 1_000
"""Numbers of an array that are written out."""
HEAD_ROWS = 10
HEAD_COLUMNS = 20


def plain(value: Any, _above: tuple[int, ...] = ()) -> Any:
    """The value as dicts, lists, text, finite numbers, booleans and None.

    Raises
    ------
    Exception
        Only if the value's own methods raise in a place that `repr` doesn't reach either.
    """
    if value is None or isinstance(value, bool):
        return value
    if id(value) in _above:
        return "<circular>"
    if len(_above) > MOST_DEPTH:
        return shown(value)
    above = (*_above, id(value))
    try:
        return _plain(value, above)
    except Exception:  # noqa: BLE001 - foreign code runs here; a repr says more than a failure
        return shown(value)


async def collected(items: AsyncGenerator[Any]) -> list[Any]:
    """What an async generator gives, as `plain` reads any other: so many items, up to an error."""
    found: list[Any] = []
    try:
        async with aclosing(items):
            async for item in items:
                if len(found) == MOST_LAZY:
                    found.append(UNREAD)
                    break
                found.append(item)
    except Exception as error:  # noqa: BLE001 - the items read so far are worth keeping
        found.append(_stopped(error))
    return found


def shown(value: Any) -> str:
    """The `repr` (`str` where only that is defined), cut, without memory addresses."""
    kind = value.__class__
    try:
        text = str(value) if kind.__repr__ is object.__repr__ else repr(value)
    except Exception as error:  # noqa: BLE001 - it is foreign code
        return f"<{kind.__name__}, whose repr raises {type(error).__name__}>"
    # Addresses differ from call to call, and equal results should be equal.
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return text if len(text) <= MOST_REPR else f"{text[:MOST_REPR]}… ({len(text)} characters)"


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    match _family(value):
        case "numpy":
            return _numpy(value, above)
        case "DataFrame":
            return _frame(value)
        case "Series":
            return _series(value)
        case _:
            pass
    as_any: Any = value  # the cases below narrow to types of unknown items
    match value:
        case enum.Enum():
            return plain(value.value, above)
        case str() | int() | float():
            return _scalar(value)
        case bytes() | bytearray() | memoryview():
            return _bytes(bytes(as_any))
        case Mapping():
            return _mapping(as_any, above)
        case tuple() if hasattr(as_any, "_fields"):
            return {name: plain(getattr(as_any, name), above) for name in as_any._fields}
        case Set():
            return sorted((plain(item, above) for item in as_any), key=_order)
        case Sequence():
            return [plain(item, above) for item in as_any]
        case _:
            return _object(value, above)


def _family(value: Any) -> str:
    """numpy, DataFrame or Series, also for classes made from these; else nothing."""
    for kind in type(value).__mro__:
        module = kind.__module__.partition(".")[0]
        if module == "numpy":
            return module
        if module == "pandas" and kind.__name__ in {"DataFrame", "Series"}:
            return kind.__name__
    return ""


def _object(value: Any, above: tuple[int, ...]) -> Any:
    as_any: Any = value
    match value:
        case datetime.datetime() | datetime.date() | datetime.time():
            return value.isoformat()
        case datetime.timedelta() | uuid.UUID() | decimal.Decimal() | fractions.Fraction():
            return str(value)
        case os.PathLike():
            return str(as_any)
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case type() | types.FunctionType() | types.ModuleType():
            return shown(value)
        case Iterator() if type(as_any).__module__ in {"builtins", "itertools"}:
            return _lazy(as_any, above)
        case _ if _is_view(value):
            return [plain(item, above) for item in value]
        case _ if dataclasses.is_dataclass(value):
            names = (each.name for each in dataclasses.fields(value))
            return {
                name: plain(getattr(value, name), above)
                for name in names
                if not name.startswith("_")
            }
        case _ if hasattr(as_any, "__pydantic_serializer__") and hasattr(as_any, "model_dump"):
            return plain(as_any.model_dump(), above)
        case _:
            return shown(value)


def _scalar(value: str | float) -> str | int | float:
    if isinstance(value, str):
        return scrub(str.__str__(value))
    return _integer(int(value)) if isinstance(value, int) else _float(value)


def _integer(value: int) -> int | str:
    try:
        str(value)
    except ValueError:  # more digits than Python converts
        return f"<an integer of {value.bit_length()} bits>"
    return value


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return float(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() or (not set(text) & _CONTROL):
        return text
    start = base64.b64encode(value[:48]).decode()
    return f"<{len(value)} bytes, base64: {start}{'…' if len(value) > 48 else ''}>"


_CONTROL = {chr(n) for n in range(32)} - set("\n\r\t")


def _mapping(value: Mapping[Any, Any], above: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = _key(key, above)
        while name in found:  # such as 1 and "1"
            name += "'"
        found[name] = plain(item, above)
    return found


def _key(key: Any, above: tuple[int, ...]) -> str:
    name = plain(key, above)
    return name if isinstance(name, str) else json.dumps(name, ensure_ascii=False)


def _order(item: Any) -> tuple[bool, Any]:
    number = isinstance(item, int | float)
    return (not number, item if number else item if isinstance(item, str) else json.dumps(item))


def _is_view(value: Any) -> bool:
    return type(value).__module__ == "collections" and isinstance(value, Iterable)


def _lazy(value: Iterable[Any], above: tuple[int, ...]) -> list[Any]:
    found: list[Any] = []
    try:
        for item in value:
            if len(found) == MOST_LAZY:
                found.append(UNREAD)
                break
            found.append(plain(item, above))
    except Exception as error:  # noqa: BLE001 - the items read so far are worth keeping
        found.append(_stopped(error))
    return found


def _stopped(error: Exception) -> str:
    return f"<stopped by {type(error).__name__}: {error}>"


def _numpy(value: Any, above: tuple[int, ...]) -> Any:
    if not hasattr(value, "ndim") or not hasattr(value, "dtype"):
        return shown(value)
    if value.ndim == 0:
        item = value.item()
        # A long double, for one, is its own item; dates beyond Python's come as bare integers.
        same = type(item).__module__.partition(".")[0] == "numpy" or value.dtype.kind in "mM"
        return str(value) if same else plain(item, above)
    if value.size <= MOST_ARRAY:
        listed = value.astype(str).tolist() if value.dtype.kind in "mM" else value.tolist()
        return plain(listed, above)
    head = plain(value.ravel()[:HEAD_ROWS].tolist(), above)
    facts = f"array of shape {value.shape}, {value.dtype}, first values: {json.dumps(head)}"
    if value.dtype.kind not in "iuf":
        return facts
    low, high, mean = (f"{float(each):.6g}" for each in (value.min(), value.max(), value.mean()))
    return f"{facts}; min {low}, max {high}, mean {mean}"


def _frame(value: Any) -> str:
    rows, columns = value.shape
    names = [f"{name} ({kind})" for name, kind in zip(value.columns, value.dtypes, strict=True)]
    lines = [f"DataFrame, {rows} rows × {columns} columns"]
    if names:
        more = ", …" if columns > HEAD_COLUMNS else ""
        lines.append(f"columns: {', '.join(names[:HEAD_COLUMNS])}{more}")
    if rows and columns:
        if rows > HEAD_ROWS:
            lines.append(f"first {HEAD_ROWS} rows:")
        head = value.iloc[:HEAD_ROWS, :HEAD_COLUMNS]
        lines.append(head.to_string(max_colwidth=60))
    return scrub("\n".join(lines))


def _series(value: Any) -> str:
    name = "" if value.name is None else f" {value.name}"
    lines = [f"Series{name}, {len(value)} values ({value.dtype})"]
    if len(value):
        if len(value) > HEAD_ROWS:
            lines.append(f"first {HEAD_ROWS}:")
        lines.append(value.iloc[:HEAD_ROWS].to_string())
    return scrub("\n".join(lines))

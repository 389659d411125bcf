"""All tables as files: one Excel workbook, or one CSV or Parquet file a table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbagent.errors import ConfigError
from nbagent.frames.explain_text import cut
from nbagent.frames.tables import TABLES, table

if TYPE_CHECKING:
    import pandas as pd

    from nbagent.log import Log

__all__ = ["export", "for_excel"]

CELL_CHARS = 32_767
"""A cell holds no more. Source: "Excel specifications and limits", support.microsoft.com, 2026-12."""

SHEET_ROWS = 1_048_576

# What XML 1.0 has no place for, and what it would turn into another character.
_NO_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def export(
    log: Log, path: str | os.PathLike[str], start: int = 0, end: int | None = None
) -> list[Path]:
    """Write all tables of a session, or of a stretch of it.

    Parameters
    ----------
    path
        Its end says what is made: "run.xlsx" one workbook with a sheet a table, "run.csv" or
        "run.parquet" a file a table (run.tools.csv, run.steps.csv, …). Files that are there are
        replaced, folders are made.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    ConfigError
        If the path ends otherwise, a library is missing, or a table has more rows than a sheet.
    OSError
        If a file can't be written.
    """
    if not isinstance(path, str | os.PathLike):
        msg = f"a path to export to is text or a Path, not {path!r}"
        raise ConfigError(msg)
    target = Path(path).expanduser()
    write = _WRITERS.get(target.suffix.lower())
    if write is None:
        msg = f"can't export to {str(path)!r}: give a path that ends in {', '.join(_WRITERS)}"
        raise ConfigError(msg)
    target.parent.mkdir(parents=True, exist_ok=True)
    return write(target, lambda name: table(log, name, start, end))


Make = Callable[[str], "pd.DataFrame"]


def _each(target: Path, make: Make, write: Callable[[pd.DataFrame, Path], object]) -> list[Path]:
    paths = [target.with_name(f"{target.stem}.{name}{target.suffix}") for name in TABLES]
    for name, path in zip(TABLES, paths, strict=True):
        write(make(name), path)
    return paths


def _csv(target: Path, make: Make) -> list[Path]:
    return _each(target, make, lambda frame, path: frame.to_csv(path, index=False))


def _parquet(target: Path, make: Make) -> list[Path]:
    _require("pyarrow", "parquet", target)
    return _each(target, make, lambda frame, path: frame.to_parquet(path))


def _excel(target: Path, make: Make) -> list[Path]:
    _require("openpyxl", "excel", target)
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    book: Any = Workbook(write_only=True)
    for name in TABLES:
        frame = make(name)
        if len(frame) >= SHEET_ROWS:
            msg = f"the table {name} has {len(frame):,} rows, more than a sheet: export to .parquet"
            raise ConfigError(msg)
        sheet = book.create_sheet(name)
        sheet.freeze_panes = "A2"
        for row in _excel_rows(frame):
            cells: list[Any] = []
            for value in row:
                cell: Any = WriteOnlyCell(sheet, value)
                if isinstance(value, str):
                    cell.data_type = "s"  # a text that begins with "=" would become a formula
                cells.append(cell)
            sheet.append(cells)
    book.save(target)
    return [target]


def _excel_rows(frame: pd.DataFrame) -> Iterator[list[Any]]:
    yield [for_excel(str(name)) for name in frame.columns]
    columns: list[Any] = [frame[name].astype(object) for name in frame.columns]
    for row in zip(*columns, strict=True):
        yield [for_excel(value) for value in row]


def for_excel(value: Any) -> Any:
    r"""A value as a cell can hold it.

    Nothing is an empty cell, a time loses its zone (it is UTC). A text that is too long ends with
    how much is missing; control characters become their pictures (ESC is ␛).

    Examples
    --------
    >>> for_excel("\x1b[31m"), for_excel("x" * 40_000)[-30:]
    ('␛[31m', 'xxxx … (7,273 more characters)')
    """
    import pandas as pd

    if not isinstance(value, str):
        if pd.isna(value):
            return None
        return value.tz_convert(None).to_pydatetime() if isinstance(value, pd.Timestamp) else value
    text = _NO_XML.sub(_picture, value)
    if len(text.encode("utf-16-le")) // 2 <= CELL_CHARS:  # Excel counts in these units
        return text
    room = CELL_CHARS - 40
    begin = text.encode("utf-16-le")[: 2 * room].decode("utf-16-le", "ignore")
    return cut(text, len(begin))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def _require(module: str, extra: str, target: Path) -> None:
    if find_spec(module) is None:
        msg = f'to write {target.name}, {module} is needed: pip install "nbagent[{extra}]"'
        raise ConfigError(msg)


_WRITERS: dict[str, Callable[[Path, Make], list[Path]]] = {
    ".xlsx": _excel,
    ".parquet": _parquet,
    ".csv": _csv,
}

"""All tables as files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import nbagent as nb
from nbagent.errors import ConfigError
from nbagent.frames import TABLES, export, table


def test_a_workbook_has_a_sheet_a_table_with_all_columns(rich: Any, tmp_path: Path):
    path = tmp_path / "run.xlsx"
    assert export(rich.log, path) == [path]
    with pd.ExcelFile(path) as book:
        sheets = {name: pd.read_excel(book, sheet_name=name) for name in TABLES}  # pyright: ignore[reportUnknownMemberType]
        assert book.sheet_names == list(TABLES)
    for name, sheet in sheets.items():
        frame = table(rich.log, name)
        assert list(sheet.columns) == list(frame.columns)
        assert len(sheet) == len(frame)
    tools, frame = sheets["tools"], table(rich.log, "tools")
    for column in ("name", "args_json", "result", "status", "duration_ms", "position", "truncated"):
        assert tools[column].tolist() == frame[column].tolist()
    naive = frame["ts"].dt.tz_convert(None)
    assert (tools["ts"] - naive).abs().max() < pd.Timedelta(milliseconds=1)


def test_texts_that_a_cell_can_not_hold_are_shown_and_said(writer: Any, tmp_path: Path):
    from openpyxl import load_workbook

    w = writer
    w.prompt('=HYPERLINK("http://evil","x")')
    w.header()
    w.ask()
    w.answer("#N/A", ("search", "{}"))
    w.call(0)
    w.result(0, "\x1b[31m\x00\x0b\r\n\ufffe é 日本 🎉" + "🎉" * 40_000)
    w.close("end_turn")
    path = tmp_path / "run.xlsx"
    export(w.log, path)
    book: Any = load_workbook(path)
    step = {cell.value: row for cell, row in zip(*book["steps"].iter_rows(max_row=2), strict=True)}
    assert (step["user_text"].value, step["user_text"].data_type) == (
        '=HYPERLINK("http://evil","x")',
        "s",
    )
    assert (step["text"].value, step["text"].data_type) == ("#N/A", "s")
    tool = {cell.value: row for cell, row in zip(*book["tools"].iter_rows(max_row=2), strict=True)}
    text = tool["result"].value
    assert text.startswith("␛[31m␀␋␍\n\ufffd é 日本 🎉")
    assert text.endswith("more characters)")
    assert len(text.encode("utf-16-le")) // 2 <= 32_767


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".CSV"])
def test_a_file_a_table_beside_each_other(suffix: str, rich: Any, tmp_path: Path):
    paths = export(rich.log, tmp_path / "deep" / f"run.1{suffix}")
    assert [path.name for path in paths] == [f"run.1.{name}{suffix}" for name in TABLES]
    for name, path in zip(TABLES, paths, strict=True):
        frame = table(rich.log, name).copy()
        if suffix == ".parquet":
            back = pd.read_parquet(path)
            assert back.attrs == frame.attrs
            if len(frame):
                assert_frame_equal(frame, back)
        else:
            back = pd.read_csv(path)
            assert list(back.columns) == list(frame.columns)
            assert len(back) == len(frame)


@pytest.mark.parametrize("path", ["run", "run.json", "run.xls", "", "."])
def test_another_end_of_the_path_is_refused_with_those_there_are(path: str, rich: Any):
    with pytest.raises(ConfigError, match=r"ends in \.xlsx, \.parquet, \.csv"):
        export(rich.log, path)


def test_what_is_no_path_is_refused(rich: Any):
    with pytest.raises(ConfigError, match="text or a Path, not 3"):
        export(rich.log, 3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("module", "extra", "suffix"),
    [("openpyxl", "excel", "xlsx"), ("pyarrow", "parquet", "parquet")],
)
def test_a_missing_library_is_named_with_its_command(
    module: str, extra: str, suffix: str, tmp_path: Path
):
    code = f"""
import sys
sys.modules[{module!r}] = None
import nbagent as nb
try:
    nb.Session().export({str(tmp_path / "run.")!r} + {suffix!r})
except nb.errors.ConfigError as error:
    assert 'pip install "nbagent[{extra}]"' in str(error), error
else:
    raise SystemExit("no error")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


async def test_a_result_exports_its_run_and_a_session_all_of_them(tmp_path: Path):
    session = nb.Session()
    agent = nb.Agent(nb.models.Scripted(["one", "two"]), session=session)
    await agent.run("a")
    result = await agent.run("b")
    result.export(tmp_path / "run.csv")
    session.export(str(tmp_path / "all.csv"))
    assert pd.read_csv(tmp_path / "run.steps.csv")["text"].tolist() == ["two"]
    assert pd.read_csv(tmp_path / "all.steps.csv")["text"].tolist() == ["one", "two"]

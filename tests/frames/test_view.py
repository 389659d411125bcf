"""How tables look, and that what is made of them are ordinary DataFrames."""

from __future__ import annotations

import pickle
from copy import copy, deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from nbagent.frames import TABLES, table
from nbagent.frames.small import small_table


class Cells(HTMLParser):
    """The texts of an HTML table's cells, and all tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.classes: list[str] = []
        self.open = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.classes += (dict(attrs).get("class") or "").split()
        if tag in ("td", "th"):
            self.cells.append("")
            self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = self.open and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.open:
            self.cells[-1] += data


def html(frame: Any) -> Cells:
    return Cells(frame._repr_html_())


def called(writer: Any, result: str, arguments: str = "{}") -> Any:
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.answer("", ("search", arguments))
    w.call(0)
    w.result(0, result)
    w.close("end_turn")
    return w.log


@pytest.mark.parametrize("name", TABLES)
def test_a_whole_table_shows_what_is_looked_at_and_names_the_rest(name: str, rich: Any):
    frame, short = table(rich.log, name), table(rich.log, name, columns="short")
    head = html(frame).cells[: len(short.columns) + 1]
    assert sorted(head) == sorted(["", *short.columns])
    others = [column for column in frame.columns if column not in short.columns]
    assert f"more columns: {', '.join(others)}" in frame._repr_html_()  # type: ignore[operator]
    assert f"more columns: {', '.join(others)}" in " ".join(repr(frame).split())
    assert "more columns" not in repr(short)


def test_columns_that_were_chosen_are_all_shown(rich: Any):
    frame = table(rich.log, "tools", columns=["name", "call_id", "raw"])
    assert html(frame).cells[:4] == ["", "name", "call_id", "raw"]
    assert repr(frame).split("\n")[0].split() == ["name", "call_id", "raw"]


def test_a_column_that_was_added_is_shown(rich: Any):
    frame = table(rich.log, "tools")
    mine: Any = [[1, 2], None, "x", float("nan")]
    frame["mine"] = mine
    assert "mine" in html(frame).cells
    assert "[1, 2]" in repr(frame)


def test_nothing_has_one_word_whatever_the_dtype(rich: Any):
    whole = table(rich.log, "tools", columns=[c.name for c in TABLES["tools"].columns])
    for name in TABLES:
        whole = table(rich.log, name, columns=[c.name for c in TABLES[name].columns])
        shown = html(whole)
        assert not {"nan", "NaN", "None", "NaT", "<NA>"} & set(shown.cells[: len(whole.columns)])
        cells = shown.cells[len(whole.columns) + 1 :]
        assert not {"nan", "NaN", "None", "NaT", ""} & set(cells)
        assert cells.count("<NA>") == int(whole.isna().sum().sum())
        words = repr(whole).split()
        assert not {"nan", "NaN", "None", "NaT"} & set(words)


def test_long_texts_wrap_and_are_not_cut_at_fifty_characters(writer: Any):
    text = "a sentence that goes on. " * 20
    shown = table(called(writer, text), "tools")._repr_html_()  # type: ignore[operator]
    assert text in shown
    assert "overflow-wrap:anywhere" in shown


def test_a_huge_text_is_shortened_and_says_so(writer: Any):
    frame: Any = table(called(writer, "x" * 1_000_000), "tools")
    shown: str = frame._repr_html_()
    assert len(shown) < 10_000
    assert "… (999,000 more characters)" in shown


def test_dollars_are_no_formulas_and_markup_is_text(writer: Any):
    hostile = "$x^2$ costs $5 <script>alert(1)</script><img src=x onerror=y> \\(a\\) \x1b[31m"
    log = called(writer, hostile, '{"<b>": "</td>"}')
    for name in TABLES:
        shown = html(table(log, name))
        assert {"mathjax_ignore", "tex2jax_ignore"} <= set(shown.classes)
        assert set(shown.tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    tools = html(table(log, "tools")).cells
    assert any(cell.startswith("$x^2$ costs $5 <script>") for cell in tools)
    assert "\x1b" not in repr(table(log, "tools"))


def test_hostile_names_of_columns_and_rows_are_text(rich: Any):
    frame = table(rich.log, "tools", columns=["name"])
    frame["<script>"] = 1
    frame.index = pd.Index(["<img>", "$a$", "b", "c"])
    assert set(html(frame).tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}


def test_a_long_table_shows_its_begin_and_end(writer: Any):
    for n in range(500):
        writer.notice("tick", f"number {n}")
    frame = table(writer.log, "notes")
    for shown in (repr(frame), frame._repr_html_()):  # type: ignore[operator]
        assert "… 440 rows more" in shown
        assert "number 29" in shown
        assert "number 30<" not in shown
        assert "number 499" in shown
        assert "500 rows" in shown


def test_an_empty_table_names_its_columns(writer: Any):
    frame = table(writer.log, "tools")
    assert repr(frame).startswith("[0 rows; columns: turn, step, name, args_json")
    assert "0 rows" in frame._repr_html_()  # type: ignore[operator]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_text_fits_the_terminal(rich: Any, width: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = repr(table(rich.log, "tools")).split("\n")
    assert max(map(len, lines)) <= width


def test_pandas_own_option_against_html_is_heeded(rich: Any):
    with pd.option_context("display.notebook_repr_html", False):
        assert table(rich.log, "tools")._repr_html_() is None  # type: ignore[operator]


def test_what_is_made_of_a_table_is_an_ordinary_frame(rich: Any, tmp_path: Path):
    frame = table(rich.log, "tools")
    plain = pd.DataFrame(frame)
    made: dict[str, Any] = {
        "some columns": frame[["name", "status"]],
        "some rows": frame[frame["status"] == "ok"],
        "head": frame.head(2),
        "sorted": frame.sort_values("duration_ms"),
        "copy": frame.copy(),
        "joined": pd.concat([frame, frame]),
        "merged": frame.merge(frame, on="seq"),
        "grouped": frame.groupby("name")[["duration_ms"]].sum(),
        "counted": frame.groupby("name", observed=True).agg(n=("seq", "count")),
        "applied": frame.assign(x=1),
        "pivoted": frame.pivot_table(index="name", values="duration_ms"),
        "turned": frame[["seq"]].T,
        "copied": copy(frame),
        "deep": deepcopy(frame),
    }
    assert {what for what, value in made.items() if type(value) is not pd.DataFrame} == set()
    assert made["copy"].attrs == frame.attrs
    assert_frame_equal(made["copy"], plain)
    assert isinstance(frame["name"], pd.Series)
    for each in made.values():
        repr(each)
    frame.to_parquet(tmp_path / "t.parquet")
    assert_frame_equal(plain, pd.read_parquet(tmp_path / "t.parquet"))
    frame.to_csv(tmp_path / "t.csv")


def test_a_pickled_table_is_the_same_table(rich: Any):
    frame = table(rich.log, "tools")
    back = pickle.loads(pickle.dumps(frame))
    assert_frame_equal(frame, back)
    assert repr(back) == repr(frame)


def test_changes_in_place_are_shown(rich: Any):
    frame = table(rich.log, "tools")
    del frame["result"]
    assert "result" not in html(frame).cells
    frame.index = pd.MultiIndex.from_product([["a", "b"], [1, 2]])
    assert "search" in repr(frame)
    assert "search" in frame._repr_html_()  # type: ignore[operator]


def test_small_tables_read_well_too():
    frame = small_table([("a", None), ("$b$ <i>", "x" * 70)], ["name", "why"])
    assert html(frame).cells == ["", "name", "why", "0", "a", "<NA>", "1", "$b$ <i>", "x" * 70]

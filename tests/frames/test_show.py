"""The summary that `nbagent show` prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nbagent.frames import show
from nbagent.frames.text_table import _width, text_table
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore


def test_it_says_how_the_session_stands_and_shows_its_tables(rich: Any):
    text = show(rich.log, width=120)
    head = text.split("\n\n")[0].split("\n")
    assert head[0] == "session s1"
    assert (
        head[1]
        == f"created 2026-11-30 09:38:53 UTC, {len(rich.log)} events, 2 runs, 2 turns, 3 steps"
    )
    assert head[2] == "scripted: 53 tokens in 5 attempts"
    assert head[3] == "ends idle; verified"
    titles = [block.split("\n")[0] for block in text.split("\n\n")[1:]]
    assert titles == ["steps", "tools", "attempts", "approvals", "verdicts", "notes"]
    assert "RateLimitError" in text


def test_allowed_calls_that_nobody_was_asked_about_are_only_in_tools(rich: Any):
    approvals = show(rich.log, width=120).split("approvals\n")[1].split("\n\n")[0]
    assert len(approvals.splitlines()) == 2
    assert "always_allow" in approvals


@pytest.mark.parametrize("width", [80, 100, 200])
def test_lines_fit_the_width(rich: Any, width: int):
    assert max(map(len, show(rich.log, width=width).splitlines())) <= width


def test_an_empty_and_a_live_session_are_shown(writer: Any):
    assert "ends idle; verified" in show(writer.log)
    writer.prompt("go")
    writer.header()
    writer.ask()
    assert "ends inside turn 1; verified" in show(writer.log)


@pytest.mark.damages_files
def test_the_path_and_damage_are_named(rich: Any, tmp_path: Path):
    path = tmp_path / "log.jsonl"
    log = Log(JsonlStore(path))
    log.acquire()
    log.append("session/end-seed", {})
    log.append("notice", {"kind": "a", "text": "b"})
    log.release()
    assert f"in {path}" in show(log)
    path.write_bytes(path.read_bytes().replace(b'"text":"b"', b'"text":"c"'))
    text = show(log)
    assert "DAMAGED" in text
    assert "event 1: " in text


def test_terminal_sequences_do_not_reach_the_terminal(writer: Any):
    w = writer
    w.prompt("\x1b[2J\x1b]0;t\x07hi\r\nthere \x9b31m\x00")
    w.header()
    w.ask()
    w.answer("", ("search", '{"\x1b[31m": 1}'))
    w.call(0)
    w.result(0, "\x1b[1mbold\x1b[0m\n\n\tnext" + "y" * 1_000_000)
    text = show(w.log, width=100)
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert "hi there" in text
    assert len(text) < 3000


def test_a_long_session_is_cut_in_the_middle(writer: Any):
    for n in range(300):
        writer.notice("tick", f"number {n}")
    text = show(writer.log, width=80)
    assert "… 200 rows more" in text
    assert "number 19\n" in text
    assert "number 20\n" not in text
    assert "number 299\n" in text


def test_showing_needs_no_pandas():
    code = (
        "import sys; from nbagent.frames import show; from nbagent.log import Log; show(Log()); "
        "assert not {'pandas', 'numpy', 'pyarrow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "text", ["one two three four five", "a" * 30, "日本語の長い文です", "x_y_z-long_name;end"]
)
@pytest.mark.parametrize("width", [6, 7, 11])
def test_cells_that_wrap_lose_nothing_but_spaces_until_their_last_line(text: str, width: int):
    names, whole = ["t", "n"], text_table(["t", "n"], [[text, 1]], width + 3, lines=9)
    lines = whole.split("\n")[1:]
    told = "".join(line.rstrip("1") for line in lines)
    assert told.replace(" ", "") == text.replace(" ", "")
    cut = text_table(names, [[text, 1]], width + 3, lines=2).split("\n")[1:]
    assert len(cut) == min(len(lines), 2)
    assert ("…" in cut[-1]) == (len(lines) > 2)
    assert max(map(_width, whole.split("\n"))) <= width + 3

"""What a question shows is what the call holds: nothing vanishes, nothing passes for something else."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import time
import unicodedata
from typing import Any

import pytest

import nbagent as nb
from nbagent.escape import visible
from nbagent.notebook import stdin
from nbagent.notebook.question import describe, has_more, pages
from nbagent.notebook.stdin import StdinApprover

ODD_KINDS = [
    chr(n)
    for n in range(0x110000)
    if unicodedata.category(chr(n)) in {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}
]
ODD = [
    *ODD_KINDS,
    "\ue000",
    "\U0010ffff",
    "\u0378",
    "\u3164",
    "\ufe0f",
    "\u034f",
    "\u2800",
    "\U000e0100",
]
LOOKS = [
    "␛",
    "␀",
    "␡",
    "<U+200B>",
    "<U+003C>",
    "<u+200b>",
    "<U+",
    "<",
    "<U+110000>",
    "␠",
    "U+200B>",
]
ORDINARY = [*"abc xyz019.,:|+-_'\"\\/{}[]() éßж日本🎉\u0301", "  | ", "  + ", "… 3 more characters"]
SEQUENCES = [
    "\x1b]0; rm -rf ~ #\x07",
    "\x1b[2J",
    "\x9b31m",
    "\b\b\b",
    "\r",
    "\r\n",
    "\n",
    "\t",
    "null",
]


def random_text(rng: random.Random) -> str:
    kinds = [ODD, LOOKS, ORDINARY, ORDINARY, SEQUENCES]
    length = rng.choice([0, 1, 2, 5, 20, 200])
    return "".join(rng.choice(rng.choice(kinds)) for _ in range(rng.randint(0, length)))


def unmarked(shown: str) -> str:
    """The text that is shown so."""

    def character(found: re.Match[str]) -> str:
        mark = found.group()
        if len(mark) > 1:
            return chr(int(mark[3:-1], 16))
        return "\x7f" if mark == "␡" else chr(ord(mark) - 0x2400)

    return re.sub("<U\\+[0-9A-F]{4,6}>|[\u2400-\u241f\u2421]", character, shown)


def read(shown: str) -> dict[str, Any]:
    """The arguments of a question from what is shown of it, all of it."""
    lines = shown.split("\n")
    arguments: dict[str, Any] = {}
    at = next(n for n, line in enumerate(lines) if "wants to run" in line) + 1
    while at < len(lines) and lines[at]:
        name, value = read_name(lines[at][2:])
        at += 1
        if value not in (":", " (JSON):"):
            arguments[name] = one_line(value.removeprefix(": "))
            continue
        rows: list[str] = []
        while lines[at].startswith(("  | ", "  + ")):
            mark, row = lines[at][2], lines[at][4:]
            rows += [row] if mark == "|" else []
            rows[-1] += row if mark == "+" else ""
            at += 1
        text = unmarked("\n".join(rows))
        arguments[name] = json.loads(text) if "JSON" in value else text
    return arguments


def read_name(line: str) -> tuple[str, str]:
    if not line.startswith('"'):
        name = re.match(r"[\w.-]+", line)
        assert name is not None
        return name.group(), line[name.end() :]
    _, end = json.JSONDecoder().raw_decode(line)
    return json.loads(unmarked(line[:end])), line[end:]


def one_line(text: str) -> Any:
    try:
        return json.loads(unmarked(text))
    except ValueError:
        return unmarked(text)


def question(arguments: dict[str, Any], **changes: Any) -> nb.Question:
    settings: dict[str, Any] = {"id": "1.1.0", "name": "shell", "ref": "", "risk": "mutating"}
    return nb.Question(**settings, why="", arguments=arguments, **changes)


def is_visible(text: str) -> bool:
    return all(c == "\n" or (c.isprintable() and c not in "\u3164\ufe0f\u034f\u2800") for c in text)


def test_what_is_shown_of_any_text_can_be_read_back():
    rng = random.Random(11)
    for _ in range(10_000):
        text = random_text(rng)
        shown = describe(question({"cmd": text}))
        assert is_visible(shown)
        if has_more(question({"cmd": text}), shown):
            assert re.search(r"\n  … [\d,]+ more characters\n", shown)
            shown = "".join(pages(question({"cmd": text})))
        assert read(shown) == {"cmd": text}


def test_what_is_shown_of_names_and_nested_values_can_be_read_back():
    rng = random.Random(12)
    for _ in range(1_000):
        names = [random_text(rng)[:20] for _ in range(3)]
        values = [random_text(rng), [1, None, {random_text(rng): random_text(rng)}], rng.random()]
        arguments = dict(zip(names, values, strict=True))
        shown = "".join(pages(question(arguments)))
        assert is_visible(shown)
        assert read(shown) == arguments


def test_every_odd_character_is_shown_by_a_mark_of_its_own():
    marks = [visible(c) for c in ODD]
    assert len(set(marks)) == len(ODD)
    assert all(is_visible(mark) for mark in marks)
    assert [unmarked(mark) for mark in marks] == ODD


@pytest.mark.parametrize(
    "text", ["\x1b]0; rm -rf ~ #\x07", "\x9d0;rm\x9c", "\x1bPrm\x1b\\", "\x9brm\b\b"]
)
def test_a_sequence_hides_nothing_of_a_command(text: str):
    shown = describe(question({"cmd": f"ls {text} docs"}))
    assert "rm" in shown
    assert read(shown) == {"cmd": f"ls {text} docs"}


@pytest.mark.parametrize(
    "text", ["\x1b", "<U+200B>", "\u200b", "x", "日", "\n", "<", "\ud800", "🎉"]
)
def test_long_text_is_counted_and_shown_whole_on_demand(text: str):
    value = text * 20_000
    asked = question({"cmd": value})
    began = time.monotonic()
    shown = describe(asked)
    left = re.search(r"\n  … ([\d,]+) more characters\n", shown)
    assert left is not None
    head = shown[: left.start()] + "\n"
    assert len(read(head)["cmd"]) + int(left.group(1).replace(",", "")) == len(value) - (
        text == "\n"
    )
    whole = list(pages(asked))
    assert read("".join(whole)) == {"cmd": value}
    assert all(page.count("\n") <= 40 for page in whole)
    assert time.monotonic() - began < 5


def test_a_preview_does_not_take_the_arguments_away():
    asked = question({"path": "/etc/passwd"}, preview="a harmless note\u202e")
    shown = describe(asked)
    assert "a harmless note<U+202E>" in shown
    assert has_more(asked, shown)
    assert read(
        "".join(pages(asked)).partition("all arguments:\n")[2].join(["wants to run\n", ""])
    ) == {"path": "/etc/passwd"}


def test_a_diff_shows_line_ends_and_blanks_that_change():
    shown = describe(question({}, preview=nb.Diff("a\r\nb\n", "a\nb\u200b\n")))
    assert "  | -a␍\n" in shown
    assert "  | +b<U+200B>\n" in shown


async def test_the_terminal_shows_all_that_runs_and_more_pages_it():
    shown: list[str] = []
    lines = ["m", "", "q", "more", "q", "y"]

    def read_line(prompt: str) -> str:
        shown.append(prompt)
        return lines.pop(0)

    asked = question({"cmd": "ls \x1b]0; rm -rf ~ #\x07 docs", "text": "x\n" * 200})
    answer = await StdinApprover(read_line, shown.append).decide(asked)
    assert answer == nb.Answer("allow")
    text = "".join(shown)
    assert "cmd: ls ␛]0; rm -rf ~ #␇ docs\n" in text
    assert text.count("[m]ore") == 3
    assert text.count("Enter = next page, q = back: ") == 3


async def test_no_more_is_offered_where_there_is_no_more():
    shown: list[str] = []

    def read_line(prompt: str) -> str:
        shown.append(prompt)
        return "n"

    await StdinApprover(read_line, shown.append).decide(question({"cmd": "ls"}))
    assert "[m]ore" not in "".join(shown)


def test_a_stream_without_the_pictures_gets_marks(monkeypatch: pytest.MonkeyPatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    stdin._show(describe(question({"cmd": "\x1b\x7fé\u200b"})))
    stream.flush()
    shown = stream.detach().getvalue().decode()
    assert "cmd: <U+001B><U+007F><U+00E9><U+200B>" in shown

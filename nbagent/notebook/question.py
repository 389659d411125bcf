"""A question to a person as plain text: what is shown is what the call holds, all of it on demand."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
from typing import Any
from unicodedata import east_asian_width

from nbagent.escape import TOKEN, visible
from nbagent.interfaces.approver import Question
from nbagent.interfaces.tool import Diff

__all__ = ["as_value", "describe", "has_more", "pages", "plain_name"]

WIDTH = 72
"""Columns of a row: a terminal that breaks it would begin a row that has no mark."""
MOST_ROWS, MOST_PREVIEW_ROWS, MOST_ARGUMENTS, MOST_NAME = 30, 150, 40, 60
"""What is shown at first of one value, of a preview, of all arguments, of a name."""
MOST_DIFFED = 2_000
"""Lines of a text that is still compared: a diff of longer ones may take minutes."""
PAGE_ROWS = 40
_PLAIN_NAME = re.compile(r"[\w.-]+")


def describe(question: Question, place: str = "") -> str:
    """The question as lines of plain text; what comes from the model can't look like anything else.

    Values that are longer than a row stand below their name, `|` before each line and `+` before
    what continues it. Texts stand as they are, in the form of `visible`; one that would read as
    JSON, or has space at its edges, is in quotes. Everything else is JSON.

    Parameters
    ----------
    place
        Which of several questions it is, such as "1 of 2".

    Examples
    --------
    >>> q = Question(id="1.1.0", name="save", ref="", risk="mutating", why="", arguments={"a": 1})
    >>> print(describe(q))
    <BLANKLINE>
    save (mutating) wants to run
      a: 1
    <BLANKLINE>
    """
    preview = question.preview
    lines = ["", _headline(question, place), *_about(question, MOST_ROWS)]
    if preview is None:
        arguments = list(question.arguments.items())
        for name, value in arguments[:MOST_ARGUMENTS]:
            lines += _named(plain_name(name, MOST_NAME), value, MOST_ROWS)
        if len(arguments) > MOST_ARGUMENTS:
            lines.append(f"  … {len(arguments) - MOST_ARGUMENTS:,} more arguments")
    else:
        lines += _preview(preview, MOST_PREVIEW_ROWS)
    return "\n".join(lines) + "\n"


def has_more(question: Question, described: str) -> bool:
    """Whether `pages` shows more than this description."""
    cut = "\n  … " in described or any(map(_is_long, question.arguments))
    return cut or question.preview is not None


def pages(question: Question) -> Iterator[str]:
    """The whole question, nothing cut, page by page; the preview first, then all arguments."""
    lines: list[str] = [_headline(question), *_about(question, None)]
    if question.preview is not None:
        lines += [*_preview(question.preview, None), "", "all arguments:"]
    for name, value in question.arguments.items():
        label = plain_name(name)
        if _is_long(name):
            lines += _named("the next argument is called", name, None)
            label = "and its value is"
        lines += _named(label, value, None)
    for start in range(0, len(lines), PAGE_ROWS):
        yield "\n".join(lines[start : start + PAGE_ROWS]) + "\n"


def as_value(value: Any) -> str:
    """A value in one line; what it is can be told from it."""
    if not isinstance(value, str):
        return visible(json.dumps(value, ensure_ascii=False))
    if value != value.strip() or not value or _reads_as_json(value):
        value = json.dumps(value, ensure_ascii=False)
    return visible(value)


def plain_name(name: str, most: int | None = None) -> str:
    """An argument's name; in quotes if it has anything but letters, digits and `_.-`."""
    shown = name[:most]
    if not _PLAIN_NAME.fullmatch(shown) or shown != visible(shown):
        shown = visible(json.dumps(shown, ensure_ascii=False))
    rest = len(name) - len(name[:most])
    return f"{shown} … {rest:,} more characters" if rest else shown


def _headline(question: Question, place: str = "") -> str:
    which = f" (question {place})" if place else ""
    return f"{visible(question.name)} ({visible(question.risk)}) wants to run{which}"


def _about(question: Question, most: int | None) -> list[str]:
    lines: list[str] = []
    if question.problem:
        lines += _named("the answer before could not be taken", question.problem, most)
    return lines + (_named("why it asks", question.why, most) if question.why else [])


def _named(label: str, value: Any, most: int | None) -> list[str]:
    """`name: value`, the value below it if it is longer than a row."""
    is_text = isinstance(value, str)
    text: str = value if is_text else json.dumps(value, ensure_ascii=False)
    if "\n" not in text and len(text) <= WIDTH:
        line = f"  {label}: {as_value(value)}"
        if _columns(line) <= WIDTH + 4:
            return [line]
    return [f"  {label}:" if is_text else f"  {label} (JSON):", *_quoted(text, most)]


def _preview(preview: str | Diff, most: int | None) -> list[str]:
    if not isinstance(preview, Diff):
        return _quoted(str(preview), most)
    old, new = str(preview.old).split("\n"), str(preview.new).split("\n")
    if max(len(old), len(new)) > MOST_DIFFED:
        told = f"  too long to compare, {len(old):,} lines now; what it will be:"
        return [told, *_quoted("\n".join(new), most)]
    return _quoted("\n".join(difflib.unified_diff(old, new, "now", "then", lineterm="")), most)


def _quoted(text: str, most: int | None) -> list[str]:
    """A text in rows, each marked so that it can't be taken for one of ours."""
    rows: list[str] = []
    taken = 0
    for row, characters in _rows(text):
        if most is not None and len(rows) == most:
            rows.append(f"  … {len(text) - taken:,} more characters")
            break
        rows.append(row)
        taken += characters
    return rows


def _rows(text: str) -> Iterator[tuple[str, int]]:
    """(row, characters of the text that it and its line break stand for), made as they are asked for."""
    for line in _lines(text):
        mark, row, width, count = "|", "", 0, 0
        for token in _tokens(line):
            columns = _columns(token)
            if width + columns > WIDTH:
                yield f"  {mark} {row}", count
                mark, row, width, count = "+", "", 0, 0
            row, width, count = row + token, width + columns, count + 1
        yield f"  {mark} {row}", count + 1


def _lines(text: str) -> Iterator[str]:
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _tokens(line: str) -> Iterator[str]:
    return (found.group() for found in TOKEN.finditer(visible(line)))


def _columns(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def _is_long(name: str) -> bool:
    return len(name) > MOST_NAME


def _reads_as_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

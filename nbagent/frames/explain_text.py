"""An explanation as text for terminals and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from nbagent.escape import clean, escape
from nbagent.frames.columns import json_text
from nbagent.frames.html import CELL, block
from nbagent.interfaces.model import ToolSpec
from nbagent.messages import Message, Text, Thinking

if TYPE_CHECKING:
    from nbagent.frames.explain import Changes, Difference, Explanation

__all__ = ["as_html", "as_text", "cut"]

FIRST, LAST = 4, 16
"""Of a longer history, so many messages are shown from its begin and its end."""


class _Section(NamedTuple):
    title: str
    rows: Sequence[tuple[str, str]]
    """(label, text) each."""
    folded: bool = False
    """Whether HTML shows it, and all of it, only when it is opened."""


def as_text(explanation: Explanation) -> str:
    """Sections with headings; long texts are cut, control characters removed."""
    blocks: list[str] = []
    for section in _sections(explanation):
        title = cut(clean(section.title), 200)
        lines = [title, "-" * len(title)]
        for label, text in section.rows:
            first, *more = cut(clean(text), 800).split("\n")
            lines.append(f"{clean(label)}: {first}" if label else first)
            lines += [f"    {line}" for line in more]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def as_html(explanation: Explanation) -> str:
    """The same as HTML with inline styles only; every text is escaped."""
    label_style = "opacity:.7;vertical-align:top;text-align:left;padding:1px 12px 1px 0"
    text_style = f"{CELL};padding:1px 0"
    title_style = "font-weight:600;margin:10px 0 2px"
    blocks: list[str] = []
    for section in _sections(explanation):
        limit = 100_000 if section.folded else 2000
        rows = "".join(
            f'<tr><th style="{label_style};font-weight:normal">{escape(label)}</th>'
            f'<td style="{text_style}">{escape(cut(text, limit))}</td></tr>'
            for label, text in section.rows
        )
        table, title = f'<table style="margin:0;border:0">{rows}</table>', escape(section.title)
        if section.folded:
            summary = f'<summary style="{title_style}">{title}</summary>'
            blocks.append(f"<details>{summary}{table}</details>")
        else:
            blocks.append(f'<div style="{title_style}">{title}</div>{table}')
    return block("".join(blocks))


def cut(text: str, limit: int) -> str:
    """At most so many characters, and how many more there are.

    Examples
    --------
    >>> cut("abcdef", 4)
    'abcd … (2 more characters)'
    """
    if len(text) <= limit:
        return text
    return f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def _sections(e: Explanation) -> Iterator[_Section]:
    cause = f" ({e.cause})" if e.cause else ""
    yield _Section(
        f"Request of turn {e.turn}, step {e.step}, attempt {e.attempt}{cause}", [*_facts(e)]
    )
    if e.instructions:
        yield _Section("Instructions", [("", e.instructions)])
    if e.tools:
        described = [(f"{tool.name} ({tool.risk})", _described(tool)) for tool in e.tools]
        yield _Section(f"Tools on offer: {len(e.tools)}", described)
    yield _Section(
        f"History: {len(e.history)} message{'' if len(e.history) == 1 else 's'}", [*_history(e)]
    )
    if e.reminders:
        rows = [(_label(message), _content(message)) for message in e.reminders]
        yield _Section(f"Reminders, in this request only: {len(rows)}", rows)
    changed = e.changed
    if changed.before is None:
        yield _Section("Changed", [("", "It is the first request of the session: all is new.")])
    else:
        rows = [*_changes(changed)] or [("", "Nothing.")]
        yield _Section(f"Changed since the request before (event {changed.before})", rows)
    if e.body is None:
        yield _Section("Body", [("", e.body_note)])
    else:
        note = [("note", e.body_note)] if e.body_note else []
        yield _Section(
            "Body, as it went over the wire", [*note, ("", _pretty(e.body))], folded=True
        )


def _described(tool: ToolSpec) -> str:
    return f"{tool.description}\nparameters: {json_text(tool.parameters)}"


def _pretty(body: Any) -> str:
    if isinstance(body, str):
        return body
    return orjson.dumps(body, option=orjson.OPT_INDENT_2).decode()


def _facts(e: Explanation) -> Iterator[tuple[str, str]]:
    yield "model", e.model
    if e.settings:
        yield "settings", ", ".join(f"{name}={_value(v)}" for name, v in e.settings.items())
    if e.choice:
        if e.choice.tool_choice is not None:
            yield "tool choice", e.choice.tool_choice
        if e.choice.offered is not None:
            withheld = [tool.name for tool in e.header.tools if tool not in e.tools]
            yield "tools withheld", ", ".join(withheld) or "none"
    yield "event", str(e.seq)
    yield "history's digest", e.digest or "(empty)"
    if e.body_digest:
        yield "body's digest", e.body_digest


def _history(e: Explanation) -> Iterator[tuple[str, str]]:
    rows = [
        (f"{number} {_label(message)}", _content(message))
        for number, message in enumerate(e.history, 1)
    ]
    left_out = len(rows) - FIRST - LAST
    if left_out <= 1:
        yield from rows
        return
    yield from rows[:FIRST]
    yield "…", f"{left_out} messages more"
    yield from rows[-LAST:]


def _changes(changed: Changes) -> Iterator[tuple[str, str]]:
    for difference in changed.header:
        yield f"~ {difference.field}", _before_after(difference)
    for seq, message in changed.replaced:
        yield f"- {_label(message)}, event {seq}", cut(_content(message), 200)
    for seq, message in changed.added:
        yield f"+ {_label(message)}, event {seq}", cut(_content(message), 200)
    for message in changed.reminders_gone:
        yield f"- reminder {_label(message)}", cut(_content(message), 200)
    for message in changed.reminders_new:
        yield f"+ reminder {_label(message)}", cut(_content(message), 200)


def _before_after(difference: Difference) -> str:
    if difference.before is None:
        return f"new: {cut(_value(difference.after), 400)}"
    if difference.after is None:
        return f"gone, was {cut(_value(difference.before), 400)}"
    return f"{cut(_value(difference.before), 400)} → {cut(_value(difference.after), 400)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json_text(value) or "null"


def _label(message: Message) -> str:
    name = f" {message.name}" if message.name else ""
    source = f" [{message.source}]" if message.source else ""
    return f"{message.role}{name}{source}"


def _content(message: Message) -> str:
    pieces: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, Thinking):
            pieces.append(f"(thinking) {part.text}")
        else:
            pieces.append(f"→ {part.name}({part.arguments})")
    return "\n".join(pieces)

"""A session as text: what `nbagent show` prints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nbagent.escape import clean
from nbagent.events.turn import limit_words
from nbagent.frames.model_tables import total
from nbagent.frames.reading import Reading, read
from nbagent.frames.story import tell
from nbagent.frames.tables import TABLES
from nbagent.frames.text_table import text_table
from nbagent.frames.tool_tables import Approval
from nbagent.log import collector_paused

if TYPE_CHECKING:
    from nbagent.log import Log

__all__ = ["show"]

SHOWN = {
    "steps": "turn step user_text text n_calls:calls attempts tokens stop",
    "tools": "turn step name args_json:arguments status decision_source:decided duration_ms:ms result",
    "attempts": (
        "turn step attempt cause model finish failure discarded_why:discarded input_tokens:in "
        "output_tokens:out duration_ms:ms"
    ),
    "approvals": "turn step name risk decision source reason wait_ms",
    "verdicts": "turn step attempt reviewer action reason draft",
    "notes": "turn step source kind text data_json:data",
}
"""The tables and columns that are printed; behind a colon a shorter heading."""


def show(log: Log, width: int | None = None) -> str:
    """What happened in a session, as text: how it stands, then its main tables.

    Parameters
    ----------
    log
        The session's log.
    width
        Characters a line may have; the terminal's if None.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    with collector_paused():
        reading = read(log)
        blocks = ["\n".join(_head(log, reading))]
        for name, columns in SHOWN.items():
            text = _table(reading, name, columns.split(), width)
            if text:
                blocks.append(f"{name}\n{text}")
    return "\n\n".join(blocks) + "\n"


def _head(log: Log, reading: Reading) -> Iterator[str]:
    place = f" in {log.store.location}" if log.store is not None else ""
    yield clean(f"session {log.id}{place}")
    created = datetime.fromtimestamp(log.header["created"] / 1000, UTC)
    story = tell(reading)
    turns = [entry for entry in reading.entries if entry.type == "turn/start"]
    runs = {entry.data["run"] for entry in turns}
    yield (
        f"created {created:%Y-%m-%d %H:%M:%S} UTC, {len(reading.entries):,} events, "
        f"{_count(len(runs), 'run')}, {_count(len(turns), 'turn')}, "
        f"{_count(len(story.steps), 'step')}"
    )
    if story.attempts:
        models = ", ".join(dict.fromkeys(attempt.header["model"] for attempt in story.attempts))
        used = total(story.attempts)
        about = "about " if used.estimated else ""
        yield clean(
            f"{models}: {about}{used.total:,} tokens in {_count(len(story.attempts), 'attempt')}"
        )
    report = log.verify()
    yield f"ends {report.ends}; {'verified' if report else 'DAMAGED'}"
    for seq, what in report.problems:
        at = f"event {seq}: "
        yield clean(f"  {at}{what.removeprefix(at)}")
    if log.damage is not None:
        yield "what follows stands before the damaged line; all behind it is left out"
    for step in story.steps:
        if step.error:
            yield clean(f"turn {step.start.data['turn']} ended with {step.error}")
        if step.limit:
            words = limit_words(step.limit)
            yield clean(f"turn {step.start.data['turn']} ended by {step.stop}: {words}")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _table(reading: Reading, name: str, columns: list[str], width: int) -> str:
    """One table as text, empty if it has no rows worth showing."""
    spec = TABLES[name]
    rows = [row for row in spec.rows(reading) if _worth_showing(row)]
    if not rows:
        return ""
    gets = {column.name: column.get for column in spec.columns}
    pairs = [(column.split(":")[0], column.split(":")[-1]) for column in columns]
    cells = [[gets[column](row) for column, _ in pairs] for row in rows]
    return text_table([heading for _, heading in pairs], cells, width)


def _worth_showing(row: object) -> bool:
    # What was allowed without a question stands in the table of tools.
    return (
        not isinstance(row, Approval)
        or row.question is not None
        or (row.decided.get("decision") == "deny")
    )

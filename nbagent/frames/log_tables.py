"""Tables whose rows are single events: events, notes, compactions."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from nbagent.events import SPECS
from nbagent.frames.columns import Column, Table, json_text
from nbagent.frames.reading import Entry, Reading

__all__ = ["COMPACTIONS", "EVENTS", "NOTES", "ids", "place"]


def place(path: str = "", *, attempt: bool = True) -> list[Column]:
    """The columns that a table begins with: where its row stands, from the entry at `path` of it."""
    at = _from_entry(path)
    columns = [
        Column("turn", "int", at("turn"), doc="From 1; missing outside of turns."),
        Column("step", "int", at("step"), doc="From 1 in each turn; missing outside of steps."),
    ]
    return [*columns, _attempt(path)] if attempt else columns


def ids(path: str = "", *, attempt: bool = False) -> list[Column]:
    """The columns that a table ends with: what identifies its row in the log."""
    at = _from_entry(path)
    return [
        *([_attempt(path)] if attempt else []),
        Column("session_id", "text", at("session_id"), doc="The session's id."),
        Column("seq", "int", at("seq"), doc="The event that begins the row."),
        Column("ts", "time", at("ts"), doc="Its time; may jump back with the clock.", unit="UTC"),
    ]


def _attempt(path: str) -> Column:
    doc = "From 1 in each step; the latest one so far."
    return Column("attempt", "int", _from_entry(path)("attempt"), doc=doc)


def _from_entry(path: str) -> Callable[[str], Callable[[Any], Any]]:
    return lambda name: attrgetter(f"{path}.{name}" if path else name)


def _data_json(entry: Entry) -> str:
    # The line is `…"type":"…","data":{…}[,"i":1],"c":"xxxxxxxx"}`: data ends at the last brace but one.
    line = entry.line
    end = -16 if line[-17] == ord("}") else line.rindex(b"}", 0, -1) + 1
    return line[line.index(b'"data":') + 7 : end].decode()


def _field(name: str, default: Any = None) -> Callable[[Entry], Any]:
    return lambda entry: entry.data.get(name, default)


def _of(*types: str) -> Callable[[Reading], list[Entry]]:
    def rows(reading: Reading) -> list[Entry]:
        return [entry for entry in _all(reading) if entry.type in types]

    return rows


def _all(reading: Reading) -> list[Entry]:
    entries = reading.entries
    skip = reading.start - entries[0].seq if entries else 0
    return entries[skip:] if skip else entries


EVENTS = Table(
    "events",
    "One row per event, in the log's order.",
    _all,
    [
        *place(),
        Column("type", "category", attrgetter("type"), tuple(SPECS), "Event type."),
        Column("data_json", "text", _data_json, doc="The event's data as it stands in the log."),
        *ids(),
    ],
    short="turn step attempt type data_json seq",
)

NOTES = Table(
    "notes",
    "One row per note (of a tool, gate or reviewer) and notice (of nbagent), in order.",
    _of("note", "notice"),
    [
        *place(attempt=False),
        Column(
            "source",
            "text",
            lambda entry: entry.data.get("source", "nbagent"),
            doc="Who left it; `nbagent` for notices.",
        ),
        Column("kind", "text", _field("kind"), doc="What sort of note, in its source's words."),
        Column("text", "text", _field("text"), doc="A notice's text."),
        Column(
            "data_json",
            "text",
            lambda entry: json_text(entry.data.get("data")),
            doc="A note's data, JSON.",
        ),
        Column("type", "category", attrgetter("type"), ("note", "notice"), "note or notice."),
        Column("ref", "int", _field("ref"), doc="seq of the event that a notice is about."),
        *ids(),
    ],
    short="turn step source kind text data_json",
)

COMPACTIONS = Table(
    "compactions",
    "One row per compaction of the history, in order.",
    _of("compaction"),
    [
        *place(attempt=False),
        Column("strategy", "text", _field("strategy"), doc="The compressor."),
        Column("trigger", "text", _field("trigger"), doc="What set it off."),
        Column(
            "tokens_before",
            "int",
            _field("tokens_before"),
            doc="Estimated size before.",
            unit="tokens",
        ),
        Column(
            "tokens_after",
            "int",
            _field("tokens_after"),
            doc="Estimated size after.",
            unit="tokens",
        ),
        Column(
            "nodes",
            "int",
            _field("nodes"),
            doc="Messages put in place of the old ones.",
            unit="messages",
        ),
        *ids(),
    ],
    short="turn step strategy trigger tokens_before tokens_after nodes",
)

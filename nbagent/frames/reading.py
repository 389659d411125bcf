"""A stretch of a log, decoded once, with what lies before it but is referred to from inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from nbagent.log import Log

__all__ = ["Entry", "Reading", "opening", "read", "type_of"]


class Entry(NamedTuple):
    """One event and where it stands: the row of the table "events"."""

    seq: int
    ts: int
    type: str
    data: dict[str, Any]
    turn: int | None
    step: int | None
    attempt: int | None
    line: bytes
    session_id: str


@dataclass(slots=True)
class Reading:
    """The events `start` up to `end` of a log."""

    session_id: str
    lines: list[bytes]
    """The log's own list, which may grow meanwhile: nothing at `end` or behind is looked at."""
    start: int
    end: int
    entries: list[Entry]
    """Begin with the turn that is open at `start`: what its events mean depends on it."""
    _headers: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    def header(self, seq: int) -> dict[str, Any]:
        """The header that stands in event `seq`."""
        if seq not in self._headers:
            self._headers[seq] = orjson.loads(self.lines[seq])["data"]["header"]
        return self._headers[seq]

    def item_before(self, id_: str) -> dict[str, Any] | None:
        """The inbox item of that id, if it entered the inbox before the entries."""
        first = self.entries[0].seq if self.entries else self.start
        for seq in range(first - 1, -1, -1):
            if type_of(self.lines[seq]) == b"agent/inbox/spliced":
                for item in orjson.loads(self.lines[seq])["data"].get("inserted", ()):
                    if item["id"] == id_:
                        return item
        return None


def read(log: Log, start: int = 0, end: int | None = None) -> Reading:
    """Decode a stretch of a log that may be in use."""
    lines = log.lines
    length = len(lines)  # what is appended from here on is not seen
    end = length if end is None else max(0, min(end, length))
    start = max(0, min(start, end))
    first = opening(lines, start)
    return Reading(log.id, lines, start, end, _entries(log.id, lines, first, end))


def type_of(line: bytes) -> bytes:
    """The event type that a canonical line states."""
    at = line.index(b'"type":"') + 8
    return line[at : line.index(b'"', at)]


def opening(lines: Sequence[bytes], start: int) -> int:
    """Where the turn began that is open in front of `start`; `start` if none is."""
    for seq in range(start - 1, -1, -1):
        type_ = type_of(lines[seq])
        if type_ == b"turn/start":
            return seq
        if type_ == b"turn/end":
            break
    return start


def _entries(session_id: str, lines: Sequence[bytes], first: int, end: int) -> list[Entry]:
    loads = orjson.loads
    # The named tuple's own way of making one takes four times as long.
    entry: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    entries: list[Entry] = []
    turn: int | None = None
    step: int | None = None
    attempt: int | None = None
    for line in islice(lines, first, end):
        record = loads(line)
        type_, data = record["type"], record["data"]
        if type_ == "request/sent":
            attempt = data["attempt"]
        elif type_ == "step/start":
            step, attempt = data["step"], None
        elif type_ == "turn/start":
            turn, step, attempt = data["turn"], None, None
        place = (record["seq"], record["ts"], type_, data, turn, step, attempt, line, session_id)
        entries.append(entry(Entry, place))
        if type_ == "step/end":
            step = attempt = None
        elif type_ == "turn/end":
            turn = step = attempt = None
    return entries

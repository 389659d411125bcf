"""The log of one session: append an event, freeze it, fold it, make it durable, verify it.

An append costs the same however long the log is. It checks that the event may come now, encodes it
once, chains the checksum, adds the line, and hands the dict to the folds. Nothing is written to the
store before a barrier asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import orjson

from nbagent.errors import CorruptLogError, FormatError, SessionError
from nbagent.events import SPECS, Event
from nbagent.events.disk import Chunk, Reader, Row, pack, shrink
from nbagent.folds import Folds
from nbagent.interfaces.store import Store, Torn
from nbagent.messages import scrub

__all__ = ["Events", "Log", "Report", "verify"]

FORMAT = 1
"""Version of the log's form; a higher one in a file is refused."""

CHUNK_SECONDS = 1.0
"""A run of chunks is closed when its first chunk is older."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify` found."""

    ok: bool
    problems: tuple[tuple[int, str], ...]
    """(seq, what) of each fault."""
    ends: str
    """idle, inside turn n, waiting, or torn."""
    events: int

    def __bool__(self) -> bool:
        return self.ok


def now_ms() -> int:
    """UTC milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Log:
    """The events of one session.

    Parameters
    ----------
    store
        Where the records go; None keeps them in memory.
    sync
        Whether a barrier also waits for the disk (fsync), in a thread.
    id_
        The session's id; a fresh one if not given.
    cwd
        Working folder, written into the header.
    clock
        Gives the time of events.

    Raises
    ------
    FormatError
        If the store holds something else, or a newer format.
    CorruptLogError
        If the stored log is damaged before its last line.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        sync: bool = False,
        id_: str | None = None,
        cwd: str | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.store = store
        self.sync = sync
        self.clock = clock
        self.lines: list[bytes] = []
        self.folds = Folds()
        self.torn: Torn | None = None
        self.writable = store is None
        self.seeded = False
        """Whether events of an earlier life stand at the front, not yet marked by an end-seed."""
        self.speakers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Agents that have made a request on this object."""
        self.left: list[dict[str, Any]] = []
        """Notices that came after a run had ended, for the next one."""
        self.late: list[tuple[str, str, str | None]] = []
        """(target, text, source) of messages that came after a run had ended."""
        self._pending: list[tuple[int, bytes]] = []
        self._run: list[Chunk] = []
        self._blocks: dict[tuple[int, str], list[str]] = {}
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._records = 0
        stored = store.load() if store is not None else None
        if stored is not None and stored.header is not None:
            self._begin(stored.header)
            self.torn = stored.torn
            self._take_in(stored.records)
            self.seeded = bool(self.lines)
            self._stored = True
        else:
            self.torn = stored.torn if stored is not None else None
            value = {"nbagent": FORMAT, "projection": 1, "id": id_ or uuid.uuid4().hex}
            value["created"] = clock()
            if cwd:
                value["cwd"] = cwd
            self._begin(orjson.dumps(value))
            self._stored = False

    @property
    def id(self) -> str:
        """The session's id."""
        return self.header["id"]

    @property
    def events(self) -> Events:
        """All events so far; grows with the log."""
        return Events(self)

    def __len__(self) -> int:
        return len(self.lines)

    def event(self, seq: int) -> Event:
        """One event."""
        return Event(self.lines[seq], self.folds.turn.where)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each append; gives a function that ends this."""
        self._watchers = (*self._watchers, callback)

        def unwatch() -> None:
            self._watchers = tuple(w for w in self._watchers if w is not callback)

        return unwatch

    # -- writing

    def append(self, type_: str, data: dict[str, Any], *, ignorable: bool = False) -> int:
        """Add one event; gives its seq. `data` belongs to the log from then on.

        Raises
        ------
        SessionError
            If an event of this type can't come now.
        """
        refusal = self.folds.refusal(type_, data)
        if refusal is not None:
            msg = f"event `{type_}` can't come now: {refusal}"
            raise SessionError(msg)
        try:
            body = orjson.dumps(data)
        except TypeError:
            data = scrub(data)
            body = orjson.dumps(data)
        seq, ts = len(self.lines), self.clock()
        mark = b',"i":1' if ignorable else b""
        line = b'{"seq":%d,"ts":%d,"type":"%b","data":%b%b' % (
            seq,
            ts,
            type_.encode(),
            body,
            mark,
        )
        before = self._checksum
        self._checksum = zlib.crc32(line, before)
        line = b'%b,"c":"%08x"}' % (line, self._checksum)
        if self.store is not None:
            self._keep(seq, ts, type_, data, line)
        self.lines.append(line)
        self._ts = ts
        if type_ in SPECS:
            self.folds.step(seq, type_, data)
        for watcher in self._watchers:
            watcher()
        return seq

    @property
    def dirty(self) -> bool:
        """Whether a barrier would write something."""
        return bool(self._pending or self._run)

    def flush(self) -> None:
        """Hand all pending records to the store, in one write.

        Raises
        ------
        SessionError
            If they could not be written; they stay pending.
        """
        if self.store is None or not (self._pending or self._run):
            return
        self._close_run()
        header = None if self._stored else self.header_line
        self.store.write(header, [record for _, record in self._pending])
        self._stored = True
        self._records += len(self._pending)
        self._pending.clear()

    async def barrier(self) -> None:
        """Return when all events so far are durable; with `sync` also against loss of power."""
        self.flush()
        if self.sync and self.store is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.store.sync)

    def flush_old_chunks(self) -> None:
        """Hand on a run of chunks that has waited for a second; called by a timer."""
        if self._run and self.clock() - self._run[0].ts >= 1000 * CHUNK_SECONDS:
            self.flush()

    def acquire(self, *, steal: bool = False) -> None:
        """Become the only writer and take in what others wrote since the log was opened.

        Raises
        ------
        LockedError
            If another writer holds the log.
        """
        if self.store is None or self.writable:
            return
        added = self.store.acquire(self._records, steal=steal)
        self.writable = True
        if added:
            self._take_in(added)
            self.seeded = True

    def release(self) -> None:
        """Flush, and let others write."""
        if self.store is None:
            return
        try:
            self.flush()
        finally:
            self.store.release()
            self.writable = False

    def _keep(self, seq: int, ts: int, type_: str, data: dict[str, Any], line: bytes) -> None:
        """Put the event's record on the list of what the next barrier writes."""
        if type_ == "assistant/chunk":
            index, kind, text = data.get("index", 0), data.get("kind", "text"), data["text"]
            self._run.append(Chunk(seq, ts, index, kind, text))
            self._blocks.setdefault((index, kind), []).append(text)
            if ts - self._run[0].ts >= 1000 * CHUNK_SECONDS:
                self._close_run()
            return
        self._close_run()
        rest = line[line.index(b'"type":') :]
        if type_ == "request/sent":
            self._blocks = {}
        elif type_ in ("assistant/message", "assistant/draft"):
            short = shrink(data["message"], self._blocks)
            if short is not None:
                body = orjson.dumps({**data, "message": short})
                rest = b'"type":"%b","data":%b%b' % (type_.encode(), body, line[-16:])
        elapsed = ts - self._disk_ts
        step = b'"dt":%d,' % elapsed if elapsed else b""
        self._pending.append((seq, b'{"seq":%d,%b%b' % (seq, step, rest)))
        self._disk_ts = ts

    def _close_run(self) -> None:
        if self._run:
            record = pack(self._run, self._disk_ts, self._run_checksum())
            self._pending.append((self._run[0].seq, record))
            self._disk_ts = self._run[-1].ts
            self._run = []

    def _run_checksum(self) -> int:
        last = self._run[-1].seq
        line = self.lines[last] if last < len(self.lines) else None
        return int(line[-10:-2], 16) if line is not None else self._checksum

    # -- reading

    def _begin(self, header: bytes) -> None:
        try:
            value = orjson.loads(header)
            version, self._ts = value["nbagent"], value["created"]
            value["id"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            msg = f"{self._place()}: its first line is no header of a session log"
            raise FormatError(msg) from None
        if version != FORMAT:
            msg = (
                f"{self._place()} has format {version}, this nbagent reads format {FORMAT}: "
                "update nbagent to read it"
            )
            raise FormatError(msg)
        self.header: dict[str, Any] = value
        self.header_line = header
        self._checksum = zlib.crc32(header)
        self._disk_ts = self._ts

    def _place(self) -> str:
        return self.store.location if self.store is not None else "the log"

    def _take_in(self, records: Sequence[bytes]) -> None:
        """Continue the log with stored records."""
        reader = Reader(self.header_line, self._ts)
        reader.checksum, reader.ts, reader.next = self._checksum, self._ts, len(self.lines)
        with _collector_paused():
            for row, _ in _read(reader, records, self.folds, self._place()):
                self.lines.append(row.line)
        self._checksum, self._ts = reader.checksum, reader.ts
        self._disk_ts = reader.ts
        self._records += len(records)

    def verify(self) -> Report:
        """Rebuild the log and each request from the stored bytes alone; never raises on a bad log."""
        header, records = self.header_line, list(self.lines)
        torn = None
        if self.store is not None and self._stored:
            try:
                stored = self.store.load()
            except SessionError as error:
                return Report(False, ((0, str(error)),), "unreadable", 0)
            torn = stored.torn
            if stored.header is not None:
                header = stored.header
                records = [*stored.records, *(record for _, record in self._pending)]
                records += [self.lines[chunk.seq] for chunk in self._run]
        return verify(header, records, torn)


def verify(header: bytes, records: Sequence[bytes], torn: Torn | None = None) -> Report:
    """Rebuild a log from its header and records (or canonical lines), and say what is wrong."""
    folds, count = Folds(), 0
    try:
        value = orjson.loads(header)
        reader = Reader(header, value["created"])
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        return Report(False, ((0, f"the header can't be read: {error!r}"),), "unreadable", 0)
    problems: list[tuple[int, str]] = []
    try:
        with _collector_paused():
            for _ in _read(reader, records, folds, "the log"):
                count += 1
    except _Fault as fault:
        problems.append((fault.seq, fault.what))
    except (CorruptLogError, FormatError) as error:
        problems.append((reader.next, str(error)))
    return Report(not problems, tuple(problems), _ends(folds, torn), count)


def _ends(folds: Folds, torn: Torn | None) -> str:
    if torn is not None:
        return "torn"
    if folds.approvals.open and folds.turn.turn_open:
        return "waiting"
    return f"inside turn {folds.turn.turn}" if folds.turn.turn_open else "idle"


class _Fault(CorruptLogError):
    """A damaged place in a log."""

    def __init__(self, place: str, seq: int, at: str, what: str) -> None:
        super().__init__(
            f"{place} is damaged at {at}: {what}. The events before it can be read from a copy of "
            "the file that ends there"
        )
        self.seq = seq
        self.what = f"{at}: {what}"


def _read(
    reader: Reader, records: Sequence[bytes], folds: Folds, place: str
) -> Iterator[tuple[Row, int]]:
    """Read, check and fold records one by one."""
    for number, record in enumerate(records):
        first = reader.next
        try:
            for row in reader.read(record):
                first = row.seq
                if row.type not in SPECS:
                    if not row.ignorable:
                        msg = (
                            f"{place}: event {row.seq} has the unknown type {row.type!r}: it was "
                            "written by a newer nbagent; update to read it"
                        )
                        raise FormatError(msg)
                else:
                    refusal = folds.refusal(row.type, row.data)
                    if refusal is not None:
                        raise _Fault(place, row.seq, f"event {row.seq}", f"`{row.type}`: {refusal}")
                    folds.step(row.seq, row.type, row.data)
                yield row, number
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            what = str(error) if isinstance(error, ValueError) else f"malformed ({error!r})"
            raise _Fault(place, first, reader.at, what) from error


class Events(Sequence[Event]):
    """A session's events as a sequence that grows with the log.

    Examples
    --------
    >>> len(Log().events)
    0
    """

    def __init__(self, log: Log, start: int = 0) -> None:
        self._log, self._start = log, start

    def __len__(self) -> int:
        return len(self._log.lines) - self._start

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        size = len(self)
        if not -size <= index < size:
            msg = f"event {index} of {size}"
            raise IndexError(msg)
        return self._log.event(self._start + index % size)

    def __repr__(self) -> str:
        return f"<{len(self)} events>"


@contextlib.contextmanager
def _collector_paused() -> Generator[None, None, None]:
    # A bulk load makes many objects that stay; the collector would walk them again and again.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

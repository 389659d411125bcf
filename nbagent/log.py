"""The log of one session: append an event, freeze it, fold it, make it durable, verify it.

An append costs the same however long the log is. It checks that the event may come now, encodes it
once, chains the checksum, adds the line, and hands the dict to the folds. Secrets are masked before,
so that everything behind it, the model included, sees the mark in their place. Nothing is written to the
store before a barrier asks for it; the records are made then, from the lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import time
import uuid
import weakref
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import orjson

from nbagent.environment import environment
from nbagent.errors import CorruptLogError, FormatError, LockedError, SessionError
from nbagent.events import SPECS, Event
from nbagent.events.disk import PACKED, RUN_MS, Reader, Row, Writer, marks
from nbagent.events.words import WORDS
from nbagent.folds import CHECKS, STEPS, Folds
from nbagent.interfaces.store import Store, Stored, Torn
from nbagent.messages import scrub
from nbagent.redact import Mask, Shape, mask_of

__all__ = ["Events", "Log", "Report", "collector_paused", "verify"]

_logger = logging.getLogger("nbagent")

FORMAT = 1
"""Version of the log's form; a higher one in a file is refused."""

_KINDS = {
    type_: (b'"type":"%b","data":' % type_.encode(), CHECKS.get(type_), STEPS.get(type_, ()))
    for type_ in SPECS
}
_UNKNOWN = (b"", None, ())
_FOREIGN = Shape()
"""By event type: how its line goes on after the time, what may refuse it, and what takes it in."""


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
    until_damage
        Read a damaged log as far as it is whole; nothing can be written to it then.
    redact
        Texts and patterns that are masked in all that is appended, as the environment's secrets are.

    Raises
    ------
    FormatError
        If the store holds something else, or a newer format.
    CorruptLogError
        If the stored log is damaged before its last line.
    """

    __slots__ = (
        "__weakref__",
        "_checksum",
        "_displaced",
        "_looked",
        "_pending",
        "_records",
        "_stored",
        "_until_damage",
        "_watchers",
        "_writer",
        "clock",
        "damage",
        "folds",
        "header",
        "header_line",
        "late",
        "left",
        "lines",
        "mask",
        "redact",
        "seeded",
        "speakers",
        "store",
        "sync",
        "torn",
        "writable",
    )

    def __init__(
        self,
        store: Store | None = None,
        *,
        sync: bool = False,
        id_: str | None = None,
        cwd: str | None = None,
        clock: Callable[[], int] = now_ms,
        until_damage: bool = False,
        redact: Sequence[str | re.Pattern[str]] = (),
    ) -> None:
        self.store = store
        self.sync = sync
        self.clock = clock
        self.lines: list[bytes] = []
        self.folds = Folds()
        self.torn: Torn | None = None
        self.damage: str | None = None
        """What is wrong with the log, if it was read up to a damaged line."""
        self._until_damage = until_damage
        self.writable = store is None
        self.seeded = False
        """Whether events of an earlier life stand at the front, not yet marked by an end-seed."""
        self.speakers: weakref.WeakSet[Any] = weakref.WeakSet()
        """Agents that have made a request on this object."""
        self.left: list[dict[str, Any]] = []
        """Notices that came after a run had ended, for the next one."""
        self.late: list[tuple[str, str, str | None]] = []
        """(target, text, source) of messages that came after a run had ended."""
        self._pending: list[bytes] = []
        """Records that could not be written yet."""
        self._records = 0
        """How many records the store is known to hold."""
        self._stored = False
        """Whether the header is in the store."""
        self._displaced = False
        """Whether the store was found to hold something else than this log."""
        self._watchers: tuple[Callable[[], None], ...] = ()
        self.redact = tuple(redact)
        self.mask: Mask | None = None
        """What is masked; as of the last `look_for_secrets`."""
        self._looked: tuple[Any, Any] = (None, None)
        """What was masked then: the environment's secrets, and `redact`."""
        self.look_for_secrets()
        stored = store.load() if store is not None else Stored(None, [])
        if stored.torn is not None:
            position, length, _ = stored.torn
            text = "%s ends in an unfinished write: %d bytes at byte %d are left out"
            _logger.warning(text, self.masked(self._place()), length, position)
        if stored.header is not None:
            self._begin(stored.header)
            self._take_in(stored)
            return
        self.torn = stored.torn
        value = {"nbagent": FORMAT, "projection": 1, "id": id_ or uuid.uuid4().hex}
        value["created"] = clock()
        if cwd:
            value["cwd"] = self.masked(scrub(cwd))
        self._begin(orjson.dumps(value))

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

    def look_for_secrets(self) -> None:
        """Mask what the environment holds now, and all that it held before, from the next event on."""
        secrets, redact = environment.secrets(), self.redact
        if self._looked[0] is not secrets or self._looked[1] is not redact:
            self._looked = (secrets, redact)
            self.mask = mask_of(redact, secrets, self.mask)

    def masked(self, text: str) -> str:
        """A text as it will stand in the log."""
        return text if self.mask is None else self.mask.text(text)

    def append(
        self,
        type_: str,
        data: dict[str, Any],
        *,
        ignorable: bool = False,
        batch: int = 0,
        masked: bool = False,
    ) -> int:
        """Add one event; gives its seq. `data` belongs to the log from then on.

        Parameters
        ----------
        ignorable
            Whether a reader that doesn't know the type may skip it.
        batch
            How many events follow that stand or fall with this one; see `append_batch`.
        masked
            Whether its texts were masked before: what is also sent must be the same, to the byte.

        Raises
        ------
        SessionError
            If an event of this type can't come now, or another writer may hold the log.
        """
        folds, lines = self.folds, self.lines
        prefix, check, steps = _KINDS.get(type_, _UNKNOWN)
        refusal = check(folds, data) if check is not None else None
        if refusal is not None or not prefix or not self.writable:
            prefix = self._unusual(type_, refusal, ignorable=ignorable)
        try:
            body = orjson.dumps(data)
        except TypeError:
            data = scrub(data)
            body = orjson.dumps(data)
        if self.mask is not None and not masked and self.mask.hits(body):
            data = self.mask.shaped(data, WORDS.get(type_, _FOREIGN))
            body = orjson.dumps(data)
        if ignorable or batch:
            body += marks(ignorable=ignorable, batch=batch)
        seq = len(lines)
        line = b'{"seq":%d,"ts":%d,%b%b' % (seq, self.clock(), prefix, body)
        checksum = zlib.crc32(line, self._checksum)
        try:
            lines.append(b'%b,"c":"%08x"}' % (line, checksum))
            self._checksum = checksum
            for step in steps:
                step(folds, seq, data)
        except BaseException:  # an interrupt, or data that a fold can't read: as if it never came
            self._undo(seq)
            raise
        for watcher in self._watchers:
            with contextlib.suppress(Exception):  # who looks on can't stop a run
                watcher()
        return seq

    def append_batch(self, events: Sequence[tuple[str, dict[str, Any]]]) -> int:
        """Add events that stand or fall together, also in a crash; gives the first one's seq.

        Raises
        ------
        SessionError
            If one of them can't come now; none is added then.
        """
        first = len(self.lines)
        try:
            for number, (type_, data) in enumerate(events):
                self.append(type_, data, batch=0 if number else len(events) - 1)
        except BaseException:
            self._undo(first)
            raise
        return first

    def _unusual(self, type_: str, refusal: str | None, *, ignorable: bool) -> bytes:
        """The prefix of a type that only others know, or the error for what can't be appended."""
        if not self.writable:
            msg = f"{self._place()} is not open for writing: start a run on it, that takes its lock"
            raise SessionError(msg)
        if refusal is None and type_ not in SPECS and not (ignorable and type_ != PACKED):
            refusal = "there is no such type"
        if refusal is not None:
            msg = f"event `{type_}` can't come now: {refusal}"
            raise SessionError(msg)
        return b'"type":%b,"data":' % orjson.dumps(type_)

    def _undo(self, seq: int) -> None:
        """Take back the events from `seq` on, none of which was handed on; fold the rest anew."""
        del self.lines[seq:]
        last = self.lines[-1] if self.lines else None
        self._checksum = int(last[-10:-2], 16) if last else zlib.crc32(self.header_line)
        self.folds.restart()
        for at, line in enumerate(self.lines):
            record = orjson.loads(line)
            self.folds.step(at, record["type"], record["data"])

    @property
    def dirty(self) -> bool:
        """Whether a barrier would write something."""
        return self.store is not None and (
            self._writer.next < len(self.lines) or bool(self._pending)
        )

    def flush(self) -> None:
        """Hand all pending records to the store, in one write.

        Raises
        ------
        SessionError
            If they could not be written; they stay pending.
        """
        if self.store is None:
            return
        if self._writer.next < len(self.lines):
            records, writer = self._writer.records(self.lines)
            self._pending, self._writer = [*self._pending, *records], writer
        pending = self._pending
        if not pending:
            return
        count = self._records + len(pending)
        self.store.write(None if self._stored else self.header_line, pending)
        # No call between these: an interrupt can't come between two of them.
        self._records, self._pending, self._stored = count, [], True

    async def barrier(self) -> None:
        """Return when all events so far are durable; with `sync` also against loss of power."""
        self.flush()
        if self.sync and self.store is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.store.sync)

    def flush_old_chunks(self) -> None:
        """Hand on what has waited for a second; called by a timer."""
        if self.dirty and not self._pending:
            oldest: int = orjson.loads(self.lines[self._writer.next])["ts"]
            if self.clock() - oldest >= RUN_MS:
                self.flush()

    def acquire(self, *, steal: bool = False) -> None:
        """Become the only writer and take in what others wrote since the log was opened.

        Raises
        ------
        LockedError
            If another writer holds the log.
        SessionError
            If the store holds another log now, or less than was read from it.
        """
        if self.store is None:
            return
        if self.damage is not None:
            msg = f"this session can only be read: {self.damage}"
            raise SessionError(msg)
        try:
            added = self.store.acquire(self._records, steal=steal)
            self._join(added)
        except BaseException as error:
            self._displaced = not isinstance(error, LockedError)
            self.abandon()
            raise
        self.writable = True

    def _join(self, added: Stored) -> None:
        """Take in what the store held when the lock was taken."""
        if added.header is None:
            self.torn = added.torn or self.torn
            return
        if not self._stored and not self.lines:
            self._begin(added.header)  # another writer began the log meanwhile
        elif added.header != self.header_line or (added.records and self.dirty):
            msg = (
                f"{self._place()} was written by somebody else since it was opened: open it again. "
                f"The {len(self.lines)} events of this session object stay in memory"
            )
            raise SessionError(msg)
        self._take_in(added)

    def release(self) -> None:
        """Flush, and let others write."""
        try:
            if self.writable:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let others write, without writing what is pending."""
        if self.store is not None:
            self.writable = False
            self.store.release()

    @property
    def in_place(self) -> bool:
        """Whether the store still holds what was read from it or written to it."""
        if self.store is None or not self._stored:
            return not self._displaced
        return not self._displaced and self.store.holds(self.header_line)

    def catch_up(self) -> bool:
        """Take in what others have written meanwhile; False if what was read before is changed.

        Raises
        ------
        CorruptLogError
            If what they left is damaged.
        """
        store = self.store
        if store is None or self.writable or self.dirty or not store.changed():
            return True
        now = Log(store, clock=self.clock)
        same = now.header_line == self.header_line and now.lines[: len(self)] == self.lines
        if same and len(now) > len(self):
            self._take_in(Stored(now.header_line, store.load().records[self._records :], now.torn))
        return same

    # -- reading

    def _begin(self, header: bytes) -> None:
        value = _header(header, self._place())
        created: int = value["created"]
        self.header: dict[str, Any] = value
        self.header_line = header
        self._checksum = zlib.crc32(header)
        self._writer = Writer(created)

    def _place(self) -> str:
        return self.store.location if self.store is not None else "the log"

    def _take_in(self, stored: Stored) -> None:
        """Continue the log with stored records."""
        self._stored, self.torn = True, stored.torn
        if not stored.records:
            return
        lines, first = self.lines, len(self.lines)
        reader = Reader.after(self._writer, self._checksum)
        read = _read(reader, stored.records, self.folds, self._place(), self._records + 1)
        try:
            with collector_paused():
                for row in read:
                    lines.append(row.line)
        except CorruptLogError as error:
            self._undo(len(lines) if self._until_damage else first)
            if not self._until_damage:
                raise
            self.damage = str(error)
            return
        except BaseException:
            self._undo(first)
            raise
        self._checksum, self._writer = reader.checksum, reader.continued()
        self._records += len(stored.records)
        self.seeded = True

    def verify(self) -> Report:
        """Rebuild the log and each request from the stored bytes alone; never raises on a bad log."""
        if self.store is None or not self._stored:
            return verify(self.header_line, self.lines, self.torn)
        held, known = self.writable, self._records  # a run may go on meanwhile
        try:
            stored = self.store.load()
        except SessionError as error:
            return _unreadable(str(error))
        if stored.header != self.header_line:
            what = "was removed" if stored.header is None else "was altered, or is another log now"
            return _unreadable(f"{self._place()}: its header {what}")
        # What looks torn to the writer itself is a write that goes on.
        torn = None if held else stored.torn
        return _verify(self.header_line, stored.records, torn, known, self.lines)


def verify(header: bytes, records: Sequence[bytes], torn: Torn | None = None) -> Report:
    """Rebuild a log from its header and records (or canonical lines), and say what is wrong."""
    return _verify(header, records, torn, 0, ())


def _verify(
    header: bytes, records: Sequence[bytes], torn: Torn | None, known: int, lines: Sequence[bytes]
) -> Report:
    """As `verify`; there must be `known` records, and the lines behind them are not yet stored."""
    try:
        created: int = _header(header, "the log")["created"]
    except FormatError as error:
        return _unreadable(str(error))
    folds, reader = Folds(), Reader(header, created)
    problems: list[tuple[int, str]] = []
    try:
        with collector_paused():
            for _ in _read(reader, records, folds, "the log"):
                pass
            if len(records) < known:
                what = f"the log ends here, {known - len(records)} records behind it are missing"
                problems.append((reader.next, what))
            else:
                unwritten = lines[reader.next :]
                for _ in _read(reader, unwritten, folds, "the log", len(records) + 1):
                    pass
    except CorruptLogError as fault:
        problems.append((fault.seq, fault.what))
    except FormatError as error:
        problems.append((reader.next, str(error)))
    ends = "torn" if torn is not None or reader.due else _ends(folds)
    return Report(not problems, tuple(problems), ends, reader.next)


def _unreadable(what: str) -> Report:
    return Report(False, ((0, what),), "unreadable", 0)


def _header(line: bytes, place: str) -> dict[str, Any]:
    """The header as JSON, if this version can read the log."""
    value: dict[str, Any] = {}
    with contextlib.suppress(orjson.JSONDecodeError, TypeError, ValueError):
        value = dict(orjson.loads(line))
    version = value.get("nbagent")
    if isinstance(version, int) and version > FORMAT:
        msg = (
            f"{place} has format {version}, this nbagent reads format {FORMAT}: "
            "update nbagent to read it"
        )
        raise FormatError(msg)
    fields = {"nbagent": int, "id": str, "created": int, "cwd": str}
    whole = all(type({"cwd": "", **value}.get(key)) is kind for key, kind in fields.items())
    if version != FORMAT or not whole:
        msg = f"{place}: its first line is no header of a session log"
        raise FormatError(msg)
    return value


def _ends(folds: Folds) -> str:
    if folds.approvals.open and folds.turn.turn_open:
        return "waiting"
    return f"inside turn {folds.turn.turn}" if folds.turn.turn_open else "idle"


def _damaged(place: str, seq: int, at: str, line: int, what: str) -> CorruptLogError:
    """The error for a damaged place in a log."""
    msg = (
        f"{place} is damaged at {at}: {what} (line {line}). "
        "nb.Session.open(…, until_damage=True) gives what stands before that line"
    )
    return CorruptLogError(msg, seq=seq, what=f"{at}: {what} (line {line})")


def _read(
    reader: Reader, records: Iterable[bytes], folds: Folds, place: str, above: int = 1
) -> Iterator[Row]:
    """Read, check and fold records one by one; `above` lines stand before them."""
    at, line = reader.next, above
    try:
        for line, record in enumerate(records, above + 1):
            at = reader.next
            for row in reader.read(record):
                at, type_, data, _, ignorable = row
                check = CHECKS.get(type_)
                refusal = check(folds, data) if check is not None else None
                if refusal is not None:
                    raise _damaged(place, at, f"event {at}", line, f"`{type_}`: {refusal}")
                for step in STEPS.get(type_, ()):
                    step(folds, at, data)
                if type_ not in SPECS and not ignorable:
                    msg = (
                        f"{place}: event {at} has the unknown type {type_!r}: it was written by a "
                        "newer nbagent; update to read it"
                    )
                    raise FormatError(msg)
                yield row
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        what = str(error) if isinstance(error, ValueError) else f"malformed ({error!r})"
        name = reader.at if at == reader.next else f"event {at}"
        raise _damaged(place, at, name, line, what) from error


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
def collector_paused() -> Generator[None, None, None]:
    """Keep the collector from walking a bulk load's many objects again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()

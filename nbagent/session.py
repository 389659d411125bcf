"""A session: one append-only log of events with an identity, and the queue of its runs."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import orjson

from nbagent.errors import BusyError, ConfigError, SessionError
from nbagent.keywords import check_keywords
from nbagent.log import Events, Log, Report
from nbagent.messages import Message
from nbagent.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    import pandas as pd

    from nbagent.frames.explain import Explanation

__all__ = ["RunQueue", "Session", "as_session"]


class Waiter(Protocol):
    """Somebody who runs or waits."""

    def lost(self) -> bool:
        """Whether it can never go on, since its loop is closed."""
        ...


class RunQueue:
    """Who may run on a session: one at a time, in the order of asking, across threads and loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: Waiter | None = None
        self._waiting: deque[tuple[Waiter, Future[bool]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a run is in progress or waits."""
        return self._holder is not None

    def enter(self, who: Waiter) -> Future[bool] | None:
        """Take the place if it is free (None), or queue for it (a future that becomes True)."""
        with self._lock:
            if self._holder is not None and self._holder.lost():
                self._next()
            if self._holder is None:
                self._holder = who
                return None
            future: Future[bool] = Future()
            self._waiting.append((who, future))
            return future

    def give_up(self, who: Waiter) -> bool:
        """Leave the queue; False if the place was given already."""
        with self._lock:
            for entry in self._waiting:
                if entry[0] is who:
                    self._waiting.remove(entry)
                    with contextlib.suppress(InvalidStateError):  # who waited was cancelled
                        entry[1].set_result(False)
                    return True
        return False

    def leave(self, who: Waiter) -> None:
        """Give the place to the next."""
        with self._lock:
            if self._holder is who:
                self._next()

    def _next(self) -> None:
        """Give the place to the first that can still take it; the lock is held."""
        self._holder = None
        while self._holder is None and self._waiting:
            who, future = self._waiting.popleft()
            if who.lost() or not future.set_running_or_notify_cancel():
                continue
            self._holder = who
            future.set_result(True)


class Session:
    """A conversation with all that happened in it; stays in memory unless it is opened on a path.

    Examples
    --------
    >>> session = Session()
    >>> len(session.events), session.verify().ok
    (0, True)
    """

    def __init__(self) -> None:
        self.log = Log(cwd=_folder())
        """The log behind the session; append-only."""
        self.queue = RunQueue()
        """Who runs on it, and who waits."""

    @classmethod
    @check_keywords("Session.open")
    def open(
        cls, path: str | os.PathLike[str], *, sync: bool = False, steal: bool = False
    ) -> Session:
        """The session of that file; a fresh one if there is none yet.

        Opening reads only. The first run takes the write lock, which is held until `close`, the end
        of the process, or until nobody holds the session object any more. Opening the same path
        again gives the same object, as long as its file is there.

        Parameters
        ----------
        path
            A file that ends in `.jsonl`.
        sync
            Whether each barrier also waits for the disk (fsync): survives a loss of power.
        steal
            Take the write lock over from a process that is dead but still named in it.

        Raises
        ------
        ConfigError
            If the path is of a kind that no store reads.
        FormatError
            If the file is no session log, or was written by a newer nbagent.
        CorruptLogError
            If the log is damaged before its last line.
        SessionError
            If the file can't be read.
        """
        if not isinstance(path, str | os.PathLike):
            msg = f"a session's path is text or a Path, not {path!r}"
            raise ConfigError(msg)
        text = os.fspath(path)
        if not text.endswith(".jsonl") or "://" in text:
            msg = f"can't open {text!r} as a session: give a file that ends in .jsonl"
            raise ConfigError(msg)
        try:
            store = JsonlStore(text)
        except (OSError, RuntimeError) as error:  # symbolic links in a circle, no home folder
            msg = f"can't open {text!r} as a session: {error}"
            raise SessionError(msg) from error
        with _OPEN_LOCK:
            session = _OPEN.get(store.location)
            if session is not None and _outdated(session):
                session.log.abandon()
                session = None
            if session is None:
                session = cls.__new__(cls)
                session.log = Log(store, sync=sync, cwd=_folder())
                session.queue = RunQueue()
                weakref.finalize(session, _let_go, session.log)
                _OPEN[store.location] = session
        if steal:
            session.log.acquire(steal=True)
        return session

    @property
    def id(self) -> str:
        """The session's id, 32 hex digits."""
        return self.log.id

    @property
    def events(self) -> Events:
        """All events so far, a sequence that grows."""
        return self.log.events

    @property
    def location(self) -> str | None:
        """The file, None if it is in memory."""
        return self.log.store.location if self.log.store is not None else None

    def to_pandas(self, table: str = "steps") -> pd.DataFrame:
        """One of the tables over all runs of the session; see `Result.to_pandas`."""
        from nbagent.frames import table as build

        return build(self.log, table)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole history, as the model will see it in the next run."""
        return tuple(Message.from_node(orjson.loads(n)) for n in list(self.log.folds.surface.nodes))

    def explain(
        self, step: int | None = None, *, turn: int | None = None, attempt: int | None = None
    ) -> Explanation:
        """The exact request behind an answer; see `Result.explain`. The last turn if not given."""
        from nbagent.frames import explain

        return explain(self.log, step, turn, attempt)

    def verify(self) -> Report:
        """Rebuild all that the model saw from the stored bytes, and say whether it holds.

        Returns
        -------
        Report
            True if all is well; `problems` names each fault by its event, `ends` says how the log
            ends (idle, inside turn n, waiting, torn).
        """
        return self.log.verify()

    def close(self) -> None:
        """Write what is pending and let others write to the file.

        Raises
        ------
        BusyError
            If a run is in progress.
        """
        if self.queue.busy:
            msg = f"{self!r} has a run in progress: interrupt it or wait for it first"
            raise BusyError(msg)
        self.log.release()

    def __repr__(self) -> str:
        where = f" at {self.location}" if self.location else ""
        runs = self.log.folds.turn.run
        return f"<Session {self.id[:8]}{where}: {_count(runs, 'run')}, {_count(len(self.log), 'event')}>"


_OPEN: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
_OPEN_LOCK = threading.Lock()


def _outdated(session: Session) -> bool:
    """Whether nobody works on it and its file was removed or replaced."""
    return not session.queue.busy and not session.log.in_place


def _let_go(log: Log) -> None:
    """Write what is pending and free the lock, when a session object goes away."""
    with contextlib.suppress(SessionError):
        log.release()


def _folder() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def as_session(given: Session | str | os.PathLike[str] | None) -> Session:
    """A session, or the one at that path, or a fresh one in memory.

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    if given is None:
        return Session()
    if isinstance(given, Session):
        return given
    if isinstance(given, str | os.PathLike):
        return Session.open(given)
    msg = f"session must be an nb.Session or the path of one, not {type(given).__name__}"
    raise ConfigError(msg)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

"""A session: one append-only log of events with an identity, and the queue of its runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from nbagent.errors import BusyError, ConfigError, SessionError
from nbagent.interfaces.model import Model
from nbagent.keywords import check_keywords
from nbagent.log import Events, Log, Report
from nbagent.messages import Message, scrub
from nbagent.redact import check_redact
from nbagent.stores.jsonl import JsonlStore

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nbagent.frames import Wanted
    from nbagent.frames.explain import Explanation

__all__ = ["RunQueue", "Session", "as_session", "close_all"]


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

    Parameters
    ----------
    redact
        Texts (of 4 characters at least) and compiled patterns that are masked wherever text enters:
        prompts, answers, results, errors, notes. The model reads the mask, too; a tool gets what
        the model wrote. Values (of 12 characters at least) of environment variables named `*_KEY`,
        `*_TOKEN` or `*_SECRET` are masked always. Patterns are looked for line by line in what
        streams.

    Examples
    --------
    >>> session = Session()
    >>> len(session.events), session.verify().ok
    (0, True)
    """

    @check_keywords("Session")
    def __init__(self, *, redact: Sequence[str | re.Pattern[str]] = ()) -> None:
        self.log = Log(cwd=_folder(), redact=check_redact(redact))
        """The log behind the session; append-only."""
        self.queue = RunQueue()
        """Who runs on it, and who waits."""
        self.models: dict[int, Model] = {}
        """The models of the runs in this process, by run: `explain` makes bodies anew with them."""

    @classmethod
    @check_keywords("Session.open")
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        sync: bool = False,
        steal: bool = False,
        until_damage: bool = False,
        redact: Sequence[str | re.Pattern[str]] = (),
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
        until_damage
            Read a damaged log up to the damaged line, which `session.damage` names; a session of
            its own that can only be read.
        redact
            As in `Session`: what is masked from now on; not stored, so give it each time.

        Raises
        ------
        ConfigError
            If the path is of a kind that no store reads, or can't be a path.
        FormatError
            If the file is no session log, or was written by a newer nbagent.
        CorruptLogError
            If the log is damaged before its last line.
        SessionError
            If the file can't be read.
        """
        text, secrets = _path(path), check_redact(redact)
        try:
            store = JsonlStore(text)
        except (OSError, RuntimeError) as error:  # symbolic links in a circle, no home folder
            msg = f"can't open {text!r} as a session: {error}"
            raise SessionError(msg) from error
        if until_damage:
            log = Log(store, sync=sync, cwd=_folder(), until_damage=True)
            if log.damage is not None:
                return cls._of(log)
        with _OPEN_LOCK:
            session = _OPEN.get(store.location)
            if session is not None and _outdated(session):
                session.log.abandon()
                session = None
            if session is None:
                session = cls._of(Log(store, sync=sync, cwd=_folder(), redact=secrets))
                # Not at exit: runs that go on then are ended first (`nb.shutdown`).
                weakref.finalize(session, _let_go, session.log).atexit = False
                _OPEN[store.location] = session
            elif secrets:
                session.log.redact = tuple(dict.fromkeys((*session.log.redact, *secrets)))
                session.log.look_for_secrets()
        if steal:
            session.log.acquire(steal=True)
        return session

    @classmethod
    def _of(cls, log: Log) -> Session:
        session = cls.__new__(cls)
        session.log, session.queue, session.models = log, RunQueue(), {}
        return session

    @property
    def damage(self) -> str | None:
        """What is wrong with the stored log, of a session that was opened `until_damage`."""
        return self.log.damage

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

    def to_pandas(self, table: str = "steps", columns: Wanted = None) -> pd.DataFrame:
        """One of the tables over all runs of the session; see `Result.to_pandas`."""
        from nbagent.frames import table as build

        return build(self.log, table, columns=columns)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole history, as the model will see it in the next run."""
        return tuple(Message.from_node(orjson.loads(n)) for n in list(self.log.folds.surface.nodes))

    def explain(
        self, step: int | None = None, *, turn: int | None = None, attempt: int | None = None
    ) -> Explanation:
        """The exact request behind an answer; see `Result.explain`. The last turn if not given."""
        from nbagent.frames import explain

        return explain(self.log, step, turn, attempt, models=self.models)

    def export(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write all tables over all runs of the session to files; see `Result.export`."""
        from nbagent.frames import export

        return export(self.log, path)

    def plot(
        self,
        kind: Literal["run", "context"] = "run",
        *,
        theme: Literal["auto", "light", "dark"] = "auto",
        ax: Axes | Sequence[Axes] | None = None,
    ) -> Figure:
        """A figure of all runs of the session; see `Result.plot`."""
        from nbagent.frames.figure import plot

        return plot(self.log, kind, theme=theme, ax=ax)

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
        where = self.log.masked(f" at {self.location}") if self.location else ""
        runs = self.log.folds.turn.run
        return f"<Session {self.id[:8]}{where}: {_count(runs, 'run')}, {_count(len(self.log), 'event')}>"


_OPEN: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
_OPEN_LOCK = threading.Lock()


def _path(given: str | os.PathLike[str]) -> str:
    """A path that a store can read, as text.

    Raises
    ------
    ConfigError
        If it is none.
    """
    text: Any = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str):
        msg = f"a session's path is text or a Path, not {given!r}"
        raise ConfigError(msg)
    if not text.endswith(".jsonl") or "://" in text:
        msg = f"can't open {text!r} as a session: give a file that ends in .jsonl"
        raise ConfigError(msg)
    if "\0" in text or scrub(text) != text:
        msg = f"can't open {text!r} as a session: no file can have that name"
        raise ConfigError(msg)
    return text


def _outdated(session: Session) -> bool:
    """Whether nobody works on it and its file is another one now, or holds something else."""
    log = session.log
    return not session.queue.busy and not (log.in_place and log.catch_up())


def close_all() -> None:
    """Write what is pending in all sessions that are files, and let others write to them."""
    for session in list(_OPEN.values()):
        _let_go(session.log)


atexit.register(close_all)


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

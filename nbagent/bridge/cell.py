"""The notebook's own thread: a queue of what must run there, served while a cell waits or is idle.

For things that belong to the thread or loop on which a cell made them (connections to databases,
windows, the user's variables) and for `input()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future, InvalidStateError
from functools import partial
from typing import Any

from nbagent.bridge.comms import comm_bypass

__all__ = ["Cell", "allow_nested_asyncio", "the_cell"]

NEEDS_LOOP = 'an async tool with where="cell" needs the notebook\'s event loop: use {}'

Entry = tuple[Future[Any], Callable[[], Any]]


class Cell(Executor):
    """Runs what is submitted on the main thread, one after the other.

    Who waits for a run serves the queue (`waiting`); in between, the loop of the main thread does,
    as soon as it is idle.
    """

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._questions: deque[Entry] = deque()
        self._home: asyncio.AbstractEventLoop | None = None
        self._waiting = 0
        self._lock = threading.Lock()
        self._blocked: list[str] = []
        """For whose sake the main thread is blocked, which its loop shares."""
        self._bodies: dict[Future[Any], str] = {}
        """Whose coroutines are on the loop of the main thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on the main thread as soon as that is free."""
        return self._put(self._entries, lambda: fn(*args, **kwargs))

    def ask(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        """The same, but only while a cell waits: a person types into the output of that cell."""
        return self._put(self._questions, lambda: fn(*args))

    def run(self, coroutine: Coroutine[Any, Any, Any], owner: str) -> Future[Any]:
        """Run a coroutine on the loop of the main thread.

        Parameters
        ----------
        owner
            The session whose run it belongs to. If the main thread blocks until that run ends, the
            coroutine could never go on: the future then fails with a RuntimeError.

        Raises
        ------
        RuntimeError
            If there is no such loop, or the main thread is blocked like that already.
        """
        with self._lock:
            home = self._home
            if home is None or home.is_closed():
                coroutine.close()
                raise RuntimeError(NEEDS_LOOP.format("a notebook cell or asyncio.run(…)"))
            if owner in self._blocked:
                coroutine.close()
                raise RuntimeError(NEEDS_LOOP.format("await agent.run(…)"))
            future: Future[Any] = Future()
            self._bodies[future] = owner
        inner = asyncio.run_coroutine_threadsafe(coroutine, home)
        inner.add_done_callback(partial(_hand_on, future))
        future.add_done_callback(lambda _: inner.cancel())
        future.add_done_callback(lambda _: self._bodies.pop(future, None))
        return future

    @property
    def waits(self) -> bool:
        """Whether a cell waits for a run."""
        return self._waiting > 0

    def here(self) -> None:
        """Remember the running loop as the one of the main thread, if it is."""
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(RuntimeError):
                self._home = asyncio.get_running_loop()

    @contextlib.contextmanager
    def waiting(self, *, blocked_for: str | None = None) -> Generator[Callable[[], None]]:
        """The caller waits for a run; on the main thread, clicks and the queue are served meanwhile.

        Parameters
        ----------
        blocked_for
            The session whose run is waited for, if the wait blocks the thread.

        Yields
        ------
        callable
            Serves what has come; call it again and again if the wait blocks the thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield _nothing
            return
        self.here()
        with comm_bypass() as pump:
            self._waiting += 1
            try:
                self._poke()
                with self._blocking(blocked_for):
                    yield lambda: self._serve_with(pump)
            finally:
                self._waiting -= 1

    @contextlib.contextmanager
    def _blocking(self, owner: str | None) -> Generator[None]:
        if owner is None:
            yield
            return
        with self._lock:
            self._blocked.append(owner)
            stuck = [future for future, whose in self._bodies.items() if whose == owner]
        try:
            for future in stuck:
                with contextlib.suppress(InvalidStateError):  # it has ended just now
                    future.set_exception(RuntimeError(NEEDS_LOOP.format("await run")))
            yield
        finally:
            with self._lock:
                self._blocked.remove(owner)

    def _serve_with(self, pump: Callable[[], None] | None) -> None:
        if pump is not None:
            pump()
        self.serve()

    def _put(self, queue: deque[Entry], act: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        queue.append((future, act))
        self._poke()
        return future

    def _poke(self) -> None:
        """Wake the loop of the main thread, if there is one; who blocks it looks by itself."""
        home = self._home
        if home is not None and (self._entries or self._questions):
            with contextlib.suppress(RuntimeError):  # it is closed: the next wait serves the queue
                home.call_soon_threadsafe(self.serve)

    def serve(self) -> None:
        """Run what is queued; on the main thread.

        Raises
        ------
        KeyboardInterrupt
            If the person pressed Ctrl-C meanwhile; what ran then has failed.
        """
        while (entry := self._next()) is not None:
            future, act = entry
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with _interruptible():
                    value = act()
            except KeyboardInterrupt:
                future.set_exception(RuntimeError("interrupted by the person"))
                raise
            except _InterruptedError:
                future.set_exception(RuntimeError("interrupted by the person"))
            except BaseException as error:  # noqa: BLE001 - belongs to who waits
                future.set_exception(error)
            else:
                future.set_result(value)
            del future, act, entry

    def _next(self) -> Entry | None:
        with contextlib.suppress(IndexError):
            return self._entries.popleft()
        if self._waiting:
            with contextlib.suppress(IndexError):
                return self._questions.popleft()
        return None


def _hand_on(to: Future[Any], ended: Future[Any]) -> None:
    """Give a future the outcome of another, unless it has one."""
    with contextlib.suppress(InvalidStateError):
        if ended.cancelled():
            to.cancel()
        elif (error := ended.exception()) is not None:
            to.set_exception(error)
        else:
            to.set_result(ended.result())


def _nothing() -> None:
    """Another thread serves the queue."""


class _InterruptedError(BaseException):
    """The stop button was pressed while the kernel's loop ran something of ours."""


@contextlib.contextmanager
def _interruptible() -> Generator[None]:
    """Let the stop button end what runs inside.

    While a kernel awaits a cell or is idle, its handler does not raise; what runs inside from its
    loop would go on to its end. The kernel's own handler has its turn afterwards.
    """
    try:
        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler or threading.current_thread() is not (
            threading.main_thread()
        ):
            before = None
        else:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except ValueError:  # not the main interpreter
        before = None
    if before is None:
        yield
        return
    try:
        yield
    except KeyboardInterrupt as error:
        signal.signal(signal.SIGINT, before)
        if callable(before):
            before(signal.SIGINT, None)
        raise _InterruptedError from error
    finally:
        signal.signal(signal.SIGINT, before)


_cell = Cell()


def the_cell() -> Cell:
    """The one queue of this process."""
    return _cell


def _forget() -> None:
    global _cell  # noqa: PLW0603 - one per process
    _cell = Cell()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def allow_nested_asyncio() -> None:
    """Let your own code in cells call `asyncio.run` and `loop.run_until_complete`.

    Patches the event loop of this process for good, by nest_asyncio2 where that is installed, else
    nest_asyncio. nbagent itself never needs it: `agent.run_sync` works in cells without.
    """
    try:
        import nest_asyncio2 as nesting  # pyright: ignore[reportMissingImports]
    except ImportError:
        import nest_asyncio as nesting
    apply: Any = nesting.apply  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    apply()

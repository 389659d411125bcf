"""Stopping: one token per run, scopes that take a cancellation back, one timer for all deadlines.

Stop and deadlines cancel the run's own task, and the place that awaited takes the cancellation back
(`Task.uncancel`) on every exit, also when what it awaited swallowed it. What is above that came from
outside and goes on as `CancelledError`. Nothing else in nbagent cancels the run's task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["Deadline", "Scope", "Stopped", "Token", "Watchdog", "is_running"]

TICK_S = 1.0


class Stopped(Exception):
    """Raised where the loop notices that it was asked to stop."""


class Token:
    """Whether and by whom the run was asked to stop; the first word counts."""

    __slots__ = ("by", "reason", "scope", "task")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self.task = task
        """The run's own task."""
        self.by: str | None = None
        """user, budget, outer, disposed; None = go on."""
        self.reason: str | None = None
        self.scope: Scope | None = None

    def cancel(self, by: str, reason: str | None = None) -> None:
        """Ask to stop; on the run's own thread."""
        if self.by is None:
            self.by, self.reason = by, reason
        if self.scope is not None:
            self.scope.fire()

    def check(self) -> None:
        """Go no further if asked to stop."""
        if self.by is not None:
            raise Stopped


def is_running(task: asyncio.Task[Any] | None) -> bool:
    """Whether this task is what runs here; a coroutine that is closed from outside is run by none.

    A `GeneratorExit` in a task that runs was raised by what it called, like any error.
    """
    try:
        return asyncio.current_task() is task
    except RuntimeError:  # no loop runs any more
        return False


class _Cancellable:
    """Cancels the task that entered it, and takes exactly that cancellation back at the end."""

    __slots__ = ("_entry", "_task", "fired")

    def __init__(self) -> None:
        self.fired = False
        self._task: asyncio.Task[Any] | None = None
        self._entry = 0

    def _enter(self, task: asyncio.Task[Any] | None) -> None:
        self._task = task
        self._entry = task.cancelling() if task is not None else 0

    def fire(self) -> None:
        """Cancel what is awaited inside."""
        if self.fired or self._task is None:
            return
        self.fired = True
        if self._task.get_loop().is_closed():
            return  # nobody is there to be cancelled
        if asyncio.current_task(self._task.get_loop()) is self._task:
            # Called from inside the body itself: it may return without awaiting anything, and a
            # cancellation that is due but not delivered can't be taken back (before Python 3.13).
            asyncio.get_running_loop().call_soon(self._cancel_late)
        else:
            self._task.cancel("nbagent")

    def _cancel_late(self) -> None:
        if self._task is not None:
            self._task.cancel("nbagent")

    def _leave(self, error: type[BaseException] | None) -> bool:
        """Whether the exception is our own cancellation, which ends here."""
        task, self._task = self._task, None
        if not self.fired or task is None:
            return False
        left = task.cancelling()
        if left > self._entry:
            left = task.uncancel()
        return (
            error is not None and issubclass(error, asyncio.CancelledError) and left <= self._entry
        )


class Scope(_Cancellable):
    """A place that awaits something which Stop may cut short; afterwards `fired` says if it did."""

    __slots__ = ("_on_fire", "_outer", "_token")

    def __init__(self, token: Token, on_fire: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._token, self._on_fire = token, on_fire
        self._outer: Scope | None = None

    def fire(self) -> None:
        """Cancel what is awaited inside."""
        super().fire()
        if self._on_fire is not None:
            self._on_fire()

    def __enter__(self) -> Scope:
        self._enter(self._token.task)
        self._outer, self._token.scope = self._token.scope, self
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._token.scope = self._outer
        return self._leave(error)


class Deadline(_Cancellable):
    """Ends what runs inside with `TimeoutError` after some seconds; None = no limit."""

    __slots__ = ("_seconds", "_watchdog")

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that is inside."""
        return self._task

    def __init__(self, watchdog: Watchdog, seconds: float | None) -> None:
        super().__init__()
        self._watchdog, self._seconds = watchdog, seconds

    def __enter__(self) -> Deadline:
        if self._seconds is not None:
            self._enter(asyncio.current_task())
            self._watchdog.set(self, self._seconds, self.fire)
        return self

    def __exit__(
        self,
        error: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self._seconds is None:
            return False
        self._watchdog.clear(self)
        if self._leave(error):
            msg = f"it took longer than {self._seconds:g} s"
            raise TimeoutError(msg) from value
        return False


class Watchdog:
    """All deadlines of a run on one timer, which also ticks once a second."""

    __slots__ = ("_at", "_deadlines", "_handle", "_held", "_loop", "_tick")

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop, self._tick = loop, tick
        self._deadlines: dict[object, tuple[float, Callable[[], None]]] = {}
        self._held: dict[object, tuple[float, Callable[[], None]]] = {}
        """(seconds left, callback) of deadlines whose clock stands still."""
        self._handle: asyncio.TimerHandle | None = None
        self._at = 0.0

    def start(self) -> None:
        """Begin to tick."""
        self._arm(self._loop.time() + TICK_S)

    def stop(self) -> None:
        """Forget all deadlines."""
        self._deadlines.clear()
        self._held.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def set(self, key: object, seconds: float, callback: Callable[[], None]) -> None:
        """Call back after so many seconds unless cleared; replaces an earlier one of this key."""
        at = self._loop.time() + seconds
        self._deadlines[key] = (at, callback)
        # The timer is only moved forward: a later deadline is found when it fires anyway.
        if self._handle is not None and at < self._at:
            self._handle.cancel()
            self._arm(at)

    def clear(self, key: object) -> None:
        """Forget a deadline."""
        self._deadlines.pop(key, None)
        self._held.pop(key, None)

    def hold(self, key: object) -> None:
        """Let the clock of a deadline stand still until `resume`."""
        found = self._deadlines.pop(key, None)
        if found is not None:
            self._held[key] = (found[0] - self._loop.time(), found[1])

    def resume(self, key: object) -> None:
        """Let it go on."""
        found = self._held.pop(key, None)
        if found is not None:
            self.set(key, *found)

    def of_task(self, task: asyncio.Task[Any] | None) -> list[Deadline]:
        """The deadlines that a task is inside of."""
        return [key for key in self._deadlines if isinstance(key, Deadline) and key.task is task]

    def _arm(self, at: float) -> None:
        self._at = at
        self._handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        due = [key for key, (at, _) in self._deadlines.items() if at <= now]
        next_at = min([now + TICK_S, *(at for at, _ in self._deadlines.values() if at > now)])
        self._arm(next_at)
        for key in due:
            found = self._deadlines.pop(key, None)
            if found is not None:
                found[1]()
        self._tick()

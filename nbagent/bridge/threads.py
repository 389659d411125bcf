"""The loop thread, where agents live, and the threads for sync tools."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any

__all__ = ["ToolPool", "agent_loop", "on_agent_loop", "tool_pool"]

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_pool: ToolPool | None = None
THREADS = 128
_logger = logging.getLogger("nbagent")


def agent_loop() -> asyncio.AbstractEventLoop:
    """The loop of the one daemon thread `nbagent-loop`, started on first use."""
    global _loop  # noqa: PLW0603 - one thread per process
    with _lock:
        if _loop is None or _loop.is_closed():
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_serve, args=(loop,), name="nbagent-loop", daemon=True)
            thread.start()
            _loop = loop  # only now: Ctrl-C may come at any line
        return _loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while not loop.is_closed():
        # It serves all agents: what one tool's task raises (SystemExit) or stops must not end it.
        try:
            loop.run_forever()
        except BaseException:
            _logger.exception("something on the loop thread tried to end it; it goes on")


def _forget() -> None:
    """In a forked child the threads of the parent are gone: begin anew."""
    global _loop, _pool, _lock  # noqa: PLW0603 - one of each per process
    _loop = _pool = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def on_agent_loop() -> bool:
    """Whether the caller runs on the loop thread, where blocking would never end."""
    return threading.current_thread().name == "nbagent-loop"


def tool_pool() -> ToolPool:
    """The threads for sync tools, shared by all agents."""
    global _pool  # noqa: PLW0603 - one pool per process
    with _lock:
        if _pool is None:
            _pool = ToolPool(THREADS)
        return _pool


class ToolPool(Executor):
    """Daemon threads, at most `most`, made as they are needed.

    The standard pool joins its threads at exit: a tool that never returns would keep the process
    alive for ever.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function on a thread of the pool."""
        future: Future[Any] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if self._threads < self._most:
                    self._threads += 1
                    name = f"nbagent-tool-{self._threads}"
                    threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            future, act = self._work.get()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(act())
                except BaseException as error:  # noqa: BLE001 - belongs to who waits
                    future.set_exception(error)
            del future, act
            self._idle.release()

"""The comm bypass: while a cell waits for a run, clicks are handled and everything else queues.

A kernel runs one cell at a time, and messages of widgets queue behind it like further cells: a cell
that waits for a click waits for ever. While one waits, this swaps the callback of the stream that
feeds the kernel's main shell. Messages of comms are handled at once, on the main thread; all others
go their normal way, so that the order of cells stays as it is.

It touches parts of ipykernel that are not public (`_recv_callback`, `shell_channel_thread.manager`,
`shell_handlers`, `_publish_status`); seen to work on 6.29 to 7.4. Whatever is not as expected means
no bypass, never an error: `bypass_problem` says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

from nbagent.bridge.kernel import kernel

__all__ = ["bypass_problem", "comm_bypass"]

COMMS = frozenset({"comm_open", "comm_msg", "comm_close"})
OFF = "NBAGENT_COMM_BYPASS"
"""Set to 0, no bypass is installed."""


class _Bypass:
    """The bypass of one kernel; used on its main thread only."""

    def __init__(self, found: Any) -> None:
        self.kernel = found
        self._depth = 0
        self._stream: Any = None
        self._normal: Callable[[Any], Any] | None = None

    def enter(self) -> None:
        """Begin to handle comms at once; may be nested."""
        if self._depth == 0:
            thread = getattr(self.kernel, "shell_channel_thread", None)
            if thread is not None:  # from ipykernel 7 on: what that thread hands to the main shell
                pair = thread.manager.get_shell_channel_to_subshell_pair(None)
                stream = pair.to_stream
            else:
                stream = self.kernel.shell_stream
            normal = stream._recv_callback
            if normal is None or not callable(self.kernel.shell_handlers["comm_msg"]):
                msg = "the kernel's shell has no callback"
                raise RuntimeError(msg)
            stream.on_recv(self._received, copy=False)
            self._stream, self._normal = stream, normal
            self._overtake()
        self._depth += 1

    def leave(self) -> None:
        """End what `enter` began."""
        self._depth -= 1
        if self._depth == 0 and self._stream._recv_callback is not None:
            self._stream.on_recv(self._normal, copy=False)

    def pump(self) -> None:
        """Handle what has arrived; for a cell that blocks the main thread."""
        import zmq

        self._stream.flush(zmq.POLLIN)

    def _received(self, message: Any) -> Any:
        if not self._handle(message) and self._normal is not None:
            return self._normal(message)
        return None

    def _overtake(self) -> None:
        """Handle comms that ipykernel 6 had queued behind this cell before the bypass began."""
        queue = getattr(self.kernel, "msg_queue", None)
        if queue is None:
            return
        waiting: list[Any] = []
        with contextlib.suppress(Exception):  # tornado's QueueEmpty
            while True:
                waiting.append(queue.get_nowait())
        for item in waiting:
            message = item[2][0] if item[2] else None
            if not (isinstance(message, list) and self._handle(message)):
                queue.put_nowait(item)

    def _handle(self, message: Any) -> bool:
        """Handle a message if it is a comm's; False if it is not ours to handle."""
        found, session = self.kernel, self.kernel.session
        try:
            identities, frames = session.feed_identities(message, copy=False)
            if session.unpack(frames[1].bytes).get("msg_type") not in COMMS:
                return False
        except Exception:  # noqa: BLE001 - the normal callback reports it better
            return False
        try:
            opened = session.deserialize(frames, content=True, copy=False)  # checks the signature
            # Without busy and idle the front end holds back further changes of the same widget.
            found._publish_status("busy", "shell", parent=opened)
            try:
                said = found.shell_handlers[opened["header"]["msg_type"]](None, identities, opened)
                if inspect.isawaitable(said):
                    _background.add(task := asyncio.ensure_future(said))
                    task.add_done_callback(_background.discard)
            finally:
                found._publish_status("idle", "shell", parent=opened)
        except Exception:
            found.log.exception("nbagent: a widget's message failed")
        return True


_background: set[asyncio.Future[Any]] = set()
_bypass: _Bypass | None = None
_problem = ""


def bypass_problem() -> str:
    """Why clicks can't reach a cell that waits; empty if they can, or nothing was tried yet."""
    if os.environ.get(OFF) == "0":
        return f"{OFF}=0"
    return _problem


@contextlib.contextmanager
def comm_bypass() -> Generator[Callable[[], None] | None]:
    """Let clicks overtake the cell while it waits inside; main thread of a kernel only.

    Yields
    ------
    callable or None
        Handles what has arrived, for a wait that blocks the thread; None = there is no bypass.
    """
    entered = _enter()
    try:
        yield entered.pump if entered is not None else None
    finally:
        if entered is not None:
            entered.leave()


def _enter() -> _Bypass | None:
    global _bypass, _problem  # noqa: PLW0603 - one kernel per process
    found = kernel()
    if found is None or os.environ.get(OFF) == "0":
        return None
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        if _bypass is None or _bypass.kernel is not found:
            _bypass = _Bypass(found)
        _bypass.enter()
    except Exception as error:  # noqa: BLE001 - a kernel of another make
        _problem = f"this kernel is not as expected ({type(error).__name__}: {error})"
        return None
    _problem = ""
    return _bypass

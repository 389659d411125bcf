"""Bodies that were given up and may go on: known until they end, whichever run started them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

from nbagent.interfaces.tool import Tool

__all__ = ["give_up", "goes_on"]

_lock = threading.Lock()
_bodies: WeakKeyDictionary[Tool, set[Any]] = WeakKeyDictionary()
"""It also keeps the tasks alive: an event loop would not."""


def give_up(tool: Tool, body: asyncio.Task[Any] | Future[Any]) -> None:
    """Remember a body that nobody waits for any more, until it ends."""
    with _lock:
        _bodies.setdefault(tool, set()).add(body)
    body.add_done_callback(lambda ended: _forget(tool, ended))


def goes_on(tool: Tool) -> bool:
    """Whether a body of this tool that was given up may still be running."""
    if not _bodies:
        return False
    with _lock:
        return bool(_bodies.get(tool))


def _forget(tool: Tool, ended: Any) -> None:
    with _lock:
        _bodies.get(tool, set()).discard(ended)
        if not _bodies.get(tool):
            _bodies.pop(tool, None)

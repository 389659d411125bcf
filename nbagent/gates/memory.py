"""Answers that people said to remember, for as long as the agent object lives."""

from __future__ import annotations

import threading
from typing import NamedTuple

from nbagent.interfaces.gate import ToolCall

__all__ = ["AgentMemory", "Remembered"]


class Remembered(NamedTuple):
    """One remembered answer; bound to the tool's definition, not to its arguments."""

    id: str
    """The answer's place, `session:seq`."""
    name: str
    ref: str
    decision: str
    """allow or deny."""


class AgentMemory:
    """Remembered answers by fingerprint of the tool; safe across threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, Remembered] = {}

    def recall(self, call: ToolCall) -> tuple[bool, str] | None:
        """(allowed?, which answer) for this tool."""
        if not self._answers:
            return None
        found = self._answers.get(call.tool.fingerprint)
        return None if found is None else (found.decision == "allow", found.id)

    def remember(self, call: ToolCall, *, allowed: bool, session: str, seq: int) -> None:
        """Keep an "always" answer."""
        word = "allow" if allowed else "deny"
        with self._lock:
            self._answers[call.tool.fingerprint] = Remembered(
                f"{session}:{seq}", call.name, call.ref, word
            )

    def all(self) -> list[Remembered]:
        """What is remembered."""
        with self._lock:
            return list(self._answers.values())

    def forget(self, id_: str | None = None) -> int:
        """Forget one answer by its id, or all; gives how many."""
        with self._lock:
            gone = [key for key, found in self._answers.items() if id_ in (None, found.id)]
            for key in gone:
                del self._answers[key]
        return len(gone)

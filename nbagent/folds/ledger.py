"""What was spent: model calls, tokens and tool calls, of the run in progress and of the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["LOGICAL", "STEPS", "LedgerState", "Spent", "start"]

LOGICAL = (None, "bounce", "must_call")
"""Causes of a request that count as one model call; what recovery repeats does not."""


class Spent:
    """Counts that only grow."""

    __slots__ = ("model_calls", "tokens", "tool_calls")

    def __init__(self) -> None:
        self.model_calls = self.tokens = self.tool_calls = 0


class LedgerState:
    """Spent by the run in progress and by the session as a whole."""

    __slots__ = ("run", "session")

    def __init__(self) -> None:
        self.run, self.session = Spent(), Spent()


def start() -> LedgerState:
    """Nothing was spent."""
    return LedgerState()


def _turn_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    if data["run"] != folds.turn.run:  # this fold comes before the turn's own
        folds.ledger.run = Spent()


def _sent(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    if data.get("cause") in LOGICAL:
        folds.ledger.run.model_calls += 1
        folds.ledger.session.model_calls += 1


def _attempt_end(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    usage = data.get("usage")
    if usage:
        tokens = sum(usage.values())
        folds.ledger.run.tokens += tokens
        folds.ledger.session.tokens += tokens


def _decision(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    if data["decision"] == "allow":
        folds.ledger.run.tool_calls += 1
        folds.ledger.session.tool_calls += 1


STEPS = {
    "turn/start": _turn_start,
    "request/sent": _sent,
    "attempt/end": _attempt_end,
    "tool/decision": _decision,
}

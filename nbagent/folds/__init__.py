"""Folds: what the log says, kept up to date event by event. Each has `start` and, per event, a step.

They see each event once, in a fixed order, and never look back into the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent.folds import approvals, calls, denials, header, inbox, ledger, surface, turn

__all__ = ["CHECKS", "STEPS", "Folds"]

Step = Callable[["Folds", int, dict[str, Any]], None]
Check = Callable[["Folds", dict[str, Any]], str | None]

# calls before surface: a result's message needs the call's id. surface before inbox: it takes the
# claimed item. ledger before turn: it compares the run's number with the one before.
_ORDER = (ledger, turn, calls, surface, inbox, header, approvals, denials)


def _collect() -> tuple[dict[str, tuple[Step, ...]], dict[str, Check]]:
    steps: dict[str, list[Step]] = {}
    checks: dict[str, Check] = {}
    for fold in _ORDER:
        for type_, step in fold.STEPS.items():
            steps.setdefault(type_, []).append(step)
        checks.update(getattr(fold, "CHECKS", {}))
    return {type_: tuple(found) for type_, found in steps.items()}, checks


STEPS, CHECKS = _collect()
"""By event type: what takes it in, and what says why it can't come now."""


class Folds:
    """The state of a session after the events seen so far."""

    __slots__ = (
        "approvals",
        "calls",
        "denials",
        "header",
        "inbox",
        "ledger",
        "surface",
        "turn",
    )

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self.turn: turn.TurnState = turn.start()
        self.surface: surface.SurfaceState = surface.start()
        self.header: header.HeaderState = header.start()
        self.inbox: inbox.InboxState = inbox.start()
        self.calls: calls.CallsState = calls.start()
        self.approvals: approvals.ApprovalsState = approvals.start()
        self.denials: denials.DenialsState = denials.start()
        self.ledger: ledger.LedgerState = ledger.start()

    def refusal(self, type_: str, data: dict[str, Any]) -> str | None:
        """Why the event can't come now, None if it can."""
        check = CHECKS.get(type_)
        return check(self, data) if check is not None else None

    def step(self, seq: int, type_: str, data: dict[str, Any]) -> None:
        """Take in one event."""
        for step in STEPS.get(type_, ()):
            step(self, seq, data)

"""Questions to a person: which are open, and what was answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["CHECKS", "STEPS", "ApprovalsState", "start"]


class ApprovalsState:
    """Open questions by id, and the answers of this step by position."""

    __slots__ = ("answers", "asked", "open")

    def __init__(self) -> None:
        self.open: dict[str, dict[str, Any]] = {}
        self.answers: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        """Position → (question, answer), in the order of the answers."""
        self.asked: dict[int, int] = {}
        """Position → how many questions were asked for it."""


def start() -> ApprovalsState:
    """Nothing was asked."""
    return ApprovalsState()


def _step_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    state = folds.approvals
    if state.asked:
        state.open, state.answers, state.asked = {}, {}, {}


def _asked(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    state = folds.approvals
    state.open[data["id"]] = data
    state.asked[data["position"]] = state.asked.get(data["position"], 0) + 1


def _answered(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    state = folds.approvals
    question = state.open.pop(data["id"])
    state.answers.setdefault(question["position"], []).append((question, data))


STEPS = {
    "step/start": _step_start,
    "approval/asked": _asked,
    "approval/answered": _answered,
}


def _may_ask(folds: Folds, data: dict[str, Any]) -> str | None:
    calls = folds.calls.calls
    position: int = data["position"]
    if not 0 <= position < len(calls) or not calls[position].called:
        return f"no call at position {position} waits"
    if calls[position].decision or calls[position].result is not None:
        return "the call is decided already"
    return "that question is open already" if data["id"] in folds.approvals.open else None


def _may_answer(folds: Folds, data: dict[str, Any]) -> str | None:
    return None if data["id"] in folds.approvals.open else f"question {data['id']} is not open"


CHECKS = {"approval/asked": _may_ask, "approval/answered": _may_answer}

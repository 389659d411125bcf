"""The tool calls of the open step, and what this turn's calls came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["CHECKS", "STEPS", "CallState", "CallsState", "start"]


class CallState:
    """One call: what the model asked for, and how far it has come."""

    __slots__ = ("arguments", "called", "decision", "done", "id", "masked", "name", "result")

    def __init__(self, name: str, arguments: str, id_: str) -> None:
        self.name, self.arguments, self.id = name, arguments, id_
        self.called = False
        self.masked = False
        """Whether secrets were masked in its arguments: what is logged can't be run."""
        self.decision: str | None = None
        self.done: dict[str, Any] | None = None
        """Data of `tool/done`."""
        self.result: str | None = None
        """Status of the result."""


class CallsState:
    """Calls of the open step by position, and (name, status) of all the turn's results."""

    __slots__ = ("calls", "finished", "unresolved")

    def __init__(self) -> None:
        self.calls: list[CallState] = []
        self.unresolved = 0
        self.finished: list[tuple[str, str]] = []

    def unanswered(self) -> list[int]:
        """Positions without a result."""
        if not self.unresolved:
            return []
        return [n for n, call in enumerate(self.calls) if call.result is None]


def start() -> CallsState:
    """No calls."""
    return CallsState()


def _turn_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.calls.calls, folds.calls.finished, folds.calls.unresolved = [], [], 0


def _step_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.calls.calls = []


def _message(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    parts = data["message"].get("parts", ())
    calls = [CallState(p["call"], p["arguments"], p["id"]) for p in parts if "call" in p]
    folds.calls.calls, folds.calls.unresolved = calls, len(calls)


def _at(folds: Folds, data: dict[str, Any]) -> CallState:
    position: int = data["position"]
    return folds.calls.calls[position]


def _call(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    call = _at(folds, data)
    call.called = True
    call.masked = data.get("masked", False)
    given = data.get("arguments")
    if given is not None:
        call.arguments = orjson.dumps(given).decode()


def _decision(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    _at(folds, data).decision = data["decision"]


def _done(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    _at(folds, data).done = data


def _result(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    state = folds.calls
    call = _at(folds, data)
    status: str = data.get("status", "ok")
    call.result = status
    state.unresolved -= 1
    state.finished.append((call.name, status))


STEPS = {
    "turn/start": _turn_start,
    "step/start": _step_start,
    "assistant/message": _message,
    "tool/call": _call,
    "tool/decision": _decision,
    "tool/done": _done,
    "tool/result": _result,
}


def _find(folds: Folds, data: dict[str, Any]) -> CallState | str:
    position: int = data["position"]
    calls = folds.calls.calls
    if not folds.turn.step_open or not 0 <= position < len(calls):
        return f"the answer has no call at position {position}"
    call = calls[position]
    if call.result is not None:
        return f"call {position} has its result already"
    return call


def _may_call(folds: Folds, data: dict[str, Any]) -> str | None:
    call = _find(folds, data)
    if isinstance(call, str):
        return call
    if call.called:
        return "it was called already"
    position: int = data["position"]
    before = position == 0 or folds.calls.calls[position - 1].called
    return None if before else "calls are looked at in order"


def _may_decide(folds: Folds, data: dict[str, Any]) -> str | None:
    call = _find(folds, data)
    if isinstance(call, str):
        return call
    if not call.called:
        return "it was not called"
    return "it was decided already" if call.decision else None


def _may_be_done(folds: Folds, data: dict[str, Any]) -> str | None:
    call = _find(folds, data)
    if isinstance(call, str):
        return call
    return None if call.decision == "allow" and call.done is None else "it doesn't run"


def _may_result(folds: Folds, data: dict[str, Any]) -> str | None:
    call = _find(folds, data)
    if isinstance(call, str):
        return call
    if not call.called:
        return "it was not called"
    position: int = data["position"]
    if position and folds.calls.calls[position - 1].result is None:
        return "results come in the calls' order"
    return None if "raw" in data or call.done is not None else "it has no text"


CHECKS = {
    "tool/call": _may_call,
    "tool/decision": _may_decide,
    "tool/done": _may_be_done,
    "tool/result": _may_result,
}

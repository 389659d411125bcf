"""Where the log stands: turn, step and attempt, open or closed; the order in which events may come."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["CHECKS", "STEPS", "TurnState", "start"]


class TurnState:
    """Numbers of the last turn, step and attempt, and which of them is open."""

    __slots__ = (
        "_attempts",
        "_seqs",
        "_steps",
        "_turns",
        "answered",
        "attempt",
        "attempt_open",
        "ended",
        "run",
        "step",
        "step_open",
        "turn",
        "turn_open",
    )

    def __init__(self) -> None:
        self.run = self.turn = self.step = self.attempt = 0
        self.turn_open = self.step_open = self.attempt_open = False
        self.answered = False
        """Whether the open step has its answer."""
        self.ended: dict[str, Any] | None = None
        """Data of the last `turn/end`."""
        # One row per turn, step and attempt: where an event stands is found by bisecting its seq.
        self._seqs, self._turns = array("q"), array("i")
        self._steps, self._attempts = array("i"), array("i")

    def mark(self, seq: int, turn: int, step: int, attempt: int) -> None:
        """Events from `seq` on stand here."""
        self._seqs.append(seq)
        self._turns.append(turn)
        self._steps.append(step)
        self._attempts.append(attempt)

    def where(self, seq: int) -> tuple[int, int, int]:
        """(turn, step, attempt) of an event; 0 where it stands outside."""
        row = bisect_right(self._seqs, seq) - 1
        if row < 0:
            return (0, 0, 0)
        return (self._turns[row], self._steps[row], self._attempts[row])


def start() -> TurnState:
    """Nothing has happened."""
    return TurnState()


def _turn_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    s = folds.turn
    s.turn, s.step, s.attempt = data["turn"], 0, 0
    s.run = data["run"]
    s.turn_open = True
    s.mark(seq, s.turn, 0, 0)


def _turn_end(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    s = folds.turn
    s.turn_open = False
    s.ended = data
    s.mark(seq + 1, 0, 0, 0)


def _step_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    s = folds.turn
    s.step, s.attempt = data["step"], 0
    s.step_open, s.answered = True, False
    s.mark(seq, s.turn, s.step, 0)


def _step_end(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    s = folds.turn
    s.step_open = False
    s.mark(seq + 1, s.turn, 0, 0)


def _sent(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    s = folds.turn
    s.attempt = data["attempt"]
    s.attempt_open = True
    s.mark(seq, s.turn, s.step, s.attempt)


def _attempt_end(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.turn.attempt_open = False


def _message(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.turn.answered = True


STEPS = {
    "turn/start": _turn_start,
    "turn/end": _turn_end,
    "step/start": _step_start,
    "step/end": _step_end,
    "request/sent": _sent,
    "attempt/end": _attempt_end,
    "assistant/message": _message,
}


def _may_turn_start(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if s.turn_open:
        return f"turn {s.turn} is still open"
    return None if data["turn"] == s.turn + 1 else f"turn {s.turn + 1} is due"


def _may_turn_end(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.turn_open or data["turn"] != s.turn:
        return "that turn is not open"
    return f"step {s.step} is still open" if s.step_open else None


def _may_step_start(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.turn_open or data["turn"] != s.turn:
        return "that turn is not open"
    if s.step_open:
        return f"step {s.step} is still open"
    return None if data["step"] == s.step + 1 else f"step {s.step + 1} is due"


def _may_step_end(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.step_open or data["turn"] != s.turn or data["step"] != s.step:
        return "that step is not open"
    if s.attempt_open:
        return f"attempt {s.attempt} is still open"
    return "a call has no result" if folds.calls.unanswered() else None


def _in_step(folds: Folds, data: dict[str, Any]) -> str | None:
    return None if folds.turn.step_open else "no step is open"


def _may_user_message(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.step_open or s.attempt:
        return "messages enter at the start of a step"
    if data.get("message") is None and data["id"] not in folds.inbox.claimed:
        return f"item {data['id']} was not claimed from the inbox"
    return None


def _may_send(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.step_open or s.answered:
        return "no step waits for an answer"
    if s.attempt_open:
        return f"attempt {s.attempt} is still open"
    if data["header"] != folds.header.seq:
        return f"the header in force is that of {folds.header.seq}"
    surface = folds.surface
    if data["surface_len"] != len(surface.nodes) or data["surface_hash"] != surface.digest:
        return "the history differs from the one that was sent"
    return None if data["attempt"] == s.attempt + 1 else f"attempt {s.attempt + 1} is due"


def _may_chunk(folds: Folds, data: dict[str, Any]) -> str | None:
    if not folds.turn.attempt_open:
        return "no attempt is open"
    # Runs of chunks are stored in another form, which holds only these.
    whole = type(data.get("text")) is str and type(data.get("kind", "")) is str
    return None if whole and type(data.get("index", 0)) is int else "it is no piece of a text"


def _may_end_attempt(folds: Folds, data: dict[str, Any]) -> str | None:
    if not folds.turn.attempt_open:
        return "no attempt is open"
    usage = data.get("usage")
    if usage and any(type(count) is not int for count in usage.values()):
        return "its usage is not in whole numbers"
    return None


def _after_attempt(folds: Folds, data: dict[str, Any]) -> str | None:
    s = folds.turn
    if not s.step_open or not s.attempt or s.attempt_open:
        return "no attempt has just ended"
    return "the step has its answer already" if s.answered else None


CHECKS = {
    "turn/start": _may_turn_start,
    "turn/end": _may_turn_end,
    "step/start": _may_step_start,
    "step/end": _may_step_end,
    "user/message": _may_user_message,
    "request/header": _in_step,
    "request/context": _in_step,
    "request/sent": _may_send,
    "assistant/chunk": _may_chunk,
    "attempt/end": _may_end_attempt,
    "assistant/draft": _after_attempt,
    "review/verdict": _after_attempt,
    "attempt/discarded": _after_attempt,
    "assistant/message": _after_attempt,
}

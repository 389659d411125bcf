"""A run: the prompt enters the inbox, turns run until nothing is waiting."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import orjson

from nbagent.errors import ModelError
from nbagent.events import note, session
from nbagent.events import turn as events
from nbagent.loop.attempt import facts_of
from nbagent.loop.cancel import Stopped
from nbagent.loop.schedule import close_calls
from nbagent.loop.state import RunState
from nbagent.loop.step import Outcome, step
from nbagent.messages import Message

__all__ = ["Ending", "drive"]

CONTINUE = (
    "Your answer was cut off by the output limit. Continue exactly where it ended; repeat nothing."
)
CUT_REASONING = (
    "Your answer was cut off by the output limit before its first word; reasoning counts as well. "
    "Reason less and give the answer."
)
CUT_CALL = (
    "Your answer was cut off by the output limit inside a tool call, so nothing was run. "
    "Make the call again with less text, or split it into several calls."
)

ANSWERED = ("end_turn", "refused")
"""Stop reasons of a turn that ended with an answer."""


class Ending(NamedTuple):
    """How a run ended."""

    stop: str
    text: str = ""
    truncated: bool = False
    error: BaseException | None = None
    limit: dict[str, Any] | None = None
    """The limit that ended it."""


async def drive(state: RunState, prompt: str) -> Ending:
    """Run until idle. The caller holds the session's run lock and the log's write lock.

    An error is not raised but returned, so that the caller can give it the partial result.
    """
    state.watchdog.start()
    limit = state.plan.budget.max_seconds
    if limit is not None:
        state.watchdog.set(
            "max_seconds", limit, lambda: state.interrupt("budget", f"{limit:g} s are over")
        )
    try:
        begin(state)
        state.send("next_turn", prompt)
        text = ""
        while True:
            ending = await _turn(state)
            text = ending.text if ending.stop == "refused" else ending.text or text
            waiting = state.folds.inbox.next_turn or state.folds.inbox.next_step
            if ending.error is not None or ending.stop not in ANSWERED or not waiting:
                return ending._replace(text=text)
    except BaseException as error:  # noqa: BLE001 - given to the caller, who raises it
        return Ending("error", error=error)
    finally:
        state.end()


def begin(state: RunState) -> None:
    """Write what is due before a run: repair, the end of an earlier life, notices left over."""
    log = state.log
    if log.seeded:
        log.seeded = False
        if log.event(len(log) - 1).type != "session/end-seed":
            log.append("session/end-seed", {})
    if log.torn is not None:
        torn, log.torn = log.torn, None
        text = f"an unfinished line of {torn.length} bytes at byte {torn.position} was cut off"
        log.append("notice", note.notice("torn-tail", f"{text}: {torn.text}"))
    repair(state)
    left, log.left = log.left, []
    for data in left:
        log.append("notice", data)
    late, log.late = log.late, []
    for target, text, source in late:
        state.send(target, text, source)


def repair(state: RunState) -> None:
    """Close a turn that a crash has left open, so that the history is one that providers accept."""
    log, folds = state.log, state.folds
    if not folds.turn.turn_open:
        return
    for id_ in list(folds.approvals.open):
        data = {"id": id_, "decision": "deny", "by": "expired", "wait_ms": 0.0}
        log.append("approval/answered", data)
    if folds.turn.step_open:
        if folds.turn.attempt_open:
            log.append("attempt/end", {"finish": "aborted", "duration_ms": 0.0})
            log.append("attempt/discarded", {"why": "aborted"})
        close_calls(state)
        log.append("step/end", {"turn": folds.turn.turn, "step": folds.turn.step})
    log.append("turn/end", events.turn_end(folds.turn.turn, "interrupted", "interrupted"))


async def _turn(state: RunState) -> Ending:
    log, number = state.log, state.folds.turn.turn + 1
    first = log.append("turn/start", {"turn": number, "run": state.number})
    ending = Ending("error")
    cause: str | None = None
    try:
        ending = await _steps(state)
    except Stopped:
        cause = state.token.by or "user"
        ending = Ending("interrupted")
        if cause == "budget":
            ending = Ending("budget", limit=_out_of_time(state))
    except asyncio.CancelledError as error:
        cause, ending = "outer", Ending("interrupted", error=error)
    except BaseException as error:  # noqa: BLE001 - logged, then given to the caller
        ending = Ending("model_error" if isinstance(error, ModelError) else "error", error=error)
    if ending.stop not in (*ANSWERED, "max_steps") and not ending.text:
        ending = ending._replace(text=_last_text(state, first))
    try:
        log.append("turn/end", _turn_end(number, ending, cause))
        await log.barrier()
    except BaseException as error:
        if ending.error is None:
            raise
        del error  # the first error is the one that counts
    return ending


def _out_of_time(state: RunState) -> dict[str, Any]:
    used = round(time.monotonic() - state.started, 3)
    return events.reached("max_seconds", state.plan.budget.max_seconds or 0, used, "run")


def _last_text(state: RunState, first: int) -> str:
    """The last answer of a turn that ended early, read back from the history."""
    surface = state.folds.surface
    for seq, node in zip(reversed(surface.seqs), reversed(surface.nodes), strict=True):
        if seq < first:
            break
        message = Message.from_node(orjson.loads(node))
        if message.role == "assistant" and message.text:
            return message.text
    return ""


def _turn_end(number: int, ending: Ending, cause: str | None) -> dict[str, Any]:
    stop, error = ending.stop, ending.error
    if stop in ANSWERED:
        reason = "max_tokens" if ending.truncated else "completed"
        return events.turn_end(number, reason, stop, truncated=ending.truncated)
    if error is not None and not isinstance(error, asyncio.CancelledError):
        facts = facts_of(error)
        facts.setdefault("code", "UNKNOWN")
        shown = "model_error" if stop == "model_error" else None
        return events.turn_end(number, "error", shown, error=facts)
    return events.turn_end(number, "aborted", stop, cause=cause or stop, limit=ending.limit)


class _Course:
    """Where a turn is: whether a request is due, and the worst that has happened so far."""

    __slots__ = ("carried", "continuations", "owes", "stop", "text", "truncated")

    def __init__(self) -> None:
        self.owes = False
        self.stop = "end_turn"
        """The stop reason if the turn ends here."""
        self.truncated = False
        self.continuations = 0
        self.carried = ""
        """Text of the pieces before a continuation."""
        self.text = ""
        """The last answer that is not empty, its pieces joined."""

    def take_in(self, outcome: Outcome, most: int) -> str | None:
        """Fold in how a step ended; gives what a continuation must say, None if none is due."""
        self.owes = outcome.owes
        whole = outcome.text if outcome.forced else self.carried + outcome.text
        refused = outcome.finish == "refused"
        self.stop = "refused" if refused else "end_turn"
        self.text = whole if refused else whole or self.text
        if outcome.finish != "max_tokens":
            self.carried, self.continuations = "", 0
            return None
        self.carried = whole
        if self.continuations >= most:
            self.truncated = True
            return None
        self.continuations += 1
        return CUT_CALL if outcome.cut_call else CONTINUE if whole else CUT_REASONING


async def _steps(state: RunState) -> Ending:
    plan, course = state.plan, _Course()
    entering = _claim(state, first=True)
    state.arrived()
    entering += _claim(state, first=False)
    state.token.check()
    if not entering:
        return Ending("end_turn")
    while True:
        outcome = await step(state, entering, course.carried)
        if outcome.stop is not None:
            return Ending(outcome.stop, course.text, limit=outcome.limit)
        again = course.take_in(outcome, plan.max_continuations)
        state.token.check()
        if not (again or course.owes or state.folds.inbox.next_step):
            return Ending(course.stop, course.text, course.truncated)
        if state.folds.turn.step >= plan.max_steps:
            cut = again is not None or course.truncated
            reached = events.reached("max_steps", plan.max_steps, state.folds.turn.step, "turn")
            return Ending("max_steps", course.text, cut, limit=reached)
        entering = _claim(state, first=False)
        if again:
            entering.insert(0, _harness(state, again))


def _claim(state: RunState, *, first: bool) -> list[dict[str, Any]]:
    """Take what waits for the next step, and one prompt at the start of a turn."""
    inbox, log = state.folds.inbox, state.log
    state.token.check()
    items = list(inbox.next_step)
    if items:
        log.append("agent/inbox/spliced", session.spliced("next_step", 0, removed=len(items)))
    if first and inbox.next_turn:
        items.append(inbox.next_turn[0])
        log.append("agent/inbox/spliced", session.spliced("next_turn", 0, removed=1))
    out: list[dict[str, Any]] = []
    for item in items:
        data = {"id": item["id"]}
        if item.get("source"):
            data["source"] = item["source"]
        out.append(data)
    return out


def _harness(state: RunState, text: str) -> dict[str, Any]:
    turn = state.folds.turn
    message = {"role": "user", "text": text}
    return {"id": f"h{turn.turn}.{turn.step + 1}", "message": message, "source": "harness"}

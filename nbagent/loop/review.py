"""The bounded loop around one model call: reviewers judge, the answer is committed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import defaultdict
from typing import Any, NamedTuple

from nbagent.events import model as events
from nbagent.events.turn import reached
from nbagent.interfaces.review import Attempt, Verdict
from nbagent.loop.attempt import Generated
from nbagent.loop.cancel import Deadline, Scope, Stopped
from nbagent.loop.recover import MOST_ATTEMPTS, generate
from nbagent.loop.request import Bounce, missing_calls, spent_so_far
from nbagent.loop.state import RunState
from nbagent.messages import Call, Message, Text, scrub

__all__ = ["Answer", "answer"]

MOST_RETRIES = 4
"""How often reviewers may send one model call back, all of them together."""

REVIEWER_SECONDS = 30.0

_logger = logging.getLogger("nbagent")
_ACCEPTED = Verdict.accept()


class Answer(NamedTuple):
    """How a step's model call ended: with a committed message, or with a stop reason."""

    message: Message
    finish: str
    stop: str | None = None
    """budget or context_limit: there is no message."""
    limit: dict[str, Any] | None = None
    """Which limit made it stop."""
    cut_call: bool = False
    """Whether the output limit cut a call."""
    forced: bool = False
    """Whether a reviewer wrote it: it then replaces pieces before it, too."""


async def answer(state: RunState, carried: str) -> Answer:
    """Ask until an answer passes, and commit it. `carried` is the text before a continuation.

    Raises
    ------
    ModelError
        When recovery has given up and no reviewer has an answer instead.
    Stopped
        If the run was asked to stop.
    """
    tallies: defaultdict[str, int] = defaultdict(int)
    demanded: set[str] = set()
    cause: str | None = None
    bounce: Bounce | None = None
    n = 0
    while True:
        spent_up = over_budget(state)
        if spent_up:
            return Answer(Message("assistant"), "", "budget", spent_up)
        got = await generate(state, cause, bounce)
        n += 1
        if got.limit is not None:
            stop = "context_limit" if got.limit["name"] == "context_limit" else "budget"
            return Answer(Message("assistant"), "error", stop, got.limit)
        if got.finish in ("max_tokens", "refused"):
            # Kept without calls, which may be cut too, and not judged: there is nothing to mend.
            message = _without_calls(got.message)
            _commit(state, message)
            return Answer(message, got.finish, cut_call=got.cut_call)
        missing = _must_call(state, got, demanded)
        if missing is not None:
            demanded.add(missing)
            cause = "must_call"
            text = f"Call the tool `{missing}` before you give the final answer."
            verdict = Verdict.retry("must_call", text)
            bounce = _send_back(state, got, "must_call", verdict, defaultdict(int))._replace(
                force=missing
            )
            continue
        try:
            name, verdict = await _judge(state, got, carried, n, tallies)
        except BaseException:
            if got.failure is None:  # nobody rejected it: the person has seen it, so it stays
                _commit(state, got.message, interrupted=True)
            raise
        spent = sum(tallies.values()) >= MOST_RETRIES or state.folds.turn.attempt >= MOST_ATTEMPTS
        if verdict.action == "retry" and spent:
            gave_way = events.verdict(
                name, "noted", verdict.reason, detail="gave way: no retries are left"
            )
            state.log.append("review/verdict", gave_way)
            verdict = Verdict.accept()
        if verdict.action == "accept":
            if got.failure is not None:
                raise got.failure
            _commit(state, got.message)
            return Answer(got.message, got.finish)
        if verdict.action == "force":
            return _force(state, got, name, verdict, tallies)
        cause = "bounce"
        bounce = _send_back(state, got, name, verdict, tallies)


def over_budget(state: RunState) -> dict[str, Any] | None:
    """Which limit one more model call would be over."""
    budget, spent = state.plan.budget, spent_so_far(state)
    for name, limit, used in (
        ("max_model_calls", budget.max_model_calls, spent.model_calls),
        ("max_tokens", budget.max_tokens, spent.tokens),
    ):
        if limit is not None and used >= limit:
            return reached(name, limit, used, budget.per)
    return None


def _must_call(state: RunState, got: Generated, demanded: set[str]) -> str | None:
    """A tool that must be called before the answer may end the turn; each is asked for once."""
    if not state.plan.must_call or got.failure is not None or got.message.calls:
        return None
    if state.folds.turn.attempt >= MOST_ATTEMPTS:
        return None
    return next((name for name in missing_calls(state) if name not in demanded), None)


async def _judge(
    state: RunState, got: Generated, carried: str, n: int, tallies: defaultdict[str, int]
) -> tuple[str, Verdict]:
    """The first verdict that does not accept."""
    if not state.plan.reviewers:
        return "", _ACCEPTED
    turn = state.folds.turn
    message = got.message
    if carried:
        message = Message("assistant", [Text(carried + message.text), *message.calls])
    view = Attempt(
        message=message,
        messages=got.request.messages,
        n=n,
        turn=turn.turn,
        step=turn.step,
        error=got.failure,
        tallies=dict(tallies),
    )
    for name, reviewer in state.plan.reviewers:
        verdict = await _ask(state, name, reviewer, view)
        if verdict.action != "accept":
            return name, verdict
    return "", Verdict.accept()


async def _ask(state: RunState, name: str, reviewer: Any, view: Attempt) -> Verdict:
    """One reviewer's verdict; what it raises and its hanging are noted and count as accept."""
    try:
        verdict = reviewer(view)
        if inspect.isawaitable(verdict):
            with Scope(state.token) as scope, Deadline(state.watchdog, REVIEWER_SECONDS):
                state.token.check()
                verdict = await verdict
            if scope.fired:
                raise Stopped  # noqa: TRY301
        if verdict is None:
            return Verdict.accept()
        if isinstance(verdict, Verdict) and (verdict.action == "accept" or verdict.reason):
            return verdict
        what = f"it returned {verdict!r}, not a Verdict with a reason"
    except Stopped:
        raise
    except asyncio.CancelledError as error:
        if state.token.task is not None and state.token.task.cancelling():
            raise
        what = f"what it awaited was cancelled ({error!r})"
    except Exception as error:  # noqa: BLE001 - a reviewer that fails must not stop the run
        what = f"{type(error).__name__}: {error}"
    said = state.log.masked(f"reviewer `{name}` is left out of this answer: {what}")
    _logger.warning("%s", said)
    state.log.append("review/verdict", events.verdict(name, "noted", "failed", detail=what))
    return Verdict.accept()


def _send_back(
    state: RunState, got: Generated, name: str, verdict: Verdict, tallies: defaultdict[str, int]
) -> Bounce:
    tallies[verdict.reason] += 1
    draft = state.log.append("assistant/draft", {"message": got.message.to_node()}, masked=True)
    _log_verdict(state, name, verdict, tallies)
    state.log.append("attempt/discarded", {"why": "rejected"})
    return Bounce(draft, got.message, verdict.text, verdict.reason)


def _force(
    state: RunState, got: Generated, name: str, verdict: Verdict, tallies: defaultdict[str, int]
) -> Answer:
    tallies[verdict.reason] += 1
    text = state.log.masked(scrub(verdict.text))
    message = Message("assistant", text if text.strip() else "")
    state.log.append("assistant/draft", {"message": got.message.to_node()}, masked=True)
    _log_verdict(state, name, verdict, tallies)
    state.log.append("attempt/discarded", {"why": "forced"})
    data = {"message": message.to_node(), "source": "reviewer"}
    state.log.append("assistant/message", data, masked=True)
    return Answer(message, "stop", forced=True)


def _log_verdict(
    state: RunState, name: str, verdict: Verdict, tallies: defaultdict[str, int]
) -> None:
    data = events.verdict(
        name,
        verdict.action,
        verdict.reason,
        text=verdict.text,
        detail=verdict.detail,
        tally=tallies[verdict.reason],
    )
    state.log.append("review/verdict", data)


def _commit(state: RunState, message: Message, *, interrupted: bool = False) -> None:
    data: dict[str, Any] = {"message": message.to_node()}
    if interrupted:
        data["interrupted"] = True
    state.log.append("assistant/message", data, masked=True)


def _without_calls(message: Message) -> Message:
    """What stays of the answer; nothing if no words do, as reasoning alone can't be sent back."""
    if not message.text.strip():
        return Message("assistant")
    return Message("assistant", [part for part in message.parts if not isinstance(part, Call)])

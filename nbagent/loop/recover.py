"""What happens after a failed attempt: wait and repeat, or give up. There is no other retry."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nbagent.errors import ContextOverflowError, ModelError
from nbagent.events.turn import limit_words, outgrown, reached
from nbagent.interfaces.plan import Recovery
from nbagent.loop.attempt import EmptyAnswerError, Generated, attempt
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.request import Bounce, spent_so_far
from nbagent.loop.state import RunState

__all__ = ["MOST_ATTEMPTS", "generate", "wait_s"]

MOST_ATTEMPTS = 12
"""Of one step, reviewers' retries included."""

LONGEST_WAIT_S = 60.0
"""A provider that asks for a longer wait is not waited for at all."""


async def generate(state: RunState, cause: str | None, bounce: Bounce | None) -> Generated:
    """Attempts until one does not fail, or the first error when there is nothing left to try.

    A failed attempt is always discarded: its text stays in the log and never enters the history.
    Only an answer that is empty once more passes, as it is.

    Raises
    ------
    Stopped
        If the run was asked to stop, while waiting too.
    """
    errors: list[ModelError] = []
    started = time.monotonic()
    while True:
        got = await attempt(state, cause, bounce)
        if got.failure is None:
            return got
        errors.append(got.failure)
        spent_up = _unaffordable(state, got)
        again = state.folds.turn.attempt < MOST_ATTEMPTS and _again(state.plan.recovery, errors)
        if isinstance(got.failure, EmptyAnswerError) and not again:
            return got._replace(failure=None)
        state.log.append("attempt/discarded", {"why": "failed"})
        if isinstance(got.failure, ContextOverflowError):
            return got._replace(limit=outgrown(str(got.failure)))
        if not again:
            return got._replace(failure=_first(errors, time.monotonic() - started))
        if spent_up:
            return got._replace(limit=spent_up)
        await _pause(state, errors)
        cause = "retry"


def _again(recovery: Recovery, errors: list[ModelError]) -> bool:
    last = errors[-1]
    if isinstance(last, EmptyAnswerError) and any(
        isinstance(e, EmptyAnswerError) for e in errors[:-1]
    ):
        return False
    if last.retry_after_s is not None and last.retry_after_s > LONGEST_WAIT_S:
        return False
    return last.recoverable and len(errors) < recovery.attempts


def _unaffordable(state: RunState, got: Generated) -> dict[str, Any] | None:
    """The limit because of which the budget forbids a repeat, which costs at least as much as what has just failed."""
    limit, spent = state.plan.budget.max_tokens, spent_so_far(state).tokens
    if limit is None or spent + got.tokens <= limit:
        return None
    found = reached("max_tokens", limit, spent, state.plan.budget.per)
    why = f"an answer that failed ({got.failure}) is not asked for again, as that takes {got.tokens:,} more"
    return {**found, "text": f"{limit_words(found)}; {why}"}


def _first(errors: list[ModelError], seconds: float) -> ModelError:
    """The error to raise: the first, with the others and with what was tried."""
    first, *others = [each for each in errors if not isinstance(each, EmptyAnswerError)]
    first.others = tuple(others)
    tried = [f"{len(errors)} tries in {_in_words(seconds)}"] if len(errors) > 1 else []
    asked = errors[-1].retry_after_s
    if asked is not None:
        most = (
            f", and at most {LONGEST_WAIT_S:g} s are waited for" if asked > LONGEST_WAIT_S else ""
        )
        tried.append(f"the server asked for {_in_words(asked)}{most}")
    first.tried = ", ".join(tried)
    return first


def wait_s(recovery: Recovery, errors: list[ModelError]) -> float:
    """Seconds before the next attempt; what the provider asks for wins.

    Examples
    --------
    >>> from nbagent.errors import ServerError
    >>> [wait_s(Recovery(), [ServerError("x")] * n) for n in (1, 2, 6)]
    [0.5, 1.0, 8.0]
    """
    if isinstance(errors[-1], EmptyAnswerError):
        return 0.0  # nothing is overloaded
    asked = errors[-1].retry_after_s
    if asked is not None:
        return max(asked, 0.0)
    return min(recovery.base_s * 2 ** (len(errors) - 1), recovery.cap_s)


async def _pause(state: RunState, errors: list[ModelError]) -> None:
    last, seconds = errors[-1], wait_s(state.plan.recovery, errors)
    when = f"in {_in_words(seconds)}" if seconds else "at once"
    asked = "" if last.retry_after_s is None else ", as the server asked"
    tries = f"try {len(errors) + 1} of at most {state.plan.recovery.attempts}"
    again = f"asking again {when}{asked} ({tries})"
    if isinstance(last, EmptyAnswerError):
        again = "asking once more"
    state.tell("retry", f"{type(last).__name__}: {last}; {again}")
    with Scope(state.token) as scope:
        state.token.check()
        await asyncio.sleep(seconds)
    if scope.fired:
        raise Stopped


def _in_words(seconds: float) -> str:
    """Seconds for people: 0.5 s, 3,600 s; absurd ones short."""
    if seconds >= 1e9:
        return f"{seconds:.0e} s"
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"

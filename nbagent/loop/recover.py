"""What happens after a failed attempt: wait and repeat, or give up. There is no other retry."""

from __future__ import annotations

import asyncio

from nbagent.errors import ContextOverflowError, ModelError
from nbagent.interfaces.plan import Recovery
from nbagent.loop.attempt import Generated, attempt
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.request import Bounce
from nbagent.loop.state import RunState

__all__ = ["MOST_ATTEMPTS", "generate", "wait_s"]

MOST_ATTEMPTS = 12
"""Of one step, reviewers' retries included."""

LONGEST_WAIT_S = 60.0
"""A provider that asks for a longer wait is not waited for longer than this."""


async def generate(state: RunState, cause: str | None, bounce: Bounce | None) -> Generated:
    """Attempts until one does not fail, or the first error when there is nothing left to try.

    A failed attempt is always discarded: its text stays in the log and never enters the history.

    Raises
    ------
    Stopped
        If the run was asked to stop, while waiting too.
    """
    errors: list[ModelError] = []
    while True:
        got = await attempt(state, cause, bounce)
        if got.failure is None:
            return got
        state.log.append("attempt/discarded", {"why": "failed"})
        errors.append(got.failure)
        if state.folds.turn.attempt >= MOST_ATTEMPTS or not _again(state.plan.recovery, errors):
            first = errors[0]
            first.others = tuple(errors[1:])
            return got._replace(failure=first)
        await _pause(state, wait_s(state.plan.recovery, errors))
        cause = "retry"


def _again(recovery: Recovery, errors: list[ModelError]) -> bool:
    last = errors[-1]
    if isinstance(last, ContextOverflowError):
        return False
    return last.recoverable and len(errors) < recovery.attempts


def wait_s(recovery: Recovery, errors: list[ModelError]) -> float:
    """Seconds before the next attempt; what the provider asks for wins.

    Examples
    --------
    >>> from nbagent.errors import ServerError
    >>> [wait_s(Recovery(), [ServerError("x")] * n) for n in (1, 2, 6)]
    [0.5, 1.0, 8.0]
    """
    asked = errors[-1].retry_after_s
    if asked is not None:
        return min(max(asked, 0.0), LONGEST_WAIT_S)
    return min(recovery.base_s * 2 ** (len(errors) - 1), recovery.cap_s)


async def _pause(state: RunState, seconds: float) -> None:
    with Scope(state.token) as scope:
        state.token.check()
        await asyncio.sleep(seconds)
    if scope.fired:
        raise Stopped

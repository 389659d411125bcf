"""One step: messages enter, the model answers, its calls run; `step/end` is always written."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, NamedTuple

from nbagent.loop.review import answer
from nbagent.loop.schedule import close_calls, run_calls
from nbagent.loop.state import RunState

__all__ = ["Outcome", "step"]


class Outcome(NamedTuple):
    """How a step ended."""

    owes: bool = False
    """Whether calls returned whose results the model has not seen yet."""
    text: str = ""
    finish: str = ""
    stop: str | None = None
    """A stop reason that ends the turn here."""
    limit: dict[str, Any] | None = None
    """The limit behind it."""
    cut_call: bool = False
    forced: bool = False


async def step(state: RunState, entering: list[dict[str, Any]], carried: str) -> Outcome:
    """Take one step. `entering` are the data of its `user/message` events.

    Raises
    ------
    Stopped
        If the run was asked to stop.
    """
    log, turn = state.log, state.folds.turn
    log.append("step/start", {"turn": turn.turn, "step": turn.step + 1})
    try:
        outcome = await _answer_and_calls(state, entering, carried)
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one that counts
            _close(state)
        raise
    _close(state)
    await asyncio.sleep(0)  # Stop, steer and observers get their turn once a step
    return outcome


async def _answer_and_calls(
    state: RunState, entering: list[dict[str, Any]], carried: str
) -> Outcome:
    for data in entering:
        state.log.append("user/message", data)
    got = await answer(state, carried)
    if got.stop is not None:
        return Outcome(stop=got.stop, limit=got.limit)
    if got.finish in ("max_tokens", "refused"):
        return Outcome(text=got.message.text, finish=got.finish, cut_call=got.cut_call)
    owes = bool(state.folds.calls.calls)
    if owes:
        await run_calls(state)
    return Outcome(owes, got.message.text, got.finish, forced=got.forced)


def _close(state: RunState) -> None:
    close_calls(state)
    turn = state.folds.turn
    state.log.append("step/end", {"turn": turn.turn, "step": turn.step})

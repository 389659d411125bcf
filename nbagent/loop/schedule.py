"""The tool calls of one answer: gates, questions, barrier, bodies, results in model order.

A call that runs beside others (readonly, or the tool says so) is grouped with those after it; any
other is a barrier and runs alone, inside the run's own task. A call that waits for a person is
parked: the calls behind it are looked at, so that their questions show, and are decided anew when
their turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from nbagent.errors import SessionError
from nbagent.events import tool as events
from nbagent.interfaces.gate import ToolCall, ToolResult, blame
from nbagent.loop.body import run_body
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.decide import awaited, decide, look_at, not_a, parse, put_question, settle
from nbagent.loop.given_up import give_up
from nbagent.loop.slot import UNKNOWN_OUTCOME, Slot, abandoned, aborted, not_started, withheld
from nbagent.loop.state import RunState

__all__ = ["close_calls", "run_calls"]

GRACE_S = 0.3
"""How long cancelled bodies are waited for before they are given up."""


async def run_calls(state: RunState) -> None:
    """Run the calls of the step's answer; when it returns, each has its result in the log.

    Raises
    ------
    Stopped
        If the run was asked to stop; each call has a result then, too.
    """
    await _Batch(state).run()


def close_calls(state: RunState) -> None:
    """Give each call that has none a result; for endings that nobody planned."""
    calls = state.folds.calls
    for position in calls.unanswered():
        call = calls.calls[position]
        if not call.called:
            state.log.append("tool/call", {"position": position})
        if call.done is not None:
            data = events.result(position, raw=None, status=call.done.get("status", "ok"))
        else:
            raw = UNKNOWN_OUTCOME if call.decision == "allow" else not_started(masked=call.masked)
            data = events.result(position, raw=raw, status="aborted", error="Aborted")
        state.log.append("tool/result", data)


class _Batch:
    """All calls of one answer."""

    __slots__ = (
        "_answered",
        "_signalled",
        "_woken",
        "committed",
        "failure",
        "over",
        "slots",
        "state",
    )

    def __init__(self, state: RunState) -> None:
        self.state = state
        unmasked = state.unmasked
        self.slots = [
            Slot(n, unmasked.get(n, call.arguments))
            for n, call in enumerate(state.folds.calls.calls)
        ]
        self.committed = 0
        self.over = False
        """Whether all results stand: what ends now ends too late."""
        self.failure: BaseException | None = None
        """What a gate around a body raised inside its task."""
        self._woken: asyncio.Future[None] | None = None
        self._signalled = False
        self._answered = False
        """Whether an answer came since the other questions were looked at."""

    async def run(self) -> None:
        state, slots, outer = self.state, self.slots, self.state.wake
        state.wake = self._wake
        try:
            at = 0
            while at < len(slots):
                state.token.check()
                end = self._group(at)
                if end - at == 1:
                    await self._alone(slots[at])
                else:
                    await self._together(slots[at:end])
                at = end
            state.token.check()
        except BaseException:
            try:
                await self._drain()
            finally:  # also if it is cancelled once more
                state.close_questions("interrupt")
                self._give_up()
            raise
        finally:
            state.wake = outer

    def _group(self, at: int) -> int:
        """Where the group that begins at `at` ends."""
        for end in range(at, len(self.slots)):
            slot = self.slots[end]
            parse(self.state, slot)
            call = slot.call
            if call is not None and not call.tool.runs_beside(call.arguments):
                return max(end, at + 1)
        return len(self.slots)

    # -- waiting for a person

    async def _look_ahead(self, at: Slot | None = None) -> None:
        """Let the questions of later calls show; after an answer, see which need none any more.

        `at` is the call whose turn it is: it was decided just now.
        """
        state = self.state
        again, self._answered = self._answered, False
        for slot in self.slots:
            new = not slot.looked_at
            parse(state, slot)
            look_at(state, slot)  # of all, also of those that have a result: calls come in order
            if slot.settled or slot.result is not None or slot is at or slot.call is None:
                continue
            if not (new or again):
                continue
            call, decision = await decide(state, slot)
            if decision.action == "ask":
                put_question(state, call, decision)
            else:
                state.withdraw_question(slot.position, decision.source)

    def _wake(self, *, answered: bool = True) -> None:
        self._signalled = True
        self._answered = self._answered or answered
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait(self) -> None:
        """Until an answer comes, a body ends, or Stop; commits what has ended by then."""
        state = self.state
        if not self._signalled:
            self._write_out()  # it may be long
            self._woken = state.loop.create_future()
            try:
                with Scope(state.token):
                    if state.token.by is None:
                        await self._woken
            finally:
                self._woken = None
        self._signalled = False
        await self._commit()

    # -- running

    async def _alone(self, slot: Slot) -> None:
        """One call, in the run's own task."""
        state = self.state
        while not slot.settled:
            if await settle(state, slot):
                if self._answered:
                    await self._look_ahead()
                await self._run_inline(slot)
            elif not slot.settled:
                await self._look_ahead(slot)
                if state.questions:
                    await self._wait()
                state.token.check()
        await self._commit()

    async def _run_inline(self, slot: Slot) -> None:
        state = self.state
        if state.log.dirty:
            await state.log.barrier()
        state.token.check()
        scope = Scope(state.token, lambda: self._watch_stubborn(slot))
        began = time.perf_counter()
        slot.started = True
        try:
            with scope:
                slot.result = await run_body(state, slot.called(), slot, self._ended(slot))
        finally:
            slot.duration_ms = round((time.perf_counter() - began) * 1000, 1)
            if scope.fired:
                state.watchdog.clear(slot)
        if slot.result is None:
            slot.result = aborted(slot)

    def _watch_stubborn(self, slot: Slot) -> None:
        """Say which body it is that the run waits for after Stop."""
        state, name = self.state, slot.called().name
        text = f"`{name}` was stopped but goes on; the run waits for it"
        state.watchdog.set(slot, GRACE_S, lambda: state.notice("still-running", text))

    async def _together(self, group: Sequence[Slot]) -> None:
        """A pool: as many bodies at once as the cap that holds when the group starts."""
        state, cap, following = self.state, self.state.plan.max_parallel_tools, 0
        parked: list[Slot] = []
        while True:
            ready = [slot for slot in parked if await settle(state, slot)]
            parked = [slot for slot in parked if not slot.settled]
            running = sum(slot.running is not None for slot in group)
            while following < len(group) and running + len(ready) < cap:
                slot = group[following]
                following += 1
                if await settle(state, slot):
                    ready.append(slot)
                elif not slot.settled:
                    parked.append(slot)
            if parked or self._answered:
                await self._look_ahead()
            if ready:
                await self._start(ready)
            await self._commit()
            if self.failure is not None:
                raise self.failure
            state.token.check()
            running = sum(slot.running is not None for slot in group)
            if not running and not parked and following == len(group):
                return
            if running or (parked and state.questions):
                await self._wait()

    async def _start(self, ready: list[Slot]) -> None:
        """One barrier for all, then a task for each."""
        if self.state.log.dirty:
            await self.state.log.barrier()
        self.state.token.check()
        for slot in ready:
            slot.started = True
            task = asyncio.create_task(self._run_task(slot))
            if not task.done():  # it may be, where tasks begin at once
                slot.running = task

    async def _run_task(self, slot: Slot) -> None:
        began, state = time.perf_counter(), self.state
        try:
            result = await run_body(state, slot.called(), slot, self._ended(slot))
        except asyncio.CancelledError:
            result = aborted(slot)
        except BaseException as error:  # noqa: BLE001 - of a gate around it: ends the run, see above
            self.failure = self.failure or error
            result = aborted(slot)
        if slot.result is not None or self.over:  # it was given up: the result stands already
            text = f"`{slot.called().name}`, given up before, has ended: {result.text[:500]}"
            state.notice("late-result", text)
            return
        slot.duration_ms = round((time.perf_counter() - began) * 1000, 1)
        slot.result, slot.running = result, None
        if slot.position > self.committed or self._woken is None:
            self._keep(slot, result)
        self._wake(answered=False)
        # Behind the wake-up, so that what is committed then and what others have ended with in the
        # same turn of the loop goes out in the same write.
        state.loop.call_soon(self._write_out)

    def _ended(self, slot: Slot) -> Callable[[ToolResult], None]:
        """What is to happen when the slot's body ends: a gate around it may go on for long."""
        began = time.perf_counter()

        def keep(result: ToolResult) -> None:
            if slot.result is None and not self.over:
                slot.duration_ms = round((time.perf_counter() - began) * 1000, 1)
                self._keep(slot, result)
                self._write_out()

        def ended(result: ToolResult) -> None:
            # What a body has failed with is often tried again by a gate: its outcome is open.
            if result.status == "ok":
                self.state.loop.call_soon(keep, result)

        return ended

    def _keep(self, slot: Slot, result: ToolResult) -> None:
        """Log what a body came to, for a result that can't be committed yet."""
        folds = self.state.folds
        if not folds.turn.step_open or folds.calls.calls[slot.position].done is not None:
            return
        data: dict[str, Any] = {"position": slot.position, "raw": result.raw}
        if result.status != "ok":
            data["status"] = result.status
        data["duration_ms"] = slot.duration_ms
        self.state.log.append("tool/done", data)

    def _write_out(self) -> None:
        if not self.over and self.state.log.writable:
            with contextlib.suppress(SessionError):  # the next barrier meets it and reports it
                self.state.log.flush()

    async def _drain(self) -> None:
        """Cancel the bodies that run, wait a moment, give up what is left."""
        running = {slot.running for slot in self.slots if slot.running is not None}
        if not running:
            return
        for slot in self.slots[self.committed :]:
            if slot.started and slot.result is not None:
                self._keep(slot, slot.result)
        self._write_out()
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=GRACE_S)
        for slot in self.slots:
            if slot.running is not None:
                give_up(slot.called().tool, slot.running)
                slot.running, slot.result = None, abandoned(slot)

    # -- results

    async def _commit(self) -> None:
        """Write results as far as they are there without a gap, in model order."""
        while self.committed < len(self.slots):
            slot = self.slots[self.committed]
            result = slot.result
            if result is None or not slot.looked_at:
                return
            if slot.call is not None:
                for after in self.state.plan.chain(slot.call.tool).after:
                    result = await self._looked_at(slot, slot.call, result, after)
            self._write(slot, result)

    async def _looked_at(
        self, slot: Slot, call: ToolCall, result: ToolResult, after: Callable[..., Any]
    ) -> ToolResult:
        """What one gate behind the body makes of a result."""
        try:
            said: Any = after(call, result, self.state.gates)
            if type(said) is not ToolResult:
                if slot.started:
                    self._keep(slot, slot.result or result)
                said = await awaited(self.state, said)
        except Exception as error:
            if not isinstance(error, Stopped):
                blame(error, after, f"a call of `{call.name}`")
            raise
        if not isinstance(said, ToolResult):
            raise TypeError(not_a(after, said, "a ToolResult"))
        return said

    def _write(self, slot: Slot, result: ToolResult) -> None:
        shown, text = result.shown, result.text
        if slot.edited:
            shown = f"[The person changed the arguments before it ran.]\n{text}"
        done, raw = self.state.folds.calls.calls[slot.position].done, result.raw
        if done is not None and done["raw"] == self.state.log.masked(raw):
            raw = None
        data = events.result(
            slot.position,
            raw=raw,
            shown=shown,
            status=result.status,
            error=result.error_type,
            duration_ms=slot.duration_ms,
            meta=dict(result.meta),
        )
        self.state.log.append("tool/result", data)
        self.committed += 1

    def _give_up(self) -> None:
        """Results for all calls, without asking anybody any more."""
        self.over = True
        for slot in self.slots[self.committed :]:
            look_at(self.state, slot)
            result = slot.result or aborted(slot)
            self._write(slot, self._after_at_once(slot, result))

    def _after_at_once(self, slot: Slot, result: ToolResult) -> ToolResult:
        """What gates behind the body make of a result when none can be awaited any more.

        What a gate could not look at does not reach the model.
        """
        if slot.call is None or not slot.started:
            return result
        for after in self.state.plan.chain(slot.call.tool).after:
            said: Any = None
            with contextlib.suppress(Exception):  # the run ends already, with the first error
                if not inspect.iscoroutinefunction(after):
                    said = after(slot.call, result, self.state.gates)
            if not isinstance(said, ToolResult):
                if inspect.iscoroutine(said):
                    said.close()
                if slot.result is not None:  # for people it is not lost
                    self._keep(slot, slot.result)
                return withheld(result)
            result = said
        return result

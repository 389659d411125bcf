"""The tool calls of one answer: parse, gates, questions, barrier, bodies, results in model order.

A call that runs beside others (readonly, or the tool says so) is grouped with those after it; any
other is a barrier and runs alone, inside the run's own task. A call that waits for a person is
parked: the calls behind it are looked at, so that their questions show, and are decided anew when
their turn comes.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Sequence
from typing import Any

from nbagent.events import tool as events
from nbagent.interfaces.approver import Question
from nbagent.interfaces.gate import Decision, ToolCall, ToolResult
from nbagent.interfaces.tool import ArgumentsError, Tool
from nbagent.loop.body import run_body
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.state import RunState

__all__ = ["NOT_STARTED", "close_calls", "run_calls"]

NOT_STARTED = "Error: tool call aborted before dispatch"
UNKNOWN_OUTCOME = (
    "Error: the tool call was stopped while it ran; its outcome is unknown. Repeat it only if it "
    "changes nothing, otherwise check first what it did."
)
GRACE_S = 0.3

_ABANDONED: set[asyncio.Task[None]] = set()
"""Bodies that were given up: the event loop itself would not keep them alive."""


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
        started = call.decision == "allow"
        raw = None if call.done is not None else UNKNOWN_OUTCOME if started else NOT_STARTED
        data = events.result(position, raw=raw, status="aborted", error="Aborted")
        state.log.append("tool/result", data)


class _Slot:
    """One call on its way."""

    __slots__ = (
        "abandoned",
        "call",
        "duration_ms",
        "edited",
        "looked_at",
        "parsed",
        "position",
        "repaired",
        "result",
        "running",
        "settled",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        self.parsed = self.looked_at = self.settled = False
        self.call: ToolCall | None = None
        """None if the tool is unknown or the arguments don't fit."""
        self.repaired: str | None = None
        self.result: ToolResult | None = None
        self.duration_ms = 0.0
        self.running: asyncio.Task[None] | None = None
        self.edited = False
        self.abandoned = False
        """Whether a thread or task may still be running the body."""

    def called(self) -> ToolCall:
        """The call, of a slot that has one."""
        if self.call is None:
            msg = f"call {self.position} was never read"
            raise RuntimeError(msg)
        return self.call


class _Batch:
    """All calls of one answer."""

    def __init__(self, state: RunState) -> None:
        self.state = state
        self.calls = state.folds.calls.calls
        self.slots = [_Slot(position) for position in range(len(self.calls))]
        self.committed = 0
        self.failure: Exception | None = None
        """What a gate around a body raised inside its task."""
        self._woken: asyncio.Future[None] | None = None
        self._signalled = False

    async def run(self) -> None:
        state, slots, outer = self.state, self.slots, self.state.wake
        state.wake = self._wake
        try:
            at = 0
            while at < len(slots) and state.token.by is None:
                end = self._group(at)
                if end - at == 1:
                    await self._alone(slots[at])
                else:
                    await self._together(slots[at:end])
                at = end
        except BaseException:
            await self._drain()
            self._give_up()
            raise
        finally:
            state.wake = outer
        if state.token.by is not None:
            state.close_questions("interrupt")
            self._give_up()
            raise Stopped

    # -- looking at a call

    def _parse(self, slot: _Slot) -> None:
        """Find the tool and read the arguments; failing that, the slot has its result."""
        if slot.parsed:
            return
        slot.parsed = True
        asked, turn = self.calls[slot.position], self.state.folds.turn
        tool = self.state.plan.tools.get(asked.name)
        if tool is None:
            slot.result = _unknown(asked.name, self.state.plan.tools)
            return
        try:
            arguments = self.state.plan.read(tool, asked.arguments)
        except ArgumentsError as error:
            text = f"Error: {error}"
            slot.result = ToolResult(text, status="error", error_type="ArgumentsError")
            return
        slot.repaired = arguments.repaired
        slot.call = ToolCall(
            tool=tool,
            arguments=arguments.value,
            bound=arguments.bound,
            turn=turn.turn,
            step=turn.step,
            position=slot.position,
            id=asked.id,
        )

    def _group(self, at: int) -> int:
        """Where the group that begins at `at` ends."""
        for end in range(at, len(self.slots)):
            slot = self.slots[end]
            self._parse(slot)
            call = slot.call
            if call is not None and not call.tool.runs_beside(call.arguments):
                return max(end, at + 1)
        return len(self.slots)

    def _open(self, slot: _Slot) -> None:
        """Log that the call is looked at."""
        if not slot.looked_at:
            slot.looked_at = True
            data: dict[str, Any] = {"position": slot.position}
            if slot.repaired:
                data["repaired"] = slot.repaired
            self.state.log.append("tool/call", data)

    async def _decide(self, slot: _Slot) -> tuple[ToolCall, Decision]:
        """Ask the gates in front of the body; `ask` means that a person must be asked."""
        call, state = slot.called(), self.state
        verdict: Decision | None = None
        for before, decides in state.plan.chain(call.tool).before:
            said: Any = before(call, state.gates)
            if said is None:
                continue
            if type(said) is not Decision:
                said = await _awaited(state, said)
                if said is None:
                    continue
                if not isinstance(said, Decision):
                    raise TypeError(
                        _not_a(before, said, "nb.allow, nb.deny, nb.ask, nb.rewrite or None")
                    )
            if said.action == "deny" or (decides and said.action == "ask"):
                return call, said
            if said.arguments is not None:
                try:
                    bound = state.plan.rebind(call.tool, dict(said.arguments))
                except ArgumentsError as error:
                    why = f"changed arguments don't fit: {error}"
                    return call, Decision("deny", why, source=said.source)
                call = call.but(arguments=bound.value, bound=bound.bound)
            if decides:
                verdict = said
            elif said.action == "ask":
                call = call.but(must_ask=True, why=said.why or call.why)
        return call, verdict or _undecided(call, attended=state.channel is not None)

    async def _settle(self, slot: _Slot) -> bool:
        """Decide for good; True if the body may run, False if the slot has its result or is parked."""
        self._open(slot)
        if slot.call is None:
            slot.settled = True
            return False
        call, decision = await self._decide(slot)
        if decision.action == "ask":
            self._ask(call, decision)
            return False
        state = self.state
        if decision.action == "allow":
            decision = self._within_budget(decision)
        state.close_question(slot.position, decision.action, decision.source)
        changed = call.arguments if call.arguments != slot.call.arguments else None
        slot.edited = changed is not None and decision.source == "person"
        slot.settled, slot.call = True, call
        data = events.decision(
            slot.position,
            decision.action,
            decision.source,
            why=decision.why,
            rule=decision.rule,
            arguments=changed,
        )
        state.log.append("tool/decision", data)
        if decision.action == "deny":
            slot.result = _refused(call, decision)
            return False
        return True

    def _within_budget(self, decision: Decision) -> Decision:
        budget, ledger = self.state.plan.budget, self.state.folds.ledger
        spent = ledger.run if budget.per == "run" else ledger.session
        limit = budget.max_tool_calls
        if limit is not None and spent.tool_calls >= limit:
            return Decision("deny", f"the budget of {limit} tool calls is used up", source="budget")
        return decision

    # -- questions

    def _ask(self, call: ToolCall, decision: Decision) -> None:
        """Put the question, unless it is open already."""
        state = self.state
        if any(
            o.call.fingerprint == call.fingerprint and o.call.position == call.position
            for o in state.questions.values()
        ):
            return
        state.close_question(call.position, "deny", "changed")
        asked = state.folds.approvals.asked.get(call.position, 0)
        id_ = f"{call.turn}.{call.step}.{call.position}" + (f".{asked + 1}" if asked else "")
        limit = state.plan.question_timeout_s
        expires = state.log.clock() + int(limit * 1000) if limit is not None else None
        data: dict[str, Any] = {
            "id": id_,
            "position": call.position,
            "capability": call.ref,
            "risk": call.risk,
            "why": decision.why,
            "arguments": call.arguments,
            "fingerprint": call.fingerprint,
        }
        if expires is not None:
            data["expires"] = expires
        state.log.append("approval/asked", data)
        state.log.flush()
        question = Question(
            id=id_,
            name=call.name,
            ref=call.ref,
            risk=call.risk,
            why=decision.why,
            arguments=call.arguments,
            description=call.tool.description,
            preview=_preview(call),
            rememberable=call.risk != "dangerous" and state.plan.remember is not None,
            expires_ms=expires,
        )
        state.ask(question, call)

    async def _look_ahead(self) -> None:
        """Let the questions of all later calls show, and close those that need no answer any more."""
        for slot in self.slots:
            if slot.settled or slot.result is not None:
                continue
            self._parse(slot)
            self._open(slot)
            if slot.call is None:
                continue
            call, decision = await self._decide(slot)
            if decision.action == "ask":
                self._ask(call, decision)
            else:
                self.state.close_question(slot.position, decision.action, decision.source)

    def _wake(self) -> None:
        self._signalled = True
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait(self) -> None:
        """Until an answer comes, a body ends, or Stop."""
        state = self.state
        if not self._signalled:
            self._woken = state.loop.create_future()
            try:
                with Scope(state.token):
                    if state.token.by is None:
                        await self._woken
            finally:
                self._woken = None
        self._signalled = False

    # -- running

    async def _alone(self, slot: _Slot) -> None:
        state = self.state
        while not slot.settled:
            if await self._settle(slot):
                await self._run_inline(slot)
                break
            if not slot.settled:
                await self._look_ahead()
                if state.questions:
                    await self._wait()
                if state.token.by is not None:
                    return
        await self._commit()

    async def _run_inline(self, slot: _Slot) -> None:
        """A call that runs alone needs no task of its own."""
        state = self.state
        if state.log.dirty:
            await state.log.barrier()
        if state.token.by is not None:
            slot.result = _aborted(slot)
            return
        scope = Scope(
            state.token, lambda: state.watchdog.set(self, GRACE_S, lambda: _stays(state, slot))
        )
        began = time.perf_counter()
        try:
            with scope:
                slot.result = await run_body(state, slot.called(), slot)
        finally:
            slot.duration_ms = round((time.perf_counter() - began) * 1000, 1)
            state.watchdog.clear(self)
        if slot.result is None:
            slot.result = _aborted(slot, started=True)

    async def _together(self, group: Sequence[_Slot]) -> None:
        """A pool: as many bodies at once as the cap that holds when the group starts."""
        state, cap, following = self.state, self.state.plan.max_parallel_tools, 0
        parked: list[_Slot] = []
        while True:
            ready = [slot for slot in parked if await self._settle(slot)] if parked else []
            parked = [slot for slot in parked if not slot.settled]
            running = sum(slot.running is not None for slot in group)
            while following < len(group) and running + len(ready) < cap and not state.token.by:
                slot = group[following]
                following += 1
                if await self._settle(slot):
                    ready.append(slot)
                elif not slot.settled:
                    parked.append(slot)
            if ready:
                await self._start(ready)
            if parked:
                await self._look_ahead()
            await self._commit()
            running = sum(slot.running is not None for slot in group)
            if self.failure is not None:
                raise self.failure
            if state.token.by is not None:
                await self._drain()
                return
            if not running and not parked and following == len(group):
                return
            if running or (parked and state.questions):
                await self._wait()

    async def _start(self, ready: list[_Slot]) -> None:
        """One barrier for all, then a task for each."""
        if self.state.log.dirty:
            await self.state.log.barrier()
        for slot in ready:
            slot.running = asyncio.create_task(self._run_task(slot))

    async def _run_task(self, slot: _Slot) -> None:
        began = time.perf_counter()
        try:
            result = await run_body(self.state, slot.called(), slot)
        except asyncio.CancelledError:
            result = _aborted(slot, started=True)
        except Exception as error:  # noqa: BLE001 - a gate around the body: ends the run, see above
            self.failure = self.failure or error
            result = _aborted(slot, started=True)
        if slot.result is not None:  # it was abandoned: the result stands already
            self.state.notice("late-result", _late(slot, result.text))
            return
        slot.duration_ms = round((time.perf_counter() - began) * 1000, 1)
        slot.result, slot.running = result, None
        if slot.position > self.committed and self.state.folds.turn.step_open:
            data: dict[str, Any] = {"position": slot.position, "raw": result.raw}
            if result.status != "ok":
                data["status"] = result.status
            data["duration_ms"] = slot.duration_ms
            self.state.log.append("tool/done", data)
        self._wake()

    async def _drain(self) -> None:
        """Cancel the bodies that run, wait a moment, abandon what is left."""
        running = {slot.running for slot in self.slots if slot.running is not None}
        if not running:
            return
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=GRACE_S)
        for slot in self.slots:
            if slot.running is not None:
                _ABANDONED.add(slot.running)
                slot.running.add_done_callback(_ABANDONED.discard)
                slot.running, slot.result = None, _abandoned(slot)

    # -- results

    async def _commit(self) -> None:
        """Write results as far as they are there without a gap, in model order."""
        while self.committed < len(self.slots):
            slot = self.slots[self.committed]
            if slot.result is None or not slot.looked_at:
                return
            result = slot.result
            if slot.call is not None:
                for after in self.state.plan.chain(slot.call.tool).after:
                    said: Any = after(slot.call, result, self.state.gates)
                    if type(said) is not ToolResult:
                        said = await said if inspect.isawaitable(said) else said
                        if not isinstance(said, ToolResult):
                            raise TypeError(_not_a(after, said, "a ToolResult"))
                    result = said
            self._write(slot, result)

    def _write(self, slot: _Slot, result: ToolResult) -> None:
        shown = result.shown
        if slot.edited:
            shown = f"[The person changed the arguments before it ran.]\n{result.text}"
        done = self.calls[slot.position].done is not None
        data = events.result(
            slot.position,
            raw=None if done else result.raw,
            shown=shown,
            status=result.status,
            error=result.error_type,
            duration_ms=slot.duration_ms,
            meta=result.meta,
        )
        self.state.log.append("tool/result", data)
        self.committed += 1

    def _give_up(self) -> None:
        """Results for all calls, without asking anybody any more."""
        for slot in self.slots[self.committed :]:
            self._open(slot)
            result = slot.result or _aborted(slot, started=slot.settled and slot.call is not None)
            self._write(slot, _after_at_once(self.state, slot, result))


async def _awaited(state: RunState, value: Any) -> Any:
    """What a gate in front returned, awaited where it is to be; Stop cuts that short."""
    if not inspect.isawaitable(value):
        return value
    result: Any = None
    with Scope(state.token) as scope:
        state.token.check()
        result = await value
    if scope.fired:
        raise Stopped
    return result


def _after_at_once(state: RunState, slot: _Slot, result: ToolResult) -> ToolResult:
    """The gates behind the body, as far as they need not be awaited and don't fail."""
    if slot.call is None:
        return result
    for after in state.plan.chain(slot.call.tool).after:
        if inspect.iscoroutinefunction(after):
            continue
        try:
            result = after(slot.call, result, state.gates)
        except Exception:  # noqa: BLE001 - the run ends already, with the first error
            continue
    return result


def _not_a(gate: Any, given: Any, wanted: str) -> str:
    name = getattr(gate, "__qualname__", None) or type(gate).__name__
    return f"the gate `{name}` returned {type(given).__name__}, not {wanted}"


def _undecided(call: ToolCall, *, attended: bool) -> Decision:
    """What holds when no gate decides: a gate that asked wants a person, anything else may run."""
    if call.must_ask and attended:
        return Decision("ask", call.why or "")
    if call.must_ask:
        return Decision("deny", "nobody can be asked", source="unattended")
    return Decision("allow", source="mode")


def _unknown(name: str, tools: Any) -> ToolResult:
    known = ", ".join(f"`{tool}`" for tool in tools) or "none"
    text = f"Error: there is no tool `{name}`. Tools: {known}."
    return ToolResult(text, status="error", error_type="UnknownTool")


def _refused(call: ToolCall, decision: Decision) -> ToolResult:
    who = {"person": "the person refused", "expired": "nobody answered in time"}
    by = who.get(decision.source, f"refused ({decision.source})")
    why = f": {decision.why}" if decision.why else ""
    return ToolResult(f"`{call.name}` was not run, {by}{why}", status="denied")


def _aborted(slot: _Slot, *, started: bool = False) -> ToolResult:
    if not started:
        return ToolResult(NOT_STARTED, status="aborted", error_type="Aborted")
    if slot.abandoned:
        return _abandoned(slot)
    return ToolResult(UNKNOWN_OUTCOME, status="aborted", error_type="Aborted")


def _abandoned(slot: _Slot) -> ToolResult:
    text = "Error: the tool call was stopped, but its body may still be running; outcome unknown."
    slot.abandoned = True
    return ToolResult(text, status="abandoned", error_type="Abandoned")


def _stays(state: RunState, slot: _Slot) -> None:
    name = slot.called().name
    state.notice("still-running", f"`{name}` was stopped but goes on; the run waits for it")


def _late(slot: _Slot, text: str) -> str:
    name = slot.call.name if slot.call else "?"
    return f"`{name}`, which had been given up, ended after all: {text[:500]}"


def _preview(call: ToolCall) -> Any:
    tool: Tool = call.tool
    if tool.preview is None:
        return None
    try:
        return tool.preview(dict(call.arguments))
    except Exception as error:  # noqa: BLE001 - a preview is a courtesy
        return f"(the preview failed: {type(error).__name__}: {error})"

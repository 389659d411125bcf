"""Whether a call may run: its arguments are read, the gates in front of the body are asked."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import orjson

from nbagent.events import tool as events
from nbagent.interfaces.approver import Question
from nbagent.interfaces.gate import Decision, ToolCall, ToolResult, blame, gate_name
from nbagent.interfaces.tool import ArgumentsError, Diff
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.slot import Slot, refused, unknown
from nbagent.loop.state import RunState

__all__ = ["awaited", "decide", "look_at", "parse", "put_question", "settle"]

_logger = logging.getLogger("nbagent")


def parse(state: RunState, slot: Slot) -> None:
    """Find the tool and read the arguments; failing that, the slot has its result."""
    if slot.parsed:
        return
    slot.parsed = True
    asked, turn = state.folds.calls.calls[slot.position], state.folds.turn
    tool = state.plan.tools.get(asked.name)
    if tool is None:
        slot.result = unknown(asked.name, state.plan.tools)
        return
    try:
        arguments = state.plan.read(tool, slot.text)
    except ArgumentsError as error:
        slot.result = ToolResult(f"Error: {error}", status="error", error_type="ArgumentsError")
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


def look_at(state: RunState, slot: Slot) -> None:
    """Log that the call is looked at, with its arguments if reading has changed them."""
    if slot.looked_at:
        return
    slot.looked_at = True
    data: dict[str, Any] = {"position": slot.position}
    if slot.call is not None and not _same(slot.text, slot.call.arguments):
        data["arguments"] = slot.call.arguments
    if slot.repaired:
        data["repaired"] = slot.repaired
    if slot.position in state.unmasked:
        data["masked"] = True
    state.log.append("tool/call", data)


def _same(text: str, arguments: dict[str, Any]) -> bool:
    try:
        return bool(orjson.loads(text) == arguments)
    except orjson.JSONDecodeError:
        return False


async def decide(state: RunState, slot: Slot) -> tuple[ToolCall, Decision]:
    """Ask the gates in front of the body; `ask` means that a person must be asked.

    Raises
    ------
    TypeError
        If a gate returns something else, or changes a call in place.
    """
    call = slot.called()
    verdict: Decision | None = None
    for before, decides, yours in state.plan.chain(call.tool).before:
        said = await _say(state, before, call, yours=yours)
        if said is None:
            continue
        if said.action == "deny":
            return call, replace(said, rule=said.rule or gate_name(before)) if yours else said
        if decides and said.action == "ask":
            return call, _within_budget(state, said)
        if said.arguments is not None and dict(said.arguments) == call.arguments:
            said = replace(said, arguments=None)
        if said.arguments is not None:
            changed = _changed(state, call, said)
            if isinstance(changed, Decision):
                return call, changed
            call = changed
        if decides:
            verdict = said
        elif said.action == "ask":
            call = call.but(must_ask=True, why=said.why or call.why)
    if verdict is not None and verdict.arguments is not None:
        verdict = await _seen_again(state, call) or verdict
    verdict = verdict or _undecided(call, attended=state.channel is not None)
    return call, _within_budget(state, verdict)


async def _seen_again(state: RunState, call: ToolCall) -> Decision | None:
    """What your gates refuse of the arguments that a person has changed."""
    for before, _, yours in state.plan.chain(call.tool).before:
        said = await _say(state, before, call, yours=True) if yours else None
        if said is not None and said.action == "deny":
            return replace(said, rule=said.rule or gate_name(before))
    return None


async def _say(
    state: RunState, before: Callable[..., Any], call: ToolCall, *, yours: bool
) -> Decision | None:
    canonical = call.canonical if yours else None
    try:
        said: Any = before(call, state.gates)
        if said is not None and type(said) is not Decision:
            said = await awaited(state, said)
    except Exception as error:
        if not isinstance(error, Stopped):
            blame(error, before, f"a call of `{call.name}`")
        raise
    if said is not None and type(said) is not Decision and not isinstance(said, Decision):
        raise TypeError(not_a(before, said, "nb.allow, nb.deny, nb.ask, nb.rewrite or None"))
    if yours and call.canonical != canonical:
        msg = f"the gate `{gate_name(before)}` changed call.arguments in place: return nb.rewrite({{…}}) instead"
        raise TypeError(msg)
    return said


def _changed(state: RunState, call: ToolCall, said: Decision) -> ToolCall | Decision:
    """The call with the arguments that a gate or a person wants, validated again."""
    try:
        bound = state.plan.rebind(call.tool, dict(said.arguments or {}))
    except ArgumentsError as error:
        return Decision("deny", f"changed arguments don't fit: {error}", source=said.source)
    return call.but(arguments=bound.value, bound=bound.bound)


def _undecided(call: ToolCall, *, attended: bool) -> Decision:
    """What holds when no gate decides: a gate that asked wants a person, anything else may run."""
    if call.must_ask and attended:
        return Decision("ask", call.why or "")
    if call.must_ask:
        return Decision("deny", "nobody can be asked", source="unattended")
    return Decision("allow", source="mode")


async def settle(state: RunState, slot: Slot) -> bool:
    """Decide for good; True if the body may run, False if the slot has its result or is parked."""
    look_at(state, slot)
    if slot.call is None:
        slot.settled = True
        return False
    call, decision = await decide(state, slot)
    if decision.action == "ask":
        put_question(state, call, decision)
        return False
    if state.questions:
        state.withdraw_question(slot.position, decision.source)
    slot.edited = decision.source == "person" and decision.arguments is not None
    data = events.decision(
        slot.position,
        decision.action,
        decision.source,
        why=decision.why,
        rule=decision.rule,
        arguments=call.arguments if call.arguments != slot.call.arguments else None,
    )
    slot.settled, slot.call = True, call
    state.log.append("tool/decision", data)
    if decision.action == "deny":
        if decision.source == "unattended":
            _say_how_to_allow(call)
        slot.result = refused(call, decision)
        return False
    return True


def _say_how_to_allow(call: ToolCall) -> None:
    """One line for people, the first time in a process that nobody could be asked.

    No event: what a log holds must not depend on which run of a process comes first.
    """
    if _said.is_set():
        return
    _said.set()
    _logger.warning(
        "`%s` was not run, since nobody could be asked. To be asked, run with ui=nb.ByHand() and "
        'answer by run.answer(…), or at a terminal with ui="stdin"; to allow it without a question, '
        'use nb.Agent(…, approval=nb.Approval(rules=["allow %s"])), or nb.Approval(mode="auto") for '
        "all tools. (This is said once.)",
        call.name,
        call.name,
    )


_said = threading.Event()


def _within_budget(state: RunState, decision: Decision) -> Decision:
    budget, ledger = state.plan.budget, state.folds.ledger
    limit = budget.max_tool_calls
    if limit is None:
        return decision
    spent = ledger.run if budget.per == "run" else ledger.session
    if spent.tool_calls >= limit:
        return Decision("deny", f"the budget of {limit} tool calls is used up", source="budget")
    return decision


def put_question(state: RunState, call: ToolCall, decision: Decision) -> None:
    """Ask a person, unless the question is open already."""
    same = (call.position, call.fingerprint)
    if any((w.call.position, w.call.fingerprint) == same for w in state.questions.values()):
        return
    state.withdraw_question(call.position, "changed")
    asked = state.folds.approvals.asked.get(call.position, 0)
    id_ = f"{call.turn}.{call.step}.{call.position}" + (f".{asked + 1}" if asked else "")
    limit = state.plan.question_timeout_s
    data: dict[str, Any] = {
        "id": id_,
        "position": call.position,
        "capability": call.ref,
        "risk": call.risk,
        "why": decision.why,
        "arguments": call.arguments,
        "fingerprint": call.fingerprint,
    }
    if limit is not None:
        data["expires"] = state.log.clock() + int(limit * 1000)
    question = Question(
        id=id_,
        name=call.name,
        ref=call.ref,
        risk=call.risk,
        why=_masked(state, decision.why),
        arguments=_masked(state, orjson.loads(orjson.dumps(call.arguments))),
        description=_masked(state, call.tool.description),
        preview=_preview(state, call),
        rememberable=call.risk != "dangerous" and state.plan.remember is not None,
        expires_ms=data.get("expires"),
    )
    state.ask(question, call, data)


def _masked(state: RunState, value: Any) -> Any:
    """What is shown of a call: questions end up in notebooks and reprs."""
    return value if state.log.mask is None else state.log.mask.value(value)


def _preview(state: RunState, call: ToolCall) -> Any:
    if call.tool.preview is None:
        return None
    try:
        shown = call.tool.preview(orjson.loads(call.canonical))
        if isinstance(shown, Diff):
            return Diff(_masked(state, shown.old), _masked(state, shown.new))
        return _masked(state, shown)
    except Exception as error:  # noqa: BLE001 - a preview is a courtesy
        return state.log.masked(f"(the preview failed: {type(error).__name__}: {error})")


async def awaited(state: RunState, value: Any) -> Any:
    """What a gate returned, awaited where it is to be; Stop cuts that short.

    What bodies have ended with is written before: it must not be lost while a gate takes its time.

    Raises
    ------
    Stopped
        If the run was asked to stop.
    """
    if not inspect.isawaitable(value):
        return value
    result: Any = None
    with Scope(state.token) as scope:
        try:
            result = await (_written_first(state, value) if state.log.dirty else value)
        except asyncio.CancelledError as error:
            if state.token.task is not None and state.token.task.cancelling():
                raise
            msg = "a gate awaited something that was cancelled elsewhere"
            raise RuntimeError(msg) from error
    if scope.fired:
        raise Stopped
    return result


async def _written_first(state: RunState, value: Awaitable[Any]) -> Any:
    try:
        await state.log.barrier()
    except BaseException:
        if inspect.iscoroutine(value):
            value.close()
        raise
    return await value


def not_a(gate: Any, given: Any, wanted: str) -> str:
    """What to say of a gate that returned something else than it may."""
    return f"the gate `{gate_name(gate)}` returned {type(given).__name__}, not {wanted}"

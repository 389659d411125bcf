"""Building a request: header, choice, history, reminders; what is sent is logged first."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson

from nbagent.events import model as events
from nbagent.folds.ledger import LOGICAL, Spent
from nbagent.interfaces.model import Choice, Request, Situation
from nbagent.interfaces.plan import Facts
from nbagent.loop.state import RunState
from nbagent.messages import Message

__all__ = ["Bounce", "announce", "build", "missing_calls", "remind", "spent_so_far"]


class Bounce(NamedTuple):
    """A rejected answer and what the model is told of it."""

    draft: int
    """Seq of its `assistant/draft`."""
    message: Message
    text: str
    source: str
    """The reason."""
    force: str | None = None
    """A tool that this request must call."""


def remind(source: str, text: str) -> Message:
    """A reminder in its envelope: the model can tell it from a person's words."""
    body = f'<system-reminder source="{source}">\n{text}\n</system-reminder>'
    return Message("user", body, source=source)


def announce(state: RunState) -> None:
    """Log the header and the model context if they are not the ones in force."""
    plan, folds, log = state.plan, state.folds, state.log
    header = plan.header
    if state.header_sent is header.data:
        return
    value, fresh = orjson.loads(header.data), state.speaker not in log.speakers
    if folds.header.value is None:
        log.append("request/header", {"header": value, "reason": "initial"}, masked=True)
    elif fresh:
        log.append("request/header", {"header": value, "reason": "resume"}, masked=True)
    elif folds.header.value != value:
        log.append("request/header", {"header": value, "reason": "change"}, masked=True)
    state.header_sent = header.data
    log.speakers.add(state.speaker)
    context: dict[str, Any] = {"model": plan.model.name}
    if plan.model.window is not None:
        context["window"] = plan.model.window
    if folds.header.context != context:
        log.append("request/context", context)


def missing_calls(state: RunState) -> tuple[str, ...]:
    """Tools of `must_call` that have neither returned, nor been refused, nor failed twice."""
    if not state.plan.must_call:
        return ()
    finished = state.folds.calls.finished

    def settled(name: str) -> bool:
        seen = [status for called, status in finished if called == name]
        return any(status in ("ok", "denied") for status in seen) or len(seen) >= 2

    return tuple(name for name in state.plan.must_call if not settled(name))


def build(
    state: RunState, cause: str | None, bounce: Bounce | None
) -> tuple[Request, list[dict[str, Any]]]:
    """The request of the next attempt, and its tail as it is logged."""
    plan, surface = state.plan, state.folds.surface
    entries: list[dict[str, Any]] = []
    messages: list[Message] = []
    if bounce is not None:
        masked = state.log.masked
        bounce = bounce._replace(text=masked(bounce.text), source=masked(bounce.source))
        _bounced(bounce, messages, entries)
    answer = state.folds.turn.step
    spent = _spent(state, cause)
    facts = Facts(answer, plan.max_steps, spent, plan.budget)
    for reminder in plan.reminders:
        text = reminder.text(facts)
        if text:
            _add(remind(reminder.source, text), messages, entries)
    request = Request(
        plan.header,
        surface.nodes,
        len(surface.nodes),
        tuple(messages),
        _choice(state, bounce),
        state.log.id,
    )
    return request, entries


def _bounced(bounce: Bounce, messages: list[Message], entries: list[dict[str, Any]]) -> None:
    """The rejected answer, a result for each of its calls, then the correction."""
    if bounce.message.parts:  # a failed attempt has none, and providers refuse an empty message
        messages.append(bounce.message)
        entries.append({"draft": bounce.draft})
    for call in bounce.message.calls:
        result = Message(
            "tool", "Not run: the answer was sent back.", call_id=call.id, name=call.name
        )
        messages.append(result)
        entries.append(result.to_node())
    _add(remind(bounce.source, bounce.text), messages, entries)


def _add(message: Message, messages: list[Message], entries: list[dict[str, Any]]) -> None:
    messages.append(message)
    entries.append({**message.to_node(), "source": message.source})


def spent_so_far(state: RunState) -> Spent:
    """What counts against the budget."""
    ledger = state.folds.ledger
    return ledger.run if state.plan.budget.per == "run" else ledger.session


def _spent(state: RunState, cause: str | None) -> tuple[int, int]:
    spent = spent_so_far(state)
    return (spent.model_calls + (cause in LOGICAL), spent.tokens)


def _choice(state: RunState, bounce: Bounce | None) -> Choice | None:
    """What this request offers, if that is not what the header says."""
    plan = state.plan
    choose = getattr(plan.model, "choose", None)
    if choose is not None and plan.header.tools:
        folds = state.folds
        situation = Situation(
            plan.header.tools,
            tuple(folds.calls.finished),
            missing_calls(state),
            first=folds.turn.step == 1,
            last=folds.turn.step >= plan.max_steps,
        )
        chosen: Choice | None = choose(situation)
        wanted = plan.header.settings.get("tool_choice")
        if chosen is not None and wanted and chosen.tool_choice == "auto":
            return chosen._replace(tool_choice=wanted)
        return chosen
    if bounce is not None and bounce.force and getattr(plan.model, "can_force", False):
        return Choice(bounce.force)
    return None


def log_sent(
    state: RunState,
    request: Request,
    entries: list[dict[str, Any]],
    *,
    cause: str | None,
    body_digest: str | None,
) -> int:
    """Write `request/sent`; gives its seq."""
    surface = state.folds.surface
    data = events.sent(
        state.folds.turn.attempt + 1,
        cause,
        state.folds.header.seq,
        request.length,
        surface.digest,
        entries,
        request.choice.to_dict() if request.choice else None,
        body_digest,
    )
    return state.log.append("request/sent", data, masked=True)

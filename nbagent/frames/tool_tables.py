"""Tables about tool calls: tools, approvals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from nbagent.frames.columns import Column, Table, json_text
from nbagent.frames.log_tables import ids, place
from nbagent.frames.reading import Entry, Reading
from nbagent.frames.story import Question, ToolUse, tell

__all__ = ["APPROVALS", "TOOLS"]

SOURCES = (
    "guard",
    "list",
    "rule",
    "mode",
    "repeated",
    "remembered",
    "handler",
    "person",
    "unattended",
    "expired",
    "failed",
    "budget",
    "interrupt",
)
STATUSES = ("ok", "error", "denied", "timeout", "aborted", "abandoned", "replayed")
RISKS = ("unspecified", "readonly", "mutating", "dangerous")


def ref(call: ToolUse) -> str | None:
    """The capability, None for a tool that does not exist."""
    for question in call.questions:
        return question.asked.data["capability"]
    if not call.tool:
        return None
    return f"cap://tool/{call.tool.get('domain', 'local')}/{call.request.name}@1"


def effective(call: ToolUse) -> str | None:
    """The arguments that counted: as written, unless defaults, a gate or a person changed them."""
    if call.decision is None:
        return None
    value = call.decision.data.get("arguments", call.called.data.get("arguments"))
    for question in call.questions:
        value = question.asked.data.get("arguments") if value is None else value
    return call.request.arguments if value is None else _as_written(call, value)


def _as_written(call: ToolUse, arguments: Any) -> str | None:
    """Arguments as JSON text, in the model's own spelling if they are what it wrote."""
    try:
        same = orjson.loads(call.request.arguments) == arguments
    except orjson.JSONDecodeError:
        same = False
    return call.request.arguments if same else json_text(arguments)


# -- tools


def _decided(name: str) -> Callable[[ToolUse], Any]:
    return lambda call: None if call.decision is None else call.decision.data.get(name)


def _ended(name: str, default: Any = None) -> Callable[[ToolUse], Any]:
    return lambda call: call.ended.get(name, default) if call.result is not None else None


def _shown(call: ToolUse) -> str | None:
    return call.ended.get("shown", call.ended.get("raw"))


def _raw(call: ToolUse) -> str | None:
    return call.ended.get("raw") if "shown" in call.ended else None


def _size(call: ToolUse) -> int | None:
    return None if call.result is None else len(call.ended.get("raw", ""))


def _waited(call: ToolUse) -> float | None:
    waits = [q.answer["wait_ms"] for q in call.questions if q.answer is not None]
    return sum(waits) if waits else None


def _meta(name: str, default: Any = None) -> Callable[[ToolUse], Any]:
    return lambda call: call.ended.get("meta", {}).get(name, default)


TOOLS = Table(
    "tools",
    "One row per tool call, in the model's order; a call without status is open.",
    lambda reading: tell(reading).calls,
    [
        *place("called", attempt=False),
        Column(
            "name", "text", lambda call: call.request.name, doc="The tool, as the model wrote it."
        ),
        Column(
            "args_json",
            "text",
            lambda call: call.request.arguments,
            doc="Arguments exactly as the model wrote them; no valid JSON if it didn't write any.",
        ),
        Column("result", "text", _shown, doc="What the model read."),
        Column("status", "category", _ended("status", "ok"), STATUSES, "What came of it."),
        Column(
            "decision", "category", _decided("decision"), ("allow", "deny"), "Whether it might run."
        ),
        Column("decision_source", "category", _decided("source"), SOURCES, "Who or what decided."),
        Column("error_type", "text", _ended("error"), doc="Class of the exception."),
        Column("duration_ms", "float", _ended("duration_ms", 0.0), doc="Time in the body."),
        Column("ref", "text", ref, doc="The capability; missing for an unknown tool."),
        Column("position", "int", lambda call: call.position, doc="Place in the answer, from 0."),
        Column(
            "effective_args_json",
            "text",
            effective,
            doc="Arguments that were decided about; missing if it never came to a decision.",
        ),
        Column(
            "dedup",
            "category",
            _meta("dedup", "none"),
            ("none", "warned", "replayed"),
            "Whether it was recognised as a repetition.",
        ),
        Column(
            "digest_id", "text", _meta("digest"), doc="Where the whole of a digested result is."
        ),
        Column("deliver_id", "text", _meta("deliver"), doc="The deliverable it became."),
        Column(
            "truncated",
            "bool",
            lambda call: call.ended.get("meta", {}).get("truncated", False) is True,
            doc="Whether the model read only a part.",
        ),
        Column("result_chars", "int", _size, doc="Characters of the whole result."),
        Column("approval_wait_ms", "float", _waited, doc="Time it waited for answers."),
        Column("raw", "text", _raw, doc="The whole result where the model read something else."),
        Column("risk", "category", lambda call: call.tool.get("risk"), RISKS, "The tool's risk."),
        Column("decision_why", "text", _decided("why"), doc="Why it was decided so."),
        Column("rule", "text", _decided("rule"), doc="The rule or remembered answer that decided."),
        Column(
            "repaired",
            "text",
            lambda call: call.called.data.get("repaired"),
            doc="What was repaired in the arguments' text.",
        ),
        Column(
            "call_id", "text", lambda call: call.request.id, doc="The provider's id, not unique."
        ),
        *ids("called", attempt=True),
    ],
    short="turn step name args_json result status decision decision_source duration_ms",
)


# -- approvals


@dataclass(frozen=True, slots=True)
class Approval:
    """A question, or a decision without one."""

    entry: Entry
    call: ToolUse
    question: Question | None
    final: bool
    """Whether the call's decision is this row's."""

    @property
    def answer(self) -> dict[str, Any]:
        """The person's answer, empty without one or if the question was withdrawn."""
        said = (self.question.answer if self.question else None) or {}
        return {} if said.get("withdrawn") else said

    @property
    def withdrawn(self) -> str | None:
        """What made the question needless, None if it was answered or is open."""
        said = (self.question.answer if self.question else None) or {}
        return said.get("by") if said.get("withdrawn") else None

    @property
    def decided(self) -> dict[str, Any]:
        """The call's decision if it is this row's, else empty."""
        return self.call.decision.data if self.final and self.call.decision else {}


def _approvals(reading: Reading) -> list[Approval]:
    rows: list[Approval] = []
    for call in tell(reading).calls:
        last = len(call.questions) - 1
        rows += [
            Approval(question.asked, call, question, n == last)
            for n, question in enumerate(call.questions)
        ]
        if not call.questions and call.decision is not None:
            rows.append(Approval(call.decision, call, None, final=True))
    return sorted(rows, key=lambda row: row.entry.seq)


def _arguments(row: Approval) -> str | None:
    asked = row.question.asked.data.get("arguments") if row.question else None
    return row.call.request.arguments if asked is None else _as_written(row.call, asked)


def _edited(row: Approval) -> str | None:
    return json_text(row.answer.get("arguments", row.decided.get("arguments")))


APPROVALS = Table(
    "approvals",
    "One row per question to a person, and per decision about a call that needed none, in order.",
    _approvals,
    [
        *place("entry", attempt=False),
        Column("name", "text", lambda row: row.call.request.name, doc="The tool."),
        Column("args_json", "text", _arguments, doc="Arguments that it was about."),
        Column(
            "decision",
            "category",
            lambda row: row.answer.get("decision", row.decided.get("decision")),
            ("allow", "deny", "always_allow", "always_deny", "edit"),
            "The answer, or the decision; missing while the question is open.",
        ),
        Column(
            "source",
            "category",
            lambda row: row.decided.get("source", row.answer.get("by") or row.withdrawn),
            SOURCES,
            "Who or what decided.",
        ),
        Column(
            "reason",
            "text",
            lambda row: row.answer.get("reason") or row.decided.get("why"),
            doc="Why, as the model read it.",
        ),
        Column(
            "risk",
            "category",
            lambda row: (
                row.question.asked.data["risk"] if row.question else row.call.tool.get("risk")
            ),
            RISKS,
            "Its risk.",
        ),
        Column(
            "wait_ms",
            "float",
            lambda row: row.answer.get("wait_ms"),
            doc="Time to the answer; missing without one.",
        ),
        Column(
            "asked", "bool", lambda row: row.question is not None, doc="Whether somebody was asked."
        ),
        Column(
            "why",
            "text",
            lambda row: row.question.asked.data.get("why") if row.question else None,
            doc="Why it was asked.",
        ),
        Column("answered_by", "text", lambda row: row.answer.get("by"), doc="Who answered."),
        Column(
            "withdrawn",
            "text",
            lambda row: row.withdrawn,
            doc="What made the question needless before somebody answered, such as interrupt.",
        ),
        Column(
            "edited_args_json", "text", _edited, doc="Arguments that a gate or person put instead."
        ),
        Column("rule", "text", lambda row: row.decided.get("rule"), doc="The rule that decided."),
        Column(
            "position", "int", lambda row: row.call.position, doc="Place in the answer, from 0."
        ),
        *ids("entry", attempt=True),
    ],
    short="turn step name args_json decision source reason risk wait_ms",
)

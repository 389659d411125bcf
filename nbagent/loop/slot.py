"""One call on its way through the gates, and the texts of results that no body has written."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from nbagent.interfaces.gate import Decision, ToolCall, ToolResult

__all__ = [
    "UNKNOWN_OUTCOME",
    "Slot",
    "abandoned",
    "aborted",
    "not_started",
    "refused",
    "unknown",
    "withheld",
]

NOT_STARTED = "Error: tool call aborted before dispatch"
UNKNOWN_OUTCOME = (
    "Error: the tool call was stopped while it ran; its outcome is unknown. Repeat it only if it "
    "changes nothing, otherwise check first what it did."
)
WITHHELD = "Error: the result is withheld, because a gate behind the tool could not look at it."


class Slot:
    """The place of one call among the calls of its answer."""

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
        "started",
        "text",
    )

    def __init__(self, position: int, text: str) -> None:
        self.position = position
        self.text = text
        """The arguments as the model wrote them."""
        self.parsed = self.looked_at = self.settled = self.started = False
        self.call: ToolCall | None = None
        """None if the tool is unknown or the arguments don't fit."""
        self.repaired: str | None = None
        self.result: ToolResult | None = None
        self.duration_ms = 0.0
        self.running: asyncio.Task[None] | None = None
        self.edited = False
        """Whether the person has changed the arguments."""
        self.abandoned = False
        """Whether a thread or task may still be running the body."""

    def called(self) -> ToolCall:
        """The call, of a slot that has one."""
        if self.call is None:
            msg = f"call {self.position} was never read"
            raise RuntimeError(msg)
        return self.call


def not_started(*, masked: bool) -> str:
    """The result of a call that a crash kept from starting; masked ones can't be started later."""
    return f"{NOT_STARTED} (its arguments were masked)" if masked else NOT_STARTED


def unknown(name: str, tools: Iterable[str]) -> ToolResult:
    """The answer to a call of a tool that isn't there."""
    known = ", ".join(f"`{tool}`" for tool in tools) or "none"
    text = f"Error: there is no tool `{name}`. Tools: {known}."
    return ToolResult(text, status="error", error_type="UnknownTool")


def refused(call: ToolCall, decision: Decision) -> ToolResult:
    """The answer to a call that may not run."""
    who = {
        "person": "the person refused",
        "expired": "nobody answered in time",
        "failed": "nobody refused it, but nobody could be asked",
    }
    by = who.get(decision.source, f"refused ({decision.source})")
    why = f": {decision.why}" if decision.why else ""
    return ToolResult(f"`{call.name}` was not run, {by}{why}", status="denied")


def aborted(slot: Slot) -> ToolResult:
    """The result of a call that Stop has ended, or that it kept from starting."""
    if slot.abandoned:
        return abandoned(slot)
    text = UNKNOWN_OUTCOME if slot.started else NOT_STARTED
    return ToolResult(text, status="aborted", error_type="Aborted")


def abandoned(slot: Slot) -> ToolResult:
    """The result of a call whose body may still be running."""
    text = "Error: the tool call was stopped, but its body may still be running; outcome unknown."
    if slot.call is None or slot.call.risk != "readonly":
        text += " Check before you repeat it."
    slot.abandoned = True
    return ToolResult(text, status="abandoned", error_type="Abandoned")


def withheld(result: ToolResult) -> ToolResult:
    """The result in place of one that a gate should have seen first."""
    return ToolResult(WITHHELD, status=result.status, error_type=result.error_type)

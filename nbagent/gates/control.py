"""Control: no call starts after Stop."""

from __future__ import annotations

from nbagent.interfaces.gate import Decision, GateContext, ToolCall

__all__ = ["Control"]


class Control:
    """Refuses calls once the run was asked to stop."""

    def before(self, call: ToolCall, ctx: GateContext) -> Decision | None:
        """Refuse after Stop."""
        if ctx.cancelled:
            return Decision("deny", "the run was stopped", source="guard")
        return None

    def __repr__(self) -> str:
        return "Control()"

"""Timeout: a call that takes too long ends with a result that says so; the turn goes on."""

from __future__ import annotations

from nbagent.errors import ConfigError
from nbagent.interfaces.gate import GateContext, Next, ToolCall, ToolResult
from nbagent.interfaces.tool import Tool
from nbagent.keywords import check_keywords

__all__ = ["Timeout"]


class Timeout:
    """Ends a call after `seconds`, or after the tool's own `timeout_s`; 0 = no limit.

    A sync body can't be killed: it goes on in its thread, and its late value becomes a notice.
    """

    @check_keywords("Timeout")
    def __init__(self, seconds: float = 300) -> None:
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (number and seconds >= 0):
            msg = f"Timeout: seconds must be 0 (no limit) or more, not {seconds!r}"
            raise ConfigError(msg)
        self.seconds = seconds

    def for_tool(self, tool: Tool) -> Timeout | None:
        """Nothing for a tool without a limit."""
        return self if (self.seconds if tool.timeout_s is None else tool.timeout_s) else None

    async def around(self, call: ToolCall, ctx: GateContext, following: Next) -> ToolResult:
        """Run the body under a deadline."""
        seconds = self.seconds if call.tool.timeout_s is None else call.tool.timeout_s
        try:
            with ctx.deadline(seconds or None):
                return await following(call)
        except TimeoutError:
            still = "" if call.tool.is_async else " Its body may still be running."
            text = (
                f"Error: `{call.name}` was stopped after {seconds:g} s.{still} Try a smaller scope "
                "or another way."
            )
            return ToolResult(text, status="timeout", error_type="TimeoutError")

    def __repr__(self) -> str:
        return f"Timeout({self.seconds:g})"

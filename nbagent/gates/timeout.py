"""Timeout: a call that takes too long ends with a result that says so; the turn goes on."""

from __future__ import annotations

from typing import Any

from nbagent.errors import ConfigError
from nbagent.interfaces.gate import GateContext, Next, ToolCall, ToolResult
from nbagent.interfaces.tool import Tool
from nbagent.keywords import check_keywords

__all__ = ["Timeout"]


class Timeout:
    """Ends a call after `seconds`, or after the tool's own `timeout_s`; 0 = no limit.

    A sync body can't be killed. One that looks at `ctx.cancelled` and ends within 0.1 s still gives
    its result; any other goes on in its thread, and its late value becomes a notice.
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
        limit: Any = ctx.deadline(seconds or None)
        try:
            with limit:
                result = await following(call)
        except TimeoutError:
            text = _given_up(call, seconds)
            return ToolResult(text, status="timeout", error_type="TimeoutError")
        if not limit.fired:
            return result
        text = (
            f"[`{call.name}` was told to stop after {seconds:g} s, and ended with:]\n{result.text}"
        )
        return result.but(shown=text, status="timeout")

    def __repr__(self) -> str:
        return f"Timeout({self.seconds:g})"


def _given_up(call: ToolCall, seconds: float) -> str:
    still = "" if call.tool.is_async else " Its body may still be running."
    stopped = f"Error: `{call.name}` was stopped after {seconds:g} s"
    if call.risk == "readonly":
        return f"{stopped}.{still} Try a smaller scope or another way."
    return (
        f"{stopped}: outcome unknown, check before you repeat.{still} It may have done all of its "
        "work, a part or nothing."
    )

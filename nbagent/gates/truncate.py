"""Truncate: the model reads the head of a long result, the log keeps all of it."""

from __future__ import annotations

from nbagent.errors import ConfigError
from nbagent.interfaces.gate import GateContext, ToolCall, ToolResult
from nbagent.keywords import check_keywords

__all__ = ["Truncate"]


class Truncate:
    """Cuts what the model reads of a result to `limit` characters, with a notice of the sizes.

    Examples
    --------
    >>> from nbagent.interfaces.gate import ToolResult
    >>> Truncate(10).after(None, ToolResult("x" * 30), None).text.splitlines()[0]
    'xxxxxxxxxx'
    """

    @check_keywords("Truncate")
    def __init__(self, limit: int = 8_000) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            msg = f"Truncate: limit is a number of characters, at least 1, not {limit!r}"
            raise ConfigError(msg)
        self.limit = limit

    def after(
        self, call: ToolCall | None, result: ToolResult, ctx: GateContext | None
    ) -> ToolResult:
        """Cut what is too long."""
        del call, ctx
        text = result.text
        if len(text) <= self.limit:
            return result
        shown = (
            f"{text[: self.limit]}\n[cut: the result has {len(text):,} characters, the first "
            f"{self.limit:,} are shown; ask for less, or for a part of it]"
        )
        return result.but(shown=shown, meta={**result.meta, "truncated": True})

    def __repr__(self) -> str:
        return f"Truncate({self.limit})"

"""The gate seam: rules around one tool call.

A gate is a function ``gate(call, ctx) -> Decision | None`` or an object with one or more of::

    before(call, ctx) -> Decision | None      in model order, before anything runs
    around(call, ctx, next) -> ToolResult     wraps the body; bodies may overlap
    after(call, result, ctx) -> ToolResult    in model order, when the body has ended

each sync or async. Gates return; the loop records. A user's gate can only tighten: `allow` and
None leave the decision to the gates behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import orjson

if TYPE_CHECKING:
    from nbagent.interfaces.tool import Risk, Tool

__all__ = [
    "Decision",
    "Gate",
    "GateContext",
    "Next",
    "Status",
    "ToolCall",
    "ToolResult",
    "allow",
    "ask",
    "deny",
    "rewrite",
]

Status = Literal["ok", "error", "denied", "timeout", "aborted", "abandoned"]
Action = Literal["allow", "deny", "ask", "rewrite"]


class ToolCall(NamedTuple):
    """One call that has passed validation."""

    tool: Tool
    arguments: dict[str, Any]
    """Plain JSON: parsed, repaired, defaults filled in, validated."""
    turn: int
    step: int
    position: int
    """Place among the calls of the answer, from 0."""
    id: str
    """The id the provider sees."""
    bound: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    """What the function is called with."""
    must_ask: bool = False
    """A gate in front has asked: neither its risk nor the mode may allow it, somebody must."""
    why: str | None = None
    """Why that gate asked."""

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    @property
    def ref(self) -> str:
        """The capability, `cap://tool/domain/name@version`."""
        return self.tool.ref

    @property
    def risk(self) -> Risk:
        """readonly, mutating, dangerous or unspecified."""
        return self.tool.risk

    @property
    def key(self) -> tuple[int, int, int]:
        """(turn, step, position): what identifies a call within a session."""
        return (self.turn, self.step, self.position)

    @property
    def canonical(self) -> bytes:
        """The arguments as JSON with sorted keys."""
        return orjson.dumps(self.arguments, option=orjson.OPT_SORT_KEYS)

    @property
    def fingerprint(self) -> str:
        """`tool:arguments`, what an answer to a question is bound to."""
        import hashlib

        return (
            f"{self.tool.fingerprint}:{hashlib.blake2b(self.canonical, digest_size=8).hexdigest()}"
        )

    def but(self, **changes: Any) -> ToolCall:
        """A copy with some fields changed."""
        return self._replace(**changes)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate decided; made by `nb.allow`, `nb.deny`, `nb.ask`, `nb.rewrite`."""

    action: Action
    why: str = ""
    """Read by the model (deny) or by the person (ask)."""
    arguments: Mapping[str, Any] | None = None
    source: str = "guard"
    """guard, list, rule, mode, repeated, remembered, handler, person, unattended, expired, budget."""
    rule: str | None = None
    """The rule or the remembered answer that decided."""


def allow() -> Decision:
    """No objection; gates further in still decide.

    Examples
    --------
    >>> allow().action
    'allow'
    """
    return Decision("allow")


def deny(why: str = "not allowed") -> Decision:
    """The call doesn't run; the model reads why."""
    return Decision("deny", why)


def ask(why: str = "") -> Decision:
    """The call must be allowed by somebody: neither its risk nor the mode may allow it.

    Somebody is a person, an "always" that a person has said of this tool (whatever it was asked
    for then), the approval's handler, or, where nobody can be asked, `when_unattended`.
    """
    return Decision("ask", why)


def rewrite(arguments: Mapping[str, Any]) -> Decision:
    """The call goes on with these arguments, validated again; the log keeps both.

    Examples
    --------
    >>> rewrite({"limit": 5}).arguments
    {'limit': 5}
    """
    return Decision("rewrite", arguments=dict(arguments))


class ToolResult(NamedTuple):
    """What came of a call."""

    raw: str
    """The whole result as text (JSON where the tool gave structured data)."""
    shown: str | None = None
    """What the model reads, if not all of `raw`."""
    status: Status = "ok"
    error_type: str | None = None
    """Class of the exception that a body raised."""
    meta: Mapping[str, Any] = MappingProxyType({})
    """Facts about the result for the tables, plain JSON (such as `truncated`)."""

    @property
    def text(self) -> str:
        """What the model reads."""
        return self.raw if self.shown is None else self.shown

    def but(self, **changes: Any) -> ToolResult:
        """A copy with some fields changed."""
        return self._replace(**changes)


class GateContext(Protocol):
    """The only way of a gate to the world outside its arguments."""

    @property
    def cancelled(self) -> bool:
        """True after Stop."""
        ...

    @property
    def deps(self) -> Any:
        """What was given as `agent.run(…, deps=…)`."""
        ...

    @property
    def session_id(self) -> str:
        """The session's id."""
        ...

    def note(self, kind: str, data: Any = None) -> None:
        """Put something into the log (table "notes"); `data` must be plain JSON."""
        ...

    def deadline(self, seconds: float | None) -> AbstractContextManager[Any]:
        """Let what runs inside end after so many seconds with `TimeoutError`; None = no limit."""
        ...

    def refused(self, call: ToolCall) -> bool:
        """Whether the same tool with the same arguments was refused earlier in this turn."""
        ...

    def remembered(self, call: ToolCall) -> tuple[bool, str] | None:
        """A remembered answer (allowed?, which answer) for this tool, None if there is none."""
        ...

    def answer(self, call: ToolCall) -> Decision | None:
        """The person's answer to this very call, None if none was given."""
        ...

    @property
    def attended(self) -> bool:
        """Whether somebody can be asked."""
        ...


Next = Callable[["ToolCall"], Awaitable[ToolResult]]
Gate = Any
"""A function `(call, ctx) -> Decision | None`, or an object with before, around, after."""

"""The gate seam: rules around one tool call.

A gate is a function ``gate(call, ctx) -> Decision | None`` or an object with one or more of::

    before(call, ctx) -> Decision | None      in model order, before anything runs
    around(call, ctx, next) -> ToolResult     wraps the body; bodies may overlap
    after(call, result, ctx) -> ToolResult    in model order, when the body has ended

each sync or async. Gates return; the loop records. A user's gate can only tighten: `allow` and
None leave the decision to the gates behind it. A gate is asked again when a question about the call
was answered, and of arguments that a person has changed: what it says must depend on the call only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import orjson

from nbagent.keywords import record

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
    "blame",
    "deny",
    "gate_name",
    "rewrite",
]

Status = Literal["ok", "error", "denied", "timeout", "aborted", "abandoned"]
Action = Literal["allow", "deny", "ask", "rewrite"]


class ToolCall(NamedTuple):
    """One call that has passed validation, as gates and approval handlers see it.

    Parameters
    ----------
    tool
        The tool; `name`, `risk` and `ref` are also here.
    arguments
        Plain JSON: parsed, repaired, defaults filled in, validated. To change them return
        `nb.rewrite({…})`; changed in place they end the run with an error.
    turn, step
        Where it is, both from 1.
    position
        Place among the calls of the answer, from 0.
    id
        The id the provider sees; not unique within a session, `key` is.
    bound
        What the function is called with: (positional, keyword) arguments in its own types, a
        `datetime` where `arguments` has text.
    must_ask
        Whether a gate in front has asked (`nb.ask`): then its risk, an allow rule and the mode don't
        allow it, somebody must.
    why
        Why that gate asked.
    """

    tool: Tool
    arguments: dict[str, Any]
    turn: int
    step: int
    position: int
    id: str
    bound: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    must_ask: bool = False
    why: str | None = None

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


@record()
@dataclass(frozen=True, slots=True)
class Decision:
    """What a gate decided; made by `nb.allow`, `nb.deny`, `nb.ask`, `nb.rewrite`.

    Parameters
    ----------
    action
        allow, deny, ask or rewrite.
    why
        Read by the model (deny) or by the person (ask).
    arguments
        Of rewrite: all arguments to go on with.
    source
        Who decided: guard (a gate of yours, or a stop), list, rule, mode, repeated (refused before in
        this turn), remembered, handler, person, unattended, expired, failed (the approver raised or
        gave no answer that could be taken) or budget.
    rule
        Which one decided: the rule, the remembered answer, the name of your gate.
    """

    action: Action
    why: str = ""
    arguments: Mapping[str, Any] | None = None
    source: str = "guard"
    rule: str | None = None


def allow() -> Decision:
    """No objection; gates further in still decide.

    Examples
    --------
    >>> allow().action
    'allow'
    """
    return Decision("allow")


def deny(why: str = "not allowed") -> Decision:
    """The call doesn't run; the model reads why, the tables name the gate (column `rule`).

    Examples
    --------
    >>> deny("too large").why
    'too large'
    """
    return Decision("deny", why)


def ask(why: str = "") -> Decision:
    """The call must be allowed by somebody: its risk, an allow rule and the mode don't do it.

    Somebody is a person, an "always" that a person has said of this tool (whatever it was asked
    for then), the approval's handler, or, where nobody can be asked, `when_unattended`.

    Parameters
    ----------
    why
        Shown to the person.

    Examples
    --------
    >>> ask("a large number").action
    'ask'
    """
    return Decision("ask", why)


def rewrite(arguments: Mapping[str, Any]) -> Decision:
    """The call goes on with these arguments, validated again; the log keeps both.

    Give all of them. Asking as well takes a second gate: a gate returns one decision.

    Examples
    --------
    >>> given = {"query": "owls", "limit": 500}
    >>> rewrite({**given, "limit": 5}).arguments
    {'query': 'owls', 'limit': 5}
    """
    return Decision("rewrite", arguments=dict(arguments))


class ToolResult(NamedTuple):
    """What came of a call, as gates around and behind it see and return it.

    Parameters
    ----------
    raw
        The whole result as text (JSON where the tool gave structured data).
    shown
        What the model reads instead of `raw`; None = all of it.
    status
        ok; error (the body raised, or the arguments didn't fit); denied; timeout; aborted (stopped);
        abandoned (stopped, but the body may still be running).
    error_type
        Class of the exception that the body raised, by name.
    meta
        Facts about the result for the tables, plain JSON (such as `truncated`).

    Examples
    --------
    >>> ToolResult("a long text").but(shown="a …").text
    'a …'
    """

    raw: str
    shown: str | None = None
    status: Status = "ok"
    error_type: str | None = None
    meta: Mapping[str, Any] = MappingProxyType({})

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
        """True once the run was asked to stop."""
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
        """Put something into the log (table notes); `data` must be plain JSON."""
        ...

    def tell(self, kind: str, text: str) -> None:
        """Something that a person must see: a notice and a line on screen, once in a run."""
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


def gate_name(gate: Any) -> str:
    """What a gate, or one of its stages, is called in tables and errors."""
    owner = getattr(gate, "__self__", None)
    name = type(owner).__name__ if owner is not None else getattr(gate, "__name__", None)
    return name if isinstance(name, str) else type(gate).__name__


def blame(error: BaseException, gate: Any, about: str) -> None:
    """Name the gate that raised, in a note of the error; the first to be named stays so."""
    start = "raised by the gate "
    if not any(str(note).startswith(start) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{start}`{gate_name(gate)}`, about {about}")

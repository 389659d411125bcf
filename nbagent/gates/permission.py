"""Permission: whether a call may run.

One resolver; the first of these that decides::

    1. the deny list, or absence from a non-empty allow list → deny
    2. any deny rule → deny
    3. mode `deny`, and the tool is not readonly → deny
    4. the same call was refused earlier in this turn → deny
    5. the first matching allow or ask rule: allow → allow (in mode `plan` only what is readonly);
       ask → a person must be asked
    6. mode `auto`, and nobody must be asked → allow
    7. a remembered answer (never for dangerous tools; allow not in mode `plan`)
    8. readonly, nobody must be asked, and no handler (or mode `plan`) → allow
    9. the handler → allow, deny or ask
    10. a person; where nobody can be asked, what `when_unattended` says
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbagent.errors import ConfigError
from nbagent.gates.rules import Rule, parse_rules
from nbagent.interfaces.gate import Decision, GateContext, ToolCall
from nbagent.interfaces.tool import Tool
from nbagent.keywords import record

__all__ = ["Approval", "Permission"]

_BY_MODE = Decision("allow", source="mode")
MODES = ("interactive", "plan", "auto", "deny")
LONGEST_S = 1e9
"""Seconds: the log holds the time of expiry as a whole number of milliseconds."""
Handler = Callable[[ToolCall], "str | Awaitable[str]"]


@record(keywords=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """Who may run what: by risk, by rules, by your code, by a person.

    Parameters
    ----------
    mode
        "interactive": what is readonly runs, the rest asks. "plan": the same, and neither an allow
        rule nor a remembered yes lets the rest run. "auto": what no rule or gate stops runs. "deny":
        what is not readonly is refused.
    rules
        Texts `action ref` or `action ref(argument=pattern, …)`, or made by `nb.rule`; action is
        allow, ask or deny, ref a tool's name, `domain/name` or a whole `cap://…`; `*` at the end of a
        name or pattern stands for the rest. Any deny that fits wins, otherwise the first rule that
        fits. Patterns match an argument's text: a convenience, no sandbox.
    remember
        How long an "always" answer holds: "agent" = as long as the agent object, "session" = with
        the session's log, None = such answers can't be given.
    handler
        Code that is asked before a person: `handler(call: ToolCall) -> "allow" | "deny" | "ask"`,
        sync or async; "ask" leaves it to the person. It is asked about all that no rule, no
        remembered answer and not the mode "auto" has decided, readonly tools too (except in mode
        "plan"). It may be asked more than once for one call, since calls are looked at again after
        each answer. One that raises, says something else or awaits longer than `timeout_s` refuses.
    when_unattended
        What becomes of a question where nobody can be asked: "deny" or "allow".
    timeout_s
        Seconds after which a question counts as refused; None = never.

    Examples
    --------
    >>> Approval(rules=["allow search", "deny shell(cmd=rm *)"]).mode
    'interactive'
    >>> def small_files(call: ToolCall) -> str:
    ...     return "allow" if len(call.arguments.get("text", "")) < 1000 else "ask"
    >>> approval = Approval(handler=small_files, timeout_s=60)
    """

    mode: Literal["interactive", "plan", "auto", "deny"] = "interactive"
    rules: Sequence[str | Rule] = ()
    remember: Literal["agent", "session"] | None = "agent"
    handler: Handler | None = None
    when_unattended: Literal["deny", "allow"] = "deny"
    timeout_s: float | None = 600
    parsed: tuple[Rule, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        _one_of("mode", self.mode, MODES)
        _one_of("remember", self.remember, ("agent", "session", None))
        _one_of("when_unattended", self.when_unattended, ("deny", "allow"))
        if self.timeout_s is not None and not _is_time(self.timeout_s):
            msg = f"Approval: timeout_s must be seconds above 0 or None, not {self.timeout_s!r}"
            raise ConfigError(msg)
        if self.handler is not None and not callable(self.handler):
            msg = f"Approval: handler must be a function, not {self.handler!r}"
            raise ConfigError(msg)
        object.__setattr__(self, "parsed", parse_rules(self.rules))


def _is_time(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= LONGEST_S


def _one_of(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        msg = f"Approval: {name} must be one of {words}, not {value!r}"
        raise ConfigError(msg)


class Permission:
    """The resolver as a gate; the agent gives it its `Approval` and its tool lists."""

    decides = True

    def __init__(
        self,
        approval: Approval | None = None,
        *,
        allowed: Sequence[str] | None = None,
        disallowed: Sequence[str] = (),
    ) -> None:
        self.approval = approval or Approval()
        self.allowed, self.disallowed = allowed, disallowed
        self.default = approval is None and allowed is None and not disallowed
        """Whether it was made without settings of its own."""

    def for_tool(self, tool: Tool) -> _Resolver:
        """The resolver with what concerns this tool picked out."""
        listed = None
        if tool.name in self.disallowed:
            listed = "it is on the agent's list of disallowed tools"
        elif self.allowed and tool.name not in self.allowed:
            listed = "it is not on the agent's list of allowed tools"
        return _Resolver(self.approval, tool, listed)

    def before(self, call: ToolCall, ctx: GateContext) -> Any:
        """Decide."""
        return self.for_tool(call.tool).before(call, ctx)

    def __repr__(self) -> str:
        return f"Permission(mode={self.approval.mode!r}, {len(self.approval.parsed)} rules)"


class _Resolver:
    """The resolver for one tool."""

    decides = True

    def __init__(self, approval: Approval, tool: Tool, listed: str | None) -> None:
        self.approval, self.listed = approval, listed
        rules = [rule for rule in approval.parsed if rule.names(tool)]
        self.denying = tuple(rule for rule in rules if rule.action == "deny")
        self.others = tuple(rule for rule in rules if rule.action != "deny")
        self.readonly = tool.risk == "readonly"
        self.dangerous = tool.risk == "dangerous"
        self.plan = approval.mode == "plan"

    def before(self, call: ToolCall, ctx: GateContext) -> Decision | Awaitable[Decision]:
        """Decide; awaitable if a handler is to be asked."""
        refusal = self._refused(call)
        if refusal is not None:
            return refusal
        if ctx.refused(call):
            return Decision("deny", "the same call was refused already", source="repeated")
        if ctx.answer(call) is not None:
            return self._person(call, ctx, "")  # said of this very call: nothing newer overrules it
        must_ask, why = call.must_ask, call.why
        ruled = self._ruled(call)
        if ruled is not None and ruled.action == "ask":
            must_ask, why = True, why or f"rule: {ruled}"
        elif ruled is not None and not must_ask and (self.readonly or not self.plan):
            return Decision("allow", source="rule", rule=str(ruled))
        if self.approval.mode == "auto" and not must_ask:
            return Decision("allow", source="mode")
        remembered = None if self.dangerous else ctx.remembered(call)
        if remembered is not None:
            allowed, which = remembered
            if not allowed:
                why_not = "the person has said to always refuse it"
                return Decision("deny", why_not, source="remembered", rule=which)
            if not self.plan:
                return Decision("allow", source="remembered", rule=which)
        handler = self.approval.handler
        if self.readonly and not must_ask and (handler is None or self.plan):
            return _BY_MODE
        reason = why or _reason(call, plan=self.plan)
        if handler is not None:
            return self._handled(handler, call, ctx, reason)
        return self._person(call, ctx, reason)

    def _ruled(self, call: ToolCall) -> Rule | None:
        """The first allow or ask rule that fits."""
        for rule in self.others:
            if rule.fits(call.arguments):
                return rule
        return None

    def _refused(self, call: ToolCall) -> Decision | None:
        """Steps 1 to 3: what nobody can allow."""
        if self.listed is not None:
            return Decision("deny", self.listed, source="list")
        for rule in self.denying:
            if rule.fits(call.arguments):
                return Decision("deny", f"rule: {rule}", source="rule", rule=str(rule))
        if self.approval.mode == "deny" and not self.readonly:
            return Decision("deny", "only readonly tools may run", source="mode")
        return None

    async def _handled(
        self, handler: Handler, call: ToolCall, ctx: GateContext, reason: str
    ) -> Decision:
        try:
            with ctx.deadline(self.approval.timeout_s):
                word = await _said(handler, call)
        except Exception as error:  # noqa: BLE001 - a handler that fails allows nothing
            return _failed(ctx, f"the approval handler failed ({type(error).__name__}: {error})")
        if word == "allow":
            return Decision("allow", source="handler")
        if word == "deny":
            return Decision("deny", "refused by the approval handler", source="handler")
        if word != "ask":
            return _failed(ctx, f"the approval handler gave {word!r}, not allow, deny or ask")
        return self._person(call, ctx, reason)

    def _person(self, call: ToolCall, ctx: GateContext, reason: str) -> Decision:
        answer = ctx.answer(call)
        if answer is not None:
            if answer.arguments is not None:
                refusal = self._refused(call.but(arguments=dict(answer.arguments)))
                if refusal is not None:
                    return refusal
            return answer
        if ctx.attended:
            return Decision("ask", reason)
        if self.approval.when_unattended == "allow":
            return Decision("allow", source="unattended")
        why = f"it needs approval ({reason}) and nobody can be asked"
        return Decision("deny", why, source="unattended")


def _failed(ctx: GateContext, what: str) -> Decision:
    ctx.tell("handler-failed", what)
    return Decision("deny", what, source="handler")


async def _said(handler: Handler, call: ToolCall) -> str:
    # A copy: what the handler does to the arguments must not reach the rules, the log or the body.
    said = handler(call.but(arguments=copy.deepcopy(call.arguments)))
    if not inspect.isawaitable(said):
        return said
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await said
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling() > before:
            raise
        # Nobody has cancelled this run: the handler awaited something that was cancelled elsewhere.
        msg = "cancelled from inside"
        raise RuntimeError(msg) from error


def _reason(call: ToolCall, *, plan: bool) -> str:
    if plan:
        return "the agent is in plan mode"
    if call.risk == "unspecified":
        return "its risk is not declared, so it counts as mutating"
    return f"it is {call.risk}"

"""From an agent's settings to a plan: the only place with orders and defaults.

Gates stand in this order, outermost first, whatever the order they were given in (yours keep theirs
among themselves)::

    control › your gates › permission › barrier › truncate › time-out › tool
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from nbagent.errors import ConfigError
from nbagent.gates import Control, Permission, Timeout, Truncate
from nbagent.gates.checking import check_gates, pick
from nbagent.gates.memory import AgentMemory
from nbagent.gates.permission import Approval
from nbagent.gates.rules import unknown_rules
from nbagent.interfaces.checks import check_list, check_number, check_whole
from nbagent.interfaces.model import Header, Model
from nbagent.interfaces.plan import Budget, CellThread, Chain, Facts, Plan, Recovery, Reminder
from nbagent.interfaces.review import Reviewer
from nbagent.interfaces.tool import Arguments, Tool
from nbagent.keywords import record
from nbagent.messages import scrub
from nbagent.models.resolve import resolve
from nbagent.tools import (
    collected,
    complete,
    error_text,
    in_wrong_place,
    rebind,
    to_text,
    tool,
)

__all__ = ["DEFAULT_GATES", "DEFAULT_REVIEWERS", "AgentSpec", "Settings", "assemble", "gate_table"]

DEFAULT_GATES: tuple[Any, ...] = (Control(), Permission(), Truncate(8_000), Timeout(300))
"""The gates of an agent that is given none."""

DEFAULT_REVIEWERS: tuple[Reviewer, ...] = ()
"""The reviewers of an agent that is given none; there are none yet."""

_ORDER: dict[type, int] = {Control: 0, Permission: 2, Truncate: 3, Timeout: 4}
_YOURS = 1


@record(keywords=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How the model is asked; what is not set is not sent.

    Parameters
    ----------
    temperature
        0 = the likeliest words, higher = more varied ones; None = as the provider likes.
    max_tokens
        Most tokens of one answer; one that was cut is continued (`Agent(max_continuations=…)`).
    seed
        For providers that can repeat an answer.
    stop
        A text, or several, at which the answer ends.
    timeout_s
        Seconds without a sign of life from the provider before a request counts as failed.
    tool_choice
        "auto", "required" (some tool), "none" or a tool's name. It holds for every request, so a run
        that must call goes on until `max_steps`; for "once at least" there is `must_call`.
    must_call
        Names of tools. A final answer is sent back, once for each, until the tool has returned, been
        refused or failed twice.
    extra
        Further fields of the provider's request, as they are.

    Examples
    --------
    >>> Settings(temperature=0, max_tokens=500).to_dict()
    {'temperature': 0, 'max_tokens': 500}
    """

    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    timeout_s: float = 120
    tool_choice: str = "auto"
    must_call: tuple[str, ...] | Sequence[str] = ()
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_number("Settings", "temperature", self.temperature)
        check_whole("Settings", "max_tokens", self.max_tokens, optional=True)
        check_whole("Settings", "seed", self.seed, least=-(1 << 53), optional=True)
        check_number("Settings", "timeout_s", self.timeout_s, above=True, optional=False)
        if not isinstance(self.tool_choice, str):
            msg = f"Settings: tool_choice must be text, not {self.tool_choice!r}"
            raise ConfigError(msg)
        try:
            orjson.dumps(dict(self.extra))
        except (TypeError, ValueError) as error:
            msg = f"Settings: extra must be plain JSON, not {self.extra!r} ({error})"
            raise ConfigError(msg) from None
        if isinstance(self.must_call, str):
            msg = f"Settings: must_call is a list of names: write must_call=({self.must_call!r},)"
            raise ConfigError(msg)

    def to_dict(self) -> dict[str, Any]:
        """What is set, as it stands in the request header."""
        stop = list(self.stop) if self.stop and not isinstance(self.stop, str) else self.stop
        values = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": self.seed,
            "stop": stop,
            "timeout_s": None if self.timeout_s == 120 else self.timeout_s,
            "tool_choice": None if self.tool_choice == "auto" else self.tool_choice,
            "extra": dict(self.extra) or None,
        }
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """What an agent was given, checked."""

    name: str
    model: Model
    instructions: str
    tools: tuple[Tool, ...]
    approval: Approval
    budget: Budget
    reviewers: tuple[Reviewer, ...]
    gates: tuple[Any, ...]
    max_steps: int
    max_parallel_tools: int
    max_continuations: int
    settings: Settings
    allowed_tools: tuple[str, ...] | None
    disallowed_tools: tuple[str, ...]
    recovery: Recovery


def check_spec(
    model: str | Model,
    tools: Sequence[Any],
    gates: Sequence[Any],
    reviewers: Sequence[Any],
    **rest: Any,
) -> AgentSpec:
    """Settings as they were given, made into a checked record.

    Raises
    ------
    ConfigError
        Naming the setting that is wrong and the way out.
    """
    for name in ("max_steps", "max_parallel_tools"):
        check_whole("Agent", name, rest[name])
    check_whole("Agent", "max_continuations", rest["max_continuations"], least=0)
    if not isinstance(rest["instructions"], str):
        msg = f"instructions must be text, not {type(rest['instructions']).__name__}"
        raise ConfigError(msg)
    if not isinstance(rest["name"], str) or not rest["name"].strip():
        msg = f"name must be a text that is not empty, not {rest['name']!r}"
        raise ConfigError(msg)
    for name, kind in (
        ("approval", Approval),
        ("budget", Budget),
        ("settings", Settings),
        ("recovery", Recovery),
    ):
        if rest[name] is None:
            rest[name] = kind()
        if not isinstance(rest[name], kind):
            msg = f"{name} must be made by nb.{kind.__name__}(…), not {type(rest[name]).__name__}"
            raise ConfigError(msg)
    spec = AgentSpec(
        model=resolve(model),
        tools=check_tools(tools),
        gates=check_gates(gates),
        reviewers=_check_reviewers(reviewers),
        **rest,
    )
    _check_names(spec)
    for slip in unknown_rules(spec.approval.parsed, spec.tools) if spec.tools else ():
        warnings.warn(slip, stacklevel=3)
    return spec


def check_tools(tools: Sequence[Any]) -> tuple[Tool, ...]:
    """Tools as they were given; plain functions are made into tools.

    Raises
    ------
    ConfigError
        If two have one name, or something is no tool.
    """
    check_list("tools", tools, "tools=[my_tool]")
    out: dict[str, Tool] = {}
    for given in tools:
        made = given if isinstance(given, Tool) else tool(given) if callable(given) else None
        if made is None:
            msg = f"tools holds {given!r}, which is neither a tool nor a function: use @nb.tool"
            raise ConfigError(msg)
        if made.name in out:
            msg = f"two tools are called `{made.name}`: give one another name, @nb.tool(name=…)"
            raise ConfigError(msg)
        out[made.name] = complete(made)
    return tuple(out.values())


def with_settings(spec: AgentSpec, settings: Settings) -> AgentSpec:
    """The same agent asked in another way.

    Raises
    ------
    ConfigError
        If it is not made by `nb.Settings`, or names a tool that isn't there.
    """
    if not isinstance(settings, Settings):
        msg = f"settings must be made by nb.Settings(…), not {type(settings).__name__}"
        raise ConfigError(msg)
    changed = replace(spec, settings=settings)
    _check_names(changed)
    return changed


def assemble(
    spec: AgentSpec,
    *,
    memory: AgentMemory,
    pool: Callable[[], Executor],
    cell: Callable[[], CellThread],
) -> Plan:
    """The plan of one agent; pure."""
    tools = tuple(sorted(spec.tools, key=lambda t: t.name))
    header = Header(
        spec.model.name,
        scrub(spec.instructions),
        tuple(t.spec for t in tools),
        spec.settings.to_dict(),
    )
    return Plan(
        agent=spec.name,
        model=spec.model,
        header=header,
        tools={t.name: t for t in tools},
        chain=_Chains(spec).__getitem__,
        reviewers=tuple((_name_of(reviewer), reviewer) for reviewer in spec.reviewers),
        reminders=_reminders(spec.budget),
        recovery=spec.recovery,
        budget=spec.budget,
        must_call=tuple(spec.settings.must_call),
        max_steps=spec.max_steps,
        max_parallel_tools=spec.max_parallel_tools,
        max_continuations=spec.max_continuations,
        remember=spec.approval.remember,
        memory=memory,
        question_timeout_s=spec.approval.timeout_s,
        read=_read,
        rebind=rebind,
        collect=collected,
        render=to_text,
        render_error=error_text,
        in_wrong_place=in_wrong_place,
        pool=pool,
        cell=cell,
    )


def _reminders(budget: Budget) -> tuple[Reminder, ...]:
    last = Reminder("last-step", _last_step)
    limited = budget.max_model_calls is not None or budget.max_tokens is not None
    return (Reminder("budget", _near_budget), last) if limited else (last,)


class _Chains(dict[Tool, Chain]):
    """The compiled gates of each tool, made on first use."""

    def __init__(self, spec: AgentSpec) -> None:
        super().__init__()
        self.spec = spec

    def __missing__(self, tool_: Tool) -> Chain:
        found = self[tool_] = _compile(self.spec, tool_)
        return found


def gate_table(spec: AgentSpec) -> list[tuple[str, str, str]]:
    """(tool, stage, gate) of every gate that can act, in order."""
    rows: list[tuple[str, str, str]] = []
    for tool_ in spec.tools:
        for gate in _ordered(spec):
            acting = pick(gate, tool_)
            if acting is None:
                continue
            stages = [s for s in ("before", "around", "after") if hasattr(acting, s)]
            rows.append((tool_.name, ", ".join(stages) or "before", _name_of(gate)))
    return rows


def _read(tool_: Tool, text: str) -> Arguments:
    if tool_.reader is None:
        msg = f"tool `{tool_.name}` has no reader"
        raise ConfigError(msg)
    return tool_.reader(text)


def _ordered(spec: AgentSpec) -> list[Any]:
    permission = Permission(
        spec.approval, allowed=spec.allowed_tools, disallowed=spec.disallowed_tools
    )
    others = [gate for gate in spec.gates if not isinstance(gate, Permission)]
    return sorted([*others, permission], key=_rank)


def _rank(gate: Any) -> int:
    return _ORDER.get(gate.__class__, _YOURS)


def _compile(spec: AgentSpec, tool_: Tool) -> Chain:
    before: list[tuple[Callable[..., Any], bool, bool]] = []
    around: list[Callable[..., Any]] = []
    after: list[Callable[..., Any]] = []
    for gate in _ordered(spec):
        acting = pick(gate, tool_)
        if acting is None:
            continue
        stages = [getattr(acting, stage, None) for stage in ("before", "around", "after")]
        if not any(stages):
            stages[0] = acting
        if stages[0] is not None:
            decides = getattr(acting, "decides", False) is True
            before.append((stages[0], decides, type(gate) not in _ORDER))
        if stages[1] is not None:
            around.append(stages[1])
        if stages[2] is not None:
            after.insert(0, stages[2])
    return Chain(tuple(before), tuple(around), tuple(after))


def _check_reviewers(reviewers: Sequence[Any]) -> tuple[Reviewer, ...]:
    check_list("reviewers", reviewers, "reviewers=[my_reviewer, *nb.DEFAULT_REVIEWERS]")
    for reviewer in reviewers:
        if not callable(reviewer) or isinstance(reviewer, type):
            msg = f"reviewers holds {reviewer!r}: a reviewer is a function (attempt) -> nb.Verdict"
            raise ConfigError(msg)
    return tuple(reviewers)


def _check_names(spec: AgentSpec) -> None:
    known = {tool_.name for tool_ in spec.tools}
    lists = {
        "settings.must_call": spec.settings.must_call,
        "allowed_tools": spec.allowed_tools or (),
        "disallowed_tools": spec.disallowed_tools,
    }
    if spec.settings.tool_choice not in ("auto", "required", "none"):
        lists["settings.tool_choice"] = (spec.settings.tool_choice,)
    for where, names in lists.items():
        unknown = [name for name in names if name not in known]
        if unknown:
            have = ", ".join(sorted(known)) or "none"
            msg = f"{where} names `{unknown[0]}`, which is no tool of this agent (tools: {have})"
            raise ConfigError(msg)


def _name_of(thing: Any) -> str:
    name = getattr(thing, "name", None) or getattr(thing, "__name__", None)
    return name if isinstance(name, str) else type(thing).__name__


def _near_budget(facts: Facts) -> str | None:
    budget, (calls, tokens) = facts.budget, facts.spent
    near_calls = budget.max_model_calls is not None and calls * 10 >= budget.max_model_calls * 8
    near_tokens = budget.max_tokens is not None and tokens * 10 >= budget.max_tokens * 8
    if not (near_calls or near_tokens):
        return None
    return (
        f"The budget of this {budget.per} is nearly used up. Answer now from what you have; "
        "call no more tools."
    )


def _last_step(facts: Facts) -> str | None:
    if facts.answer < facts.max_steps or facts.max_steps == 1:
        return None
    return (
        "This is the last answer of this turn. Give the final answer, and say what is left to do."
    )

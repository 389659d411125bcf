"""The plan of a run: an agent's settings, assembled into what the loop needs.

`assembly.py` builds it; the loop reads it and knows no feature.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from nbagent.errors import ConfigError
from nbagent.interfaces.checks import check_number, check_whole
from nbagent.interfaces.gate import ToolCall
from nbagent.interfaces.model import Header, Model
from nbagent.interfaces.review import Reviewer
from nbagent.interfaces.tool import Arguments, Tool
from nbagent.keywords import record

__all__ = ["Budget", "CellThread", "Chain", "Facts", "Memory", "Plan", "Recovery", "Reminder"]


@record(keywords=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of what a run (or a whole session) may spend; None = no limit.

    At 80 % of its model calls or tokens the model is asked, in each request, to finish. What is over
    the limit is refused before it happens: a run then ends with `stop_reason="budget"`, a tool call
    beyond `max_tool_calls` gets a refusal as its result.

    Parameters
    ----------
    max_model_calls
        Answers asked of the model; a reviewer's retry counts, a repeat after an error does not.
    max_tokens
        Tokens read and written, of all attempts; checked before each model call, so the last one
        may go beyond. What has failed is not asked for again if that, costing as much once more,
        would go beyond.
    max_tool_calls
        Calls that were allowed to run.
    max_seconds
        Of one run, waiting for people included.
    per
        What the three counts are of: "run" = each run anew, "session" = all runs of its session
        together. `max_seconds` is always per run.

    Examples
    --------
    >>> Budget(max_model_calls=20, max_seconds=60).per
    'run'
    """

    max_model_calls: int | None = None
    max_tokens: int | None = None
    max_tool_calls: int | None = None
    max_seconds: float | None = None
    per: str = "run"

    def __post_init__(self) -> None:
        for name in ("max_model_calls", "max_tokens", "max_tool_calls"):
            check_whole("Budget", name, getattr(self, name), optional=True)
        check_number("Budget", "max_seconds", self.max_seconds, above=True)
        if self.per not in ("run", "session"):
            msg = f'Budget: per must be "run" or "session", not {self.per!r}'
            raise ConfigError(msg)


@record(keywords=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How often and how soon a failed model call is repeated.

    Only what may pass is repeated: `error.recoverable`, such as an overloaded provider. An answer
    with neither words nor a call is repeated once; if it is empty again, it is the answer.

    Parameters
    ----------
    attempts
        Tries per model call, the first included: 3 = at most two repeats, 1 = none.
    base_s
        Seconds before the first repeat; doubled for each further one.
    cap_s
        The longest wait; a wait that the provider asks for wins, up to 60 s: one that asks for more
        is not asked again.

    Examples
    --------
    >>> Recovery(attempts=1).base_s
    0.5
    """

    attempts: int = 3
    base_s: float = 0.5
    cap_s: float = 8.0

    def __post_init__(self) -> None:
        check_whole("Recovery", "attempts", self.attempts)
        check_number("Recovery", "base_s", self.base_s, optional=False)
        check_number("Recovery", "cap_s", self.cap_s, optional=False)


class Chain(NamedTuple):
    """The gates that can act on one tool, in order, compiled once."""

    before: tuple[tuple[Callable[..., Any], bool, bool], ...]
    """(function, whether it is the one that decides, whether a user gave it)."""
    around: tuple[Callable[..., Any], ...]
    """Outermost first."""
    after: tuple[Callable[..., Any], ...]
    """Innermost first."""


class Memory(Protocol):
    """Answers remembered for an agent."""

    def recall(self, call: ToolCall) -> tuple[bool, str] | None:
        """(allowed?, which answer) for this tool."""
        ...

    def remember(self, call: ToolCall, *, allowed: bool, session: str, seq: int) -> None:
        """Keep an "always" answer."""
        ...


class CellThread(Protocol):
    """The notebook's own thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function there as soon as the thread is free."""
        ...

    def run(self, coroutine: Coroutine[Any, Any, Any], owner: str) -> Future[Any]:
        """Run a coroutine of that session on its loop; RuntimeError if it could not go on there."""
        ...


class Facts(NamedTuple):
    """What a reminder may know; plain numbers."""

    answer: int
    """Number of the answer of this turn that is asked for, from 1."""
    max_steps: int
    spent: tuple[int, int]
    """(model calls, this one included; tokens) that count against the budget."""
    budget: Budget


class Reminder(NamedTuple):
    """Something to say at the end of one request."""

    source: str
    text: Callable[[Facts], str | None]
    """None = nothing to say now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the loop needs to know of an agent; pure data and functions."""

    agent: str
    model: Model
    header: Header
    tools: Mapping[str, Tool]
    chain: Callable[[Tool], Chain]
    reviewers: tuple[tuple[str, Reviewer], ...] = ()
    reminders: tuple[Reminder, ...] = ()
    recovery: Recovery = field(default_factory=Recovery)
    budget: Budget = field(default_factory=Budget)
    must_call: tuple[str, ...] = ()
    max_steps: int = 12
    max_parallel_tools: int = 10
    max_continuations: int = 3
    remember: str | None = "agent"
    memory: Memory
    question_timeout_s: float | None = 600.0
    read: Callable[[Tool, str], Arguments]
    """A call's text to arguments; raises `ArgumentsError`."""
    rebind: Callable[[Tool, dict[str, Any]], Arguments]
    """Changed arguments, validated again; raises `ArgumentsError`."""
    collect: Callable[[Any], Awaitable[list[Any]]]
    """A tool's async generator to a list that can be rendered."""
    render: Callable[[Any], str]
    """A tool's value to text."""
    render_error: Callable[[str, Exception, Callable[[str], str]], str]
    """(tool, what it raised) to what the model reads."""
    in_wrong_place: Callable[[BaseException], bool]
    """Whether an error says that something belongs to another thread or event loop."""
    pool: Callable[[], Executor]
    """Threads for sync tools."""
    cell: Callable[[], CellThread]
    """The thread for tools with `where="cell"`."""

"""The tool seam: what a tool is, and what its body may know of the run."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.model import ToolSpec
from nbagent.keywords import record

__all__ = ["Arguments", "ArgumentsError", "Diff", "Risk", "Tool", "ToolContext"]

Risk = Literal["unspecified", "readonly", "mutating", "dangerous"]
RISKS = ("unspecified", "readonly", "mutating", "dangerous")


@record(keywords=True)
@dataclass(frozen=True, slots=True)
class Diff:
    """A preview of a change, shown as a diff where the call is asked about.

    Parameters
    ----------
    old, new
        The text as it is, and as it would be.

    Examples
    --------
    >>> Diff("10 owls", "12 owls").new
    '12 owls'
    """

    old: str
    new: str


class Arguments(NamedTuple):
    """A call's arguments after parsing and validation: what gates, rules and the body see."""

    value: dict[str, Any]
    """Plain JSON, defaults filled in."""
    bound: tuple[tuple[Any, ...], dict[str, Any]]
    """Positional and keyword arguments for the function, in its own types."""
    repaired: str | None = None
    """What was repaired in the text, in words, if anything was."""


class ArgumentsError(Exception):
    """Raised by a reader; its text is the answer that the model reads and can act on."""


class ToolContext(Protocol):
    """What a tool body may know of its run: `ctx: nb.ToolContext` as its first parameter.

    The model doesn't see that parameter.
    """

    @property
    def deps(self) -> Any:
        """What was given as `agent.run(…, deps=…)`."""
        ...

    @property
    def cancelled(self) -> bool:
        """True after a stop or a time-out: long sync bodies look here and return within 0.1 s."""
        ...

    @property
    def call(self) -> Any:
        """The `ToolCall` that the body serves."""
        ...

    @property
    def session(self) -> Any:
        """The session of the run."""
        ...

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress, 0 to 1; live only, not logged."""
        ...

    def note(self, kind: str, data: Any = None) -> None:
        """Put something into the log (table notes); `data` must be plain JSON."""
        ...


@record(keywords=True)
@dataclass(eq=False)
class Tool:
    """Something that the model may call.

    Usually made by `@nb.tool`; made by hand where there is no signature to read.

    Parameters
    ----------
    name
        As the model sees it: letters, digits, `_` and `-`, at most 64.
    description
        What it does, for the model.
    parameters
        JSON Schema of the arguments, an object.
    call
        Sync or async function; called with the arguments as keywords.
    risk
        readonly, mutating, dangerous or unspecified (treated as mutating).
    domain
        The middle part of `ref`, for rules such as `allow files/*`.
    parallel
        Whether calls may run beside others; None = only if readonly. A function gets the arguments.
    where
        "cell" runs the body on the notebook's own thread and loop, for what was made in a cell
        there and works nowhere else; "auto": async on the agent's loop, sync on a thread.
    timeout_s
        Seconds for one call; None = the time-out gate's own, 0 = none.
    tags
        Free words for gates of your own.
    preview
        From the arguments to what an approval shows: text or a `Diff`.

    Raises
    ------
    ToolDefinitionError
        If one of these is not as described.

    Examples
    --------
    >>> look = Tool("look", "Look something up.", {"type": "object", "properties": {}}, lambda: "x")
    >>> look.ref
    'cap://tool/local/look@1'
    """

    name: str
    description: str
    parameters: dict[str, Any]
    call: Callable[..., Any]
    risk: Risk = "unspecified"
    domain: str = "local"
    parallel: bool | Callable[[dict[str, Any]], bool] | None = None
    where: Literal["auto", "cell"] = "auto"
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    preview: Callable[[dict[str, Any]], str | Diff] | None = None
    source: str = ""
    """Source text of the function, part of the fingerprint; read from `call` if empty."""
    takes_context: bool = False
    reader: Callable[[str], Arguments] | None = field(default=None, repr=False)
    """From the model's text to arguments; None reads and checks against `parameters`."""

    def __post_init__(self) -> None:
        check_tool_name(self.name)
        if self.risk not in RISKS:
            msg = f"tool `{self.name}`: risk must be one of {', '.join(RISKS)}, not {self.risk!r}"
            raise ToolDefinitionError(msg)
        if not callable(self.call):
            msg = f"tool `{self.name}`: call must be a function, not {type(self.call).__name__}"
            raise ToolDefinitionError(msg)
        if self.where not in ("auto", "cell"):
            msg = f'tool `{self.name}`: where must be "auto" or "cell", not {self.where!r}'
            raise ToolDefinitionError(msg)
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if self.timeout_s is not None and not (number and self.timeout_s >= 0):
            msg = (
                f"tool `{self.name}`: timeout_s must be seconds or 0 (none), not {self.timeout_s!r}"
            )
            raise ToolDefinitionError(msg)
        if not (
            self.parallel is None or isinstance(self.parallel, bool) or callable(self.parallel)
        ):
            msg = f"tool `{self.name}`: parallel must be True, False or a function, not {self.parallel!r}"
            raise ToolDefinitionError(msg)
        self.tags = tuple(self.tags)
        self.is_async = inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(
            getattr(self.call, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, as if it had not been made a tool."""
        return self.call(*args, **kwargs)

    @property
    def ref(self) -> str:
        """The capability, `cap://tool/domain/name@version`."""
        return f"cap://tool/{self.domain}/{self.name}@1"

    @cached_property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        return ToolSpec(self.name, self.description, self.parameters, self.risk, self.domain)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over name, schema and source text: approvals are bound to it."""
        seen = orjson.dumps([self.name, self.risk, self.parameters, self.source])
        return hashlib.blake2b(seen, digest_size=8).hexdigest()

    def runs_beside(self, arguments: Mapping[str, Any]) -> bool:
        """Whether a call with these arguments may run beside others; False if in doubt."""
        if self.parallel is None:
            return self.risk == "readonly"
        if callable(self.parallel):
            try:
                return self.parallel(dict(arguments)) is True
            except Exception:  # noqa: BLE001 - a classifier that fails means "not beside others"
                return False
        return self.parallel


def check_tool_name(name: str) -> None:
    """Refuse what providers refuse.

    Raises
    ------
    ToolDefinitionError
        If the name is empty, too long or holds other characters.
    """
    plain = name.replace("_", "").replace("-", "")
    if not (0 < len(name) <= 64 and name.isascii() and (plain.isalnum() or not plain)):
        msg = f"a tool's name has 1 to 64 letters, digits, `_` or `-`; {name!r} has not"
        raise ToolDefinitionError(msg)

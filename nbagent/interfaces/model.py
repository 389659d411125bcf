"""The model seam: a request in normal form goes in, a stream of items comes out.

A model has two steps, because the request is logged and flushed between them::

    prepared = model.prepare(request)     # pure: what will be sent, and its digest
    async for item in model.stream(prepared):   # Delta … Spent … Block … End
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import orjson

from nbagent.messages import Call, Finish, Message, Thinking, Usage

__all__ = [
    "Block",
    "Choice",
    "Delta",
    "End",
    "Header",
    "Item",
    "Model",
    "Nodes",
    "Prepared",
    "Request",
    "Situation",
    "Spent",
    "ToolSpec",
]


class Delta(NamedTuple):
    """A piece of one block of the answer, as it arrives."""

    text: str
    index: int = 0  # pyright: ignore[reportIncompatibleMethodOverride]
    """The block: blocks stand in the message in the order in which their index first appears."""
    kind: str = "text"
    """text, thinking, name (of a call) or arguments (of a call)."""


class Block(NamedTuple):
    """What the deltas of a block don't say, or a whole block that had none.

    For a block with deltas only the missing fields count: a call's id, a thinking block's
    signature and data. For a block without deltas the part is taken whole.
    """

    part: Call | Thinking
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]


class Spent(NamedTuple):
    """What the answer has cost so far, as soon as the provider says it.

    Each replaces the one before, so it holds all counts. It is what is charged if the stream fails
    or is interrupted, and if its `End` has no usage.
    """

    usage: Usage


class End(NamedTuple):
    """The end of the answer; always the last item of a stream that did not fail."""

    finish: Finish
    usage: Usage | None = None
    """None if the provider reported none: the last `Spent` counts, else it is estimated."""


Item = Delta | Block | Spent | End


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""
    risk: str = "unspecified"
    domain: str = "local"

    def to_dict(self) -> dict[str, Any]:
        """What stands in the request header; the usual domain is left out."""
        out: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "risk": self.risk,
        }
        return out if self.domain == "local" else {**out, "domain": self.domain}


@dataclass(frozen=True)
class Header:
    """The part of a request that changes rarely: logged once, then referred to."""

    model: str
    instructions: str = ""
    tools: tuple[ToolSpec, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was set of temperature, max_tokens, seed, stop, tool_choice, …: unset ones are absent."""

    @cached_property
    def data(self) -> bytes:
        """Canonical JSON: two headers are the same if these bytes are."""
        out: dict[str, Any] = {"model": self.model}
        if self.instructions:
            out["instructions"] = self.instructions
        if self.tools:
            out["tools"] = [tool.to_dict() for tool in self.tools]
        if self.settings:
            out["settings"] = self.settings
        return orjson.dumps(out)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Header:
        """Read what `data` encodes."""
        tools = tuple(ToolSpec(**tool) for tool in value.get("tools", ()))
        return cls(value["model"], value.get("instructions", ""), tools, value.get("settings", {}))


class Choice(NamedTuple):
    """What this one request allows where it differs from the header; logged with the request."""

    tool_choice: str | None = None
    """auto, required, none or a tool's name; None = as the header says."""
    offered: tuple[str, ...] | None = None
    """Names of the tools on offer; None = all of the header's."""

    def to_dict(self) -> dict[str, Any]:
        """What is logged."""
        out: dict[str, Any] = {}
        if self.tool_choice is not None:
            out["tool_choice"] = self.tool_choice
        if self.offered is not None:
            out["offered"] = list(self.offered)
        return out


class Nodes(list[bytes]):
    """The surface: one canonical JSON message per position, only ever appended to.

    A replacement makes a new list, so a view is (list, length) and costs nothing, and a model may
    keep what it made of each node beside the list (it can be referred to weakly).
    """

    __slots__ = ("__weakref__",)
    __hash__ = object.__hash__  # type: ignore[assignment]  # identity: the key of such a cache

    def __eq__(self, other: object) -> bool:
        return self is other


@dataclass(frozen=True)
class Request:
    """Exactly what the model sees: header + choice + history + reminders.

    Read it by `instructions`, `tools`, `settings`, `tool_choice` and `messages`.

    Parameters
    ----------
    header
        Model, instructions, tools and settings.
    nodes, length
        The history as canonical JSON, and how many of its nodes belong to this request.
    tail
        Reminders at the end of this one request, never history.
    choice
        What this one request offers where it differs from the header.
    session_id
        The session's id.
    """

    header: Header
    nodes: Nodes
    length: int
    tail: tuple[Message, ...] = ()
    choice: Choice | None = None
    session_id: str = ""

    @property
    def instructions(self) -> str:
        """The system prompt."""
        return self.header.instructions

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools on offer in this request."""
        offered = self.choice.offered if self.choice else None
        if offered is None:
            return self.header.tools
        return tuple(tool for tool in self.header.tools if tool.name in offered)

    @property
    def tool_choice(self) -> str:
        """auto, required, none or a tool's name."""
        if self.choice and self.choice.tool_choice is not None:
            return self.choice.tool_choice
        return self.header.settings.get("tool_choice", "auto")

    @property
    def settings(self) -> dict[str, Any]:
        """What was set of temperature, max_tokens, seed, stop, timeout_s, extra and so on."""
        return self.header.settings

    @cached_property
    def history(self) -> tuple[Message, ...]:
        """The history as messages, without reminders."""
        return tuple(Message.from_node(orjson.loads(node)) for node in self.nodes[: self.length])

    @property
    def messages(self) -> tuple[Message, ...]:
        """What is sent: the history, then the reminders."""
        return (*self.history, *self.tail)


class Prepared(NamedTuple):
    """A request made ready for one wire."""

    request: Request
    body: bytes | None = None
    """The HTTP body; None for models without one."""
    digest: str | None = None
    """blake2b-16 of the body in hex; logged with the request."""


class Situation(NamedTuple):
    """What a model may know when it decides what to offer (`Model.choose`); plain facts."""

    tools: tuple[ToolSpec, ...]
    called: tuple[tuple[str, str], ...]
    """(name, status) of each call of this turn that has a result, in order."""
    missing: tuple[str, ...]
    """Tools of `must_call` that must still be called."""
    first: bool
    """True at the first answer of the turn."""
    last: bool
    """True if the step limit allows no further answer after this one."""


@runtime_checkable
class Model(Protocol):
    """A model that can be asked.

    Implementations keep no state of a conversation: one model object may serve many runs at once.
    Optional: ``choose(situation: Situation) -> Choice | None`` restricts what one request offers
    (models that pick tools badly); ``can_force`` (bool) says that a tool's name as `tool_choice`
    is honoured; ``aclose()`` frees connections.
    """

    @property
    def name(self) -> str:
        """What is shown and logged, such as "openai:gpt-5"; never holds a key."""
        ...

    @property
    def window(self) -> int | None:
        """Context window in tokens, None if unknown."""
        ...

    def prepare(self, request: Request) -> Prepared:
        """Make the request ready; pure, no I/O.

        Raises
        ------
        ConfigError
            If the request can't be expressed on this wire.
        """
        ...

    def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        """Ask. Yields deltas, blocks and usage as they arrive, then one `End`.

        A model that declines to answer has not failed: its words are text, and `finish` is
        "refused".

        Raises
        ------
        ModelError
            Typed: recoverable ones may be tried again, also after the first item.
        """
        ...


def sequence_of_nodes(request: Request) -> Sequence[bytes]:
    """The history's nodes followed by the reminders', each as canonical JSON."""
    return [*request.nodes[: request.length], *(orjson.dumps(m.to_node()) for m in request.tail)]

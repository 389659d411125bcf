"""Messages, their parts, usage and finish reasons: the normal form that every wire is read into.

A message has two JSON forms. The *log form* (`to_node`, `from_node`) is what is stored, hashed and
counted; a part is told by its key::

    {"role": "user", "text": "go"}
    {"role": "assistant", "parts": [{"text": "…"}, {"call": "add", "id": "c1", "arguments": "{…}"}]}
    {"role": "tool", "id": "c1", "name": "add", "text": "3"}

The *chat form* (`to_dict`, `from_dict`) is that of OpenAI's chat completions, which people know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nbagent.errors import ConfigError

__all__ = ["Call", "Finish", "Message", "Part", "Role", "Text", "Thinking", "Usage", "scrub"]

Role = Literal["user", "assistant", "tool"]
Finish = Literal["stop", "tool_calls", "max_tokens", "refused", "error", "aborted"]
"""Why a generation ended; `error` and `aborted` come with a failure and no message."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of text."""

    text: str

    def to_node(self) -> dict[str, Any]:
        """The part in log form."""
        return {"text": self.text}


@dataclass(frozen=True, slots=True)
class Thinking:
    """A model's reasoning, sent back unchanged to the provider that wrote it.

    Parameters
    ----------
    text
        The reasoning, as far as the provider shows it.
    signature
        The provider's proof, opaque.
    data
        The provider's own block as JSON text, where it must go back whole.
    """

    text: str
    signature: str | None = None
    data: str | None = None

    def to_node(self) -> dict[str, Any]:
        """The part in log form."""
        node = {"thinking": self.text, "signature": self.signature, "data": self.data}
        return {key: value for key, value in node.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model wrote it; once it is read and checked it becomes a `ToolCall`.

    Parameters
    ----------
    name
        The tool, as the model wrote it.
    arguments
        JSON text, exactly as it came; `nb.call` makes it out of values.
    id
        The provider's id; not unique within a session (calls are keyed by turn, step, position).
    extra
        What the provider said of the call beyond its own fields, as JSON text: it goes back with
        the call to models of the same family.

    Examples
    --------
    >>> Call("add", '{"a": 1}').arguments
    '{"a": 1}'
    """

    name: str
    arguments: str = "{}"
    id: str = ""
    extra: str | None = None

    def to_node(self) -> dict[str, Any]:
        """The part in log form."""
        node = {"call": self.name, "id": self.id, "arguments": self.arguments}
        return node if self.extra is None else {**node, "extra": self.extra}


Part = Text | Thinking | Call


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message of a conversation.

    Parameters
    ----------
    role
        user, assistant or tool.
    parts
        A text, or pieces of the kinds `Text`, `Thinking`, `Call`, in order.
    source
        Who put it there if not the role itself: steer, harness, reviewer, the name of a reminder.
    call_id, name
        Of a tool message: the id of the call it answers, and the tool.

    Examples
    --------
    >>> Message("user", "hello").text
    'hello'
    >>> Message("assistant", [Text("let me see"), Call("add", "{}", "c1")]).to_dict()["tool_calls"][0]["id"]
    'c1'
    """

    role: Role
    parts: tuple[Part, ...]
    source: str | None = None
    call_id: str | None = None
    name: str | None = None

    def __init__(
        self,
        role: Role,
        parts: str | Sequence[Part] = (),
        *,
        source: str | None = None,
        call_id: str | None = None,
        name: str | None = None,
    ) -> None:
        made: tuple[Part, ...]
        made = ((Text(parts),) if parts else ()) if isinstance(parts, str) else tuple(parts)
        put = (
            object.__setattr__
        )  # one by one: a loop would cost twice as much, several times a step
        put(self, "role", role)
        put(self, "parts", made)
        put(self, "source", source)
        put(self, "call_id", call_id)
        put(self, "name", name)

    @property
    def text(self) -> str:
        """All text of the message, joined."""
        return "".join([part.text for part in self.parts if type(part) is Text])

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls, in the model's order."""
        return tuple([part for part in self.parts if type(part) is Call])

    def to_node(self) -> dict[str, Any]:
        """The message in log form: what is stored, hashed and sent."""
        node: dict[str, Any] = {"role": self.role}
        if self.role == "tool":
            node["id"] = self.call_id or ""
            node["name"] = self.name or ""
        if len(self.parts) == 1 and isinstance(self.parts[0], Text):
            node["text"] = self.parts[0].text
        elif not self.parts:
            node["text"] = ""
        else:
            node["parts"] = [part.to_node() for part in self.parts]
        return node

    @classmethod
    def from_node(cls, node: Mapping[str, Any], source: str | None = None) -> Message:
        """Read the log form."""
        text = node.get("text")
        parts: Sequence[Part] | str
        parts = text if isinstance(text, str) else [_part(part) for part in node.get("parts", ())]
        return cls(
            node["role"], parts, source=source, call_id=node.get("id"), name=node.get("name")
        )

    def to_dict(self) -> dict[str, Any]:
        """The message in the form of OpenAI's chat completions; reasoning is left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        if self.role == "tool":
            out["tool_call_id"] = self.call_id or ""
            out["name"] = self.name or ""
        return out

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Message:
        """Read the chat form.

        Raises
        ------
        ConfigError
            If the role or the content is not one of the chat form.
        """
        role = value.get("role")
        if role not in ("user", "assistant", "tool"):
            msg = f"a message's role is user, assistant or tool, not {role!r}"
            raise ConfigError(msg)
        content = value.get("content")
        if not (content is None or isinstance(content, str)):
            msg = f"a message's content is text, not {type(content).__name__}"
            raise ConfigError(msg)
        parts: list[Part] = [Text(content)] if content else []
        for call in value.get("tool_calls") or ():
            function = call.get("function", {})
            parts.append(
                Call(
                    function.get("name", ""), function.get("arguments") or "{}", call.get("id", "")
                )
            )
        return cls(role, parts, call_id=value.get("tool_call_id"), name=value.get("name"))


def _part(node: Mapping[str, Any]) -> Part:
    if "text" in node:
        return Text(node["text"])
    if "thinking" in node:
        return Thinking(node["thinking"], node.get("signature"), node.get("data"))
    return Call(node["call"], node["arguments"], node["id"], node.get("extra"))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or several model calls; the counts are disjoint, so they add up to `total`.

    Parameters
    ----------
    input_tokens
        Tokens read that came from no cache.
    output_tokens
        Tokens written, reasoning not counted.
    cache_read_tokens, cache_write_tokens
        Tokens read from the provider's cache; tokens read and put into it.
    reasoning_tokens
        Tokens of reasoning.
    estimated
        Whether the provider gave no counts, of some call at least, and they were estimated from the
        text.

    Examples
    --------
    >>> (Usage(10, 2) + Usage(1, 1)).total
    14
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = field(default=False, kw_only=True)

    @property
    def total(self) -> int:
        """All tokens read and written."""
        return (
            self.input_tokens
            + self.output_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.reasoning_tokens
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )

    def to_dict(self) -> dict[str, int]:
        """The counts that are not zero, under short names (as stored in `attempt/end`)."""
        counts = {
            "input": self.input_tokens,
            "output": self.output_tokens,
            "cache_read": self.cache_read_tokens,
            "cache_write": self.cache_write_tokens,
            "reasoning": self.reasoning_tokens,
        }
        return {key: count for key, count in counts.items() if count}

    @classmethod
    def from_dict(cls, value: Mapping[str, int], *, estimated: bool = False) -> Usage:
        """Read what `to_dict` gave."""
        return cls(
            value.get("input", 0),
            value.get("output", 0),
            value.get("cache_read", 0),
            value.get("cache_write", 0),
            value.get("reasoning", 0),
            estimated=estimated,
        )


def scrub(value: Any) -> Any:
    """The same JSON value made encodable: half surrogate pairs replaced, huge integers as text."""
    if isinstance(value, str):
        return value if _encodable(value) else _joined(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [scrub(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def _joined(text: str) -> str:
    # By way of UTF-16 two halves become their character, and a lone one becomes U+FFFD.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

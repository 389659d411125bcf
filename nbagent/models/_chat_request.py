"""From a request in normal form to the body of a chat completion."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal
from weakref import WeakKeyDictionary

import orjson

from nbagent.errors import ConfigError
from nbagent.interfaces.model import Nodes, Prepared, Request, ToolSpec
from nbagent.messages import scrub
from nbagent.models._chat_extra import unpacked
from nbagent.repair import NoObject, object_in

__all__ = [
    "TAIL",
    "Translate",
    "Translations",
    "dumps",
    "message",
    "parameters",
    "prepared",
    "sendable_name",
]

TAIL = "tail"
"""The role "before" of a reminder: it follows no message of the conversation."""

Translate = Callable[[dict[str, Any], str], bytes]
"""(message in log form, role of the one before, "" for the first) → wire messages, none if empty."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")

EmptyContent = Literal["null", "omit", "text"]


@dataclass(slots=True)
class _Translated:
    key: object
    wires: list[bytes] = field(default_factory=list[bytes])
    first_call: int | None = None
    """Position of the first message with a tool call."""
    role: str = ""
    """Role of the last one translated."""


class Translations:
    """What became of each message, kept beside the history: a step translates only what is new."""

    def __init__(self) -> None:
        self._by_nodes: WeakKeyDictionary[Nodes, _Translated] = WeakKeyDictionary()

    def of(
        self,
        request: Request,
        translate: Translate,
        key: object = None,
        *,
        reminders_ahead: bool = False,
    ) -> tuple[bytes, bool]:
        """The request's messages, reminders included, joined; and whether the history holds calls.

        Parameters
        ----------
        key
            What else the translation depends on: another key translates anew.
        reminders_ahead
            Whether reminders stand before the last message of the conversation, not behind it.
        """
        kept = self._by_nodes.get(request.nodes)
        if kept is None or kept.key != key:
            kept = self._by_nodes[request.nodes] = _Translated(key)
        for position in range(len(kept.wires), request.length):
            node = orjson.loads(request.nodes[position])
            # `%` copies: a kept result of orjson.dumps holds 4 KB however short it is.
            kept.wires.append(b"%b" % translate(node, kept.role))
            kept.role = node["role"]
            if kept.first_call is None and any("call" in part for part in node.get("parts", ())):
                kept.first_call = position
        wires = kept.wires
        if request.tail or len(wires) != request.length:
            ahead = reminders_ahead and all(item.role == "user" for item in request.tail)
            place = request.length - ahead
            tail = [translate(item.to_node(), TAIL) for item in request.tail]
            wires = [*wires[:place], *tail, *wires[place : request.length]]
        holds_calls = kept.first_call is not None and kept.first_call < request.length
        return b",".join(filter(None, wires)), holds_calls


def prepared(request: Request, body: bytes) -> Prepared:
    """The request with its body and the body's digest."""
    return Prepared(request, body, blake2b(body, digest_size=16).hexdigest())


def dumps(value: Any) -> bytes:
    """JSON; half surrogate pairs and integers beyond 64 bit don't fail."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(scrub(value), separators=(",", ":"), ensure_ascii=False).encode()


def message(node: dict[str, Any], empty: EmptyContent, family: str = "") -> bytes:
    """One message in the wire's form; nothing if it is an assistant's and says and calls nothing.

    An answer of reasoning alone, stopped or cut, is such a one: strict hosts refuse it.

    Parameters
    ----------
    family
        Whose unknown fields are given back; see `nbagent.models._chat_extra`.

    Notes
    -----
    Source: https://platform.openai.com/docs/api-reference/chat/create (messages), 2026-11.
    """
    role: str = node["role"]
    text: str | None = node.get("text")
    if role == "tool":
        return dumps({"role": role, "tool_call_id": node["id"], "content": text or _text(node)})
    text = _text(node) if text is None else text
    calls = [part for part in node.get("parts", ()) if "call" in part]
    if role == "assistant" and not calls and not text.strip():
        return b""
    out: dict[str, Any] = {"role": role, "content": text}
    if calls:
        out["tool_calls"] = [_call(part, family) for part in calls]
        _add_thinking(out, node)
        if not out["content"] and empty != "text":
            # Null is what most hosts expect of a message that only calls; some refuse it.
            out["content"] = None
            if empty == "omit":
                del out["content"]
    for part in node.get("parts", ()):
        if "thinking" in part and part.get("data"):
            out = {**unpacked(orjson.loads(part["data"]).get("extra"), family), **out}
    return dumps(out)


def _text(node: dict[str, Any]) -> str:
    return "".join(part["text"] for part in node.get("parts", ()) if "text" in part)


def _call(part: dict[str, Any], family: str) -> dict[str, Any]:
    extra = unpacked(part.get("extra"), family)
    function = {
        "name": sendable_name(part["call"]),
        "arguments": _arguments(part["arguments"]),
        **extra.pop("function", {}),
    }
    return {"id": part["id"], "type": "function", "function": function, **extra}


def _arguments(text: str) -> str:
    """The arguments that the call ran with, where the text stands for an object.

    Hosts read the history again and refuse what is no object; the result says what was wrong.
    """
    if _is_object(text):
        return text
    try:
        return dumps(object_in(text).value).decode()
    except (NoObject, RecursionError):
        return dumps({"invalid": text}).decode()


def sendable_name(name: str) -> str:
    """The name of a call as hosts take it; the name of a tool is never changed.

    A model may make a name up, and hosts refuse each later request whose history holds it. The sent
    name ends in a digest of the model's: so no two become one, and none reads like that of a tool
    on offer, whose use it was not.

    Source: https://platform.openai.com/docs/api-reference/chat/create (tools, function name),
    2026-11.

    Examples
    --------
    >>> sendable_name("functions.look"), sendable_name("look")
    ('functions_look_5d78dad1', 'look')
    """
    if _NAME.fullmatch(name):
        return name
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{_NOT_IN_NAMES.sub('_', name).strip('_')[:48] or 'call'}_{digest}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _add_thinking(out: dict[str, Any], node: dict[str, Any]) -> None:
    """Give reasoning back, under the name under which it came, beside the calls it led to.

    Hosts that think between calls want it there; without calls some refuse it and none needs it.

    Source: https://api-docs.deepseek.com/guides/thinking_mode (reasoning_content) and
    https://openrouter.ai/docs/use-cases/reasoning-tokens (reasoning_details), 2026-11.
    """
    for part in node["parts"]:
        if not ("thinking" in part and part.get("data")):
            continue
        data: dict[str, Any] = orjson.loads(part["data"])
        if "reasoning_details" in data:
            out["reasoning_details"] = data["reasoning_details"]
        elif "key" in data:
            out[data["key"]] = out.get(data["key"], "") + part["thinking"]


def parameters(
    request: Request, model: str, *, tools: bool, holds_calls: bool, max_tokens: str
) -> dict[str, Any]:
    """Everything of the body but the messages.

    Parameters
    ----------
    tools
        Whether tools go into the wire's own field.
    holds_calls
        Whether the history holds tool calls: hosts then want definitions though none is on offer.
    max_tokens
        The wire's name of that limit.

    Raises
    ------
    ConfigError
        If a setting can't be expressed.
    """
    settings = request.settings
    out: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for key, name in (
        ("temperature", "temperature"),
        ("max_tokens", max_tokens),
        ("seed", "seed"),
        ("stop", "stop"),
    ):
        if settings.get(key) is not None:
            out[name] = settings[key]
    if settings.get("thinking") is not None:
        out["reasoning_effort"] = _effort(settings["thinking"])
    if tools:
        _add_tools(out, request, holds_calls=holds_calls)
    extra: dict[str, Any] = settings.get("extra") or {}
    if "messages" in extra:
        msg = "settings.extra can't replace `messages`: they are the conversation"
        raise ConfigError(msg)
    return {**out, **extra}


def _effort(thinking: object) -> str:
    if isinstance(thinking, bool):
        return "medium" if thinking else "none"
    if isinstance(thinking, str):
        return thinking
    msg = f"thinking={thinking!r}: this wire takes an effort such as 'low', 'medium' or 'high'"
    raise ConfigError(msg)


def _add_tools(out: dict[str, Any], request: Request, *, holds_calls: bool) -> None:
    tools, choice = request.tools, request.tool_choice
    if not tools:
        if not (holds_calls and request.header.tools):
            return
        tools, choice = request.header.tools, "none"
    out["tools"] = [_tool(tool) for tool in tools]
    if choice in ("required", "none"):
        out["tool_choice"] = choice
    elif choice != "auto":
        if choice not in (tool.name for tool in tools):
            names = ", ".join(tool.name for tool in tools)
            msg = f"tool_choice={choice!r} is none of the tools on offer: {names}"
            raise ConfigError(msg)
        out["tool_choice"] = {"type": "function", "function": {"name": choice}}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}

"""The conversation as a small model reads it, and its reply as items."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import orjson

from nbagent.errors import BadRequestError
from nbagent.interfaces.model import Block, Delta, End, Item, Request, ToolSpec
from nbagent.messages import Call, Finish
from nbagent.models._chat_request import TAIL, Translations, dumps
from nbagent.models._chat_stream import Reader
from nbagent.models._chat_strict import strict_form
from nbagent.models._constrained import FINAL, Limits, portable, refuse_reserved, reply_schema
from nbagent.models._http_errors import shorten
from nbagent.repair import NoObject, object_in

__all__ = ["Constrained", "opening"]

_SYSTEM = (
    "You are an assistant that uses tools."
    " Every reply is one JSON object: a call of a tool, or final_answer with the answer."
)
_PRICE = (
    "- get_price(item: string): Get the price of an item.\n"
    "- write_log(line: string): Write a line in the log."
)
_GAUGE = (
    "- send_alert(to: string, text: string): Send an alert to a person.\n"
    "- read_pressure(gauge: string): Read the pressure at a gauge."
)
# Examples of whole turns, with and without a second call. They never change, so that a server
# keeps what it made of them; all that changes stands behind them.
_SHOTS: tuple[tuple[str, str, tuple[tuple[str, dict[str, str], str], ...], str], ...] = (
    (
        _PRICE,
        "What is the price of a lamp?",
        (("get_price", {"item": "lamp"}, "49 EUR"),),
        "The price of a lamp is 49 EUR.",
    ),
    (
        _PRICE,
        "Get the price of a chair and write it in the log.",
        (
            ("get_price", {"item": "chair"}, "80 EUR"),
            ("write_log", {"line": "The price of a chair is 80 EUR."}, "written"),
        ),
        "The price of a chair is 80 EUR and it is written in the log.",
    ),
    (
        _GAUGE,
        "Read the pressure at gauge B7 and send it to Tom.",
        (
            ("read_pressure", {"gauge": "B7"}, "2.4 bar"),
            (
                "send_alert",
                {"to": "Tom", "text": "The pressure at gauge B7 is 2.4 bar."},
                "sent",
            ),
        ),
        "The pressure at gauge B7 is 2.4 bar and it is sent to Tom.",
    ),
    (
        _GAUGE,
        "How high is the pressure at gauge C1?",
        (("read_pressure", {"gauge": "C1"}, "1.1 bar"),),
        "The pressure at gauge C1 is 1.1 bar.",
    ),
)
_SENTENCE = re.compile(r"(.+?[.!?])(?=\s)", re.DOTALL)


class Constrained:
    """Lays a request out for a model whose every reply keeps to one JSON schema, and reads it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._translations = Translations()

    def body(self, request: Request, parameters: dict[str, Any], *, strict: bool = False) -> bytes:
        """The body: the examples, the conversation, and the schema of what may come next.

        Raises
        ------
        ConfigError
            If a tool has the name that marks the answer.
        """
        refuse_reserved(request.header.tools)
        layout = _Layout(request)
        messages, _ = self._translations.of(
            request, layout.message, layout.key, reminders_ahead=self._limits.reminders_ahead
        )
        fields = dumps({"response_format": self._format(request), **parameters})
        joined = b"%b,%b" % (opening(), messages)
        return b'%b,"messages":[%b]}' % (fields[:-1], strict_form(joined) if strict else joined)

    async def read(
        self, items: AsyncGenerator[Item], request: Request, reader: Reader
    ) -> AsyncGenerator[Item]:
        """The reply's items: a call, or the text of the final answer.

        A call's name is given as soon as it is certain, its arguments once they are whole.

        Raises
        ------
        BadRequestError
            If the reply is not the JSON that was asked for.
        """
        reply = _Reply(self._limits, request)
        finish: Finish = "stop"
        usage = None
        async with aclosing(items):
            async for item in items:
                if isinstance(item, End):
                    finish, usage = item.finish, item.usage
                elif isinstance(item, Delta) and item.kind == "text":
                    for made in reply.add(item):
                        yield made
                    if reply.cut:
                        break
                else:
                    yield item
        if reply.cut:
            yield End("stop", reader.usage)
            return
        if finish == "refused":
            for made in reply.refusal():
                yield made
            yield End(finish, usage)
            return
        for made in reply.whole(cut=finish == "max_tokens"):
            yield made
        if reply.complete:
            finish = "stop" if reply.name == FINAL else "tool_calls"
        yield End(finish, usage)

    def _format(self, request: Request) -> dict[str, Any]:
        choice, tools = request.tool_choice, request.tools
        if choice == "none":
            tools = ()
        elif choice not in ("auto", "required"):
            tools = tuple(tool for tool in tools if tool.name == choice)
        final = choice in ("auto", "none") or not tools
        schema = reply_schema(tools, final=final, limits=self._limits)
        return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}


# ---- the prompt --------------------------------------------------------------------------------


def opening() -> bytes:
    """The system message and the examples, as the wire's messages."""
    return _OPENING


class _Layout:
    """Where each message of the conversation goes."""

    def __init__(self, request: Request) -> None:
        lines = "\n".join(_line(tool) for tool in request.header.tools)
        self._tools = f"Tools:\n{lines}\n\n" if lines else ""
        self._instructions = f"{request.instructions}\n\n" if request.instructions else ""
        self.key = (self._tools, self._instructions)

    def message(self, node: dict[str, Any], before: str) -> bytes:
        """One message; the tools stand before a request, not before what was added to it."""
        role = node["role"]
        if role == "assistant":
            return b",".join(_wire("assistant", text) for text in _replies(node))
        text = _plain_text(node)
        if role == "tool":
            return _wire("user", f"Result: {text}")
        if before == TAIL:
            return _wire("user", text)
        if before in ("user", "tool"):
            return _wire("user", f"Request: {text}")
        head = self._tools if before else self._instructions + self._tools
        return _wire("user", f"{head}Request: {text}")


def _wire(role: str, content: str) -> bytes:
    return dumps({"role": role, "content": content})


def _plain_text(node: dict[str, Any]) -> str:
    text = node.get("text")
    if text is None:
        text = "".join(part["text"] for part in node["parts"] if "text" in part)
    return text


def _replies(node: dict[str, Any]) -> list[str]:
    calls = [part for part in node.get("parts", ()) if "call" in part]
    if not calls:
        text = _plain_text(node)
        return [_json(FINAL, {"text": text})] if text.strip() else []
    return [_json(part["call"], _object(part["arguments"])) for part in calls]


def _json(name: str, arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _object(text: str) -> object:
    """The arguments as an object, with slips mended as for the call that ran; else the text."""
    try:
        return object_in(text).value
    except NoObject:
        return text


def _line(tool: ToolSpec) -> str:
    properties = portable(tool.parameters).get("properties", {})
    arguments = ", ".join(f"{name}: {_kind(each)}" for name, each in properties.items())
    about = " ".join(tool.description.split("\n\n", 1)[0].split())
    return f"- {tool.name}({arguments}): {about}"


def _kind(schema: dict[str, Any]) -> str:
    values = schema.get("enum", ())
    if 1 <= len(values) <= 8:
        return "one of " + "|".join(map(str, values))
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else "|".join(kind)


def _opening() -> bytes:
    messages = [_wire("system", _SYSTEM)]
    for tools, request, calls, answer in _SHOTS:
        messages.append(_wire("user", f"Tools:\n{tools}\n\nRequest: {request}"))
        for name, arguments, result in calls:
            messages.append(_wire("assistant", _json(name, arguments)))
            messages.append(_wire("user", f"Result: {result}"))
        messages.append(_wire("assistant", _json(FINAL, {"text": answer})))
    return b",".join(messages)


_OPENING = _opening()


# ---- the reply ---------------------------------------------------------------------------------


class _Reply:
    """One reply while it comes, and what of it may be shown."""

    def __init__(self, limits: Limits, request: Request) -> None:
        self._limits = limits
        self._tools = {tool.name: tool for tool in request.header.tools}
        self._raw: list[str] = []
        self._block = 0
        self._shown = 0
        self.name: str | None = None
        self.cut = False
        """Whether the rest is not wanted: the first sentence of the answer is whole."""
        self.complete = False

    def add(self, delta: Delta) -> list[Item]:
        """What can be said after one more piece."""
        from pydantic_core import from_json

        self._block = delta.index
        self._raw.append(delta.text)
        try:
            value = from_json("".join(self._raw), allow_partial="trailing-strings")
        except ValueError:
            return []
        if not isinstance(value, dict) or "arguments" not in value:
            return []  # the name is whole once `arguments` has begun
        return self._announced(cast("dict[str, Any]", value))

    def refusal(self) -> list[Item]:
        """The words with which the model declined in place of the JSON that was asked for."""
        words = "".join(self._raw)
        return [Delta(words, self._block)] if words and self.name is None else []

    def whole(self, *, cut: bool) -> list[Item]:
        """What remains to be said at the end.

        Parameters
        ----------
        cut
            Whether the token limit ended the reply; a strict reading decides all the same.
        """
        raw = "".join(self._raw)
        if not raw.strip():
            return []  # an empty answer
        try:
            value = orjson.loads(raw)
            name, arguments = value["name"], value["arguments"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            if cut:
                return []  # never half a call
            msg = (
                "the reply is not the JSON that was asked for: constrain_tools needs a server that"
                f" honours response_format json_schema. It says: {shorten(raw, 200)}"
            )
            raise BadRequestError(msg, body=shorten(raw, 2_000)) from None
        self.complete = True
        items = self._announced(value)
        if name == FINAL:
            return items
        text = dumps(self._trimmed(name, arguments)).decode()
        return [
            *items,
            Delta(text, self._block, "arguments"),
            Block(Call(name, text), self._block),
        ]

    def _announced(self, value: dict[str, Any]) -> list[Item]:
        items: list[Item] = []
        if self.name is None:
            self.name = str(value["name"])
            if self.name != FINAL:
                items.append(Delta(self.name, self._block, "name"))
        if self.name != FINAL or not isinstance(value["arguments"], dict):
            return items
        arguments = cast("dict[str, Any]", value["arguments"])
        text, self.cut = self._sentence(str(arguments.get("text", "")))
        if len(text) > self._shown:
            items.append(Delta(text[self._shown :], self._block))
            self._shown = len(text)
        return items

    def _trimmed(self, name: str, arguments: Any) -> Any:
        """The arguments with free text kept to its first sentence, before anything sees them."""
        if name not in self._tools or not isinstance(arguments, dict):
            return arguments
        properties = portable(self._tools[name].parameters, self._limits).get("properties", {})
        fields = cast("dict[str, Any]", arguments)
        return {
            key: self._sentence(value)[0]
            if isinstance(value, str) and _is_prose(properties.get(key, {}))
            else value
            for key, value in fields.items()
        }

    def _sentence(self, text: str) -> tuple[str, bool]:
        found = _SENTENCE.match(text) if self._limits.first_sentence else None
        return (found[1], True) if found else (text, False)


def _is_prose(schema: dict[str, Any]) -> bool:
    free = schema.get("type") == "string" and not {"enum", "const", "pattern"} & schema.keys()
    return free and schema.get("maxLength", 41) > 40

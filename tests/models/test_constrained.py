"""Tools as one schema: what is asked of a small model, when, and how its reply is read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from nbagent.errors import BadRequestError, ConfigError, TruncatedStreamError
from nbagent.interfaces.model import (
    Block,
    Choice,
    Delta,
    End,
    Header,
    Item,
    Nodes,
    Request,
    Situation,
    ToolSpec,
)
from nbagent.messages import Call, Message, Thinking, Usage
from nbagent.models import Local, OpenAIChat
from nbagent.models._chat_stream import Reader
from nbagent.models._constrained import SMALL, choose, portable, reply_schema
from nbagent.models._constrained_wire import Constrained
from nbagent.models._target import Target

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.models.conftest import FakeServer

READ = ToolSpec(
    "lookup",
    "Look up a bird.\n\nThe table is old.",
    {
        "type": "object",
        "properties": {"bird": {"type": "string", "enum": ["owl", "heron"]}},
        "required": ["bird"],
    },
    "readonly",
)
WRITE = ToolSpec(
    "save",
    "Save a note.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 80}},
        "required": ["text"],
    },
    "mutating",
)
MORE = ToolSpec("weigh", "Weigh a bird.", {"type": "object", "properties": {}}, "readonly")


def situation(
    *called: tuple[str, str],
    tools: tuple[ToolSpec, ...] = (READ, WRITE),
    missing: tuple[str, ...] = (),
    first: bool | None = None,
    last: bool = False,
) -> Situation:
    return Situation(tools, called, missing, not called if first is None else first, last)


def test_the_first_reply_is_a_call_of_a_tool_that_reads_if_there_is_one() -> None:
    assert choose(situation()) == Choice("required", ("lookup",))
    assert choose(situation(tools=(WRITE,))) == Choice("required", ("save",))
    assert choose(situation(tools=(READ, MORE, WRITE))) == Choice("required", ("lookup", "weigh"))


def test_without_tools_there_is_only_the_answer() -> None:
    assert choose(situation(tools=())) == Choice("none", ())


def test_a_tool_that_has_answered_is_not_offered_again() -> None:
    assert choose(situation(("lookup", "ok"))) == Choice("auto", ("save",))
    assert choose(situation(("lookup", "ok"), ("save", "denied"))) == Choice("none", ())


def test_no_answer_before_every_tool_that_must_be_called_has_returned() -> None:
    assert choose(situation(("lookup", "ok"), missing=("save",))) == Choice("required", ("save",))
    failed_once = situation(("lookup", "ok"), ("save", "error"), missing=("save",))
    assert choose(failed_once) == Choice("required", ("save",))


def test_the_last_reply_is_the_answer_whatever_is_missing() -> None:
    assert choose(situation(("lookup", "ok"), missing=("save",), last=True)) == Choice("none", ())


@pytest.mark.parametrize("status", ["error", "denied", "timeout", "aborted"])
def test_after_a_failed_read_nothing_is_written(status: str) -> None:
    failed = ("lookup", status)
    assert choose(situation(failed, missing=("save",))) == Choice("none", ())
    assert choose(situation(failed, tools=(READ, MORE, WRITE))) == Choice("auto", ("weigh",))


# ---- the schema --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        (True, {}),
        ({"type": "string"}, {"type": "string", "maxLength": 120}),
        ({"type": "string", "maxLength": 9}, {"type": "string", "maxLength": 9}),
        (
            {"type": "string", "minLength": 200},
            {"type": "string", "minLength": 200, "maxLength": 200},
        ),
        ({"enum": ["a"], "type": "string", "title": "T"}, {"enum": ["a"], "type": "string"}),
        ({"type": "array"}, {"type": "array", "maxItems": 16}),
        (
            {"type": "array", "items": {"type": "number", "minimum": 0}, "uniqueItems": True},
            {"type": "array", "items": {"type": "number"}, "maxItems": 16},
        ),
        ({"type": "integer", "minimum": 1, "multipleOf": 2}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "minimum": 5, "maximum": 1}, {"type": "integer"}),
        ({"type": "string", "pattern": "^[a-z]+$"}, {"type": "string", "pattern": "^[a-z]+$"}),
        ({"type": "string", "pattern": "[a-z]"}, {"type": "string", "maxLength": 120}),
        ({"type": "string", "pattern": "^(?=x)$"}, {"type": "string", "maxLength": 120}),
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "email"}, {"type": "string", "maxLength": 120}),
        (
            {"oneOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
        (
            {"allOf": [{"type": "integer"}, {"minimum": 2}], "description": "d"},
            {"type": "integer", "minimum": 2},
        ),
        (
            {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
                "minItems": 2,
                "maxItems": 2,
            },
            {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]},
                "minItems": 2,
                "maxItems": 2,
            },
        ),
        (
            {"type": "object", "additionalProperties": True, "patternProperties": {"^x": {}}},
            {"type": "object"},
        ),
    ],
)
def test_a_schema_is_reduced_to_what_a_grammar_can_hold(schema: Any, kept: dict[str, Any]) -> None:
    assert portable(schema) == kept


def test_definitions_are_put_in_place_and_recursion_ends() -> None:
    schema = {
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}, "kind": {"$ref": "#/$defs/Kind"}},
                "required": ["kind"],
            },
            "Kind": {"enum": ["a", "b"], "type": "string"},
        },
        "type": "object",
        "properties": {"root": {"$ref": "#/$defs/Node"}, "far": {"$ref": "http://x/y"}},
        "required": ["root", "gone"],
    }
    made = portable(schema)
    assert "$" not in json.dumps(made)
    assert made["required"] == ["root"]
    assert made["properties"]["far"] == {"type": "object"}
    root = made["properties"]["root"]
    assert root["properties"]["kind"] == {"enum": ["a", "b"], "type": "string"}
    assert root["properties"]["next"] == {"type": "object"}
    assert root["additionalProperties"] is False


def test_a_single_branch_needs_no_choice() -> None:
    one = reply_schema([READ], final=False, limits=SMALL)
    assert one["properties"]["name"] == {"const": "lookup"}
    assert list(one["properties"]) == ["name", "arguments"]
    both = reply_schema([READ], final=True, limits=SMALL)
    names = [each["properties"]["name"]["const"] for each in both["anyOf"]]
    assert names == ["lookup", "final_answer"]


# ---- the prompt --------------------------------------------------------------------------------


def request(
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (READ, WRITE),
    instructions: str = "",
    tail: tuple[Message, ...] = (),
    choice: Choice | None = None,
    **settings: Any,
) -> Request:
    nodes = Nodes(orjson.dumps(m.to_node()) for m in messages or [Message("user", "go")])
    return Request(Header("m", instructions, tools, settings), nodes, len(nodes), tail, choice)


def body(what: Request) -> dict[str, Any]:
    return json.loads(Local().prepare(what).body or b"")


def said(what: Request) -> list[tuple[str, str]]:
    """The conversation behind the examples."""
    messages = [(m["role"], m["content"]) for m in body(what)["messages"]]
    assert messages[0][0] == "system"
    return messages[21:]


TOOLS = "Tools:\n- lookup(bird: one of owl|heron): Look up a bird.\n- save(text: string): Save a note.\n\n"


def test_a_conversation_is_laid_out_like_the_examples() -> None:
    what = request(
        Message("user", "Note the owl."),
        Message("assistant", [Call("lookup", '{"bird":"owl"}', "c1")]),
        Message("tool", "110 cm", call_id="c1", name="lookup"),
        Message("user", "Use inches."),
        Message("assistant", [Call("save", '{"text":"é"}', "c2")]),
        Message("tool", "denied by the person", call_id="c2", name="save"),
        Message("assistant", "It was denied."),
        Message("user", "And the heron?"),
        instructions="Be brief.",
        tail=(
            Message("assistant", "A draft."),
            Message("user", "<system-reminder>No digits.</system-reminder>", source="reviewer"),
        ),
    )
    assert said(what) == [
        ("user", f"Be brief.\n\n{TOOLS}Request: Note the owl."),
        ("assistant", '{"name": "lookup", "arguments": {"bird": "owl"}}'),
        ("user", "Result: 110 cm"),
        ("user", "Request: Use inches."),
        ("assistant", '{"name": "save", "arguments": {"text": "é"}}'),
        ("user", "Result: denied by the person"),
        ("assistant", '{"name": "final_answer", "arguments": {"text": "It was denied."}}'),
        ("user", f"{TOOLS}Request: And the heron?"),
        ("assistant", '{"name": "final_answer", "arguments": {"text": "A draft."}}'),
        ("user", "<system-reminder>No digits.</system-reminder>"),
    ]


def test_reminders_stand_before_the_last_message_but_a_sent_back_draft_behind_it() -> None:
    """Behind it, six of ten runs of one measured task went wrong; before it, one."""
    history = (
        Message("user", "go"),
        Message("assistant", [Call("weigh", "{}", "c")]),
        Message("tool", "1 kg", call_id="c", name="weigh"),
    )
    reminder = Message("user", "<system-reminder>Last step.</system-reminder>", source="steps")
    assert [text for _, text in said(request(*history, tail=(reminder,)))][-2:] == [
        reminder.text,
        "Result: 1 kg",
    ]
    sent_back = said(request(*history, tail=(Message("assistant", "No."), reminder)))
    assert sent_back[-1] == ("user", reminder.text)
    assert said(request(tail=(reminder,)))[0] == ("user", reminder.text)


def test_calls_in_one_answer_and_broken_arguments_are_laid_out_too() -> None:
    calls = [
        Call("lookup", '{"bird":"owl"}', "a"),
        Call("save", "{oops", "b"),
        Call("weigh", "", "c"),
        Call("weigh", "null", "d"),
        Call("save", "{'text': 'x',}", "e"),
    ]
    assert said(request(Message("user", "go"), Message("assistant", calls)))[1:] == [
        ("assistant", '{"name": "lookup", "arguments": {"bird": "owl"}}'),
        ("assistant", '{"name": "save", "arguments": "{oops"}'),
        ("assistant", '{"name": "weigh", "arguments": {}}'),
        ("assistant", '{"name": "weigh", "arguments": {}}'),
        ("assistant", '{"name": "save", "arguments": {"text": "x"}}'),
    ]


def test_an_answer_that_says_and_calls_nothing_is_left_out() -> None:
    silent = Message("assistant", [Thinking("hm")])
    history = request(Message("user", "go"), silent, Message("user", "and?"), tail=(silent,))
    assert {role for role, _ in said(history)} == {"user"}


def test_the_examples_stand_first_and_never_change() -> None:
    """A server keeps what it made of them only if their bytes are the same."""
    one = Local().prepare(request(instructions="x")).body or b""
    other = Local().prepare(request(Message("user", "y"), tools=(MORE,))).body or b""
    start = one.index(b'"messages":[')
    shared = one[start : one.index(b"Tools:\\n- lookup(bird")]
    assert shared.count(b'"role"') == 22
    assert shared[: shared.rindex(b'{"role"')] in other


def branches(what: Request) -> list[str]:
    schema = body(what)["response_format"]["json_schema"]["schema"]
    return [each["properties"]["name"]["const"] for each in schema.get("anyOf", [schema])]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ["lookup", "save", "final_answer"]),
        (Choice("auto", ("save",)), ["save", "final_answer"]),
        (Choice("required"), ["lookup", "save"]),
        (Choice("required", ("save",)), ["save"]),
        (Choice("save"), ["save"]),
        (Choice("none"), ["final_answer"]),
        (Choice("none", ()), ["final_answer"]),
        (Choice("required", ()), ["final_answer"]),
    ],
)
def test_the_choice_decides_what_the_schema_offers(choice: Choice | None, names: list[str]) -> None:
    assert branches(request(choice=choice)) == names


def test_the_header_s_tool_choice_counts_where_the_request_says_nothing() -> None:
    assert branches(request(tool_choice="none")) == ["final_answer"]


def test_a_tool_called_like_the_answer_is_refused() -> None:
    clash = ToolSpec("final_answer", "x", {"type": "object"})
    with pytest.raises(ConfigError, match="final_answer"):
        Local().prepare(request(tools=(clash,)))


def test_local_has_its_own_defaults_and_settings_win() -> None:
    sent = body(request())
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0, 1, 200)
    sent = body(request(temperature=0.5, seed=7, max_tokens=50))
    assert (sent["temperature"], sent["seed"], sent["max_tokens"]) == (0.5, 7, 50)


def test_another_header_on_the_same_history_is_laid_out_anew() -> None:
    model = Local()
    nodes = Nodes([b'{"role":"user","text":"go"}'])
    texts: list[str] = []
    for tools in ((READ,), (WRITE,), (READ,)):
        made = model.prepare(Request(Header("m", tools=tools), nodes, 1))
        texts.append(json.loads(made.body or b"")["messages"][-1]["content"])
    assert texts[0] == texts[2] != texts[1]


# ---- the reply ---------------------------------------------------------------------------------


async def read(
    *pieces: str,
    finish: Any = "stop",
    what: Request | None = None,
    limits: Any = SMALL,
) -> list[Item]:
    async def items() -> AsyncGenerator[Item]:
        for piece in pieces:
            yield Delta(piece)
        yield End(finish, Usage(1, 2))

    reader = Reader(Target("http://127.0.0.1"))
    made = Constrained(limits).read(items(), what or request(), reader)
    return [item async for item in made]


async def test_a_call_is_announced_by_name_and_given_once_it_is_whole() -> None:
    raw = '{"name": "lookup", "arguments": {"bird": "owl"}}'
    assert await read(*raw) == [
        Delta("lookup", 0, "name"),
        Delta('{"bird":"owl"}', 0, "arguments"),
        Block(Call("lookup", '{"bird":"owl"}'), 0),
        End("tool_calls", Usage(1, 2)),
    ]


async def test_the_name_is_not_announced_before_it_is_whole() -> None:
    items = await read('{"name": "loo', 'kup"', ', "argum', finish="max_tokens")
    assert items == [End("max_tokens", Usage(1, 2))]


async def test_the_answer_streams_as_text() -> None:
    raw = ['{"name": "final_answer", "arguments": {"te', 'xt": "An', " ow", 'l\\n"', "}}"]
    assert await read(*raw) == [Delta("An"), Delta(" ow"), Delta("l\n"), End("stop", Usage(1, 2))]


async def test_the_first_sentence_of_an_answer_is_kept_and_the_rest_not_awaited() -> None:
    head = '{"name": "final_answer", "arguments": {"text": "'
    items = await read(head, "It is 1.5", " m.", " It is", " not", " read")
    assert items == [Delta("It is 1.5"), Delta(" m."), End("stop")]


async def test_the_first_sentence_of_free_text_in_arguments_is_kept() -> None:
    raw = '{"name": "save", "arguments": {"text": "It is 1.5 m. It is 1.5 m. It"}}'
    (call,) = [item.part for item in await read(raw) if isinstance(item, Block)]
    assert call == Call("save", '{"text":"It is 1.5 m."}')


async def test_half_a_call_is_never_given() -> None:
    items = await read('{"name": "save", "arguments": {"text": "It', finish="max_tokens")
    assert items == [Delta("save", 0, "name"), End("max_tokens", Usage(1, 2))]


async def test_a_strict_reading_decides_not_the_reason() -> None:
    """At exactly as many tokens as were needed the reason is still "length"."""
    whole = '{"name": "final_answer", "arguments": {"text": "Yes"}}'
    assert (await read(whole, finish="max_tokens"))[-1] == End("stop", Usage(1, 2))
    call = '{"name": "lookup", "arguments": {"bird": "owl"}}'
    assert (await read(call, finish="max_tokens"))[-1] == End("tool_calls", Usage(1, 2))


async def test_a_server_that_ignores_the_schema_is_named() -> None:
    with pytest.raises(BadRequestError, match="json_schema"):
        await read("Sure! Here is")


async def test_the_stream_s_own_errors_come_through() -> None:
    async def items() -> AsyncGenerator[Item]:
        yield Delta('{"name": "sa')
        msg = "cut"
        raise TruncatedStreamError(msg)

    reader = Reader(Target("http://127.0.0.1"))
    with pytest.raises(TruncatedStreamError):
        _ = [item async for item in Constrained(SMALL).read(items(), request(), reader)]


async def test_any_server_can_be_asked_this_way(server: FakeServer) -> None:
    raw = '{"name": "save", "arguments": {"text": "One. Two."}}'
    server.say(*({"choices": [{"index": 0, "delta": {"content": c}}]} for c in raw))
    model = OpenAIChat("m", base_url=server.url, constrain_tools=True)
    items = [item async for item in model.stream(model.prepare(request()))]
    (call,) = [item.part for item in items if isinstance(item, Block)]
    assert call == Call("save", '{"text":"One. Two."}')  # larger models keep all they write
    assert items[-1] == End("tool_calls")
    sent = server.seen[0].body
    assert "tools" not in sent
    assert sent["response_format"]["type"] == "json_schema"

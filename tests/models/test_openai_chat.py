"""The chat wire: what is sent, and what is read."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import orjson
import pytest

import nbagent as nb
from nbagent.errors import (
    AuthError,
    BadRequestError,
    ConfigError,
    ModelError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    ServerError,
    TruncatedStreamError,
)
from nbagent.interfaces.model import (
    Block,
    Choice,
    Delta,
    End,
    Header,
    Item,
    Model,
    Nodes,
    Request,
    Spent,
    ToolSpec,
)
from nbagent.messages import Call, Message, Text, Thinking, Usage
from nbagent.models import OpenAIChat
from nbagent.models._chat_request import sendable_name

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

TOOL = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
OTHER = ToolSpec("sub", "Subtract.", {"type": "object", "properties": {}})


def nodes_of(*messages: Message) -> Nodes:
    return Nodes(orjson.dumps(message.to_node()) for message in messages)


def request(
    *messages: Message,
    tools: tuple[ToolSpec, ...] = (),
    instructions: str = "",
    tail: tuple[Message, ...] = (),
    choice: Choice | None = None,
    **settings: Any,
) -> Request:
    nodes = nodes_of(*(messages or [Message("user", "go")]))
    header = Header("m", instructions, tools, settings)
    return Request(header, nodes, len(nodes), tail, choice)


def body(asked: Request, model: OpenAIChat | None = None) -> dict[str, Any]:
    made = (model or OpenAIChat("m", base_url="http://127.0.0.1/v1")).prepare(asked)
    return json.loads(made.body or b"")


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage:
        out["usage"] = usage
    return out


def piece(index: int | None, id_: Any = None, name: Any = None, args: Any = None) -> Any:
    out: dict[str, Any] = {"function": {}} if index is None else {"index": index, "function": {}}
    if id_ is not None:
        out["id"] = id_
    if name is not None:
        out["function"]["name"] = name
    out["function"]["arguments"] = args
    return chunk(tool_calls=[out])


async def asked(server: FakeServer, what: Request | None = None, **options: Any) -> list[Item]:
    model = OpenAIChat("m", base_url=server.url, **options)
    return [item async for item in model.stream(model.prepare(what or request()))]


async def until_error(server: FakeServer) -> tuple[list[Item], ModelError]:
    """What came before the error, and the error."""
    model = OpenAIChat("m", base_url=server.url)
    stream = model.stream(model.prepare(request()))
    got: list[Item] = []
    try:
        while True:
            got.append(await anext(stream))
    except ModelError as error:
        return got, error


def thinking_of(items: list[Item]) -> Thinking:
    (part,) = [i.part for i in items if isinstance(i, Block) and isinstance(i.part, Thinking)]
    return part


def calls(items: list[Item]) -> list[Call]:
    return [i.part for i in items if isinstance(i, Block) and isinstance(i.part, Call)]


def text(items: list[Item], kind: str = "text") -> str:
    return "".join(item.text for item in items if isinstance(item, Delta) and item.kind == kind)


# ---- what is sent ------------------------------------------------------------------------------


def test_messages_are_translated_each_in_its_role() -> None:
    sent = body(
        request(
            Message("user", "go"),
            Message("assistant", [Text("let me see"), Call("add", '{"a":1}', "c1")]),
            Message("tool", "1", call_id="c1", name="add"),
            Message("assistant", "one"),
            instructions="Be brief.",
            tools=(TOOL,),
            tail=(
                Message("assistant", [Call("add", '{"a":2}', "c2")]),
                Message("tool", "not run", call_id="c2", name="add"),
                Message("user", "Look again.", source="reviewer"),
            ),
        )
    )
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "let me see",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "one"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a":2}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "not run"},
        {"role": "user", "content": "Look again."},
    ]


@pytest.mark.parametrize("empty", ["null", "omit", "text"])
@pytest.mark.parametrize(
    "nothing",
    [
        [Thinking("hm")],
        [Thinking("hm", data='{"key":"reasoning_content"}')],
        [Thinking("hm"), Text("")],
        [Text(" \n")],
        [Text("\n"), Thinking("hm")],
        [],
    ],
)
def test_an_answer_that_says_and_calls_nothing_is_not_sent(nothing: Any, empty: Any) -> None:
    silent = Message("assistant", nothing)
    model = OpenAIChat("m", base_url="http://127.0.0.1/v1", empty_content=empty)
    history = (Message("user", "go"), silent, Message("user", "and?"))
    for tail in ((), (silent, Message("user", "Say something.")), (silent,)):
        sent = body(request(*history, tail=tail), model)["messages"]
        assert {each["role"] for each in sent} == {"user"}
    assert body(request(silent, Message("user", "go")), model)["messages"] == [
        {"role": "user", "content": "go"}
    ]


@pytest.mark.parametrize("finish", ["length", "stop"])
async def test_a_run_goes_on_after_an_answer_of_reasoning_alone(
    server: FakeServer, finish: str
) -> None:
    server.say(chunk(reasoning_content="I think"), chunk(finish))
    server.say(chunk("stop", content="done"))
    agent = nb.Agent(OpenAIChat("m", base_url=server.url))
    session = nb.Session()
    await agent.run("go", session=session, ui="none")
    result = await agent.run("and now?", session=session, ui="none")
    assert result.text == "done"
    for seen in server.seen:
        for message in seen.body["messages"]:
            assert message["role"] != "assistant" or message["content"]
    assert session.verify()


@pytest.mark.parametrize(("empty", "content"), [("null", None), ("text", ""), ("omit", "absent")])
def test_the_content_of_a_message_that_only_calls_can_be_chosen(
    empty: Any, content: str | None
) -> None:
    """F-B14: never the text "None"."""
    model = OpenAIChat("m", base_url="http://127.0.0.1/v1", empty_content=empty)
    sent = body(request(Message("assistant", [Call("add", "{}", "c")])), model)
    assert sent["messages"][0].get("content", "absent") == content


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ("  ", "{}"),
        ("null", "{}"),
        ('""', "{}"),
        ('"{\\"a\\": 1}"', '{"a":1}'),
        ('{"a": 1,}', '{"a":1}'),
        ("{'a': 1}", '{"a":1}'),
        ('{"a": "x\ny"}', '{"a":"x\\ny"}'),
        ('```json\n{"a": 1}\n```', '{"a":1}'),
        ('{}"', "{}"),
        ('{"a": "\\ud83d"}', '{"a":"\ufffd"}'),
        ('{"a": ', '{"invalid":"{\\"a\\": "}'),
        ("[1]", '{"invalid":"[1]"}'),
        ('{"a": NaN}', '{"invalid":"{\\"a\\": NaN}"}'),
        ('{"a": 1} {"a": 2}', '{"invalid":"{\\"a\\": 1} {\\"a\\": 2}"}'),
        ("call it with a = 1", '{"invalid":"call it with a = 1"}'),
    ],
)
def test_the_history_holds_only_arguments_that_hosts_can_read(arguments: str, sent: str) -> None:
    made = body(request(Message("assistant", [Call("add", arguments, "c")])))
    assert made["messages"][0]["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize(
    ("made_up", "start"),
    [
        ("query_table<|channel|>commentary", "query_table_channel_commentary_"),
        ("functions.look", "functions_look_"),
        ('view" path="a.php', "view_path_a_php_"),
        ("a" * 65, "a" * 48 + "_"),
        ("查询", "call_"),
        ("", "call_"),
        ("half \ud83d", "half_"),
        ("look\n", "look_"),
    ],
)
def test_a_name_that_a_model_made_up_is_sent_as_hosts_take_it(made_up: str, start: str) -> None:
    history = request(
        Message("user", "go"),
        Message("assistant", [Call("look", "{}", "a"), Call("b", "{}", "b")]),
        tail=(Message("assistant", [Call(made_up, "{}", "c"), Call("l-o_ok9", "{}", "d")]),),
    )
    sent = [m.get("tool_calls", ()) for m in body(history)["messages"]]
    names = [call["function"]["name"] for calls in sent for call in calls]
    assert [names[0], names[1], names[3]] == ["look", "b", "l-o_ok9"]
    assert re.fullmatch(re.escape(start) + "[0-9a-f]{8}", names[2])
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", names[2])


def test_two_names_that_differ_only_in_what_cannot_be_sent_stay_two() -> None:
    made_up = ["a.b", "a:b", "a b", "a" * 70, "a" * 71]
    calls = [Call(name, "{}", str(i)) for i, name in enumerate(made_up)]
    (message,) = body(request(Message("assistant", calls)))["messages"]
    assert len({call["function"]["name"] for call in message["tool_calls"]}) == len(made_up)


def test_arguments_that_are_nested_without_end_do_not_break_a_request() -> None:
    for deep in ('{"a":' * 100_000, '{"a":' * 700 + "{}" + "}" * 700 + " ,"):
        made = body(request(Message("assistant", [Call("add", deep, "c")])))
        sent = made["messages"][0]["tool_calls"][0]["function"]["arguments"]
        assert json.loads(sent) == {"invalid": deep}


@pytest.mark.parametrize(
    ("written", "ran"),
    [
        ("null", {}),
        ('""', {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": 1,}', {"a": 1}),
        ("{'a': 1}", {"a": 1}),
        ('{"a": 1, "b": "x\ny"}', {"a": 1, "b": "x\ny"}),
    ],
)
async def test_the_model_sees_the_call_that_ran_not_its_slips(
    server: FakeServer, written: str, ran: dict[str, Any]
) -> None:
    seen: list[dict[str, Any]] = []

    def take(a: int = 0, b: str = "") -> str:
        """Take."""
        seen.append({key: value for key, value in (("a", a), ("b", b)) if value})
        return "good"

    server.say(piece(0, "c1", "take", written), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))
    agent = nb.Agent(OpenAIChat("m", base_url=server.url), tools=[nb.tool(risk="readonly")(take)])
    result = await agent.run("go", ui="none")
    assert seen == [ran]
    _, call, answer = server.seen[1].body["messages"]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == ran
    assert "good" in answer["content"]
    assert result.messages[1].calls[0].arguments == written
    assert result.session.verify()


async def test_the_log_keeps_the_name_that_the_model_made_up(server: FakeServer) -> None:
    server.say(piece(0, "c1", "functions.look", "{}"), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))
    result = await nb.Agent(OpenAIChat("m", base_url=server.url)).run("go", ui="none")
    assert list(result.tool_calls["name"]) == ["functions.look"]
    assert result.messages[1].calls[0].name == "functions.look"
    sent = server.seen[1].body["messages"][1]["tool_calls"][0]["function"]["name"]
    assert sent == sendable_name("functions.look")
    assert result.session.verify()


def test_settings_are_sent_only_if_set_and_extra_wins() -> None:
    assert body(request()) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "go"}],
    }
    sent = body(
        request(
            temperature=0,
            max_tokens=5,
            seed=1,
            stop=["x"],
            thinking="low",
            timeout_s=3,
            extra={"temperature": 1, "top_k": 2},
        )
    )
    del sent["messages"], sent["stream"], sent["stream_options"], sent["model"]
    assert sent == {
        "temperature": 1,
        "max_tokens": 5,
        "seed": 1,
        "stop": ["x"],
        "reasoning_effort": "low",
        "top_k": 2,
    }


def test_openai_itself_knows_the_token_limit_by_another_name() -> None:
    sent = body(request(max_tokens=5), OpenAIChat("m", base_url="https://api.openai.com/v1"))
    assert sent["max_completion_tokens"] == 5
    assert "max_tokens" not in sent


def test_settings_that_cannot_be_expressed_are_refused() -> None:
    with pytest.raises(ConfigError, match="messages"):
        body(request(extra={"messages": []}))
    with pytest.raises(ConfigError, match="effort"):
        body(request(thinking=4096))
    with pytest.raises(ConfigError, match="'nope' is none of the tools on offer: add"):
        body(request(tools=(TOOL,), tool_choice="nope"))


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", None),
        ("none", "none"),
        ("required", "required"),
        ("add", {"type": "function", "function": {"name": "add"}}),
    ],
)
def test_tools_and_their_choice_are_sent(choice: str, sent: Any) -> None:
    made = body(request(tools=(TOOL, OTHER), tool_choice=choice))
    assert [tool["function"]["name"] for tool in made["tools"]] == ["add", "sub"]
    assert made["tools"][0] == {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": TOOL.parameters},
    }
    assert made.get("tool_choice") == sent


def test_one_request_may_offer_less() -> None:
    made = body(request(tools=(TOOL, OTHER), choice=Choice("required", ("sub",))))
    assert [tool["function"]["name"] for tool in made["tools"]] == ["sub"]
    assert made["tool_choice"] == "required"


def test_definitions_stay_if_the_history_holds_calls_though_none_is_on_offer() -> None:
    history = (
        Message("user", "go"),
        Message("assistant", [Call("add", "{}", "c")]),
        Message("tool", "1", call_id="c", name="add"),
    )
    made = body(request(*history, tools=(TOOL,), choice=Choice("none", ())))
    assert [tool["function"]["name"] for tool in made["tools"]] == ["add"]
    assert made["tool_choice"] == "none"
    made = body(request(tools=(TOOL,), choice=Choice("none", ())))
    assert "tools" not in made
    assert "tool_choice" not in made


def test_a_step_translates_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    from nbagent.models import openai_chat

    made: list[str] = []

    def counted(node: dict[str, Any], empty: Any, family: str) -> bytes:
        made.append(node["text"])
        return orjson.dumps({"role": node["role"], "content": node["text"]})

    monkeypatch.setattr(openai_chat, "message", counted)
    model = OpenAIChat("m", base_url="http://127.0.0.1/v1")
    nodes = nodes_of(Message("user", "0"))
    header = Header("m")
    digests = set[str | None]()
    for n in range(1, 50):
        digests.add(model.prepare(Request(header, nodes, len(nodes))).digest)
        nodes.append(nodes_of(Message("user", str(n)))[0])
    assert made == [str(n) for n in range(49)]
    assert len(digests) == 49
    early = model.prepare(Request(header, nodes, 3))
    assert [m["content"] for m in json.loads(early.body or b"")["messages"]] == ["0", "1", "2"]


def test_the_digest_is_that_of_the_body_and_preparing_is_pure() -> None:
    from hashlib import blake2b

    one, other = OpenAIChat("m"), OpenAIChat("m")
    what = request(instructions="x", tools=(TOOL,))
    made = one.prepare(what)
    assert made == other.prepare(what) == one.prepare(what)
    assert made.digest == blake2b(made.body or b"", digest_size=16).hexdigest()


def test_half_surrogates_do_not_break_a_request() -> None:
    """F-D4."""
    sent = body(request(tail=(Message("user", "half \ud83d of an emoji"),)))
    assert sent["messages"][-1]["content"] == "half \ufffd of an emoji"


# ---- where to, and with which key --------------------------------------------------------------


async def test_the_key_goes_into_the_header_and_nowhere_else(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.say(chunk("stop", content="x"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment")
    model = OpenAIChat("m", base_url=server.url, headers={"x-extra": "quiet"})
    assert "quiet" not in repr(vars(model)["_target"])
    await asked(server, api_key="sk-argument", headers={"x-extra": "quiet"})
    assert server.seen[0].headers["authorization"] == "Bearer sk-argument"
    assert server.seen[0].headers["x-extra"] == "quiet"
    assert "sk-argument" not in repr(OpenAIChat("m", api_key="sk-argument"))
    assert "sk-argument" not in OpenAIChat("m", api_key="sk-argument").name
    await asked(server)
    assert server.seen[1].headers["authorization"] == "Bearer sk-from-environment"


def test_the_environment_s_key_goes_to_no_address_given_by_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment")
    far: Any = OpenAIChat("m", base_url="https://models.example.org/v1")
    assert "authorization" not in far._target_with_key().headers
    monkeypatch.setenv("OPENAI_BASE_URL", "https://models.example.org/v1")
    far = OpenAIChat("m")
    assert far._target_with_key().headers["authorization"] == "Bearer sk-from-environment"
    assert far.name == "models.example.org:m"


async def test_a_missing_key_is_told_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    model = OpenAIChat("gpt-5")
    assert isinstance(model, Model)
    assert model.name == "openai:gpt-5"
    with pytest.raises(AuthError, match="OPENAI_API_KEY, or give api_key"):
        _ = [item async for item in model.stream(model.prepare(request()))]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h/v1/chat/completions", "http://h/v1/chat/completions"),
        ("https://h/openai?api-version=3", "https://h/openai/chat/completions?api-version=3"),
    ],
)
def test_the_address_is_completed(base: str, url: str) -> None:
    model: Any = OpenAIChat("m", base_url=base)
    assert model._target.url == url


@pytest.mark.parametrize("base", ["localhost:8000", "ftp://h", "http://", "v1"])
def test_what_is_no_address_is_refused(base: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        OpenAIChat("m", base_url=base)


# ---- what is read ------------------------------------------------------------------------------


async def test_text_then_calls_keep_both_and_their_order(server: FakeServer) -> None:
    """F-A6."""
    server.say(
        chunk(role="assistant", content=""),
        chunk(content="Let "),
        chunk(content="me"),
        chunk(content=" see"),
        piece(0, "c1", "add", ""),
        piece(0, args='{"a":'),
        piece(0, args="1}"),
        piece(1, "c2", "sub", "{}"),
        chunk("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
    )
    assert await asked(server) == [
        Delta("Let ", 0),
        Delta("me", 0),
        Delta(" see", 0),
        Delta("add", 1, "name"),
        Delta('{"a":', 1, "arguments"),
        Delta("1}", 1, "arguments"),
        Delta("sub", 2, "name"),
        Delta("{}", 2, "arguments"),
        Spent(Usage(10, 5)),
        Block(Call("add", '{"a":1}', "c1"), 1),
        Block(Call("sub", "{}", "c2"), 2),
        End("tool_calls", Usage(10, 5)),
    ]


@pytest.mark.parametrize("nothing", [None, "", "  "])
async def test_a_call_without_arguments_has_an_empty_object(
    server: FakeServer, nothing: str | None
) -> None:
    """F-A1, F-A2."""
    server.say(piece(0, "c", "now", nothing), chunk("tool_calls"))
    (call,) = calls(await asked(server))
    assert call == Call("now", "{}", "c")


A, B, C = '{"a":1}', '{"a":2}', '{"a":3}'


@pytest.mark.parametrize(
    "pieces",
    [
        [piece(0, "x", "add", A), piece(0, "y", "add", B), piece(0, "z", "add", C)],
        [piece(0, "x", "add", A), piece(1, "y", "add", B), piece(2, "z", "add", C)],
        [piece(None, "x", "add", A), piece(None, "y", "add", B), piece(None, "z", "add", C)],
        [piece(None, None, "add", A), piece(None, "", "add", B), piece(None, None, "add", C)],
        [piece(0, "", "add", A), piece(0, "", "add", B), piece(0, "", "add", C)],
        [piece(0, "x", "add", A), piece(0, "x", "add", B), piece(0, "x", "add", C)],
        [piece(0, "x", "add", A), piece(1, "x", "add", B), piece(2, "x", "add", C)],
        [
            piece(0, "x", "add", '{"a'),
            piece(0, "x", "add", '":1}'),
            piece(1, "y", "add", ""),
            piece(1, None, None, B),
            piece(2, "z", "a", ""),
            piece(2, None, "dd", C),
        ],
        [
            piece(None, "x", "add", '{"a'),
            piece(None, None, None, '":1}'),
            piece(None, "y", "add", None),
            piece(None, "y", None, B),
            piece(None, "z", "add", {"a": 3}),
        ],
        [chunk(tool_calls=[piece(i, i, "add", a)["choices"][0]["delta"]["tool_calls"][0] for i, a in enumerate((A, B, C))])],
    ],
)  # fmt: skip
async def test_three_calls_are_three_calls_however_a_host_numbers_them(
    server: FakeServer, pieces: list[Any]
) -> None:
    """F-A3, F-B1."""
    server.say(*pieces, chunk("tool_calls"))
    items = await asked(server)
    assert [(call.name, call.arguments) for call in calls(items)] == [
        ("add", A),
        ("add", B),
        ("add", C),
    ]
    assert [text([i], "arguments") for i in items if text([i], "arguments")] != []


BLANK_FUNCTION = {"name": "", "arguments": ""}
BLANKS: list[dict[str, Any]] = [
    {"function_call": BLANK_FUNCTION},
    {"function_call": {"name": None, "arguments": None}},
    {"tool_calls": [{"id": "", "type": "function", "function": BLANK_FUNCTION}]},
    {"tool_calls": [{"index": 0, "id": None, "function": {"name": "", "arguments": " \n"}}]},
    {"tool_calls": [{"index": 0, "function": {"name": "", "arguments": "{}"}}]},
    {"tool_calls": [{"index": 0, "type": "function", "function": None}]},
    {"tool_calls": [{}]},
    {"tool_calls": [None]},
]


@pytest.mark.parametrize("blank", BLANKS, ids=str)
async def test_a_call_without_name_id_and_arguments_beside_content_is_no_call(
    server: FakeServer, blank: dict[str, Any]
) -> None:
    server.say(chunk(content="One ", **blank), chunk(content="two", **blank), chunk("stop"))
    assert await asked(server) == [Delta("One ", 0), Delta("two", 0), End("stop")]
    message = {"role": "assistant", "content": "One two", **blank}
    answer = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
    server.tell(json.dumps(answer).encode(), headers={"content-type": "application/json"})
    await asked(server)
    assert await asked(server) == [Delta("One two", 0), End("stop")]


async def test_blank_pieces_hide_no_call(server: FakeServer) -> None:
    """Some hosts announce a call by its index before they give its name."""
    server.say(piece(0), piece(0, "c", "add", ""), piece(0, None, None, A), chunk("tool_calls"))
    assert calls(await asked(server)) == [Call("add", A, "c")]


@pytest.mark.parametrize(
    "again",
    [
        piece(0, "a", "add", '{"a":1}'),
        piece(0, "a", "add", '{"a": 1}'),
        piece(0, "a", None, '{"a":1}'),
        piece(None, "a", "add", {"a": 1}),
        {"choices": [{"index": 0, "finish_reason": None, "message": {"tool_calls": [
            {"id": "a", "function": {"name": "add", "arguments": '{"a":1}'}}]}}]},
    ],
)  # fmt: skip
async def test_a_call_sent_in_pieces_and_once_more_whole_is_one_call(
    server: FakeServer, again: Any
) -> None:
    pieces = [piece(0, "a", "add", ""), piece(0, None, None, '{"a":'), piece(0, None, None, "1}")]
    server.say(*pieces, again, again, chunk("tool_calls"))
    items = await asked(server)
    assert calls(items) == [Call("add", '{"a":1}', "a")]
    assert text(items, "arguments") == '{"a":1}'


async def test_equal_calls_that_a_host_tells_apart_are_two(server: FakeServer) -> None:
    """F-B1."""
    for one, other in ((piece(0, "x", "add", A), piece(1, "x", "add", A)),
                       (piece(0, "x", "add", A), piece(0, "y", "add", A))):  # fmt: skip
        server.say(one, other, chunk("tool_calls"))
    for _ in range(2):
        assert [call.arguments for call in calls(await asked(server))] == [A, A]


async def test_null_among_choices_parts_and_details_is_skipped(server: FakeServer) -> None:
    server.say(
        {"choices": [None, {"index": 0, "delta": {"content": [None, {"type": "text", "text": "a"}]}}]},
        chunk(reasoning_details=[None, {"type": "reasoning.text", "text": "hm"}]),
        chunk(tool_calls=[None, piece(0, "c", "add", A)["choices"][0]["delta"]["tool_calls"][0]]),
        chunk("tool_calls"),
    )  # fmt: skip
    items = await asked(server)
    assert (text(items), text(items, "thinking")) == ("a", "hm")
    assert calls(items) == [Call("add", A, "c")]


async def test_empty_choices_and_other_choices_are_no_error(server: FakeServer) -> None:
    """F-A5; of several answers the first is read."""
    server.say(
        {"choices": [], "prompt_filter_results": []},
        chunk(content="a"),
        {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "length"}]},
        {"choices": [{"index": 1, "delta": {}}, {"index": 0, "delta": {"content": "b"}}]},
        {"choices": [{"delta": None, "index": 0, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    )
    items = await asked(server)
    assert text(items) == "ab"
    assert items[-1] == End("stop", Usage(1, 2))


async def test_the_form_before_tools_is_read_as_a_call(server: FakeServer) -> None:
    server.say(
        chunk(function_call={"name": "add", "arguments": ""}),
        chunk(function_call={"arguments": '{"a":'}),
        chunk(function_call={"arguments": "1}"}),
        chunk("function_call"),
    )
    items = await asked(server)
    assert calls(items) == [Call("add", '{"a":1}', "")]
    assert items[-1] == End("tool_calls")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_reasoning_is_thinking_and_goes_back_beside_its_calls(
    server: FakeServer, key: str
) -> None:
    server.say(
        chunk(**{key: "think", "content": ""}),
        chunk(**{key: "ing", "content": None}),
        chunk(content="so"),
        piece(0, "c", "add", "{}"),
        chunk("tool_calls"),
    )
    items = await asked(server)
    assert text(items, "thinking") == "thinking"
    assert text(items) == "so"
    thought = Thinking("thinking", data=thinking_of(items).data)
    sent = body(request(Message("assistant", [thought, Text("so"), *calls(items)])))
    assert sent["messages"][0][key] == "thinking"
    sent = body(request(Message("assistant", [thought, Text("so")])))
    assert sent["messages"] == [{"role": "assistant", "content": "so"}]


async def test_empty_reasoning_beside_a_call_goes_back_too(server: FakeServer) -> None:
    """DeepSeek refuses a history that leaves the field out."""
    server.say(chunk(reasoning_content=""), piece(0, "c", "add", "{}"), chunk("tool_calls"))
    items = await asked(server)
    sent = body(request(Message("assistant", [thinking_of(items), *calls(items)])))
    assert sent["messages"][0]["reasoning_content"] == ""
    server.say(chunk(reasoning_content=""), chunk("stop", content="x"))
    await asked(server)
    assert not [item for item in await asked(server) if isinstance(item, Block)]


async def test_reasoning_details_go_back_whole(server: FakeServer) -> None:
    """F-B12 on this wire: the signature survives."""

    def detail(**fields: Any) -> dict[str, Any]:
        return chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, **fields}])

    server.say(
        detail(text="a", format="f"),
        detail(text="b"),
        detail(text="", signature="SIG"),
        piece(0, "c", "add", "{}"),
        chunk("tool_calls"),
    )
    items = await asked(server)
    assert text(items, "thinking") == "ab"
    thought = Thinking("ab", data=thinking_of(items).data)
    sent = body(request(Message("assistant", [thought, *calls(items)])))
    assert sent["messages"][0]["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "format": "f", "signature": "SIG"}
    ]


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("length", "max_tokens"), ("eos", "stop"), ("tool_calls", "stop")],
)
async def test_finish_reasons_are_mapped(server: FakeServer, reason: str, finish: Any) -> None:
    server.say(chunk(content="x"), chunk(reason))
    assert (await asked(server))[-1] == End(finish)


async def test_a_call_that_the_limit_cut_is_given_as_it_is(server: FakeServer) -> None:
    """F-C2: the finish reason tells that it must not run."""
    server.say(piece(0, "c", "add", '{"a":'), chunk("length"))
    items = await asked(server)
    assert calls(items) == [Call("add", '{"a":', "c")]
    assert items[-1] == End("max_tokens")


async def test_calls_with_the_reason_stop_are_calls(server: FakeServer) -> None:
    server.say(piece(0, "c", "add", "{}"), chunk("stop"))
    assert (await asked(server))[-1] == End("tool_calls")


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}, Usage(10, 5)),
        (
            {
                "prompt_tokens": 100,
                "completion_tokens": 50,
                "total_tokens": 150,
                "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
            Usage(30, 30, 60, 10, 20),
        ),
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 22,
                "completion_tokens_details": {"reasoning_tokens": 7},
            },
            Usage(10, 5, 0, 0, 7),
        ),
        (
            {
                "prompt_tokens": 390,
                "completion_tokens": 22,
                "total_tokens": 412,
                "prompt_cache_hit_tokens": 256,
            },
            Usage(134, 22, 256),
        ),
        (
            {
                "prompt_tokens": 43,
                "completion_tokens": 10,
                "total_tokens": 53,
                "prompt_tokens_details": None,
                "completion_tokens_details": {"reasoning_tokens": 11},
            },
            Usage(43, 0, 0, 0, 10),
        ),
        ({"prompt_tokens": None, "completion_tokens": None}, None),
    ],
)
async def test_usage_counts_are_disjoint_and_add_up(
    server: FakeServer, usage: dict[str, Any], counts: Usage | None
) -> None:
    server.say(chunk("stop", content="x"), {"choices": [], "usage": usage})
    end = (await asked(server))[-1]
    assert end == End("stop", counts)
    if counts and "total_tokens" in usage:
        assert counts.total == usage["total_tokens"]


def counts(prompt: int | None, completion: int | None) -> dict[str, int | None]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


async def test_running_totals_of_usage_replace_each_other(server: FakeServer) -> None:
    server.say(chunk(content="a", usage=counts(9, None)), chunk("stop", usage=counts(9, 2)))
    items = await asked(server)
    assert [item for item in items if isinstance(item, Spent)] == [
        Spent(Usage(9, 0)),
        Spent(Usage(9, 2)),
    ]
    assert items[-1] == End("stop", Usage(9, 2))


@pytest.mark.parametrize(
    "without",
    [None, {}, counts(None, None), counts(0, 0), {"completion_tokens": 5}],
)
async def test_a_chunk_without_usage_does_not_reset_it(server: FakeServer, without: Any) -> None:
    last = {**chunk("stop"), "usage": without}
    server.say(chunk(content="a", usage=counts(10, 2)), chunk(usage=counts(10, 5)), last)
    assert (await asked(server))[-1] == End("stop", Usage(10, 5))


@pytest.mark.parametrize("how", ["closed", "lost", "error", "unreadable"])
async def test_usage_is_told_before_a_stream_breaks(server: FakeServer, how: str) -> None:
    last: Any = {
        "error": {"error": {"message": "busy", "code": 503}, "usage": counts(10, 6)},
        "unreadable": b"data: {nope\n\n",
    }.get(how, b"")
    used = [chunk(content="a", usage=counts(10, 2)), chunk(content="b", usage=counts(10, 5))]
    server.say(*used, chunk(content="c"), last, done=False, cut=how == "lost")
    got, _ = await until_error(server)
    told = [item.usage for item in got if isinstance(item, Spent)]
    assert told[-1] == Usage(10, 6 if how == "error" else 5)


async def test_either_the_end_marker_or_a_finish_reason_suffices(server: FakeServer) -> None:
    """Row 21."""
    server.say(chunk(content="a"))
    assert (await asked(server))[-1] == End("stop")
    server.say(chunk("stop", content="a"), done=False)
    await asked(server)
    assert (await asked(server))[-1] == End("stop")


@pytest.mark.parametrize("ending", [b"data: [DONE]", b"data: [DONE]\n", b"data: [DONE] \r\n"])
async def test_a_terminal_event_without_its_blank_line_counts(
    server: FakeServer, ending: bytes
) -> None:
    """Row 19."""
    server.say(chunk(content="a"), ending, done=False)
    assert (await asked(server))[-1] == End("stop")


async def test_what_follows_the_end_marker_is_not_read(server: FakeServer) -> None:
    server.say(chunk(content="a"), b"data: [DONE]\n\n", chunk(content="b"), b"data: [DONE]\n\n", done=False)  # fmt: skip
    assert text(await asked(server)) == "a"


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("rest", [b"", b'data: {"choices":[{"index":0,"delta":{"con'])
async def test_a_stream_that_ends_early_is_truncated_and_no_call_is_given(
    server: FakeServer, cut: bool, rest: bytes
) -> None:
    """Row 26."""
    server.say(chunk(content="a"), piece(0, "c", "add", '{"a":'), rest, done=False, cut=cut)
    got, error = await until_error(server)
    assert isinstance(error, TruncatedStreamError)
    assert error.recoverable
    assert text(got) == "a"
    assert calls(got) == []


async def test_a_connection_lost_after_the_finish_reason_loses_nothing(server: FakeServer) -> None:
    server.say(chunk("stop", content="a"), done=False, cut=True)
    assert (await asked(server))[-1] == End("stop")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": 429, "message": "slow down"}, RateLimitError),
        ({"code": "503", "message": "busy"}, OverloadedError),
        ({"type": "overloaded_error", "message": "busy"}, OverloadedError),
        ({"code": 400, "message": "Token limit reached"}, BadRequestError),
        ({"status_code": 400, "code": "tool_use_failed", "message": "no"}, BadRequestError),
        ({"message": "what?"}, ServerError),
        ("it broke", ServerError),
    ],
)
@pytest.mark.parametrize("prefix", [b"", b"event: error\n"])
async def test_an_error_inside_the_stream_is_typed_and_what_came_before_is_kept(
    server: FakeServer, error: Any, kind: type[ModelError], prefix: bytes
) -> None:
    """Rows 22 and 23, F-A11."""
    server.say(
        chunk(content="a"),
        chunk(content="b"),
        prefix + b"data: %b\n\n" % json.dumps({"error": error}).encode(),
    )
    got, raised = await until_error(server)
    assert type(raised) is kind
    assert text(got) == "ab"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("reason", "message", "said"),
    [
        ("stop", {"content": None, "refusal": "I can't do that."}, "I can't do that."),
        ("stop", {"content": "", "refusal": "I can't do that."}, "I can't do that."),
        ("stop", {"content": "Well: ", "refusal": "I can't."}, "Well: I can't."),
        ("content_filter", {"content": None, "refusal": None}, ""),
        ("content_filter", {"content": "Once upon", "refusal": None}, "Once upon"),
        ("refusal", {"content": "I won't.", "refusal": ""}, "I won't."),
    ],
)
async def test_a_refusal_by_the_model_is_an_answer(
    server: FakeServer, reason: str, message: dict[str, str | None], said: str, whole: Any
) -> None:
    used = {"prompt_tokens": 9, "completion_tokens": 3}
    if whole:
        choices = [{"index": 0, "finish_reason": reason, "message": message}]
        raw = json.dumps({"choices": choices, "usage": used}).encode()
        server.tell(raw, headers={"content-type": "application/json"})
    else:
        pieces = [chunk(refusal=each) for each in (message["refusal"] or "").partition(" ") if each]
        server.say(
            chunk(content=message["content"], refusal=None), *pieces, chunk(reason, usage=used)
        )
    items = await asked(server)
    assert text(items) == said
    assert items[-1] == End("refused", Usage(9, 3))


async def test_a_refusal_is_read_where_a_reply_in_json_was_asked_for(server: FakeServer) -> None:
    server.say(chunk(refusal="I can't "), chunk(refusal="do that."), chunk("stop"))
    server.say(chunk("content_filter"))
    what = request(tools=(TOOL,))
    items = await asked(server, what, constrain_tools=True)
    assert (text(items), items[-1]) == ("I can't do that.", End("refused"))
    assert await asked(server, what, constrain_tools=True) == [End("refused")]


NO_ANSWERS: list[tuple[bytes, type[ModelError]]] = [
    (b"{}", NotFoundError),
    (b'{"detail":"Not Found"}', NotFoundError),
    (b'{"object":"list","data":[{"id":"m"}]}', NotFoundError),
    (b'{"code":429,"msg":"slow down"}', RateLimitError),
    (b'{"status":401,"title":"Unauthorized"}', AuthError),
    (b'{"choices":[]}', ServerError),
    (b'{"choices":null}', ServerError),
    (b'{"choices":[{}]}', ServerError),
    (b'{"choices":[null],"usage":{"prompt_tokens":1}}', ServerError),
]


@pytest.mark.parametrize(("said", "kind"), NO_ANSWERS, ids=str)
@pytest.mark.parametrize("how", ["plain", "stream", "unmarked"])
async def test_what_holds_no_answer_is_a_typed_error_that_quotes_it(
    server: FakeServer, said: bytes, kind: type[ModelError], how: str
) -> None:
    if how == "plain":
        server.tell(said, headers={"content-type": "application/json"})
    else:
        server.say(b"data: %b\n\n" % said, done=how == "stream")
    _, error = await until_error(server)
    assert type(error) is kind
    assert error.body == said.decode()
    assert any(each in str(error) for each in (said.decode(), "slow down", "Unauthorized", "401"))


async def test_a_stream_of_the_end_marker_alone_is_a_typed_error(server: FakeServer) -> None:
    server.say()
    server.say(b": keep-alive\n\n", b"data:  \n\n")
    for _ in range(2):
        _, error = await until_error(server)
        assert type(error) is ServerError
        assert (error.body, error.recoverable) == ("[DONE]", True)


async def test_what_is_quoted_is_short_and_without_keys(server: FakeServer) -> None:
    server.tell(
        b'{"detail":"no route for sk-secret-key %b"}' % (b"x" * 5_000),
        headers={"content-type": "application/json"},
    )
    with pytest.raises(NotFoundError, match="base_url") as caught:
        await asked(server, api_key="sk-secret-key")
    assert "sk-secret-key" not in str(caught.value) + str(caught.value.body)
    assert len(str(caught.value)) < 500
    assert len(caught.value.body or "") < 2_100


@pytest.mark.parametrize("delta", [{}, {"content": ""}, {"content": None, "role": "assistant"}])
async def test_an_answer_without_words_is_an_answer(server: FakeServer, delta: Any) -> None:
    """Whether it will do is the loop's to say."""
    server.say({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]})
    assert await asked(server) == [End("stop")]


async def _raises_then(server: FakeServer, kind: type[ModelError]) -> None:
    with pytest.raises(kind):
        await asked(server)


async def test_a_plain_json_answer_is_read_though_a_stream_was_asked_for(
    server: FakeServer,
) -> None:
    """Row 24."""
    answer = {
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "hm",
                    "reasoning_content": "think",
                    "tool_calls": [
                        {"id": "c1", "function": {"name": "add", "arguments": A}},
                        {"id": "c2", "function": {"name": "add", "arguments": B}},
                    ],
                },
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    raw = b"\n   \n" + json.dumps(answer).encode()
    server.tell(raw[:3], raw[3:20], raw[20:], headers={"content-type": "application/json"})
    items = await asked(server)
    assert text(items) == "hm"
    assert text(items, "thinking") == "think"
    assert calls(items) == [Call("add", A, "c1"), Call("add", B, "c2")]
    assert items[-1] == End("tool_calls", Usage(1, 2))


async def test_a_json_error_with_status_200_is_an_error(server: FakeServer) -> None:
    server.tell(
        b'{"error": {"message": "no such model", "code": 404}}',
        headers={"content-type": "application/json"},
    )
    with pytest.raises(NotFoundError, match="no such model"):
        await asked(server)


@pytest.mark.parametrize(
    ("kind", "page"),
    [("text/html", b"<html>Welcome to nginx</html>"), ("text/plain", b"Hello there"), ("", b"")],
)
async def test_pages_and_plain_text_are_a_typed_error(
    server: FakeServer, kind: str, page: bytes
) -> None:
    server.tell(page, headers={"content-type": kind})
    with pytest.raises(NotFoundError, match="base_url"):
        await asked(server)


@pytest.mark.parametrize("kind", ["text/plain", "application/json", "text/event-stream; charset=latin-1"])  # fmt: skip
async def test_a_stream_under_another_label_is_still_a_stream_in_utf_8(
    server: FakeServer, kind: str
) -> None:
    """Row 9."""
    raw = json.dumps(chunk(content="é\u2028x"), ensure_ascii=False).encode()
    server.say(b": hello\n\n", b"data: " + raw + b"\n\n", headers={"content-type": kind})
    assert text(await asked(server)) == "é\u2028x"


async def test_what_is_no_json_is_a_typed_error_and_bad_bytes_are_not(server: FakeServer) -> None:
    """Row 8, and rows 15 and 17: nothing is parsed where there is no data."""
    server.say(b"data: {nope\n\n")
    with pytest.raises(ServerError, match="can't be read"):
        await asked(server)
    server.say(
        b"retry: 3000\n\n",
        b"event: ping\n\ndata:\n\n",
        b'data: {"choices":[{"index":0,"delta":{"content":"a\xffb"}}]}\n\n',
    )
    await _raises_then(server, ServerError)
    assert text(await asked(server)) == "a\ufffdb"


async def test_halves_of_one_character_in_two_chunks_are_joined(server: FakeServer) -> None:
    server.say(
        b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00b\\ud83d"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"c"}}]}\n\n',
    )
    assert text(await asked(server)) == "a😀b\ufffdc"


async def test_content_in_parts_or_as_json_is_read(server: FakeServer) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    server.say(
        chunk(content=[thinking]),
        chunk(content=[{"type": "text", "text": "so"}]),
        chunk(content={"a": 1}),
    )
    items = await asked(server)
    assert text(items, "thinking") == "hm"
    assert text(items) == 'so{"a":1}'


async def test_a_host_that_leaves_the_connection_open_after_the_end_does_not_hold_us(
    server: FakeServer,
) -> None:
    server.say(chunk("stop", content="a"), hang=True)
    assert (await asked(server))[-1] == End("stop")

"""Fields that only one vendor knows: kept with the answer, given back to models of its family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

import nbagent as nb
from nbagent.interfaces.model import Block
from nbagent.messages import Call, Message, Text, Thinking
from nbagent.models import OpenAIChat
from nbagent.models._chat_extra import family_of, merge
from tests.models.test_openai_chat import asked, body, calls, chunk, request

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

SIGNED = {"extra_content": {"google": {"thought_signature": "CpYBAdHtim9=="}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}


@nb.tool(risk="readonly")
def look(a: int) -> str:
    """Look."""
    return "seen"


def whole(**message: Any) -> bytes:
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return json.dumps(answer).encode()


def say_signed_call(server: FakeServer, form: str) -> None:
    """The same answer in each form in which it may come."""
    given, bare = {**CALL, **SIGNED}, {"index": 0, **CALL}
    match form:
        case "whole":
            server.tell(
                whole(role="assistant", content=None, tool_calls=[given]),
                headers={"content-type": "application/json"},
            )
        case "one chunk":
            server.say(chunk("tool_calls", tool_calls=[{"index": 0, **given}]))
        case "before":
            start = {**bare, **SIGNED, "function": {"name": "look", "arguments": ""}}
            rest = {"index": 0, "function": {"arguments": '{"a":1}'}}
            server.say(chunk(tool_calls=[start]), chunk("tool_calls", tool_calls=[rest]))
        case _:
            server.say(
                chunk(tool_calls=[bare]), chunk("tool_calls", tool_calls=[{"index": 0, **SIGNED}])
            )


FORMS = ["whole", "one chunk", "before", "behind"]


@pytest.mark.parametrize("form", FORMS)
async def test_an_unknown_field_of_a_call_goes_back_with_it(
    server: FakeServer, form: str, tmp_path: Path
) -> None:
    say_signed_call(server, form)
    server.say(chunk("stop", content="done"))
    model = OpenAIChat("gemini-3-pro", base_url=server.url)
    session = nb.Session.open(tmp_path / "run.jsonl")
    result = await nb.Agent(model, tools=[look]).run("go", session=session, ui="none")
    assert result.text == "done"
    sent = server.seen[1].body["messages"][1]
    assert sent["tool_calls"] == [{**CALL, **SIGNED}]
    assert session.verify()
    session.close()
    opened = nb.Session.open(tmp_path / "run.jsonl")
    assert opened.verify()
    again = nb.Agent(OpenAIChat("gemini-2.5-flash", base_url=server.url), tools=[look])
    await again.run("and now?", session=opened, ui="none")
    assert server.seen[2].body["messages"][1] == sent
    opened.close()


async def test_another_family_does_not_get_it(server: FakeServer) -> None:
    say_signed_call(server, "one chunk")
    server.say(chunk("stop", content="done"))
    session = nb.Session()
    first = nb.Agent(OpenAIChat("gemini-3-pro", base_url=server.url), tools=[look])
    await first.run("go", session=session, ui="none")
    other = nb.Agent(OpenAIChat("gpt-5", base_url=server.url), tools=[look])
    await other.run("again", session=session, ui="none")
    assert server.seen[-1].body["messages"][1]["tool_calls"] == [CALL]
    elsewhere = OpenAIChat("gemini-3-pro", base_url="http://localhost/v1")
    made = body(request(*session_messages(session)), elsewhere)
    assert made["messages"][1]["tool_calls"] == [CALL]
    assert session.verify()


def session_messages(session: nb.Session) -> list[Message]:
    nodes = [e.data.message for e in session.events if e.type == "assistant/message"]
    return [Message("user", "go"), *map(Message.from_node, nodes)]


async def test_each_of_several_calls_keeps_its_own(server: FakeServer) -> None:
    """Gemini signs the first of parallel calls only."""
    other = {"id": "c2", "function": {"name": "look", "arguments": '{"a":2}', "note": "x"}}
    server.say(
        chunk(tool_calls=[{"index": 0, **CALL, **SIGNED}]),
        chunk("tool_calls", tool_calls=[{"index": 1, **other}]),
    )
    model = OpenAIChat("gemini-3", base_url=server.url)
    made = calls(await asked(server))
    assert len(made) == 2
    items = [item async for item in model.stream(model.prepare(request()))]
    sent = body(request(Message("assistant", calls(items))), model)["messages"][0]["tool_calls"]
    assert sent[0] == {**CALL, **SIGNED}
    assert sent[1] == {
        "id": "c2",
        "type": "function",
        "function": {"name": "look", "arguments": '{"a":2}', "note": "x"},
    }


@pytest.mark.parametrize("with_call", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_unknown_field_of_a_message_goes_back_with_it(
    server: FakeServer, *, stream: bool, with_call: bool
) -> None:
    more = {"tool_calls": [{"index": 0, **CALL}]} if with_call else {}
    if stream:
        server.say(chunk(content="Let "), chunk(content="me"), chunk("stop", **more, **SIGNED))
    else:
        server.tell(
            whole(role="assistant", content="Let me", **more, **SIGNED),
            headers={"content-type": "application/json"},
        )
    server.say(chunk("stop", content="done"))
    session, model = nb.Session(), OpenAIChat("gemini-3", base_url=server.url)
    agent = nb.Agent(model, tools=[look])
    await agent.run("go", session=session, ui="none")
    await agent.run("and?", session=session, ui="none")
    sent = server.seen[-1].body["messages"][1]
    assert sent["content"] == "Let me"
    assert sent["extra_content"] == SIGNED["extra_content"]
    assert "key" not in sent
    assert "" not in sent
    plain = body(request(*session_messages(session)), OpenAIChat("gpt-5", api_key="k"))
    assert "extra_content" not in plain["messages"][1]
    assert session.verify()


async def test_known_fields_are_never_sent_twice_and_empty_ones_not_at_all(
    server: FakeServer,
) -> None:
    server.tell(
        whole(
            role="assistant",
            content="x",
            refusal=None,
            annotations=[{"type": "url"}],
            audio=None,
            reasoning="hm",
            citations=["a"],
            empty={},
            prefix=False,
            tool_calls=[{**CALL, "index": 0, "type": "function", "extra_content": None}],
        ),
        headers={"content-type": "application/json"},
    )
    model = OpenAIChat("m", base_url=server.url)
    items = [item async for item in model.stream(model.prepare(request()))]
    (call,) = calls(items)
    assert call.extra is None
    blocks = [i.part for i in items if isinstance(i, Block)]
    sent = model.prepare(request(Message("assistant", [Text("x"), *blocks])))
    assert json.loads(sent.body or b"")["messages"] == [
        {
            "prefix": False,
            "role": "assistant",
            "content": "x",
            "tool_calls": [CALL],
            "reasoning": "",  # its text came in deltas
        }
    ]
    assert (sent.body or b"").count(b'"reasoning":') == 1


async def test_a_host_that_says_nothing_unknown_changes_no_byte(server: FakeServer) -> None:
    server.say(chunk("tool_calls", role="assistant", tool_calls=[{"index": 0, **CALL}]))
    items = await asked(server)
    assert [i.part for i in items if isinstance(i, Block)] == [Call("look", '{"a":1}', "c1")]
    node = Message("assistant", [Call("look", '{"a":1}', "c1")]).to_node()
    assert orjson.dumps(node) == (
        b'{"role":"assistant","parts":[{"call":"look","id":"c1","arguments":"{\\"a\\":1}"}]}'
    )


def test_a_message_with_unknown_fields_comes_back_from_its_log_form() -> None:
    parts = [
        Thinking("", data='{"extra":{"from":"h/m","fields":{"a":1}}}'),
        Call("look", "{}", "c", extra='{"from":"h/m","fields":{"b":2}}'),
    ]
    message = Message("assistant", parts)
    node = orjson.loads(orjson.dumps(message.to_node()))
    assert Message.from_node(node) == message
    assert Message.from_node(node).to_node() == message.to_node()
    assert "extra" not in json.dumps(message.to_dict())


async def test_half_characters_in_an_unknown_field_break_nothing(server: FakeServer) -> None:
    raw = json.dumps(chunk("tool_calls", tool_calls=[{"index": 0, **CALL, "x": "half \ud83d"}]))
    server.say(b"data: " + raw.encode() + b"\n\n")
    model = OpenAIChat("m", base_url=server.url)
    items = [item async for item in model.stream(model.prepare(request()))]
    sent = body(request(Message("assistant", calls(items))), model)
    assert sent["messages"][0]["tool_calls"][0]["x"] == "half \ufffd"


def test_pieces_of_unknown_fields_are_put_together() -> None:
    into: dict[str, Any] = {}
    for piece in (
        {"a": {"x": "1", "y": {"p": 1}}, "t": "so", "same": "s", "n": [1]},
        {"a": {"x": "2", "y": {"q": 2}}, "t": " on", "same": "s", "n": [2]},
        {},
    ):
        merge(into, piece)
    assert into == {"a": {"x": "2", "y": {"p": 1, "q": 2}}, "t": "so on", "same": "s", "n": [2]}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("gemini-3-pro", "gemini-2.5-flash", True),
        ("google/gemini-3", "google/gemini-2.5", True),
        ("google/gemini-3", "anthropic/claude-5", False),
        ("models/gemini-3", "gemini-3", False),
        ("gpt-5", "o3", False),
        ("7b", "8b", False),
    ],
)
def test_a_family_is_a_name_without_its_version_on_one_host(
    one: str, other: str, same: bool
) -> None:
    assert (family_of("h", one) == family_of("h", other)) is same
    assert family_of("h", one) != family_of("g", one)

"""Whole runs against servers that take roles in one order only, and the form that is sent there."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pytest

import nbagent as nb
from nbagent.errors import BadRequestError, ModelError, ServerError
from nbagent.messages import Call, Message, Text, Thinking
from nbagent.models import OpenAIChat
from nbagent.models._chat_strict import BRIDGE, strict_form, wants_strict_form
from tests.models.conftest import Told
from tests.models.test_openai_chat import TOOL, body, chunk, piece, request

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer


def fault_by_mistral(messages: list[dict[str, Any]]) -> str | None:
    """What Mistral's own interface says."""
    after = {"": {"system", "user"}, "system": {"user"}, "user": {"assistant"}}
    after |= {"assistant": {"user", "tool"}, "tool": {"tool", "assistant"}}
    before = ""
    for message in messages:
        role = message["role"]
        if role not in after[before]:
            return f"Unexpected role '{role}' after role '{before}'"
        if role == "assistant" and not (message.get("content") or message.get("tool_calls")):
            return "Assistant message must have either content or tool_calls, but not none."
        for id_ in (
            message.get("tool_call_id", "a" * 9),
            *(c["id"] for c in message.get("tool_calls", ())),
        ):
            if not re.fullmatch("[a-zA-Z0-9]{9}", id_):
                return f"Tool call id was {id_} but must be a-z, A-Z, 0-9, with a length of 9."
        before = role
    return (
        None if before in ("user", "tool") else f"Expected last role User or Tool but got {before}"
    )


def fault_by_template(messages: list[dict[str, Any]]) -> str | None:
    """What the chat template of Mistral's open models says, in vLLM and llama.cpp."""
    counted = [
        m for m in messages if m["role"] not in ("system", "tool") and not m.get("tool_calls")
    ]
    if any((m["role"] == "user") != (i % 2 == 0) for i, m in enumerate(counted)):
        return (
            "After the optional system message, conversation roles must alternate user and"
            " assistant roles except for tool calls and results."
        )
    return None


def told(status: int, words: str) -> Told:
    error = {"object": "error", "message": words, "type": "invalid_request_error"}
    return Told(
        [json.dumps(error).encode()],
        status=status,
        headers={"content-type": "application/json"},
    )


def strict(server: FakeServer, kind: str) -> FakeServer:
    """The server refuses what this kind of host refuses."""
    fault, status = {
        "mistral": (fault_by_mistral, 400),
        "vllm": (fault_by_template, 400),
        "llama.cpp": (fault_by_template, 500),
    }[kind]

    def judge(sent: Any) -> Told | None:
        words = fault(sent["messages"])
        return told(status, words) if words else None

    server.judge = judge
    return server


KINDS = ["mistral", "vllm", "llama.cpp"]
STRICT = [None, True]


def agent_for(server: FakeServer, strict_history: bool | None, **options: Any) -> nb.Agent:
    model = OpenAIChat("m", base_url=server.url, strict_history=strict_history)
    return nb.Agent(model, recovery=nb.Recovery(attempts=2, base_s=0.01), **options)


def checked(server: FakeServer, session: nb.Session, strict_history: bool | None) -> None:
    """At most one request was refused; what was sent is what was logged."""
    refused = [seen for seen in server.seen if server.judge(seen.body)]
    assert len(refused) == (strict_history is None)
    digests = [e.data.body_digest for e in session.events if e.type == "request/sent"]
    assert digests == [blake2b(seen.raw, digest_size=16).hexdigest() for seen in server.seen]
    assert session.verify()


@nb.tool(risk="readonly")
def look() -> str:
    """Look."""
    return "seen"


@pytest.mark.parametrize("strict_history", STRICT)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_steer_behind_results_reaches_a_strict_host(
    server: FakeServer, kind: str, strict_history: bool | None
) -> None:
    strict(server, kind).say(piece(0, "abcdefghi", "wait", "{}"), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))

    @nb.tool(risk="readonly")
    def wait() -> str:
        """Wait."""
        assert agent.last_run is not None
        agent.last_run.steer("look at 2024 only")
        agent.last_run.steer("and be quick")
        return "waited"

    agent = agent_for(server, strict_history, tools=[wait])
    session = nb.Session()
    result = await agent.run("go", session=session, ui="none")
    assert result.text == "done"
    assert [(m["role"], m["content"]) for m in server.seen[-1].body["messages"]] == [
        ("user", "go"),
        ("assistant", None),
        ("tool", "waited"),
        ("assistant", BRIDGE),
        ("user", "look at 2024 only\n\nand be quick"),
    ]
    assert [m.text for m in result.messages if m.role == "user"] == [
        "go",
        "look at 2024 only",
        "and be quick",
    ]
    checked(server, session, strict_history)


@pytest.mark.parametrize("strict_history", STRICT)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [{"max_steps": 2}, {"budget": nb.Budget(max_model_calls=3)}])
async def test_a_reminder_behind_results_reaches_a_strict_host(
    server: FakeServer, kind: str, strict_history: bool | None, limit: Any
) -> None:
    strict(server, kind).say(piece(0, "call_1", "look", "{}"), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))
    session = nb.Session()
    agent = agent_for(server, strict_history, tools=[look], instructions="Be brief.", **limit)
    result = await agent.run("go", session=session, ui="none")
    assert result.text == "done"
    if limit == {"max_steps": 2}:
        *_, bridge, reminder = server.seen[-1].body["messages"]
        assert bridge["content"] == BRIDGE
        assert reminder["content"].startswith("<system-reminder")
        checked(server, session, strict_history)


@pytest.mark.parametrize("strict_history", STRICT)
@pytest.mark.parametrize("kind", KINDS)
async def test_prompts_after_an_interrupted_run_reach_a_strict_host(
    server: FakeServer, kind: str, strict_history: bool | None
) -> None:
    strict(server, kind).say(piece(0, "abcdefghi", "stop", "{}"), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))

    @nb.tool(risk="readonly")
    async def stop() -> str:
        """Stop."""
        assert agent.last_run is not None
        agent.last_run.interrupt()
        return "stopped"

    agent = agent_for(server, strict_history, tools=[stop])
    session = nb.Session()
    first = await agent.run("go", session=session, ui="none")
    assert first.stop_reason == "interrupted"
    for prompt in ("again", "once more"):
        result = await agent.run(prompt, session=session, ui="none")
        assert result.text == "done"
    checked(server, session, strict_history)


@pytest.mark.parametrize("strict_history", STRICT)
@pytest.mark.parametrize("kind", KINDS)
async def test_prompts_after_a_failed_run_reach_a_strict_host(
    server: FakeServer, kind: str, strict_history: bool | None
) -> None:
    strict(server, kind).refuse(402, {"error": {"message": "no money"}})
    server.say(chunk("stop", content="done"))
    agent, session = agent_for(server, strict_history), nb.Session()
    with pytest.raises(BadRequestError):
        await agent.run("go", session=session, ui="none")
    result = await agent.run("again", session=session, ui="none")
    assert server.seen[-1].body["messages"] == [{"role": "user", "content": "go\n\nagain"}]
    assert result.text == "done"
    checked(server, session, strict_history)


async def test_a_draft_that_was_sent_back_reaches_a_strict_host(server: FakeServer) -> None:
    strict(server, "mistral").say(piece(0, "abcdefghi", "look", "{}"), chunk("tool_calls"))
    server.say(chunk("stop", content="done"))
    bounced: list[int] = []

    def once(attempt: nb.Attempt) -> nb.Verdict | None:
        if attempt.step == 1 and attempt.n == 1:
            bounced.append(attempt.n)
            return nb.Verdict.retry("no", "Answer without a tool.")
        return None

    agent = agent_for(server, True, tools=[look], reviewers=[once])
    assert (await agent.run("go", ui="none")).text == "done"
    assert bounced == [1]
    assert [m["role"] for m in server.seen[1].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def with_two_prompts(agent: nb.Agent) -> Any:
    """A run that begins with two messages of the user's."""
    run = agent.start("one", ui="none")
    run.steer("two")
    return await run


async def test_the_switch_is_said_and_holds_for_later_runs(server: FakeServer) -> None:
    strict(server, "vllm").say(chunk("stop", content="done"))
    agent = agent_for(server, None)
    result = await with_two_prompts(agent)
    attempts = result.to_pandas("attempts")
    assert list(attempts["cause"])[1:] == ["retry"]
    ended = next(e for e in result.events if e.type == "attempt/end")
    assert "strict_history=True" in ended.data.failure["message"]
    await with_two_prompts(agent)
    assert len(server.seen) == 3


@pytest.mark.parametrize(("strict_history", "requests"), [(False, 1), (True, 1), (None, 2)])
async def test_a_refusal_is_answered_once_and_only_if_the_form_was_not_set(
    server: FakeServer, strict_history: bool | None, requests: int
) -> None:
    server.judge = lambda _: told(400, "Conversation roles must alternate user/assistant/…")
    agent = agent_for(server, strict_history)
    with pytest.raises(BadRequestError, match="must alternate"):
        await with_two_prompts(agent)
    assert len(server.seen) == requests


async def test_a_refusal_of_what_the_form_would_not_change_is_final(server: FakeServer) -> None:
    server.judge = lambda _: told(400, "Conversation roles must alternate user/assistant/…")
    with pytest.raises(BadRequestError):
        await agent_for(server, None).run("go", ui="none")
    assert len(server.seen) == 1


async def test_two_requests_on_their_way_are_both_repeated(server: FakeServer) -> None:
    """The second refusal comes when the model has changed its form already."""
    server.judge = lambda _: told(400, "Conversation roles must alternate user/assistant/…")
    model = OpenAIChat("m", base_url=server.url)
    prepared = [model.prepare(request(Message("user", "a"), Message("user", n))) for n in "bc"]
    for each in prepared:
        with pytest.raises(ModelError) as caught:
            _ = [item async for item in model.stream(each)]
        assert caught.value.recoverable
    again = model.prepare(prepared[0].request)
    assert again.body != prepared[0].body
    assert again == model.prepare(prepared[0].request)


def test_the_form_is_known_for_mistral_and_left_to_the_setting() -> None:
    what = request(Message("user", "a"), Message("user", "b"))
    for base, strict_history, count in (
        ("https://api.mistral.ai/v1", None, 1),
        ("https://api.mistral.ai/v1", False, 2),
        ("https://notmistral.ai/v1", None, 2),
        ("https://example.org/v1", True, 1),
        ("https://example.org/v1", None, 2),
    ):
        model = OpenAIChat("m", base_url=base, api_key="k", strict_history=strict_history)
        assert len(body(what, model)["messages"]) == count


def test_neighbours_of_one_role_lose_nothing() -> None:
    model = OpenAIChat("m", base_url="http://127.0.0.1/v1", strict_history=True)
    think = Thinking("hm", data='{"key":"reasoning_content"}')
    sent = body(
        request(
            Message("user", "a"),
            Message("assistant", "b"),
            Message("assistant", [Thinking("gone")]),
            Message("assistant", [think, Text("c"), Call("add", "{}", "call_1")]),
            Message("tool", "1", call_id="call_1", name="add"),
            Message("assistant", [Call("add", "{}", "x" * 9), Call("add", '{"a":1}', "y" * 9)]),
            Message("tool", "2", call_id="x" * 9, name="add"),
            Message("tool", "3", call_id="y" * 9, name="add"),
            tools=(TOOL,),
            instructions="i",
            tail=(Message("user", "d"), Message("user", "e")),
        ),
        model,
    )["messages"]
    assert [(m["role"], m["content"]) for m in sent] == [
        ("system", "i"),
        ("user", "a"),
        ("assistant", "b\n\nc"),
        ("tool", "1"),
        ("assistant", None),
        ("tool", "2"),
        ("tool", "3"),
        ("assistant", BRIDGE),
        ("user", "d\n\ne"),
    ]
    assert sent[2]["reasoning_content"] == "hm"
    assert sent[2]["tool_calls"][0]["id"] == sent[3]["tool_call_id"]
    assert [call["id"] for call in sent[4]["tool_calls"]] == ["x" * 9, "y" * 9]
    assert fault_by_mistral(sent) is None
    assert fault_by_template(sent) is None


def test_the_form_of_the_form_is_the_form() -> None:
    wire = b'{"role":"user","content":"a"},{"role":"user","content":"b"}'
    assert strict_form(wire) == b'{"role":"user","content":"a\\n\\nb"}'
    assert strict_form(strict_form(wire)) == strict_form(wire)
    assert strict_form(b"") == b""


def test_a_layout_for_models_that_call_no_tools_takes_the_form_too() -> None:
    model = OpenAIChat(
        "m", base_url="http://127.0.0.1/v1", constrain_tools=True, strict_history=True
    )
    calls = [Call("add", "{}", "a"), Call("add", "{}", "b")]
    results = [Message("tool", "1", call_id=id_, name="add") for id_ in "ab"]
    what = request(
        Message("user", "go"), Message("assistant", calls), *results, Message("user", "x")
    )
    sent = body(what, model)["messages"]
    assert fault_by_template(sent) is None


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("Conversation roles must alternate user/assistant/user/assistant/...", True),
        (
            "After the (optional) system message(s), user and assistant roles should be alternating.",
            True,
        ),
        ("Unexpected role 'user' after role 'tool'", True),
        (
            "Expected last role User or Tool (or Assistant with prefix True) for serving but got x",
            True,
        ),
        ("Tool call id was call_1 but must be a-z, A-Z, 0-9, with a length of 9.", True),
        ("Please ensure that multiturn requests alternate between user and model.", True),
        ("no such model; use an alternate one", False),
        ("this role may not do that", False),
        ("Invalid parameter: messages", False),
    ],
)
def test_a_refusal_is_known_by_its_words(words: str, wanted: bool) -> None:
    assert wants_strict_form(ServerError("x", status=500, body=words)) is wanted
    assert wants_strict_form(BadRequestError(words, status=400)) is wanted

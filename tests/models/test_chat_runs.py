"""Whole runs over the chat wire, where hosts answer badly, not at all, or with a refusal."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import nbagent as nb

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

JSON = {"content-type": "application/json"}


def chunk(finish: str | None = None, usage: Any = None, **delta: Any) -> dict[str, Any]:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"choices": choices, "usage": usage}


def counts(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def agent_at(server: FakeServer, **settings: Any) -> nb.Agent:
    settings.setdefault("recovery", nb.Recovery(base_s=0))
    return nb.Agent(nb.models.OpenAIChat("m", base_url=server.url), **settings)


@nb.tool(risk="readonly")
def write(path: str) -> str:
    """Write."""
    written.append(path)
    return "written"


written: list[str] = []


@pytest.fixture(autouse=True)
def nothing_written() -> None:
    written.clear()


async def test_a_call_that_a_host_sends_twice_runs_once(server: FakeServer) -> None:
    function = {"name": "write", "arguments": '{"path":"1"}'}
    server.say(
        chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "write", "arguments": ""}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"path":'}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '"1"}'}}]),
        chunk("tool_calls", tool_calls=[{"index": 0, "id": "a", "function": function}]),
    )
    server.say(chunk("stop", content="done"))
    result = await agent_at(server, tools=[write]).run("go")
    assert (written, len(result.tool_calls), result.text) == (["1"], 1, "done")


async def test_arguments_that_stand_there_twice_run_once_and_that_is_said(
    server: FakeServer,
) -> None:
    function = {"name": "write", "arguments": '{"path":"1"}{"path":"1"}'}
    server.say(chunk("tool_calls", tool_calls=[{"index": 0, "id": "a", "function": function}]))
    server.say(chunk("stop", content="done"))
    result = await agent_at(server, tools=[write]).run("go")
    assert written == ["1"]
    assert "more than once" in json.dumps([str(e.data) for e in result.events])


async def test_a_blank_legacy_call_beside_content_ends_the_turn(server: FakeServer) -> None:
    blank = {"name": "", "arguments": ""}
    message = {"role": "assistant", "content": "Hello.", "function_call": blank}
    choices = [{"index": 0, "finish_reason": "stop", "message": message}]
    server.tell(json.dumps({"choices": choices}).encode(), headers=JSON)
    result = await agent_at(server, tools=[write]).run("go")
    assert (result.text, len(result.tool_calls), len(server.seen)) == ("Hello.", 0, 1)


async def test_a_wrong_address_is_told_at_once_with_what_it_says(server: FakeServer) -> None:
    server.tell(b'{"detail":"Not Found"}', headers=JSON)
    with pytest.raises(nb.errors.NotFoundError, match=r'base_url.*"detail":"Not Found"'):
        await agent_at(server).run("go")
    assert len(server.seen) == 1


async def test_an_answer_without_choices_is_repeated_like_any_fault(server: FakeServer) -> None:
    server.tell(b'{"choices":[]}', headers=JSON)
    server.say(chunk("stop", content="fine"))
    assert (await agent_at(server).run("go")).text == "fine"


async def test_an_empty_answer_costs_and_is_asked_for_once_more(server: FakeServer) -> None:
    server.say(chunk(content=""), chunk("stop", usage=counts(10, 1)))
    server.say(chunk("stop", content=" \n", usage=counts(10, 2)))
    server.say(chunk("stop", content="Hello.", usage=counts(20, 3)))
    session = nb.Session()
    result = await agent_at(server).run("go", session=session)
    assert (result.text, result.stop_reason, len(server.seen)) == ("", "end_turn", 2)
    assert result.usage == nb.Usage(20, 3)
    assert (await agent_at(server).run("again", session=session)).text == "Hello."
    assert [m["role"] for m in server.seen[2].body["messages"]] == ["user", "user"]


@pytest.mark.parametrize("cut", ["length", "stop"])
async def test_reasoning_alone_never_stands_in_the_history(server: FakeServer, cut: str) -> None:
    server.say(chunk(reasoning_content="hm, hm"), chunk(cut))
    server.say(chunk("stop", content="Four."))
    result = await agent_at(server).run("go")
    assert result.text == "Four."
    assert {m["role"] for m in server.seen[1].body["messages"]} == {"user"}


async def test_a_models_refusal_is_the_answer_and_costs(server: FakeServer) -> None:
    server.say(chunk(refusal="I can't do "), chunk(refusal="that."), chunk("stop", counts(9, 4)))
    result = await agent_at(server).run("go")
    assert (result.stop_reason, result.text) == ("refused", "I can't do that.")
    assert result.usage == nb.Usage(9, 4)


async def test_a_request_that_the_providers_filter_refuses_is_an_error(server: FakeServer) -> None:
    server.refuse(400, {"error": {"code": "content_filter", "message": "filtered", "status": 400}})
    with pytest.raises(nb.errors.RefusedError, match="filtered") as caught:
        await agent_at(server).run("go")
    assert (caught.value.status, len(server.seen)) == (400, 1)


async def test_a_lost_stream_costs_what_it_reported_and_the_budget_sees_it(
    server: FakeServer,
) -> None:
    pieces = [chunk(content="a", usage=counts(1000, 2)), chunk(content="b", usage=counts(1000, 5))]
    server.say(*pieces, chunk(content="c"), done=False, cut=True)
    result = await agent_at(server, budget=nb.Budget(max_tokens=1_500)).run("go")
    assert (result.stop_reason, len(server.seen)) == ("budget", 1)
    assert result.usage == nb.Usage(1000, 5)


@pytest.mark.parametrize("reported", [counts(1000, 50), None], ids=["reported", "estimated"])
async def test_an_answer_interrupted_as_it_comes_costs(server: FakeServer, reported: Any) -> None:
    server.say(chunk(content="x" * 40, usage=reported), chunk("stop"), done=False, hang=True)
    run = agent_at(server).start("go")
    async for event in run.events():
        if event.type == "assistant/chunk":
            run.interrupt()
    usage = (await run).usage
    assert usage.total
    assert usage == nb.Usage(1000, 50) if reported else usage.estimated


async def test_a_wait_that_is_too_long_is_named_with_the_tries_before_it(
    server: FakeServer,
) -> None:
    server.refuse(503, {"error": {"message": "busy"}})
    server.refuse(429, {"error": {"message": "slow down"}}, retry_after="3600")
    with pytest.raises(nb.errors.OverloadedError, match="busy") as caught:
        await asyncio.wait_for(agent_at(server).run("go"), 5)
    assert "2 tries in" in str(caught.value)
    assert "the server asked for 3,600 s" in str(caught.value)
    assert caught.value.status == 503
    assert len(server.seen) == 2


@pytest.mark.parametrize(
    ("asked", "waits"),
    [("0", True), ("Wed, 21 Oct 2015 07:28:00 GMT", True), ("soon", True), ("1e999", True),
     ("-5", True), ("1e300", False), ("Fri, 31 Dec 9999 23:59:59 GMT", False), ("61", False)],
)  # fmt: skip
async def test_any_retry_after_is_kept_to_or_named(
    server: FakeServer, asked: str, waits: bool
) -> None:
    server.refuse(429, {"error": {"message": "slow down"}}, retry_after=asked)
    server.say(chunk("stop", content="fine"))
    run = asyncio.wait_for(agent_at(server).run("go"), 5)
    if waits:
        assert (await run).text == "fine"
        return
    with pytest.raises(nb.errors.RateLimitError, match="at most 60 s are waited for") as caught:
        await run
    assert len(str(caught.value)) < 200

"""Tool bodies: what becomes of those that fail in odd ways, or go on when nobody waits any more."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import threading
import time
from typing import Any

import pytest

import nbagent as nb
from nbagent.loop.given_up import goes_on


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    return nb.Agent(nb.models.Scripted([*replies, "done"]), **settings)


def notices(result: nb.Result, kind: str) -> list[str]:
    return [e.data.text for e in result.events if e.type == "notice" and e.data.kind == kind]


# -- things that belong to another thread or loop


async def test_a_connection_of_another_thread_is_told_to_the_person_once_for_each_tool(
    caplog: pytest.LogCaptureFixture,
):
    connection = sqlite3.connect(":memory:")

    @nb.tool(risk="readonly")
    def query(sql: str) -> str:
        """Query."""
        return str(connection.execute(sql).fetchall())

    @nb.tool(risk="readonly")
    async def ask() -> None:
        """Ask."""
        msg = "The future belongs to a different loop than the one specified as the loop argument"
        raise ValueError(msg)

    calls = [nb.call("query", sql="select 1"), nb.call("query", sql="select 2"), nb.call("ask")]
    result = await agent_of(calls, nb.call("ask"), tools=[query, ask]).run("go")
    connection.close()
    told = notices(result, "wrong-place")
    assert sorted(text.split("`")[1] for text in told) == ["ask", "query"]
    assert any("SQLite objects created in a thread" in text for text in told)
    said = [r.getMessage() for r in caplog.records if r.name == "nbagent"]
    assert len(said) == 2
    assert all("inside the function of the tool" in text for text in said)
    assert "Calling again will not help" in result.tool_calls["result"][0]


# -- errors that are no Exception


@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit, StopIteration, asyncio.CancelledError])
@pytest.mark.parametrize("risk", ["readonly", "mutating"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_tool_may_raise_anything_and_gets_an_error_result(
    kind: Any, risk: Any, is_async: bool
):
    def sync() -> str:
        """Act."""
        raise kind

    async def with_await() -> str:
        """Act."""
        await asyncio.sleep(0)
        raise kind

    tool = nb.tool(with_await if is_async else sync, name="act", risk=risk)
    agent = agent_of([nb.call("act"), nb.call("act")], tools=[tool])
    result = await asyncio.wait_for(agent.run("go"), 10)
    assert list(result.tool_calls["status"]) == ["error", "error"]
    assert result.text == "done"
    assert result.session.verify().ok


def test_the_closing_of_a_body_from_outside_is_no_error_of_the_tool(
    monkeypatch: pytest.MonkeyPatch,
):
    """A loop that is thrown away closes what is left in it; a coroutine must not ignore that."""
    faults: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", faults.append)
    started = threading.Event()

    @nb.tool(risk="mutating")
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "ended"

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    async def main() -> None:
        agent_of(nb.call("wait"), tools=[wait]).start("go")
        for _ in range(1000):
            if started.is_set():
                return
            await asyncio.sleep(0.001)

    loop.run_until_complete(main())
    loop.close()
    del loop
    gc.collect()
    assert started.is_set()
    assert faults == []


# -- bodies that go on


async def test_a_sync_body_that_looks_ends_by_itself_when_the_run_is_stopped():
    @nb.tool(risk="mutating")
    def count(ctx: nb.ToolContext) -> str:
        """Count."""
        began.wait(5)
        while not ctx.cancelled:
            time.sleep(0.005)
        time.sleep(0.03)
        return "put away"

    for parallel in (False, True):
        calls = [nb.call("count"), nb.call("count")] if parallel else [nb.call("count")]
        began = threading.Barrier(1 + len(calls))
        tool = nb.Tool("count", "Count.", {}, count.call, risk="mutating", parallel=parallel)
        run = agent_of(calls, tools=[tool]).start("go")
        await asyncio.to_thread(began.wait, 5)
        at = time.monotonic()
        run.interrupt()
        result = await run
        assert time.monotonic() - at < 0.5
        assert result.stop_reason == "interrupted"
        assert list(result.tool_calls["status"]) == ["ok"] * len(calls)
        assert list(result.tool_calls["result"]) == ["put away"] * len(calls)
        assert not [e for e in result.events if e.type == "notice"]
        assert result.session.verify().ok


async def test_stop_does_not_wait_for_a_sync_body_that_does_not_look():
    @nb.tool(risk="mutating")
    def block(ctx: nb.ToolContext) -> str:
        """Block."""
        began.set()
        go_on.wait(5)
        return "late"

    began, go_on = threading.Event(), threading.Event()
    run = agent_of(nb.call("block"), tools=[block]).start("go")
    await asyncio.to_thread(began.wait, 5)
    at = time.monotonic()
    run.interrupt()
    result = await run
    assert time.monotonic() - at < 0.5
    go_on.set()
    assert list(result.tool_calls["status"]) == ["abandoned"]
    assert "Check before you repeat it" in result.tool_calls["result"][0]


async def test_stop_in_the_last_moment_after_a_time_out_still_ends_the_run():
    @nb.tool(risk="mutating", timeout_s=0.05)
    def block(ctx: nb.ToolContext) -> str:
        """Block."""
        while not ctx.cancelled:
            time.sleep(0.005)
        told.set()
        go_on.wait(5)
        return "late"

    told, go_on = threading.Event(), threading.Event()
    run = agent_of(nb.call("block"), tools=[block]).start("go")
    await asyncio.to_thread(told.wait, 5)
    at = time.monotonic()
    run.interrupt()
    result = await run
    assert time.monotonic() - at < 0.5
    go_on.set()
    assert result.stop_reason == "interrupted"
    assert result.tool_calls["status"][0] in ("abandoned", "timeout")
    assert result.session.verify().ok
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("second_run", [False, True])
async def test_a_tool_that_starts_beside_its_abandoned_body_says_so(second_run: bool):
    waits = [True, False, False]

    @nb.tool(risk="mutating", timeout_s=0.05)
    def block() -> str:
        """Block."""
        if waits.pop(0):
            go_on.wait(5)
            return "late"
        return "quick"

    go_on = threading.Event()
    replies = (
        [nb.call("block"), "first", nb.call("block")] if second_run else [nb.call("block")] * 2
    )
    agent = agent_of(*replies, tools=[block])
    result = await agent.run("go")
    if second_run:
        result = await agent.run("again")
    told = notices(result, "beside")
    assert told == ["`block` starts while an earlier body of it, given up, may still be running"]
    shown = [message.text for message in result.messages if message.role == "tool"][-1]
    first, *rest = shown.splitlines()
    assert "An earlier body of `block` was given up but may still be running" in first
    assert rest == ["quick"]
    go_on.set()
    for _ in range(200):
        await asyncio.sleep(0.01)
        if not goes_on(block):
            break
    result = await agent_of(nb.call("block"), tools=[block]).run("go")
    assert list(result.tool_calls["result"]) == ["quick"]
    assert notices(result, "beside") == []


async def test_a_time_out_beside_an_abandoned_body_says_both():
    @nb.tool(risk="mutating", timeout_s=0.05)
    def block() -> str:
        """Block."""
        go_on.wait(5)
        return "late"

    go_on = threading.Event()
    result = await agent_of(nb.call("block"), nb.call("block"), tools=[block]).run("go")
    go_on.set()
    shown = [message.text for message in result.messages if message.role == "tool"][-1]
    assert shown.startswith("[An earlier body of `block`")
    assert "outcome unknown, check before you repeat" in shown


async def test_another_tool_is_not_warned_about():
    @nb.tool(risk="mutating", timeout_s=0.05)
    def block() -> str:
        """Block."""
        go_on.wait(5)
        return "late"

    @nb.tool(risk="mutating")
    def other() -> str:
        """Act."""
        return "acted"

    go_on = threading.Event()
    result = await agent_of(nb.call("block"), nb.call("other"), tools=[block, other]).run("go")
    go_on.set()
    assert notices(result, "beside") == []
    assert result.tool_calls["result"][1] == "acted"

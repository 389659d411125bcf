"""Tool bodies: what becomes of those that fail in odd ways, or go on when nobody waits any more."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import sys
import threading
from typing import Any

import pytest

import nbagent as nb


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

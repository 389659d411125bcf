"""Truncate, Timeout, Control and the budget of tool calls."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

import nbagent as nb


def maker(ran: list[Any], risk: Any = "mutating", name: str = "act") -> nb.Tool:
    @nb.tool(risk=risk, name=name)
    def act(x: int = 0) -> str:
        """Act."""
        ran.append(x)
        return f"acted {x}"

    return act


def agent_of(replies: list[Any], *tools: nb.Tool, **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    return nb.Agent(nb.models.Scripted([*replies, "done"]), tools=tools, **settings)


# -- truncate


@pytest.mark.parametrize("size", [7_999, 8_000, 8_001, 9_000, 1_000_000])
async def test_a_long_result_is_cut_for_the_model_and_kept_whole_in_the_log(size: int):
    """F-D5."""

    @nb.tool(risk="readonly")
    def long() -> str:
        """Give much."""
        return "é" * size

    agent = agent_of([nb.call("long")], long)
    row = (await agent.run("go")).tool_calls.iloc[0]
    assert row["result_chars"] == size
    assert row["truncated"] == (size > 8_000)
    if size > 8_000:
        assert len(row["result"]) <= 8_200
        assert f"{size:,} characters" in row["result"]
        assert "8,000" in row["result"]
        assert row["raw"] == "é" * size
    else:
        assert row["result"] == "é" * size
    model: Any = agent._spec.model
    assert model.requests[-1].messages[-1].text == row["result"]


async def test_errors_and_reasons_are_cut_too():
    def refuse_at_length(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
        return nb.deny("y" * 20_000) if call.name == "act" else None

    @nb.tool(risk="readonly")
    def fail() -> str:
        """Fail at length."""
        raise ValueError("x" * 20_000)

    agent = agent_of(
        [[nb.call("fail"), nb.call("act")]],
        fail,
        maker([]),
        gates=[refuse_at_length, *nb.DEFAULT_GATES],
    )
    result = await agent.run("go")
    assert [len(text) <= 8_200 for text in result.tool_calls["result"]] == [True, True]


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8000", None, True, float("nan")])
def test_a_limit_that_is_no_number_of_characters_is_refused(bad: Any):
    with pytest.raises(nb.errors.ConfigError, match="Truncate: limit"):
        nb.gates.Truncate(bad)


@pytest.mark.parametrize("bad", [-1, "5", None, True, float("nan")])
def test_a_time_that_is_no_number_of_seconds_is_refused(bad: Any):
    with pytest.raises(nb.errors.ConfigError, match="Timeout: seconds"):
        nb.gates.Timeout(bad)


# -- time-out


def with_timeout(seconds: float) -> list[Any]:
    return [nb.gates.Permission(), nb.gates.Timeout(seconds), nb.gates.Control()]


@pytest.mark.parametrize("parallel", [False, True])
async def test_a_call_that_takes_too_long_ends_with_a_result_and_the_turn_goes_on(parallel: bool):
    @nb.tool(risk="readonly", parallel=parallel)
    async def slow(x: int) -> str:
        """Take long."""
        await asyncio.sleep(30)
        return "late"

    began = time.monotonic()
    agent = agent_of([[nb.call("slow", x=1), nb.call("slow", x=2)]], slow, gates=with_timeout(0.05))
    result = await agent.run("go")
    assert time.monotonic() - began < 2
    assert result.text == "done"
    assert list(result.tool_calls["status"]) == ["timeout", "timeout"]
    text = result.tool_calls["result"][0]
    assert "`slow` was stopped after 0.05 s" in text
    assert "still be running" not in text


async def test_a_sync_body_that_takes_too_long_may_go_on_and_the_model_knows():
    @nb.tool(risk="readonly")
    def slow() -> str:
        """Take long."""
        go_on.wait(5)
        return "late"

    go_on = threading.Event()
    result = await agent_of([nb.call("slow")], slow, gates=with_timeout(0.05)).run("go")
    go_on.set()
    text = result.tool_calls["result"][0]
    assert "may still be running" in text
    assert "Try a smaller scope" in text
    assert "outcome unknown" not in text


@pytest.mark.parametrize("risk", ["mutating", "dangerous", "unspecified"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_the_outcome_of_a_call_that_may_have_changed_something_is_unknown(
    risk: Any, is_async: bool
):
    async def wait() -> str:
        """Take long."""
        await asyncio.sleep(5)
        return "late"

    def block() -> str:
        """Take long."""
        go_on.wait(5)
        return "late"

    go_on = threading.Event()
    slow = nb.tool(wait if is_async else block, name="slow", risk=risk)
    auto = nb.Approval(mode="auto")
    agent = agent_of([nb.call("slow")], slow, gates=with_timeout(0.05), approval=auto)
    result = await agent.run("go")
    go_on.set()
    text = result.tool_calls["result"][0]
    assert text.startswith("Error: `slow` was stopped after 0.05 s: outcome unknown, check before")
    assert ("may still be running" in text) is not is_async
    assert "Try" not in text


@pytest.mark.parametrize("fails", [False, True])
async def test_a_sync_body_that_looks_whether_it_is_to_end_keeps_its_result(fails: bool):
    ended: list[float] = []

    @nb.tool(risk="mutating")
    def count(ctx: nb.ToolContext) -> str:
        """Count."""
        n = 0
        while not ctx.cancelled:
            time.sleep(0.01)
            n += 1
        ended.append(time.monotonic())
        if fails:
            raise ValueError(n)
        return f"counted to {n}"

    auto = nb.Approval(mode="auto")
    agent = agent_of([nb.call("count")], count, gates=with_timeout(0.1), approval=auto)
    result = await agent.run("go")
    assert len(ended) == 1
    row = result.tool_calls.iloc[0]
    assert row["status"] == "timeout"
    first, second, *_ = row["result"].splitlines()
    assert first == "[`count` was told to stop after 0.1 s, and ended with:]"
    assert second.startswith("Error: ValueError" if fails else "counted to ")
    assert row["error_type"] == "ValueError" if fails else True
    assert not [e for e in result.events if e.type == "notice"]
    assert result.session.verify().ok


async def test_the_tools_own_time_out_goes_before_the_gates():
    @nb.tool(risk="readonly", timeout_s=0.03)
    async def short() -> str:
        """Take long."""
        await asyncio.sleep(5)
        return "late"

    @nb.tool(risk="readonly", timeout_s=0)
    async def without() -> str:
        """Take a little."""
        await asyncio.sleep(0.1)
        return "in time"

    calls = [nb.call("short"), nb.call("without")]
    result = await agent_of([calls], short, without, gates=with_timeout(0.05)).run("go")
    assert list(result.tool_calls["status"]) == ["timeout", "ok"]


async def test_waiting_for_a_person_is_not_the_tools_time():
    class Slow:
        async def decide(self, question: nb.Question) -> Any:
            await asyncio.sleep(0.15)
            return "allow"

    agent = agent_of([nb.call("act")], maker([]), gates=with_timeout(0.1), approval=nb.Approval())
    result = await agent.run("go", ui=Slow())
    row = result.tool_calls.iloc[0]
    assert row["status"] == "ok"
    assert row["approval_wait_ms"] >= 140
    assert row["duration_ms"] < 100


async def test_a_time_out_error_of_the_body_itself_is_an_ordinary_error():
    @nb.tool(risk="readonly")
    async def own() -> str:
        """Time out inside."""
        msg = "the server's own"
        raise TimeoutError(msg)

    result = await agent_of([nb.call("own")], own).run("go")
    assert list(result.tool_calls["status"]) == ["error"]
    assert "the server's own" in result.tool_calls["result"][0]


async def test_no_time_out_and_an_endless_one_let_a_call_take_its_time():
    @nb.tool(risk="readonly")
    async def slow() -> str:
        """Take a little."""
        await asyncio.sleep(0.05)
        return "in time"

    for seconds in (0, float("inf"), 1e9):
        result = await agent_of([nb.call("slow")], slow, gates=with_timeout(seconds)).run("go")
        assert list(result.tool_calls["status"]) == ["ok"]


# -- control


async def test_after_stop_no_further_call_starts_and_nobody_is_asked():
    runs: list[nb.Run] = []
    ran: list[int] = []
    asked: list[str] = []

    @nb.tool(risk="readonly", parallel=False)
    async def stop() -> str:
        """Stop the run."""
        runs[0].interrupt()
        return "stopped"

    class Person:
        async def decide(self, question: nb.Question) -> Any:
            asked.append(question.id)
            return "allow"

    agent = agent_of(
        [[nb.call("stop"), nb.call("act", x=1)]], stop, maker(ran), approval=nb.Approval()
    )
    run = agent.start("go", ui=Person())
    runs.append(run)
    result = await run
    assert (ran, asked) == ([], [])
    assert result.stop_reason == "interrupted"
    assert list(result.tool_calls["status"]) == ["ok", "aborted"]


async def test_the_control_gate_refuses_once_the_run_was_stopped():
    class Stopped:
        cancelled = True

    gate: Any = nb.gates.Control()
    assert gate.before(None, Stopped()).action == "deny"
    Stopped.cancelled = False
    assert gate.before(None, Stopped()) is None


# -- budget


@pytest.mark.parametrize("risk", ["mutating", "readonly"])
async def test_calls_beyond_the_budget_are_refused_before_they_start(risk: Any):
    """F-E1: of three calls with one left, one runs; every call has a result."""
    ran: list[int] = []
    calls = [nb.call("act", x=n) for n in range(5)]
    agent = agent_of(
        [calls, [nb.call("act", x=n) for n in (5, 6, 7)]],
        maker(ran, risk),
        budget=nb.Budget(max_tool_calls=6),
    )
    result = await agent.run("go")
    assert sorted(ran) == [0, 1, 2, 3, 4, 5]
    assert list(result.tool_calls["status"]) == [*["ok"] * 6, "denied", "denied"]
    assert list(result.tool_calls["decision_source"])[-2:] == ["budget", "budget"]
    assert "6 tool calls is used up" in result.tool_calls["result"][7]
    assert result.text == "done"


async def test_refused_and_invalid_calls_cost_nothing_of_the_budget():
    ran: list[int] = []
    calls = [nb.call("act", x="many"), nb.call("unknown"), nb.call("act", x=9), nb.call("act", x=1)]
    agent = agent_of(
        [calls],
        maker(ran),
        budget=nb.Budget(max_tool_calls=1),
        approval=nb.Approval(mode="auto", rules=["deny act(x=9)"]),
    )
    await agent.run("go")
    assert ran == [1]


async def test_the_budget_of_tool_calls_is_of_a_run_or_of_the_session():
    for per, expected in (("run", [1, 1]), ("session", [1])):
        ran: list[int] = []
        session = nb.Session()
        agent = agent_of(
            [nb.call("act", x=1), "done", nb.call("act", x=1)],
            maker(ran),
            budget=nb.Budget(max_tool_calls=1, per=per),
        )
        for _ in range(2):
            await agent.run("go", session=session)
        assert ran == expected

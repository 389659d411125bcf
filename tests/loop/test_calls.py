"""The calls of an answer: unknown ones, ids, groups and barriers, long and strange results."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import orjson
import pytest

import nbagent as nb


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    return nb.Agent(nb.models.Scripted(list(replies)), **settings)


def requests(agent: nb.Agent) -> list[nb.Request]:
    model: Any = agent._spec.model
    return model.requests


@nb.tool(risk="readonly")
async def echo(text: str, seconds: float = 0) -> str:
    """Say it again."""
    await asyncio.sleep(seconds)
    return text


@nb.tool(risk="mutating")
async def write(text: str) -> str:
    """Write."""
    await asyncio.sleep(0)
    return f"wrote {text}"


@pytest.mark.parametrize("ids", [("", ""), ("x", "x"), ("x", "")])
async def test_calls_with_empty_or_equal_ids_all_run_and_get_ids_of_their_own(ids: tuple[str, str]):
    """F-B1."""
    calls = [nb.Call("echo", f'{{"text": "{n}"}}', id_) for n, id_ in enumerate(ids)]
    agent = agent_of(calls, "done", tools=[echo])
    result = await agent.run("go")
    assert list(result.tool_calls["result"]) == ["0", "1"]
    sent = requests(agent)[-1].messages
    given = [call.id for call in sent[1].calls]
    assert len(set(given)) == 2
    assert [m.call_id for m in sent[2:]] == given


async def test_an_unknown_tool_is_answered_with_the_names_there_are():
    """F-C6."""
    agent = agent_of(nb.call("get_date"), "done", tools=[echo, write])
    result = await agent.run("go")
    text = requests(agent)[-1].messages[-1].text
    assert "no tool `get_date`" in text
    assert "`echo`" in text
    assert "`write`" in text
    assert result.text == "done"


async def test_arguments_that_do_not_fit_are_answered_and_no_gate_runs():
    ran: list[str] = []

    def gate(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        ran.append(call.name)

    agent = agent_of(
        nb.call("echo", txt="x"), "done", tools=[echo], gates=[gate, *nb.DEFAULT_GATES]
    )
    result = await agent.run("go")
    assert list(result.tool_calls["error_type"]) == ["ArgumentsError"]
    assert ran == []
    assert "text" in requests(agent)[-1].messages[-1].text


async def test_results_come_in_the_models_order_whatever_ends_first():
    calls = [nb.call("echo", text="slow", seconds=0.05), nb.call("echo", text="fast")]
    result = await agent_of(calls, "done", tools=[echo]).run("go")
    assert list(result.tool_calls["result"]) == ["slow", "fast"]
    types = [e.type for e in result.events if e.type.startswith("tool/")]
    assert types == [
        "tool/call",
        "tool/decision",
        "tool/call",
        "tool/decision",
        "tool/done",
        "tool/result",
        "tool/result",
    ]
    assert result.session.verify().ok


async def test_a_call_that_changes_things_is_a_barrier():
    order: list[str] = []

    @nb.tool(risk="readonly")
    async def read(n: int) -> None:
        """Read."""
        order.append(f"read {n}")
        await asyncio.sleep(0.01)
        order.append(f"/read {n}")

    @nb.tool(risk="mutating")
    async def change() -> None:
        """Change."""
        order.append("change")
        await asyncio.sleep(0.01)
        order.append("/change")

    calls = [nb.call("read", n=1), nb.call("read", n=2), nb.call("change"), nb.call("read", n=3)]
    await agent_of(calls, "done", tools=[read, change]).run("go")
    assert set(order[:2]) == {"read 1", "read 2"}
    assert order[4:] == ["change", "/change", "read 3", "/read 3"]


async def test_no_more_bodies_run_at_once_than_the_cap_allows():
    now, most = [0], [0]

    @nb.tool(risk="readonly")
    async def count(n: int) -> None:
        """Count."""
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.005)
        now[0] -= 1

    calls = [nb.call("count", n=n) for n in range(9)]
    result = await agent_of(calls, "done", tools=[count], max_parallel_tools=3).run("go")
    assert most == [3]
    assert len(result.tool_calls) == 9


async def test_a_tool_may_decide_by_its_arguments_whether_it_runs_beside_others():
    @nb.tool(risk="mutating", parallel=lambda arguments: arguments["n"] > 0)
    async def step(n: int) -> str:
        """Step."""
        await asyncio.sleep(0.01)
        return str(n)

    calls = [nb.call("step", n=n) for n in (1, 2, 0, 3)]
    result = await agent_of(calls, "done", tools=[step]).run("go")
    assert list(result.tool_calls["result"]) == ["1", "2", "0", "3"]


async def test_a_long_result_is_cut_for_the_model_and_whole_in_the_log():
    """F-D5."""

    @nb.tool(risk="readonly")
    async def long() -> str:
        """Say much."""
        return "x" * 1_000_000

    agent = agent_of(nb.call("long"), "done", tools=[long])
    result = await agent.run("go")
    shown = requests(agent)[-1].messages[-1].text
    assert len(shown) < 8_300
    assert "1,000,000 characters" in shown
    row = result.tool_calls.iloc[0]
    assert row["truncated"]
    assert row["result_chars"] == 1_000_000
    raw = next(e.data.raw for e in result.events if e.type == "tool/result")
    assert len(raw) == 1_000_000


HOSTILE = [
    "<script>alert(1)</script>",
    "\x1b[31mred\x1b[0m\x07",
    "nul \x00 inside",
    "half \ud83d emoji",
    "bidi \u202e mark",
    "line \u2028 and \u2029 and \x85",
    "😀" * 1000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_is_logged_as_valid_json_wherever_it_comes_from(text: str):
    """F-D4."""

    @nb.tool(risk="readonly")
    async def say() -> str:
        """Say it."""
        return text

    @nb.tool(risk="readonly")
    async def fail() -> str:
        """Fail with it."""
        raise ValueError(text)

    agent = agent_of(
        nb.reply(text=text, calls=[nb.call("say"), nb.call("fail")]), text, tools=[say, fail]
    )
    result = await agent.run(text)
    assert result.session.verify().ok
    for event in result.events:
        orjson.loads(event.line)
    assert result.text.replace("\ufffd", "") == text.replace("\ud83d", "")
    for name in ("events", "messages", "tools", "steps", "attempts"):
        assert len(result.to_pandas(name)) > 0
    repr(result)
    str(result.explain())


async def test_values_of_any_kind_become_text_the_model_can_read():
    """F-D1, F-D2."""
    import datetime
    import decimal
    import uuid

    values: list[Any] = [
        {"a": [1, 2]},
        [1, "x", None],
        {"when": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "d": decimal.Decimal("1.5")},
        uuid.UUID(int=1),
        {1, 2},
        math.nan,
        None,
        object(),
    ]

    @nb.tool(risk="readonly")
    async def value(n: int) -> Any:
        """Give one."""
        return values[n]

    calls = [nb.call("value", n=n) for n in range(len(values))]
    result = await agent_of(calls, "done", tools=[value]).run("go")
    assert set(result.tool_calls["status"]) == {"ok"}
    assert result.tool_calls["result"][0] == '{"a":[1,2]}'


async def test_what_an_async_generator_gives_is_the_result():
    closed: list[str] = []

    @nb.tool(risk="readonly")
    async def rows(most: int, fails: bool = False):
        """Give rows."""
        try:
            for n in range(most):
                yield {"n": n}
            if fails:
                msg = "no more"
                raise ValueError(msg)
        finally:
            closed.append("rows")

    @nb.tool(risk="readonly")
    def made_elsewhere() -> Any:
        """Give a generator."""
        return rows.call(2)

    calls = [
        nb.call("rows", most=2),
        nb.call("rows", most=1, fails=True),
        nb.call("rows", most=5_000),
        nb.call("made_elsewhere"),
    ]
    result = await agent_of(calls, "done", tools=[rows, made_elsewhere]).run("go")
    whole, broken, long, other = result.tool_calls["result"]
    assert whole == other == '[{"n":0},{"n":1}]'
    assert broken == '[{"n":0},"<stopped by ValueError: no more>"]'
    assert long.startswith('[{"n":0},{"n":1},')
    assert len(closed) == 4


async def test_stop_ends_an_async_generator():
    closed: list[str] = []

    @nb.tool(risk="readonly")
    async def endless():
        """Never end."""
        try:
            yield 1
            await asyncio.sleep(60)
        finally:
            closed.append("endless")

    run = agent_of(nb.call("endless"), tools=[endless]).start("go")
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await asyncio.wait_for(run._wait(), 1)
    assert list(result.tool_calls["status"]) == ["aborted"]
    assert closed == ["endless"]


async def test_what_a_tool_raises_is_a_result_and_the_run_goes_on():
    @nb.tool(risk="readonly")
    def broken() -> None:
        """Break."""
        key = "x"
        raise KeyError(key)

    @nb.tool(risk="readonly")
    def leave() -> None:
        """Leave."""
        raise SystemExit(3)

    @nb.tool(risk="readonly")
    def stop() -> None:
        """Stop an iteration."""
        raise StopIteration

    calls = [nb.call("broken"), nb.call("leave"), nb.call("stop")]
    for group in (calls, calls[:1], calls[1:2], calls[2:]):
        result = await agent_of(group, "done", tools=[broken, leave, stop]).run("go")
        assert set(result.tool_calls["status"]) == {"error"}
        assert result.text == "done"


async def test_the_context_reaches_the_body_and_is_not_in_the_schema():
    class Deps:
        name = "lab"

    @nb.tool(risk="readonly")
    async def who(ctx: nb.ToolContext, greeting: str) -> str:
        """Greet."""
        ctx.progress(0.5, "half")
        ctx.note("greeted", {"by": greeting})
        assert ctx.call.name == "who"
        assert not ctx.cancelled
        return f"{greeting} {ctx.deps.name} {ctx.session.id[:2]}"

    agent = agent_of(nb.call("who", greeting="hi"), "done", tools=[who])
    result = await agent.run("go", deps=Deps())
    assert "ctx" not in who.parameters["properties"]
    assert result.tool_calls["result"][0].startswith("hi lab")
    notes = result.to_pandas("notes")
    assert "greeted" in list(notes["kind"])


async def test_a_note_from_a_thread_arrives_and_a_note_that_is_no_json_is_refused():
    @nb.tool(risk="readonly")
    def noting(ctx: nb.ToolContext) -> str:
        """Note."""
        ctx.note("fine", [1, 2])
        ctx.note("bad", {1: 2})
        return "never"

    result = await agent_of(nb.call("noting"), "done", tools=[noting]).run("go")
    assert list(result.tool_calls["error_type"]) == ["ConfigError"]
    assert "fine" in list(result.to_pandas("notes")["kind"])


async def test_a_function_is_a_tool_of_unspecified_risk():
    def double(x: int) -> int:
        """Double."""
        return 2 * x

    agent = nb.Agent(nb.models.Scripted([nb.call("double", x=2), "done"]), tools=[double])
    result = await agent.run("go")
    assert list(result.tool_calls["decision_source"]) == ["unattended"]
    assert list(result.tool_calls["risk"]) == ["unspecified"]


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(nb.errors.ConfigError, match="two tools are called `echo`"):
        nb.Agent(nb.models.Scripted([]), tools=[echo, echo])

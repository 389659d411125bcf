"""The doors into a run: await, blocking, background; steering, queueing, nesting."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from checker import check_history

import nbagent as nb


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    return nb.Agent(nb.models.Scripted(list(replies)), **settings)


def requests(agent: nb.Agent) -> list[nb.Request]:
    model: Any = agent._spec.model
    return model.requests


async def test_await_gives_the_answer():
    result = await agent_of("Hello.").run("hi")
    assert (result.text, result.output, result.stop_reason) == ("Hello.", "Hello.", "end_turn")
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert result.session.verify().ok


def test_the_blocking_door_works_without_a_loop():
    assert agent_of("Hello.").run_sync("hi").text == "Hello."


async def test_the_blocking_door_works_inside_a_running_loop():
    """F-G1."""
    assert agent_of("Hello.").run_sync("hi").text == "Hello."


def test_start_in_a_script_runs_in_the_background():
    run = agent_of("Hello.").start("hi")
    assert run.result(5).text == "Hello."
    assert run.done()


async def test_start_under_a_loop_can_be_awaited_later_and_twice():
    agent = agent_of("Hello.")
    run = agent.start("hi")
    assert agent.last_run is run
    assert not run.done()
    assert (await run).text == "Hello."
    assert (await run).text == "Hello."


def test_one_agent_serves_several_loops_and_a_thread():
    """F-G3."""
    agent = agent_of("1", "2", "3")
    assert asyncio.run(agent.run("a")).text == "1"
    assert asyncio.run(agent.run("b")).text == "2"
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(agent.run_sync("c").text))
    thread.start()
    thread.join(5)
    assert got == ["3"]


async def test_a_session_continues_and_nothing_is_saved_twice():
    """F-F3."""
    session = nb.Session()
    agent = agent_of("1", "2", session=session)
    await agent.run("a")
    result = await agent.run("b")
    texts = [message.text for message in requests(agent)[-1].messages]
    assert texts == ["a", "1", "b"]
    assert [m.text for m in result.messages] == ["b", "2"]
    assert len(session.to_pandas("messages")) == 4
    reasons = [e.data.reason for e in session.events if e.type == "request/header"]
    assert reasons == ["initial"]


async def test_another_agent_on_a_session_logs_its_header_as_resumed():
    session = nb.Session()
    await agent_of("1", session=session).run("a")
    await agent_of("2", session=session).run("b")
    reasons = [e.data.reason for e in session.events if e.type == "request/header"]
    assert reasons == ["initial", "resume"]


async def test_changed_instructions_are_one_changed_header():
    session = nb.Session()
    agent = agent_of("1", "2", "3", session=session)
    await agent.run("a")
    agent.set_instructions("Be short.")
    await agent.run("b")
    await agent.run("c")
    reasons = [e.data.reason for e in session.events if e.type == "request/header"]
    assert reasons == ["initial", "change"]
    assert requests(agent)[-1].instructions == "Be short."


async def test_without_a_session_each_run_is_fresh():
    agent = agent_of("1", "2")
    first, second = await agent.run("a"), await agent.run("b")
    assert first.session is not second.session
    assert [m.text for m in requests(agent)[-1].messages] == ["b"]


@nb.tool(risk="readonly")
async def wait(seconds: float = 0.05) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


async def test_a_steer_is_read_after_the_results_and_before_the_next_answer():
    agent = agent_of(nb.call("wait"), "done", tools=[wait])
    run = agent.start("go")
    await asyncio.sleep(0.01)
    run.steer("look at 2024 only")
    await run
    sent = requests(agent)[-1].messages
    assert [(m.role, m.text) for m in sent][-2:] == [
        ("tool", "waited"),
        ("user", "look at 2024 only"),
    ]
    assert sent[-1].source is None  # the model's history knows no sources
    sources = [e.data.source for e in run.session.events if e.type == "user/message"]
    assert sources == [None, "steer"]


async def test_a_steer_before_the_run_has_begun_stands_behind_its_prompt():
    agent = agent_of("done")
    run = agent.start("go")
    run.steer("at once")
    await run
    assert [m.text for m in requests(agent)[0].messages] == ["go", "at once"]


async def test_a_steer_at_the_end_continues_the_turn():
    agent = agent_of("first", "second")

    async def steer_once(attempt: nb.Attempt) -> None:
        if attempt.text == "first":
            run.steer("and more")

    agent = nb.Agent(nb.models.Scripted(["first", "second"]), reviewers=[steer_once])
    run = agent.start("go")
    result = await run
    assert result.text == "second"
    assert [e.type for e in result.events].count("turn/start") == 1


async def test_an_undelivered_steer_enters_first_in_the_next_run():
    session = nb.Session()
    agent = agent_of(nb.call("wait", seconds=5), "later", tools=[wait], session=session)
    run = agent.start("go")
    await asyncio.sleep(0.02)
    run.steer("remember me")
    run.interrupt()
    assert (await run).stop_reason == "interrupted"
    await agent.run("next")
    texts = [m.text for m in requests(agent)[-1].messages if m.role == "user"]
    assert texts == ["go", "remember me", "next"]


async def test_a_followup_is_another_turn_of_the_same_run():
    agent = agent_of("1", "2")
    run = agent.start("a")
    run.followup("b")
    result = await run
    assert result.text == "2"
    turns = [e.data for e in result.events if e.type == "turn/start"]
    assert [(t.turn, t.run) for t in turns] == [(1, 1), (2, 1)]


async def test_runs_on_one_session_wait_in_order():
    session = nb.Session()
    agent = agent_of(nb.call("wait"), "1", "2", "3", tools=[wait], session=session)
    results = await asyncio.gather(*[agent.run(text) for text in "abc"])
    assert [r.text for r in results] == ["1", "2", "3"]
    assert session.verify().ok


async def test_a_busy_session_can_refuse_instead():
    agent = agent_of(nb.call("wait"), "1", tools=[wait], session=nb.Session())
    run = agent.start("a")
    with pytest.raises(nb.errors.BusyError, match="run in progress"):
        await agent.run("b", if_busy="raise")
    assert (await run).text == "1"


async def test_interrupting_a_run_that_waits_logs_nothing():
    session = nb.Session()
    agent = agent_of(nb.call("wait"), "1", tools=[wait], session=session)
    first, second = agent.start("a"), agent.start("b")
    await asyncio.sleep(0.01)
    second.interrupt()
    assert (await second).stop_reason == "interrupted"
    await first
    assert [e.data.run for e in session.events if e.type == "turn/start"] == [1]
    assert len(second.pending()) == 0


async def test_cancelling_a_run_that_waits_gives_its_place_up():
    session = nb.Session()
    agent = agent_of(nb.call("wait"), "1", "3", tools=[wait], session=session)
    first = agent.start("a")
    second = asyncio.create_task(agent.run("b"))
    third = agent.start("c")
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert ((await first).text, (await third).text) == ("1", "3")


def test_runs_from_many_threads_and_loops_take_turns():
    session = nb.Session()
    agent = agent_of(*["x"] * 24, session=session)

    def work() -> None:
        for n in range(3):
            if n % 2:
                asyncio.run(agent.run("go"))
            else:
                agent.run_sync("go")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert session.verify().ok
    assert len([e for e in session.events if e.type == "turn/end"]) == 24


async def test_a_run_inside_a_run_of_the_same_session_is_refused_at_once():
    session = nb.Session()

    @nb.tool(risk="readonly")
    async def nest() -> str:
        """Run again."""
        return (await agent.run("inner", session=session)).text

    agent = agent_of(nb.call("nest"), "done", tools=[nest])
    result = await agent.run("go", session=session)
    assert list(result.to_pandas("tools")["error_type"]) == ["NestingError"]
    assert result.text == "done"


async def test_a_run_inside_a_run_of_another_session_is_fine():
    inner = agent_of("inner")

    @nb.tool(risk="readonly")
    async def nest() -> str:
        """Run another."""
        return (await inner.run("x")).text

    result = await agent_of(nb.call("nest"), "done", tools=[nest]).run("go")
    assert list(result.to_pandas("tools")["result"]) == ["inner"]


def test_blocking_on_the_loop_thread_is_refused_instead_of_hanging():
    @nb.tool(risk="readonly")
    async def nest() -> str:
        """Block."""
        return inner.run_sync("x").text

    inner = agent_of("inner")
    result = agent_of(nb.call("nest"), "done", tools=[nest]).run_sync("go")
    assert list(result.to_pandas("tools")["error_type"]) == ["NestingError"]


async def test_events_come_each_once_in_order_and_end_with_the_run():
    agent = agent_of(nb.call("wait", seconds=0.01), "done", tools=[wait])
    run = agent.start("go")
    seen = [event async for event in run.events()]
    result = await run
    assert [e.seq for e in seen] == [e.seq for e in result.events]
    assert seen[-1].type == "turn/end"
    again = [event async for event in run.events()]
    assert again == seen


def test_events_can_be_read_from_another_loop_than_the_runs():
    run = agent_of(nb.call("wait", seconds=0.05), "done", tools=[wait]).start("go")

    async def read() -> list[str]:
        return [event.type async for event in run.events()]

    assert asyncio.run(read())[-1] == "turn/end"


async def test_prompts_and_arguments_are_checked_before_anything_happens():
    agent = agent_of("x")
    for bad in ("", "   ", None, 3, ["hi"]):
        with pytest.raises(nb.errors.ConfigError, match="prompt"):
            await agent.run(bad)  # pyright: ignore[reportArgumentType]
    with pytest.raises(nb.errors.ConfigError, match="ui must be"):
        await agent.run("x", ui="panel")  # pyright: ignore[reportArgumentType]
    with pytest.raises(nb.errors.ConfigError, match="if_busy"):
        await agent.run("x", if_busy="wait")  # pyright: ignore[reportArgumentType]
    with pytest.raises(nb.errors.ConfigError, match="session"):
        await agent.run("x", session=3)  # pyright: ignore[reportArgumentType]
    assert (await agent.run("x")).text == "x"


async def test_a_settled_run_refuses_more_input():
    run = agent_of("x").start("go")
    await run
    with pytest.raises(nb.errors.ConfigError, match="has ended"):
        run.steer("late")
    with pytest.raises(nb.errors.ConfigError, match="not empty"):
        run.steer(" ")
    run.interrupt()  # does nothing


async def test_a_timeout_of_result_lets_the_run_go_on():
    run = agent_of(nb.call("wait", seconds=0.2), "done", tools=[wait]).start("go")

    def block() -> Any:
        with pytest.raises(TimeoutError):
            run.result(0.01)
        return run.result(5)

    assert (await asyncio.to_thread(block)).text == "done"
    with pytest.raises(nb.errors.NestingError):
        agent_of("x").start("go").result()
    await asyncio.sleep(0.01)


async def test_sync_tools_of_one_answer_run_at_the_same_time_and_see_context_variables():
    """F-D6."""
    import contextvars

    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    @nb.tool(risk="readonly")
    def nap(n: int) -> str:
        """Block."""
        time.sleep(0.3)
        return f"{n} {who.get()}"

    who.set("me")
    agent = agent_of([nb.call("nap", n=1), nb.call("nap", n=2)], "done", tools=[nap])
    began, ticks = time.monotonic(), 0
    task = asyncio.create_task(agent.run("go"))
    while not task.done():
        await asyncio.sleep(0.02)
        ticks += 1
    result = await task
    assert time.monotonic() - began < 0.55
    assert ticks > 5
    assert list(result.to_pandas("tools")["result"]) == ["1 me", "2 me"]


async def test_an_agent_shows_itself():
    agent = agent_of("x", tools=[wait], name="helper")
    assert repr(agent) == "<Agent helper on scripted: wait>"
    run = agent.start("go")
    assert "waiting" in repr(run) or "running" in repr(run)
    result = await run
    assert "Result('x'" in repr(result)
    assert "x" in repr(run)
    assert "1 run," in repr(result.session)
    assert [m.text for m in result.session.messages] == ["go", "x"]
    assert result.session.explain().history[0].text == "go"


async def test_every_request_of_a_long_conversation_is_a_history_that_providers_accept():
    session = nb.Session()
    agent = agent_of(
        *[reply for n in range(5) for reply in (nb.call("wait", seconds=0), f"answer {n}")],
        tools=[wait],
        session=session,
    )
    for n in range(5):
        await agent.run(f"question {n}")
    for request in requests(agent):
        check_history(request.messages)

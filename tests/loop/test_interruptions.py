"""Stop, cancellation and exceptions at every point where a run can be suspended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest
from checker import check_history

import nbagent as nb
from nbagent.interfaces.model import Delta, End, Item, Prepared, Request


class Injector:
    """Steps a coroutine by hand and throws an exception in at its n-th suspension."""

    def __init__(self, coroutine: Any, n: int, error: BaseException) -> None:
        self.coroutine, self.n, self.error = coroutine, n, error
        self.count = 0

    def __await__(self) -> Generator[Any, None, None]:
        step, value = self.coroutine.send, None
        try:
            while True:
                awaited = step(value)
                self.count += 1
                step, value = self.coroutine.send, None
                if self.count == self.n:
                    step, value = self.coroutine.throw, self.error
                    continue
                try:
                    yield awaited
                except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
                    step, value = self.coroutine.throw, error
        except StopIteration:
            return


@nb.tool(risk="mutating")
async def slow(text: str) -> str:
    """Wait a little, some times."""
    for _ in range(3):
        await asyncio.sleep(0.001)
    return f"slow {text}"


@nb.tool(risk="readonly")
async def look(text: str) -> str:
    """Wait a little."""
    await asyncio.sleep(0.001)
    return f"look {text}"


@nb.tool(risk="readonly")
def read(text: str) -> str:
    """Read on a thread."""
    time.sleep(0.001)
    return f"read {text}"


def script() -> list[Any]:
    return [
        nb.call("slow", text="a"),
        [nb.call("look", text="b"), nb.call("read", text="c"), nb.call("slow", text="d")],
        nb.errors.ServerError("planted"),
        [nb.call("read", text="e"), nb.call("slow", text="f"), nb.call("slow", text="g")],
        "Between.",
        "Done.",
    ]


def make_agent(replies: list[Any]) -> nb.Agent:
    async def bounce_once(attempt: nb.Attempt) -> nb.Verdict | None:
        await asyncio.sleep(0)
        if attempt.text == "Between." and not attempt.tally("more"):
            return nb.Verdict.retry("more", "Say more.")
        return None

    async def pause(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        await asyncio.sleep(0)

    return nb.Agent(
        nb.models.Scripted(replies, chunk=4),
        tools=[slow, look, read],
        approval=nb.Approval(rules=["allow slow(text=d)"]),
        recovery=nb.Recovery(base_s=0.001),
        reviewers=[bounce_once],
        gates=[pause, *nb.DEFAULT_GATES],
    )


class SlowYes:
    """Allows everything, after a moment."""

    async def decide(self, question: nb.Question) -> nb.Answer:
        await asyncio.sleep(0.001)
        return nb.Answer("allow")


async def injected(n: int, error: BaseException, session: nb.Session) -> tuple[int, Any]:
    """Run with an exception at the n-th suspension; how many there were, and what came out."""
    agent = make_agent(script())
    run = agent._start("go", session, None, None, SlowYes(), "queue")
    run._loop = asyncio.get_running_loop()
    injector = Injector(run._main(), n, error)
    await injector
    assert run.done()
    outcome = run._finished.exception(0) or run._finished.result(0)
    return injector.count, outcome


async def check_goes_on(session: nb.Session) -> None:
    """The session verifies, every call has a result, and the next run is accepted."""
    report = session.verify()
    assert report.ok, report.problems
    assert report.ends == "idle"
    tools = session.to_pandas("tools")
    assert tools["status"].notna().all()
    agent = make_agent(["And on."])
    result = await agent.run("next", session=session)
    assert result.text == "And on."
    model: Any = agent._spec.model
    check_history(model.requests[-1].messages)
    assert session.verify().ok


async def count_suspensions() -> int:
    count, outcome = await injected(10**9, RuntimeError(), nb.Session())
    assert outcome.text == "Done."
    return count


@pytest.mark.parametrize("kind", ["cancel", "error"])
async def test_an_exception_at_any_suspension_leaves_a_session_that_goes_on(kind: str):
    total = await count_suspensions()
    assert total > 20
    for n in range(1, total + 1):
        error = asyncio.CancelledError() if kind == "cancel" else RuntimeError(f"planted at {n}")
        session = nb.Session()
        await injected(n, error, session)
        await check_goes_on(session)


async def test_a_foreign_cancel_at_any_time_is_an_interrupt_and_then_a_cancelled_error():
    for tick in range(0, 30, 2):
        session = nb.Session()
        agent = make_agent(script())
        task = asyncio.create_task(agent.run("go", session=session, ui=SlowYes()))
        for _ in range(tick):
            await asyncio.sleep(0.0005)
        ended = task.done()
        task.cancel()
        if not ended:
            with pytest.raises(asyncio.CancelledError):
                await task
        await check_goes_on(session)


async def test_wait_for_interrupts_the_run_and_raises_a_timeout():
    session = nb.Session()

    @nb.tool(risk="readonly")
    async def sleep() -> None:
        """Sleep long."""
        await asyncio.sleep(30)

    agent = nb.Agent(nb.models.Scripted([nb.call("sleep")]), tools=[sleep], session=session)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(agent.run("go"), 0.05)
    tools = session.to_pandas("tools")
    assert list(tools["status"]) == ["aborted"]
    assert session.events[-1].data.stop == "interrupted"


async def test_stop_returns_at_once_though_bodies_swallow_it_or_block():
    """F-B3: results are there for all, also for those that could not be stopped."""

    @nb.tool(risk="readonly")
    async def stubborn() -> str:
        """Swallow cancellation."""
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                continue
        return "late"

    @nb.tool(risk="readonly")
    def blocking(ctx: nb.ToolContext) -> str:
        """Block, and look too seldom to end within the last moment that it has."""
        for _ in range(50):
            time.sleep(0.3)
            if ctx.cancelled:
                return "noticed"
        return "late"

    @nb.tool(risk="readonly")
    async def fine() -> str:
        """End at once."""
        return "fine"

    session = nb.Session()
    calls = [nb.call("stubborn"), nb.call("blocking"), nb.call("fine")]
    agent = nb.Agent(nb.models.Scripted([calls, "never"]), tools=[stubborn, blocking, fine])
    run = agent.start("go", session=session)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    run.interrupt()
    result = await run
    assert time.monotonic() - began < 0.5
    assert result.stop_reason == "interrupted"
    assert list(result.to_pandas("tools")["status"]) == ["abandoned", "abandoned", "ok"]
    await asyncio.sleep(0.2)
    await check_goes_on(session)
    notices = [e.data.text for e in session.events if e.type == "notice"]
    assert any("noticed" in text for text in notices)


async def test_a_lone_body_that_swallows_stop_is_waited_for_and_named():
    @nb.tool(risk="readonly")
    async def stubborn() -> str:
        """Swallow cancellation once."""
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)
        return "late"

    session = nb.Session()
    agent = nb.Agent(nb.models.Scripted([nb.call("stubborn"), "x"]), tools=[stubborn])
    run = agent.start("go", session=session)
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    assert [e.data.kind for e in result.events if e.type == "notice"] == ["still-running"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await check_goes_on(session)


async def test_a_time_out_of_a_blocking_body_lets_the_turn_go_on():
    @nb.tool(risk="readonly", timeout_s=0.1)
    def blocking() -> str:
        """Block for long."""
        time.sleep(1)
        return "late"

    session = nb.Session()
    agent = nb.Agent(nb.models.Scripted([nb.call("blocking"), "went on"]), tools=[blocking])
    began = time.monotonic()
    result = await agent.run("go", session=session)
    assert time.monotonic() - began < 0.7
    assert result.text == "went on"
    assert list(result.to_pandas("tools")["status"]) == ["timeout"]


async def test_a_time_out_inside_a_body_is_the_bodys_own():
    """`asyncio.timeout` inside a tool, Stop outside: neither takes the other's cancellation."""

    @nb.tool(risk="mutating")
    async def inner() -> str:
        """Time out inside."""
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(5)
        except TimeoutError:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))
            return "inner time-out"
        return "?"

    agent = nb.Agent(
        nb.models.Scripted([nb.call("inner"), "ok"]),
        tools=[inner],
        approval=nb.Approval(mode="auto"),
    )
    result = await agent.run("go")
    assert result.to_pandas("tools")["result"][0] == "inner time-out"


async def test_a_body_that_stops_its_own_run_ends_it_after_itself():
    runs: list[nb.Run] = []

    @nb.tool(risk="mutating")
    async def stop() -> str:
        """Stop the run from inside."""
        runs[0].interrupt()
        return "stopped"

    agent = nb.Agent(
        nb.models.Scripted([nb.call("stop"), "x"]),
        tools=[stop],
        approval=nb.Approval(mode="auto"),
    )
    run = agent.start("go")
    runs.append(run)
    result = await run
    assert result.stop_reason == "interrupted"
    assert result.to_pandas("tools")["result"][0] == "stopped"
    await check_goes_on(result.session)


class Typing:
    """A model that writes slowly."""

    name, window = "typing", None

    def __init__(self, text: str) -> None:
        self.text = text

    def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        for letter in self.text:
            yield Delta(letter)
            await asyncio.sleep(0.01)
        yield End("stop")


async def test_what_was_said_before_stop_stays_in_the_history():
    session = nb.Session()
    agent = nb.Agent(Typing("one two three four"))
    run = agent.start("go", session=session)
    async for event in run.events():
        if event.type == "assistant/chunk":
            run.interrupt()
            break
    result = await run
    assert result.stop_reason == "interrupted"
    last = result.messages[-1]
    assert last.role == "assistant"
    assert "one two three four".startswith(last.text)
    await check_goes_on(session)


async def test_a_spontaneous_cancelled_error_in_a_body_is_a_result():
    @nb.tool(risk="readonly")
    async def odd() -> str:
        """Await something cancelled elsewhere."""
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    agent = nb.Agent(nb.models.Scripted([nb.call("odd"), "went on"]), tools=[odd])
    result = await agent.run("go")
    assert result.text == "went on"
    assert list(result.to_pandas("tools")["error_type"]) == ["CancelledError"]

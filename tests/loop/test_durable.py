"""What a body has ended with is in the file within one turn of the event loop, whatever comes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.stores.jsonl import JsonlStore

KILLS = Path(__file__).with_name("kills.py")


@pytest.mark.parametrize("kills", [25, pytest.param(220, marks=pytest.mark.slow)])
def test_no_kill_loses_a_result_of_a_body_that_has_ended(kills: int, tmp_path: Path):
    command = [sys.executable, str(KILLS), str(tmp_path), str(kills), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost" in done.stdout


@nb.tool(risk="readonly")
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


@nb.tool(risk="mutating")
def publish(text: str) -> str:
    """Publish."""
    return f"published {text}"


async def test_a_result_is_in_the_file_while_the_next_calls_gate_takes_its_time(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    seen: list[bool] = []

    async def look(call: nb.ToolCall, ctx: Any) -> None:
        await asyncio.sleep(0.01)
        seen.append(b"published" in path.read_bytes())

    calls = [nb.call("publish", text="a"), nb.call("publish", text="b")]
    agent = nb.Agent(
        nb.models.Scripted([calls, "done"]),
        tools=[publish],
        gates=[look, *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    await agent.run("go", session=path)
    assert seen == [False, True]


@pytest.mark.parametrize("tool", ["publish", "wait"])
async def test_a_result_is_in_the_file_while_a_gate_behind_the_body_takes_its_time(
    tool: str, tmp_path: Path
):
    path = tmp_path / "s.jsonl"
    seen: list[bool] = []

    class Slow:
        async def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: Any) -> nb.ToolResult:
            await asyncio.sleep(0.01)
            seen.append(result.text.encode() in path.read_bytes())
            return result

    calls = {"publish": nb.call("publish", text="a"), "wait": nb.call("wait", seconds=0.002)}
    agent = nb.Agent(
        nb.models.Scripted([calls[tool], "done"]),
        tools=[publish, wait],
        gates=[Slow(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    result = await agent.run("go", session=path)
    assert seen == [True]
    assert [e.type for e in result.events].count("tool/done") == 1
    assert result.session.verify().ok


async def test_bodies_that_end_together_are_one_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    gone = asyncio.Event()

    @nb.tool(risk="readonly")
    async def meet(n: int) -> str:
        """Meet."""
        if n == 9:
            gone.set()
        await gone.wait()
        return f"met {n}"

    writes: list[int] = []
    write = JsonlStore.write

    def counted(self: JsonlStore, header: bytes | None, records: Any) -> None:
        writes.append(sum(b"met " in record for record in records))
        write(self, header, records)

    monkeypatch.setattr(JsonlStore, "write", counted)
    agent = nb.Agent(
        nb.models.Scripted([[nb.call("meet", n=n) for n in range(10)], "done"]), tools=[meet]
    )
    await agent.run("go", session=tmp_path / "s.jsonl")
    assert [n for n in writes if n] == [10]


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("tool", ["publish", "wait"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("stopped", [False, True])
async def test_a_result_is_in_the_file_while_a_gate_around_the_body_goes_on(
    tool: str, count: int, sync: bool, stopped: bool, tmp_path: Path
):
    path = tmp_path / "s.jsonl"
    seen: list[bool] = []

    class Slow:
        async def around(self, call: nb.ToolCall, ctx: Any, following: Any) -> nb.ToolResult:
            result = await following(call)
            for _ in range(2):
                await asyncio.sleep(0)
            seen.append(result.raw.encode() in path.read_bytes())
            if stopped:
                run.interrupt()
            await asyncio.sleep(0.01)
            return result.but(shown="looked at")

    each = [{"text": f"t{n}"} if tool == "publish" else {"seconds": n / 1000} for n in range(count)]
    agent = nb.Agent(
        nb.models.Scripted([[nb.call(tool, **arguments) for arguments in each], "done"]),
        tools=[publish, wait],
        gates=[Slow(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    run = agent.start("go", session=nb.Session.open(path, sync=sync))
    result = await run
    assert seen == [True] * len(seen)
    assert len(seen) == count or stopped
    types = [e.type for e in result.events]
    assert types.count("tool/result") == count
    assert types.count("tool/done") >= len(seen)
    assert result.session.verify().ok


async def test_what_a_gate_around_the_body_tries_again_is_not_taken_for_its_outcome(
    tmp_path: Path,
):
    tried: list[int] = []

    @nb.tool(risk="mutating")
    def pay() -> str:
        """Pay."""
        tried.append(1)
        if len(tried) < 3:
            raise OSError("busy")  # noqa: EM101 - the least that is an error
        return "paid"

    class Again:
        async def around(self, call: nb.ToolCall, ctx: Any, following: Any) -> nb.ToolResult:
            result = await following(call)
            while result.status == "error":
                await asyncio.sleep(0.002)
                result = await following(call)
            return result

    agent = nb.Agent(
        nb.models.Scripted([nb.call("pay"), "done"]),
        tools=[pay],
        gates=[Again(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    result = await agent.run("go", session=tmp_path / "s.jsonl")
    assert [e.type for e in result.events].count("tool/done") == 0
    assert [e.data.raw for e in result.events if e.type == "tool/result"] == ["paid"]


async def until(true: Any) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - a run tells nobody that it asks
            await asyncio.sleep(0)


async def test_a_result_is_in_the_file_while_the_next_call_waits_for_its_person(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    calls = [nb.call("publish", text=text) for text in "abc"]
    agent = nb.Agent(
        nb.models.Scripted([calls, "done"]), tools=[publish], approval=nb.Approval(remember=None)
    )
    run = agent.start("go", session=path, ui=nb.ByHand())
    for left, text in zip((3, 2, 1), "abc", strict=True):
        await until(lambda left=left: len(run.pending()) == left)
        run.answer(run.pending()[0].id, "allow")
        if left > 1:
            await until(lambda left=left: len(run.pending()) == left - 1)
            await asyncio.sleep(0.01)
            assert f"published {text}".encode() in path.read_bytes()
    assert (await run).session.verify().ok


async def test_a_result_is_in_the_file_while_stop_waits_for_the_other_bodies(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    seen: list[bool] = []

    @nb.tool(risk="readonly")
    async def stop() -> str:
        """Stop."""
        run.interrupt()  # in the very turn in which the body ends
        return "stopped it"

    @nb.tool(risk="readonly")
    async def stubborn() -> str:
        """Go on for a moment."""
        try:
            await asyncio.sleep(5)
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            seen.append(b"stopped it" in path.read_bytes())
        return "never"

    agent = nb.Agent(
        nb.models.Scripted([[nb.call("stop"), nb.call("stubborn")]]), tools=[stop, stubborn]
    )
    run = agent.start("go", session=path)
    result = await run
    assert seen == [True]
    assert result.session.verify().ok


@pytest.mark.parametrize("wrong", [nb.call("nothing"), nb.call("wait", seconds="x")])
async def test_calls_are_looked_at_in_order_though_one_in_between_can_not_run(
    wrong: Any, tmp_path: Path
):
    def ask(call: nb.ToolCall, ctx: Any) -> nb.Decision | None:
        return nb.ask("?") if call.arguments["seconds"] == 0 else None

    waits = [nb.call("wait", seconds=n / 1000) for n in (0, 1, 2)]
    agent = nb.Agent(
        nb.models.Scripted([[waits[0], waits[1], wrong, waits[2]], "done"]),
        tools=[wait],
        gates=[ask, *nb.DEFAULT_GATES],
        max_parallel_tools=1,
    )
    run = agent.start("go", session=tmp_path / "s.jsonl", ui=nb.ByHand())
    await until(run.pending)
    await asyncio.sleep(0.01)
    run.answer(run.pending()[0].id, "allow")
    result = await run
    types = [(e.type, e.data.position) for e in result.events if e.type == "tool/result"]
    assert types == [("tool/result", n) for n in range(4)]
    assert next(m.text for m in result.messages if m.role == "tool") == "waited 0.0"


async def test_a_result_that_is_withheld_from_the_model_is_kept_for_people(tmp_path: Path):
    tasks: list[Any] = []

    def find(call: nb.ToolCall, ctx: Any) -> None:
        tasks.append(asyncio.current_task())

    @nb.tool(risk="readonly")
    async def stop(text: str) -> str:
        """Stop."""
        await asyncio.sleep(0.005)
        tasks[0].cancel()
        return f"came to {text}"

    class Slow:
        async def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: Any) -> nb.ToolResult:
            await asyncio.sleep(0.01)
            return result

    calls = [nb.call("stop", text="this"), nb.call("wait", seconds=0)]
    agent = nb.Agent(
        nb.models.Scripted([calls]), tools=[wait, stop], gates=[find, Slow(), *nb.DEFAULT_GATES]
    )
    session = nb.Session.open(tmp_path / "s.jsonl")
    with pytest.raises(asyncio.CancelledError):
        await agent.start("go", session=session)
    done = [e.data.raw for e in session.events if e.type == "tool/done"]
    assert "came to this" in done
    assert "came to this" not in str(session.messages)
    assert session.verify().ok

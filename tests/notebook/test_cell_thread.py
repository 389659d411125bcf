"""What belongs to the notebook's own thread runs there, and clicks reach a cell that waits."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from kernels import Kernel

import nbagent as nb

pytestmark = pytest.mark.filterwarnings("ignore")  # of the kernel's own machinery

SETUP = """
import asyncio, sqlite3, threading, time
import ipywidgets as widgets
import nbagent as nb
from nbagent.bridge import bypass_problem
where, db = [], sqlite3.connect(":memory:")
db.execute("create table birds (name)")
home = asyncio.get_running_loop()

@nb.tool(risk="readonly", where="cell")
def insert(name: str) -> str:
    "Insert."
    where.append(threading.current_thread().name)
    db.execute("insert into birds values (?)", [name])
    return "inserted"

@nb.tool(risk="readonly", where="cell")
async def listen() -> bool:
    "Listen."
    await asyncio.sleep(0.01)
    return asyncio.get_running_loop() is home

@nb.tool(risk="readonly", where="cell", timeout_s=0.3)
def quick() -> str:
    "Be quick."
    return "was quick"

@nb.tool(risk="readonly")
async def rest(seconds: float) -> str:
    "Rest."
    await asyncio.sleep(seconds)
    return "rested"

def agent_of(*replies, **settings):
    return nb.Agent(nb.models.Scripted(list(replies)), tools=[insert, listen, quick, rest], **settings)

clicks = []
button = widgets.Button(description="Click me")
button.on_click(lambda _: clicks.append(time.monotonic()))
"""


@pytest.fixture(scope="module", autouse=True)
def set_up(kernel: Kernel) -> None:
    kernel.run(SETUP)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        'result = await agent.run("go")',
        'result = agent.run_sync("go")',
        'run = agent.start("go"); result = await run',
        'run = agent.start("go"); result = run.result()',
    ],
)
def test_each_door_serves_what_must_run_on_the_notebooks_thread(kernel: Kernel, code: str):
    kernel.run('where.clear(); agent = agent_of(nb.call("insert", name="owl"), "done")')
    kernel.run(code)
    assert kernel.run("where, list(result.tool_calls['result'])") == (
        "(['MainThread'], ['inserted'])"
    )


@pytest.mark.slow
def test_an_idle_kernel_serves_a_run_that_nobody_waits_for(kernel: Kernel):
    kernel.run("""
where.clear()
run = agent_of([nb.call("insert", name="owl"), nb.call("listen")], "done").start("go")
""")
    kernel.until(lambda: kernel.run("run.done()") == "True", "the end of the run")
    assert kernel.run("where, list(run.result().tool_calls['result'])") == (
        "(['MainThread'], ['inserted', 'true'])"
    )


@pytest.mark.slow
def test_an_async_body_needs_the_loop_that_a_blocking_cell_blocks(kernel: Kernel):
    assert kernel.run(
        '(await agent_of(nb.call("listen"), "x").run("go")).tool_calls.result[0]'
    ) == ("'true'")
    for _ in range(5):  # whether the cell or the call comes first
        text = kernel.run('agent_of(nb.call("listen"), "x").run_sync("go").tool_calls.result[0]')
        assert "event loop: use await" in text


@pytest.mark.slow
def test_the_time_out_begins_with_the_body_and_stop_takes_it_out_of_the_queue(kernel: Kernel):
    kernel.run('run = agent_of(nb.call("quick"), "done").start("go"); time.sleep(0.8)')
    assert kernel.run("(await run).tool_calls.result[0]") == "'was quick'"
    kernel.run("""
where.clear()
run = agent_of(nb.call("insert", name="owl"), "done").start("go")
time.sleep(0.3)
run.interrupt()
time.sleep(0.3)
stopped = run.done()
""")
    assert kernel.run("stopped, where, (await run).stop_reason") == "(True, [], 'interrupted')"


@pytest.mark.slow
def test_a_tool_on_another_thread_fails_and_the_way_out_is_named(kernel: Kernel):
    text = kernel.run("""
@nb.tool(risk="readonly")
def count() -> int:
    "Count."
    return db.execute("select count(*) from birds").fetchone()[0]
agent = nb.Agent(nb.models.Scripted([nb.call("count"), "done"]), tools=[count])
(await agent.run("go")).tool_calls.result[0]
""")
    assert 'where="cell"' in text


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ['await agent.run("go")', 'agent.run_sync("go")', 'await agent.start("go")']
)
def test_a_click_reaches_a_cell_that_waits(kernel: Kernel, code: str):
    kernel.run('clicks.clear(); agent = agent_of(nb.call("rest", seconds=1.5), "done")')
    shown = kernel.start("display(button)")
    kernel.finish(shown)
    cell = kernel.start(f"{code}; ended = time.monotonic()")
    behind = kernel.start("order = [bool(clicks), time.monotonic() > ended]")
    kernel.until(lambda: cell.started, "the start of the cell")
    kernel.settle(0.3)
    kernel.click("Click me", shown)
    kernel.finish(cell, behind)
    assert kernel.run("len(clicks), clicks[0] < ended - 0.3, order, bypass_problem()") == (
        "(1, True, [True, True], '')"
    )


@pytest.mark.slow
def test_without_the_bypass_clicks_come_late_and_it_says_why(kernel_python: str):
    with Kernel(kernel_python, env={"NBAGENT_COMM_BYPASS": "0"}) as kernel:
        kernel.run(SETUP)
        shown = kernel.start("display(button)")
        kernel.finish(shown)
        cell = kernel.start(
            'agent_of(nb.call("rest", seconds=0.8), "x").run_sync("go"); early = len(clicks)'
        )
        kernel.until(lambda: cell.started, "the start of the cell")
        kernel.settle(0.2)
        kernel.click("Click me", shown)
        kernel.finish(cell)
        assert kernel.run("early, len(clicks), bypass_problem()") == (
            "(0, 1, 'NBAGENT_COMM_BYPASS=0')"
        )


@pytest.mark.slow
def test_asyncio_run_can_be_allowed_in_cells(kernel_python: str):
    with Kernel(kernel_python) as kernel:
        kernel.run(SETUP)
        kernel.run("nb.allow_nested_asyncio()")
        assert kernel.run("asyncio.run(asyncio.sleep(0, 'nested'))") == "'nested'"
        assert kernel.run('(await agent_of(nb.call("listen"), "a").run("go")).text') == "'a'"
        assert kernel.run('agent_of(nb.call("insert", name="owl"), "b").run_sync("go").text') == (
            "'b'"
        )


# -- in plain Python

ran: list[str] = []


@nb.tool(risk="readonly", where="cell")
def mark() -> str:
    """Mark."""
    ran.append(threading.current_thread().name)
    return "marked"


def test_blocking_in_a_script_serves_the_main_thread():
    ran.clear()
    nb.Agent(nb.models.Scripted([nb.call("mark"), "done"]), tools=[mark]).run_sync("go")
    assert ran == ["MainThread"]


async def test_awaiting_in_a_script_serves_the_main_thread():
    ran.clear()
    run = nb.Agent(nb.models.Scripted([nb.call("mark"), "done"]), tools=[mark]).start("go")
    assert (await run).text == "done"
    assert ran == ["MainThread"]


def test_where_is_one_of_two_words():
    def look() -> str:
        """Look."""
        return "seen"

    with pytest.raises(nb.errors.ToolDefinitionError, match='"auto" or "cell"'):
        nb.tool(look, where="kernel")  # pyright: ignore[reportArgumentType, reportCallIssue]


# -- the end of the process


async def test_shutdown_ends_runs_and_closes_their_sessions(tmp_path: Path):
    @nb.tool(risk="readonly")
    async def rest() -> str:
        """Rest."""
        await asyncio.sleep(60)
        return "rested"

    session = nb.Session.open(tmp_path / "s.jsonl")
    agent = nb.Agent(nb.models.Scripted([nb.call("rest")]), tools=[rest])
    run = await asyncio.to_thread(agent.start, "go", session=session)
    async with asyncio.timeout(5):
        while not session.log.folds.calls.calls:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    began = time.monotonic()
    await asyncio.to_thread(nb.shutdown)
    assert time.monotonic() - began < 2.5
    assert run.result().stop_reason == "interrupted"
    assert not session.log.writable
    assert session.verify().ends == "idle"


def test_a_process_that_ends_leaves_a_session_that_is_whole(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    code = f"""
    import asyncio, time
    import nbagent as nb

    @nb.tool(risk="readonly")
    async def rest() -> str:
        "Rest."
        await asyncio.sleep(60)

    nb.Agent(nb.models.Scripted([nb.call("rest")]), tools=[rest]).start("go", session={str(path)!r})
    time.sleep(0.5)
    """
    began = time.monotonic()
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 10
    session = nb.Session.open(path)
    assert session.events[-1].data.stop == "interrupted"
    assert session.verify().ends == "idle"

"""In a real kernel: the agent runs on its own thread, the cell waits, the stop button works."""

from __future__ import annotations

import time

import pytest
from kernels import Kernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of the kernel's own machinery
]

SETUP = """
import asyncio, threading, time
import nbagent as nb
where = []

@nb.tool(risk="readonly")
async def look(seconds: float = 0.0) -> str:
    "Look."
    where.append(threading.current_thread().name)
    await asyncio.sleep(seconds)
    return "seen"

@nb.tool(risk="readonly")
def block(seconds: float) -> str:
    "Block."
    time.sleep(seconds)
    return "blocked"

def agent_of(*replies, **settings):
    return nb.Agent(nb.models.Scripted(list(replies)), tools=[look, block], **settings)
"""


@pytest.fixture(scope="module", autouse=True)
def set_up(kernel: Kernel) -> None:
    kernel.run(SETUP)


def test_each_door_works_in_a_cell_and_the_agent_runs_on_its_own_thread(kernel: Kernel):
    assert kernel.run('(await agent_of(nb.call("look"), "a").run("go")).text') == "'a'"
    assert kernel.run('agent_of(nb.call("look"), "b").run_sync("go").text') == "'b'"
    kernel.run('run = agent_of(nb.call("look", seconds=0.2), "c").start("go")')
    assert kernel.run("(await run).text") == "'c'"
    assert kernel.run("run.result().text") == "'c'"
    assert kernel.run("set(where)") == "{'nbagent-loop'}"


def test_nobody_is_asked_where_nobody_can_answer(kernel: Kernel):
    kernel.run("""
@nb.tool(risk="mutating")
def write() -> str:
    "Write."
    return "wrote"
agent = nb.Agent(nb.models.Scripted([nb.call("write"), "done"]), tools=[write])
result = await agent.run("go")
""")
    assert kernel.run("list(result.tool_calls['decision_source'])") == "['unattended']"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('await agent.run("go", session=session)', "CancelledError"),
        ('agent.run_sync("go", session=session)', "KeyboardInterrupt"),
    ],
)
@pytest.mark.parametrize("tool", ["look", "block"])
def test_the_stop_button_ends_the_run_and_leaves_a_valid_session(
    kernel: Kernel, code: str, error: str, tool: str
):
    """F-G6, F-B5."""
    kernel.run(f'session = nb.Session(); agent = agent_of(nb.call("{tool}", seconds=20), "x")')
    cell = kernel.start(code)
    kernel.until(lambda: cell.started, "the start of the cell")
    kernel.settle(0.7)
    began = time.monotonic()
    kernel.interrupt()
    kernel.finish(cell)
    assert time.monotonic() - began < 1.5
    assert cell.error == error
    assert kernel.run("session.verify().ok, session.events[-1].data.stop") == (
        "(True, 'interrupted')"
    )
    assert kernel.run('(await agent_of("on").run("next", session=session)).text') == "'on'"

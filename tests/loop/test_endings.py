"""What a result says of how the run ended: which limit, with its numbers, and what was denied."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb

USAGE = nb.Usage(input_tokens=1000, output_tokens=4)


@nb.tool(risk="readonly")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@nb.tool(risk="mutating")
def publish(text: str) -> str:
    """Publish."""
    return f"published {text}"


def calls(count: int, **more: Any) -> list[Any]:
    return [nb.reply(calls=[nb.call("add", a=n, b=1)], **more) for n in range(count)]


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("tools", [add])
    settings.setdefault("recovery", nb.Recovery(base_s=0))
    return nb.Agent(nb.models.Scripted(list(replies)), **settings)


def last_step(result: nb.Result) -> Any:
    return result.to_pandas("steps").iloc[-1].to_dict()


async def test_a_budget_of_tokens_says_which_limit_with_its_numbers():
    agent = agent_of(*calls(9, usage=USAGE), budget=nb.Budget(max_tokens=1_500))
    result = await agent.run("go")
    assert result.stop_reason == "budget"
    assert "budget: 2,008 of the 1,500 tokens of this run" in repr(result)
    row = last_step(result)
    assert row["stop"] == "budget"
    assert row["stop_detail"] == "2,008 of the 1,500 tokens of this run"
    assert (row["limit_name"], row["limit_max"], row["limit_used"]) == ("max_tokens", 1500, 2008)
    assert result.events[-1].data.limit == {
        "name": "max_tokens",
        "limit": 1500,
        "used": 2008,
        "per": "run",
    }


async def test_a_budget_of_model_calls_says_for_what_it_holds():
    budget = nb.Budget(max_model_calls=2, per="session")
    agent = agent_of("1", "2", "3", session=nb.Session(), budget=budget)
    for _ in range(2):
        assert "budget" not in repr(await agent.run("go"))
    assert "budget: 2 of the 2 model calls of this session" in repr(await agent.run("go"))


@pytest.mark.parametrize("limit", [0.04, 0.2])
async def test_a_budget_of_seconds_says_how_long_it_took(limit: float):
    @nb.tool(risk="readonly")
    async def sleep() -> None:
        """Sleep."""
        await asyncio.sleep(30)

    agent = agent_of(nb.call("sleep"), tools=[sleep], budget=nb.Budget(max_seconds=limit))
    result = await asyncio.wait_for(agent.run("go"), 5)
    row = last_step(result)
    assert (row["limit_name"], row["limit_max"]) == ("max_seconds", limit)
    assert row["limit_used"] >= limit
    assert f"budget: {row['limit_used']:,} of the {limit:g} s of this run" in repr(result)
    assert "1 aborted" in repr(result)


async def test_the_limit_of_steps_is_named():
    result = await agent_of(*calls(9), max_steps=3).run("go")
    assert "max_steps: 3 of the 3 steps of this turn" in repr(result)
    assert last_step(result)["limit_name"] == "max_steps"


async def test_a_full_context_is_told_in_the_servers_words():
    words = "maximum context length is 8192 tokens, you asked for 9001"
    result = await agent_of(nb.errors.ContextOverflowError(words)).run("go")
    assert result.stop_reason == "context_limit"
    assert f"context_limit: {words}" in repr(result)
    row = last_step(result)
    assert (row["stop_detail"], row["limit_name"]) == (words, "context_limit")
    assert result.session.verify().ok


async def test_hostile_words_of_a_server_are_harmless_and_short_in_a_repr():
    words = "too long\x1b[2J\n\n" + "x" * 5000
    text = repr(await agent_of(nb.errors.ContextOverflowError(words)).run("go"))
    assert "\x1b" not in text
    assert "\n" not in text
    assert len(text) < 500


async def test_a_run_that_was_done_names_no_limit():
    result = await agent_of(nb.call("add", a=1, b=2), "3", budget=nb.Budget(max_tokens=9**9)).run(
        "go"
    )
    row = result.to_pandas("steps")[["stop_detail", "limit_name", "limit_max", "limit_used"]]
    assert row.isna().all(axis=None)
    assert repr(result).startswith("Result('3', stop_reason='end_turn'): 2 steps, 1 call, about ")


async def test_the_limit_is_in_the_printed_log(tmp_path: Path):
    from nbagent.frames import show

    path = tmp_path / "log.jsonl"
    result = await agent_of(*calls(9), max_steps=2).run("go", session=path)
    text = show(result.session.log, width=100)
    assert "turn 1 ended by max_steps: 2 of the 2 steps of this turn" in text
    session = nb.Session.open(path)
    assert session.verify().ok
    session.close()


async def test_a_repr_says_what_was_denied_and_why():
    replies = [[nb.call("add", a=1, b=2), nb.call("publish", text="x")], nb.call("add", a=1, b=3)]
    usages = [nb.reply(calls=r if isinstance(r, list) else [r], usage=USAGE) for r in replies]
    agent = agent_of(*usages, nb.reply(text="ok", usage=USAGE), tools=[add, publish])
    result = await agent.run("go", ui="none")
    facts = "3 steps, 3 calls (1 denied: nobody could be asked), 3,012 tokens"
    assert repr(result) == f"Result('ok', stop_reason='end_turn'): {facts}"


async def test_several_reasons_of_denials_are_counted():
    @nb.tool(risk="readonly")
    def fail() -> None:
        """Fail."""
        msg = "no"
        raise ValueError(msg)

    rules = ["deny publish(text=a*)"]
    agent = agent_of(
        [*(nb.call("publish", text=text) for text in ("a", "b")), nb.call("fail")],
        "ok",
        tools=[publish, fail],
        approval=nb.Approval(rules=rules),
    )
    text = repr(await agent.run("go", ui="none"))
    assert "3 calls (2 denied: 1 by a rule, 1 nobody could be asked; 1 failed)" in text


@pytest.mark.parametrize("where", ["result", "run", "error"])
async def test_a_repr_never_fails(where: str):
    agent = agent_of("x") if where != "error" else agent_of(nb.errors.BadRequestError("no"))
    run = agent.start("go")
    try:
        result = await run
    except nb.errors.BadRequestError as error:
        result = error.result
    assert "1 step, 0 calls" in repr(run if where == "run" else result)


def test_how_to_allow_is_said_once_in_a_process():
    code = """
import nbagent as nb

@nb.tool(risk="mutating")
def publish(text: str) -> str:
    "Publish."
    return text

for _ in range(2):
    calls = [nb.call("publish", text="a"), nb.call("publish", text="b")]
    agent = nb.Agent(nb.models.Scripted([calls, "done"]), tools=[publish])
    result = agent.run_sync("go", ui="none")
    assert len(result.to_pandas("notes")) == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    (line,) = done.stderr.splitlines()
    assert "`publish` was not run, since nobody could be asked" in line
    for way in ("ui=nb.ByHand()", 'ui="stdin"', "allow publish", 'nb.Approval(mode="auto")'):
        assert way in line


def test_nothing_is_said_where_a_rule_denies():
    code = """
import nbagent as nb

@nb.tool(risk="mutating")
def publish(text: str) -> str:
    "Publish."
    return text

model = nb.models.Scripted([nb.call("publish", text="a"), "done"])
rules = nb.Approval(rules=["deny publish"])
nb.Agent(model, tools=[publish], approval=rules).run_sync("go", ui="none")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""

"""A run writes while others read."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore


@nb.tool(risk="readonly")
def look(ctx: nb.ToolContext, a: int) -> str:
    """Look, on a thread, and leave notes from there."""
    for n in range(5):
        ctx.note("seen", {"a": a, "n": n})
    return "x" * 300


def agent_of(steps: int) -> nb.Agent:
    calls = [
        nb.reply("look " * 20, [nb.call("look", a=n), nb.call("look", a=-n)]) for n in range(steps)
    ]
    return nb.Agent(
        nb.models.Scripted([*calls, "done"], chunk=4), tools=[look], max_steps=steps + 1
    )


@pytest.mark.parametrize("stored", [False, True])
def test_readers_on_other_threads_see_a_whole_log(path: Path, stored: bool):
    session = nb.Session.open(path) if stored else nb.Session()
    over = threading.Event()
    errors: list[BaseException] = []
    rounds = [0, 0, 0]

    def read(which: int) -> None:
        try:
            while not over.is_set() or not rounds[which]:
                if which == 0:
                    report = session.verify()
                    assert report.ok, report
                    assert report.ends != "torn"
                elif which == 1:
                    events = session.events
                    seqs = [event.seq for event in events[: len(events)]]
                    assert seqs == list(range(len(seqs)))
                    assert all(event.data is not None for event in events[-20:])
                else:
                    session.to_pandas("steps")
                    session.to_pandas("events")
                rounds[which] += 1
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=read, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        result = agent_of(40).run_sync("go", session=session)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    assert result.text == "done"
    assert all(rounds)
    notes = [event.data.data for event in session.events if event.type == "note"]
    assert len(notes) == 400
    if stored:
        session.close()
        assert Log(JsonlStore(path)).lines == session.log.lines


def test_events_can_be_followed_from_another_loop(path: Path):
    run = agent_of(10).start("go", session=nb.Session.open(path))

    async def follow() -> list[int]:
        return [event.seq async for event in run.events()]

    seqs = asyncio.run(follow())
    assert seqs == [event.seq for event in run.result(10).events]
    run.session.close()


def test_sessions_of_many_threads_do_not_meet(tmp_path: Path):
    results: list[Any] = [None] * 8

    def work(n: int) -> None:
        results[n] = agent_of(5).run_sync("go", session=tmp_path / f"{n}.jsonl")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert len([event for event in result.events if event.type == "note"]) == 50
        assert result.session.verify().ok
        result.session.close()

"""What a step costs, in counts: tasks, timers, threads, events, encodings, hashed bytes, writes.

Times are measured in `tests/bench`; counts hold on any machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import pytest

import nbagent as nb
from nbagent.interfaces.model import Prepared, Request

EVENTS_A_STEP = [
    "step/start",
    "request/sent",
    "attempt/end",
    "assistant/message",
    "tool/call",
    "tool/decision",
    "tool/result",
    "step/end",
]
WRITES_A_STEP = 2  # before the request, before the tool's body


class Counts(NamedTuple):
    """What was done so far."""

    encodings: int
    hashed: int
    """Bytes, blake2b."""
    summed: int
    """Bytes, crc32."""
    writes: int
    written: int
    """Bytes."""
    events: int


class Meter:
    """Counts calls of what costs, wherever the package has got hold of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        self.encodings = self.hashed = self.summed = self.writes = self.written = 0
        self._wrap(orjson, "dumps", self._encoded)
        self._wrap(hashlib, "blake2b", self._hash)
        self._wrap(zlib, "crc32", self._sum)
        self._wrap(os, "write", self._write)

    def at(self, events: int) -> Counts:
        """The counts now."""
        return Counts(self.encodings, self.hashed, self.summed, self.writes, self.written, events)

    def _wrap(self, module: Any, name: str, count: Callable[..., None]) -> None:
        real = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            count(*args)
            return real(*args, **kwargs)

        self.patch.setattr(module, name, counted)
        for place in [m for n, m in sys.modules.items() if n.split(".")[0] == "nbagent"]:
            for key, value in list(vars(place).items()):
                if value is real:
                    self.patch.setattr(place, key, counted)

    def _encoded(self, *_: Any) -> None:
        self.encodings += 1

    def _hash(self, data: bytes = b"", *_: Any) -> None:
        self.hashed += len(data)

    def _sum(self, data: bytes, *_: Any) -> None:
        self.summed += len(data)

    def _write(self, _: int, data: bytes) -> None:
        self.writes += 1
        self.written += len(data)


def replies(steps: int, text: str = "") -> list[Any]:
    """Answers that call `add` once each, all of the same length, then the last one."""
    calls = [nb.call("add", a=10_000 + n, b=1) for n in range(steps)]
    return [nb.reply(text, [call]) if text else call for call in calls] + ["done"]


@nb.tool(risk="readonly")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Model(nb.models.Scripted):
    """Without the suite's check of each request, which reads the whole history."""

    def prepare(self, request: Request) -> Prepared:
        return Prepared(request)


def agent(model: Model, tool: nb.Tool = add) -> nb.Agent:
    """Defaults, but for a high step limit."""
    return nb.Agent(model, tools=[tool], max_steps=10_000)


async def test_a_step_makes_no_task_and_no_timer_and_visits_no_thread(
    monkeypatch: pytest.MonkeyPatch,
):
    tasks: list[str] = []
    timers: list[str] = []
    hops: list[str] = []
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        tasks.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    call_at, start = loop.call_at, threading.Thread.start

    def counted_timer(when: float, callback: Any, *args: Any, **options: Any) -> Any:
        timers.append(callback.__qualname__)
        return call_at(when, callback, *args, **options)  # call_later comes here, too

    def counted_start(thread: threading.Thread) -> None:
        hops.append(thread.name)
        start(thread)

    def no_executor(*args: Any) -> Any:
        hops.append(str(args))
        raise AssertionError

    who = agent(Model(replies(50)))
    monkeypatch.setattr(loop, "call_at", counted_timer)
    monkeypatch.setattr(loop, "run_in_executor", no_executor)
    monkeypatch.setattr(threading.Thread, "start", counted_start)
    before = loop.get_task_factory()
    loop.set_task_factory(factory)
    began = time.monotonic()
    try:
        result = await who.run("go", ui="none")
    finally:
        loop.set_task_factory(before)
    ticks = int(time.monotonic() - began)  # the watchdog re-arms itself once a second

    assert result.text == "done"
    assert tasks == ["Run._main"]
    assert hops == []
    assert set(timers) == {"Watchdog._fire"}
    assert len(timers) <= 1 + ticks


async def test_a_step_costs_the_same_however_long_the_run_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    session = nb.Session.open(tmp_path / "log.jsonl")
    taken: list[Counts] = []

    @nb.tool(risk="readonly", name="add")
    async def probe(a: int, b: int) -> int:
        """Add two numbers."""
        taken.append(meter.at(len(session.events)))
        return a + b

    who = agent(Model(replies(5_000)), probe)
    meter = Meter(monkeypatch)
    await who.run("go", session=session, ui="none")
    session.close()

    assert len(taken) == 5_000

    def steps(at: int) -> Counts:
        """The sum over ten steps."""
        return Counts(*(b - a for a, b in zip(taken[at], taken[at + 10], strict=True)))

    early, middle, late = steps(50), steps(500), steps(4_900)
    exact = ("encodings", "writes", "events")
    assert all(count > 0 for count in early)
    for name in exact:
        assert getattr(early, name) == getattr(middle, name) == getattr(late, name), name
    for name in ("hashed", "summed", "written"):  # numbers of steps and events get longer
        first = getattr(early, name)
        assert abs(getattr(middle, name) - first) <= 0.05 * first, name
        assert abs(getattr(late, name) - first) <= 0.05 * first, name

    assert early.events == 10 * len(EVENTS_A_STEP)
    assert early.writes == 10 * WRITES_A_STEP
    # Each event once, each message that the model sees once more as its node, and the result's text.
    assert early.encodings <= 10 * (len(EVENTS_A_STEP) + 2 + 1)
    lines = [len(event.line) for event in session.events[1_000:1_080]]
    assert early.hashed <= sum(lines)
    assert early.summed <= 1.05 * sum(lines)


async def test_the_events_of_a_step():
    session = nb.Session()
    await agent(Model(replies(3))).run("go", session=session, ui="none")

    types = [event.type for event in session.events]
    first = types.index("step/end") + 1
    assert types[first : first + len(EVENTS_A_STEP)] == EVENTS_A_STEP


async def test_a_session_in_memory_writes_nothing(monkeypatch: pytest.MonkeyPatch):
    who, session = agent(Model(replies(20))), nb.Session()
    meter = Meter(monkeypatch)
    await who.run("go", session=session, ui="none")
    assert meter.writes == 0


async def test_appends_are_written_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    session = nb.Session.open(tmp_path / "log.jsonl")
    who = agent(Model([*replies(1), *replies(100)]))
    await who.run("go", session=session, ui="none")  # takes the lock, makes the file
    meter = Meter(monkeypatch)
    await who.run("go", session=session, ui="none")
    assert meter.writes == WRITES_A_STEP * 100 + 2  # the last answer has no call; the turn's end
    session.close()


async def test_bytes_on_disk_of_a_step(tmp_path: Path):
    per_step = await _size(tmp_path / "short.jsonl", "", None, steps=200) / 200
    assert per_step <= 1_000


@pytest.mark.parametrize("length", [400, 4_000])
async def test_bytes_on_disk_of_a_chunk(tmp_path: Path, length: int):
    text, steps, size = ("lorem ipsum " * length)[:length], 20, 4
    whole = await _size(tmp_path / "whole.jsonl", text, None, steps=steps)
    pieces = await _size(tmp_path / "pieces.jsonl", text, size, steps=steps)
    assert (pieces - whole) / (steps * (length / size - 1)) <= 4


async def _size(path: Path, text: str, chunk: int | None, *, steps: int) -> int:
    """Bytes that a second run of so many steps adds to the file."""
    session = nb.Session.open(path)
    model = Model([*replies(steps, text), *replies(steps, text)], chunk=chunk)
    who = agent(model)
    sizes: list[int] = []
    for _ in range(2):
        await who.run("go", session=session, ui="none")
        sizes.append(_bytes(path))
    session.close()
    return sizes[1] - sizes[0]


def _bytes(path: Path) -> int:
    return path.stat().st_size

"""What the rows share: clocks, interleaving, the scripted model and tools, where the floors are."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import nbagent as nb
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request
from nbagent.tools import tool

FLOORS = Path(__file__).parents[3] / "shared" / "bench"
"""Hand-written loops to measure beside; they are read where they are, and may be absent."""


# -- what a row gives


@dataclass(frozen=True)
class Line:
    """One line of the table."""

    row: str
    bar: str
    """In words, as it is shown."""
    ours: float
    unit: str
    floor: float | None = None
    floor_name: str = ""
    ratio: float | None = None
    """Ours by the floor's: median over the repeats, each beside its own floor."""
    most: float | None = None
    """Ours may be at most this …"""
    most_ratio: float | None = None
    """… or at most so many times the floor, which holds on a busy machine, too."""

    @property
    def verdict(self) -> str:
        """hit, missed, or nothing where there is no bar."""
        if self.most is None and self.most_ratio is None:
            return ""
        if self.most is not None and self.ours <= self.most:
            return "hit"
        if self.most_ratio is not None and self.ratio is not None and self.ratio <= self.most_ratio:
            return "hit"
        if self.most is None and self.ratio is None:
            return "no floor"
        return "missed"


@dataclass
class Sizes:
    """How much each row does."""

    reps: int | None = None
    """Repeats; None = as many as the row needs."""
    tiny: bool = False
    """As little as shows that the row works: the numbers mean nothing then."""

    def repeats(self, usual: int) -> int:
        """Repeats of a row that usually has so many."""
        return self.reps or (1 if self.tiny else usual)

    def size(self, usual: int, tiny: int) -> int:
        """A count of steps, events or runs."""
        return tiny if self.tiny else usual


@dataclass
class Floors:
    """The floors' modules, loaded on first use."""

    folder: Path = FLOORS
    _loaded: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def present(self) -> bool:
        """Whether the folder is there."""
        return (self.folder / "common.py").is_file()

    def module(self, name: str) -> Any:
        """One of the folder's modules."""
        if name not in self._loaded:
            for folder in (self.folder, self.folder / "adapters"):
                if str(folder) not in sys.path:
                    sys.path.append(str(folder))
            self._loaded[name] = importlib.import_module(name)
        return self._loaded[name]

    def adapter(self, name: str, folder: str, variant: str | None = None) -> Any:
        """An adapter whose log goes to the folder; None where the floors are absent."""
        if not self.present:
            return None
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            made = self.module(name).Adapter()
            made.setup(variant)
        finally:
            tempfile.tempdir = before
        return made


# -- measuring


class Spent(NamedTuple):
    """Seconds of one repeat."""

    cpu: float
    wall: float


class Clock:
    """`with clock:` adds what runs inside."""

    def __init__(self) -> None:
        self.cpu = self.wall = 0.0

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu += time.process_time() - self._cpu
        self.wall += time.perf_counter() - self._wall

    @property
    def spent(self) -> Spent:
        """What was added up."""
        return Spent(self.cpu, self.wall)


Measured = Callable[[], Awaitable[Spent]]


async def interleaved(
    reps: int, measured: Mapping[str, Measured | None], *, warm: int = 1
) -> dict[str, list[Spent]]:
    """Each by turns, so that all meet the same noise; those that are None are left out."""
    named = {name: each for name, each in measured.items() if each is not None}
    for _ in range(warm):
        for each in named.values():
            await each()
    out: dict[str, list[Spent]] = {name: [] for name in named}
    order = list(named)
    for _ in range(reps):
        for name in order:
            gc.collect()
            out[name].append(await named[name]())
        order.reverse()
    return out


def median(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def compare(
    row: str,
    bar: str,
    ours: list[float],
    floor: list[float] | None,
    *,
    unit: str,
    scale: float = 1.0,
    floor_name: str = "",
    most: float | None = None,
    most_ratio: float | None = None,
) -> Line:
    """A line from the repeats of ours and of the floor, in seconds, times `scale`."""
    if not floor:
        return Line(row, bar, median(ours) * scale, unit, most=most, most_ratio=most_ratio)
    return Line(
        row,
        bar,
        median(ours) * scale,
        unit,
        floor=median(floor) * scale,
        floor_name=floor_name,
        ratio=median([a / b for a, b in zip(ours, floor, strict=True)]),
        most=most,
        most_ratio=most_ratio,
    )


class Folder:
    """`with Folder(parent) as path:` a folder that is gone afterwards."""

    def __init__(self, parent: str | None = None) -> None:
        self.path = tempfile.mkdtemp(prefix="nbagent-bench-", dir=parent)

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def memory_folder() -> str | None:
    """A folder in memory, None where there is none."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def size_of(path: Path) -> int:
    """Bytes of a file."""
    return path.stat().st_size


def remove(path: str | None) -> None:
    """Delete a file."""
    if path is not None:
        Path(path).unlink()


# -- the scripted model and its tools: the same work as the floors' own


class Script:
    """What the model answers: `steps` times `width` calls of `tool`, then "done"."""

    def __init__(
        self, steps: int, width: int = 1, tool: str = "add", latency_s: float = 0.0
    ) -> None:
        self.steps, self.width, self.tool, self.latency_s = steps, width, tool, latency_s
        self.taken = 0


SCRIPT: contextvars.ContextVar[Script] = contextvars.ContextVar("script")


class ScriptModel:
    """Answers by the script of the caller's context, at the same cost at every length of history."""

    name = "script"
    window = None

    def prepare(self, request: Request) -> Prepared:
        """Nothing to prepare."""
        return Prepared(request)

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        """The next answer."""
        script = SCRIPT.get()
        if script.latency_s:
            await asyncio.sleep(script.latency_s)
        turn = script.taken
        script.taken += 1
        if turn >= script.steps:
            yield Delta("done")
            yield End("stop")
            return
        for position in range(script.width):
            arguments = json.dumps({"a": turn, "b": 1})
            yield Block(nb.Call(script.tool, arguments, f"call_{turn}_{position}"), position)
        yield End("tool_calls")


class _Count:
    done = 0


def calls_done() -> int:
    """Tool bodies that have ended; each row checks it."""
    return _Count.done


@tool(risk="readonly")
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: first number
        b: second number
    """
    _Count.done += 1
    return a + b


@tool(risk="readonly")
async def nap(a: int, b: int) -> int:
    """Sleep 10 ms, then add two numbers.

    Args:
        a: first number
        b: second number
    """
    await asyncio.sleep(0.01)
    _Count.done += 1
    return a + b


@tool(risk="readonly")
def nap_sync(a: int, b: int) -> int:
    """Block 10 ms, then add two numbers.

    Args:
        a: first number
        b: second number
    """
    time.sleep(0.01)
    _Count.done += 1
    return a + b


def agent(**settings: Any) -> nb.Agent:
    """An agent on the scripted model, with defaults but for a high step limit."""
    return nb.Agent(ScriptModel(), tools=[add, nap, nap_sync], max_steps=1_000_000, **settings)


async def run(who: nb.Agent, script: Script, session: nb.Session | None) -> nb.Result:
    """One run of the script."""
    SCRIPT.set(script)
    return await who.run("go", session=session, ui="none")


async def timed(who: nb.Agent, script: Script, session: nb.Session | None) -> Spent:
    """One run of the script on the clock; fails if a call is missing."""
    before, clock = calls_done(), Clock()
    with clock:
        result = await run(who, script, session)
    expected = script.steps * script.width
    if result.text != "done" or calls_done() - before != expected:
        msg = f"{calls_done() - before} calls of {expected}, then {result!r}"
        raise RuntimeError(msg)
    return clock.spent


async def floor_timed(floors: Floors, adapter: Any, *script: Any, **settings: Any) -> Spent:
    """One run of a floor on the clock."""
    clock = Clock()
    made = floors.module("common").Script(*script, **settings)
    with clock:
        await asyncio.create_task(adapter.run(made))
    return clock.spent

"""Rows about the loop: a step, many tools at once, many runs at once."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import Any

from harness import (
    Clock,
    Floors,
    Folder,
    Line,
    Measured,
    Script,
    Sizes,
    Spent,
    agent,
    calls_done,
    compare,
    floor_timed,
    interleaved,
    median,
    memory_folder,
    remove,
    run,
    timed,
)

import nbagent as nb

STEP_BAR, STEP_RATIO = 60.0, 60 / 36
GROWTH_BAR = 1.1


async def step(sizes: Sizes, floors: Floors) -> list[Line]:
    """One step in process with one async tool, JSONL on disk, defaults on."""
    parents = dict.fromkeys([memory_folder() or tempfile.gettempdir(), tempfile.gettempdir()])
    lines: list[Line] = []
    for parent in parents:
        with Folder(parent) as folder:
            lines += await _step_in(folder, parent, sizes, floors)
    return lines


async def _step_in(folder: str, where: str, sizes: Sizes, floors: Floors) -> list[Line]:
    few, many = sizes.size(100, 5), sizes.size(1000, 10)
    rich, bare = floors.adapter("floor_rich", folder), floors.adapter("floor", folder)
    names = (f"{folder}/{n}.jsonl" for n in itertools.count())
    who = agent()

    async def ours(steps: int) -> Spent:
        # The session has its file before the clock starts: creating one costs what the disk likes.
        session = nb.Session.open(next(names))
        await run(who, Script(1), session)
        spent = await timed(who, Script(steps), session)
        session.close()
        remove(session.location)
        return spent

    def beside(steps: int) -> dict[str, Measured | None]:
        return {
            "ours": partial(ours, steps),
            "rich": partial(floor_timed, floors, rich, steps) if rich else None,
            "bare": partial(floor_timed, floors, bare, steps) if bare else None,
        }

    short = await interleaved(sizes.repeats(25), beside(few), warm=3)
    long = await interleaved(sizes.repeats(9), beside(many))
    lines: list[Line] = []
    for steps, got in ((few, short), (many, long)):
        for floor_name in ("rich", "bare"):
            if floor_name == "bare" and "bare" not in got:
                continue
            barred = floor_name == "rich"
            line = compare(
                f"step, N={steps}, log in {where}",
                "≤ 60 µs, ≤ 1.67 × floor_rich" if barred else "",
                [each.cpu for each in got["ours"]],
                [each.cpu for each in got.get(floor_name, [])],
                unit="µs",
                scale=1e6 / steps,
                floor_name="floor_rich" if barred else "floor",
                most=STEP_BAR if barred else None,
                most_ratio=STEP_RATIO if barred else None,
            )
            lines.append(line)

    def growth(name: str) -> float:
        per_step = [
            median([each.cpu for each in got[name]]) / steps
            for steps, got in ((few, short), (many, long))
        ]
        return per_step[1] / per_step[0]

    lines.append(
        Line(
            f"step, N={many} by N={few}, log in {where}",
            "≤ 1.1",
            growth("ours"),
            "×",
            floor=growth("rich") if rich else None,
            floor_name="floor_rich" if rich else "",
            most=GROWTH_BAR,
        )
    )
    return lines


async def tools(sizes: Sizes, floors: Floors) -> list[Line]:
    """100 calls of 10 ms in one answer, the cap raised: wall time until the run is over."""
    width, lines = sizes.size(100, 4), list[Line]()
    who = agent(max_parallel_tools=width)
    with Folder(memory_folder()) as folder:
        rich, bare = floors.adapter("floor_rich", folder), floors.adapter("floor", folder)
        for kind, tool, bar, ratio in (
            ("async", "nap", 15.0, 15 / 11.5),
            ("blocking", "nap_sync", 20.0, 20 / 15),
        ):
            names = (f"{folder}/{kind}{n}.jsonl" for n in itertools.count())

            async def ours(tool: str = tool, names: Iterator[str] = names) -> Spent:
                session = nb.Session.open(next(names))
                await run(who, Script(1), session)
                spent = await timed(who, Script(1, width, tool), session)
                session.close()
                return spent

            got = await interleaved(
                sizes.repeats(15),
                {
                    "ours": ours,
                    "rich": partial(floor_timed, floors, rich, 1, width, tool) if rich else None,
                    "bare": partial(floor_timed, floors, bare, 1, width, tool) if bare else None,
                },
                warm=2,
            )
            for floor_name in ("bare", "rich"):
                if floor_name == "rich" and not rich:
                    continue
                barred = floor_name == "bare"
                lines.append(
                    compare(
                        f"{width} tools, {kind}, wall",
                        f"≤ {bar:g} ms, ≤ {ratio:.2f} × floor" if barred else "",
                        [each.wall for each in got["ours"]],
                        [each.wall for each in got.get(floor_name, [])],
                        unit="ms",
                        scale=1e3,
                        floor_name="floor" if barred else "floor_rich",
                        most=bar if barred else None,
                        most_ratio=ratio if barred else None,
                    )
                )
            lines.append(
                compare(
                    f"{width} tools, {kind}, CPU",
                    "",
                    [each.cpu for each in got["ours"]],
                    [each.cpu for each in got.get("rich", [])],
                    unit="ms",
                    scale=1e3,
                    floor_name="floor_rich",
                )
            )
    return lines


async def runs(sizes: Sizes, floors: Floors) -> list[Line]:
    """1,000 runs of 5 steps at once, 50 ms a model call, in-memory sessions."""
    count, steps, latency = sizes.size(1000, 3), 5, 0.05 if not sizes.tiny else 0.005
    who = agent()

    async def ours() -> Spent:
        before, clock = calls_done(), Clock()
        with clock:
            await asyncio.gather(
                *[
                    asyncio.create_task(run(who, Script(steps, latency_s=latency), None))
                    for _ in range(count)
                ]
            )
        if calls_done() - before != count * steps:
            msg = f"{calls_done() - before} calls of {count * steps}"
            raise RuntimeError(msg)
        return clock.spent

    def beside(adapter: Any) -> Measured | None:
        if adapter is None:
            return None

        async def floor() -> Spent:
            script = floors.module("common").Script
            clock = Clock()
            with clock:
                await asyncio.gather(
                    *[
                        asyncio.create_task(adapter.run(script(steps, latency=latency)))
                        for _ in range(count)
                    ]
                )
            return clock.spent

        return floor

    with Folder(memory_folder()) as folder:
        rich, bare = floors.adapter("floor_rich", folder), floors.adapter("floor", folder)
        got = await interleaved(
            sizes.repeats(5), {"ours": ours, "bare": beside(bare), "rich": beside(rich)}
        )
    lines: list[Line] = []
    for what in ("wall", "cpu"):
        for floor_name in ("bare", "rich"):
            if floor_name not in got and floor_name == "rich":
                continue
            barred = (what, floor_name) == ("wall", "bare")
            lines.append(
                compare(
                    f"{count} runs, {'CPU' if what == 'cpu' else what}",
                    "≤ 0.7 s, ≤ 2.19 × floor" if barred else "",
                    [getattr(each, what) for each in got["ours"]],
                    [getattr(each, what) for each in got.get(floor_name, [])],
                    unit="s",
                    floor_name="floor" if floor_name == "bare" else "floor_rich",
                    most=0.7 if barred else None,
                    most_ratio=0.7 / 0.32 if barred else None,
                )
            )
    return lines

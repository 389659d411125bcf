"""Rows over HTTP, against a local server that the floors bring: a chunk, a step with history."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from harness import (
    Clock,
    Floors,
    Folder,
    Line,
    Measured,
    Sizes,
    Spent,
    add,
    compare,
    interleaved,
    memory_folder,
)

import nbagent as nb

RATIO = 1.35


@contextlib.asynccontextmanager
async def _server(floors: Floors, chunks: int) -> AsyncGenerator[str]:
    """The floors' server, in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(floors.folder / "server.py")
    server = await asyncio.create_subprocess_exec(
        sys.executable, script, str(port), str(chunks), stdout=asyncio.subprocess.PIPE
    )
    try:
        if server.stdout is not None:
            await asyncio.wait_for(server.stdout.readline(), 30)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        await server.wait()


def _agent(url: str) -> nb.Agent:
    model = nb.models.OpenAIChat("fake", base_url=url, api_key="x")
    return nb.Agent(model, tools=[add], max_steps=1_000_000)


async def _ours(who: nb.Agent, folder: str, count: list[int]) -> Spent:
    count[0] += 1
    session = nb.Session.open(f"{folder}/{count[0]}.jsonl")
    clock = Clock()
    with clock:
        got = await who.run("go", session=session, ui="none")
    session.close()
    if got.text != "done":
        msg = f"the run ended with {got!r}"
        raise RuntimeError(msg)
    return clock.spent


async def _floor(adapter: Any, url: str) -> Spent:
    clock = Clock()
    with clock:
        await asyncio.create_task(adapter.stream(url))
    return clock.spent


def _beside(floors: Floors, url: str, folder: str) -> dict[str, Measured | None]:
    out: dict[str, Measured | None] = {"ours": partial(_ours, _agent(url), folder, [0])}
    for variant in ("httpx", "httpx_bytes"):
        out[variant] = partial(_floor, floors.adapter("http_floor", folder, variant), url)
    return out


async def chunk(sizes: Sizes, floors: Floors) -> list[Line]:
    """One streamed chunk: all in one network read (burst), or one about every ms (paced)."""
    if not floors.present:
        return []
    chunks, lines = sizes.size(1000, 20), list[Line]()
    async with _server(floors, chunks) as server:
        for mode, reps in (("burst", 15), ("paced", 5)):
            with Folder(memory_folder()) as folder:
                beside = _beside(floors, f"{server}/{mode}/v1", folder)
                got = await interleaved(sizes.repeats(reps), beside, warm=2)
            lines += [
                compare(
                    f"chunk over HTTP, {mode}",
                    "≤ 1.35 × httpx" if name == "httpx" else "",
                    [each.cpu for each in got["ours"]],
                    [each.cpu for each in got[name]],
                    unit="µs",
                    scale=1e6 / chunks,
                    floor_name=f"{name} + json.loads",
                    most_ratio=RATIO if name == "httpx" else None,
                )
                for name in ("httpx", "httpx_bytes")
            ]
    return lines


async def http_step(sizes: Sizes, floors: Floors) -> list[Line]:
    """One step over HTTP, averaged over a run of 100 and one of 300 steps."""
    if not floors.present:
        return []
    lines: list[Line] = []
    per_step: list[float] = []
    async with _server(floors, 10) as server:
        for steps, reps in ((sizes.size(100, 2), 7), (sizes.size(300, 3), 5)):
            with Folder(memory_folder()) as folder:
                beside = _beside(floors, f"{server}/loop{steps}/v1", folder)
                beside["httpx_bytes"] = None
                got = await interleaved(sizes.repeats(reps), beside)
            line = compare(
                f"step over HTTP, {steps} steps of history",
                "≤ 1.35 × httpx",
                [each.cpu for each in got["ours"]],
                [each.cpu for each in got["httpx"]],
                unit="µs",
                scale=1e6 / steps,
                floor_name="httpx + json.loads",
                most_ratio=RATIO,
            )
            lines.append(line)
            per_step.append(line.ours)
    flat = per_step[1] / per_step[0]
    lines.append(Line("step over HTTP, long by short", "flat: ≤ 1.2", flat, "×", most=1.2))
    return lines

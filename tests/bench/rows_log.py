"""Rows about the log: appending, its size on disk, the events table."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import orjson
from harness import (
    Clock,
    Floors,
    Folder,
    Line,
    Script,
    Sizes,
    agent,
    compare,
    interleaved,
    median,
    memory_folder,
    run,
    size_of,
)

import nbagent as nb
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore

TEXT = "x" * 200


async def append(sizes: Sizes, floors: Floors) -> list[Line]:
    """One event of 250 bytes that the model sees, written to the file at once."""
    count = sizes.size(100_000, 300)
    tenth = count // 10
    first: dict[str, list[float]] = {"ours": [], "floor": []}
    last: dict[str, list[float]] = {"ours": [], "floor": []}

    def take(name: str, seconds: list[float]) -> None:
        first[name].append(median(seconds[:tenth]))
        last[name].append(median(seconds[-tenth:]))

    for repeat in range(sizes.repeats(3)):
        with Folder(memory_folder()) as folder:
            take("ours", _appended(Path(folder) / f"{repeat}.jsonl", count))
            if floors.present:
                _, seconds, _ = await floors.module("persist").jsonl(folder, count, 600)
                take("floor", seconds)
    lines = [
        compare(
            f"append, {which} tenth of {count:,}",
            "≤ 20 µs",
            taken["ours"],
            taken["floor"],
            unit="µs",
            scale=1e6,
            floor_name="JSONL, flushed",
            most=20.0,
        )
        for which, taken in (("first", first), ("last", last))
    ]
    growth = [median(last[name]) / median(first[name]) for name in first if first[name]]
    lines.append(
        Line(
            "append, last by first tenth",
            "flat: ≤ 1.2",
            growth[0],
            "×",
            floor=growth[1] if len(growth) > 1 else None,
            floor_name="JSONL, flushed" if len(growth) > 1 else "",
            most=1.2,
        )
    )
    return lines


def _appended(path: Path, count: int) -> list[float]:
    """Seconds of each append with its write."""
    log = Log(JsonlStore(path))
    log.acquire()
    log.append("turn/start", {"turn": 1, "run": 1})
    log.append("step/start", {"turn": 1, "step": 1})
    clock, seconds = time.perf_counter, list[float]()
    for n in range(count):
        began = clock()
        message = {"role": "user", "text": f"{n} {TEXT}"}
        log.append("user/message", {"id": f"m{n}", "message": message})
        log.flush()
        seconds.append(clock() - began)
    log.release()
    path.unlink()
    return seconds


async def disk(sizes: Sizes, floors: Floors) -> list[Line]:
    """Bytes of the file per step, beside one JSON line per message; own overhead."""
    del floors  # the floor of this row is made from the run's own messages
    steps = sizes.size(200, 4)
    lines: list[Line] = []
    for label, answer, result, bar, most in (
        ("trivial", 0, 0, "own ≤ 1,000 B", None),
        ("1 kB of text", 400, 600, "≤ 2 × lines", 2.0),
        ("2 kB of text", 800, 1200, "≤ 1.5 × lines", 1.5),
    ):
        whole = await _size(steps, answer, result, None)
        lines.append(_ratio(f"log on disk, {label}", bar, whole, most))
        own = whole.ours - answer - result
        limit = Line(f"log on disk, {label}: own", "≤ 1,000 B", own, "B/step", most=1000.0)
        lines.append(limit)
        if answer:
            pieces = await _size(steps, answer, result, 4)
            lines.append(_ratio(f"log on disk, {label}, streamed", bar, pieces, most))
            extra = (pieces.ours - whole.ours) / (answer / 4 - 1)
            lines.append(
                Line(f"log on disk, {label}: per chunk", "≤ 4 B", extra, "B/chunk", most=4.0)
            )
    return lines


class _Bytes:
    """Per step: of our file, and of one JSON line per message."""

    def __init__(self, ours: float, plain: float) -> None:
        self.ours, self.plain = ours, plain


def _ratio(row: str, bar: str, size: _Bytes, most: float | None) -> Line:
    return Line(
        row,
        bar if most else "",
        size.ours,
        "B/step",
        floor=size.plain,
        floor_name="a JSON line per message",
        ratio=size.ours / size.plain,
        most_ratio=most,
    )


async def _size(steps: int, answer: int, result: int, chunk: int | None) -> _Bytes:
    """Bytes per step: the second run's share, so that header and tools don't count."""
    text, found = _prose(answer), _prose(result) if result else "3"

    @nb.tool(risk="readonly")
    async def look(a: int) -> str:
        """Look something up."""
        del a
        return found

    def replies() -> list[Any]:
        return [nb.reply(text, [nb.call("look", a=n)]) for n in range(steps)] + ["done"]

    with Folder(memory_folder()) as folder:
        session = nb.Session.open(f"{folder}/log.jsonl")
        path, sizes, plain = Path(session.location or ""), [0], 0
        model = nb.models.Scripted([*replies(), *replies()], chunk=chunk)
        who = nb.Agent(model, tools=[look], max_steps=steps + 1)
        for _ in range(2):
            got = await who.run("go", session=session, ui="none")
            sizes.append(size_of(path))
            plain = sum(len(json.dumps(m.to_dict())) + 1 for m in got.messages)
        session.close()
    return _Bytes((sizes[2] - sizes[1]) / steps, plain / steps)


def _prose(length: int) -> str:
    words = "the quick brown fox jumps over the lazy dog and runs away. "
    return (words * (length // len(words) + 1))[:length]


async def events_table(sizes: Sizes, floors: Floors) -> list[Line]:
    """All events as a table, beside orjson lines → pandas."""
    del floors  # the floor of this row is pandas itself
    import pandas as pd

    count = sizes.size(100_000, 200)
    session = nb.Session()
    await run(agent(), Script(count // 8), session)
    lines = [event.line for event in session.events]
    rows = len(lines)

    async def ours() -> Any:
        clock = Clock()
        with clock:
            frame = session.to_pandas("events")
        _expect(len(frame), rows)
        return clock.spent

    async def floor() -> Any:
        clock = Clock()
        with clock:
            frame = pd.DataFrame.from_records([orjson.loads(line) for line in lines])
        _expect(len(frame), rows)
        return clock.spent

    got = await interleaved(sizes.repeats(7), {"ours": ours, "floor": floor})
    return [
        compare(
            f"events table, {rows:,} rows",
            "≤ 1.2 × orjson lines → pandas",
            [each.cpu for each in got["ours"]],
            [each.cpu for each in got["floor"]],
            unit="µs/row",
            scale=1e6 / rows,
            floor_name="orjson → pandas",
            most_ratio=1.2,
        )
    ]


def _expect(found: int, wanted: int) -> None:
    if found != wanted:
        msg = f"{found} rows of {wanted}"
        raise RuntimeError(msg)

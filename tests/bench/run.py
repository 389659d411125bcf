"""What nbagent costs, beside hand-written floors of the same run.

    python tests/bench/run.py                    all rows
    python tests/bench/run.py step append        some
    python tests/bench/run.py step --reps 5 --json

CPU time unless the row says wall; medians; ours and the floors by turns in one process. On a busy
machine only the ratios can be trusted. The floors lie in the folder `shared/bench` beside the
checkout; without it ours is printed alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout, installed or not

import rows_http
import rows_import
import rows_log
import rows_loop
from harness import FLOORS, Floors, Line, Sizes

ROWS: dict[str, Callable[[Sizes, Floors], Awaitable[list[Line]]]] = {
    "step": rows_loop.step,
    "tools": rows_loop.tools,
    "import": rows_import.imports,
    "append": rows_log.append,
    "disk": rows_log.disk,
    "table": rows_log.events_table,
    "runs": rows_loop.runs,
    "chunk": rows_http.chunk,
    "http": rows_http.http_step,
}
HEAD = ("row", "bar", "ours", "floor", "ratio", "verdict")


def main() -> None:
    """Run the rows that were asked for, and print them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], metavar="row", help=", ".join(ROWS))
    parser.add_argument("--reps", type=int, help="repeats of each row")
    parser.add_argument("--tiny", action="store_true", help="least sizes: the numbers mean nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, not a table")
    given = parser.parse_args()
    floors = Floors()
    if not floors.present:
        sys.stderr.write(f"no floors in {FLOORS}: ours alone, and no rows over HTTP\n")
    if not given.json:
        sys.stdout.write(f"{_machine()}\n")
    sizes, table = Sizes(given.reps, given.tiny), list[tuple[str, ...]]()
    for name in given.rows or ROWS:
        lines = asyncio.run(_row(name, sizes, floors))
        for line in lines:
            if given.json:
                row = {"name": name, **asdict(line), "verdict": line.verdict, "load": _load()}
                sys.stdout.write(f"{json.dumps(row, ensure_ascii=False)}\n")
            table.append(_cells(line))
        sys.stdout.flush()
        if not lines:
            sys.stderr.write(f"{name}: needs the floors' server, left out\n")
    if not given.json:
        sys.stdout.write(f"{_text([HEAD, *table])}\n{_machine()}\n")


async def _row(name: str, sizes: Sizes, floors: Floors) -> list[Line]:
    return await ROWS[name](sizes, floors)


def _load() -> float:
    return round(os.getloadavg()[0], 2)


def _machine() -> str:
    cores = os.cpu_count()
    return f"Python {platform.python_version()}, {cores} cores, load {_load():g}"


def _cells(line: Line) -> tuple[str, ...]:
    floor = "" if line.floor is None else f"{_number(line.floor)} ({line.floor_name})"
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return (
        line.row,
        line.bar,
        f"{_number(line.ours)} {line.unit}",
        floor,
        ratio,
        line.verdict,
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _text(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return "\n".join(
        " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


if __name__ == "__main__":
    main()

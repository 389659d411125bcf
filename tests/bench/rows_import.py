"""The row about importing: fresh processes, CPU and memory of the whole process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness import Floors, Line, Sizes, median

STATEMENTS = {
    "bare python": "pass",
    "asyncio": "import asyncio",
    "httpx": "import httpx",
    "import nbagent": "import nbagent",
    "from nbagent import Agent": "from nbagent import Agent",
}

SCRIPT = """
{statement}
import time
cpu = time.process_time()
with open("/proc/self/status") as status:
    peak = [line for line in status if line.startswith("VmHWM")]
print(cpu, peak[0].split()[1] if peak else 0)
"""


async def imports(sizes: Sizes, floors: Floors) -> list[Line]:
    """`import nbagent` in a fresh process, the interpreter's own start included."""
    del floors
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in STATEMENTS}
    for repeat in range(sizes.repeats(15) + 1):
        for name, statement in STATEMENTS.items():
            spent = _fresh(statement)
            if repeat:  # the first writes the byte code
                taken[name].append(spent)
    lines: list[Line] = []
    for column, unit, scale in ((0, "ms", 1e3), (1, "MB", 1024 / 1e6)):
        middle = {
            name: median([each[column] for each in rows]) * scale for name, rows in taken.items()
        }
        for name in ("import nbagent", "from nbagent import Agent"):
            for floor in ("bare python", "asyncio", "httpx"):
                barred = floor == "httpx"
                lines.append(
                    Line(
                        name,
                        ("≤ 100 ms" if unit == "ms" else "≤ 30 MB") if barred else "",
                        middle[name],
                        unit,
                        floor=middle[floor],
                        floor_name=floor,
                        ratio=middle[name] / middle[floor],
                        most=(100.0 if unit == "ms" else 30.0) if barred else None,
                        most_ratio=100 / 58 if barred and unit == "ms" else None,
                    )
                )
    return lines


def _fresh(statement: str) -> tuple[float, float]:
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
    )
    cpu, peak = done.stdout.split()
    return float(cpu), float(peak)

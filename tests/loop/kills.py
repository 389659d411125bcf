"""Kills runs at random moments and says which finished results their logs lack.

`python kills.py FOLDER KILLS SEED`. A body counts as finished one turn of the event loop after it
has returned: it says so into a pipe then, and from there on its result must be in the file. Each run
is a fork of this process, which has loaded everything, so that a kill costs little.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sys
import time
from pathlib import Path

import orjson

import nbagent as nb

DELAYS_MS = (20, 20, 45, 70, 150)
LONGEST_S = 0.17


def agent_of(said: int) -> nb.Agent:
    @nb.tool(risk="readonly")
    async def look(n: int, delay_ms: int) -> str:
        """Look."""
        await asyncio.sleep(delay_ms / 1000)
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, os.write, said, b"%d\n" % n)
        return f"seen {n}"

    async def slowly(call: nb.ToolCall, result: nb.ToolResult, ctx: object) -> nb.ToolResult:
        await asyncio.sleep(0.03)
        return result

    class Slow:
        after = staticmethod(slowly)

    calls = [nb.call("look", n=n, delay_ms=ms) for n, ms in enumerate(DELAYS_MS)]
    gates = [Slow(), *nb.DEFAULT_GATES] if random.random() < 0.5 else nb.DEFAULT_GATES
    return nb.Agent(nb.models.Scripted([calls, "done"]), tools=[look], gates=gates)


def life(path: Path, said: int) -> None:
    asyncio.run(agent_of(said).run("go", session=path))
    time.sleep(LONGEST_S)


def found(path: Path) -> set[int]:
    """Numbers of the calls whose result is in the file."""
    if not path.exists():
        return set()
    records = [orjson.loads(line) for line in path.read_bytes().split(b"\n")[1:-1]]
    texts = [str(r["data"].get("raw")) for r in records if r["type"].startswith("tool/")]
    return {n for n in range(len(DELAYS_MS)) if f"seen {n}" in texts}


def trial(path: Path, seconds: float) -> tuple[set[int], set[int]]:
    """(finished, found) of a run that was killed after so many seconds."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        life(path, said)
        os._exit(0)
    os.close(said)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(heard, "rb") as pipe:
        finished = {int(line) for line in pipe.read().split()}
    return finished, found(path)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(folder: Path, kills: int, seed: int) -> int:
    random.seed(seed)
    agent_of(2)
    gc.freeze()
    lost = at_stake = 0
    for n in range(kills):
        path = folder / f"{n}.jsonl"
        finished, kept = trial(path, random.uniform(0.0, LONGEST_S))
        at_stake += 0 < len(finished) < len(DELAYS_MS)
        if finished - kept:
            lost += 1
            say(f"{path.name}: finished {sorted(finished)}, in the log {sorted(kept)}")
        if path.exists() and not nb.Session.open(path).verify().ok:
            lost += 1
            say(f"{path.name}: {nb.Session.open(path).verify()}")
    say(f"{kills} kills, {at_stake} of them between the first end and the last, {lost} lost")
    return 1 if lost or at_stake < kills // 4 else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))

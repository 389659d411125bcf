"""`nbagent quickstart --execute` on the real first notebook: what the model did, never its wording."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from executed import Executed

ROOT = Path(__file__).parents[2]
CALLS = ["lookup_wingspan", "save_note"]


@pytest.mark.local_model
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_model_looks_up_saves_and_answers(tmp_path: Path):
    faults: list[str] = []
    for attempt in range(2):  # a second try, with other random values
        faults = [*_faults(*_quickstart(tmp_path / f"{attempt}.ipynb"))]
        if not faults:
            return
    pytest.fail("\n".join(faults))


def _quickstart(path: Path) -> tuple[Executed, str]:
    done = subprocess.run(
        [sys.executable, "-m", "nbagent", "quickstart", "--execute", "--output", str(path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=190,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Executed.read(path), done.stdout


def _faults(cells: Executed, printed: str) -> Iterator[str]:
    notes, wingspan = ast.literal_eval(cells.text("notes"))
    number = re.compile(rf"\b{wingspan}\b")
    answer, tools = cells.text("answer"), cells.text("tools")

    if "stop_reason='end_turn'" not in cells.text("run"):
        yield f"the run did not end by itself: {cells.text('run')}"
    # Arguments that don't fit the line end with an ellipsis.
    calls = re.findall(r"^\d+ +(\w+) .*[}…] +(\w+)", tools, re.MULTILINE)
    if calls != [(name, "ok") for name in CALLS] or '{"species":"owl"}' not in tools:
        yield f"other calls: {tools}"
    if len(notes) != 1 or not number.search(notes[0]):
        yield f"the note lacks {wingspan}: {notes}"
    if not number.search(answer):
        yield f"the answer lacks {wingspan}: {answer}"
    if answer not in printed or tools not in printed:
        yield f"the command did not print answer and table: {printed}"

    said, _, called = cells.text("free").rpartition("\n")
    if called != "called: lookup_wingspan" or not number.search(said):
        yield f"free to end, it did otherwise: {cells.text('free')}"
    refused = cells.text("denied").splitlines()[-2:]
    if refused != ["lookup_wingspan: ok", "save_note: denied"]:
        yield f"a refusal went otherwise: {refused}"
    right = re.search(r"^(\d+) of 10 were right$", cells.text("ten"), re.MULTILINE)
    if right is None or int(right[1]) < 8:
        yield f"too few of the ten were right: {cells.text('ten')}"

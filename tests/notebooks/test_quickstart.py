"""`nbagent quickstart --execute` on the real first notebook: what the model did, never its wording."""

from __future__ import annotations

import ast
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from executed import Executed
from pydantic import Field

import nbagent as nb

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
    # What does not fit the line goes on in the next one, in which nothing stands before it.
    calls = re.findall(r"^\d+ +(\w+) .* (ok|denied|error) ", tools, re.MULTILINE)
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
    counted = re.findall(r"(True|False) +(\d+) +\d+ +(\d+)$", cells.text("ten"), re.MULTILINE)
    if [wanted for wanted, *_ in counted] != ["False", "True"] * 2:
        yield f"not two instructions: {cells.text('ten')}"
        return
    (_, saved_always, _), (_, asked_always, _), *_ = counted
    if int(saved_always) < 3 or int(asked_always) < 4:
        yield f"told to save always, it did not: {cells.text('ten')}"
    if sum(int(saved) for _, saved, _ in counted[2:]) > 4:
        yield f"told to save only if asked, it nearly always saved: {cells.text('ten')}"
    if sum(int(number) for *_, number in counted) < 16:
        yield f"too few of the twenty answers hold the number: {cells.text('ten')}"


PHRASINGS = [
    ("owl", "Look up the wingspan of the owl and save it as a note."),
    ("eagle", "Find the wingspan of the eagle and write it in the lab notebook."),
    ("heron", "Look up the wingspan of the heron. Save a note with the result."),
    ("sparrow", "What is the wingspan of the sparrow? Save the answer as a note."),
    ("owl", "Please note down the wingspan of the owl."),
    ("eagle", "Save a note with the wingspan of the eagle."),
    ("heron", "I need the wingspan of the heron in my lab notebook."),
    ("sparrow", "How wide are the wings of the sparrow? Put it in a note."),
    ("eagle", "Record the wingspan of the eagle."),
    ("owl", "Get the owl's wingspan and store it as a note."),
]


@pytest.mark.local_model
@pytest.mark.slow
async def test_with_must_call_at_least_eight_of_ten_phrasings_are_right():
    wingspans: dict[str, int] = {}
    notes: list[str] = []

    @nb.tool(risk="readonly")
    def lookup_wingspan(species: Literal["sparrow", "owl", "heron", "eagle"]) -> str:
        """Look up the wingspan of a bird in the field table."""
        return f"The wingspan of the {species} is {wingspans[species]} cm."

    @nb.tool(risk="mutating")
    def save_note(text: Annotated[str, Field(max_length=80)]) -> str:
        """Save a note in the lab notebook."""
        notes.append(text)
        return "saved"

    agent = nb.Agent(
        "local",
        tools=[lookup_wingspan, save_note],
        approval=nb.Approval(when_unattended="allow"),
        settings=nb.Settings(must_call=("save_note",)),
    )
    right = 0
    for bird, request in PHRASINGS:
        wingspans[bird] = random.randint(11, 399)
        result = await agent.run(request, ui="none")
        calls, number = result.tool_calls, f" {wingspans[bird]} "
        right += (
            calls["name"].to_list() == CALLS
            and json.loads(calls["args_json"][0]) == {"species": bird}
            and number in notes[-1]
            and number in result.text
        )
    assert right >= 8

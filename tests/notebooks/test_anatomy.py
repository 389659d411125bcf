"""The second notebook shows what it says it shows."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from executed import NOTEBOOKS, Executed

from nbagent import __main__ as cli

FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """What the cells show, those of the exercises' solutions as well."""
    path = NOTEBOOKS / "02_anatomy_of_a_loop.ipynb"
    form: Any = importlib.import_module("nbformat")  # its types are partial
    notebook = form.read(path, as_version=4)
    exercises = notebook.cells[-1].source
    assert exercises.startswith("## For the class")
    for number, solution in enumerate(FENCE.findall(exercises), 1):
        cell = form.v4.new_code_cell(solution)
        cell.metadata["tags"] = [f"solution-{number}"]
        notebook.cells.append(cell)
    assert cli._run_cells(notebook, tmp_path_factory.mktemp("anatomy")) is None
    return Executed(notebook)


def test_the_run_ends_by_itself(cells: Executed):
    assert "stop_reason='end_turn'" in cells.text("run")


def test_the_table_of_events_is_indented_and_has_three_steps_and_five_requests(cells: Executed):
    rows = re.findall(
        r"^\d+ +(\d|<NA>) +((?:· +)*)([a-z/]+)( ■)?", cells.text("events"), re.MULTILINE
    )
    types = [kind for _, _, kind, _ in rows]
    assert types[0] == "agent/inbox/spliced"
    assert types[-1] == "turn/end"
    assert types.count("step/start") == types.count("step/end") == 3
    assert types.count("request/sent") == types.count("attempt/end") == 5
    assert types.count("attempt/discarded") == 2
    assert types.count("review/verdict") == 1
    depth = {kind: dots.count("·") for _, dots, kind, _ in rows}
    levels = ("turn/start", "turn/end", "step/start", "step/end", "request/sent", "tool/call")
    assert [depth[kind] for kind in levels] == [0, 0, 1, 1, 2, 2]
    assert depth["assistant/chunk"] == 3
    assert {step for step, _, kind, _ in rows if kind == "request/sent"} == {"1", "2", "3"}
    history = {kind for _, _, kind, square in rows if square}
    assert history == {"user/message", "assistant/message", "tool/result"}


def test_the_refused_call_is_seen_in_the_table_and_in_the_request(cells: Executed):
    assert re.search(r"publish +denied +unattended", cells.text("tools"))
    assert "`publish` was not run" in cells.text("refused")


def test_the_third_step_took_three_attempts(cells: Executed):
    rows = re.findall(r"^\d +(\d) +(\d) ", cells.text("attempts"), re.MULTILINE)
    assert rows[:5] == [("1", "1"), ("2", "1"), ("3", "1"), ("3", "2"), ("3", "3")]
    assert "OverloadedError" in cells.text("attempts")
    assert re.search(r"no_false_claims +retry +false-claim", cells.text("verdicts"))


def test_draft_verdict_and_budget_stand_in_the_tail(cells: Executed):
    text = cells.text("reminders")
    assert "Reminders, in this request only: 3" in text
    assert "[false-claim]" in text
    assert "[budget]" in text


def test_the_log_holds_and_is_read_elsewhere(cells: Executed):
    assert "ok=True" in cells.text("verify")
    assert "verified" in cells.text("show")
    assert "112 birds at the lake" in cells.text("reopened")
    assert "damaged at event" in cells.text("forged")


def test_words_of_a_person_come_after_the_result(cells: Executed):
    roles = [role for role, _ in ast.literal_eval(cells.text("steered"))]
    assert roles == ["user", "assistant", "tool", "user", "assistant", "tool", "assistant"]


def test_the_gate_denies_one_call_and_rewrites_the_other(cells: Executed):
    text = cells.text("gate")
    assert re.search(r'"border"} +\{"place":"border"} +denied +places', text)
    assert re.search(r'"LAKE"} +\{"place":"lake"} +ok', text)


def test_a_budget_ending_says_which_limit(cells: Executed):
    assert "stop_reason='budget'" in cells.text("budget")
    assert "2 of the 2 model calls" in cells.text("budget")


def test_an_interrupted_call_has_a_result(cells: Executed):
    assert "stop_reason='interrupted'" in cells.text("interrupted")
    roles = [role for role, _ in ast.literal_eval(cells.text("stopped"))]
    assert roles == ["user", "assistant", "tool"]


def test_a_person_approves_and_edits_by_hand(cells: Executed):
    assert "112 birds at the lake" in cells.text("question")
    assert re.search(r"publish +allow +person +checked with", cells.text("approved"))
    assert "About 110 birds" in cells.text("edited")
    assert "The person changed the arguments" in cells.text("told")


def test_the_solutions_run_and_show_what_the_text_says(cells: Executed):
    assert re.search(r"publish +ok +mode", cells.text("solution-1"))
    said, statuses = cells.text("solution-2").splitlines()[-2:]
    assert said == "I have published it: 112 birds."
    assert statuses == "['ok', 'denied']"
    assert "stop_reason='budget'" in cells.text("solution-3")
    assert re.search(r"river.* +denied +person", cells.text("solution-4"))


def test_each_exercise_has_a_folded_solution():
    path = NOTEBOOKS / "02_anatomy_of_a_loop.ipynb"
    exercises = "".join(json.loads(path.read_text("utf-8"))["cells"][-1]["source"])
    number = len(re.findall(r"^\*\*\d\.\*\*", exercises, re.MULTILINE))
    assert number >= 4
    for mark in ("<details>", "</details>", "<summary>Solution</summary>"):
        assert exercises.count(mark) == number
    assert len(FENCE.findall(exercises)) == number


def test_nothing_is_left_beside_the_notebooks(cells: Executed):
    assert {path.suffix for path in Path(NOTEBOOKS).iterdir() if path.is_file()} == {".ipynb"}

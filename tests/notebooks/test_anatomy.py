"""The second notebook shows what it says it shows."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from executed import NOTEBOOKS, Executed

from nbagent import __main__ as cli


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    path = NOTEBOOKS / "02_anatomy_of_a_loop.ipynb"
    form: Any = importlib.import_module("nbformat")  # its types are partial
    notebook = form.read(path, as_version=4)
    assert cli._run_cells(notebook, tmp_path_factory.mktemp("anatomy")) is None
    return Executed(notebook)


def test_the_run_ends_by_itself(cells: Executed):
    assert "stop_reason='end_turn'" in cells.text("run")


def test_the_list_of_events_has_three_steps_and_five_requests(cells: Executed):
    types = cells.text("events").splitlines()
    assert types[0] == "agent/inbox/spliced"
    assert types[-1] == "turn/end"
    assert types.count("step/start") == types.count("step/end") == 3
    assert types.count("request/sent") == types.count("attempt/end") == 5
    assert types.count("attempt/discarded") == 2
    assert types.count("review/verdict") == 1


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


def test_nothing_is_left_beside_the_notebooks(cells: Executed):
    assert {path.suffix for path in Path(NOTEBOOKS).iterdir() if path.is_file()} == {".ipynb"}

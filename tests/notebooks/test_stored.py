"""Notebooks are stored as they are written: without outputs, small, for any machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS[0].name == "01_quickstart.ipynb"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_clean(path: Path):
    text = path.read_text("utf-8")
    notebook: dict[str, Any] = json.loads(text)
    assert len(text) < 60_000
    assert text.endswith("}\n")
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_ids_are_unique_and_each_code_cell_stands_under_a_heading(path: Path):
    cells: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert cells[0]["cell_type"] == "markdown"
    assert "".join(cells[0]["source"]).startswith("# ")

"""The bench works: each row prints numbers. What they are is for a quiet machine to say."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"
NEED_FLOORS = ("chunk", "http")
ROWS = ("step", "tools", "import", "append", "disk", "table", "runs", *NEED_FLOORS)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the bench at its least sizes."""
    command = [sys.executable, str(RUN), "--tiny", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
def test_a_row_prints_numbers(row: str):
    if row in NEED_FLOORS and not (RUN.parents[3] / "shared" / "bench").is_dir():
        pytest.skip("needs the floors' server")
    done = bench(row, "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines
    for line in lines:
        assert line["name"] == row
        assert math.isfinite(line["ours"])
        assert line["floor"] is None or math.isfinite(line["floor"])


@pytest.mark.slow
def test_the_table_has_a_line_for_each_number():
    done = bench("append", "disk")
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if " | " in line]
    assert table[0].split(" | ")[0].strip() == "row"
    assert len({line.count(" | ") for line in table[:2]}) == 1
    assert any("log on disk" in line for line in table)

"""`import nbagent` stays cheap: what is heavy loads when it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["IPython", "httpx", "ipywidgets", "jsonschema", "matplotlib", "pandas", "pydantic"]

SCRIPT = """
import sys
import nbagent
{statement}
print(*sorted({heavy} & sys.modules.keys()))
"""


@pytest.mark.parametrize("statement", ["", "nbagent.Agent"])
def test_nothing_heavy_is_loaded_by(statement: str):
    script = SCRIPT.format(statement=statement, heavy=set(HEAVY))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []

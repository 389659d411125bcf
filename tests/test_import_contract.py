"""Imports point down: the layers of pyproject.toml hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]


def test_the_contracts_of_pyproject_are_kept():
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_module_reaches_the_others_through_the_package_itself():
    graph = grimp.build_graph("nbagent", cache_dir=None)
    importers = graph.find_modules_that_directly_import("nbagent")
    assert importers <= {"nbagent.__main__"}

"""The README's two commands are the ones that CI can find and run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def readme_command(*words: str) -> str:
    script = ROOT / ".ci" / "readme_command.py"
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("words", ["quickstart --execute", "-m pytest"])
def test_one_command_installs_fetches_and_runs(words: str):
    command = readme_command(words)
    assert "\n" not in command
    steps = command.split(" && ")
    assert steps[0] == "python3 -m venv .venv"
    assert steps[1].startswith(".venv/bin/pip install")
    assert steps[2] == ".venv/bin/python -m nbagent fetch"
    assert words in steps[3]


def test_the_commands_name_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    assert '".[local,lab]"' in readme_command("quickstart --execute")
    assert '".[test]"' in readme_command("-m pytest")
    assert {"lab", "local", "test"} <= extras.keys()


def test_there_is_no_third_command():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("python3 -m venv") == 2

"""The folder `binder` builds what pyproject.toml asks for."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
POST_BUILD = ROOT / "binder" / "postBuild"


@pytest.fixture
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture
def environment() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "binder" / "environment.yml").read_text("utf-8"))


def test_the_environment_comes_from_conda_forge_alone(environment: dict[str, Any]):
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    assert "pip" in environment["dependencies"]


def test_its_python_is_one_that_the_package_supports(
    project: dict[str, Any], environment: dict[str, Any]
):
    (python,) = [line for line in environment["dependencies"] if line.startswith("python=")]
    assert SpecifierSet(project["requires-python"]).contains(python.removeprefix("python="))


def test_its_bounds_are_those_of_the_package(project: dict[str, Any], environment: dict[str, Any]):
    extras = project["optional-dependencies"]
    wanted = {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in map(Requirement, [*project["dependencies"], *extras["lab"]])
    }
    given = {
        canonicalize_name(requirement.name): requirement.specifier
        for requirement in map(Requirement, environment["dependencies"][2:])
    }
    assert given == {name: wanted[name] for name in given}


def test_post_build_can_be_executed_and_stops_at_the_first_error():
    lines = POST_BUILD.read_text("utf-8").splitlines()
    assert os.access(POST_BUILD, os.X_OK)
    assert lines[0] == "#!/bin/bash"
    assert "set -euo pipefail" in lines
    subprocess.run(["bash", "-n", str(POST_BUILD)], check=True, timeout=10)


def test_post_build_installs_the_package_and_the_weights_without_a_key():
    text = POST_BUILD.read_text("utf-8")
    assert '-e ".[local]"' in text
    assert "python -m nbagent fetch" in text
    assert not re.search(r"_(KEY|TOKEN|SECRET)\b", text)

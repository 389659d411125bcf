"""The public names: complete, loaded on first use, documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest

import nbagent as nb


def test_the_list_of_names_is_complete_and_loads():
    assert sorted(nb.__all__) == sorted(nb._WHERE)
    for name in nb.__all__:
        assert getattr(nb, name) is not None


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Agnet"):
        getattr(nb, "Agnet")  # noqa: B009


def test_every_public_name_has_a_docstring_that_begins_with_one_line():
    for name in nb.__all__:
        thing = getattr(nb, name)
        if not (inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing)):
            continue
        doc = inspect.getdoc(thing)
        assert doc, name
        assert len(doc.splitlines()[0]) <= 110, name


def test_public_methods_have_docstrings():
    for name in ("Agent", "Run", "Result", "Session", "Tool", "Message", "Usage"):
        owner: Any = getattr(nb, name)
        for member in [member for member in dir(owner) if member[0] != "_"]:
            value = inspect.getattr_static(owner, member)
            if callable(value) or isinstance(value, property):
                assert inspect.getdoc(value), f"{name}.{member}"


def test_importing_prints_nothing_and_touches_no_network_or_folder():
    code = "import nbagent as nb; [getattr(nb, n) for n in nb.__all__]"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, check=True
    )
    assert (done.stdout, done.stderr) == (b"", b"")

"""Numbers of a class of their own, in hints, defaults and results, cost no more than plain ones."""

from __future__ import annotations

import enum
import time
from typing import Any

import pytest

import nbagent as nb


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Flags(enum.IntFlag):
    A = 1
    B = 2


class N(int):
    """An int of its own class."""


class Odd(int):
    """An int whose comparisons are slow and wrong."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


NESTED: dict[str, list[int]] = {"a": [N(3), Level.LOW]}


def with_enum(x: Level) -> str:
    """A."""
    return repr(x)


def with_default(x: Level = Level.HIGH) -> str:
    """A."""
    return repr(x)


def with_flag(x: Flags = Flags.A) -> str:
    """A."""
    return repr(x)


def with_subclass(x: int = N(3)) -> str:
    """A."""
    return repr(x)


def with_odd(x: int = Odd(3)) -> str:
    """A."""
    return repr(x)


def with_nested(x: dict[str, list[int]] = NESTED) -> str:
    """A."""
    return repr(x)


FUNCTIONS = [with_enum, with_default, with_flag, with_subclass, with_odd, with_nested]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_an_agent_is_made_and_runs_at_once_with_any_kind_of_whole_number(function: Any):
    began = time.monotonic()
    arguments = {"x": 1} if function is with_enum else {}
    model = nb.models.Scripted([nb.call(function.__name__, **arguments), "done"])
    agent = nb.Agent(model, tools=[nb.tool(function, risk="readonly")])
    result = agent.run_sync("go")
    assert list(result.tool_calls["status"]) == ["ok"]
    assert result.session.verify().ok
    assert time.monotonic() - began < 5

"""What a list of gates may hold: checked when the agent is made, before any call depends on it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from nbagent.errors import ConfigError
from nbagent.gates.permission import Permission
from nbagent.interfaces.checks import check_list
from nbagent.interfaces.gate import blame, gate_name
from nbagent.interfaces.tool import Tool

__all__ = ["check_gates", "pick"]

STAGES = {
    "before": ("call", "ctx"),
    "around": ("call", "ctx", "next"),
    "after": ("call", "result", "ctx"),
}
"""What each stage of a gate is called with; a function stands for `before`."""


def check_gates(gates: Sequence[Any]) -> tuple[Any, ...]:
    """Gates as they were given.

    Raises
    ------
    ConfigError
        If one is no gate, or takes something else than it is called with.
    """
    check_list("gates", gates, "gates=[my_gate, *nb.DEFAULT_GATES]")
    for gate in gates:
        if isinstance(gate, type):
            msg = f"gates holds the class {gate.__name__}: write {gate.__name__}()"
            raise ConfigError(msg)
        if isinstance(gate, Permission) and (type(gate) is not Permission or not gate.default):
            msg = "Permission takes its settings from the agent: write Agent(…, approval=…)"
            raise ConfigError(msg)
        _check_stages(gate)
        if getattr(gate, "for_tool", None) is not None:
            _check_takes(gate.for_tool, f"{gate_name(gate)}.for_tool", ("tool",))
    return tuple(gates)


def pick(gate: Any, tool: Tool) -> Any:
    """What of a gate acts on a tool: the gate itself, what its `for_tool` gives, or None.

    Raises
    ------
    ConfigError
        If that is no gate.
    Exception
        Whatever `for_tool` raised, with a note that names the gate.
    """
    for_tool = getattr(gate, "for_tool", None)
    if for_tool is None:
        return gate
    try:
        acting = for_tool(tool)
    except Exception as error:
        blame(error, gate, f"the tool `{tool.name}`")
        raise
    if acting is not None and type(acting) is not type(gate):
        _check_stages(acting)
    return acting


def _check_stages(gate: Any) -> None:
    stages = [stage for stage in STAGES if getattr(gate, stage, None) is not None]
    for stage in stages:
        _check_takes(getattr(gate, stage), f"{gate_name(gate)}.{stage}", STAGES[stage])
    if stages:
        return
    if not callable(gate):
        msg = (
            f"gates holds {gate!r}: a gate is a function (call, ctx) or an object with before, "
            "around or after"
        )
        raise ConfigError(msg)
    _check_takes(gate, gate_name(gate), STAGES["before"])


def _check_takes(function: Any, name: str, takes: tuple[str, ...]) -> None:
    if not callable(function):
        msg = f"gate `{name}` must be a function ({', '.join(takes)}), not {function!r}"
        raise ConfigError(msg)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # some that are built in don't tell
        return
    try:
        signature.bind(*takes)
    except TypeError as error:
        given = signature.replace(return_annotation=inspect.Signature.empty)
        msg = f"gate `{name}` must take ({', '.join(takes)}), not {given}: {error}"
        raise ConfigError(msg) from None

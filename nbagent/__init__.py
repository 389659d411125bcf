"""nbagent: run an LLM agent in a notebook cell, watch it, steer it, and read what happened as tables."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent import errors, gates, models
    from nbagent.agent import Agent
    from nbagent.assembly import DEFAULT_GATES, DEFAULT_REVIEWERS, Settings
    from nbagent.bridge import allow_nested_asyncio
    from nbagent.events import Event
    from nbagent.frames import describe
    from nbagent.gates.permission import Approval
    from nbagent.gates.rules import Rule, rule
    from nbagent.interfaces.approver import Answer, Approver, ByHand, Question, edit
    from nbagent.interfaces.gate import (
        Decision,
        GateContext,
        ToolCall,
        ToolResult,
        allow,
        ask,
        deny,
        rewrite,
    )
    from nbagent.interfaces.model import Model, Request
    from nbagent.interfaces.plan import Budget, Recovery
    from nbagent.interfaces.review import Attempt, Verdict
    from nbagent.interfaces.tool import Diff, Tool, ToolContext
    from nbagent.messages import Call, Message, Text, Thinking, Usage
    from nbagent.models.scripted import call, reply
    from nbagent.result import Result
    from nbagent.run import Run, shutdown
    from nbagent.session import Session
    from nbagent.tools import tool

__version__ = "0.1.0"

_WHERE = {
    "Agent": "agent",
    "Answer": "interfaces.approver",
    "Approval": "gates.permission",
    "Approver": "interfaces.approver",
    "Attempt": "interfaces.review",
    "Budget": "interfaces.plan",
    "ByHand": "interfaces.approver",
    "Call": "messages",
    "DEFAULT_GATES": "assembly",
    "DEFAULT_REVIEWERS": "assembly",
    "Decision": "interfaces.gate",
    "Diff": "interfaces.tool",
    "Event": "events",
    "GateContext": "interfaces.gate",
    "Message": "messages",
    "Model": "interfaces.model",
    "Question": "interfaces.approver",
    "Recovery": "interfaces.plan",
    "Request": "interfaces.model",
    "Result": "result",
    "Rule": "gates.rules",
    "Run": "run",
    "Session": "session",
    "Settings": "assembly",
    "Text": "messages",
    "Thinking": "messages",
    "Tool": "interfaces.tool",
    "ToolCall": "interfaces.gate",
    "ToolContext": "interfaces.tool",
    "ToolResult": "interfaces.gate",
    "Usage": "messages",
    "Verdict": "interfaces.review",
    "allow": "interfaces.gate",
    "allow_nested_asyncio": "bridge",
    "ask": "interfaces.gate",
    "call": "models.scripted",
    "deny": "interfaces.gate",
    "describe": "frames",
    "edit": "interfaces.approver",
    "errors": "",
    "gates": "",
    "models": "",
    "reply": "models.scripted",
    "rewrite": "interfaces.gate",
    "rule": "gates.rules",
    "shutdown": "run",
    "tool": "tools",
}

__all__ = [
    "DEFAULT_GATES",
    "DEFAULT_REVIEWERS",
    "Agent",
    "Answer",
    "Approval",
    "Approver",
    "Attempt",
    "Budget",
    "ByHand",
    "Call",
    "Decision",
    "Diff",
    "Event",
    "GateContext",
    "Message",
    "Model",
    "Question",
    "Recovery",
    "Request",
    "Result",
    "Rule",
    "Run",
    "Session",
    "Settings",
    "Text",
    "Thinking",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "Usage",
    "Verdict",
    "allow",
    "allow_nested_asyncio",
    "ask",
    "call",
    "deny",
    "describe",
    "edit",
    "errors",
    "gates",
    "models",
    "reply",
    "rewrite",
    "rule",
    "shutdown",
    "tool",
]


def __getattr__(name: str) -> Any:
    where = _WHERE.get(name)
    if where is None:
        msg = f"module 'nbagent' has no attribute {name!r}"
        raise AttributeError(msg)
    if where:
        value = getattr(importlib.import_module(f"nbagent.{where}"), name)
    else:
        value = importlib.import_module(f"nbagent.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

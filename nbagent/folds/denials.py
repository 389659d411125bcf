"""What was refused in this turn, and what people said to remember for the session."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["STEPS", "DenialsState", "key_of", "start"]


class DenialsState:
    """Refused calls of the turn, and remembered answers by fingerprint of the tool."""

    __slots__ = ("refused", "remembered")

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.remembered: dict[str, tuple[bool, int]] = {}
        """Fingerprint of the tool → (allowed, seq of the answer)."""


def start() -> DenialsState:
    """Nothing was refused."""
    return DenialsState()


def key_of(name: str, arguments: str) -> bytes:
    """What makes two calls the same: the tool and its arguments, however they are spelled."""
    try:
        canonical = orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS)
    except (orjson.JSONDecodeError, TypeError):
        canonical = arguments.encode("utf-8", "replace")
    return hashlib.blake2b(name.encode() + b"\0" + canonical, digest_size=16).digest()


def _turn_start(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    if folds.denials.refused:
        folds.denials.refused = set()


def _decision(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    if data["decision"] == "deny":
        position: int = data["position"]
        call = folds.calls.calls[position]
        changed = data.get("arguments")
        arguments = call.arguments if changed is None else orjson.dumps(changed).decode()
        folds.denials.refused.add(key_of(call.name, arguments))


def _answered(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    decision = data["decision"]
    if data.get("scope") == "session":
        position = int(data["id"].split(".")[2])
        question = folds.approvals.answers[position][-1][0]
        tool = question["fingerprint"].split(":")[0]
        folds.denials.remembered[tool] = (decision == "always_allow", seq)


STEPS = {"turn/start": _turn_start, "tool/decision": _decision, "approval/answered": _answered}

"""The request header and the model context in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["STEPS", "HeaderState", "start"]


class HeaderState:
    """Which `request/header` is in force, and the last `request/context`."""

    __slots__ = ("context", "seq", "value")

    def __init__(self) -> None:
        self.seq = -1
        self.value: dict[str, Any] | None = None
        self.context: dict[str, Any] | None = None


def start() -> HeaderState:
    """No request was made."""
    return HeaderState()


def _header(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.header.seq, folds.header.value = seq, data["header"]


def _context(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.header.context = data


STEPS = {"request/header": _header, "request/context": _context}

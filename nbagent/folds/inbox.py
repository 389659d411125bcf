"""The inbox: what wants to reach the model. Prompts (one per turn) and what joins the next step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["CHECKS", "STEPS", "InboxState", "start"]


class InboxState:
    """The two lists of items `{id, message, source?}`, and what was claimed but not yet entered."""

    __slots__ = ("claimed", "made", "next_step", "next_turn")

    def __init__(self) -> None:
        self.next_turn: list[dict[str, Any]] = []
        self.next_step: list[dict[str, Any]] = []
        self.claimed: dict[str, dict[str, Any]] = {}
        self.made = 0
        """Items ever inserted: gives the next id."""

    def target(self, name: str) -> list[dict[str, Any]]:
        """The list of that name."""
        return self.next_turn if name == "next_turn" else self.next_step


def start() -> InboxState:
    """An empty inbox."""
    return InboxState()


def _spliced(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    inbox = folds.inbox
    items, first = inbox.target(data["target"]), data["start"]
    inserted = data.get("inserted", [])
    removed = items[first : first + data.get("removed", 0)]
    items[first : first + len(removed)] = inserted
    inbox.made += len(inserted)
    if removed and not data.get("outcome"):
        inbox.claimed.update({item["id"]: item for item in removed})


def _turn_end(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    folds.inbox.claimed.clear()


STEPS = {"agent/inbox/spliced": _spliced, "turn/end": _turn_end}


def _may_splice(folds: Folds, data: dict[str, Any]) -> str | None:
    if data["target"] not in ("next_turn", "next_step"):
        return f"there is no list {data['target']!r}"
    items = folds.inbox.target(data["target"])
    if not 0 <= data["start"] <= data["start"] + data.get("removed", 0) <= len(items):
        return "the span is outside of the list"
    inbox = folds.inbox
    known = {item["id"] for item in (*inbox.next_turn, *inbox.next_step)}
    ids = [item["id"] for item in data.get("inserted", ())]
    if len(set(ids)) < len(ids) or known.intersection(ids):
        return "an item with that id is waiting already"
    return None


CHECKS = {"agent/inbox/spliced": _may_splice}

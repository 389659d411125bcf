"""The table of what models were used for, and how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent.folds.ledger import LOGICAL
from nbagent.frames.columns import Column, Table
from nbagent.frames.model_tables import PURPOSES, TOKENS, total
from nbagent.frames.reading import Reading
from nbagent.frames.story import Attempt, tell

__all__ = ["USAGE"]


class _Group:
    """The attempts of one model and purpose."""

    def __init__(self, first: Attempt) -> None:
        self.session_id, self.model = first.sent.session_id, first.header["model"]
        self.purpose = first.purpose
        self.attempts: list[Attempt] = []


def _groups(reading: Reading) -> list[_Group]:
    groups: dict[tuple[str, str], _Group] = {}
    for attempt in tell(reading).attempts:
        key = (attempt.header["model"], attempt.purpose)
        groups.setdefault(key, _Group(attempt)).attempts.append(attempt)
    return list(groups.values())


def _sum(name: str) -> Callable[[_Group], Any]:
    return lambda group: getattr(total(group.attempts), name)


USAGE = Table(
    "usage",
    "One row per model and purpose, in the order of their first request.",
    _groups,
    [
        Column("model", "text", lambda g: g.model, doc="The model asked."),
        Column("purpose", "category", lambda g: g.purpose, PURPOSES, "What it was asked for."),
        Column("attempts", "int", lambda g: len(g.attempts), doc="Generations.", unit="attempts"),
        Column(
            "model_calls",
            "int",
            lambda g: sum(a.sent.data.get("cause") in LOGICAL for a in g.attempts),
            doc="Generations without those that repeat a failed one: what a budget counts.",
            unit="calls",
        ),
        *(Column(name, "int", _sum(name), doc=doc) for name, _, doc in TOKENS),
        Column("tokens", "int", _sum("total"), doc="All of them."),
        Column(
            "cost_usd", "float", lambda _: None, doc="US dollars; missing if no price is known."
        ),
        Column("priced", "bool", lambda _: False, doc="Whether a price is known."),
        Column("estimated", "bool", _sum("estimated"), doc="Whether some tokens were estimated."),
        Column(
            "duration_ms",
            "float",
            lambda g: float(sum(a.ended.get("duration_ms", 0.0) for a in g.attempts)),
            doc="Time spent waiting for the model.",
        ),
        Column("session_id", "text", lambda g: g.session_id, doc="The session's id."),
    ],
    short="model purpose attempts model_calls input_tokens output_tokens tokens duration_ms",
)

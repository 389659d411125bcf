"""Events of the session itself and of its inbox."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "session/end-seed": Spec("Everything before belongs to an ended life of the log."),
    "agent/inbox/spliced": Spec(
        "A change of one of the inbox's two lists, written before the list changes.",
        (
            Field("target", str),
            Field("start", int),
            Field("removed", int, 0),
            Field("inserted", list, []),
            Field("outcome", str, None),
        ),
    ),
    "control/interrupt": Spec(
        "Somebody asked the run to stop.",
        (Field("by", str), Field("reason", str, None)),
        False,
        "ts",
    ),
    "control/steer": Spec(
        "Somebody sent a message into the run; its text stands in the splice that follows.",
        (Field("item", str),),
        located="ts",
    ),
}


def spliced(
    target: str,
    start: int,
    *,
    removed: int = 0,
    inserted: list[dict[str, Any]] | None = None,
    outcome: str | None = None,
) -> dict[str, Any]:
    """Data of `agent/inbox/spliced`; target is next_turn or next_step."""
    data: dict[str, Any] = {"target": target, "start": start}
    if removed:
        data["removed"] = removed
    if inserted:
        data["inserted"] = inserted
    if outcome:
        data["outcome"] = outcome
    return data


def interrupt(by: str, reason: str | None) -> dict[str, Any]:
    """Data of `control/interrupt`."""
    return {"by": by, "reason": reason} if reason else {"by": by}

"""Events of questions to a person."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "approval/asked": Spec(
        'A call waits for a person. `id` is "turn.step.position", a second question adds ".2".',
        (
            Field("id", str),
            Field("position", int),
            Field("capability", str),
            Field("risk", str),
            Field("why", str, ""),
            Field("arguments", dict, None),
            Field("fingerprint", str),
            Field("expires", int, None),
        ),
        located="ts",
    ),
    "approval/answered": Spec(
        "A question was answered. `by`: person, the approver's name, expired, failed (the "
        "approver raised); or it was withdrawn, and `by` says what made it needless: interrupt, "
        "remembered, rule and so on.",
        (
            Field("id", str),
            Field("decision", str),
            Field("by", str),
            Field("reason", str, ""),
            Field("arguments", dict, None),
            Field("wait_ms", float),
            Field("scope", str, None),
            Field("withdrawn", bool, False),
        ),
        located="ts",
    ),
}


def answered(
    id_: str,
    decision: str,
    by: str,
    wait_ms: float,
    *,
    reason: str = "",
    arguments: dict[str, Any] | None = None,
    scope: str | None = None,
) -> dict[str, Any]:
    """Data of `approval/answered`; `arguments` only of an edit, `scope` only of an "always"."""
    data: dict[str, Any] = {"id": id_, "decision": decision, "by": by}
    if reason:
        data["reason"] = reason
    if arguments is not None:
        data["arguments"] = arguments
    data["wait_ms"] = wait_ms
    if scope is not None:
        data["scope"] = scope
    return data

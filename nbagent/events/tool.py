"""Events of one tool call."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "tool/call": Spec(
        "A call is looked at; `arguments` only if reading changed what stands in the answer, "
        "`masked` if secrets in them are masked in the log.",
        (
            Field("position", int),
            Field("arguments", dict, None),
            Field("repaired", str, None),
            Field("masked", bool, False),
        ),
        located="ts",
    ),
    "tool/decision": Spec(
        "What was decided, once per call that reached the end of the gates.",
        (
            Field("position", int),
            Field("decision", str),
            Field("source", str),
            Field("why", str, ""),
            Field("rule", str, None),
            Field("arguments", dict, None),
        ),
        located="ts",
    ),
    "tool/done": Spec(
        "A body ended while an earlier call of the answer has no result yet.",
        (
            Field("position", int),
            Field("raw", str),
            Field("shown", str, None),
            Field("status", str, "ok"),
            Field("duration_ms", float, 0.0),
        ),
        located="ts",
    ),
    "tool/result": Spec(
        "The result of a call, in model order. `raw` is whole, `shown` what the model read.",
        (
            Field("position", int),
            Field("status", str, "ok"),
            Field("raw", str, None),
            Field("shown", str, None),
            Field("error", str, None),
            Field("duration_ms", float, 0.0),
            Field("meta", dict, {}),
        ),
        surface=True,
        located="ts",
    ),
}


def decision(
    position: int,
    action: str,
    source: str,
    *,
    why: str = "",
    rule: str | None = None,
    arguments: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Data of `tool/decision`; `arguments` only if a gate or a person changed them."""
    data: dict[str, Any] = {"position": position, "decision": action, "source": source}
    if why:
        data["why"] = why
    if rule:
        data["rule"] = rule
    if arguments is not None:
        data["arguments"] = arguments
    return data


def result(
    position: int,
    *,
    raw: str | None,
    shown: str | None = None,
    status: str = "ok",
    error: str | None = None,
    duration_ms: float = 0.0,
    meta: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Data of `tool/result`; `raw` None = it stands in the call's `tool/done`."""
    data: dict[str, Any] = {"position": position}
    if status != "ok":
        data["status"] = status
    if raw is not None:
        data["raw"] = raw
    if shown is not None and shown != raw:
        data["shown"] = shown
    if error:
        data["error"] = error
    if duration_ms:
        data["duration_ms"] = duration_ms
    if meta:
        data["meta"] = meta
    return data

"""Events that bracket turns and steps, and the messages people send."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "turn/start": Spec("A turn opens.", (Field("turn", int), Field("run", int))),
    "turn/end": Spec(
        "A turn closes. `reason`: completed, aborted, blocked, error, max_tokens, interrupted, forked.",
        (
            Field("turn", int),
            Field("reason", str),
            Field("stop", str, None),
            Field("cause", str, None),
            Field("error", dict, None),
            Field("truncated", bool, False),
        ),
    ),
    "step/start": Spec("A step opens.", (Field("turn", int), Field("step", int))),
    "step/end": Spec(
        "A step closes; every call has a result.", (Field("turn", int), Field("step", int))
    ),
    "user/message": Spec(
        "A message enters the history; `message` only if it is not the inbox item `id`.",
        (Field("id", str), Field("message", dict, None), Field("source", str, None)),
        surface=True,
        located="ts",
    ),
}


def turn_end(
    turn: int,
    reason: str,
    stop: str | None,
    *,
    cause: str | None = None,
    error: dict[str, Any] | None = None,
    truncated: bool = False,
) -> dict[str, Any]:
    """Data of `turn/end`."""
    data: dict[str, Any] = {"turn": turn, "reason": reason}
    if stop:
        data["stop"] = stop
    if cause:
        data["cause"] = cause
    if error:
        data["error"] = error
    if truncated:
        data["truncated"] = True
    return data

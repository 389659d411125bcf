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
            Field("limit", dict, None),
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
    limit: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Data of `turn/end`; `limit` is what `reached` or `outgrown` gives."""
    data: dict[str, Any] = {"turn": turn, "reason": reason}
    if stop:
        data["stop"] = stop
    if cause:
        data["cause"] = cause
    if error:
        data["error"] = error
    if truncated:
        data["truncated"] = True
    if limit:
        data["limit"] = limit
    return data


def reached(name: str, limit: float, used: float, per: str) -> dict[str, Any]:
    """The limit that ended a turn: its name, how much it allows, how much was used, of what."""
    return {"name": name, "limit": limit, "used": used, "per": per}


def outgrown(text: str) -> dict[str, Any]:
    """The model's window as the limit that ended a turn, in the server's words."""
    return {"name": "context_limit", "text": text}


_UNITS = {
    "max_model_calls": "model calls",
    "max_tokens": "tokens",
    "max_seconds": "s",
    "max_steps": "steps",
}


def limit_words(limit: dict[str, Any]) -> str:
    """The limit that ended a turn, for people.

    Examples
    --------
    >>> limit_words(reached("max_tokens", 1500, 1504, "run"))
    '1,504 of the 1,500 tokens of this run'
    """
    if "text" in limit:
        return limit["text"]
    unit = _UNITS.get(limit["name"], limit["name"])
    return f"{limit['used']:,} of the {limit['limit']:,} {unit} of this {limit['per']}"

"""Events of one model call: header, attempt, chunks, review, answer."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "request/header": Spec(
        "The part of requests that changes rarely. `reason`: initial, resume, change.",
        (Field("header", dict), Field("reason", str)),
        located="ts",
    ),
    "request/context": Spec(
        "Model and context window in use.",
        (Field("model", str), Field("window", int, None)),
        located="ts",
    ),
    "request/sent": Spec(
        "An attempt begins: what exactly is sent. `cause`: None (first), bounce, must_call, retry.",
        (
            Field("attempt", int),
            Field("cause", str, None),
            Field("header", int),
            Field("surface_len", int),
            Field("surface_hash", str),
            Field("tail", list, []),
            Field("choice", dict, None),
            Field("body_digest", str, None),
        ),
        located="ts",
    ),
    "assistant/chunk": Spec(
        "A piece of the answer. `kind`: text, thinking, name, arguments.",
        (Field("index", int, 0), Field("kind", str, "text"), Field("text", str)),
        located="tsa",
    ),
    "attempt/end": Spec(
        "An attempt ended. `finish`: stop, tool_calls, max_tokens, refused, error, aborted.",
        (
            Field("finish", str),
            Field("usage", dict, {}),
            Field("failure", dict, None),
            Field("duration_ms", float),
            Field("first_ms", float, None),
            Field("estimated", bool, False),
        ),
        located="tsa",
    ),
    "assistant/draft": Spec(
        "An answer that a reviewer is about to reject or replace.",
        (Field("message", dict),),
        located="tsa",
    ),
    "review/verdict": Spec(
        "A reviewer had something to say. `action`: retry, force, noted (it raised or hung).",
        (
            Field("reviewer", str),
            Field("action", str),
            Field("reason", str, ""),
            Field("text", str, ""),
            Field("detail", str, ""),
            Field("tally", int, 0),
        ),
        located="tsa",
    ),
    "attempt/discarded": Spec(
        "The attempt's text doesn't count. `why`: rejected, failed, forced, aborted.",
        (Field("why", str),),
        located="tsa",
    ),
    "assistant/message": Spec(
        "The answer of the step.",
        (Field("message", dict), Field("source", str, None), Field("interrupted", bool, False)),
        surface=True,
        located="tsa",
    ),
}


def sent(  # noqa: PLR0917 - one place calls it
    attempt: int,
    cause: str | None,
    header: int,
    length: int,
    digest: str,
    tail: list[dict[str, Any]],
    choice: dict[str, Any] | None,
    body_digest: str | None,
) -> dict[str, Any]:
    """Data of `request/sent`."""
    data: dict[str, Any] = {"attempt": attempt}
    if cause:
        data["cause"] = cause
    data["header"] = header
    data["surface_len"] = length
    data["surface_hash"] = digest
    if tail:
        data["tail"] = tail
    if choice:
        data["choice"] = choice
    if body_digest:
        data["body_digest"] = body_digest
    return data


def attempt_end(
    finish: str,
    duration_ms: float,
    *,
    first_ms: float | None = None,
    usage: dict[str, int] | None = None,
    estimated: bool = False,
    failure: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Data of `attempt/end`."""
    data: dict[str, Any] = {"finish": finish}
    if usage:
        data["usage"] = usage
    if estimated:
        data["estimated"] = True
    if failure:
        data["failure"] = failure
    data["duration_ms"] = duration_ms
    if first_ms is not None:
        data["first_ms"] = first_ms
    return data


def verdict(
    reviewer: str, action: str, reason: str, *, text: str = "", detail: str = "", tally: int = 0
) -> dict[str, Any]:
    """Data of `review/verdict`."""
    optional = {"reason": reason, "text": text, "detail": detail, "tally": tally}
    given = {key: value for key, value in optional.items() if value}
    return {"reviewer": reviewer, "action": action, **given}

"""Notices of the harness and notes of anyone."""

from __future__ import annotations

from typing import Any

from nbagent.events.spec import Field, Spec

SPECS = {
    "notice": Spec(
        "Something a person should see.",
        (Field("kind", str), Field("text", str), Field("ref", int, None)),
        located="ts",
    ),
    "note": Spec(
        "Put into the log by a tool, a gate or a reviewer; ignorable.",
        (Field("source", str), Field("kind", str), Field("data", object, None)),
        located="ts",
    ),
}


def notice(kind: str, text: str, ref: int | None = None) -> dict[str, Any]:
    """Data of `notice`."""
    return {"kind": kind, "text": text} if ref is None else {"kind": kind, "text": text, "ref": ref}

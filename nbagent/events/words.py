"""Which texts of an event are the log's own words, and which somebody else wrote.

Only what others wrote is looked through for secrets: a pattern may fit a digest, or a text that
somebody wants masked may be the name of a field.
"""

from __future__ import annotations

from nbagent.redact import Shape

__all__ = ["WORDS"]


def _own(*keys: str, **inner: Shape) -> Shape:
    return Shape(frozenset(keys), inner=inner)


_PART = Shape(json=frozenset(("arguments", "extra", "data")))
_NODE = _own("role", "source", parts=_PART)
_SCHEMA = Shape(
    frozenset(("type", "$ref", "format", "required")),
    foreign=frozenset(("default", "enum", "const", "examples")),
)
"""Of a tool's arguments: keys are JSON Schema's, or names that the tool's function gives."""
_HEADER = _own("model", tools=_own("name", parameters=_SCHEMA), settings=_own("tool_choice"))
_ERROR = _own("type", "code")

WORDS: dict[str, Shape] = {
    "turn/end": _own("reason", "stop", "cause", error=_ERROR, limit=_own("name", "per")),
    "user/message": _own("id", "source", message=_NODE),
    "agent/inbox/spliced": _own("target", "outcome", inserted=_own("id", "source", message=_NODE)),
    "control/interrupt": _own("by"),
    "control/steer": _own("item"),
    "request/header": _own("reason", header=_HEADER),
    "request/context": _own("model"),
    "request/sent": _own(
        "cause",
        "surface_hash",
        "body_digest",
        tail=_NODE,
        choice=_own("tool_choice", "offered"),
    ),
    "assistant/chunk": _own("kind"),
    "attempt/end": _own("finish", failure=_ERROR),
    "assistant/draft": _own(message=_NODE),
    "assistant/message": _own("source", message=_NODE),
    "attempt/discarded": _own("why"),
    "review/verdict": _own("action"),
    "tool/decision": _own("decision", "source"),
    "tool/done": _own("status"),
    "tool/result": _own("status", "error"),
    "approval/asked": _own("id", "capability", "risk", "fingerprint"),
    "approval/answered": _own("id", "decision", "by", "scope"),
    "notice": _own("kind"),
}
"""By event type; of others all values are somebody else's."""

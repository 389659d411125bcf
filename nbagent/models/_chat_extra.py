"""What a host says of a call or message beyond the wire's own fields: kept, and given back to it.

A host may want such a field back: without the signature that Gemini puts beside a call it refuses
each later request. Source: https://ai.google.dev/gemini-api/docs/thought-signatures
(`tool_calls[0].extra_content.google.thought_signature`), 2026-12.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import orjson

from nbagent.messages import scrub

__all__ = ["family_of", "merge", "of_call", "of_message", "packed", "unpacked"]

_CALL = frozenset({"index", "id", "type", "function"})
_FUNCTION = frozenset({"name", "arguments"})
# The wire's own fields, then those that only describe an answer: hosts that give them don't take
# them (Perplexity's and xAI's sources, Groq's executed tools, vLLM's and SGLang's tokens). 2026-12.
_MESSAGE = frozenset(
    [
        "role",
        "content",
        "tool_calls",
        "function_call",
        "name",
        "refusal",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "annotations",
        "audio",
        "citations",
        "search_results",
        "executed_tools",
        "logprobs",
        "token_ids",
        "prompt_token_ids",
        "stop_reason",
        "matched_stop",
        "hidden_states",
    ]
)
_FAMILY = re.compile(r"(?:[^/]+/)*[a-z]+")


def family_of(host: str, model: str) -> str:
    """Which models take each other's fields: those of one name without version, on one host.

    Examples
    --------
    >>> family_of("h", "google/Gemini-3-pro") == family_of("h", "google/gemini-2.5-flash")
    True
    """
    found = _FAMILY.match(model.lower())
    return f"{host}/{found[0] if found else model}"


def of_call(piece: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a call, whole or a piece, that the wire doesn't know."""
    out = _unknown(piece, _CALL)
    function = piece.get("function")
    inside = _unknown(function, _FUNCTION) if isinstance(function, dict) else {}  # pyright: ignore[reportUnknownArgumentType]
    return {**out, "function": inside} if inside else out


def of_message(delta: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message, whole or a piece, that the wire doesn't know."""
    return _unknown(delta, _MESSAGE)


def _unknown(fields: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    names = fields.keys() - known
    return {n: fields[n] for n in fields if n in names and fields[n] not in _EMPTY} if names else {}


_EMPTY: tuple[Any, ...] = (None, "", [], {})


def merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Take in what a later piece says: texts go on, as the wire's own do, unless they are repeated.

    Objects grow; within them, and of any other kind, a value comes whole, so the last one counts.
    """
    for key, value in new.items():
        before = into.get(key)
        if isinstance(before, str) and isinstance(value, str):
            into[key] = before if before == value else before + value
        else:
            into[key] = _grown(before, value)


def _grown(before: Any, value: Any) -> Any:
    if not (isinstance(before, dict) and isinstance(value, dict)):
        return value
    old, new = cast("dict[str, Any]", before), cast("dict[str, Any]", value)
    return old | {key: _grown(old.get(key), item) for key, item in new.items()}


def packed(family: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields as they are kept, with who may have them back."""
    return {"from": family, "fields": scrub(fields)}


def unpacked(kept: object, family: str) -> dict[str, Any]:
    """What was kept, if this family may have it; `kept` is what `packed` made, or its JSON text."""
    value: Any = orjson.loads(kept) if isinstance(kept, str) else kept
    return value["fields"] if isinstance(value, dict) and value.get("from") == family else {}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]

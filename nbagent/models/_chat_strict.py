"""The sent copy of a conversation in the one form that strict hosts take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from nbagent.errors import ModelError

__all__ = ["BRIDGE", "is_strict", "strict_form", "wants_strict_form"]

BRIDGE = "I have read the result."
"""What stands between a tool's result and a text of the user's, as the assistant's."""

_ID = re.compile(r"[a-zA-Z0-9]{9}")

# Source: https://github.com/vllm-project/vllm/issues/6862 and its tool_chat_template_mistral.jinja
# ("conversation roles must alternate"; messages with calls and results are not counted),
# https://github.com/ggml-org/llama.cpp/issues/19851 (the same words, with status 500),
# https://github.com/danny-avila/LibreChat/issues/3048 (Perplexity: "should be alternating"),
# https://github.com/avante-corp/avante.nvim/pull/2695 (Mistral: "Unexpected role 'user' after role
# 'tool'", invalid_request_message_order), https://github.com/0xPlaygrounds/rig/issues/708
# ("Expected last role User or Tool"), and Mistral's "Tool call id was … but must be a-z, A-Z, 0-9,
# with a length of 9". 2026-12.
_WORDS = re.compile(
    r"\b(?:roles?|messages?|turns?|requests?)\b\W+(?:\w+\W+){0,3}?alternat(?:e|ing)\b"
    r"|unexpected role\b|expected last role\b|invalid_request_message_order"
    r"|tool call id was .{1,100} but must be",
    re.IGNORECASE,
)


def is_strict(host: str) -> bool:
    """Whether the host is known to want this form."""
    return host == "mistral.ai" or host.endswith(".mistral.ai")


def wants_strict_form(error: ModelError) -> bool:
    """Whether a refusal says that roles stand in an order, or ids in a form, that it doesn't take."""
    return error.status is not None and bool(_WORDS.search(f"{error}\n{error.body or ''}"))


def strict_form(joined: bytes) -> bytes:
    """The messages of a chat, joined by commas, with roles in an order that every host takes.

    - Neighbours of one role become one message: their texts in paragraphs, their calls in a row.
    - A user's text right behind a tool's result gets a short message of the assistant before it. It
      is not put into the result: a result holds what anyone on the web may have written, and words
      of a person among it could be forged by it.
    - Ids of calls get the form that Mistral's hosts ask for.
    """
    messages: list[dict[str, Any]] = orjson.loads(b"[%b]" % joined)
    out: list[dict[str, Any]] = []
    for message in messages:
        role, before = message["role"], out[-1]["role"] if out else ""
        if role == before and role != "tool":
            out[-1] = _one(out[-1], _with_short_ids(message))
            continue
        if role == "user" and before == "tool":
            out.append({"role": "assistant", "content": BRIDGE})
        out.append(_with_short_ids(message))
    return b",".join(map(orjson.dumps, out))


def _one(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two messages of one role as one."""
    out = {**first, **second}
    texts = [each["content"] for each in (first, second) if each.get("content")]
    if texts:
        out["content"] = "\n\n".join(texts)
    calls = [*first.get("tool_calls", ()), *second.get("tool_calls", ())]
    if calls:
        out["tool_calls"] = calls
    return out


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(message)
    if "tool_call_id" in out:
        out["tool_call_id"] = _short(out["tool_call_id"])
    if "tool_calls" in out:
        calls: Sequence[Mapping[str, Any]] = out["tool_calls"]
        out["tool_calls"] = [{**call, "id": _short(call["id"])} for call in calls]
    return out


def _short(id_: str) -> str:
    return id_ if _ID.fullmatch(id_) else blake2b(id_.encode(), digest_size=5).hexdigest()[:9]

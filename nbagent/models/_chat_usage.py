"""What chat-completions hosts report of tokens, in disjoint counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from nbagent.messages import Usage

__all__ = ["counts", "fields_of"]


def counts(used: Mapping[str, Any], times: Mapping[str, Any]) -> Usage | None:
    """The tokens of one answer; None if nothing was reported.

    Parameters
    ----------
    used, times
        What came as `usage`, and as llama.cpp's `timings`; running totals.

    Notes
    -----
    Source: https://platform.openai.com/docs/api-reference/chat/object (usage): cached tokens are
    part of prompt_tokens, reasoning of completion_tokens; xAI adds reasoning on top
    (https://docs.x.ai/docs/key-information/consumption-and-rate-limits); DeepSeek's
    prompt_cache_hit_tokens (https://api-docs.deepseek.com/guides/kv_cache); OpenRouter's
    cache_write_tokens; llama.cpp's timings (cache_n, prompt_n, predicted_n). 2026-11.
    """
    if used.get("prompt_tokens") is None:
        if not times:
            return None
        return Usage(
            _count(times, "prompt_n"), _count(times, "predicted_n"), _count(times, "cache_n")
        )
    prompt, completion = _count(used, "prompt_tokens"), _count(used, "completion_tokens")
    details = used.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") or _count(used, "prompt_cache_hit_tokens")
    written = _count(details, "cache_write_tokens")
    cached = min(cached, prompt)
    written = min(written, prompt - cached)
    reasoning = _count(used.get("completion_tokens_details"), "reasoning_tokens")
    if _count(used, "total_tokens") != prompt + completion + reasoning:
        reasoning = min(reasoning, completion)
        completion -= reasoning
    return Usage(prompt - cached - written, completion, cached, written, reasoning)


def fields_of(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(fields: object, key: str) -> int:
    value = fields_of(fields).get(key)
    return int(value) if isinstance(value, int | float) and 0 < value < 1 << 53 else 0

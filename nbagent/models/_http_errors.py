"""From a provider's status and words to a typed error."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, cast

import orjson

from nbagent.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    RefusedError,
    ServerError,
    TransportError,
)

__all__ = ["error_for", "error_in_stream", "no_answer", "retry_after_s", "shorten"]

_BODY = 2_000  # characters of a body that an error carries

# The ways in which servers say that a request is larger than the model's window.
# Source: https://platform.openai.com/docs/guides/error-codes (context_length_exceeded),
# https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
# (exceed_context_size_error), and vLLM's, Groq's and Anthropic's wordings, 2026-11.
_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size_error|maximum context length"
    r"|exceeds? the (?:available|model'?s)? ?context|context (?:window|size|length) (?:is |was )?exceed"
    r"|prompt is too long|input is too long|reduce the length of the (?:messages|prompt)"
    r"|exceeds? the (?:maximum|model'?s) (?:context|input|number of tokens)",
    re.IGNORECASE,
)

# The codes of requests that a provider's own filter refuses before any model reads them.
# Source: https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter
# (content_filter, ResponsibleAIPolicyViolation), 2026-11, and OpenAI's content_policy_violation.
_REFUSED = re.compile(
    r"\bcontent_filter\b|\bcontent_policy_violation\b|\bResponsibleAIPolicyViolation\b"
)


def error_for(
    status: int, text: str, *, host: str, retry_after_s: float | None = None
) -> ModelError:
    """The typed error for a status from 300 on and the body that came with it."""
    words = _words(text)
    kind, hint, recoverable = _kind(status, text)
    said = f": {words}" if words else ""
    return kind(
        f"{host} answered {status}{said}{hint}",
        status=status,
        retry_after_s=retry_after_s,
        body=shorten(text, _BODY),
        recoverable=recoverable,
    )


def error_in_stream(error: object, *, host: str, body: str) -> ModelError:
    """The typed error for an error object that came inside a stream of status 200.

    Source: https://openrouter.ai/docs/api-reference/errors and
    https://console.groq.com/docs/errors (an `error` key in a chunk), 2026-11.
    """
    fields = _fields(error)
    status = _status_in(fields)
    if not status:
        status = _status_of(f"{fields.get('type') or ''} {fields.get('code') or ''}".lower())
    found, hint, recoverable = _kind(status, body)
    words = _words(body) or "no reason given"
    return found(
        f"{host} broke off its answer: {words}{hint}",
        status=status,
        body=shorten(body, _BODY),
        recoverable=recoverable,
    )


def no_answer(text: str, *, host: str) -> ModelError:
    """The typed error for a whole body or stream of status 200 in which no model answers.

    Parameters
    ----------
    text
        What came instead.
    """
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    fields = _fields(value)
    if _status_in(fields):
        return error_in_stream(fields, host=host, body=text)
    said, body = shorten(text, 200), shorten(text, _BODY)
    if isinstance(value, dict) and not fields.keys() & {"choices", "usage"}:
        msg = (
            f"{host} sent something else than a model's answer:"
            f" is base_url right (does it end in /v1)? It says: {said}"
        )
        return NotFoundError(msg, status=200, body=body)
    return ServerError(f"{host} sent an answer without any content: {said}", status=200, body=body)


def _status_in(fields: dict[str, Any]) -> int:
    """The status that an error names in its fields; 0 if it names none."""
    for key in ("code", "status", "status_code"):
        value = fields.get(key)
        if isinstance(value, int) or (isinstance(value, str) and value.isdigit()):
            return int(value) if 400 <= int(value) < 600 else 0
    return 0


def _status_of(kind: str) -> int:
    """The status that an error's type would have had as an answer of its own."""
    for word, status in (
        ("rate_limit", 429),
        ("quota", 429),
        ("overloaded", 529),
        ("unavailable", 503),
        ("auth", 401),
        ("permission", 403),
        ("not_found", 404),
        ("invalid_request", 400),
        ("tool_use_failed", 400),
        ("exceed_context_size", 400),
        ("context_length", 400),
    ):
        if word in kind:
            return status
    return 500


def _kind(status: int, text: str) -> tuple[type[ModelError], str, bool | None]:
    match status:
        case 401 | 403:
            return AuthError, " (check the API key and what it may use)", None
        case 429 if "insufficient_quota" in text:
            return RateLimitError, "", False  # waiting does not help
        case 429:
            return RateLimitError, "", None
        case _ if 400 <= status < 500 and _REFUSED.search(text):
            return RefusedError, " (change the request)", None
        case 413:
            return ContextOverflowError, "", None
        case _ if _OVERFLOW.search(text):
            return ContextOverflowError, "", None
        case 404:
            return NotFoundError, " (check the model's name and base_url)", None
        case 408:
            return TransportError, "", None
        case 503 | 529:
            return OverloadedError, "", None
        case _ if status >= 500:
            return ServerError, "", None
        case _:
            return BadRequestError, "", None


def _words(text: str) -> str:
    """What the body says to a person: the message of a JSON error, or the text of a page."""
    try:
        found = _message(orjson.loads(text))
    except orjson.JSONDecodeError:
        found = ""
        if "<" in text:
            text = re.sub(r"(?is)<(script|style)\b.*?</\1>|<[^>]*>", " ", text)
    return shorten(found or text, 500)


def _message(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(filter(None, map(_message, cast("list[object]", value))))
    if not isinstance(value, dict):
        return ""
    fields = cast("dict[str, Any]", value)
    for key in ("error", "message", "detail", "msg"):
        found = _message(fields.get(key))
        if found:
            # OpenRouter: "Provider returned error", and the provider's own words beside it.
            raw = _message(_fields(fields.get("metadata")).get("raw"))
            return f"{found}: {raw}" if raw else found
    return ""


def _fields(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def shorten(text: str, limit: int) -> str:
    """The text in one line if it is short, cut with the number of characters left out."""
    text = " ".join(text.split()) if limit <= 500 else text
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} more characters)"


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asked to wait; None if it said nothing that can be read.

    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after (seconds or a date; 2022-06)
    and OpenAI's `retry-after-ms`
    (https://github.com/openai/openai-python/blob/main/src/openai/_base_client.py, 2026-11).
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None

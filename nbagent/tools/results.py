"""From whatever a tool returned or raised to the text that the model reads; nothing here fails."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from nbagent.messages import scrub
from nbagent.tools.plain import plain

__all__ = ["NOTHING", "error_text", "in_wrong_place", "to_text"]

NOTHING = "Done (no result)."
"""What the model reads when a tool returned None: `null` would look like a failed look-up."""
MOST_CAUSES = 5
MOST_ERROR = 2_000
"""Characters of an exception's own message."""
WRONG_PLACE = (
    # asyncio, and clients that are bound to a loop (motor, redis, httpx, asyncpg)
    r"\b(?:different|wrong|another) (?:event )?loop\b",
    r"event loop other than the current one",
    r"\bno (?:running|current) event loop\b",
    r"\bevent loop is (?:already running|closed)\b",
    r"cannot be called from a running event loop",
    r"while another loop is running",
    r"await wasn't used with future",  # a future of another loop, awaited for the second time
    r"can(?:no|')t call this from an async context",  # Django
    r"sync api inside the asyncio loop",  # Playwright
    # sqlite3 and Django, greenlet, COM, PyO3
    r"created in a thread can only be used in that same thread",
    r"cannot switch to a different thread",
    r"marshalled for a different thread",
    r"is unsendable, but",
    # tkinter, signal, windows of macOS
    r"main thread is not in main loop",
    r"calling tcl from different ap",
    r"signal only works in main thread",
    r"\bon the main thread\b",
    r"\bnot (?:in|on) the main thread\b",
)
"""What libraries say when their objects are used on another thread or loop than they were made on."""


def to_text(value: Any) -> str:
    r"""A tool's result as the model reads it.

    Text stays as it is; None becomes a short sentence; what JSON has becomes JSON, without spaces;
    dates, numbers of other libraries, sets, dataclasses, models and the like become JSON too;
    DataFrames, Series and large arrays become their shape and first rows; the rest its `repr`.
    JSON is always valid: NaN is written as "NaN". Never raises, and can be encoded as UTF-8.

    Examples
    --------
    >>> to_text({"rows": [1, 2.5, None]})
    '{"rows":[1,2.5,null]}'
    >>> to_text({3, 1, 2})
    '[1,2,3]'
    >>> to_text(float("nan"))
    'NaN'
    """
    if type(value) is str:
        return _clean(value)
    if value is None:
        return NOTHING
    try:
        text = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError, RecursionError):
        return _slowly(value)
    # orjson writes NaN as null, and plain text in quotes.
    if text.startswith(b'"') or (b"null" in text and not _no_nan(value)):
        return _slowly(value)
    return _clean(text.decode())


def error_text(tool_name: str, error: BaseException, masked: Callable[[str], str] = str) -> str:
    r"""What the model reads when a tool raised: the error, and how to go on; no traceback.

    Secrets are `masked` before a long text is cut: a piece of one would not be found.

    Examples
    --------
    >>> print(error_text("load", ValueError("no column `x`")))
    Error: ValueError: no column `x`
    (`load` failed. Read the error, correct the call and try once more, or use another approach.)
    """
    message = _message(error, masked)
    head = f"Error: {type(error).__name__}"
    if in_wrong_place(error):
        advice = (
            f"(`{tool_name}` uses something that belongs to the notebook's own thread or event "
            "loop. Calling again will not help: tell the user to define the tool with "
            '`where="cell"`, or to create that thing inside of the tool\'s own function.)'
        )
    else:
        advice = (
            f"(`{tool_name}` failed. Read the error, correct the call and try once more, or use "
            "another approach.)"
        )
    return f"{head}: {message}\n{advice}" if message else f"{head}\n{advice}"


def in_wrong_place(error: BaseException) -> bool:
    """Whether an error says that something was used on another thread or loop than it was made on.

    Examples
    --------
    >>> in_wrong_place(ValueError("The future belongs to a different loop than the one specified"))
    True
    """
    said = re.compile("|".join(WRONG_PLACE), re.IGNORECASE)  # kept by `re`, not made on import
    seen: BaseException | None = error
    for _ in range(MOST_CAUSES):
        if seen is None:
            return False
        if said.search(_message(seen)):
            return True
        seen = seen.__cause__
    return False


def _no_nan(value: Any) -> bool:
    """Whether nothing in the value can be a NaN; False also if that isn't plain to see."""
    as_any: Any = value
    match value:
        case None | str() | int():
            return True
        case float():
            return math.isfinite(value)
        case dict():
            return all(map(_no_nan, as_any)) and all(map(_no_nan, as_any.values()))
        case list() | tuple():
            return all(map(_no_nan, as_any))
        case _:
            return False


def _slowly(value: Any) -> str:
    try:
        found = plain(value)
        return _clean(found if isinstance(found, str) else _json(found))
    except Exception as error:  # noqa: BLE001 - a result of any kind must become text
        return f"<{type(value).__name__} that can't be shown: {type(error).__name__}>"


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # integers beyond 64 bits
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _clean(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    # NUL ends the text in some stores and on some wires.
    return scrub(text).replace("\0", "\N{REPLACEMENT CHARACTER}")


def _message(error: BaseException, masked: Callable[[str], str] = str) -> str:
    try:
        pieces = [str(error), *getattr(error, "__notes__", ())]
        inner: Sequence[BaseException] = getattr(error, "exceptions", ())
        pieces += [f"- {type(each).__name__}: {_message(each, masked)}" for each in inner[:3]]
        text = masked("\n".join(str(each) for each in pieces if each)).strip()
    except Exception:  # noqa: BLE001 - the message is made by foreign code
        return "(its message can't be read)"
    if len(text) > MOST_ERROR:
        text = f"{text[:MOST_ERROR]}… ({len(text)} characters in all)"
    return _clean(text)

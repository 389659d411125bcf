"""From the text of a call's arguments to the object that it stands for: slips mended and told."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

__all__ = ["NoObject", "Parsed", "kind_of", "object_in", "shown_value"]

REPAIR_AT_MOST = 200_000
"""Characters: the repair of longer text would take longer than a new answer."""
STRAY_QUOTES = re.compile(r"\{\s*\}[\s\"']+")
TWICE = "the same object stood there more than once and was read once"
FENCE = re.compile(r"```[\w-]*\s*(.*?)\s*```", re.DOTALL)


class Parsed(NamedTuple):
    """What stood in the text."""

    value: dict[str, Any]
    notes: list[str]
    """What was mended, in words."""


class NoObject(Exception):
    """Raised at a text that stands for no object.

    Parameters
    ----------
    why
        What is wrong, in words; behind an object: what stands there.
    kind
        cut: the text ends inside the object; trailing: something stands behind it; else invalid.
    """

    def __init__(self, why: str, kind: Literal["invalid", "cut", "trailing"] = "invalid") -> None:
        super().__init__(why)
        self.why = why
        self.kind = kind


def object_in(text: str) -> Parsed:
    """The object in the text; no text and `null` are an empty one.

    Raises
    ------
    NoObject
        If the text is cut, isn't JSON even after a repair, isn't an object, holds a number that
        JSON hasn't, or has something behind the object.

    Examples
    --------
    >>> object_in("{'a': 1,}").value, object_in("null").value
    ({'a': 1}, {})
    """
    text = text.strip().lstrip("\ufeff")
    if not text or text == "null":
        return Parsed({}, [])
    if STRAY_QUOTES.fullmatch(text):
        return Parsed({}, ["quotes behind `{}` left out"])
    value, notes = _decode(text)
    if isinstance(value, str):
        if not value.strip():
            return Parsed({}, notes)
        value, more = _decode(value.strip())
        notes = [*notes, "the object was JSON text inside a JSON string", *more]
    if not isinstance(value, dict):
        msg = f"they are {kind_of(value)}, not one JSON object {{…}}"
        raise NoObject(msg)
    return Parsed(value, notes)  # pyright: ignore[reportUnknownArgumentType] - JSON's keys are text


def shown_value(value: Any, most: int = 80) -> str:
    """A value as short JSON text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _decode(text: str) -> tuple[Any, list[str]]:
    def refuse(name: str) -> Any:
        msg = f"JSON has no {name}; send a number, null or text"
        raise NoObject(msg)

    decoder = json.JSONDecoder(parse_constant=refuse)
    try:
        return decoder.decode(text), []
    except RecursionError as error:
        msg = "they are nested too deeply"
        raise NoObject(msg) from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            if _repeats(text, error.pos, decoder):
                return decoder.raw_decode(text)[0], [TWICE]
            raise NoObject(text[error.pos :], "trailing") from error
        return _repair(text, error)
    except ValueError as error:  # more digits than Python converts
        raise NoObject(str(error)) from error


def _repair(text: str, error: json.JSONDecodeError) -> tuple[Any, list[str]]:
    if fenced := FENCE.fullmatch(text):
        value, notes = _decode(fenced[1])
        return value, ["the code fence around the object left out", *notes]
    where = f"{error.msg} at character {error.pos}"
    if not text.startswith("{") or len(text) > REPAIR_AT_MOST:
        raise NoObject(where)
    end = _end_of_object(text)
    if end is None:
        msg = "the text ends before the object is closed"
        raise NoObject(msg, "cut")
    first, rest = text[:end], text[end:].strip()
    if rest.replace(first, "").strip():
        raise NoObject(rest, "trailing")
    found = _mended(first)
    if not found:
        raise NoObject(where)
    notes = [f"not valid JSON ({where}), read as {shown_value(found, 200)}"]
    return found, [*notes, TWICE] if rest else notes


def _repeats(text: str, end: int, decoder: json.JSONDecoder) -> bool:
    """Whether the value that ends there is followed by itself, once or more, and nothing else."""
    try:
        first = json.dumps(decoder.raw_decode(text)[0], sort_keys=True)  # 1, 1.0 and true differ
        while end < len(text):
            if text[end].isspace():
                end += 1
                continue
            value, end = decoder.raw_decode(text, end)
            if json.dumps(value, sort_keys=True) != first:
                return False
    except (ValueError, RecursionError, NoObject):
        return False
    return True


def _mended(text: str) -> dict[str, Any] | None:
    import json_repair

    try:
        found: Any = json_repair.loads(text, skip_json_loads=True)
    except Exception:  # noqa: BLE001 - whatever it stumbles over, the text is no JSON
        return None
    return found if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _end_of_object(text: str) -> int | None:
    """Where the first object ends; None if it doesn't, as when the text was cut."""
    depth, quote, escaped, before = 0, "", False, ""
    for place, char in enumerate(text):
        if quote:
            if escaped or char == "\\":
                escaped = not escaped
            elif char == quote:
                quote = ""
            continue
        if char == '"' or (char == "'" and before in "{[,:"):
            quote = char
        elif char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth <= 0:
                return place + 1
        before = before if char.isspace() else char
    return None


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return f"the value {shown_value(value)}"
        case str():
            return "a text"
        case _:
            return "a list"

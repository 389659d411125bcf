"""From the text of a call's arguments to a dict, with the slips of models mended and told."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nbagent.interfaces.tool import ArgumentsError

__all__ = ["Parsed", "parse", "plain_copy", "refusal", "shown_path", "shown_value"]

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


def parse(text: str, tool: str) -> Parsed:
    """The object in the text; no text and `null` are an empty one.

    Raises
    ------
    ArgumentsError
        If the text is cut, isn't JSON even after a repair, isn't an object, holds a number that
        JSON hasn't, or has something behind the object.
    """
    text = text.strip().lstrip("\ufeff")
    if not text or text == "null":
        return Parsed({}, [])
    if STRAY_QUOTES.fullmatch(text):
        return Parsed({}, ["quotes behind `{}` left out"])
    value, notes = _decode(text, tool)
    if isinstance(value, str):
        if not value.strip():
            return Parsed({}, notes)
        value, more = _decode(value.strip(), tool)
        notes = [*notes, "the object was JSON text inside a JSON string", *more]
    if not isinstance(value, dict):
        raise ArgumentsError(
            _not_valid(tool, f"they are {_kind(value)}, not one JSON object {{…}}")
        )
    return Parsed(value, notes)  # pyright: ignore[reportUnknownArgumentType] - JSON's keys are text


def plain_copy(value: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """The same arguments as plain JSON that shares nothing with the value.

    Raises
    ------
    ArgumentsError
        If the value isn't a dict of plain JSON.
    """
    try:
        copied: Any = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentsError(_not_valid(tool, f"they are no plain JSON: {error}")) from error
    if not isinstance(copied, dict):
        raise ArgumentsError(
            _not_valid(tool, f"they are {_kind(copied)}, not one JSON object {{…}}")
        )
    return copied  # pyright: ignore[reportUnknownVariableType] - JSON's keys are text


def refusal(tool: str, problems: Sequence[str], schema: Mapping[str, Any]) -> ArgumentsError:
    """The answer to arguments that don't fit the schema: every problem, then what is wanted."""
    shown = [f"- {each}" for each in problems[:20]]
    if len(problems) > len(shown):
        shown.append(f"- and {len(problems) - len(shown)} more")
    required = schema.get("required", ())
    names = [
        f"{name} (required)" if name in required else name for name in schema.get("properties", {})
    ]
    takes = f"`{tool}` takes: {', '.join(names)}." if names else f"`{tool}` takes no arguments."
    lines = [
        f"The arguments of `{tool}` are not valid:",
        *shown,
        f"{takes} Correct this and call again.",
    ]
    return ArgumentsError("\n".join(lines))


def shown_path(path: Sequence[str | int]) -> str:
    """A place within arguments, such as `rows[2].name`."""
    text = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
    return f"`{text.removeprefix('.')}`" if text else "the whole"


def shown_value(value: Any, most: int = 80) -> str:
    """A value as short JSON text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _decode(text: str, tool: str) -> tuple[Any, list[str]]:
    def refuse(name: str) -> Any:
        raise ArgumentsError(_not_valid(tool, f"JSON has no {name}; send a number, null or text"))

    decoder = json.JSONDecoder(parse_constant=refuse)
    try:
        return decoder.decode(text), []
    except RecursionError as error:
        raise ArgumentsError(_not_valid(tool, "they are nested too deeply")) from error
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            if _repeats(text, error.pos, decoder):
                return decoder.raw_decode(text)[0], [TWICE]
            raise ArgumentsError(_trailing(tool, text[error.pos :])) from error
        return _repair(text, tool, error)
    except ValueError as error:  # more digits than Python converts
        raise ArgumentsError(_not_valid(tool, str(error))) from error


def _repair(text: str, tool: str, error: json.JSONDecodeError) -> tuple[Any, list[str]]:
    if fenced := FENCE.fullmatch(text):
        value, notes = _decode(fenced[1], tool)
        return value, ["the code fence around the object left out", *notes]
    where = f"{error.msg} at character {error.pos}"
    if not text.startswith("{") or len(text) > REPAIR_AT_MOST:
        raise ArgumentsError(_not_valid(tool, where))
    end = _end_of_object(text)
    if end is None:
        raise ArgumentsError(_cut(tool))
    first, rest = text[:end], text[end:].strip()
    if rest.replace(first, "").strip():
        raise ArgumentsError(_trailing(tool, rest))
    found = _mended(first)
    if not found:
        raise ArgumentsError(_not_valid(tool, where))
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
    except (ValueError, RecursionError):
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


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return f"the value {shown_value(value)}"
        case str():
            return "a text"
        case _:
            return "a list"


def _not_valid(tool: str, why: str) -> str:
    return (
        f"The arguments of `{tool}` are not valid: {why}. Send them again as one valid JSON object."
    )


def _cut(tool: str) -> str:
    return (
        f"The arguments of `{tool}` were cut off or are not valid JSON: the text ends before the "
        "object is closed. Nothing was run. Send the whole object again; if it is long, make it "
        "shorter or split the work into several calls."
    )


def _trailing(tool: str, rest: str) -> str:
    return (
        f"The arguments of `{tool}` are not valid: behind the JSON object stands "
        f"{shown_value(rest.strip())}. Send one JSON object and nothing else."
    )

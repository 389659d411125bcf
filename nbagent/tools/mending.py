"""Places within arguments, and the slips that both readers mend there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.messages import scrub

__all__ = [
    "INT_MAX",
    "INT_MIN",
    "at",
    "children",
    "container_in",
    "place_of",
    "put",
    "way_out",
    "whole_characters",
]

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""What the JSON of the log can hold as a number."""
Place = tuple[str | int, ...]


def place_of(value: Any, loc: Sequence[str | int]) -> Place:
    """The part of an error's location that is a place in the value.

    A location also names branches of unions, which the value doesn't have.
    """
    place: list[str | int] = []
    for key in loc:
        try:
            value = None if isinstance(value, str) else value[key]
        except (LookupError, TypeError):
            continue
        place.append(key)
    return tuple(place)


def at(value: Any, place: Sequence[str | int]) -> Any:
    """What stands at a place.

    Raises
    ------
    LookupError, TypeError
        If there is no such place.
    """
    for key in place:
        value = value[key]
    return value


def way_out(raw: Any, place: Place, schema: Mapping[str, Any]) -> str:
    """What else to say of a value that doesn't fit: one that need not be there can be left out.

    Models write an empty text, or the word for nothing, where they mean nothing.
    """
    optional = schema.get("properties", {}).keys() - schema.get("required", ())
    if len(place) != 1 or place[0] not in optional or place[0] not in raw:
        return ""
    found = raw[place[0]]
    means_nothing = isinstance(found, str) and found.strip().lower() in ("", "null", "none")
    return "; leave it out if you mean nothing" if means_nothing else ""


def put(value: Any, place: Sequence[str | int], item: Any) -> None:
    """Replace what stands at a place."""
    at(value, place[:-1])[place[-1]] = item


def children(value: Any) -> Sequence[Any]:
    """The items of an array or the values of an object; nothing in any other JSON."""
    if isinstance(value, dict):
        return [*value.values()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]


def container_in(text: str) -> Any:
    """The object or array that a text holds as JSON, else None."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None  # pyright: ignore[reportUnknownVariableType]


def whole_characters(raw: dict[str, Any], notes: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The arguments without halves of characters, which nothing could encode."""
    whole = scrub(raw)
    return (raw, notes) if whole == raw else (whole, [*notes, "half a character replaced"])

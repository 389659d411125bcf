"""From the text of a call's arguments to a dict, with the slips of models mended and told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.interfaces.tool import ArgumentsError
from nbagent.repair import NoObject, Parsed, kind_of, object_in, shown_value

__all__ = ["parse", "plain_copy", "refusal", "shown_path"]


def parse(text: str, tool: str) -> Parsed:
    """The object in the text; no text and `null` are an empty one.

    Raises
    ------
    ArgumentsError
        If the text is cut, isn't JSON even after a repair, isn't an object, holds a number that
        JSON hasn't, or has something behind the object.
    """
    try:
        return object_in(text)
    except NoObject as error:
        said = {"cut": _cut(tool), "trailing": _trailing(tool, error.why)}
        raise ArgumentsError(said.get(error.kind) or _not_valid(tool, error.why)) from error


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
            _not_valid(tool, f"they are {kind_of(copied)}, not one JSON object {{…}}")
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

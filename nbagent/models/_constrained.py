"""Tools as one JSON schema, for models that don't call tools: the schema, and the rules of choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from nbagent.errors import ConfigError
from nbagent.interfaces.model import Choice, Situation, ToolSpec

__all__ = ["FINAL", "LARGE", "SMALL", "Limits", "choose", "portable", "reply_schema"]

FINAL = "final_answer"
"""The name that marks an answer among the calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a model is trusted with free text."""

    answer_chars: int | None
    string_chars: int | None
    """Of an argument whose schema sets no limit."""
    items: int | None
    """Of an array whose schema sets no limit."""
    first_sentence: bool
    """Whether free text ends with its first sentence."""
    reminders_ahead: bool
    """Whether reminders stand before the last message: behind it a small model repeats them."""


SMALL = Limits(
    answer_chars=160, string_chars=120, items=16, first_sentence=True, reminders_ahead=True
)
LARGE = Limits(
    answer_chars=None, string_chars=None, items=None, first_sentence=False, reminders_ahead=False
)


def choose(situation: Situation) -> Choice:
    """What a small model may do next: it fills in arguments well, but decides badly.

    1. The first reply of a turn is a call, of a read-only tool if there is one.
    2. A tool that has answered is not offered again in the turn, unless it must still be called.
    3. No final answer before every tool that must be called has returned.
    4. The last reply is the final answer.
    5. After a failed read no tool that writes: it would write an invented value.
    """
    tools = situation.tools
    if situation.last or not tools:
        return _FINAL_ONLY
    done = {name for name, _ in situation.called} - set(situation.missing)
    offered = [tool for tool in tools if tool.name not in done]
    reads = {tool.name for tool in tools if tool.risk == "readonly"}
    last_status = dict(situation.called)
    if any(status not in _GOOD for name, status in last_status.items() if name in reads) or (
        situation.first and any(tool.name in reads for tool in offered)
    ):
        offered = [tool for tool in offered if tool.name in reads]
    if not offered:
        return _FINAL_ONLY
    must = situation.first or bool(situation.missing)
    return Choice("required" if must else "auto", tuple(tool.name for tool in offered))


_FINAL_ONLY = Choice("none", ())
_GOOD = ("ok", "replayed")


def reply_schema(tools: Iterable[ToolSpec], *, final: bool, limits: Limits) -> dict[str, Any]:
    """The schema of one reply: a call of one of the tools, or the final answer."""
    branches = [_branch(tool.name, portable(tool.parameters, limits)) for tool in tools]
    if final:
        text: dict[str, Any] = {"type": "string"}
        if limits.answer_chars:
            text["maxLength"] = limits.answer_chars
        branches.append(_branch(FINAL, _object({"text": text})))
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def refuse_reserved(tools: Iterable[ToolSpec]) -> None:
    """Refuse a tool whose name marks the final answer.

    Raises
    ------
    ConfigError
        If there is one.
    """
    if any(tool.name == FINAL for tool in tools):
        msg = (
            f"a tool can't be called {FINAL!r} for this model: the name marks its answer; rename it"
        )
        raise ConfigError(msg)


def _branch(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    # `name` stands first: properties are written in this order, so a stream tells the tool at once.
    return _object({"name": {"const": name}, "arguments": arguments})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


# ---- schemas that a grammar can hold -----------------------------------------------------------

_KEPT = frozenset({"type", "enum", "const", "minItems", "maxItems", "minLength", "maxLength"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_FORMATS = frozenset({"date", "date-time", "uuid"})


def portable(
    schema: object,
    limits: Limits = SMALL,
    defs: Mapping[str, Any] | None = None,
    seen: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What of a schema the grammar of a server can hold: it shapes the text, it does not validate.

    ``$defs`` are put in place, recursion ends in "any object", ``allOf`` is merged, strings and
    arrays get limits, and what is ignored or misread by llama.cpp's converter is left out
    (bounds of numbers that are no integers, patterns without ^…$, and more).

    Source: probes of xllamacpp 2026.10's converter; the keywords it knows are listed at
    https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md (2026-11).
    """
    if not isinstance(schema, dict):
        return {}  # true and false are refused by the converter
    given = cast("dict[str, Any]", schema)
    defs = {**(defs or {}), **given.get("$defs", {}), **given.get("definitions", {})}
    if "$ref" in given:
        return _followed(given, limits, defs, seen)
    if "allOf" in given:
        return portable(_merged(given, defs), limits, defs, seen)
    out = {key: value for key, value in given.items() if _is_kept(key, value, given)}
    for key in ("anyOf", "oneOf"):
        if key in given:
            out["anyOf"] = [portable(each, limits, defs, seen) for each in given[key]]
    if isinstance(given.get("items"), dict):
        out["items"] = portable(given["items"], limits, defs, seen)
    elif given.get("prefixItems"):
        out["items"] = {"anyOf": [portable(x, limits, defs, seen) for x in given["prefixItems"]]}
    properties = given.get("properties")
    if properties:
        out["properties"] = {
            name: portable(each, limits, defs, seen) for name, each in properties.items()
        }
        out["required"] = [name for name in given.get("required", ()) if name in properties]
        out["type"] = "object"
        out["additionalProperties"] = False
    _bound(out, limits)
    return out


def _followed(
    given: dict[str, Any], limits: Limits, defs: Mapping[str, Any], seen: tuple[str, ...]
) -> dict[str, Any]:
    reference: str = given["$ref"]
    name = reference.rpartition("/")[2]
    if not reference.startswith("#/") or name in seen or name not in defs:
        return {"type": "object"}
    beside = {key: value for key, value in given.items() if key != "$ref"}
    if not isinstance(defs[name], dict):
        return {}
    target: dict[str, Any] = defs[name]
    return portable({**target, **beside}, limits, defs, (*seen, name))


def _merged(given: dict[str, Any], defs: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its allOf put into it; what can't be merged is left to validation."""
    out = {key: value for key, value in given.items() if key != "allOf"}
    for part in given["allOf"]:
        if not isinstance(part, dict):
            continue
        fields = cast("dict[str, Any]", part)
        if "$ref" in fields:
            fields = {**defs.get(fields["$ref"].rpartition("/")[2], {}), **fields}
            del fields["$ref"]
        if "allOf" in fields:
            fields = _merged(fields, defs)
        for key, value in fields.items():
            if key == "properties":
                out[key] = {**out.get(key, {}), **value}
            elif key == "required":
                out[key] = [*out.get(key, ()), *value]
            else:
                out.setdefault(key, value)
    return out


def _is_kept(key: str, value: Any, given: dict[str, Any]) -> bool:
    match key:
        case "pattern":
            anchored = value.startswith("^") and value.endswith("$") and "(?" not in value
            return anchored and "maxLength" not in given
        case "format":
            return value in _FORMATS
        case _ if key in _BOUNDS:
            # An empty range is an error of the server; validation then refuses any value.
            low, high = given.get("minimum"), given.get("maximum")
            empty = low is not None and high is not None and low > high
            return given.get("type") == "integer" and not empty
        case _:
            return key in _KEPT


def _bound(out: dict[str, Any], limits: Limits) -> None:
    kind = out.get("type")
    if kind == "string" and not {"enum", "const", "pattern", "format"} & out.keys():
        if limits.string_chars:
            out.setdefault("maxLength", max(limits.string_chars, out.get("minLength", 0)))
    elif kind == "array" and limits.items:
        out.setdefault("maxItems", max(limits.items, out.get("minItems", 0)))

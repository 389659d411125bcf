"""Arguments of tools that come with a JSON Schema instead of a function's hints."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import Arguments
from nbagent.repair import shown_value
from nbagent.tools.mending import children, container_in, put, whole_characters
from nbagent.tools.parsing import parse, plain_copy, refusal, shown_path

__all__ = ["SchemaReader"]

MOST_REPAIRS = 4


class SchemaReader:
    """Reads arguments against a JSON Schema, compiled once; loads jsonschema.

    References are followed within the schema only, never over the network.

    Parameters
    ----------
    tool
        The tool's name, for what the model reads.
    schema
        JSON Schema of an object; an empty one stands for no arguments known.

    Raises
    ------
    ToolDefinitionError
        If it isn't a JSON Schema of an object, or refers to something that isn't there.
    """

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self.tool = tool
        self.schema = _checked(tool, schema)
        self._validator = _compiled(tool, self.schema)

    def __call__(self, text: str) -> Arguments:
        """Read the text of a call.

        Raises
        ------
        ArgumentsError
            If it doesn't fit the schema; the message lists every problem.
        """
        parsed = parse(text, self.tool)
        return self._check(parsed.value, parsed.notes)

    def rebind(self, value: Mapping[str, Any]) -> Arguments:
        """Read plain JSON as if a model had sent it."""
        return self._check(plain_copy(value, self.tool), [])

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        properties: dict[str, Any] = self.schema.get("properties", {})
        return {
            name: each["default"]
            for name, each in properties.items()
            if isinstance(each, dict) and "default" in each
        }

    def _check(self, raw: dict[str, Any], notes: list[str]) -> Arguments:
        raw, notes = whole_characters(raw, notes)
        for _ in range(MOST_REPAIRS):
            errors = self._errors(raw)
            if not errors:
                return self._arguments(raw, notes)
            mended = self._mend(raw, errors)
            if not mended:
                break
            notes = [*notes, *mended]
        problems = [line for each in self._errors(raw) for line in _lines(each)]
        raise refusal(self.tool, problems, self.schema)

    def _errors(self, raw: dict[str, Any]) -> list[Any]:
        try:
            return sorted(
                self._validator.iter_errors(raw), key=lambda each: list(map(str, each.path))
            )
        except Exception as error:  # such as a bad pattern
            problem = f"the check of the arguments failed: {type(error).__name__}: {error}"
            raise refusal(self.tool, [problem], self.schema) from error

    def _arguments(self, raw: dict[str, Any], notes: Sequence[str]) -> Arguments:
        given = {**copy.deepcopy(self._defaults), **raw}
        return Arguments(_log_form(given), ((), given), "; ".join(notes) or None)

    def _mend(self, raw: dict[str, Any], errors: Sequence[Any]) -> list[str]:
        """Change `raw` where a slip is plain, and say what was changed."""
        notes: list[str] = []
        required = self.schema.get("required", ())
        for error in errors:
            place = tuple(error.absolute_path)
            if not place:
                continue
            if isinstance(error.instance, str) and _wants_container(error):
                decoded = container_in(error.instance)
                if decoded is not None:
                    put(raw, place, decoded)
                    notes.append(f"{shown_path(place)} was JSON text, decoded")
            elif error.instance is None and len(place) == 1 and place[0] not in required:
                del raw[place[0]]
                notes.append(f"{shown_path(place)} was null, left out")
        return notes


def _checked(tool: str, schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        msg = (
            f"tool `{tool}`: parameters must be a JSON Schema, a dict, not {type(schema).__name__}"
        )
        raise ToolDefinitionError(msg)
    try:
        plain: dict[str, Any] = orjson.loads(orjson.dumps(dict(schema)))  # pyright: ignore[reportUnknownArgumentType]
    except TypeError as error:
        msg = f"tool `{tool}`: its parameters are no JSON Schema: {error}"
        raise ToolDefinitionError(msg) from error
    if plain.setdefault("type", "object") != "object":
        msg = f'tool `{tool}`: its parameters must have "type": "object", not {plain["type"]!r}'
        raise ToolDefinitionError(msg)
    plain.setdefault("properties", {})
    return plain


def _compiled(tool: str, schema: dict[str, Any]) -> Any:
    import jsonschema
    import jsonschema.validators
    import jsonschema_specifications
    import referencing.exceptions
    import referencing.jsonschema

    validators: Any = jsonschema.validators  # its stubs don't say what a validator class is
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        where = shown_path([*error.absolute_path])
        msg = f"tool `{tool}`: its parameters are no JSON Schema: {where}: {error.message}"
        raise ToolDefinitionError(msg) from error
    known: Any = jsonschema_specifications.REGISTRY
    resource: Any = referencing.jsonschema.DRAFT202012.create_resource(schema)
    resolver = known.with_resource("", resource).resolver()
    for ref in _refs(schema):
        try:
            resolver.lookup(ref)
        except referencing.exceptions.Unresolvable as error:
            msg = f"tool `{tool}`: its parameters refer to {ref!r}, which isn't in the schema"
            raise ToolDefinitionError(msg) from error
    return kind(schema, registry=known)


def _refs(schema: Any) -> list[str]:
    found = [ref for each in children(schema) for ref in _refs(each)]
    ref = schema.get("$ref") if isinstance(schema, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return [*found, ref] if isinstance(ref, str) else found


def _wants_container(error: Any) -> bool:
    if error.validator in {"anyOf", "oneOf"}:
        return any(_wants_container(each) for each in error.context) and not any(
            each.validator != "type" for each in error.context
        )
    wanted = error.validator_value if error.validator == "type" else ()
    kinds = {wanted} if isinstance(wanted, str) else set(wanted)
    return bool(kinds & {"object", "array"})


def _lines(error: Any) -> list[str]:
    """What is wrong at one place, in words that don't quote whole values."""
    place, wanted = shown_path([*error.absolute_path]), error.validator_value
    match error.validator:
        case "required":
            inside = [*error.absolute_path]
            missing = [name for name in wanted if name not in error.instance]
            return [f"{shown_path([*inside, name])} is missing" for name in missing]
        case "additionalProperties" if wanted is False:
            known = error.schema.get("properties", {})
            return [
                f"{shown_path([*error.absolute_path, name])} is not an argument"
                for name in error.instance
                if name not in known
            ]
        case "type":
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return [f"{place} should be of type {kinds}; it was {shown_value(error.instance)}"]
        case "enum":
            allowed = ", ".join(shown_value(each) for each in wanted)
            return [f"{place} should be one of {allowed}; it was {shown_value(error.instance)}"]
        case "anyOf" | "oneOf" if error.context:
            fits = [line for each in error.context for line in _lines(each)]
            return list(dict.fromkeys(fits))
        case _:
            message = str(error.message)
            return [f"{place}: {message if len(message) <= 200 else message[:200] + '…'}"]


def _log_form(value: Any) -> Any:
    """A copy in which integers that the log's JSON can't hold are text."""
    if isinstance(value, dict):
        return {key: _log_form(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_log_form(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value

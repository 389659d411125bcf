"""From hints to a JSON Schema and a validator; loads pydantic, so it is imported on first use."""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import (
    PydanticSerializationError,
    SchemaSerializer,
    core_schema,
    to_jsonable_python,
)

from nbagent.errors import ToolDefinitionError
from nbagent.tools.signature import Argument, Signature, plain_description

__all__ = ["build_model", "compact", "json_form", "json_schema"]

EMPTY = inspect.Parameter.empty
VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
INT_RANGE = range(-(2**63), 2**64)
"""What the JSON of the log can hold as a number."""


def build_model(tool: str, signature: Signature, docs: Mapping[str, str]) -> type[BaseModel]:
    """A model of the arguments: its fields are `p0`, `p1`, … with the arguments' names as aliases.

    So an argument may have any name, also one that a model's own attributes have.

    Raises
    ------
    ToolDefinitionError
        If a hint is of a kind that no JSON can give.
    """
    fields = {f"p{n}": _field(each, docs) for n, each in enumerate(signature.arguments)}
    try:
        return _model(signature, fields)
    except Exception as error:
        for (name, field), argument in zip(fields.items(), signature.arguments, strict=True):
            try:
                json_schema(_model(Signature((argument,)), {"p0": field}))
            except Exception as cause:
                del name
                raise ToolDefinitionError(_unusable(tool, argument, cause)) from cause
        msg = f"tool `{tool}`: no schema can be made of its hints: {_first_line(error)}"
        raise ToolDefinitionError(msg) from error


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The arguments' JSON Schema, without what only costs tokens."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Schema)
    return compact(schema)


def json_form(value: Any) -> Any:
    """The plain JSON of a value: sets as sorted lists, integers beyond 64 bits as text.

    Raises
    ------
    ValueError
        If JSON has no form for it, as for NaN, or for objects of unknown kinds.
    """
    return to_jsonable_python(_settled(_ANY.to_python(value)))


def json_arguments(model: BaseModel) -> dict[str, Any]:
    """The plain JSON of validated arguments, under their own names.

    Raises
    ------
    ValueError
        As `json_form`.
    """
    values = model.__pydantic_serializer__.to_python(model, by_alias=True, warnings=False)
    return to_jsonable_python(_settled(values), fallback=str)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without class titles, with definitions that are used once put in their place."""
    definitions: dict[str, Any] = schema.pop("$defs", {})
    for each in (schema, *definitions.values()):
        each.pop("title", None)
    refs = [name for each in (schema, *definitions.values()) for name in _refs(each)]
    once = {name for name in definitions if refs.count(name) == 1 and not _recursive(name, definitions)}
    schema = _inlined(schema, definitions, once)
    kept = {
        name: _inlined(each, definitions, once)
        for name, each in definitions.items()
        if name not in once
    }
    return {**schema, "$defs": kept} if kept else schema


class _Schema(GenerateJsonSchema):
    """pydantic's generator without field titles, and with defaults only where JSON has them."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as in the base

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def encode_default(self, dft: Any) -> Any:
        try:
            return json_form(dft)
        except ValueError as error:
            # The one error on which pydantic leaves the default out.
            raise PydanticSerializationError(str(error)) from error


_ANY = SchemaSerializer(core_schema.any_schema())


def _model(signature: Signature, fields: dict[str, Any]) -> type[BaseModel]:
    names = {f"p{n}": each.name for n, each in enumerate(signature.arguments)}
    config = ConfigDict(
        # A tool without arguments has nothing that a surplus one could be mistaken for.
        extra="forbid" if names else "ignore",
        alias_generator=names.__getitem__,
        allow_inf_nan=False,
    )
    return create_model("Arguments", __config__=config, **fields)


def _field(argument: Argument, docs: Mapping[str, str]) -> tuple[Any, Any]:
    words = plain_description(argument.hint) or docs.get(argument.name)
    hint = _modern(argument.hint)
    # In front: a description in the hint's own Field wins.
    if words and typing.get_origin(hint) is Annotated:
        hint = Annotated[(hint.__origin__, Field(description=words), *hint.__metadata__)]
    elif words:
        hint = Annotated[hint, Field(description=words)]
    if argument.kind == VAR_POSITIONAL:
        return hint, Field(default_factory=list)
    return hint, ... if argument.default is EMPTY else argument.default


def _unusable(tool: str, argument: Argument, error: Exception) -> str:
    hint = argument.hint
    shown = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    return (
        f"tool `{tool}`: a model can't write a `{shown}`, the type of argument `{argument.name}`; "
        "take what JSON has (text, numbers, lists, dicts, dataclasses, pydantic models) and get "
        f"the rest inside the tool, from a variable or `ctx.deps` ({_first_line(error)})"
    )


def _first_line(error: Exception) -> str:
    text = error.message if isinstance(error, PydanticUserError) else str(error)
    return text.strip().partition("\n")[0].partition(". Set `")[0]


def _settled(value: Any) -> Any:
    """The same tree in an order that doesn't depend on hashing, with numbers that JSON has."""
    match value:
        case bool() | str() | None:
            return value
        case int():
            return value if value in INT_RANGE else str(value)
        case float():
            if value - value != 0:
                msg = f"{value} is not a number that JSON has"
                raise ValueError(msg)
            return value
        case dict():
            return {key: _settled(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list() | tuple():
            return [_settled(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case set() | frozenset():
            items = [to_jsonable_python(_settled(item), fallback=str) for item in value]  # pyright: ignore[reportUnknownVariableType]
            return sorted(items, key=lambda item: (str(type(item)), item if isinstance(item, int | float | str) else orjson.dumps(item)))
        case _:
            return value


def _refs(schema: Any) -> list[str]:
    if isinstance(schema, dict):
        found = [name for item in schema.values() for name in _refs(item)]  # pyright: ignore[reportUnknownVariableType]
        ref = schema.get("$ref")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return [*found, ref.removeprefix("#/$defs/")] if isinstance(ref, str) else found
    if isinstance(schema, list):
        return [name for item in schema for name in _refs(item)]  # pyright: ignore[reportUnknownVariableType]
    return []


def _recursive(name: str, definitions: Mapping[str, Any]) -> bool:
    seen: set[str] = set()
    ahead = _refs(definitions[name])
    while ahead:
        at = ahead.pop()
        if at == name:
            return True
        if at not in seen and at in definitions:
            seen.add(at)
            ahead += _refs(definitions[at])
    return False


def _inlined(schema: Any, definitions: Mapping[str, Any], once: set[str]) -> Any:
    if isinstance(schema, list):
        return [_inlined(item, definitions, once) for item in schema]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {key: _inlined(item, definitions, once) for key, item in schema.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    name = str(found.get("$ref", "")).removeprefix("#/$defs/")
    if name not in once:
        return found
    del found["$ref"]
    return {**_inlined(definitions[name], definitions, once), **found}


def _modern(hint: Any) -> Any:
    """The hint with `typing.TypedDict`s as pydantic takes them on Python 3.11."""
    if sys.version_info >= (3, 12):
        return hint
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        return _modern_typed_dict(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal or not arguments:
        return hint
    if origin is Annotated:
        return Annotated[(_modern(hint.__origin__), *hint.__metadata__)]
    modern = tuple(_modern(each) if not isinstance(each, list) else each for each in arguments)
    if modern == arguments:
        return hint
    if origin is types.UnionType or origin is typing.Union:
        return functools.reduce(operator.or_, modern)
    return types.GenericAlias(origin, modern)  # pyright: ignore[reportArgumentType]


@functools.cache
def _modern_typed_dict(hint: Any) -> Any:
    import typing_extensions

    hints = typing.get_type_hints(hint, include_extras=True)
    fields: dict[str, Any] = {}
    for name, each in hints.items():
        bare = each
        while typing.get_origin(bare) in {typing.Required, typing.NotRequired}:
            bare = typing.get_args(bare)[0]
        needed = name in hint.__required_keys__
        fields[name] = (typing.Required if needed else typing.NotRequired)[_modern(bare)]
    return typing_extensions.TypedDict(hint.__name__, fields)  # pyright: ignore

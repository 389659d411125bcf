"""From hints to a JSON Schema and a validator; loads pydantic, so it is imported on first use."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import (
    PydanticSerializationError,
    PydanticUndefined,
    SchemaSerializer,
    core_schema,
    to_jsonable_python,
)

from nbagent.errors import ToolDefinitionError
from nbagent.tools.mending import INT_MAX, INT_MIN, children
from nbagent.tools.signature import VAR_POSITIONAL, Argument, Signature, plain_description

__all__ = ["Built", "build", "compact", "json_arguments", "json_form"]

EMPTY = inspect.Parameter.empty


class Built(NamedTuple):
    """What is made of a signature."""

    model: type[BaseModel]
    """Its fields are `p0`, `p1`, … with the arguments' names as aliases: any name will do."""
    schema: dict[str, Any]
    """The arguments' JSON Schema, without what only costs tokens."""
    hidden: frozenset[str]
    """Fields whose default JSON has no form for, such as NaN."""


def build(tool: str, signature: Signature, docs: Mapping[str, str]) -> Built:
    """A validator and a schema for the arguments of a function.

    Raises
    ------
    ToolDefinitionError
        If a hint is of a kind that no JSON can give.
    """
    try:
        return _build(signature.arguments, docs)
    except Exception as error:
        for argument in signature.arguments:
            try:
                _build((argument,), docs)
            except Exception as cause:
                raise ToolDefinitionError(_unusable(tool, argument, cause)) from cause
        msg = f"tool `{tool}`: no schema can be made of its hints: {_first_line(error)}"
        raise ToolDefinitionError(msg) from error


def json_form(value: Any) -> Any:
    """The plain JSON of a value: sets as sorted lists, integers beyond 64 bits as text.

    Raises
    ------
    ValueError
        If JSON has no form for it, as for NaN, or for objects of unknown kinds.
    """
    return to_jsonable_python(_settled(_ANY.to_python(value)))


def json_arguments(model: BaseModel, hidden: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The plain JSON of validated arguments, under their own names.

    Raises
    ------
    ValueError
        As `json_form`.
    """
    unseen = set(hidden - model.__pydantic_fields_set__) or None
    values = model.__pydantic_serializer__.to_python(
        model, by_alias=True, exclude=unseen, warnings=False
    )
    return to_jsonable_python(_settled(values), fallback=str)


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without class titles, with definitions that are used once put in their place."""
    definitions: dict[str, Any] = schema.pop("$defs", {})
    for each in (schema, *definitions.values()):
        each.pop("title", None)
    refs = [name for each in (schema, *definitions.values()) for name in _refs(each)]
    once = {
        name for name in definitions if refs.count(name) == 1 and not _recursive(name, definitions)
    }
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


def _build(arguments: tuple[Argument, ...], docs: Mapping[str, str]) -> Built:
    config = ConfigDict(extra="forbid", allow_inf_nan=False)
    fields: dict[str, Any] = {f"p{n}": _field(each, docs) for n, each in enumerate(arguments)}
    model = create_model("Arguments", __config__=config, **fields)
    schema = _ordered(compact(model.model_json_schema(by_alias=True, schema_generator=_Schema)))
    orjson.dumps(schema)  # a schema that the log can't hold is refused here
    hidden = frozenset(
        name for name, field in model.model_fields.items() if not _has_json_default(field.default)
    )
    return Built(model, schema, hidden)


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = schema.pop("properties", {})
    for each in properties.values():
        # `n: int = None`: the function takes it, but the model may not send it.
        if each.get("default", 0) is None and each.get("type", "null") != "null":
            del each["default"]
    return {"type": "object", "properties": properties, **schema}


def _has_json_default(default: Any) -> bool:
    if default is PydanticUndefined:
        return True
    try:
        json_form(default)
    except ValueError:
        return False
    return True


def _field(argument: Argument, docs: Mapping[str, str]) -> tuple[Any, Any]:
    words = plain_description(argument.hint) or docs.get(argument.name)
    hint: Any = _modern(argument.hint)
    metadata: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    bare = hint.__origin__ if metadata else hint
    # The docstring in front, so that a description in the hint's own Field wins; the name behind.
    front = (Field(description=words),) if words else ()
    hint = Annotated[(bare, *front, *metadata, Field(alias=argument.name))]
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
            number = int.__int__(value)  # a class of its own may compare as it likes
            return number if INT_MIN <= number <= INT_MAX else str(number)
        case float():
            if value - value != 0:
                msg = f"{value} is not a number that JSON has"
                raise ValueError(msg)
            return value
        case dict():
            return {key: _settled(item) for key, item in _dict(value).items()}
        case list() | tuple():
            return [_settled(item) for item in _items(value)]
        case set() | frozenset():
            items = [to_jsonable_python(_settled(item), fallback=str) for item in _items(value)]
            return sorted(items, key=_order)
        case _:
            return value


def _order(item: Any) -> tuple[bool, Any]:
    number = isinstance(item, int | float)
    return (not number, item if number else orjson.dumps(item))


def _dict(value: Any) -> dict[Any, Any]:
    return value


def _items(value: Any) -> Iterable[Any]:
    return value


def _refs(schema: Any) -> list[str]:
    found = [name for item in children(schema) for name in _refs(item)]
    ref = _dict(schema).get("$ref") if isinstance(schema, dict) else None
    return [*found, ref.removeprefix("#/$defs/")] if isinstance(ref, str) else found


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
        return [_inlined(item, definitions, once) for item in _items(schema)]
    if not isinstance(schema, dict):
        return schema
    found = {
        key: _inlined(item, definitions, once)
        for key, item in _dict(schema).items()
        # No bound at all, which JSON can't write.
        if not (isinstance(item, float) and item - item != 0)
    }
    if "oneOf" in found:
        found.pop("discriminator", None)  # OpenAPI's, not JSON Schema's
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
    origin: Any = typing.get_origin(hint)
    arguments: tuple[Any, ...] = typing.get_args(hint)
    if origin is Literal or not arguments:
        return hint
    if origin is Annotated:
        return Annotated[(_modern(hint.__origin__), *hint.__metadata__)]
    modern = tuple(_modern(each) for each in arguments)
    if modern == arguments:
        return hint
    if origin is types.UnionType or origin is typing.Union:
        return typing.Union[modern]  # noqa: UP007 - made of a tuple
    return types.GenericAlias(origin, modern)


@functools.cache
def _modern_typed_dict(hint: Any) -> Any:
    import typing_extensions

    hints = typing.get_type_hints(hint, include_extras=True)
    fields: dict[str, Any] = {}
    for name, each in hints.items():
        marks: Any = typing.Required if name in hint.__required_keys__ else typing.NotRequired
        bare: Any = each
        if typing.get_origin(each) in {typing.Required, typing.NotRequired}:
            # In text annotations the class itself hasn't seen the mark.
            marks, bare = typing.get_origin(each), typing.get_args(each)[0]
        fields[name] = marks[_modern(bare)]
    make: Any = typing_extensions.TypedDict
    made = make(hint.__name__, fields)
    made.__doc__ = hint.__doc__
    return made

"""Readers: from the text that a model wrote to arguments that gates and bodies can rely on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import Arguments, Tool
from nbagent.repair import shown_value
from nbagent.tools.foreign import SchemaReader
from nbagent.tools.mending import at, container_in, place_of, put, whole_characters
from nbagent.tools.parsing import parse, plain_copy, refusal, shown_path
from nbagent.tools.signature import (
    POSITIONAL_ONLY,
    POSITIONAL_OR_KEYWORD,
    VAR_POSITIONAL,
    Docs,
    Signature,
    source_of,
    wants_context,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nbagent.tools.schema import Built

__all__ = ["FunctionReader", "complete", "rebind"]

MOST_REPAIRS = 4
"""Rounds of mending what didn't fit: each may uncover the next level."""
WANTS_CONTAINER = frozenset(
    f"{kind}_type"
    for kind in (
        "arguments", "dataclass", "dict", "dataclass_exact", "frozen_set", "iterable", "list",
        "mapping", "model", "model_attributes", "set", "tuple", "typed_dict",
    )
)  # fmt: skip
"""pydantic's error types for text where an object or an array should be."""
INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""What the JSON of the log can hold as a number."""


def complete(tool: Tool) -> Tool:
    """The tool ready for an agent: schema checked, with a reader, source text and context flag.

    Raises
    ------
    ToolDefinitionError
        If the schema is none, or a hint is of a kind that no JSON can give.
    """
    source = tool.source or source_of(tool.call)
    if tool.reader is not None:
        if not isinstance(tool.parameters, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            msg = f"tool `{tool.name}`: parameters must be a JSON Schema, a dict"
            raise ToolDefinitionError(msg)
        return tool if tool.source else replace(tool, source=source)
    reader = SchemaReader(tool.name, tool.parameters)
    context = tool.takes_context or wants_context(tool.call)
    return replace(
        tool, parameters=reader.schema, reader=reader, source=source, takes_context=context
    )


def rebind(tool: Tool, value: Mapping[str, Any]) -> Arguments:
    """Arguments from plain JSON, for a gate's rewrite or a person's edit.

    Raises
    ------
    ArgumentsError
        As when a model had sent them.
    """
    reader = tool.reader or SchemaReader(tool.name, tool.parameters)
    if isinstance(reader, FunctionReader | SchemaReader):
        return reader.rebind(value)
    return reader(json.dumps(plain_copy(value, tool.name)))


class FunctionReader:
    """Reads the arguments of one function; schema and validator are built on first use.

    Parameters
    ----------
    tool
        The tool's name, for what the model reads.
    signature
        The function's arguments.
    docs
        What gives the docstring's words.
    """

    def __init__(self, tool: str, signature: Signature, docs: Callable[[], Docs]) -> None:
        self.tool = tool
        self.signature = signature
        self._docs = docs

    def __call__(self, text: str) -> Arguments:
        """Read the text of a call.

        Raises
        ------
        ArgumentsError
            If it isn't what the function takes; the message lists every problem.
        """
        validate = self._strict
        try:
            model = validate(text)
        except Exception:  # noqa: BLE001 - a user's validator may raise anything; told below
            parsed = parse(text, self.tool)
            return self._check(parsed.value, parsed.notes)
        return self._arguments(model)

    def rebind(self, value: Mapping[str, Any]) -> Arguments:
        """Read plain JSON as if a model had sent it."""
        return self._check(plain_copy(value, self.tool), [])

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return self._built.schema

    @cached_property
    def docs(self) -> Docs:
        """The docstring's words."""
        return self._docs()

    @cached_property
    def _built(self) -> Built:
        from nbagent.tools.schema import build

        return build(self.tool, self.signature, self.docs.arguments)

    @cached_property
    def _lax(self) -> Callable[..., BaseModel]:
        return self._built.model.__pydantic_validator__.validate_json

    @cached_property
    def _strict(self) -> Callable[[str], BaseModel]:
        return partial(self._lax, strict=True)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.signature.arguments)

    @cached_property
    def _by_position(self) -> tuple[str, ...]:
        arguments = self.signature.arguments
        starred = any(each.kind == VAR_POSITIONAL for each in arguments)
        kinds = {POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD} if starred else {POSITIONAL_ONLY}
        return tuple(each.name for each in arguments if each.kind in kinds)

    @cached_property
    def _star(self) -> str | None:
        starred = (each.name for each in self.signature.arguments if each.kind == VAR_POSITIONAL)
        return next(starred, None)

    def _arguments(self, model: BaseModel, repaired: str | None = None) -> Arguments:
        values = dict(zip(self._names, model.__dict__.values(), strict=True))
        try:
            value = {name: _copied(item) for name, item in values.items()}
        except _NotPlainError:
            value = self._json(model)
        return Arguments(value, self._bind(values), repaired)

    def _bind(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not self._by_position and not self._star:
            return (), values
        positional = [values.pop(name) for name in self._by_position]
        if self._star:
            positional += values.pop(self._star)
        return tuple(positional), values

    def _json(self, model: BaseModel) -> dict[str, Any]:
        from nbagent.tools.schema import json_arguments

        try:
            return json_arguments(model, self._built.hidden)
        except Exception as error:
            raise refusal(self.tool, [str(error)], self.schema) from error

    def _check(self, raw: dict[str, Any], notes: list[str]) -> Arguments:
        raw, notes = whole_characters(raw, notes)
        checked = _Checked(None, ())
        if not self._names and raw:
            notes = [*notes, f"left out, since it takes no arguments: {', '.join(raw)}"]
            raw = {}
        for _ in range(MOST_REPAIRS):
            checked = self._validate(raw)
            if checked.model is not None:
                arguments = self._arguments(checked.model)
                notes = [*notes, *_coerced(raw, arguments.value, checked.errors)]
                return arguments._replace(repaired="; ".join(notes) or None)
            mended = self._mend(raw, checked.errors)
            if not mended:
                break
            notes = [*notes, *mended]
        raise refusal(self.tool, _problems(raw, checked.errors), self.schema)

    def _validate(self, raw: dict[str, Any]) -> _Checked:
        from pydantic import ValidationError

        text = json.dumps(raw)
        errors: Sequence[Any] = ()
        for validate in (self._strict, self._lax):
            try:
                return _Checked(validate(text), errors)
            except ValidationError as error:
                errors = error.errors(include_url=False)
            except Exception as error:  # a user's validator may raise anything
                problem = f"the check of the arguments failed: {type(error).__name__}: {error}"
                raise refusal(self.tool, [problem], self.schema) from error
        return _Checked(None, errors)

    def _mend(self, raw: dict[str, Any], errors: Sequence[Any]) -> list[str]:
        """Change `raw` where a slip is plain, and say what was changed."""
        notes: list[str] = []
        for error in errors:
            path = place_of(raw, error["loc"])
            found = at(raw, path)
            if not path:
                continue
            if error["type"] in WANTS_CONTAINER and isinstance(found, str):
                decoded = container_in(found)
                if decoded is not None:
                    put(raw, path, decoded)
                    notes.append(f"{shown_path(path)} was JSON text, decoded")
            elif found is None and len(path) == 1 and path[0] in raw and self._has_default(path[0]):
                del raw[str(path[0])]
                notes.append(f"{shown_path(path)} was null, its default taken")
        return notes

    def _has_default(self, name: str | int) -> bool:
        return name not in self.schema.get("required", ())


class _Checked(NamedTuple):
    model: BaseModel | None
    errors: Sequence[Any]
    """Without a model what is wrong; with one what was wrong by the strict reading."""


class _NotPlainError(Exception):
    """Raised at a value that is no plain JSON, or none that the log can hold."""


def _copied(value: Any) -> Any:
    """The function's own value again, if it is plain JSON, sharing nothing that can change."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind is str or kind is bool or value is None:
        return value
    if kind is int and INT_MIN <= value <= INT_MAX:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [_copied(item) for item in value]
    if kind is dict and all(type(key) is str for key in value):  # pyright: ignore[reportUnknownArgumentType]
        return {key: _copied(item) for key, item in value.items()}
    raise _NotPlainError


def _coerced(raw: Any, value: Any, errors: Sequence[Any]) -> list[str]:
    """What the lax reading changed, in words."""
    notes: dict[str, None] = {}
    for error in errors:
        place = place_of(raw, error["loc"])
        try:
            before, after = at(raw, place), at(value, place)
        except (LookupError, TypeError):
            continue
        if place and (before != after or isinstance(before, bool) != isinstance(after, bool)):
            notes[f"{shown_path(place)}: {shown_value(before)} read as {shown_value(after)}"] = None
    return list(notes)


def _problems(raw: Any, errors: Sequence[Any]) -> list[str]:
    """One line for each place where something is wrong."""
    wishes: dict[tuple[str | int, ...], list[str]] = {}
    for error in errors:
        place = place_of(raw, error["loc"])
        if error["type"].startswith("missing"):
            place = (*place, error["loc"][-1])
        wish = _wish(error)
        if wish not in wishes.setdefault(place, []):
            wishes[place].append(wish)
    return [_line(raw, place, wish) for place, wish in wishes.items()]


def _wish(error: Mapping[str, Any]) -> str:
    kind: str = error["type"]
    if kind.startswith("missing"):
        return "is missing"
    if kind in {"extra_forbidden", "unexpected_keyword_argument"}:
        return "is not an argument" if len(error["loc"]) == 1 else "is not known here"
    message: str = error["msg"]
    for start in ("Input ", "Value error, ", "Assertion failed, "):
        message = message.removeprefix(start)
    return message


def _line(raw: Any, place: tuple[str | int, ...], wishes: Sequence[str]) -> str:
    wish = " or ".join([wishes[0], *(each.removeprefix("should be ") for each in wishes[1:])])
    if wish.startswith("is "):
        return f"{shown_path(place)} {wish}"
    return f"{shown_path(place)} {wish}; it was {shown_value(at(raw, place))}"

"""`@nb.tool`: a function becomes a tool."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from typing import Any, Literal, overload

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import Diff, Risk, Tool
from nbagent.keywords import check_keywords
from nbagent.tools.arguments import FunctionReader
from nbagent.tools.signature import read_docs, read_signature, source_of

__all__ = ["FunctionTool", "tool"]

LATER: dict[str, Any] = {}
"""Stands for a schema that is built when it is first asked for."""


class FunctionTool(Tool):
    """A tool made from a function: schema and description are made when first asked for.

    Making the schema loads pydantic, which `import nbagent` and the cell that defines a tool don't.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.__dict__["parameters"] is LATER:
            del self.__dict__["parameters"]
        if not self.__dict__["description"]:
            del self.__dict__["description"]

    @cached_property
    def parameters(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleVariableOverride] - set by the base's __init__ as well
        """JSON Schema of the arguments."""
        return self._reader.schema

    @cached_property
    def description(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - set by the base's __init__ as well
        """What it does: the docstring, else the name in words."""
        return self._reader.docs.text or _in_words(self.name)

    @property
    def _reader(self) -> FunctionReader:
        if isinstance(self.reader, FunctionReader):
            return self.reader
        msg = f"tool `{self.name}`: give `parameters` and `description` along with a reader of your own"
        raise ToolDefinitionError(msg)

    def __repr__(self) -> str:
        reader = self.reader
        arguments = reader.signature.arguments if isinstance(reader, FunctionReader) else ()
        return f"<tool {self.name}({', '.join(each.name for each in arguments)}), {self.risk}>"


@overload
def tool(
    function: None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "unspecified",
    domain: str = "local",
    parallel: bool | Callable[[dict[str, Any]], bool] | None = None,
    where: Literal["auto", "cell"] = "auto",
    timeout_s: float | None = None,
    tags: Iterable[str] = (),
    preview: Callable[[dict[str, Any]], str | Diff] | None = None,
    needs_approval: bool | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
@overload
def tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "unspecified",
    domain: str = "local",
    parallel: bool | Callable[[dict[str, Any]], bool] | None = None,
    where: Literal["auto", "cell"] = "auto",
    timeout_s: float | None = None,
    tags: Iterable[str] = (),
    preview: Callable[[dict[str, Any]], str | Diff] | None = None,
    needs_approval: bool | None = None,
) -> Tool: ...
@check_keywords("tool")
def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    description: str | None = None,
    risk: Risk = "unspecified",
    domain: str = "local",
    parallel: bool | Callable[[dict[str, Any]], bool] | None = None,
    where: Literal["auto", "cell"] = "auto",
    timeout_s: float | None = None,
    tags: Iterable[str] = (),
    preview: Callable[[dict[str, Any]], str | Diff] | None = None,
    needs_approval: bool | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """A tool out of a function: `@nb.tool`, `@nb.tool(risk="readonly")` or `nb.tool(f, …)`.

    Name, description and arguments are taken from the function: its hints become the schema that
    the model sees, its docstring (google, numpy or sphinx style) says what it and each argument
    mean. A first parameter annotated `nb.ToolContext` gets the run's context and isn't shown.

    Parameters
    ----------
    function
        Sync or async; also a method, an object with `__call__` or a `functools.partial` (what
        that fixes by keyword is not for the model to give).
    name, description
        What the model sees; None = the function's.
    risk, domain, parallel, where, timeout_s, tags, preview
        As in `Tool`.
    needs_approval
        True makes an unspecified risk "mutating".

    Raises
    ------
    ToolDefinitionError
        If a hint is missing or can't be read, or a setting is not as described. That a type is
        none that a model can write is found when an agent is made.

    Examples
    --------
    >>> @tool(risk="readonly")
    ... def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> add
    <tool add(a, b), readonly>
    >>> add(2)
    3
    >>> add.parameters["properties"]["b"]
    {'default': 1, 'type': 'integer'}
    """
    make = partial(
        _make,
        name=name,
        description=description or "",
        needs_approval=needs_approval,
        risk=risk,
        domain=domain,
        parallel=parallel,
        where=where,
        timeout_s=timeout_s,
        tags=(tags,) if isinstance(tags, str) else tuple(tags),
        preview=preview,
    )
    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None,
    description: str,
    risk: Risk,
    needs_approval: bool | None,
    **settings: Any,
) -> Tool:
    function = _plain_function(function)
    name = name or _name_of(function)
    signature = read_signature(function, name)
    return FunctionTool(
        name,
        description,
        LATER,
        function,
        risk=_risk(name, risk, needs_approval),
        source=source_of(function),
        takes_context=signature.takes_context,
        reader=FunctionReader(name, signature, partial(read_docs, function)),
        **settings,
    )


def _plain_function(function: Any) -> Callable[..., Any]:
    if isinstance(function, staticmethod):
        return function.__func__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if isinstance(function, Tool):
        msg = f"`{function.name}` is a tool already; give all settings in one `nb.tool(…)`"
    elif isinstance(function, classmethod):
        msg = "make the tool of the bound method, outside the class: nb.tool(TheClass.method)"
    elif isinstance(function, type):
        msg = f"`{function.__name__}` is a class; make the tool of a function or of a method of an object"
    elif not callable(function):
        msg = f"a tool is made of a function, not of {function!r:.60}"
    else:
        return function
    raise ToolDefinitionError(msg)


def _name_of(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    name: str = getattr(function, "__name__", "") or type(function).__name__  # pyright: ignore[reportUnknownArgumentType]
    if name == "<lambda>":
        msg = "a lambda has neither a name nor hints; define a function with `def`"
        raise ToolDefinitionError(msg)
    return name


def _risk(name: str, risk: Risk, needs_approval: bool | None) -> Risk:  # noqa: FBT001 - as in the public argument
    if not needs_approval:
        return risk
    if risk == "readonly":
        msg = (
            f'tool `{name}`: needs_approval=True contradicts risk="readonly", which runs without '
            'asking; write risk="mutating"'
        )
        raise ToolDefinitionError(msg)
    return "mutating" if risk == "unspecified" else risk


def _in_words(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ")
    words = " ".join(spaced.split()) or name
    return f"{words[0].upper()}{words[1:]}."

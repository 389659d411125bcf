"""What can be told of a function without building anything: arguments, words and source text.

Only the standard library is loaded here; docstrings are read when a description is first needed.
"""

from __future__ import annotations

import builtins
import dis
import hashlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import ToolContext

__all__ = [
    "Argument",
    "Docs",
    "Signature",
    "plain_description",
    "read_docs",
    "read_signature",
    "source_of",
    "wants_context",
]

KEYWORD_ONLY = int(inspect.Parameter.KEYWORD_ONLY)
POSITIONAL_ONLY = int(inspect.Parameter.POSITIONAL_ONLY)
POSITIONAL_OR_KEYWORD = int(inspect.Parameter.POSITIONAL_OR_KEYWORD)
VAR_KEYWORD = int(inspect.Parameter.VAR_KEYWORD)
VAR_POSITIONAL = int(inspect.Parameter.VAR_POSITIONAL)
EMPTY = inspect.Parameter.empty
WAY_OUT = "or make the tool by hand: nb.Tool(name=…, description=…, parameters={…}, call=…)"


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that the model may give."""

    name: str
    kind: int
    """One of `inspect.Parameter`'s kinds."""
    hint: Any
    """The evaluated hint; of `*rest: int` it is `list[int]`."""
    default: Any = EMPTY


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a function, without the context and without what a `partial` has fixed."""

    arguments: tuple[Argument, ...]
    takes_context: bool = False


class Docs(NamedTuple):
    """The words of a docstring."""

    text: str
    """What the function does; empty without a docstring."""
    arguments: dict[str, str]
    """What each argument means, as far as the docstring says."""


def read_signature(function: Callable[..., Any], tool: str) -> Signature:
    """The arguments of a function with their hints evaluated.

    Parameters
    ----------
    function
        A function, method, `functools.partial` or an object with `__call__`.
    tool
        The tool's name, for errors.

    Raises
    ------
    ToolDefinitionError
        If a hint is missing or can't be evaluated, if there is a `**kwargs`, or if a
        `ToolContext` isn't the first argument.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError, NameError) as error:
        msg = f"tool `{tool}`: its arguments can't be read ({error}); write a small function around it, {WAY_OUT}"
        raise ToolDefinitionError(msg) from error
    names = _Names(function)
    parameters = [each for each in found if each.name not in _fixed(function)]
    takes_context = bool(parameters) and _is_context(parameters[0], names)
    if takes_context and parameters[0].kind == KEYWORD_ONLY:
        raise ToolDefinitionError(_context_first(tool, parameters[0].name))
    arguments = tuple(_argument(each, names, tool) for each in parameters[takes_context:])
    return Signature(arguments, takes_context)


def _fixed(function: Any) -> Mapping[str, Any]:
    return function.keywords if isinstance(function, partial) else {}


def wants_context(function: Callable[..., Any]) -> bool:
    """Whether the first argument is annotated as `ToolContext`; False if that can't be told."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (ValueError, TypeError, NameError):
        return False
    return first is not None and _is_context(first, _Names(function))


def read_docs(function: Callable[..., Any]) -> Docs:
    """The docstring's words, in google, numpy or sphinx style; empty ones without a docstring."""
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    text = inspect.getdoc(inner) if _is_routine(inner) else _doc_of_object(inner)
    if not text:
        return Docs("", {})
    import docstring_parser

    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return Docs(text.strip(), {})
    described = parsed.description or parsed.short_description or ""
    arguments = {
        name.strip().lstrip("*"): " ".join((each.description or "").split())
        for each in parsed.params
        for name in each.arg_name.split(",")
    }
    return Docs(described.strip(), {name: words for name, words in arguments.items() if words})


def source_of(function: Callable[..., Any]) -> str:
    """The source text of a function, or a digest of its bytecode where there is no text."""
    if isinstance(function, partial):
        bound = _without_addresses(repr((function.args, sorted(function.keywords.items()))))
        return f"{source_of(function.func)}\n# partial {bound}"
    named = _is_routine(function) or isinstance(function, type)
    plain: Any = inspect.unwrap(function if named else type(function).__call__)
    try:
        return textwrap.dedent(inspect.getsource(plain))
    except (OSError, TypeError, SyntaxError, IndexError):
        code = getattr(plain, "__code__", None)
        if not isinstance(code, types.CodeType):
            home = getattr(plain, "__module__", None) or type(plain).__module__
            return f"{home}.{getattr(plain, '__qualname__', type(plain).__name__)}"
        return f"bytecode:{hashlib.blake2b(_code_bytes(code), digest_size=16).hexdigest()}"


class _Names:
    """Where the names in text annotations are looked up: globals, closure, the defining frame."""

    def __init__(self, function: Callable[..., Any]) -> None:
        inner: Any = function
        while isinstance(inner, partial):
            inner = inner.func
        if not _is_routine(inner):
            inner = type(inner).__call__
        self.inner: Any = inspect.unwrap(inner)

    def evaluate(self, hint: Any) -> Any:
        """The hint without text in it.

        Raises
        ------
        Exception
            Whatever evaluating the text raises, `NameError` above all.
        """
        try:
            return self._evaluate(hint, self._closure())
        except NameError:
            return self._evaluate(hint, {**_frame_names(), **self._closure()})

    def _evaluate(self, hint: Any, local: Mapping[str, Any]) -> Any:
        if hint is None or isinstance(hint, type):
            return hint
        holder = types.SimpleNamespace(__annotations__={"hint": hint})
        module: Mapping[str, Any] = getattr(self.inner, "__globals__", vars(builtins))
        found = typing.get_type_hints(holder, dict(module), dict(local), include_extras=True)
        return found["hint"]

    def _closure(self) -> dict[str, Any]:
        function: Any = getattr(self.inner, "__func__", self.inner)
        names: tuple[str, ...] = getattr(getattr(function, "__code__", None), "co_freevars", ())
        cells: tuple[types.CellType, ...] = getattr(function, "__closure__", None) or ()
        found: dict[str, Any] = {
            each.__name__: each for each in getattr(function, "__type_params__", ())
        }
        for name, cell in zip(names, cells, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:  # the variable has no value yet
                continue
        return found


def _frame_names() -> dict[str, Any]:
    # Hints may name what is local to the function in which the tool is defined.
    frame = inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__")).partition(".")[0] == "nbagent":
        frame = frame.f_back
    return dict(frame.f_locals) if frame else {}


def _is_context(parameter: inspect.Parameter, names: _Names) -> bool:
    hint = parameter.annotation
    if hint is ToolContext:
        return True
    if not isinstance(hint, str):
        return False
    try:
        return names.evaluate(hint) is ToolContext
    except Exception:  # noqa: BLE001 - text of any kind may stand here; `_argument` reports it
        # Such as `nb.ToolContext` imported for type checking only.
        return hint.rpartition(".")[2].strip("'\" ") == "ToolContext"


def _argument(parameter: inspect.Parameter, names: _Names, tool: str) -> Argument:
    name, kind, default = parameter.name, parameter.kind, parameter.default
    if kind == VAR_KEYWORD:
        msg = (
            f"tool `{tool}`: `**{name}` can't be described to a model; name the arguments one by "
            f"one, take one argument such as `{name}: dict[str, Any]`, {WAY_OUT}"
        )
        raise ToolDefinitionError(msg)
    if parameter.annotation is EMPTY:
        raise ToolDefinitionError(_no_hint(parameter, tool))
    try:
        hint = names.evaluate(parameter.annotation)
    except Exception as error:
        raise ToolDefinitionError(_bad_hint(parameter, tool, error)) from error
    if hint is ToolContext:
        raise ToolDefinitionError(_context_first(tool, name))
    if kind == VAR_POSITIONAL:
        hint = types.GenericAlias(list, (hint,))
    return Argument(name, kind, hint, default)


def _no_hint(parameter: inspect.Parameter, tool: str) -> str:
    name, default = parameter.name, parameter.default
    if name in {"self", "cls"}:
        return (
            f"tool `{tool}`: `{name}` is not for a model to give; make the tool of the method of "
            f"an object: nb.tool(thing.{tool})"
        )
    if name in {"ctx", "context"}:
        meant = f"`{name}: nb.ToolContext` (first) for the run's context, or a type such as `{name}: str`"
    elif parameter.kind == VAR_POSITIONAL:
        meant = f"for instance `*{name}: str`"
    elif default is EMPTY or default is None:
        meant = f"for instance `{name}: str`" + (
            "" if default is EMPTY else " or `str | None = None`"
        )
    else:
        meant = f"for instance `{name}: {type(default).__name__} = {_short(default)}`"
    return (
        f"tool `{tool}`: argument `{name}` has no type hint, so a model can't be told what to "
        f"send; write {meant}"
    )


def _bad_hint(parameter: inspect.Parameter, tool: str, error: Exception) -> str:
    hint = parameter.annotation
    text = hint.strip("'\"") if isinstance(hint, str) else _short(hint)
    if isinstance(error, NameError):
        return (
            f"tool `{tool}`: the hint `{text}` of argument `{parameter.name}` names something "
            f"that isn't known where the tool is defined ({error}); define or import it before "
            "the tool (an import under TYPE_CHECKING doesn't count)"
        )
    return (
        f"tool `{tool}`: the hint `{text}` of argument `{parameter.name}` can't be read: "
        f"{type(error).__name__}: {error}"
    )


def _context_first(tool: str, name: str) -> str:
    return f"tool `{tool}`: the context must be the first argument: `def {tool}({name}: nb.ToolContext, …)`"


def plain_description(hint: Any) -> str | None:
    """The first piece of text in an `Annotated[…]`, which other toolkits take as description."""
    if typing.get_origin(hint) is not Annotated:
        return None
    return next((each for each in hint.__metadata__ if isinstance(each, str)), None)


def _is_routine(value: Any) -> bool:
    return inspect.isroutine(value) or hasattr(value, "__code__")


def _doc_of_object(value: Any) -> str | None:
    call = type(value).__call__
    return inspect.getdoc(call) if getattr(call, "__doc__", None) else inspect.getdoc(value)


def _short(value: Any, most: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _code_bytes(code: types.CodeType) -> bytes:
    return b"\0".join(_code_pieces(code))


def _code_pieces(code: types.CodeType) -> Iterator[bytes]:
    yield "\n".join(f"{each.opname} {each.arg}" for each in dis.get_instructions(code)).encode()
    yield repr((code.co_names, code.co_varnames, code.co_freevars)).encode()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield _code_bytes(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant))).encode()  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield _without_addresses(repr(constant)).encode()

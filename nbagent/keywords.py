"""What people meet first: arguments that are spelled wrong, and `help()` of a record."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from nbagent.errors import KeywordError

__all__ = ["check_keywords", "record"]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def check_keywords(owner: str) -> Callable[[F], F]:
    """Decorator: a keyword that the function doesn't take is told with what was meant.

    Parameters
    ----------
    owner
        What people call it, such as `Agent`.

    Examples
    --------
    >>> @check_keywords("paint")
    ... def paint(*, colour: str = "red") -> None: ...
    >>> paint(color="blue")
    Traceback (most recent call last):
        ...
    nbagent.errors.KeywordError: paint has no argument `color`: did you mean `colour`? It takes: colour
    """

    def decorate(function: F) -> F:
        code = cast("Any", function).__code__
        # The names are read off the code: a signature costs more than the whole import may.
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = frozenset(names[code.co_posonlyargcount :])

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not known.issuperset(kwargs):
                raise KeywordError(_said(owner, names, kwargs, known))
            return function(*args, **kwargs)

        @functools.wraps(function)
        async def checked_async(*args: Any, **kwargs: Any) -> Any:
            if not known.issuperset(kwargs):
                raise KeywordError(_said(owner, names, kwargs, known))
            return await function(*args, **kwargs)

        return cast("F", checked_async if inspect.iscoroutinefunction(function) else checked)

    return decorate


def record(*, keywords: bool = False) -> Callable[[C], C]:
    """Decorator above `@dataclass`: its `help()` is about the record, not about how it was made.

    Parameters
    ----------
    keywords
        Whether people make it themselves: then as `check_keywords`.
    """

    def decorate(cls: C) -> C:
        own = vars(cls)
        if "__getstate__" in own:  # those of dataclasses come with a comment on their speed
            cls.__getstate__, cls.__setstate__ = _state_of(cls)
        if keywords:
            cls.__init__ = check_keywords(cls.__name__)(own["__init__"])
        for name, words in _WORDS.items():
            if inspect.isfunction(own.get(name)) and not own[name].__doc__:
                own[name].__doc__ = words
        return cls

    return decorate


def _said(owner: str, names: tuple[str, ...], kwargs: dict[str, Any], known: frozenset[str]) -> str:
    import difflib

    takes = [name for name in names if name in known and name not in ("self", "cls")]
    wrong = next(name for name in kwargs if name not in known)
    close = difflib.get_close_matches(wrong, takes, 1)
    meant = f"did you mean `{close[0]}`? " if close else ""
    return f"{owner} has no argument `{wrong}`: {meant}It takes: {', '.join(takes)}"


def _state_of(cls: type) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What `copy` and `pickle` need of a frozen class with slots."""
    names = [field.name for field in dataclasses.fields(cls)]

    def __getstate__(self: Any) -> list[Any]:  # noqa: N807 - it becomes the class's
        return [getattr(self, name) for name in names]

    def __setstate__(self: Any, state: list[Any]) -> None:  # noqa: N807 - it becomes the class's
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return __getstate__, __setstate__


_WORDS = {
    "__init__": "Make one; what is given stands above.",
    "__post_init__": "Check what was given.",
    "__eq__": "Equal if all fields are, and the class is the same.",
    "__hash__": "Of all fields.",
    "__repr__": "The call that makes such a one.",
    "__str__": "As text.",
    "__setattr__": "Refused: a record doesn't change; `dataclasses.replace` makes another one.",
    "__delattr__": "Refused: a record doesn't change.",
    "__getstate__": "The fields, for copies.",
    "__setstate__": "Put the fields into a copy.",
}

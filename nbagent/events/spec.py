"""How an event type is declared, and the typed, frozen view that is made of it on first access."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, NamedTuple

__all__ = ["REQUIRED", "Field", "Spec"]

REQUIRED: Any = object()
"""Marks a field without default: it always stands in the line."""


class Field(NamedTuple):
    """One field of an event's data."""

    name: str
    type: Any
    default: Any = REQUIRED
    """Left out of the line when the value equals it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One event type."""

    doc: str
    fields: tuple[Field, ...] = ()
    surface: bool = False
    """Whether it enters what the model sees."""
    located: str = ""
    """Which of turn, step, attempt the view adds from where the event stands: "", t, ts or tsa."""


_views: dict[str, type] = {}


def view_of(type_: str, spec: Spec) -> type:
    """The frozen class of an event type's data, made once."""
    if type_ not in _views:
        own = [field.name for field in spec.fields]
        where = [n for n in ("turn", "step", "attempt") if n[0] in spec.located and n not in own]
        fields: list[Any] = [(name, int | None) for name in where]
        fields += [(field.name, field.type) for field in spec.fields]
        name = "".join(part.title() for part in type_.replace("-", "/").split("/"))
        made = make_dataclass(name, fields, frozen=True, slots=True, kw_only=True)
        made.__doc__ = spec.doc
        made.__module__ = __name__
        _views[type_] = made
    return _views[type_]

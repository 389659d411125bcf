"""Models: one adapter a wire, each loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbagent.models._http import block_requests
    from nbagent.models.local import Local
    from nbagent.models.openai_chat import OpenAIChat
    from nbagent.models.scripted import Scripted

__all__ = ["Local", "OpenAIChat", "Scripted", "block_requests"]

_HOMES = {
    "Local": "local",
    "OpenAIChat": "openai_chat",
    "Scripted": "scripted",
    "block_requests": "_http",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

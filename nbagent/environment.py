"""The environment's variables that hold secrets, by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["LEAST", "environment", "holds"]

LEAST = 12
"""Characters of a variable's value, from which on it counts as a secret."""

_ENDINGS = ("_KEY", "_TOKEN", "_SECRET")


class Environment:
    """The environment's variables that hold secrets; read again only when it has changed."""

    def __init__(self) -> None:
        self._now: tuple[Mapping[Any, Any], Mapping[str, str]] = ({}, {})

    def secrets(self) -> Mapping[str, str]:
        """Name → value; the same object as long as the environment is the same."""
        # What lies behind os.environ is compared in a hundredth of the time that reading it takes.
        behind: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
        seen, secrets = self._now
        if behind != seen:
            seen = dict(behind)
            secrets = {name: value for name, value in os.environ.items() if holds(name, value)}
            self._now = (seen, secrets)
        return secrets


environment = Environment()


def holds(name: str, value: str) -> bool:
    """Whether a variable's value is a secret."""
    return name.upper().endswith(_ENDINGS) and len(value.strip()) >= LEAST

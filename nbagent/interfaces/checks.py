"""Checks of what people give: each says which setting is wrong, what it was, what it may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.errors import ConfigError

__all__ = ["check_list", "check_number", "check_whole"]


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    least: float = 0,
    above: bool = False,
    optional: bool = True,
) -> None:
    """A number of at least (or above) `least`; None only if `optional`.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if value is None and optional:
        return
    number = float(value) if isinstance(value, int | float) and type(value) is not bool else -1e308
    if number > least or (number == least and not above):
        return
    bound = f"above {least:g}" if above else f"of at least {least:g}"
    msg = f"{owner}: {name} must be a number {bound}{' or None' if optional else ''}, not {value!r}"
    raise ConfigError(msg)


def check_whole(
    owner: str, name: str, value: Any, *, least: int = 1, optional: bool = False
) -> None:
    """A whole number of at least `least` that others can hold (below 2^53); None if `optional`.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 53:
        or_none = " or None" if optional else ""
        msg = f"{owner}: {name} must be a whole number of at least {least}{or_none}, not {value!r}"
        raise ConfigError(msg)


def check_list(name: str, value: Any, example: str) -> None:
    """A list or tuple, not one thing and not a text.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if isinstance(value, str) or not isinstance(value, Sequence):
        msg = f"{name} must be a list: write {example}, not {value!r}"
        raise ConfigError(msg)

"""Draws the size of each request, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbagent.frames.figure_rows import Compaction, Sent
from nbagent.frames.figure_run import compacted, legend
from nbagent.frames.figure_style import (
    BLUE,
    DASHES,
    ORANGE,
    PLUM,
    RED,
    dress,
    say,
    theme_of,
    token_axis,
    tokens_text,
    wide,
)

__all__ = ["draw_context"]

MANY = 80
"""From so many bars on they touch, and have no edges that would hide their filling."""
LETTERS = 105
"""About how many letters of a label fit side by side across the axes."""
SHORT = 5
"""A window that is this many times the largest request is not drawn: it would flatten the bars."""


def draw_context(
    ax: Any,
    sent: Sequence[Sent],
    compactions: Sequence[Compaction],
    window: int | None,
    theme: str,
) -> None:
    """One bar per request; `window` in place of the ones that are logged."""
    dress(ax, theme)
    ink = theme_of(theme)[0]
    many = len(sent) > MANY
    totals = [each.total for each in sent]
    windows = [window if window is not None else each.window for each in sent]
    drawn = [each for each in windows if each is not None and each <= SHORT * max(totals)]
    top = max(max(totals) * 1.18, max(drawn, default=0) * 1.14)
    _bars(ax, sent, ink, many=many)
    ax.set_xlim(0.4, len(sent) + 0.6)
    label = "Tokens sent" + (", estimated" if any(each.estimated for each in sent) else "")
    token_axis(ax, top, label)
    _window(ax, windows, ink, far=not drawn)
    _numbers(ax, totals, compactions, ink)
    high = max(drawn, default=0) * 0.985 or top * 0.985
    for each in compactions:
        at = each.at + 0.5
        ax.axvline(at, color=ink, linewidth=1, linestyle=DASHES, zorder=1)
        text = compacted(each.before, each.after, "\n")
        letter = len(sent) / LETTERS
        right = at + (wide(text) * 0.6 + 2) * letter < len(sent) + 0.6
        x, side = (at + letter, "left") if right else (at - letter, "right")
        say(ax, x, high, text, ha=side, va="top", linespacing=1.25, color=ink)
    _requests_axis(ax, len(sent))


def _requests_axis(ax: Any, count: int) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    few = count <= 25
    locator = FixedLocator(range(1, count + 1)) if few else MaxNLocator(nbins=10, integer=True)
    ax.xaxis.set_major_locator(locator)
    ax.tick_params(axis="x", bottom=False)
    ax.set_xlabel("Request")


def _bars(ax: Any, sent: Sequence[Sent], ink: str, *, many: bool) -> None:
    from matplotlib.patches import Patch

    looks: dict[str, dict[str, Any]] = {
        "head": {"facecolor": "none", "edgecolor": ink},
        "summary": {"facecolor": "none", "edgecolor": PLUM, "hatch": "////"},
        "history": {"facecolor": BLUE, "edgecolor": BLUE},
        "tail": {"facecolor": "none", "edgecolor": ORANGE, "hatch": "...."},
    }
    base = [0.0] * len(sent)
    handles: list[Patch] = []
    for name, look in looks.items():
        values = [getattr(each, name) for each in sent]
        there = [k for k, value in enumerate(values) if value > 0]
        if not there:
            continue
        ax.bar(
            [k + 1 for k in there],
            [values[k] for k in there],
            bottom=[base[k] for k in there],
            width=1.0 if many else 0.72,
            linewidth=0.3 if many else 0.8,
            zorder=2,
            label=name,
            **look,
        )
        base = [before + value for before, value in zip(base, values, strict=True)]
        handles.append(Patch(**look, label=name))
    legend(ax, handles[::-1], ink)


def _window(ax: Any, windows: Sequence[int | None], ink: str, *, far: bool) -> None:
    """The model's window: a line, with steps where the model was changed."""
    known = [each for each in windows if each is not None]
    if not known:
        return
    text = f"model's window {tokens_text(known[0])}"
    if far:
        y = ax.get_ylim()[1]
        say(ax, 0.4, y, f" {text}, far above", ha="left", va="top", color=ink)
        return
    if len(set(windows)) == 1:
        ax.axhline(known[0], color=RED, linewidth=1)
    else:
        nan = float("nan")
        ys = [nan if each is None else float(each) for each in windows]
        edges = [n + 0.5 for n in range(len(ys) + 1)]
        ax.stairs(ys, edges, baseline=None, color=RED, linewidth=1)
    say(ax, 0.4, known[0], f" {text}", ha="left", va="bottom", color=ink)


def _numbers(ax: Any, totals: Sequence[float], compactions: Sequence[Compaction], ink: str) -> None:
    """The size, written on the last bar, the largest, and the last before each compaction."""
    count = len(totals)
    peaks = [int(each.at) - 1 for each in reversed(compactions) if each.at]
    wanted = dict.fromkeys([count - 1, totals.index(max(totals)), *peaks])
    away = 6 * count / LETTERS  # at least so far from the next number
    written: list[int] = []
    for k in wanted:
        if all(abs(k - other) >= away for other in written):
            y = totals[k] + ax.get_ylim()[1] / 90
            say(ax, k + 1, y, tokens_text(totals[k]), va="bottom", color=ink)
            written.append(k)

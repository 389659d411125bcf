"""Two figures of a run: its course in time, and how large its requests were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nbagent.errors import ConfigError
from nbagent.frames.figure_context import draw_context
from nbagent.frames.figure_rows import requests, run_rows
from nbagent.frames.figure_run import draw_lanes, draw_legend, draw_time, draw_tokens, lay_out
from nbagent.frames.figure_style import axes_of, new_figure, root, sentence, settings, theme_of
from nbagent.log import collector_paused

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nbagent.log import Log

__all__ = ["context_figure", "plot", "run_figure"]

NOTHING = "No request was sent to the model, so there is nothing to draw."


def plot(
    log: Log,
    kind: str = "run",
    start: int = 0,
    end: int | None = None,
    *,
    theme: str = "auto",
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """The figure of that kind: "run" or "context".

    Raises
    ------
    ConfigError
        If there is no such kind or theme, or `ax` is something else than axes.
    """
    drawers = {"run": run_figure, "context": context_figure}
    if kind not in drawers:
        msg = f"there is no figure {kind!r}; there are: {', '.join(drawers)}"
        raise ConfigError(msg)
    return drawers[kind](log, start, end, theme=theme, ax=ax)


def run_figure(
    log: Log,
    start: int = 0,
    end: int | None = None,
    *,
    theme: str = "auto",
    ax: Axes | Sequence[Axes] | None = None,
    token_limit: int | None = None,
) -> Figure:
    """The events `start` up to `end` on a time axis, with the tokens used beneath.

    Lanes: the model, each tool in the order of first use (eight, the rest together), the person who
    was asked. A solid bar is what counted (an answer with its step, a call that ran), a hatched one
    a draft that was sent back, a hollow one with a cross what failed or was denied, a hollow one a
    replayed result, a dashed one what was stopped or has no end yet. Time is wall time, waiting for
    people included; what lies between turns is left out.

    Parameters
    ----------
    log
        May be in use and end anywhere.
    start, end
        The stretch of it; all of it if not given.
    theme
        "auto" has no background and colours for light and dark pages; "light" and "dark" have one.
    ax
        Draw into these axes: two (lanes, tokens), or one for the lanes alone.
    token_limit
        The budget's tokens, for its line; the log doesn't hold it.

    Raises
    ------
    ConfigError
        If there is no such theme, or `ax` is something else than one or two axes.
    """
    theme_of(theme)
    given = None if ax is None else axes_of(ax, 2)
    with collector_paused():
        rows = run_rows(log, start, end)
    with settings(theme):
        if not (rows.models or rows.tools):
            return _nothing(given, theme)
        lanes = lay_out(rows)
        if given is None:
            heights = [lanes.inches, 1.1]
            figure = new_figure(sum(heights) + 0.65)
            ratios = {"height_ratios": heights}
            given = [*figure.subplots(2, 1, sharex=True, gridspec_kw=ratios)]
        draw_lanes(given[0], rows, lanes, theme)
        draw_legend(given[0], rows, theme)
        for low in given[1:]:
            draw_tokens(low, rows, token_limit, theme)
        draw_time(given[-1], rows)
        return root(given[0])


def context_figure(
    log: Log,
    start: int = 0,
    end: int | None = None,
    *,
    theme: str = "auto",
    ax: Axes | Sequence[Axes] | None = None,
    window: int | None = None,
) -> Figure:
    """The size of each request among the events `start` up to `end`, in tokens.

    One bar per request, repeated ones too: instructions and tools (head), the summary that stands
    for older messages, history, reminders (tail). The whole is what the provider counted, else four
    bytes a token; how it divides is always estimated. Calls of the harness itself are not in it.

    Parameters
    ----------
    log
        May be in use and end anywhere.
    start, end
        The stretch of it; all of it if not given.
    theme
        "auto" has no background and colours for light and dark pages; "light" and "dark" have one.
    ax
        Draw into these axes.
    window
        Tokens that the model can take, for its line; what the log says if not given.

    Raises
    ------
    ConfigError
        If there is no such theme, or `ax` is something else than axes.
    """
    theme_of(theme)
    given = None if ax is None else axes_of(ax, 1)
    with collector_paused():
        sent, compactions = requests(log, start, end)
    with settings(theme):
        if not sent:
            return _nothing(given, theme)
        if given is None:
            given = [new_figure(3.1).subplots()]
        draw_context(given[0], sent, compactions, window, theme)
        return root(given[0])


def _nothing(given: Sequence[Axes] | None, theme: str) -> Figure:
    """A figure that says that there is nothing to see."""
    axes = given or [new_figure(0.8).subplots()]
    for each in axes[1:]:
        each.set_axis_off()
    sentence(axes[0], theme, NOTHING)
    return root(axes[0])

"""Draws a run on a time axis: lanes for the model, each tool and the person, and the tokens beneath."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from nbagent.frames.figure_rows import ModelBar, RunRows, ToolBar, Wait
from nbagent.frames.figure_style import (
    BLUE,
    DASHES,
    ORANGE,
    PLUM,
    RED,
    TEAL,
    clock,
    dress,
    one_line,
    say,
    theme_of,
    time_axis,
    token_axis,
    tokens_text,
    wide,
)

__all__ = ["Lane", "Lanes", "draw_lanes", "draw_legend", "draw_tokens", "lay_out", "x_limits"]

MOST_TOOLS = 8
"""Tools with a lane of their own; the rest share one."""
MOST_ROWS = 12
"""Bars drawn below each other in one lane; more at once lie on top of each other."""
NAME = 24
"""Letters of a tool's name."""
LETTERS = 92
"""About how many letters of a label fit side by side across the axes."""
NOTES_Y = -1.35
SHORT = 5
"""A limit that is this many times what was used is not drawn: it would flatten the curve."""

_Bar = TypeVar("_Bar", ModelBar, ToolBar, Wait)


class Lane(NamedTuple):
    """One lane of a tool."""

    label: str
    middle: float
    rows: int
    height: float
    bars: list[tuple[int, ToolBar]]
    """(row, call)."""


class Lanes(NamedTuple):
    """Where the lanes lie; y grows downwards, the model's lane is at 0."""

    tools: list[Lane]
    waits: list[tuple[int, Wait]]
    you: float
    """Middle of the first row of the person's lane."""
    top: float
    bottom: float

    @property
    def inches(self) -> float:
        """The height that this takes."""
        return 0.41 * (self.bottom - self.top)


def below(bars: Sequence[_Bar]) -> list[tuple[int, _Bar]]:
    """Each bar with the first row in which it meets no other."""
    ends: list[float] = []
    placed: list[tuple[int, _Bar]] = []
    for bar in sorted(bars, key=lambda each: (each.start, each.stop)):
        row = next((k for k, end in enumerate(ends) if end <= bar.start), len(ends))
        ends[row : row + 1] = [bar.stop]
        placed.append((row, bar))
    return placed


def lay_out(rows: RunRows) -> Lanes:
    """One lane for each tool in the order of first use, and one for the person who was asked."""
    calls = sorted(rows.tools, key=lambda call: call.start)
    names = list(dict.fromkeys(call.tool for call in calls))
    own = names if len(names) <= MOST_TOOLS else names[:MOST_TOOLS]
    groups = [(one_line(name, NAME), [c for c in calls if c.tool == name]) for name in own]
    if len(names) > len(own):
        rest = set(names[len(own) :])
        label = f"{len(rest)} other tool{'s' if len(rest) > 1 else ''}"
        groups.append((label, [c for c in calls if c.tool in rest]))
    lanes: list[Lane] = []
    y = 1.28
    for label, group in groups:
        placed = below(group)
        count = 1 + max(row for row, _ in placed)
        height = max(0.44, 0.15 * min(count, MOST_ROWS))
        lanes.append(Lane(label, y + height / 2, count, height, placed))
        y += height + 0.18
    waits = below(rows.waits)
    you = y + (0.57 if lanes else 0.22)
    bottom = you + 0.4 + 0.56 * min(max(row for row, _ in waits), MOST_ROWS - 1) if waits else y
    notes = bool(rows.compactions) or len(rows.turns) > 1
    return Lanes(lanes, waits, you, -1.65 if notes else -0.95, max(bottom, 1.0))


def x_limits(rows: RunRows) -> tuple[float, float]:
    """First and last time on the axis."""
    span = rows.end or 0.001
    return -span / 120, span * 1.03


class _Room:
    """What is taken of each row of labels, so that none is written over another."""

    def __init__(self, limits: tuple[float, float]) -> None:
        self.left, self.right = limits
        self.letter = (self.right - self.left) / LETTERS
        self.taken: dict[object, list[tuple[float, float]]] = {}

    def width(self, text: str) -> float:
        return (wide(text) + 1) * self.letter

    def take(self, row: object, start: float, stop: float) -> None:
        self.taken.setdefault(row, []).append((start, stop))

    def find(self, row: object, text: str, spots: Sequence[tuple[float, str]]) -> Any:
        """The first of these (x, alignment) where the text fits, taken from then on; else None."""
        width = self.width(text)
        taken = self.taken.setdefault(row, [])
        for x, side in spots:
            start = x - {"left": 0.0, "center": 0.5, "right": 1.0}[side] * width
            stop = start + width
            if start < self.left - self.letter or stop > self.right + self.letter:
                continue
            if all(stop <= a or b <= start for a, b in taken):
                taken.append((start, stop))
                return x, side
        return None


class _Pen:
    """Draws bars and their words into the axes of the lanes."""

    def __init__(self, ax: Any, rows: RunRows, theme: str) -> None:
        self.ax, self.ink = ax, theme_of(theme)[0]
        left, right = x_limits(rows)
        self.room = _Room((left, right))
        self.least = (right - left) / 250  # a call of a few ms is still seen
        self.gap = (right - left) / 400  # bars that follow each other stay apart

    def bar(
        self, y: float, start: float, stop: float, colour: str, height: float, **look: Any
    ) -> None:
        """One bar; `hollow`, `hatch` or `dashed`."""
        from matplotlib.patches import Rectangle

        hollow = bool(look.get("hollow") or look.get("hatch") or look.get("dashed"))
        width = stop - start
        width = max(width - self.gap if width > 4 * self.gap else width, self.least)
        box = Rectangle(
            (start, y - height / 2),
            width,
            height,
            facecolor="none" if hollow else colour,
            edgecolor=colour,
            linewidth=1.1 if hollow else 0,
            hatch=look.get("hatch"),
            linestyle=(0, (3, 2)) if look.get("dashed") else "-",
            zorder=4 if hollow else 3,  # what is rare is not hidden where bars are dense
        )
        self.ax.add_patch(box)
        tint = look.get("tint")
        if tint:
            box.set_facecolor((*_rgb(colour), tint))

    def cross(self, x: float, y: float, size: float = 7) -> None:
        """The mark of what failed or was refused."""
        self.ax.plot(x, y, marker="x", color=RED, markersize=size, markeredgewidth=1.5, zorder=5)

    def word(
        self, row: object, y: float, text: str, spots: Sequence[tuple[float, str]], **look: Any
    ) -> bool:
        """Write a word at the first spot with room; says whether there was one."""
        spot = self.room.find(row, text, spots)
        if spot is not None:
            say(self.ax, spot[0], y, text, **{"ha": spot[1], "color": self.ink, **look})
        return spot is not None


def _rgb(colour: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    return to_rgb(colour)


def draw_lanes(ax: Any, rows: RunRows, lanes: Lanes, theme: str) -> None:
    """The lanes, without a time axis."""
    dress(ax, theme, sides=())
    pen = _Pen(ax, rows, theme)
    ax.set_xlim(*x_limits(rows))
    ax.set_ylim(lanes.bottom, lanes.top)
    _model(pen, [bar for bar in rows.models if bar.kind != "aux"])
    _aux(pen, [bar for bar in rows.models if bar.kind == "aux"])
    for lane in lanes.tools:
        _tool(pen, lane)
    for row, wait in lanes.waits:
        y = lanes.you + 0.56 * min(row, MOST_ROWS - 1)
        pen.bar(y, wait.start, wait.stop, ORANGE, 0.5, hollow=True, tint=0.18)
        pen.room.take(("you", y), wait.start, max(wait.stop, wait.start + pen.least))
    for row, wait in lanes.waits:
        _wait(pen, lanes.you + 0.56 * min(row, MOST_ROWS - 1), wait)
    _notes(pen, rows)
    ticks = {0.0: "Model", **{lane.middle: lane.label for lane in lanes.tools}}
    for y in ticks:
        ax.axhline(y, color=pen.ink, linewidth=0.4, alpha=0.35, zorder=0)
    if lanes.waits:
        ticks[lanes.you] = "You"
    ax.set_yticks(list(ticks), list(ticks.values()))
    for y, label in zip(ticks, ax.get_yticklabels(), strict=True):
        bold = y in (0.0, lanes.you)
        label.set(parse_math=False, usetex=False, fontweight="bold" if bold else "normal")
    ax.tick_params(left=False, bottom=False, labelbottom=False)


def _model(pen: _Pen, bars: Sequence[ModelBar]) -> None:
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "answer": (BLUE, {}),
        "draft": (ORANGE, {"hatch": "////"}),
        "failed": (RED, {"hollow": True}),
        "open": (BLUE, {"dashed": True}),
    }
    for bar in bars:
        colour, look = looks[bar.kind]
        pen.bar(0, bar.start, bar.stop, colour, 0.8, **look)
        if bar.kind == "failed":
            pen.cross((bar.start + bar.stop) / 2, 0)
    # Rare words first: where there is no room for all, step numbers are what gives way.
    for bar in sorted(bars, key=lambda each: not each.word):
        middle = (bar.start + bar.stop) / 2
        if bar.word:
            spots = [(middle, "center"), (bar.start, "left"), (bar.stop, "right")]
            pen.word("above", -0.62, bar.word, spots)
        if bar.kind == "answer":
            number = str(bar.step)
            if bar.stop - bar.start > pen.room.width(number):
                say(pen.ax, middle, 0, number, color="white")
            else:
                pen.word("above", -0.62, number, [(middle, "center")])


def _aux(pen: _Pen, bars: Sequence[ModelBar]) -> None:
    placed = below(bars)
    high = 0.36 / (1 + max((row for row, _ in placed), default=0))
    last = ("", -1.0)
    for row, bar in placed:
        y = -0.18 + high * (row + 0.5)
        failed = bar.word.endswith(" failed")
        pen.bar(y, bar.start, bar.stop, RED if failed else PLUM, high * 0.96, hollow=failed)
        if failed:
            pen.cross((bar.start + bar.stop) / 2, y, 5)
        text = one_line(bar.word, NAME)
        if (text, True) == (last[0], bar.start - last[1] <= 8 * pen.least):
            last = (text, max(last[1], bar.stop))
            continue  # a run of digests is named once
        last = (text, bar.stop)
        pen.word("below", 0.62, text, [(bar.start, "left"), (bar.stop, "right")])


def _tool(pen: _Pen, lane: Lane) -> None:
    count = min(lane.rows, MOST_ROWS)
    high = lane.height / count
    placed = [
        (lane.middle - lane.height / 2 + high * (min(row, count - 1) + 0.5), call)
        for row, call in lane.bars
    ]
    for y, call in placed:
        failed = call.kind == "failed"
        look = {"hollow": failed or call.kind == "replayed", "dashed": call.kind == "open"}
        pen.bar(y, call.start, call.stop, RED if failed else TEAL, high * 0.86, **look)
        stop = max(call.stop, call.start + pen.least)
        if failed:
            pen.cross((call.start + stop) / 2, y, min(7, max(4, 16 * high)))
        pen.room.take(lane.middle, call.start - pen.least, stop + pen.least)
    aside = 1.5 * pen.least
    for y, call in placed:
        stop = max(call.stop, call.start + pen.least)
        if call.word:
            spots = [(stop + aside, "left"), (call.start - aside, "right")]
            pen.word(lane.middle, y, one_line(call.word, NAME), spots)
    if lane.rows > MOST_ROWS:
        first = placed[0][1]
        text = f"{lane.rows} at once"
        pen.word(lane.middle, lane.middle, text, [(first.start - aside, "right")])


def _wait(pen: _Pen, y: float, wait: Wait) -> None:
    name = one_line(wait.tool, NAME)
    seconds = wait.seconds
    text = f"{name}: {wait.outcome}"
    if seconds is not None:
        took = clock(seconds) if seconds >= 1 else "less than a second"
        text += f" after {took}"
    stop = max(wait.stop, wait.start + pen.least)
    for form in (text, name, wait.outcome):
        if wait.stop - wait.start > pen.room.width(form):
            say(pen.ax, (wait.start + wait.stop) / 2, y, form, color=pen.ink)
            return
        aside = 1.5 * pen.least
        if pen.word(("you", y), y, form, [(wait.start - aside, "right"), (stop + aside, "left")]):
            return


def _notes(pen: _Pen, rows: RunRows) -> None:
    """Compactions, and where turns begin."""
    aside = 1.5 * pen.least
    for each in rows.compactions:
        pen.ax.axvline(each.at, color=pen.ink, linewidth=1, linestyle=DASHES, zorder=1)
        text = compacted(each.before, each.after)
        pen.word("notes", NOTES_Y, text, [(each.at - aside, "right"), (each.at + aside, "left")])
    if len(rows.turns) > 1:
        for at, number in rows.turns:
            pen.ax.axvline(at, color=pen.ink, linewidth=0.6, linestyle=(0, (1, 2)), zorder=1)
            pen.word("notes", NOTES_Y, f"turn {number}", [(at + aside / 2, "left")])


def compacted(before: int | None, after: int | None, link: str = " ") -> str:
    """What to write at a compaction."""
    if before is None or after is None:
        return "compacted"
    return f"compacted{link}{tokens_text(before)} → {tokens_text(after)}"


def draw_tokens(ax: Any, rows: RunRows, limit: int | None, theme: str) -> None:
    """Tokens used, as steps, and the limit."""
    dress(ax, theme)
    ink = theme_of(theme)[0]
    left, right = x_limits(rows)
    total, xs, ys = 0, [0.0], [0]
    for at, spent in rows.tokens:
        xs += [at, at]
        ys += [total, total + spent]
        total += spent
    xs, ys = [*xs, right], [*ys, total]
    ax.plot(xs, ys, color=BLUE, linewidth=1.6, linestyle="-", marker="")
    ax.fill_between(xs, ys, color=BLUE, alpha=0.15, linewidth=0)
    top = max(total, 1) * 1.25
    if limit and limit > SHORT * total:
        say(ax, 0, top, f"limit {tokens_text(limit)}, far above", ha="left", va="top", color=ink)
    elif limit:
        top = max(total * 1.1, limit * 1.3)
        ax.axhline(limit, color=RED, linewidth=1)
        ax.axhline(0.8 * limit, color=ORANGE, linewidth=1, linestyle=(0, (5, 2)))
        away = top / 50
        text = f"limit {tokens_text(limit)}"
        say(ax, 0, limit + away, text, ha="left", va="bottom", color=ink)
        say(ax, 0, 0.8 * limit - away, "80 % of it", ha="left", va="top", color=ink)
    for each in rows.compactions:
        ax.axvline(each.at, color=ink, linewidth=1, linestyle=DASHES, zorder=1)
    text = ("about " if rows.estimated else "") + tokens_text(total)
    x = right + (right - left) / 150
    say(ax, x, total, text, ha="left", fontsize=8.5, fontweight="bold", clip_on=False, color=ink)
    token_axis(ax, top, "Tokens used")
    ax.set_xlim(left, right)


def draw_legend(ax: Any, rows: RunRows, theme: str) -> None:
    """What the bars mean: of each sort that occurs, outside of the axes."""
    from matplotlib.patches import Patch

    make: Any = Patch
    ink = theme_of(theme)[0]
    seen: set[str] = {bar.kind for bar in (*rows.models, *rows.tools)}
    if rows.waits:
        seen.add("wait")
    looks: dict[str, tuple[str, dict[str, Any]]] = {
        "answer": ("answer, with its step", {"facecolor": BLUE, "edgecolor": BLUE}),
        "draft": ("bounced draft", {"edgecolor": ORANGE, "hatch": "////"}),
        "failed": ("failed or denied", {"edgecolor": RED}),
        "aux": ("digest, summary", {"facecolor": PLUM, "edgecolor": PLUM}),
        "ran": ("tool call", {"facecolor": TEAL, "edgecolor": TEAL}),
        "replayed": ("replayed, not run", {"edgecolor": TEAL}),
        "open": ("stopped or still open", {"edgecolor": ink, "linestyle": (0, (3, 2))}),
        "wait": ("waiting for you", {"facecolor": (*_rgb(ORANGE), 0.18), "edgecolor": ORANGE}),
    }
    handles = [
        make(**{"facecolor": "none", **look, "label": label})
        for kind, (label, look) in looks.items()
        if kind in seen
    ]
    legend(ax, handles, ink)


def legend(ax: Any, handles: Sequence[Any], ink: str) -> None:
    """A legend to the right of the axes."""
    made = ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        handlelength=1.4,
        labelspacing=0.6,
        fontsize=8.5,
        frameon=False,
        labelcolor=ink,
    )
    made.set_zorder(6)


def time_label(rows: RunRows) -> str:
    """The label of the time axis; `{unit}` is to be filled in."""
    if len(rows.turns) > 1:
        return "Time in turns, {unit} (what lies between turns left out)"
    return "Time since the run began, {unit}"


def draw_time(ax: Any, rows: RunRows) -> None:
    """The time axis."""
    ax.tick_params(bottom=True, labelbottom=True)
    ax.spines["bottom"].set_visible(True)
    time_axis(ax, rows.end or 0.001, time_label(rows))

"""How the figures look: colours, texts, axes, and a figure that shows itself in a notebook."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from nbagent.errors import ConfigError
from nbagent.escape import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "DASHES",
    "INK",
    "ORANGE",
    "PLUM",
    "RED",
    "TEAL",
    "axes_of",
    "clock",
    "dress",
    "new_figure",
    "one_line",
    "root",
    "say",
    "sentence",
    "settings",
    "theme_of",
    "time_axis",
    "token_axis",
    "tokens_text",
    "wide",
]

INK = "#797979"
"""4.35 : 1 on white and on #111, the most that one grey can have on both."""
# Of middle lightness, at least 3 : 1 on white and on #111; hatch, hollow and cross tell them apart too.
BLUE, TEAL, ORANGE, RED, PLUM = "#3d7fc1", "#2a9d86", "#c9781f", "#d2523f", "#a06ab4"
THEMES = {"auto": (INK, "none"), "light": ("#3c3c3c", "white"), "dark": ("#c8c8c8", "#111111")}
"""Ink and paper."""
DASHES = (0, (4, 2))
WIDTH = 9.2
"""Inches."""


def theme_of(theme: str) -> tuple[str, str]:
    """Ink and paper of a theme.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if theme not in THEMES:
        msg = f"theme is {', '.join(map(repr, THEMES))}, not {theme!r}"
        raise ConfigError(msg)
    return THEMES[theme]


@contextmanager
def settings(theme: str) -> Generator[None]:
    """While it lasts artists are made in our look; the user's settings stay as they are.

    Fonts are the user's: they may have set one that has the letters of their language.
    """
    import matplotlib

    mpl: Any = matplotlib
    ink, paper = theme_of(theme)
    keep: dict[str, Any] = {
        key: value
        for key, value in mpl.rcParams.items()
        if key in ("font.family", "font.sans-serif", "font.serif", "font.monospace", "figure.dpi")
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(keep)
        mpl.rcParams.update(
            {
                "font.size": 9,
                "text.color": ink,
                "text.parse_math": False,
                "text.usetex": False,
                "figure.facecolor": paper,
                "figure.edgecolor": paper,
                "hatch.linewidth": 0.8,
            }
        )
        yield


# -- figures and axes


@cache
def figure_class() -> type[Figure]:
    """A figure that pyplot doesn't know of, and that shows itself as the value of a cell.

    IPython shows matplotlib's own figures only once pyplot has registered them; from then on its
    way is taken instead of this one, so that there is always one picture.
    """
    from matplotlib.figure import Figure

    class RunFigure(Figure):
        """A figure of a run."""

        def _repr_png_(self) -> bytes:
            into = io.BytesIO()
            self.savefig(into, format="png", dpi=self.dpi, facecolor=self.get_facecolor())  # pyright: ignore[reportUnknownMemberType]
            return into.getvalue()

    RunFigure.__qualname__ = "RunFigure"
    return RunFigure


def __getattr__(name: str) -> Any:
    if name == "RunFigure":  # where pickle looks for the class
        return figure_class()
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)


def new_figure(height: float) -> Figure:
    """An empty figure of the usual width."""
    return figure_class()(figsize=(WIDTH, height), layout="constrained")


def axes_of(ax: Any, most: int) -> list[Any]:
    """The axes that a caller gave, as a list.

    Raises
    ------
    ConfigError
        If these are no axes, or more than `most`.
    """
    from matplotlib.axes import Axes

    try:
        given = [ax] if isinstance(ax, Axes) else [*ax]
    except TypeError:
        given = [ax]
    if not 1 <= len(given) <= most or not all(isinstance(each, Axes) for each in given):
        either = "one matplotlib axes" + (" or two" if most == 2 else "")
        msg = f"ax is {either}, not {ax!r}"
        raise ConfigError(msg)
    return given


def root(ax: Any) -> Figure:
    """The figure that axes belong to, also those of a part of it."""
    figure = ax.figure
    while figure is not figure.figure:
        figure = figure.figure
    return figure


def dress(ax: Any, theme: str, *, sides: Sequence[str] = ("left", "bottom")) -> None:
    """Give axes our look, whatever settings they were made with."""
    ink, paper = theme_of(theme)
    behind: Any = root(ax).get_facecolor()
    ax.set_facecolor("none" if behind[3] == 0 or theme == "auto" else paper)
    ax.grid(visible=False)
    for name, spine in ax.spines.items():
        spine.set(visible=name in sides, color=ink, linewidth=0.6)
    ax.tick_params(colors=ink, labelsize=9, width=0.6, length=3.5, direction="out")
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(color=ink, fontsize=9)


def say(ax: Any, x: float, y: float, text: str, **look: Any) -> Any:
    """Write a text as it is: no formulas in it, whatever it holds."""
    usual: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 5}
    look = {**usual, "parse_math": False, "usetex": False, **look}
    return ax.text(x, y, text, **look)


def sentence(ax: Any, theme: str, text: str) -> None:
    """Axes that hold a sentence and nothing else."""
    ax.set_axis_off()
    say(ax, 0.5, 0.5, text, transform=ax.transAxes, fontsize=9, color=theme_of(theme)[0])


# -- texts


def one_line(text: str, most: int) -> str:
    """Any text made fit for a label: harmless, in one line, cut, no letter that no font has."""
    # What is behind the cut is never looked at, however long it is; marks made visible count too.
    plain = " ".join(clean(text[: 20 * most]).split())
    if len(plain) > most or len(text) > 20 * most:
        plain = plain[: most - 1].rstrip() + "…"
    if plain.isascii():
        return plain or "–"
    return "".join(map(_drawable, plain)) or "–"


def wide(text: str) -> float:
    """About how wide a text is, in letters."""
    return sum(1.8 if unicodedata.east_asian_width(c) in "WF" else 1.0 for c in text)


def _drawable(letter: str) -> str:
    """The letter, or a box in place of one that no font has (matplotlib draws one and warns)."""
    import matplotlib

    mpl: Any = matplotlib
    if letter.isascii():
        return letter
    families = [mpl.rcParams["font.family"]] if isinstance(mpl.rcParams["font.family"], str) else []
    families = families or list(mpl.rcParams["font.family"])
    names = [n for f in families for n in (mpl.rcParams.get(f"font.{f}") or [f])]
    if any(_has(name, ord(letter)) for name in names):
        return letter
    return "" if unicodedata.category(letter) in ("Mn", "Me", "Cf") else "▯"


@lru_cache(maxsize=4096)
def _has(family: str, code: int) -> bool:
    from matplotlib import font_manager

    fonts: Any = font_manager
    try:
        path = fonts.findfont(fonts.FontProperties(family=[family]), fallback_to_default=False)
    except ValueError:
        return False
    return fonts.get_font(path).get_char_index(code) != 0


def tokens_text(tokens: float, _: object = None) -> str:
    """A number of tokens, short: 812, 9.8k, 1.2M."""
    if tokens < 999.5:
        return f"{tokens:.0f}"
    number, unit = (tokens / 1e3, "k") if tokens < 999_950 else (tokens / 1e6, "M")
    return f"{number:.1f}".removesuffix(".0") + unit


def clock(seconds: float, _: object = None) -> str:
    """Minutes and seconds, with hours if there are any."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    start = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{start}:{whole % 60:02d}"


def _hours(seconds: float, _: object = None) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d}"


def _milliseconds(seconds: float, _: object = None) -> str:
    return f"{seconds * 1000:g}"


def _plain(seconds: float, _: object = None) -> str:
    return f"{seconds:g}"


def time_axis(ax: Any, span: float, about: str) -> None:
    """Ticks on the time axis at round times, and the unit that suits its length."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    if span < 10:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
        form, unit = (_milliseconds, "milliseconds") if span < 1 else (_plain, "seconds")
    else:
        rounds = (2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400)
        fit = [each for each in rounds if span / each <= 8]
        step = fit[0] if fit else 86400 * math.ceil(span / 8 / 86400)
        ax.xaxis.set_major_locator(FixedLocator([n * step for n in range(int(span / step) + 1)]))
        form, unit = (clock, "min:s") if span < 3600 else (_hours, "h:min")
    ax.xaxis.set_major_formatter(FuncFormatter(form))
    ax.set_xlabel(about.format(unit=unit))


def token_axis(ax: Any, top: float, label: str) -> None:
    """Ticks on the axis of tokens from 0 to `top`."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_ylim(0, top)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10], integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(tokens_text))
    ax.set_ylabel(label)

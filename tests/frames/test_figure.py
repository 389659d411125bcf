"""The two figures of a run: what is drawn, whatever the log holds."""

from __future__ import annotations

import io
import warnings
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

import nbagent as nb
from nbagent.errors import ConfigError
from nbagent.frames.figure import NOTHING, plot

KINDS = ["run", "context"]


def texts(figure: Any) -> list[str]:
    """All that is written in a figure, without ticks that are not shown."""
    from matplotlib.text import Text

    figure.canvas.draw()
    return [t.get_text() for t in figure.findobj(Text) if t.get_visible() and t.get_text()]


def png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def test_a_run_shows_its_lanes_what_was_sent_back_denied_and_waited_for(rich: Any):
    figure = plot(rich.log)
    seen = texts(figure)
    for text in ("Model", "search", "publish", "You", "Tokens used", "bounced", "failed"):
        assert text in seen, (text, seen)
    legend = {t for t in seen if t in ("answer, with its step", "bounced draft", "waiting for you")}
    assert len(legend) == 3


def test_the_context_has_a_bar_for_each_request(rich: Any):
    sent = sum(event.type == "request/sent" for event in rich.log.events)
    figure = plot(rich.log, "context")
    labels = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert str(sent) in labels
    assert str(sent + 1) not in labels
    assert "Tokens sent, estimated" in texts(figure) or "Tokens sent" in texts(figure)


@pytest.mark.parametrize("kind", KINDS)
def test_each_stretch_of_a_log_can_be_drawn(kind: str, rich: Any):
    """A run may go on, and a crash may end a log anywhere."""
    for end in range(0, len(rich.log) + 1, 3):
        assert plot(rich.log, kind, 0, end).axes
    for start in range(0, len(rich.log), 7):
        assert plot(rich.log, kind, start).axes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_themes_have_backgrounds_of_their_own(kind: str, theme: Any, rich: Any):
    figure = plot(rich.log, kind, theme=theme)
    alpha: Any = figure.get_facecolor()
    assert (alpha[3] == 0) == (theme == "auto")
    assert png(figure).startswith(b"\x89PNG")


def test_hostile_and_foreign_names_are_drawn_as_text(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    names = ["$\\frac{1}{0}$", "<img src=x>", "日本語🎉", "a" * 300, "\x1b[31mred"]
    w.answer("x", *((name, "{}") for name in names))
    for n in range(len(names)):
        w.call(n)
        w.result(n, "ok")
    w.close("end_turn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of letters that no font has
        assert png(plot(w.log)).startswith(b"\x89PNG")
    assert "\x1b" not in "".join(texts(plot(w.log)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_without_a_request_says_so(kind: Any):
    assert NOTHING in texts(nb.Session().plot(kind))


def test_a_result_is_drawn_alone_and_a_session_whole():
    agent = nb.Agent(nb.models.Scripted(["a", "b"]))
    session = nb.Session()
    agent.run_sync("x", session=session)
    second = agent.run_sync("y", session=session)
    assert len(_bars(second.plot("context"))) == 1
    assert len(_bars(session.plot("context"))) == 2
    with pytest.raises(ConfigError, match="no figure 'runs'; there are: run, context"):
        second.plot("runs")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="theme is"):
        second.plot(theme="blue")  # pyright: ignore[reportArgumentType]


def _bars(figure: Figure) -> set[float]:
    """Where bars stand."""
    return {round(patch.get_x(), 1) for patch in figure.axes[0].patches if hasattr(patch, "get_x")}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType, reportUnknownVariableType]


def test_it_draws_into_axes_that_were_given_and_leaves_settings_alone(rich: Any):
    before = dict(mpl.rcParams)
    figure = Figure()
    lanes, tokens = figure.subplots(2, 1)
    assert plot(rich.log, ax=[lanes, tokens]) is figure
    assert plot(rich.log, "context", ax=tokens) is figure
    assert dict(mpl.rcParams) == before
    with pytest.raises(ConfigError, match="ax is one matplotlib axes"):
        plot(rich.log, ax=5)  # pyright: ignore[reportArgumentType]


def test_a_figure_shows_itself_and_pyplot_does_not_know_it(rich: Any):
    from matplotlib import pyplot as plt

    figure: Any = plot(rich.log)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == []

"""What a run came to: text, tables, the exact requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import orjson

from nbagent.events import Event
from nbagent.messages import Message, Usage
from nbagent.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from nbagent.frames import Wanted
    from nbagent.frames.explain import Explanation

__all__ = ["Result"]


class Result:
    """The outcome of one run; made by it.

    Attributes
    ----------
    text
        The last answer that is not empty, of a run that was stopped as well.
    stop_reason
        Why the run ended: "end_turn" (the model was done), "refused" (it declined; `text` is how),
        "max_steps", "budget", "interrupted" (`run.interrupt`, Ctrl-C), "context_limit" (the
        request outgrew the model's window); on the
        partial result that an error carries (`error.result`) "model_error" or "error".
        Which limit it was, with its numbers, is in the repr and in the last row of the table steps.
    truncated
        Whether the answer was cut off by the output limit, after all continuations.
    session
        The session it ran on: all runs, also those before.

    Examples
    --------
    >>> import nbagent as nb
    >>> nb.Agent(nb.models.Scripted(["Hello."])).run_sync("Say hello.")
    Result('Hello.', stop_reason='end_turn'): 1 step, 0 calls, about 16 tokens
    """

    def __init__(
        self,
        session: Session,
        *,
        text: str,
        stop_reason: str,
        truncated: bool = False,
        first: int = 0,
        last: int = 0,
    ) -> None:
        self.session = session
        self.text = text
        self.stop_reason = stop_reason
        self.truncated = truncated
        self._first, self._last = first, last

    @property
    def output(self) -> str:
        """The answer; the same as `text`."""
        return self.text

    @property
    def final_output(self) -> str:
        """The same as `output`, under the name that other toolkits use."""
        return self.output

    @property
    def events(self) -> Sequence[Event]:
        """The events of this run, from the session's log."""
        return self.session.log.events[self._first : self._last]

    @cached_property
    def usage(self) -> Usage:
        """Tokens of all attempts of this run, failed and rejected ones too."""
        total = Usage()
        for line in self.session.log.lines[self._first : self._last]:
            if b'"type":"attempt/end"' in line[:80]:
                data = orjson.loads(line)["data"]
                used = data.get("usage", {})
                total += Usage.from_dict(used, estimated=bool(data.get("estimated")))
        return total

    @property
    def messages(self) -> tuple[Message, ...]:
        """What entered the history in this run, as the model sees it; not the runs before."""
        surface = self.session.log.folds.surface
        pairs = zip(surface.seqs, surface.nodes, strict=False)
        return tuple(
            Message.from_node(orjson.loads(node))
            for seq, node in pairs
            if self._first <= seq < self._last
        )

    @property
    def tool_calls(self) -> pd.DataFrame:
        """The tools table: one row per call."""
        return self.to_pandas("tools")

    @property
    def verdicts(self) -> pd.DataFrame:
        """The verdicts table: one row per word of a reviewer."""
        return self.to_pandas("verdicts")

    @property
    def approvals(self) -> pd.DataFrame:
        """The approvals table: one row per decision about a call."""
        return self.to_pandas("approvals")

    def to_pandas(self, table: str = "steps", columns: Wanted = None) -> pd.DataFrame:
        """One of the run's tables.

        Parameters
        ----------
        table
            steps, events, messages, attempts, tools, verdicts, approvals, compactions, usage, notes;
            "steps", one row per accepted answer, is the one to begin with.
        columns
            A list of names, or "short": the eight or so that are looked at first. All if not given.

        Returns
        -------
        DataFrame
            What is looked at comes first, ids last; `nb.describe(table)` says what each column means.
            Numbers have their unit in the name; nullable dtypes; `df.attrs["schema"]` names table and
            version. With all columns it shows the short ones and names the others.

        Raises
        ------
        ConfigError
            If there is no table or column of that name.
        """
        from nbagent.frames import table as build

        return build(self.session.log, table, self._first, self._last, columns)

    def export(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write all tables of the run to files, by the end of the path.

        Parameters
        ----------
        path
            "run.xlsx": one workbook with a sheet a table; times are UTC, a text that is too long for
            a cell says how much is missing, control characters become their pictures. "run.csv",
            "run.parquet": a file a table, such as run.tools.csv. Files that are there are replaced.

        Returns
        -------
        list of Path
            What was written.

        Raises
        ------
        ConfigError
            If the path ends otherwise, or a library is missing: the message has the pip command.
        OSError
            If a file can't be written.
        """
        from nbagent.frames import export

        return export(self.session.log, path, self._first, self._last)

    def plot(
        self,
        kind: Literal["run", "context"] = "run",
        *,
        theme: Literal["auto", "light", "dark"] = "auto",
        ax: Axes | Sequence[Axes] | None = None,
    ) -> Figure:
        """A figure of the run, which a cell shows as its value.

        Parameters
        ----------
        kind
            "run": the model, the tools and the person on a time axis, with the tokens used beneath.
            "context": how large each request was, and of what it was made.
        theme
            "auto" has no background and colours for light and dark pages; "light", "dark" have one.
        ax
            Draw into these axes: for "run" two (lanes, tokens) or one for the lanes alone.

        Returns
        -------
        matplotlib.figure.Figure
            Not known to pyplot, so nothing has to be closed.

        Raises
        ------
        ConfigError
            If there is no such kind or theme, or `ax` is something else than axes.
        """
        from nbagent.frames.figure import plot

        return plot(self.session.log, kind, self._first, self._last, theme=theme, ax=ax)

    def explain(
        self, step: int | None = None, *, turn: int | None = None, attempt: int | None = None
    ) -> Explanation:
        """The exact request of a step: header, history, reminders, body, what changed since the one before.

        Parameters
        ----------
        step
            Number of the step within its turn; the last one if not given.
        turn
            The run's last turn if not given.
        attempt
            The step's last attempt if not given.
        """
        from nbagent.frames import explain

        return explain(
            self.session.log,
            step,
            turn,
            attempt,
            start=self._first,
            end=self._last,
            models=self.session.models,
        )

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= 200 else self.text[:199] + "…"
        cut = ", truncated" if self.truncated else ""
        from nbagent.frames import brief

        facts = brief(self.session.log, self._first, self._last)
        return f"Result({text!r}, stop_reason={self.stop_reason!r}{cut}): {facts}"

"""All that tools, a panel or a lab may know of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Protocol

from nbagent.interfaces.approver import AnswerWord, Question

__all__ = ["Key", "Runnable", "Watched"]

Key = tuple[int, int, int]
"""(turn, step, position) of a call."""


class Runnable(Protocol):
    """A run in progress or finished."""

    def events(self) -> AsyncIterator[Any]:
        """The run's events from its first on, each once, in order; ends with the run."""
        ...

    def pending(self) -> Sequence[Question]:
        """The open questions."""
        ...

    def answer(
        self,
        question_id: str,
        decision: AnswerWord,
        *,
        reason: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """Answer one of them, in any order, from any thread."""
        ...

    def steer(self, text: str) -> None:
        """Say something that the model reads before its next answer."""
        ...

    def interrupt(self, reason: str | None = None) -> None:
        """Stop; what is finished stays."""
        ...

    def done(self) -> bool:
        """Whether the run has ended."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end, from another thread."""
        ...


class Watched(Runnable, Protocol):
    """A run as its panel sees it; all of it may be called from any thread."""

    @property
    def session(self) -> Any:
        """The session: `id`, `location`."""
        ...

    def lines(self, start: int = 0) -> Sequence[bytes]:
        """Canonical lines of the run's events so far, from its `start`-th on."""
        ...

    def progress(self) -> Mapping[Key, tuple[float, str]]:
        """What running tools report: (share done, text)."""
        ...

    def waiting_for_cell(self) -> Collection[Key]:
        """Calls that wait for the notebook's own thread."""
        ...

    def check(self, question_id: str, arguments: dict[str, Any]) -> str:
        """Why these arguments don't fit the tool that is asked about; empty if they do."""
        ...

    def remembered(self) -> Sequence[Mapping[str, Any]]:
        """The "always" answers in force: id, name, ref, decision."""
        ...

    def forget(self, id: str) -> int:
        """Revoke one of them; gives how many."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """What ended the run, if it failed."""
        ...

"""All that tools, a panel or a lab may know of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from nbagent.interfaces.approver import AnswerWord, Question

__all__ = ["Runnable"]


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

"""The review seam: a judge of one model answer.

A reviewer is a function ``reviewer(attempt) -> Verdict | None``, sync or async; None accepts.
Reviewers are asked in order, the first that does not accept wins; all of them share four retries
per model call, then the answer passes. One that raises or takes longer than 30 s is left out of that
answer and noted in the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nbagent.messages import Call, Message

__all__ = ["Attempt", "Reviewer", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reviewer says of an answer; made by `accept`, `retry` or `force`.

    Examples
    --------
    >>> Verdict.retry("no-numbers", "Say it without digits.").action
    'retry'
    """

    action: Literal["accept", "retry", "force"]
    reason: str = ""
    """Key of the tally, a few words."""
    text: str = ""
    """retry: what the model reads; force: the answer that replaces its own."""
    detail: str = ""
    """For people; stands in the table."""

    @classmethod
    def accept(cls) -> Verdict:
        """The answer may pass."""
        return cls("accept")

    @classmethod
    def retry(cls, reason: str, text: str, *, detail: str = "") -> Verdict:
        """The model shall answer again, and is told `text`."""
        return cls("retry", reason, text, detail)

    @classmethod
    def force(cls, reason: str, text: str, *, detail: str = "") -> Verdict:
        """`text` is the answer; nobody is asked any more."""
        return cls("force", reason, text, detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One answer, as reviewers see it."""

    message: Message
    """The answer; after a max-tokens continuation its text is the joined one."""
    messages: tuple[Message, ...]
    """What was sent, reminders included."""
    n: int
    """1 for the first answer of this model call, 2 after one retry, …"""
    turn: int
    step: int
    error: Exception | None = None
    """Why there is no answer, if recovery has given up; `message` is then empty."""
    tallies: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each reason has sent this model call back."""

    @property
    def text(self) -> str:
        """The answer's text."""
        return self.message.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls it asks for."""
        return self.message.calls

    def tally(self, reason: str) -> int:
        """How often `reason` has already sent this model call back."""
        return self.tallies.get(reason, 0)


Reviewer = Callable[[Attempt], "Verdict | Awaitable[Verdict | None] | None"]

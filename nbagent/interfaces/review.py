"""The review seam: a judge of one model answer.

A reviewer is a function ``reviewer(attempt) -> Verdict | None``, sync or async; None accepts.
Reviewers are asked in order, the first that does not accept wins; all of them share four retries
per model call, then the answer passes (action "noted" in the table verdicts, detail "gave way"). One
that raises, returns something else or awaits longer than 30 s is left out of that answer: noted in
the same table, and a warning of the logger "nbagent".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from nbagent.keywords import record
from nbagent.messages import Call, Message

__all__ = ["Attempt", "Reviewer", "Verdict"]


@record(keywords=True)
@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reviewer says of an answer; made by `accept`, `retry` or `force`.

    Parameters
    ----------
    action
        accept, retry or force.
    reason
        A short key such as "no-digits", the same each time: rows are grouped by it and
        `attempt.tally` counts it. Not empty, except with accept.
    text
        Of retry: what the model reads, as a reminder, when it is asked again. Of force: the answer
        that stands in place of its own, calls included.
    detail
        What only people read, in the table verdicts: what exactly was found this time.

    Examples
    --------
    >>> Verdict.retry("no-digits", "Say it without digits.", detail="found: 5").action
    'retry'
    """

    action: Literal["accept", "retry", "force"]
    reason: str = ""
    text: str = ""
    detail: str = ""

    @classmethod
    def accept(cls) -> Verdict:
        """The answer may pass, unless a reviewer further on objects."""
        return cls("accept")

    @classmethod
    def retry(cls, reason: str, text: str, *, detail: str = "") -> Verdict:
        """The model shall answer again, and is told `text`; this draft never enters the history."""
        return cls("retry", reason, text, detail)

    @classmethod
    def force(cls, reason: str, text: str, *, detail: str = "") -> Verdict:
        """`text` is the answer, without tool calls; no reviewer is asked any more."""
        return cls("force", reason, text, detail)


@record()
@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One answer of the model, as reviewers see it.

    Parameters
    ----------
    message
        The answer, with `text` and `calls`; one that was continued after the output limit comes
        joined, in one piece.
    messages
        What was sent: the history, then the reminders.
    n
        1 for the first answer of this model call, 2 after one retry, … A model call is all that it
        takes to get one answer that passes.
    turn, step
        Where it is, both from 1.
    error
        Why there is no answer, when repeats have given up; None as a rule. `message` is then empty:
        accept lets the error end the run, force answers in its place.
    tallies
        How often each reason has sent this model call back; see `tally`.

    Examples
    --------
    >>> answer = Message("assistant", "It is 5.")
    >>> Attempt(message=answer, messages=(), n=1, turn=1, step=1).tally("no-digits")
    0
    """

    message: Message
    messages: tuple[Message, ...]
    n: int
    turn: int
    step: int
    error: Exception | None = None
    tallies: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def text(self) -> str:
        """The answer's text."""
        return self.message.text

    @property
    def calls(self) -> tuple[Call, ...]:
        """The tool calls it asks for."""
        return self.message.calls

    def tally(self, reason: str) -> int:
        """How often verdicts of this reason, whoever gave them, have sent this model call back."""
        return self.tallies.get(reason, 0)


Reviewer = Callable[[Attempt], "Verdict | Awaitable[Verdict | None] | None"]

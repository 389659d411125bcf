"""The approval seam: questions to a person, and whoever can answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from nbagent.interfaces.tool import Diff

__all__ = ["ANSWERS", "Answer", "AnswerWord", "Approver", "ByHand", "Question", "edit"]

AnswerWord = Literal["allow", "always_allow", "deny", "always_deny", "edit"]
ANSWERS = ("allow", "always_allow", "deny", "always_deny", "edit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that waits for a person."""

    id: str
    """"turn.step.position", unique within the session."""
    name: str
    """The tool."""
    ref: str
    risk: str
    why: str
    """Why it is asked."""
    arguments: dict[str, Any]
    description: str = ""
    """What the tool does."""
    preview: str | Diff | None = None
    """What the tool itself shows for these arguments."""
    rememberable: bool = True
    """Whether an "always" answer is possible; never for dangerous tools."""
    problem: str = ""
    """Why the answer given before could not be taken."""
    expires_ms: int | None = None
    """UTC milliseconds after which it counts as denied."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a reason that the model reads, or with changed arguments."""

    decision: AnswerWord
    reason: str = ""
    arguments: dict[str, Any] | None = None
    """Of an edit: the arguments to run with, validated like the model's own."""


class ByHand:
    """An approver that answers nothing itself: questions wait for `run.answer`.

    Examples
    --------
    >>> import nbagent as nb
    >>> save = nb.Tool("save", "Save.", {"type": "object"}, lambda: "saved", risk="mutating")
    >>> agent = nb.Agent(nb.models.Scripted([nb.call("save"), "Done."]), tools=[save])
    >>> run = agent.start("go", ui=nb.ByHand())
    >>> while not run.pending():
    ...     pass
    >>> run.answer(run.pending()[0].id, "allow")
    >>> run.result().text
    'Done.'
    """

    async def decide(self, question: Question) -> AnswerWord | Answer:
        """Wait until the question is answered elsewhere, or expires."""
        return await asyncio.get_running_loop().create_future()


def edit(arguments: Mapping[str, Any], reason: str = "") -> Answer:
    """Run the call with these arguments instead.

    Examples
    --------
    >>> edit({"path": "b.txt"}).decision
    'edit'
    """
    return Answer("edit", reason, dict(arguments))


@runtime_checkable
class Approver(Protocol):
    """Answers questions; give one as `ui=`.

    Several questions may be open at once: `decide` is called for each, in the model's order. With
    `serial = True` on the approver the next one waits for the answer to the one before.
    """

    async def decide(self, question: Question) -> AnswerWord | Answer:
        """Answer one question; cancelled when the question is answered elsewhere or expires.

        An approver that raises counts as a refusal. An answer that can't be taken (arguments that
        don't fit) is asked for again, at most three times, with `question.problem`.
        """
        ...

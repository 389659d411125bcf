"""The approval seam: questions to a person, and whoever can answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from nbagent.keywords import record

if TYPE_CHECKING:
    from nbagent.interfaces.tool import Diff

__all__ = ["ANSWERS", "Answer", "AnswerWord", "Approver", "ByHand", "Question", "edit"]

AnswerWord = Literal["allow", "always_allow", "deny", "always_deny", "edit"]
ANSWERS = ("allow", "always_allow", "deny", "always_deny", "edit")


@record()
@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A call that waits for a person.

    Parameters
    ----------
    id
        "turn.step.position", unique within the session; what `run.answer` wants.
    name, ref, risk, description
        Of the tool: its name, `cap://tool/domain/name@version`, readonly, mutating, dangerous or
        unspecified, what it does.
    why
        Why it is asked.
    arguments
        What the tool would be called with, plain JSON; a copy, changing it changes nothing.
    preview
        What the tool itself shows for these arguments, a text or a `Diff`; None = nothing.
    rememberable
        Whether an "always" answer can be given; never to a dangerous tool.
    problem
        Why the answer given just before could not be taken; empty the first time.
    expires_ms
        When it counts as denied, in milliseconds since 1970 UTC; None = never.
    """

    id: str
    name: str
    ref: str
    risk: str
    why: str
    arguments: dict[str, Any]
    description: str = ""
    preview: str | Diff | None = None
    rememberable: bool = True
    problem: str = ""
    expires_ms: int | None = None


@record(keywords=True)
@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with a reason, or with changed arguments; without them the bare word will do.

    Parameters
    ----------
    decision
        "allow" or "deny" this call; "always_allow" or "always_deny" it and later calls of the tool,
        whatever their arguments, for as long as `Approval.remember` says; "edit": run it with other
        arguments (see `edit`).
    reason
        Stands in the tables; that of a refusal is read by the model.
    arguments
        Of an edit, and of nothing else: all arguments to run with, validated like the model's own.

    Examples
    --------
    >>> Answer("deny", "ask me tomorrow").reason
    'ask me tomorrow'
    """

    decision: AnswerWord
    reason: str = ""
    arguments: dict[str, Any] | None = None


class ByHand:
    """An approver that answers nothing itself: questions wait for `run.answer`.

    For notebooks (start in one cell, answer in the next) and for programs with a face of their own.
    A question that nobody answers in time counts as refused (`Approval.timeout_s`).

    Examples
    --------
    >>> import nbagent as nb
    >>> save = nb.Tool("save", "Save.", {"type": "object"}, lambda: "saved", risk="mutating")
    >>> agent = nb.Agent(nb.models.Scripted([nb.call("save"), "Done."]), tools=[save])
    >>> run = agent.start("go", ui=nb.ByHand())
    >>> while not run.pending() and not run.done():
    ...     pass
    >>> run.answer(run.pending()[0].id, "allow")
    >>> run.result().text
    'Done.'
    """

    async def decide(self, question: Question) -> str | Answer:
        """Wait until the question is answered elsewhere, or expires."""
        return await asyncio.get_running_loop().create_future()


def edit(arguments: Mapping[str, Any], reason: str = "") -> Answer:
    """The answer "run it with these arguments instead"; give all of them, not only the changed ones.

    Examples
    --------
    >>> edit({"path": "b.txt"}).decision
    'edit'
    """
    return Answer("edit", reason, dict(arguments))


@runtime_checkable
class Approver(Protocol):
    """Anything with `async decide(question)`: it answers in a person's place; give one as `ui=`.

    Several questions may be open at once: `decide` is called for each, in the model's order. With
    `serial = True` on the approver the next one waits for the answer to the one before. A `name` on
    it is what the column `answered_by` of the table approvals shows, else its class. With a method
    `tell(text)` it also gets the lines that a person must see, such as that a request is repeated.
    """

    async def decide(self, question: Question) -> str | Answer:
        """The answer to one question: an `Answer`, or its bare word such as "allow".

        It is cancelled when the question is answered elsewhere or expires. If it raises, the call is
        not run, the decision's source is `failed`, and a line on screen and in the log `nbagent` says
        so. An answer that can't be taken (arguments that don't fit) is asked for again, at most three
        times, with `question.problem`; then that counts as failed.
        """
        ...

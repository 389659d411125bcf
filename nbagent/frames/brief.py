"""A run in one line: what a newcomer must know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nbagent.escape import clean
from nbagent.events.turn import limit_words
from nbagent.frames.model_tables import total
from nbagent.frames.reading import read
from nbagent.frames.story import Story, ToolUse, tell
from nbagent.log import collector_paused

if TYPE_CHECKING:
    from nbagent.log import Log

__all__ = ["brief"]

WHY = {
    "unattended": "nobody could be asked",
    "expired": "nobody answered in time",
    "failed": "the approver failed",
    "person": "by a person",
    "rule": "by a rule",
    "list": "not an allowed tool",
    "mode": "by the approval's mode",
    "guard": "by a gate",
    "handler": "by the approval's handler",
    "remembered": "by a remembered answer",
    "repeated": "refused before",
    "budget": "over the budget",
    "interrupt": "interrupted",
}
"""Why a call was denied, by the decision's source."""

WORDS = {"error": "failed", "timeout": "timed out"}
"""Statuses as verbs."""

SHOWN = 300
"""Of the words of a limit, which may be a server's, so many characters are shown."""


def brief(log: Log, start: int = 0, end: int | None = None) -> str:
    """Steps, calls, tokens, and what went otherwise than wished, in one line; needs no pandas."""
    with collector_paused():
        story = tell(read(log, start, end))
    used = total(story.attempts)
    about = "about " if used.estimated else ""
    facts = ", ".join(
        (
            _count(len(story.steps), "step"),
            _count(len(story.calls), "call") + _troubles(story.calls),
            f"{about}{_count(used.total, 'token')}",
        )
    )
    return "; ".join((*_limits(story), facts))


def _limits(story: Story) -> Iterator[str]:
    """The limit that ended the last turn."""
    last = story.steps[-1] if story.steps else None
    if last is not None and last.limit:
        words = " ".join(clean(limit_words(last.limit)).split())
        yield f"{last.stop}: {words if len(words) <= SHOWN else words[: SHOWN - 1] + '…'}"


def _troubles(calls: list[ToolUse]) -> str:
    """What became of the calls that were not simply done, in brackets."""
    statuses = Counter(call.ended.get("status", "ok") for call in calls if call.result is not None)
    statuses["open"] = sum(call.result is None for call in calls)
    parts = [
        f"{n} {WORDS.get(status, status)}" + (_reasons(calls) if status == "denied" else "")
        for status, n in statuses.items()
        if n and status != "ok"
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def _reasons(calls: list[ToolUse]) -> str:
    """Why calls were denied; with numbers if there is more than one reason."""
    sources = Counter(
        str(call.decision.data["source"])
        for call in calls
        if call.decision is not None and call.decision.data["decision"] == "deny"
    )
    words = {source: WHY.get(source, source) for source in sources}
    if len(sources) == 1:
        return f": {next(iter(words.values()))}"
    return ": " + ", ".join(f"{n} {words[source]}" for source, n in sources.items())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

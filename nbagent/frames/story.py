"""Events brought together to what tables are about: steps, their attempts, calls and questions.

A log may end anywhere (a live run): what has not happened yet is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from nbagent.frames.reading import Entry, Reading
from nbagent.messages import Call, Message

__all__ = ["Attempt", "Entered", "Question", "Step", "Story", "ToolUse", "Verdict", "tell"]

Data = dict[str, Any]


@dataclass(slots=True)
class Attempt:
    """One generation: `request/sent` and what followed."""

    sent: Entry
    header: Data
    purpose: str = "main"
    end: Data | None = None
    discarded: str | None = None
    draft: Message | None = None
    """The answer, if a reviewer did not accept it."""
    message: Message | None = None
    """The answer, if it became the step's."""
    last: int = 0
    """seq of the latest event of it; rows whose latest event lies before the range are left out."""

    @property
    def ended(self) -> Data:
        """Data of `attempt/end`, empty while the attempt is open."""
        return {} if self.end is None else self.end

    @property
    def failure(self) -> Data:
        """What went wrong: type, message, code?, status?; empty if nothing did."""
        return self.ended.get("failure", {})

    @property
    def usage(self) -> dict[str, int]:
        """Tokens as logged: input, output, cache_read, cache_write, reasoning."""
        return self.ended.get("usage", {})


@dataclass(slots=True)
class Question:
    """A question to a person, and the answer."""

    asked: Entry
    answer: Data | None = None


@dataclass(slots=True)
class ToolUse:
    """One tool call from the model's words to the result."""

    called: Entry
    position: int
    request: Call
    tool: Data
    """The tool as the header describes it; empty if it has none of that name."""
    questions: list[Question] = field(default_factory=list[Question])
    decision: Entry | None = None
    done: Data | None = None
    result: Data | None = None
    last: int = 0

    @property
    def ended(self) -> Data:
        """What is known of the result; empty while the call is open."""
        if self.result is None:
            return {}
        if "raw" in self.result or self.done is None:
            return self.result
        return {**self.done, **self.result}  # it came out of order: its text stands in `tool/done`


@dataclass(slots=True)
class Verdict:
    """A reviewer's verdict on an attempt."""

    entry: Entry
    attempt: Attempt | None
    last: int


@dataclass(slots=True)
class Entered:
    """A message that entered the history."""

    entry: Entry
    message: Message
    call: ToolUse | None
    last: int


@dataclass(slots=True)
class Step:
    """One step."""

    start: Entry
    run: int | None
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    calls: list[ToolUse] = field(default_factory=list[ToolUse])
    prompts: list[Message] = field(default_factory=list[Message])
    answer: Entry | None = None
    message: Message | None = None
    end: Entry | None = None
    turn_end: Data | None = None
    """Of the turn's last step: how the turn ended."""
    last: int = 0

    @property
    def stop(self) -> str | None:
        """Of the turn's last step: why the turn ended."""
        if self.turn_end is None:
            return None
        return self.turn_end.get("stop") or self.turn_end.get("reason")

    @property
    def limit(self) -> dict[str, Any] | None:
        """Of the turn's last step: the limit that ended the turn; see `events/turn.py`."""
        return (self.turn_end or {}).get("limit")

    @property
    def error(self) -> str | None:
        """Of the turn's last step: the error that ended the turn."""
        facts = (self.turn_end or {}).get("error")
        return f"{facts['type']}: {facts['message']}" if facts else None


@dataclass(slots=True)
class Story:
    """Everything that the tables are made of, each list in the log's order."""

    steps: list[Step] = field(default_factory=list[Step])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    calls: list[ToolUse] = field(default_factory=list[ToolUse])
    verdicts: list[Verdict] = field(default_factory=list[Verdict])
    messages: list[Entered] = field(default_factory=list[Entered])


def tell(reading: Reading) -> Story:
    """Bring the events of a reading together."""
    teller = _Teller(reading)
    for entry in reading.entries:
        method = _METHODS.get(entry.type)
        if method is not None:
            method(teller, entry)
            if entry.step is not None and teller.step is not None:
                teller.step.last = entry.seq
    whole = teller.story
    start = reading.start
    return Story(
        [*_since(start, whole.steps)],
        [*_since(start, whole.attempts)],
        [*_since(start, whole.calls)],
        [*_since(start, whole.verdicts)],
        [*_since(start, whole.messages)],
    )


def _since(start: int, rows: Iterable[Any]) -> Iterator[Any]:
    return (row for row in rows if row.last >= start)


class _Teller:
    """Where the telling stands."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.story = Story()
        self.run: int | None = None
        self.step: Step | None = None
        self.attempt: Attempt | None = None
        self.calls: dict[int, ToolUse] = {}
        self.questions: dict[str, tuple[ToolUse, Question]] = {}
        self.items: dict[str, Data] = {}

    def spliced(self, entry: Entry) -> None:
        for item in entry.data.get("inserted", ()):
            self.items[item["id"]] = item

    def turn_start(self, entry: Entry) -> None:
        self.run = entry.data["run"]
        self.step = self.attempt = None

    def turn_end(self, entry: Entry) -> None:
        if self.step is not None:
            self.step.turn_end = entry.data
            self.step.last = entry.seq
        self.step = self.attempt = None

    def step_start(self, entry: Entry) -> None:
        self.step = Step(entry, self.run, last=entry.seq)
        self.attempt = None
        self.calls, self.questions = {}, {}
        self.story.steps.append(self.step)

    def step_end(self, entry: Entry) -> None:
        if self.step is not None:
            self.step.end = entry

    def user_message(self, entry: Entry) -> None:
        data = entry.data
        item = self.items.get(data["id"])
        if item is None and "message" not in data:
            item = self.reading.item_before(data["id"])
        node = data.get("message") or (item or {}).get("message")
        if node is None:
            return
        source = data.get("source") or (item or {}).get("source")
        message = Message.from_node(node, source)
        self.story.messages.append(Entered(entry, message, None, entry.seq))
        if self.step is not None:
            self.step.prompts.append(message)

    def sent(self, entry: Entry) -> None:
        header = self.reading.header(entry.data["header"])
        self.attempt = Attempt(entry, header, last=entry.seq)
        self.story.attempts.append(self.attempt)
        if self.step is not None:
            self.step.attempts.append(self.attempt)

    def attempt_end(self, entry: Entry) -> None:
        if self.attempt is not None:
            self.attempt.end = entry.data
            self.attempt.last = entry.seq

    def draft(self, entry: Entry) -> None:
        if self.attempt is not None:
            self.attempt.draft = Message.from_node(entry.data["message"])
            self.attempt.last = entry.seq

    def verdict(self, entry: Entry) -> None:
        self.story.verdicts.append(Verdict(entry, self.attempt, entry.seq))

    def discarded(self, entry: Entry) -> None:
        if self.attempt is not None:
            self.attempt.discarded = entry.data["why"]
            self.attempt.last = entry.seq

    def answer(self, entry: Entry) -> None:
        message = Message.from_node(entry.data["message"], entry.data.get("source"))
        if message.text or message.parts:  # an empty answer is logged but is no history
            self.story.messages.append(Entered(entry, message, None, entry.seq))
        if self.step is not None:
            self.step.answer, self.step.message = entry, message
        if self.attempt is not None and not self.attempt.discarded:
            self.attempt.message = message
            self.attempt.last = entry.seq

    def call(self, entry: Entry) -> None:
        step = self.step
        position: int = entry.data["position"]
        if step is None or step.message is None or position >= len(step.message.calls):
            return
        request = step.message.calls[position]
        tools: list[Data] = []
        if self.attempt is not None:
            tools = self.attempt.header.get("tools", tools)
        named = [tool for tool in tools if tool["name"] == request.name]
        use = ToolUse(entry, position, request, named[0] if named else {}, last=entry.seq)
        self.calls[position] = use
        step.calls.append(use)
        self.story.calls.append(use)

    def asked(self, entry: Entry) -> None:
        use = self._touched(entry)
        if use is not None:
            question = Question(entry)
            use.questions.append(question)
            self.questions[entry.data["id"]] = (use, question)

    def answered(self, entry: Entry) -> None:
        found = self.questions.get(entry.data["id"])
        if found is not None:
            use, question = found
            question.answer = entry.data
            use.last = entry.seq

    def decision(self, entry: Entry) -> None:
        use = self._touched(entry)
        if use is not None:
            use.decision = entry

    def done(self, entry: Entry) -> None:
        use = self._touched(entry)
        if use is not None:
            use.done = entry.data

    def result(self, entry: Entry) -> None:
        use = self._touched(entry)
        if use is None:
            return
        use.result = entry.data
        ended = use.ended
        text = ended.get("shown", ended.get("raw", ""))
        message = Message("tool", text, call_id=use.request.id, name=use.request.name)
        self.story.messages.append(Entered(entry, message, use, entry.seq))

    def _touched(self, entry: Entry) -> ToolUse | None:
        use = self.calls.get(entry.data["position"])
        if use is not None:
            use.last = entry.seq
        return use


_METHODS = {
    "agent/inbox/spliced": _Teller.spliced,
    "turn/start": _Teller.turn_start,
    "turn/end": _Teller.turn_end,
    "step/start": _Teller.step_start,
    "step/end": _Teller.step_end,
    "user/message": _Teller.user_message,
    "request/sent": _Teller.sent,
    "attempt/end": _Teller.attempt_end,
    "assistant/draft": _Teller.draft,
    "review/verdict": _Teller.verdict,
    "attempt/discarded": _Teller.discarded,
    "assistant/message": _Teller.answer,
    "tool/call": _Teller.call,
    "approval/asked": _Teller.asked,
    "approval/answered": _Teller.answered,
    "tool/decision": _Teller.decision,
    "tool/done": _Teller.done,
    "tool/result": _Teller.result,
}

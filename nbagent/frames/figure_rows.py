"""What the figures of a run show, taken from its events: bars in seconds, sizes in tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

from nbagent.events import SPECS
from nbagent.folds import Folds
from nbagent.frames.reading import Entry, Reading, read, type_of
from nbagent.frames.story import Attempt, Question, Story, ToolUse, tell

if TYPE_CHECKING:
    from nbagent.log import Log

__all__ = ["Compaction", "ModelBar", "RunRows", "Sent", "ToolBar", "Wait", "requests", "run_rows"]

ANSWERS = {
    "allow": "allowed",
    "deny": "denied",
    "always_allow": "always allowed",
    "always_deny": "always denied",
    "edit": "edited",
}
STATUSES = {
    "ok": "",
    "error": "failed",
    "timeout": "timed out",
    "aborted": "stopped",
    "abandoned": "stopped",
}
SUMMARIES = ("summary", "compaction")
"""Sources of the message that stands for what a compaction took out."""


@dataclass(frozen=True, slots=True)
class ModelBar:
    """One request to a model."""

    start: float
    """Seconds, as all times here; what lies between turns is left out."""
    stop: float
    kind: str
    """answer, draft, failed, open (no end is known, or it was stopped), aux (the harness asked)."""
    step: int | None
    word: str
    """What to write at it, empty for an accepted answer."""


@dataclass(frozen=True, slots=True)
class ToolBar:
    """One tool call."""

    start: float
    stop: float
    tool: str
    kind: str
    """ran, failed (also denied), replayed, open (no end is known, or it was stopped)."""
    word: str


@dataclass(frozen=True, slots=True)
class Wait:
    """One question to a person."""

    start: float
    stop: float
    tool: str
    outcome: str
    seconds: float | None
    """How long the answer took; None while there is none."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """One compaction of the history."""

    at: float
    """Seconds; in a list of requests the number of requests before it."""
    before: int | None
    after: int | None


@dataclass(slots=True)
class RunRows:
    """All bars of a run."""

    end: float = 0.0
    models: list[ModelBar] = field(default_factory=list[ModelBar])
    tools: list[ToolBar] = field(default_factory=list[ToolBar])
    waits: list[Wait] = field(default_factory=list[Wait])
    compactions: list[Compaction] = field(default_factory=list[Compaction])
    turns: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(start, number)."""
    tokens: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])
    """(time, tokens of the request that ended then), in order."""
    estimated: bool = False
    """Whether some of the tokens are."""


def run_rows(log: Log, start: int = 0, end: int | None = None) -> RunRows:
    """The bars of the events `start` up to `end`; the log may end anywhere."""
    reading = read(log, start, end)
    story = tell(reading)
    times = _Times(reading)
    rows = RunRows(times.end)
    stopped = {
        (step.start.turn, step.start.step)
        for step in story.steps
        if step.answer is not None and step.answer.data.get("interrupted")
    }
    rows.models = [_attempt(each, times, stopped) for each in story.attempts]
    rows.tools = [_call(call, times) for call in story.calls]
    rows.waits = _waits(story, reading, times)
    for entry in _inside(reading):
        if entry.type == "turn/start":
            rows.turns.append((times.at[entry.seq], entry.data["turn"]))
        elif entry.type == "compaction":
            rows.compactions.append(_compaction(entry.data, times.at[entry.seq]))
        elif entry.type in ("attempt/end", "aux/result"):
            spent = sum(_counts(entry.data.get("usage")).values())
            if spent:
                rows.tokens.append((times.at[entry.seq], spent))
                rows.estimated |= bool(entry.data.get("estimated"))
    rows.models += _aux(reading, times)
    return rows


class _Times:
    """When each event came, in seconds since the first of the stretch, and when things ended."""

    def __init__(self, reading: Reading) -> None:
        self.at: dict[int, float] = {}
        self.ends: dict[tuple[object, ...], float] = {}
        """By ("attempt", turn, step, attempt), ("call", turn, step, position), ("answer", id)."""
        now, before = 0.0, None
        for entry in reading.entries:
            # A clock that was set back must not turn a bar round; nobody waited between turns, nor
            # between the end of a process and the one that took its log up again.
            idle = entry.turn is None or entry.type in ("turn/start", "session/end-seed")
            if before is not None and not idle and entry.seq > reading.start:
                now += max(0, entry.ts - before) / 1000
            before = entry.ts
            self.at[entry.seq] = now
            key = _key(entry)
            if key is not None:
                self.ends.setdefault(key, now)
        self.end = now


def _key(entry: Entry) -> tuple[object, ...] | None:
    match entry.type:
        case "attempt/end":
            return ("attempt", entry.turn, entry.step, entry.attempt)
        case "tool/done" | "tool/result":
            return ("call", entry.turn, entry.step, entry.data["position"])
        case "approval/answered":
            return ("answer", entry.turn, entry.data["id"])
        case _:
            return None


def _inside(reading: Reading) -> Iterable[Entry]:
    return (entry for entry in reading.entries if entry.seq >= reading.start)


def _attempt(attempt: Attempt, times: _Times, stopped: set[tuple[Any, Any]]) -> ModelBar:
    sent = attempt.sent
    stop = times.ends.get(("attempt", sent.turn, sent.step, sent.attempt), times.end)
    kind, word = _outcome(attempt)
    if kind == "answer" and (sent.turn, sent.step) in stopped:
        word = "stopped"
    return ModelBar(times.at[sent.seq], stop, kind, sent.step, word)


def _outcome(attempt: Attempt) -> tuple[str, str]:
    if attempt.end is None:
        return "open", "open"
    if attempt.message is not None:
        return "answer", ""
    if attempt.discarded == "forced":
        return "draft", "replaced"
    if attempt.discarded == "rejected" or attempt.draft is not None:
        return "draft", "bounced"
    if attempt.discarded == "aborted" or attempt.ended.get("finish") == "aborted":
        return "open", "stopped"
    if attempt.discarded is not None or attempt.failure:
        return "failed", "failed"
    return "open", "open"


def _call(call: ToolUse, times: _Times) -> ToolBar:
    called, ended, name = call.called, call.ended, call.request.name
    start = times.at[called.seq if call.decision is None else call.decision.seq]
    stop = times.ends.get(("call", called.turn, called.step, call.position))
    if stop is None:
        return ToolBar(start, times.end, name, "open", "open")
    status: str = ended.get("status", "ok")
    if status == "denied":
        return ToolBar(start, start, name, "failed", "denied")
    # A body may have waited for its turn: what is known of its length counts back from its end.
    length = ended.get("duration_ms", 0.0) / 1000
    start = max(start, stop - length) if length else stop
    if status == "replayed" or _dict(ended.get("meta")).get("dedup") == "replayed":
        return ToolBar(start, stop, name, "replayed", "replayed")
    word = STATUSES.get(status, status)
    kind = "open" if word == "stopped" else "failed" if word else "ran"
    return ToolBar(start, stop, name, kind, word)


def _waits(story: Story, reading: Reading, times: _Times) -> list[Wait]:
    pairs = [
        (question.asked.seq, _wait(question, call.request.name, times))
        for call in story.calls
        for question in call.questions
    ]
    found = [wait for seq, wait in pairs if seq >= reading.start or wait.stop > 0]
    return sorted(found, key=lambda wait: (wait.start, wait.stop))


def _wait(question: Question, tool: str, times: _Times) -> Wait:
    asked, answer = question.asked, question.answer
    start = times.at[asked.seq]
    stop = times.ends.get(("answer", asked.turn, asked.data["id"]), times.end)
    if answer is None:
        return Wait(start, stop, tool, "open", None)
    outcome: str
    if answer.get("withdrawn"):
        outcome = "withdrawn"
    elif answer.get("by") == "expired":
        outcome = "expired"
    else:
        decision: str = answer["decision"]
        outcome = ANSWERS.get(decision, decision)
    return Wait(start, stop, tool, outcome, answer.get("wait_ms", 0.0) / 1000)


def _compaction(data: dict[str, Any], at: float) -> Compaction:
    return Compaction(at, _count(data.get("tokens_before")), _count(data.get("tokens_after")))


def _aux(reading: Reading, times: _Times) -> list[ModelBar]:
    """Requests of the harness itself; the result names its request by id or by seq."""
    begun: dict[str, tuple[float, str]] = {}
    bars: list[ModelBar] = []
    for entry in _inside(reading):
        data, now = entry.data, times.at[entry.seq]
        if entry.type == "aux/request":
            begun[str(data.get("id", entry.seq))] = (now, str(data.get("purpose") or "other"))
        elif entry.type == "aux/result":
            key = str(data.get("id", data.get("request")))
            start, purpose = begun.pop(key, (now, "other"))
            word = f"{purpose} failed" if data.get("failure") else purpose
            bars.append(ModelBar(start, now, "aux", None, word))
    bars += [ModelBar(start, times.end, "aux", None, word) for start, word in begun.values()]
    return sorted(bars, key=lambda bar: bar.start)


# -- the size of requests


@dataclass(slots=True)
class Sent:
    """Tokens of one request, part by part."""

    head: float
    """Instructions and tools."""
    summary: float
    history: float
    tail: float
    """Reminders."""
    window: int | None
    """Tokens that the model can take, if known."""
    estimated: bool = True
    """Whether the provider gave no count of the whole; how it divides is always estimated."""

    @property
    def total(self) -> float:
        """Tokens of the whole request."""
        return self.head + self.summary + self.history + self.tail

    def scale(self, factor: float) -> None:
        """Multiply all parts."""
        self.head *= factor
        self.summary *= factor
        self.history *= factor
        self.tail *= factor


def requests(
    log: Log, start: int = 0, end: int | None = None
) -> tuple[list[Sent], list[Compaction]]:
    """The requests among the events `start` up to `end`, and the compactions between them."""
    lines = log.lines
    length = len(lines)
    end = length if end is None else max(0, min(end, length))
    sizes = _Sizes(lines)
    for seq, line in enumerate(islice(lines, end)):
        type_ = type_of(line).decode()
        if type_ == "assistant/chunk" or not (type_ in SPECS or type_ == "compaction"):
            continue
        sizes.take(seq, type_, orjson.loads(line)["data"], wanted=seq >= start)
    return sizes.requests, sizes.compactions


class _Sizes:
    """Goes through a log and measures each request where it was sent."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = lines
        self.folds = Folds()
        self.summaries: set[int] = set()
        """seq of the messages that stand for what was taken out."""
        self.head = (-1, 0)
        """seq and bytes of the header in force."""
        self.factor = 1.0
        """By how much the last count of a provider differed from our estimate."""
        self.open: Sent | None = None
        self.requests: list[Sent] = []
        self.compactions: list[Compaction] = []

    def take(self, seq: int, type_: str, data: dict[str, Any], *, wanted: bool) -> None:
        """Take in one event."""
        if type_ == "request/sent":
            self.open = self._measure(data)
            if wanted:
                self.requests.append(self.open)
        elif type_ == "attempt/end":
            self._reported(data)
        elif type_ == "compaction" and wanted:
            self.compactions.append(_compaction(data, len(self.requests)))
        elif type_ == "user/message" and str(data.get("source")).startswith(SUMMARIES):
            self.summaries.add(seq)
        if type_ in SPECS:
            self.folds.step(seq, type_, data)

    def _measure(self, data: dict[str, Any]) -> Sent:
        folds = self.folds
        if self.head[0] != folds.header.seq:
            self.head = (folds.header.seq, len(orjson.dumps(folds.header.value)))
        surface = folds.surface
        summary = sum(
            len(node)
            for node, seq in (
                zip(surface.nodes, surface.seqs, strict=True) if self.summaries else ()
            )
            if seq in self.summaries
        )
        tail = sum(self._tail(entry) for entry in data.get("tail", ()))
        window = _count((folds.header.context or {}).get("window"))
        # Four bytes a token, as the loop estimates.
        sent = Sent(self.head[1] / 4, summary / 4, (surface.size - summary) / 4, tail / 4, window)
        sent.scale(self.factor)
        return sent

    def _tail(self, entry: dict[str, Any]) -> int:
        draft: int | None = entry.get("draft")
        if draft is None:
            return len(orjson.dumps(entry.get("text", "")))
        return len(orjson.dumps(orjson.loads(self.lines[draft])["data"]["message"]))

    def _reported(self, data: dict[str, Any]) -> None:
        """Fit the parts to the whole, where the whole is known."""
        used = _counts(data.get("usage"))
        whole = sum(used.get(name, 0) for name in ("input", "cache_read", "cache_write"))
        sent, self.open = self.open, None
        if sent is None or not whole or not sent.total:
            return
        factor = whole / sent.total
        sent.scale(factor)
        if not data.get("estimated"):
            sent.estimated = False
            self.factor *= factor


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _counts(usage: Any) -> dict[str, int]:
    """What of a usage is a count."""
    return {name: n for name, n in _dict(usage).items() if _count(n) is not None}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None

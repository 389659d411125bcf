"""A run as it is drawn: its events folded into steps, calls, notes and gauges.

The live panel, the static end and the texts of a notebook draw from a `Picture` and from nothing
else; it holds plain values, no widgets and no HTML. It may be fed at any point of a run: what has
not happened yet is None or empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from nbagent.folds.ledger import LOGICAL
from nbagent.interfaces.plan import Budget, Plan

__all__ = ["Gauge", "Generation", "Note", "Picture", "Shrink", "StepPicture", "Subject", "Use"]

Data = dict[str, Any]
NEAR = 0.8
"""Share of a limit from which a gauge warns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the log does not say: who works, within which limits."""

    agent: str = "agent"
    model: str = ""
    """Until the log names it."""
    budget: Budget = field(default_factory=Budget)
    max_steps: int | None = None
    remember: str | None = "agent"
    """How far an "always" answer reaches."""

    @classmethod
    def of(cls, plan: Plan) -> Subject:
        """The subject of a run with that plan."""
        return cls(
            agent=plan.agent,
            model=plan.model.name,
            budget=plan.budget,
            max_steps=plan.max_steps,
            remember=plan.remember,
        )


@dataclass(slots=True)
class Generation:
    """One attempt: what streamed, and how it ended."""

    number: int
    cause: str | None = None
    """None (first), bounce, must_call, retry …"""
    started_ms: int = 0
    text: str = ""
    thinking: str = ""
    calls: list[list[str]] = field(default_factory=list[list[str]])
    """[name, arguments so far] of each call that streams."""
    finish: str | None = None
    """None while it streams."""
    failure: Data = field(default_factory=dict[str, Any])
    tokens: int = 0
    duration_ms: float = 0.0
    discarded: str | None = None
    """Why it does not count: rejected, failed, forced, aborted."""
    draft: str | None = None
    """Text of the answer that a reviewer rejected or replaced."""
    verdicts: list[Data] = field(default_factory=list[Data])
    """Data of `review/verdict`."""
    blocks: dict[int, int] = field(default_factory=dict[int, int])
    """Place in `calls` by the number of the block."""


@dataclass(slots=True)
class Use:
    """One call of a tool."""

    position: int
    name: str
    arguments: Any
    """A dict as it will run or ran; text where it can't be read."""
    key: tuple[int, int, int] = (0, 0, 0)
    """(turn, step, position)."""
    state: str = "called"
    """called, asked (a person is asked), running, done."""
    risk: str | None = None
    asked: Data | None = None
    """Data of the last `approval/asked`."""
    answer: Data | None = None
    """Data of the last `approval/answered`."""
    decision: str | None = None
    source: str | None = None
    why: str = ""
    rule: str | None = None
    status: str | None = None
    """ok, error, denied, timeout, aborted, abandoned, replayed; None until it ended."""
    error: str | None = None
    raw: str = ""
    shown: str | None = None
    """What the model read, if that is not `raw`."""
    meta: Data = field(default_factory=dict[str, Any])
    duration_ms: float = 0.0
    child: Picture | None = None
    """The run of a sub-agent that this call is."""

    @property
    def edited(self) -> bool:
        """Whether a person changed the arguments."""
        return bool(self.answer) and (self.answer or {}).get("decision") == "edit"


@dataclass(slots=True)
class Note:
    """Something that the harness did or a person should see, outside of calls and verdicts."""

    kind: str
    """steer, followup, interrupt, or the kind of a notice."""
    text: str
    ts: int = 0
    delivered: bool = True
    """Of a steer or followup: whether the model has read it."""
    id: str = ""


@dataclass(slots=True)
class Shrink:
    """A compaction of the history."""

    strategy: str
    trigger: str
    before: int
    after: int
    nodes: int = 0
    summary: str = ""


@dataclass(slots=True)
class StepPicture:
    """One step."""

    index: int
    """Number within the picture, from 1: what is shown."""
    turn: int
    step: int
    started_ms: int
    ended_ms: int | None = None
    prompts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(text, source) of the messages that entered with it; source "" is the prompt itself."""
    generations: list[Generation] = field(default_factory=list[Generation])
    text: str | None = None
    """Text of the accepted answer; None before."""
    thinking: str = ""
    source: str | None = None
    """The reviewer that wrote the answer, if one did."""
    interrupted: bool = False
    uses: list[Use] = field(default_factory=list[Use])
    notes: list[Note] = field(default_factory=list[Note])
    shrinks: list[Shrink] = field(default_factory=list[Shrink])
    """Compactions in front of the step's request."""
    stop: Data | None = None
    """Data of `turn/end`, on the last step of a turn."""
    version: int = 0
    """Grows with each change."""

    @property
    def done(self) -> bool:
        """Whether nothing of it will change."""
        return self.ended_ms is not None

    @property
    def tokens(self) -> int:
        """Read and written by all of its attempts."""
        return sum(g.tokens for g in self.generations)

    @property
    def now(self) -> Generation | None:
        """The attempt that was begun last."""
        return self.generations[-1] if self.generations else None


@dataclass(frozen=True, slots=True)
class Gauge:
    """One limit and how much of it is used."""

    name: str
    """model_calls, tokens, tool_calls, cost_usd, steps, seconds."""
    used: float | None
    """None = not known (unpriced)."""
    limit: float | None
    """None = no limit."""

    @property
    def part(self) -> float | None:
        """Share used, None without a limit."""
        if self.limit is None or self.used is None:
            return None
        return min(self.used / self.limit, 1.0) if self.limit else 1.0

    @property
    def state(self) -> str:
        """Empty below 80 %, near from there on, over when it is used up, none without a limit."""
        part = self.part
        if part is None:
            return "none"
        return "over" if part >= 1 else "near" if part >= NEAR else ""


class Picture:
    """One run, or several of one session, as far as it was fed.

    Parameters
    ----------
    subject
        Who works, within which limits.
    before
        (model calls, tokens, tool calls) that count against the budget from earlier runs.

    Examples
    --------
    >>> picture = Picture(Subject(agent="tester"))
    >>> picture.feed([b'{"seq":0,"ts":5,"type":"turn/start","data":{"turn":1,"run":1},"c":"0"}'])
    >>> picture.turn, picture.steps
    (1, [])
    """

    def __init__(
        self, subject: Subject | None = None, before: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        self.subject = subject or Subject()
        self.model = self.subject.model
        self.window: int | None = None
        self.prompt = ""
        """The first prompt."""
        self.steps: list[StepPicture] = []
        self.turn = 0
        self.runs = 0
        self.started_ms: int | None = None
        self.ended_ms: int | None = None
        """When the last turn ended; None while one is open."""
        self.ended: Data | None = None
        """Data of the last `turn/end`; None while a turn is open."""
        self.model_calls, self.tokens, self.tool_calls = before
        self.waited_ms = 0.0
        """How long a person was waited for, in all."""
        self.open: dict[str, Use] = {}
        """Calls whose question is open, by its id."""
        self._asked_since: int | None = None
        self.waiting: list[Note] = []
        """What was said to the run and is not delivered yet."""
        self.notes: list[Note] = []
        """Notices outside of any step."""
        self.interrupted_by: str | None = None
        self.answer = ""
        """The last accepted text that is not empty."""
        self._items: dict[str, Data] = {}
        self._shrinks: list[Shrink] = []
        self._last_ms = 0

    # -- reading

    def feed(self, lines: Iterable[bytes]) -> None:
        """Take in the next lines of the log."""
        for line in lines:
            record = orjson.loads(line)
            self._last_ms = record["ts"]
            act = _ACTS.get(record["type"])
            if act is not None:
                getattr(self, act)(record["ts"], record["data"])

    @property
    def step(self) -> StepPicture | None:
        """The step that is open, or the last one."""
        return self.steps[-1] if self.steps else None

    def seconds(self, now_ms: int | None = None) -> float:
        """How long the run has worked, time spent waiting for a person left out.

        Parameters
        ----------
        now_ms
            The time, for a run in progress; the last event's if not given.
        """
        if self.started_ms is None:
            return 0.0
        now = self._last_ms if now_ms is None else now_ms
        end = now if self.ended_ms is None else self.ended_ms
        waiting = max(end - self._asked_since, 0) if self._asked_since is not None else 0
        return max(end - self.started_ms - self.waited_ms - waiting, 0) / 1000

    def waited_s(self, now_ms: int | None = None) -> float:
        """How long a person was waited for, in seconds."""
        now = self._last_ms if now_ms is None else now_ms
        waiting = max(now - self._asked_since, 0) if self._asked_since is not None else 0
        return (self.waited_ms + waiting) / 1000

    def gauges(self, now_ms: int | None = None) -> list[Gauge]:
        """Every limit there is, and the counts that are always of interest."""
        budget = self.subject.budget
        found = [
            Gauge("model_calls", self.model_calls, budget.max_model_calls),
            Gauge("tokens", self.tokens, budget.max_tokens),
            Gauge("steps", len(self.steps), self.subject.max_steps),
            Gauge("seconds", self.seconds(now_ms), budget.max_seconds),
        ]
        if budget.max_tool_calls is not None:
            found.insert(2, Gauge("tool_calls", self.tool_calls, budget.max_tool_calls))
        return found

    # -- events

    def _touch(self) -> StepPicture | None:
        step = self.step
        if step is not None:
            step.version += 1
        return step

    def _spliced(self, ts: int, data: Data) -> None:
        for item in data.get("inserted", ()):
            self._items[item["id"]] = item
            text = _text(item["message"])
            if not self.prompt and data["target"] == "next_turn":
                self.prompt = text
            else:
                kind = "steer" if data["target"] == "next_step" else "followup"
                self.waiting.append(Note(kind, text, ts, delivered=False, id=item["id"]))

    def _turn_start(self, ts: int, data: Data) -> None:
        self.turn = data["turn"]
        self.runs += 1
        self.ended = self.ended_ms = None
        if self.started_ms is None:
            self.started_ms = ts

    def _turn_end(self, ts: int, data: Data) -> None:
        self.ended, self.ended_ms = data, ts
        self._settle(ts)
        step = self._touch()
        if step is not None and step.turn == data["turn"]:
            step.stop = data

    def _step_start(self, ts: int, data: Data) -> None:
        step = StepPicture(len(self.steps) + 1, data["turn"], data["step"], ts)
        step.shrinks, self._shrinks = self._shrinks, []
        self.steps.append(step)

    def _step_end(self, ts: int, data: Data) -> None:
        step = self._touch()
        if step is not None:
            step.ended_ms = ts

    def _entered(self, ts: int, data: Data) -> None:
        item = self._items.get(data["id"], {})
        message: Data = data.get("message") or item.get("message") or {}
        source = data.get("source") or item.get("source") or ""
        step = self._touch()
        if step is not None:
            step.prompts.append((_text(message), source))
        self.waiting = [note for note in self.waiting if note.id != data["id"]]

    def _context(self, ts: int, data: Data) -> None:
        self.model, self.window = data["model"], data.get("window")

    def _sent(self, ts: int, data: Data) -> None:
        if data.get("cause") in LOGICAL:
            self.model_calls += 1
        step = self._touch()
        if step is not None:
            step.generations.append(Generation(data["attempt"], data.get("cause"), ts))

    def _chunk(self, ts: int, data: Data) -> None:
        step = self._touch()
        now = step.now if step is not None else None
        if now is None:
            return
        kind, text = data.get("kind", "text"), data["text"]
        if kind == "text":
            now.text += text
        elif kind == "thinking":
            now.thinking += text
        else:
            at = now.blocks.setdefault(data.get("index", 0), len(now.calls))
            if at == len(now.calls):
                now.calls.append(["", ""])
            now.calls[at][kind == "arguments"] += text

    def _attempt_end(self, ts: int, data: Data) -> None:
        usage: dict[str, int] = data.get("usage") or {}
        tokens = sum(usage.values())
        self.tokens += tokens
        step = self._touch()
        if step is not None and step.now is not None:
            now = step.now
            now.finish, now.failure = data["finish"], data.get("failure") or {}
            now.tokens, now.duration_ms = tokens, data["duration_ms"]

    def _draft(self, ts: int, data: Data) -> None:
        step = self._touch()
        if step is not None and step.now is not None:
            step.now.draft = _text(data["message"])

    def _verdict(self, ts: int, data: Data) -> None:
        step = self._touch()
        if step is not None and step.now is not None:
            step.now.verdicts.append(data)

    def _discarded(self, ts: int, data: Data) -> None:
        step = self._touch()
        if step is not None and step.now is not None:
            step.now.discarded = data["why"]

    def _answer(self, ts: int, data: Data) -> None:
        step = self._touch()
        if step is None:
            return
        message = data["message"]
        step.text, step.source = _text(message), data.get("source")
        step.interrupted = bool(data.get("interrupted"))
        parts = message.get("parts", ())
        step.thinking = "".join(p["thinking"] or "" for p in parts if "thinking" in p)
        calls = [part for part in parts if "call" in part]
        step.uses = [
            Use(n, c["call"], _arguments(c.get("arguments", "{}")), (step.turn, step.step, n))
            for n, c in enumerate(calls)
        ]
        if step.text.strip():
            self.answer = step.text

    def _use(self, data: Data) -> Use | None:
        step = self._touch()
        position: int = data["position"]
        return step.uses[position] if step is not None and position < len(step.uses) else None

    def _call(self, ts: int, data: Data) -> None:
        use = self._use(data)
        if use is not None and "arguments" in data:
            use.arguments = data["arguments"]

    def _asked(self, ts: int, data: Data) -> None:
        use = self._use(data)
        if use is None:
            return
        use.state, use.asked, use.risk, use.answer = "asked", data, data["risk"], None
        if not self.open:
            self._asked_since = ts
        self.open[data["id"]] = use

    def _answered(self, ts: int, data: Data) -> None:
        use = self.open.pop(data["id"], None)
        if use is not None:
            self._touch()
            use.state = "called"
            if not data.get("withdrawn"):
                use.answer = data
        if not self.open:
            self._settle(ts)

    def _settle(self, ts: int) -> None:
        if self._asked_since is not None:
            self.waited_ms += max(ts - self._asked_since, 0)
            self._asked_since = None

    def _decision(self, ts: int, data: Data) -> None:
        use = self._use(data)
        if data["decision"] == "allow":
            self.tool_calls += 1
        if use is None:
            return
        use.decision, use.source = data["decision"], data["source"]
        use.why, use.rule = data.get("why", ""), data.get("rule")
        use.arguments = data.get("arguments", use.arguments)
        use.state = "running" if data["decision"] == "allow" else "called"

    def _done(self, ts: int, data: Data) -> None:
        use = self._use(data)
        if use is not None:
            use.state = "done"
            use.status, use.raw, use.shown = (
                data.get("status", "ok"),
                data["raw"],
                data.get("shown"),
            )
            use.duration_ms = data.get("duration_ms", 0.0)

    def _result(self, ts: int, data: Data) -> None:
        use = self._use(data)
        if use is None:
            return
        use.state, use.error = "done", data.get("error")
        if data.get("raw") is not None:  # else it stands in `tool/done`
            use.status, use.raw, use.shown = (
                data.get("status", "ok"),
                data["raw"],
                data.get("shown"),
            )
        use.duration_ms = data.get("duration_ms", use.duration_ms)
        use.meta = data.get("meta", {})

    def _interrupt(self, ts: int, data: Data) -> None:
        self.interrupted_by = data["by"]
        self._note(ts, Note("interrupt", data.get("reason") or "", ts))

    def _notice(self, ts: int, data: Data) -> None:
        self._note(ts, Note(data["kind"], data["text"], ts))

    def _note(self, ts: int, note: Note) -> None:
        step = self._touch()
        (self.notes if step is None or step.done else step.notes).append(note)

    def _compaction(self, ts: int, data: Data) -> None:
        nodes: Any = data.get("nodes")
        self._shrinks.append(
            Shrink(
                data.get("strategy", ""),
                data.get("trigger", ""),
                data.get("tokens_before", 0),
                data.get("tokens_after", 0),
                len(nodes) if isinstance(nodes, list) else nodes or 0,
                str(data.get("summary", "")),
            )
        )


def _text(message: Data) -> str:
    if "text" in message:
        return message["text"]
    return "".join(part["text"] for part in message.get("parts", ()) if "text" in part)


def _arguments(text: str) -> Any:
    try:
        value: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, dict) else text


_ACTS = {
    "agent/inbox/spliced": "_spliced",
    "turn/start": "_turn_start",
    "turn/end": "_turn_end",
    "step/start": "_step_start",
    "step/end": "_step_end",
    "user/message": "_entered",
    "request/context": "_context",
    "request/sent": "_sent",
    "assistant/chunk": "_chunk",
    "attempt/end": "_attempt_end",
    "assistant/draft": "_draft",
    "review/verdict": "_verdict",
    "attempt/discarded": "_discarded",
    "assistant/message": "_answer",
    "tool/call": "_call",
    "approval/asked": "_asked",
    "approval/answered": "_answered",
    "tool/decision": "_decision",
    "tool/done": "_done",
    "tool/result": "_result",
    "control/interrupt": "_interrupt",
    "notice": "_notice",
    "compaction": "_compaction",
}

"""What one run holds while it goes on, and the ways in from outside: answer, steer, interrupt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import orjson

from nbagent.errors import ConfigError
from nbagent.escape import clean
from nbagent.events import approval, note, session
from nbagent.events.words import WORDS
from nbagent.folds.denials import key_of
from nbagent.interfaces.approver import ANSWERS, Answer, AnswerWord, Approver, Question
from nbagent.interfaces.gate import Decision, ToolCall
from nbagent.interfaces.model import Header
from nbagent.interfaces.plan import Plan
from nbagent.interfaces.tool import ArgumentsError
from nbagent.log import Log
from nbagent.loop.cancel import Deadline, Token, Watchdog, is_running

__all__ = ["GateContext", "Open", "RunState"]

_logger = logging.getLogger("nbagent")

EXPIRED, FAILED = "expired", "failed"
NOBODY = (EXPIRED, FAILED)
"""Who gave an answer, in the log, where no person and no approver has: a refusal then."""
MOST_ASKS = 3
"""How often one approver is asked the same question when its answer can't be taken."""


class Open:
    """A question that waits."""

    __slots__ = ("asked_at", "call", "question", "task")

    def __init__(self, question: Question, call: ToolCall) -> None:
        self.question, self.call = question, call
        self.asked_at = time.monotonic()
        self.task: asyncio.Task[None] | None = None


class RunState:
    """One run: its log, its plan, its token, its questions.

    All methods but `post` are called on the run's own thread.
    """

    def __init__(
        self,
        log: Log,
        plan: Plan,
        *,
        channel: Approver | None,
        deps: Any = None,
        session: Any = None,
        speaker: object = None,
    ) -> None:
        self.log, self.folds, self.plan = log, log.folds, _masked(plan, log)
        self.channel = channel
        """Who answers questions; None = nobody can be asked."""
        self.deps, self.session = deps, session
        self.speaker: object = self if speaker is None else speaker
        """Whose header it is: the first request of each speaker on a session logs its header."""
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.token = Token(asyncio.current_task())
        self.watchdog = Watchdog(self.loop, self._tick)
        self.gates = GateContext(self)
        self.number = log.folds.turn.run + 1
        self.started = time.monotonic()
        self.active = True
        self.early: list[Callable[[RunState], None]] = []
        """What was asked of the run before it began: it takes effect behind the prompt."""
        self.header_sent: bytes | None = None
        """The header that this run has seen to be in force."""
        self.questions: dict[str, Open] = {}
        self.unmasked: dict[int, str] = {}
        """Position → arguments as the model wrote them, of this answer's calls that hold secrets."""
        self.edits: dict[str, dict[str, Any]] = {}
        """Question → arguments as a person wrote them, of this run."""
        self._serial = asyncio.Lock()
        self._told: set[tuple[str, str]] = set()
        self.wake: Callable[[], None] = _nothing
        """Called after each answer; the scheduler sets it."""
        self.progress: dict[tuple[int, int, int], tuple[float, str]] = {}
        """Live progress by (turn, step, position)."""
        self.for_cell: set[tuple[int, int, int]] = set()
        """Calls that wait for the notebook's own thread."""

    # -- ways in

    def post(self, act: Callable[[], None]) -> None:
        """Do something on the run's thread, soon; from any thread."""
        if threading.get_ident() == self.thread:
            act()
            return
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:  # the loop is closed: the run has long ended
            act()

    def arrived(self) -> None:
        """The prompt is claimed: do what was asked early."""
        early, self.early = self.early, []
        for act in early:
            act(self)

    def interrupt(self, by: str, reason: str | None = None) -> None:
        """Stop: logged first, then the token."""
        if not self.active or self.token.by is not None:
            return
        self.log.append("control/interrupt", session.interrupt(by, reason))
        self.token.cancel(by, reason)
        self.wake()

    def send(
        self, target: str, text: str, source: str | None = None, *, announce: bool = False
    ) -> None:
        """Put a user message into the inbox; after the end it is kept for the next run."""
        if not self.active:
            self.log.late.append((target, text, source))
            return
        items = self.folds.inbox.target(target)
        item: dict[str, Any] = {
            "id": f"m{self.folds.inbox.made + 1}",
            "message": {"role": "user", "text": text},
        }
        if source:
            item["source"] = source
        if announce:
            self.log.append("control/steer", {"item": item["id"]})
        spliced = session.spliced(target, len(items), inserted=[item])
        self.log.append("agent/inbox/spliced", spliced)

    def leave_note(self, source: str, kind: str, data: Any) -> None:
        """A `note` from a tool, gate or reviewer, on any thread."""
        try:
            same = orjson.loads(orjson.dumps(data)) == data
        except (TypeError, ValueError):
            same = False
        if not same:
            msg = f"note {kind!r}: data must be plain JSON (text, numbers, lists, dicts with text keys)"
            raise ConfigError(msg)
        value = {"source": source, "kind": kind, "data": data}
        self.post(lambda: self._note("note", value, ignorable=True))

    def notice(self, kind: str, text: str) -> None:
        """Something a person should see; kept for the next run if this one is over."""
        self.post(lambda: self._note("notice", note.notice(kind, text)))

    def tell(self, kind: str, text: str) -> None:
        """Something a person must see now: a notice, and one line where they look.

        That is the log `nbagent` (standard error, unless the program has set up logging), and then
        also the channel that asks them, if it can `tell`.
        """
        self.notice(kind, text)
        line = " ".join(clean(self.log.masked(text)).split())
        _logger.warning("%s", line)
        tell = getattr(self.channel, "tell", None)
        if callable(tell) and _logger.hasHandlers():
            with contextlib.suppress(Exception):  # who looks on can't stop a run
                tell(line)

    def tell_once(self, kind: str, subject: str, text: str) -> None:
        """The same, once in a run for each kind and subject."""
        if (kind, subject) not in self._told:
            self._told.add((kind, subject))
            self.tell(kind, text)

    def _note(self, type_: str, data: dict[str, Any], *, ignorable: bool = False) -> None:
        if self.active:
            self.log.append(type_, data, ignorable=ignorable)
        elif type_ == "notice":
            self.log.left.append(data)

    # -- questions

    def ask(self, question: Question, call: ToolCall, event: dict[str, Any]) -> None:
        """Open a question: in the log, to the channel, with a deadline."""
        waiting = Open(question, call)
        # Who reads the event, on whatever thread, looks for the question at once.
        self.questions[question.id] = waiting
        self.log.append("approval/asked", event)
        self.log.flush()
        limit = self.plan.question_timeout_s
        if limit is not None:
            expired = Answer("deny", f"nobody answered within {limit:g} s")
            self.watchdog.set(question.id, limit, lambda: self._close(waiting, expired, EXPIRED))
        if self.channel is not None:
            waiting.task = asyncio.create_task(self._consult(self.channel, waiting))

    async def _consult(self, channel: Approver, waiting: Open) -> None:
        name = _name_of(channel)
        question, text = waiting.question, ""
        try:
            for _ in range(MOST_ASKS):
                problem = self.log.masked(text)
                said = await self._decide(channel, replace(question, problem=problem))
                text = self._try(question.id, said, name)
                if not text:
                    return
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not is_running(waiting.task):
                raise  # the coroutine itself is being closed, from outside
            if question.id not in self.questions:
                raise  # it was cancelled, since an answer came from elsewhere
            text = f"{type(error).__name__}: {error}"
        if question.id in self.questions:
            text = f"the approver `{name}` failed ({text}); `{question.name}` is not run"
            self.tell("approver-failed", text)
            self._close(waiting, Answer("deny", text), FAILED)

    async def _decide(self, channel: Approver, question: Question) -> str | Answer:
        if getattr(channel, "serial", False) is not True:
            return await channel.decide(question)
        async with self._serial:
            return await channel.decide(question)

    def _try(self, id_: str, said: Answer | str, by: str) -> str:
        """Take an answer if it is still wanted; gives why it can't be taken, if so."""
        if id_ not in self.questions:
            return ""
        try:
            self.answer(
                id_, said if isinstance(said, Answer) else Answer(cast("AnswerWord", said)), by
            )
        except ConfigError as error:
            return str(error)
        return ""

    def answer(self, id_: str, answer: Answer, by: str) -> None:
        """Take an answer.

        Raises
        ------
        ConfigError
            If the question is not open, or the answer can't be given to it.
        """
        waiting = self.questions.get(id_)
        if waiting is None:
            names = ", ".join(self.questions) or "none"
            msg = f"question {id_!r} is not open (open: {names})"
            raise ConfigError(msg)
        if answer.decision not in ANSWERS:
            msg = f"an answer is one of {', '.join(ANSWERS)}, not {answer.decision!r}"
            raise ConfigError(msg)
        if answer.decision.startswith("always") and not waiting.question.rememberable:
            why = "is dangerous" if waiting.call.risk == "dangerous" else "is asked about each time"
            msg = f"`{waiting.question.name}` {why}: no answer to it is remembered"
            raise ConfigError(msg)
        if not isinstance(answer.reason, str):
            msg = f"the reason of an answer is text, not {answer.reason!r}"
            raise ConfigError(msg)
        if (answer.decision == "edit") != isinstance(answer.arguments, dict):
            msg = "an edit has arguments, a dict by name, and no other answer has"
            raise ConfigError(msg)
        if answer.decision == "edit":
            given = dict(answer.arguments or {})
            if self.log.mask is not None:
                given = self.log.mask.restored(given, waiting.call.canonical)
            try:
                bound = self.plan.rebind(waiting.call.tool, given)
            except ArgumentsError as error:
                msg = f"these arguments don't fit `{waiting.question.name}`: {error}"
                raise ConfigError(msg) from None
            answer = Answer("edit", answer.reason, bound.value)
            self.edits[id_] = bound.value
        self._close(waiting, answer, by)

    def _close(self, waiting: Open, answer: Answer, by: str, *, withdrawn: bool = False) -> None:
        id_ = waiting.question.id
        if self.questions.pop(id_, None) is None or not self.active:
            return
        waited = round((time.monotonic() - waiting.asked_at) * 1000, 1)
        data = approval.answered(
            id_,
            answer.decision,
            by,
            waited,
            reason=answer.reason,
            arguments=answer.arguments,
        )
        always = answer.decision.startswith("always")
        if always:
            data["scope"] = self.plan.remember
        if withdrawn:
            data["withdrawn"] = True
        seq = self.log.append("approval/answered", data)
        self.watchdog.clear(id_)
        if waiting.task is not None and waiting.task is not asyncio.current_task():
            waiting.task.cancel(by)
        if always and self.plan.remember == "agent":
            allowed = answer.decision == "always_allow"
            self.plan.memory.remember(waiting.call, allowed=allowed, session=self.log.id, seq=seq)
        if not withdrawn:
            self.wake()

    def withdraw_question(self, position: int, by: str) -> None:
        """Take back the open questions of a call that needs no answer any more."""
        for waiting in list(self.questions.values()):
            if waiting.call.position == position:
                self._close(waiting, Answer("deny"), by, withdrawn=True)

    def close_questions(self, by: str) -> None:
        """Take back all open questions."""
        for waiting in list(self.questions.values()):
            self._close(waiting, Answer("deny"), by, withdrawn=True)

    # -- life

    def end(self) -> None:
        """Nothing comes in any more."""
        self.active = False
        self.watchdog.stop()
        for waiting in self.questions.values():
            if waiting.task is not None:
                waiting.task.cancel()
        self.questions.clear()

    def _tick(self) -> None:
        with contextlib.suppress(Exception):  # the next barrier meets the same fault and reports it
            self.log.flush_old_chunks()


class GateContext:
    """What gates get; see `nbagent.interfaces.gate.GateContext`."""

    __slots__ = ("_state",)

    def __init__(self, state: RunState) -> None:
        self._state = state

    @property
    def cancelled(self) -> bool:
        """True after Stop."""
        return self._state.token.by is not None

    @property
    def deps(self) -> Any:
        """What was given as `agent.run(…, deps=…)`."""
        return self._state.deps

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._state.log.id

    @property
    def attended(self) -> bool:
        """Whether somebody can be asked."""
        return self._state.channel is not None

    def note(self, kind: str, data: Any = None) -> None:
        """Put something into the log."""
        self._state.leave_note("gate", kind, data)

    def tell(self, kind: str, text: str) -> None:
        """Say something to the person, once in a run."""
        self._state.tell_once(kind, text, text)

    def deadline(self, seconds: float | None) -> Deadline:
        """Let what runs inside end after so many seconds with `TimeoutError`."""
        return Deadline(self._state.watchdog, seconds)

    def refused(self, call: ToolCall) -> bool:
        """Whether the same tool with the same arguments was refused earlier in this turn."""
        denials, mask = self._state.folds.denials, self._state.log.mask
        if not denials.refused:
            return False
        logged = call.arguments if mask is None else mask.value(call.arguments)
        return key_of(call.name, orjson.dumps(logged).decode()) in denials.refused

    def remembered(self, call: ToolCall) -> tuple[bool, str] | None:
        """A remembered answer for this tool."""
        remember = self._state.plan.remember
        if remember == "agent":
            return self._state.plan.memory.recall(call)
        if remember == "session":
            found = self._state.folds.denials.remembered.get(call.tool.fingerprint)
            if found is not None:
                return found[0], f"{self._state.log.id}:{found[1]}"
        return None

    def answer(self, call: ToolCall) -> Decision | None:
        """The person's answer to this very call; a later refusal wins."""
        given = self._state.folds.approvals.answers.get(call.position, ())
        fitting = [
            answer
            for question, answer in given
            if question["fingerprint"] == call.fingerprint and not answer.get("withdrawn")
        ]
        if not fitting:
            return None
        refusals = [a for a in fitting if a["decision"] in ("deny", "always_deny")]
        data = refusals[-1] if refusals else fitting[-1]
        source = data["by"] if data["by"] in NOBODY else "person"
        word = "deny" if refusals else "allow"
        edit = self._state.edits.get(data["id"], data.get("arguments"))
        return Decision(word, data.get("reason", ""), edit, source)


def _masked(plan: Plan, log: Log) -> Plan:
    """The plan with a header that holds no secrets: it is logged, and what is logged is sent."""
    if log.mask is None or not log.mask.hits(plan.header.data):
        return plan
    value = {"header": orjson.loads(plan.header.data)}
    masked = log.mask.shaped(value, WORDS["request/header"])["header"]
    return plan if masked == value["header"] else replace(plan, header=Header.from_dict(masked))


def _name_of(channel: Approver) -> str:
    """What `by` says of its answers: never one of the words for answers that nobody gave."""
    name = getattr(channel, "name", None)
    if isinstance(name, str) and name and name not in NOBODY:
        return name
    return type(channel).__name__


def _nothing() -> None:
    """No scheduler waits."""

"""Tables about what the model was asked and what it said: steps, attempts, verdicts, messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nbagent.events.turn import limit_words
from nbagent.frames.columns import Column, Table, json_text
from nbagent.frames.log_tables import ids, place
from nbagent.frames.story import Attempt, Entered, Step, Verdict, tell
from nbagent.messages import Call, Message, Thinking, Usage

__all__ = ["ATTEMPTS", "MESSAGES", "PURPOSES", "STEPS", "TOKENS", "VERDICTS", "total"]

FINISHES = ("stop", "tool_calls", "max_tokens", "refused", "error", "aborted")
PURPOSES = ("main", "digest", "summary", "goal")
CAUSES = ("bounce", "must_call", "retry", "overflow", "fallback")
STOPS = (
    "end_turn",
    "max_steps",
    "budget",
    "interrupted",
    "blocked",
    "discarded",
    "context_limit",
    "refused",
    "error",
    "model_error",
    "waiting",
)
TOKENS = (
    ("input_tokens", "input", "Tokens read that came from no cache."),
    ("output_tokens", "output", "Tokens written, reasoning not counted."),
    ("cache_read_tokens", "cache_read", "Tokens read from the provider's cache."),
    ("cache_write_tokens", "cache_write", "Tokens read and put into that cache."),
    ("reasoning_tokens", "reasoning", "Tokens of reasoning."),
)


def total(attempts: Sequence[Attempt]) -> Usage:
    """Tokens of all these attempts."""
    used = Usage()
    for attempt in attempts:
        estimated = bool(attempt.ended.get("estimated"))
        used += Usage.from_dict(attempt.usage, estimated=estimated)
    return used


def calls_json(calls: Sequence[Call]) -> str | None:
    """Calls as a JSON list of name, arguments (JSON text as the model wrote it) and id."""
    listed = [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in calls]
    return json_text(listed or None)


# -- steps


def _of_answer(get: Callable[[Message], Any]) -> Callable[[Step], Any]:
    return lambda step: None if step.message is None else get(step.message)


def _of_last_attempt(get: Callable[[Attempt], Any]) -> Callable[[Step], Any]:
    return lambda step: get(step.attempts[-1]) if step.attempts else None


def _of_usage(name: str) -> Callable[[Step], Any]:
    return lambda step: getattr(total(step.attempts), name)


def _of_limit(name: str) -> Callable[[Step], Any]:
    return lambda step: (step.limit or {}).get(name)


def _step_ms(step: Step) -> float | None:
    # The clock of people, the only one that both ends of a step have; it may be set back meanwhile.
    return None if step.end is None else float(max(0, step.end.ts - step.start.ts))


STEPS = Table(
    "steps",
    "One row per step (an accepted answer and the calls it asked for), in order.",
    lambda reading: tell(reading).steps,
    [
        *place("start", attempt=False),
        Column(
            "user_text",
            "text",
            lambda step: "\n\n".join(m.text for m in step.prompts) if step.prompts else None,
            doc="What people (or the harness) said at its start.",
        ),
        Column("text", "text", _of_answer(lambda m: m.text), doc="The answer's text."),
        Column(
            "n_calls",
            "int",
            _of_answer(lambda m: len(m.calls)),
            doc="Calls it asked for.",
            unit="calls",
        ),
        Column(
            "stop",
            "category",
            lambda step: step.stop,
            STOPS,
            "On a turn's last step: why the turn ended.",
        ),
        Column(
            "stop_detail",
            "text",
            lambda step: limit_words(step.limit) if step.limit else None,
            doc="On a turn's last step: the limit that ended it, in words.",
        ),
        Column(
            "error",
            "text",
            lambda step: step.error,
            doc="On a turn's last step: the error that ended it.",
        ),
        Column("tokens", "int", _of_usage("total"), doc="All tokens of all attempts."),
        Column(
            "duration_ms", "float", _step_ms, doc="From its first to its last event, by the clock."
        ),
        Column("run", "int", lambda step: step.run, doc="Which agent.run of the session, from 1."),
        Column("calls_json", "text", _of_answer(lambda m: calls_json(m.calls)), doc="Those calls."),
        Column(
            "attempts",
            "int",
            lambda step: len(step.attempts),
            doc="Generations it took.",
            unit="attempts",
        ),
        Column(
            "model",
            "text",
            _of_last_attempt(lambda attempt: attempt.header["model"]),
            doc="Model of the last attempt.",
        ),
        Column(
            "finish",
            "category",
            _of_last_attempt(lambda attempt: attempt.ended.get("finish")),
            FINISHES,
            "Why the last attempt ended.",
        ),
        *(
            Column(name, "int", _of_usage(name), doc=f"{doc[:-1]}, all attempts.")
            for name, _, doc in TOKENS
        ),
        Column("estimated", "bool", _of_usage("estimated"), doc="Whether some were estimated."),
        Column(
            "cost_usd", "float", lambda _: None, doc="US dollars; missing if no price is known."
        ),
        Column("limit_name", "text", _of_limit("name"), doc="That limit, such as max_tokens."),
        Column(
            "limit_max",
            "float",
            _of_limit("limit"),
            doc="How much it allows.",
            unit="what the limit counts",
        ),
        Column(
            "limit_used",
            "float",
            _of_limit("used"),
            doc="How much was used.",
            unit="what the limit counts",
        ),
        Column(
            "source",
            "text",
            lambda step: step.message.source if step.message else None,
            doc="Who wrote the answer if not the model.",
        ),
        Column(
            "interrupted",
            "bool",
            lambda step: bool(step.answer and step.answer.data.get("interrupted")),
            doc="Whether the answer was cut off by an interrupt.",
        ),
        *ids("start"),
    ],
    short="turn step user_text text n_calls tokens duration_ms stop stop_detail",
)


# -- attempts


def _ended(name: str, default: Any = None) -> Callable[[Attempt], Any]:
    return lambda attempt: None if attempt.end is None else attempt.end.get(name, default)


def _failed(name: str) -> Callable[[Attempt], Any]:
    return lambda attempt: attempt.failure.get(name)


def _used(name: str) -> Callable[[Attempt], Any]:
    return lambda attempt: None if attempt.end is None else attempt.usage.get(name, 0)


def _sent(name: str, default: Any = None) -> Callable[[Attempt], Any]:
    return lambda attempt: attempt.sent.data.get(name, default)


def _text(attempt: Attempt) -> str | None:
    message = attempt.message or attempt.draft
    return None if message is None else message.text


ATTEMPTS = Table(
    "attempts",
    "One row per generation, accepted or not, in order.",
    lambda reading: tell(reading).attempts,
    [
        *place("sent"),
        Column(
            "cause", "category", _sent("cause"), CAUSES, "Why another one; missing for the first."
        ),
        Column("model", "text", lambda a: a.header["model"], doc="The model asked."),
        Column("finish", "category", _ended("finish"), FINISHES, "Why it ended; missing if open."),
        Column("failure", "text", _failed("type"), doc="Class of the error, if it failed."),
        Column("text", "text", _text, doc="The answer's text, also if it was rejected."),
        *(Column(name, "int", _used(key), doc=doc) for name, key, doc in TOKENS[:3]),
        Column("purpose", "category", lambda a: a.purpose, PURPOSES, "What it was for."),
        Column(
            "discarded", "bool", lambda a: a.discarded is not None, doc="Whether it doesn't count."
        ),
        Column(
            "cost_usd", "float", lambda _: None, doc="US dollars; missing if no price is known."
        ),
        Column("priced", "bool", lambda _: False, doc="Whether a price is known."),
        Column(
            "estimated", "bool", _ended("estimated", False), doc="Whether tokens were estimated."
        ),
        Column("duration_ms", "float", _ended("duration_ms"), doc="From request to end."),
        Column(
            "time_to_first_token_ms",
            "float",
            _ended("first_ms"),
            doc="From request to first piece.",
        ),
        *(Column(name, "int", _used(key), doc=doc) for name, key, doc in TOKENS[3:]),
        Column(
            "discarded_why",
            "category",
            lambda a: a.discarded,
            ("rejected", "failed", "forced", "aborted"),
            "Why it doesn't count.",
        ),
        Column("failure_message", "text", _failed("message"), doc="The error in words."),
        Column("failure_status", "int", _failed("status"), doc="HTTP status of the error."),
        Column(
            "messages",
            "int",
            _sent("surface_len"),
            doc="Messages of history that were sent.",
            unit="messages",
        ),
        Column(
            "reminders",
            "int",
            lambda a: len(a.sent.data.get("tail", ())),
            doc="Messages behind them.",
            unit="messages",
        ),
        Column("header_seq", "int", _sent("header"), doc="seq of the header in force."),
        Column(
            "surface_hash", "text", _sent("surface_hash"), doc="Hash of the history that was sent."
        ),
        Column("body_digest", "text", _sent("body_digest"), doc="Hash of the HTTP body."),
        *ids("sent"),
    ],
    short="turn step attempt cause finish failure text input_tokens output_tokens",
)


# -- verdicts


def _said(name: str, default: Any = None) -> Callable[[Verdict], Any]:
    return lambda verdict: verdict.entry.data.get(name, default)


def _draft(verdict: Verdict) -> str | None:
    attempt = verdict.attempt
    return None if attempt is None or attempt.draft is None else attempt.draft.text


VERDICTS = Table(
    "verdicts",
    "One row per verdict of a reviewer that had something to say, in order.",
    lambda reading: tell(reading).verdicts,
    [
        *place("entry"),
        Column("reviewer", "text", _said("reviewer"), doc="The reviewer's name."),
        Column("action", "category", _said("action"), ("retry", "force", "noted"), "What it did."),
        Column("reason", "text", _said("reason"), doc="Key of the tally."),
        Column(
            "text", "text", _said("text"), doc="What the model reads, or the text forced on it."
        ),
        Column("draft", "text", _draft, doc="Text of the answer that was judged."),
        Column(
            "tally", "int", _said("tally", 0), doc="How often this reason was given.", unit="times"
        ),
        Column("detail", "text", _said("detail"), doc="More, for people."),
        *ids("entry"),
    ],
    short="turn step attempt reviewer action reason text draft tally",
)


# -- messages


def _thinking(row: Entered) -> str | None:
    parts = [part.text for part in row.message.parts if isinstance(part, Thinking)]
    return "\n\n".join(parts) if parts else None


MESSAGES = Table(
    "messages",
    "One row per message that entered the history, in its order; reminders are not among them.",
    lambda reading: tell(reading).messages,
    [
        *place("entry", attempt=False),
        Column(
            "role",
            "category",
            lambda row: row.message.role,
            ("user", "assistant", "tool"),
            "Who speaks.",
        ),
        Column("name", "text", lambda row: row.message.name, doc="Of a result: the tool."),
        Column("text", "text", lambda row: row.message.text, doc="The text, as the model sees it."),
        Column("calls_json", "text", lambda row: calls_json(row.message.calls), doc="Tool calls."),
        Column(
            "source",
            "text",
            lambda row: row.message.source,
            doc="Who put it there if not the role.",
        ),
        Column("replaced", "bool", lambda _: False, doc="Whether a compaction took it out."),
        Column("thinking", "text", _thinking, doc="The model's reasoning, as far as it is shown."),
        Column(
            "call_id", "text", lambda row: row.message.call_id, doc="Of a result: the call's id."
        ),
        Column(
            "position",
            "int",
            lambda row: row.call.position if row.call else None,
            doc="Of a result: the call's place in the answer, from 0.",
        ),
        *ids("entry", attempt=True),
    ],
    short="turn step role name text calls_json source",
)

"""The exact request of one attempt, rebuilt from the log's lines, and what changed before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from nbagent.errors import ConfigError
from nbagent.events import SPECS, SURFACE
from nbagent.folds import Folds
from nbagent.frames.body import Models, rebuild
from nbagent.frames.reading import opening, type_of
from nbagent.interfaces.model import Choice, Header, Nodes, Request, ToolSpec
from nbagent.messages import Message

if TYPE_CHECKING:
    from nbagent.log import Log

__all__ = ["Changes", "Difference", "Explanation", "explain"]


class Difference(NamedTuple):
    """A field of header or choice that differs from the request before."""

    field: str
    """model, instructions, `tools.NAME`, `settings.NAME`, `choice.tool_choice`, `choice.offered`."""
    before: Any
    """None if it was not set."""
    after: Any
    """None if it is not set any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What distinguishes a request from the one before it in the session."""

    before: int | None
    """seq of the request before; None for the first one, in which everything is new."""
    header: tuple[Difference, ...]
    added: tuple[tuple[int, Message], ...]
    """(seq, message) that came to the history."""
    replaced: tuple[tuple[int, Message], ...]
    """(seq, message) that are no longer in the history."""
    reminders_new: tuple[Message, ...]
    reminders_gone: tuple[Message, ...]

    def __bool__(self) -> bool:
        return bool(
            self.header or self.added or self.replaced or self.reminders_new or self.reminders_gone
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Exactly what one attempt sent to the model: header, choice, history and reminders.

    Printed as text; in a notebook as HTML in which no text of model or tools is markup.
    """

    session_id: str
    turn: int
    step: int
    attempt: int
    seq: int
    """The `request/sent` event."""
    cause: str | None
    """Why another attempt: bounce, must_call, retry; None for the first."""
    header: Header
    choice: Choice | None
    """What this one request allows where it differs from the header."""
    history: tuple[Message, ...]
    """`source` says who put a message there if not the role."""
    history_seqs: tuple[int, ...]
    """The event that each message of the history came from."""
    reminders: tuple[Message, ...]
    """What stood behind the history in this one request, each with its `source`."""
    changed: Changes
    digest: str
    """Hash of the history: equal to that of any request with the same history."""
    body_digest: str | None
    """Hash of the HTTP body, for models that have one."""
    body: Any = None
    """The JSON that went over the wire, made anew by the run's model; None where there is none."""
    body_note: str = ""
    """Why there is no body, or that it is not what was sent."""

    @property
    def model(self) -> str:
        """The model asked."""
        return self.header.model

    @property
    def instructions(self) -> str:
        """The system prompt."""
        return self.header.instructions

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools on offer in this request."""
        offered = self.choice.offered if self.choice else None
        return tuple(t for t in self.header.tools if offered is None or t.name in offered)

    @property
    def settings(self) -> dict[str, Any]:
        """What was set of temperature, max_tokens and so on."""
        return self.header.settings

    @property
    def messages(self) -> tuple[Message, ...]:
        """What was sent: the history, then the reminders."""
        return (*self.history, *self.reminders)

    def __str__(self) -> str:
        from nbagent.frames.explain_text import as_text

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from nbagent.frames.explain_text import as_html

        return as_html(self)


def explain(
    log: Log,
    step: int | None = None,
    turn: int | None = None,
    attempt: int | None = None,
    *,
    start: int = 0,
    end: int | None = None,
    models: Models | None = None,
) -> Explanation:
    """The exact request of an attempt, rebuilt from the lines of the log alone.

    Parameters
    ----------
    log
        The session's log.
    step, turn, attempt
        Which one; the last of those that are left out.
    start, end
        The events to look for it in: one run's.
    models
        Those that can make the body anew.

    Raises
    ------
    ConfigError
        If no such request was sent; says which there are.
    """
    lines = log.lines
    end = len(lines) if end is None else max(0, min(end, len(lines)))
    place = _choose([*_requests(lines, max(0, min(start, end)), end)], step, turn, attempt)
    now, before = _replay(lines, place.seq)
    data = now.data
    history = now.messages
    choice = _choice(data["choice"]) if data.get("choice") else None
    header, reminders = Header.from_dict(now.header), _reminders(lines, data)
    body = rebuild(
        (models or {}).get(place.run),
        Request(header, Nodes(now.nodes), len(now.nodes), reminders, choice, log.id),
        data.get("body_digest"),
    )
    return Explanation(
        session_id=log.id,
        turn=place.turn,
        step=place.step,
        attempt=place.attempt,
        seq=place.seq,
        cause=data.get("cause"),
        header=header,
        choice=choice,
        history=history,
        history_seqs=tuple(now.seqs),
        reminders=reminders,
        changed=_changes(lines, before, now, history),
        digest=data["surface_hash"],
        body_digest=data.get("body_digest"),
        body=body.value if log.mask is None else log.mask.value(body.value),
        body_note=log.masked(body.note),
    )


class _Place(NamedTuple):
    turn: int
    step: int
    attempt: int
    seq: int
    run: int


def _requests(lines: Sequence[bytes], start: int, end: int) -> Iterator[_Place]:
    """Where each request of the stretch stands."""
    turn = step = run = 0
    for seq in range(opening(lines, start), end):
        type_ = type_of(lines[seq])
        if type_ == b"turn/start":
            run = orjson.loads(lines[seq])["data"]["run"]
        elif type_ == b"step/start":
            data = orjson.loads(lines[seq])["data"]
            turn, step = data["turn"], data["step"]
        elif type_ == b"request/sent" and seq >= start:
            yield _Place(turn, step, orjson.loads(lines[seq])["data"]["attempt"], seq, run)


def _choose(
    places: Sequence[_Place], step: int | None, turn: int | None, attempt: int | None
) -> _Place:
    if not places:
        msg = "no request was sent yet, there is nothing to explain"
        raise ConfigError(msg)
    turn = places[-1].turn if turn is None else turn
    in_turn = [place for place in places if place.turn == turn]
    if not in_turn:
        turns = ", ".join(str(n) for n in dict.fromkeys(place.turn for place in places))
        msg = f"turn {turn} sent no request; there are requests of turn {turns}"
        raise ConfigError(msg)
    step = in_turn[-1].step if step is None else step
    in_step = [place for place in in_turn if place.step == step]
    if not in_step:
        last = in_turn[-1].step
        msg = f"step {step} of turn {turn} sent no request; its last step that did is {last}"
        raise ConfigError(msg)
    found = [place for place in in_step if attempt in (None, place.attempt)]
    if not found:
        msg = f"step {step} of turn {turn} has no attempt {attempt}, only {len(in_step)}"
        raise ConfigError(msg)
    return found[-1]


class _Request(NamedTuple):
    """One request as the folds know it."""

    seq: int
    data: dict[str, Any]
    header: dict[str, Any]
    nodes: Sequence[bytes]
    seqs: Sequence[int]
    sources: dict[int, str]
    """Who put the message of an event there, where it was not the role itself."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The history."""
        return tuple(
            Message.from_node(orjson.loads(node), self.sources.get(seq))
            for node, seq in zip(self.nodes, self.seqs, strict=True)
        )


def _replay(lines: Sequence[bytes], target: int) -> tuple[_Request, _Request | None]:
    """The request at `target` and the one before it."""
    folds = Folds()
    previous: int | None = None
    for seq in range(target - 1, -1, -1):
        if type_of(lines[seq]) == b"request/sent":
            previous = seq
            break
    before: _Request | None = None
    items: dict[str, str] = {}
    sources: dict[int, str] = {}
    for seq, line in enumerate(islice(lines, target)):
        type_ = type_of(line).decode()
        if type_ == "assistant/chunk" or type_ not in SPECS:
            continue  # no fold looks at them
        data = orjson.loads(line)["data"]
        if seq == previous:
            before = _request(folds, seq, data, sources)
        elif type_ == "agent/inbox/spliced":
            inserted = data.get("inserted", ())
            items |= {item["id"]: item["source"] for item in inserted if item.get("source")}
        elif type_ in SURFACE:
            source = data.get("source") or items.get(data.get("id", ""))
            if source:
                sources[seq] = source
        folds.step(seq, type_, data)
    return _request(folds, target, orjson.loads(lines[target])["data"], sources), before


def _request(folds: Folds, seq: int, data: dict[str, Any], sources: dict[int, str]) -> _Request:
    length = data["surface_len"]
    nodes, seqs = folds.surface.nodes[:length], folds.surface.seqs[:length]
    return _Request(seq, data, folds.header.value or {}, nodes, seqs, sources)


def _choice(value: dict[str, Any]) -> Choice:
    offered = value.get("offered")
    return Choice(value.get("tool_choice"), None if offered is None else tuple(offered))


def _reminders(lines: Sequence[bytes], data: dict[str, Any]) -> tuple[Message, ...]:
    return tuple(_reminder(lines, entry) for entry in data.get("tail", ()))


def _reminder(lines: Sequence[bytes], entry: dict[str, Any]) -> Message:
    source = entry.get("source")
    draft: int | None = entry.get("draft")
    if draft is not None:
        return Message.from_node(orjson.loads(lines[draft])["data"]["message"], source)
    return Message.from_node(entry, source)


def _changes(
    lines: Sequence[bytes], before: _Request | None, now: _Request, history: tuple[Message, ...]
) -> Changes:
    reminders = _reminders(lines, now.data)
    if before is None:
        added = tuple(zip(now.seqs, history, strict=True))
        return Changes(
            before=None,
            header=(*_differences({}, now),),
            added=added,
            replaced=(),
            reminders_new=reminders,
            reminders_gone=(),
        )
    old = dict(zip(before.seqs, before.messages, strict=True))
    kept = set(now.seqs)
    earlier = _reminders(lines, before.data)
    return Changes(
        before=before.seq,
        header=(*_differences(_flat(before), now),),
        added=tuple(
            (seq, message) for seq, message in zip(now.seqs, history, strict=True) if seq not in old
        ),
        replaced=tuple((seq, message) for seq, message in old.items() if seq not in kept),
        reminders_new=tuple(m for m in reminders if m not in earlier),
        reminders_gone=tuple(m for m in earlier if m not in reminders),
    )


def _differences(before: dict[str, Any], now: _Request) -> Iterator[Difference]:
    after = _flat(now)
    for field in (*after, *(name for name in before if name not in after)):
        if before.get(field) != after.get(field):
            yield Difference(field, before.get(field), after.get(field))


def _flat(request: _Request) -> dict[str, Any]:
    """Header and choice as one level of fields."""
    header = request.header
    flat = {name: header[name] for name in ("model", "instructions") if name in header}
    flat |= {f"tools.{tool['name']}": tool for tool in header.get("tools", ())}
    flat |= {f"settings.{name}": value for name, value in header.get("settings", {}).items()}
    flat |= {f"choice.{name}": value for name, value in request.data.get("choice", {}).items()}
    return flat

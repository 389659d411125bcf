"""One generation: the request is logged and flushed, the answer streamed, the end logged always."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from nbagent.errors import ModelError, SessionError, TransportError, TruncatedStreamError
from nbagent.events import model as events
from nbagent.events.disk import chunk_data
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request, Spent
from nbagent.loop.cancel import Scope, Stopped
from nbagent.loop.masking import MaskedAnswer
from nbagent.loop.request import Bounce, announce, build, log_sent
from nbagent.loop.state import RunState
from nbagent.messages import Call, Message, Part, Text, Thinking, Usage, scrub

__all__ = ["EmptyAnswerError", "Generated", "attempt"]

UNNAMED = "unnamed_tool"
"""In place of a name that a model left out."""

BREATH = 256
"""Items of a stream after which other things get their turn, if it never waits by itself."""


class EmptyAnswerError(ModelError):
    """The answer holds neither words nor a call; not raised, but what its attempt failed of."""

    code = "empty_answer"
    recoverable = True


class Generated(NamedTuple):
    """What an attempt came to: a message, or a failure."""

    message: Message
    finish: str
    request: Request
    failure: ModelError | None = None
    cut_call: bool = False
    """Whether a call was among what the output limit cut."""
    tokens: int = 0
    """What a failed attempt has cost."""
    limit: dict[str, Any] | None = None
    """The limit, of the budget or the context, that ends the turn."""


async def attempt(state: RunState, cause: str | None, bounce: Bounce | None) -> Generated:
    """Make one attempt.

    Raises
    ------
    Stopped
        If the run was asked to stop; what had arrived of the answer is then in the history.
    Exception
        Whatever a model raises that is no `ModelError`; the attempt is closed.
    """
    state.log.look_for_secrets()
    announce(state)
    request, tail = build(state, cause, bounce)
    prepared = state.plan.model.prepare(request)
    log_sent(state, request, tail, cause=cause, body_digest=prepared.digest)
    gathered = _Gathered(state, request)
    try:
        if state.log.dirty:
            await state.log.barrier()
        _check_live(state, prepared, request)
        with Scope(state.token) as scope:
            state.token.check()
            await _receive(state, prepared, gathered)
    except Stopped:
        gathered.close("aborted")
        state.log.append("attempt/discarded", {"why": "aborted"})
        raise
    except ModelError as error:
        return gathered.failed(error)
    except Exception as error:
        gathered.close("error", failure=error)
        state.log.append("attempt/discarded", {"why": "failed"})
        raise
    except asyncio.CancelledError:
        task = state.token.task
        if task is not None and not task.cancelling():
            # Nobody has cancelled this run: something that the model awaited was cancelled.
            return gathered.failed(
                TransportError("the stream was cancelled from inside of the model")
            )
        gathered.close("aborted")
        _keep_prefix(state, gathered)
        raise
    except BaseException:
        gathered.close("aborted")
        _keep_prefix(state, gathered)
        raise
    if scope.fired:
        gathered.close("aborted")
        _keep_prefix(state, gathered)
        raise Stopped
    end = gathered.end
    if end is None:
        msg = "the stream ended without an end marker or a finish reason"
        return gathered.failed(TruncatedStreamError(msg))
    if end.finish in ("error", "aborted"):
        msg = f"the model ended its answer with {end.finish!r}"
        return gathered.failed(ModelError(msg, recoverable=True))
    message = gathered.message()
    if end.finish in ("stop", "tool_calls") and not (message.calls or message.text.strip()):
        empty = EmptyAnswerError("the model answered with neither words nor a call")
        return gathered.failed(empty, finish="stop")._replace(message=Message("assistant"))
    gathered.close(end.finish)
    return Generated(message, end.finish, request, None, gathered.has_call())


def _check_live(state: RunState, prepared: Prepared, request: Request) -> None:
    """What is about to be sent is what was logged; a fault here is a bug, so nothing is sent."""
    surface = state.folds.surface
    if (
        prepared.request is not request
        or request.nodes is not surface.nodes
        or request.length != len(surface.nodes)
        or request.header is not state.plan.header
    ):
        msg = (
            "the request differs from what was logged; nothing was sent (this is a bug of nbagent)"
        )
        raise SessionError(msg)


async def _receive(state: RunState, prepared: Prepared, gathered: _Gathered) -> None:
    count, masked = 0, gathered.masked
    item: Item
    async with aclosing(_generator(state.plan.model.stream(prepared))) as stream:
        async for item in stream:
            if type(item) is Delta:
                if masked is not None:
                    if item.text:  # what is held back has its place in the answer, too
                        gathered.order.setdefault(item.index, None)
                    item = masked.feed(item)  # noqa: PLW2901
                count += 1
                if count % BREATH == 0:
                    await asyncio.sleep(0)
                if not item.text:
                    continue
                if gathered.first is None:
                    gathered.first = time.perf_counter()
                gathered.log(item)
            elif type(item) is Block:
                gathered.blocks[item.index] = item.part
                gathered.order.setdefault(item.index, None)
            elif type(item) is Spent:
                gathered.spent = item.usage
            elif type(item) is End:
                gathered.end = item
                gathered.spent = item.usage or gathered.spent
                break
    for item in masked.rest() if masked is not None else ():
        gathered.log(item)


def _generator(stream: Any) -> Any:
    if hasattr(stream, "aclose"):
        return stream
    return _with_aclose(stream)


async def _with_aclose(stream: Any) -> Any:
    async for item in stream:
        yield item


def _keep_prefix(state: RunState, gathered: _Gathered) -> None:
    """An answer cut short stays in the history with what the person has seen of it."""
    parts = [
        part for part in gathered.message().parts if isinstance(part, Text) and part.text.strip()
    ]
    if parts:
        node = Message("assistant", parts).to_node()
        data = {"message": node, "interrupted": True}
        state.log.append("assistant/message", data, masked=True)
    else:
        state.log.append("attempt/discarded", {"why": "aborted"})


class _Gathered:
    """The answer so far."""

    __slots__ = (
        "blocks",
        "closed",
        "end",
        "first",
        "masked",
        "order",
        "pieces",
        "request",
        "spent",
        "started",
        "state",
    )

    def __init__(self, state: RunState, request: Request) -> None:
        self.state, self.request = state, request
        mask = state.log.mask
        self.masked = None if mask is None else MaskedAnswer(mask, state.plan.tools)
        self.started = time.perf_counter()
        self.first: float | None = None
        self.order: dict[int, None] = {}
        """Block indexes as they first appeared."""
        self.pieces: dict[tuple[int, str], list[str]] = {}
        self.blocks: dict[int, Call | Thinking] = {}
        self.end: End | None = None
        self.spent: Usage | None = None
        """What the provider said last of the cost."""
        self.closed: Message | None = None

    def log(self, item: Delta) -> None:
        """Take in a delta that may be told, and log it."""
        data = chunk_data(item.index, item.kind, item.text)
        self.state.log.append("assistant/chunk", data, masked=self.masked is not None)
        key = (item.index, item.kind)
        pieces = self.pieces.get(key)
        if pieces is None:
            self.order.setdefault(item.index, None)
            self.pieces[key] = [item.text]
        else:
            pieces.append(item.text)

    def has_call(self) -> bool:
        """Whether a call, whole or not, is part of the answer."""
        begun = any(kind in ("name", "arguments") for _, kind in self.pieces)
        return begun or any(type(block) is Call for block in self.blocks.values())

    def message(self) -> Message:
        """The assembled answer; calls have an id each that is unique within it."""
        if self.closed is None:
            parts: list[Part] = []
            ids: set[str] = set()
            for index in self.order:
                part = self._part(index)
                if part is not None and self.masked is not None:
                    part = self.masked.part(part, index, len(ids))
                if type(part) is Call:
                    if not part.name:  # it could never be sent back
                        part = replace(part, name=UNNAMED)
                    if not part.id or part.id in ids:
                        part = replace(part, id=self._fresh_id(len(ids)))
                    ids.add(part.id)
                if part is not None:
                    parts.append(part)
            self.closed = Message("assistant", parts)
            self.state.unmasked = {} if self.masked is None else self.masked.unmasked
        return self.closed

    def _fresh_id(self, position: int) -> str:
        turn = self.state.folds.turn
        return f"call_{turn.turn}_{turn.step}_{position}"

    def _part(self, index: int) -> Part | None:
        block, pieces = self.blocks.get(index), self.pieces
        if type(block) is Call:
            if not pieces:
                return block
            name, arguments = self._text(index, "name"), self._text(index, "arguments")
            return Call(name or block.name, arguments or block.arguments, block.id, block.extra)
        if type(block) is Thinking:
            text = self._text(index, "thinking")
            return Thinking(text or block.text, block.signature, block.data)
        if (index, "text") in pieces:
            return Text(self._text(index, "text"))
        if (index, "thinking") in pieces:
            return Thinking(self._text(index, "thinking"))
        return None  # a call whose end never came

    def _text(self, index: int, kind: str) -> str:
        return scrub("".join(self.pieces.get((index, kind), ())))

    def failed(self, error: ModelError, *, finish: str = "error") -> Generated:
        """Close a failed attempt."""
        error.tried = ""  # scripted errors are raised again and again
        usage = self.close(finish, failure=error)
        tokens = usage.total if usage else 0
        return Generated(self.message(), finish, self.request, error, tokens=tokens)

    def close(self, finish: str, *, failure: BaseException | None = None) -> Usage | None:
        """Write `attempt/end`; gives what is charged."""
        now = time.perf_counter()
        usage = self.spent
        # What is still held back by masking has its place in the order, too.
        answered = finish not in ("error", "aborted") or self.order
        if usage is None and answered:
            usage = self._estimate()
        data = events.attempt_end(
            finish,
            round((now - self.started) * 1000, 1),
            first_ms=None if self.first is None else round((self.first - self.started) * 1000, 1),
            usage=usage.to_dict() if usage else None,
            estimated=usage.estimated if usage else False,
            failure=facts_of(failure) if failure is not None else None,
        )
        self.state.log.append("attempt/end", data)
        return usage

    def _estimate(self) -> Usage:
        """Four bytes a token, where the provider gave no counts."""
        sent = self.state.folds.surface.size + len(self.request.header.data)
        for message in self.request.tail:
            sent += len(message.text)
        written = 0
        for pieces in self.pieces.values():
            written += sum(map(len, pieces))
        for block in self.blocks.values():
            if type(block) is Call:
                written += len(block.name) + len(block.arguments)
        return Usage(-(-sent // 4), -(-written // 4), estimated=True)


def facts_of(error: BaseException) -> dict[str, Any]:
    """An error as it is logged: type, message, and what a provider said of it."""
    facts: dict[str, Any] = {"type": type(error).__name__, "message": _message(error)}
    if isinstance(error, ModelError):
        facts["code"] = error.code
        for name in ("status", "retry_after_s", "body"):
            value = getattr(error, name)
            if value is not None:
                facts[name] = value
    else:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is not None:
            facts["cause"] = f"{type(cause).__name__}: {_message(cause)}"
    try:
        orjson.dumps(facts)
    except TypeError:
        facts = {key: str(value) for key, value in facts.items()}
    return facts


def _message(error: BaseException) -> str:
    try:
        return "\n".join([str(error), *map(str, getattr(error, "__notes__", ()))])
    except Exception:  # noqa: BLE001 - an error that can't say what it is
        return "(its text can't be read)"

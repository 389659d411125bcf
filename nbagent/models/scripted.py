"""A model that gives prepared replies: for tests, teaching and examples."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import orjson

from nbagent.errors import ConfigError, ModelError, ScriptExhausted
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request
from nbagent.messages import Call, Thinking, Usage

__all__ = ["Reply", "Scripted", "call", "reply"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One prepared answer; made by `reply`."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinking: Thinking | None = None
    usage: Usage | None = None
    finish: Literal["stop", "tool_calls", "max_tokens", "refused"] | None = None
    """None = tool_calls if there are calls, else stop."""


Answer = str | Call | Sequence[Call] | Reply | BaseException | type[BaseException]
"""What one reply may be, besides a function that gives one of these."""


def call(name: str, /, **arguments: Any) -> Call:
    """A tool call with these arguments, as a model would write it.

    Raises
    ------
    ConfigError
        If an argument is no JSON value.

    Examples
    --------
    >>> call("search", query="owls", limit=3).arguments
    '{"query":"owls","limit":3}'
    """
    try:
        text = orjson.dumps(arguments).decode()
    except TypeError:  # orjson refuses integers beyond 64 bit and half surrogate pairs
        try:
            text = json.dumps(arguments, separators=(",", ":"))
        except (TypeError, ValueError) as error:
            msg = f"call({name!r}, …): the arguments are no JSON values ({error})"
            raise ConfigError(msg) from None
    return Call(name, text)


def reply(
    text: str = "",
    calls: Call | Sequence[Call] = (),
    *,
    thinking: str | Thinking | None = None,
    usage: Usage | None = None,
    finish: Literal["stop", "tool_calls", "max_tokens", "refused"] | None = None,
) -> Reply:
    """One answer of a scripted model with text, calls, reasoning, usage or finish reason.

    Parameters
    ----------
    text, calls
        What it says, and the calls it asks for (see `call`): one, or several at once.
    thinking
        Its reasoning.
    usage
        What the model reports; None = it reports nothing (it is then estimated and marked).
    finish
        "max_tokens" for an answer that was cut, "refused" for one in which the model declines;
        None = as the answer says.

    Examples
    --------
    >>> reply("I look.", [call("look")], usage=Usage(10, 5)).calls[0].name
    'look'
    """
    if finish not in (None, "stop", "tool_calls", "max_tokens", "refused"):
        msg = f"finish is 'stop', 'tool_calls', 'max_tokens' or 'refused', not {finish!r}"
        raise ConfigError(msg)
    return Reply(
        text=text,
        calls=(calls,) if isinstance(calls, Call) else tuple(calls),
        thinking=Thinking(thinking) if isinstance(thinking, str) else thinking,
        usage=usage,
        finish=finish,
    )


class Scripted:
    """A model that gives its replies in order and keeps every request it saw.

    Parameters
    ----------
    replies
        Each a text, a call (`call`), a list of calls, a `reply(…)`, an exception to raise (an
        object or a class), or a function of the request, plain or async, that gives one of these.
    name
        What is shown and logged.
    window
        Context window in tokens; None = unknown.
    chunk
        Characters per piece of streamed text; None = each text in one piece.
    delay_s
        Seconds before each answer.

    Examples
    --------
    >>> model = Scripted([call("add", a=1, b=2), "The sum is 3."])
    >>> model.requests
    []
    """

    def __init__(
        self,
        replies: Iterable[Answer | Callable[[Request], Answer | Awaitable[Answer]]],
        *,
        name: str = "scripted",
        window: int | None = None,
        chunk: int | None = None,
        delay_s: float = 0,
    ) -> None:
        if isinstance(replies, str):
            msg = f"Scripted takes a list of replies: Scripted([{replies!r}])"
            raise ConfigError(msg)
        if chunk is not None and chunk < 1:
            msg = f"chunk is a number of characters from 1 on, not {chunk!r}"
            raise ConfigError(msg)
        self.name = name
        self.window = window
        self.requests: list[Request] = []
        """Every request that was asked; `request.messages` is what was sent."""
        self._chunk = chunk
        self._delay_s = delay_s
        self._replies = [self._ready(item, i) for i, item in enumerate(replies)]
        self._turns = itertools.count()  # next() is atomic: runs in several threads share a model

    def __repr__(self) -> str:
        return f"Scripted({len(self._replies)} replies, {len(self.requests)} asked)"

    def prepare(self, request: Request) -> Prepared:
        """Make the request ready: nothing to do, there is no wire."""
        return Prepared(request)

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        """Give the next reply.

        Raises
        ------
        ScriptExhausted
            If all replies were given.
        """
        request = prepared.request
        self.requests.append(request)
        turn = next(self._turns)
        if turn >= len(self._replies):
            msg = (
                f"the scripted model {self.name!r} was asked {turn + 1} times"
                f" but has {len(self._replies)} replies: add one, or look at `.requests`"
            )
            raise ScriptExhausted(msg)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        answer = self._replies[turn]
        if not isinstance(answer, _Items):
            value = answer(request)
            if inspect.isawaitable(value):
                value = await value
            answer = self._ready(value, turn)
            if not isinstance(answer, _Items):
                msg = f"reply {turn} of the scripted model gave a function; it must give an answer"
                raise ConfigError(msg)
        for item in answer.items:
            if isinstance(item, BaseException):
                raise item
            yield item

    def _ready(self, value: object, index: int) -> _Ready:
        """The stream of a reply, made once; a function stays as it is."""
        if isinstance(value, BaseException):
            return _Items((value,))
        if isinstance(value, type) and issubclass(value, BaseException):
            error = (
                value(f"scripted {value.__name__}") if issubclass(value, ModelError) else value()
            )
            return _Items((error,))
        if isinstance(value, str):
            return self._items(Reply(text=value))
        if isinstance(value, Call):
            return self._items(Reply(calls=(value,)))
        if isinstance(value, Reply):
            return self._items(value)
        if isinstance(value, list | tuple):
            calls = cast("Sequence[object]", value)
            if all(isinstance(item, Call) for item in calls):
                return self._items(Reply(calls=tuple(cast("Sequence[Call]", calls))))
        elif isinstance(value, Callable):
            return cast("Callable[[Request], Any]", value)
        msg = (
            f"reply {index} of the scripted model is {value!r}: give a text, nb.call(…), a list of"
            " calls, nb.reply(…), an exception, or a function of the request"
        )
        raise ConfigError(msg)

    def _items(self, answer: Reply) -> _Items:
        items: list[Item] = []
        index = 0
        if answer.thinking:
            items += self._pieces(answer.thinking.text, index, "thinking")
            items.append(Block(answer.thinking, index))
            index += 1
        if answer.text:
            items += self._pieces(answer.text, index, "text")
            index += 1
        for position, part in enumerate(answer.calls, index):
            items.append(Block(part, position))
        finish = answer.finish or ("tool_calls" if answer.calls else "stop")
        items.append(End(finish, answer.usage))
        return _Items(tuple(items))

    def _pieces(self, text: str, index: int, kind: str) -> list[Item]:
        size = self._chunk or len(text) or 1
        return [Delta(text[i : i + size], index, kind) for i in range(0, len(text), size)]


@dataclass(frozen=True, slots=True)
class _Items:
    items: tuple[Item | BaseException, ...]


_Ready = _Items | Callable[[Request], Any]

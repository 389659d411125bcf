"""From the chunks of a chat completion to items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import orjson

from nbagent.errors import ModelError, ServerError, TruncatedStreamError
from nbagent.interfaces.model import Block, Delta, End, Item, Spent
from nbagent.messages import Call, Thinking, Usage, scrub
from nbagent.models._chat_extra import merge, of_call, of_message, packed
from nbagent.models._chat_usage import counts, fields_of
from nbagent.models._http_errors import error_in_stream, no_answer, shorten
from nbagent.models._target import Target

__all__ = ["Reader"]

_NO_ARGUMENTS = ("", "{}", "null")


@dataclass(slots=True)
class _Open:
    """A tool call that is still coming."""

    block: int
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class Reader:
    """Reads one answer: feed it the data of each event, then ask for the end.

    Source: https://platform.openai.com/docs/api-reference/chat-streaming, 2026-11; what hosts do
    otherwise stands at the place that copes with it.
    """

    def __init__(self, target: Target, family: str = "") -> None:
        self.finish: str | None = None
        """The finish reason, in the wire's words."""
        self.marked = False
        """Whether the end marker was seen."""
        self._target = target
        self._family = family  # who gets unknown fields back; "" = they are not kept
        self._extra: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._answered = False
        self._instead = b""  # what came in place of an answer, for its error
        self._failed: ModelError | None = None
        self._next = 0
        self._kind = ""  # of the block that is open: text, thinking, or "" for calls
        self._block = 0
        self._half = ""  # first half of a surrogate pair at the end of a chunk
        self._refused = False
        self._thinking: int | None = None  # the block that carries what must go back
        self._thinking_key = ""
        self._details: list[dict[str, Any]] = []
        self._calls: list[_Open] = []
        self._by_index: dict[int, _Open] = {}

    def items(self, events: Iterable[tuple[str, bytes]]) -> Iterator[Item]:
        """The items of these events.

        Raises
        ------
        ModelError
            If an event is an error, behind what it tells besides, or can't be read.
        """
        for _, payload in events:
            yield from self._read(payload)
            if self._failed is not None:
                raise self._failed

    def _read(self, payload: bytes) -> Sequence[Item]:
        try:
            return self._understood(payload)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            # Something has another shape than the wire's: a list for a text, a text for a list.
            raise self._unreadable(payload) from None

    def _understood(self, payload: bytes) -> Sequence[Item]:
        try:
            chunk = orjson.loads(payload)
        except orjson.JSONDecodeError:
            chunk = self._odd(payload)
            if chunk is None:
                return ()
        if not isinstance(chunk, dict):
            raise self._unreadable(payload)
        fields = cast("dict[str, Any]", chunk)
        items = self._spent(fields) if fields.get("usage") or fields.get("timings") else []
        if fields.get("error"):
            text = self._readable(payload)
            self._failed = error_in_stream(fields["error"], host=self._target.host, body=text)
            return items
        choices = fields.get("choices")
        choice: dict[str, Any] | None = choices[0] if choices else None
        if choices and (choice is None or choice.get("index")):
            choice = next((each for each in _present(choices) if not each.get("index")), None)
        if not choice:  # Azure's first chunk, and the one with usage
            self._instead = payload
            return items
        self._answered = True
        if choice.get("finish_reason"):
            self.finish = choice["finish_reason"]
        delta = choice.get("delta")
        if delta is None:
            delta = _as_delta(choice.get("message") or {})
        return self._delta(items, delta)

    def rest(self, events: list[tuple[str, bytes]]) -> Iterator[Item]:
        """The items of what the stream's end left without a blank line: the end marker at best."""
        for event in () if self.marked else events:
            try:
                items = self._read(event[1])
            except ServerError:  # cut in the middle: `end` says so
                continue
            yield from items

    def end(self) -> list[Item]:
        """What the deltas did not say, then the `End`.

        Raises
        ------
        TruncatedStreamError
            If neither the end marker nor a finish reason came.
        ModelError
            If what came is whole but no answer; it is quoted.
        """
        self._check_whole()
        cut = self.finish in ("length", "max_tokens", "model_length")
        items = [*self._thinking_end(), *self._call_ends(cut=cut)]
        # The calls decide, not the word: some hosts say "stop" though there are calls.
        finish = "max_tokens" if cut else "tool_calls" if self._calls else "stop"
        if self._refused or self.finish in ("content_filter", "refusal"):
            finish = "refused"
        items.append(End(finish, self.usage))
        return items

    @property
    def usage(self) -> Usage | None:
        """The tokens that were reported so far."""
        return counts(self._usage, self._timings)

    def _check_whole(self) -> None:
        host = self._target.host
        if self._failed is not None:
            raise self._failed
        if not self._answered and (self.marked or self._instead):
            raise no_answer(self._readable(self._instead or b"[DONE]"), host=host)
        if self.finish is None and not self.marked:
            msg = f"the answer of {host} stopped in the middle"
            raise TruncatedStreamError(msg)
        if self.finish == "error":  # OpenRouter's word for a failure upstream
            msg = f"{host} broke off its answer without saying why"
            raise ServerError(msg)

    def _thinking_end(self) -> Iterator[Item]:
        extra = self._extra if self._family else {}
        # DeepSeek wants the field back beside calls even if nothing was thought.
        if self._thinking is None and (extra or (self._thinking_key and self._calls)):
            self._thinking = self._new_block()
        if self._thinking is None:
            return
        data: dict[str, Any] = {"key": self._thinking_key} if self._thinking_key else {}
        if self._details:
            data = {"reasoning_details": _merged(self._details)}
        if extra:
            data["extra"] = packed(self._family, extra)
        yield Block(Thinking("", data=orjson.dumps(data).decode()), self._thinking)

    def _call_ends(self, *, cut: bool) -> Iterator[Item]:
        for call in self._calls:
            arguments = "".join(call.arguments)
            if not arguments.strip() and not cut:
                arguments = "{}"
                yield Delta(arguments, call.block, "arguments")
            kept = None
            if call.extra and self._family:
                kept = orjson.dumps(packed(self._family, call.extra)).decode()
            yield Block(Call(call.name, arguments, call.id, kept), call.block)

    def _spent(self, fields: dict[str, Any]) -> list[Item]:
        """Take in the counts of a chunk: running totals, of which those left out still hold."""
        used, times = fields_of(fields.get("usage")), fields_of(fields.get("timings"))
        if used.get("prompt_tokens") or used.get("completion_tokens"):
            self._usage |= {key: count for key, count in used.items() if count is not None}
        elif times:
            self._timings = times
        else:
            return []
        usage = self.usage
        return [] if usage is None else [Spent(usage)]

    def _odd(self, payload: bytes) -> Any:
        """What is no JSON for orjson: the end marker, nothing, or what others accept."""
        text = payload.decode("utf-8", "replace").strip()
        if text == "[DONE]":
            self.marked = True
            return None
        if not text:
            return None
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise self._unreadable(payload) from None

    def _unreadable(self, payload: bytes) -> ModelError:
        text = self._readable(payload)
        msg = f"{self._target.host} sent a piece that can't be read: {shorten(text, 200)}"
        return ServerError(msg, body=shorten(text, 2_000))

    def _readable(self, payload: bytes) -> str:
        return self._target.redact(payload.decode("utf-8", "replace"))

    def _delta(self, items: list[Item], delta: dict[str, Any]) -> list[Item]:
        merge(self._extra, of_message(delta))
        content = delta.get("content")
        details = delta.get("reasoning_details")
        thought, key = delta.get("reasoning_content"), "reasoning_content"
        if not thought:
            if thought is not None:
                self._thinking_key = key
            thought, key = delta.get("reasoning"), "reasoning"
        if details:
            details = _present(details)
            self._details += details
            thought = thought or "".join(_detail_text(each) for each in details)
        if content and not isinstance(content, str):
            content, more = _parts(content)
            thought = thought or more
        if thought and isinstance(thought, str):
            self._write(items, thought, "thinking")
            if self._thinking is None:
                self._thinking, self._thinking_key = self._block, key
        if content:
            self._write(items, content, "text")
        if delta.get("tool_calls"):
            for piece in _present(delta["tool_calls"]):
                self._call(items, piece, piece.get("index"))
        if delta.get("function_call"):  # the form before tools
            self._call(items, {"function": delta["function_call"]}, -1)
        if delta.get("refusal"):
            self._refused = True
            self._write(items, delta["refusal"], "text")
        return items

    def _write(self, items: list[Item], text: str, kind: str) -> None:
        if self._kind != kind:
            self._kind, self._block = kind, self._new_block()
        if self._half or "\ud800" <= text[-1] <= "\udfff":
            # A host that writes \u escapes may cut between the halves of one character.
            text = self._half + text
            self._half = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
            text = scrub(text.removesuffix(self._half) if self._half else text)
            if not text:
                return
        items.append(Delta(text, self._block, kind))

    def _call(self, items: list[Item], piece: dict[str, Any], index: int | None) -> None:
        function: dict[str, Any] = piece.get("function") or {}
        name: str = function.get("name") or ""
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else orjson.dumps(arguments).decode()
        call_id = str(piece.get("id") or "")
        call = self._find(index, call_id, name)
        if call is None and not (name or call_id) and arguments.strip() in _NO_ARGUMENTS:
            return  # servers fill in the old field and the new one, whether or not there is a call
        if call is not None and _is_repeat(call, call_id, arguments):
            return
        if call is None or _begins_another(call, call_id, name, arguments):
            call = _Open(self._new_block())
            self._kind = ""
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or call_id
        merge(call.extra, of_call(piece))
        # A name comes whole; hosts that repeat it are more than hosts that cut it.
        if name and (not call.name or (name != call.name and not call.arguments)):
            call.name += name
            items.append(Delta(name, call.block, "name"))
        if arguments:
            call.arguments.append(arguments)
            items.append(Delta(arguments, call.block, "arguments"))

    def _find(self, index: int | None, call_id: str, name: str) -> _Open | None:
        if index is not None:
            return self._by_index.get(index)
        if call_id:
            return next((call for call in self._calls if call.id == call_id), None)
        return None if name or not self._calls else self._calls[-1]

    def _new_block(self) -> int:
        self._next += 1
        return self._next - 1


def _present(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """The entries that are there: some hosts fill lists up with null."""
    return [each for each in entries if each is not None]


def _is_repeat(call: _Open, call_id: str, arguments: str) -> bool:
    """Whether a piece is this very call once more, whole, behind its pieces."""
    if not (call.arguments and arguments.startswith("{")) or (
        call_id and call.id and call_id != call.id
    ):
        return False
    said = _canonical(arguments)
    return said is not None and said == _canonical("".join(call.arguments))


def _canonical(text: str) -> bytes | None:
    """One spelling of a JSON value; None of what is none."""
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS)
    except orjson.JSONDecodeError:
        return None


def _begins_another(call: _Open, call_id: str, name: str, arguments: str) -> bool:
    """Whether a piece begins a call of its own though its index is that of this one."""
    if call_id and call.id and call_id != call.id:
        return True
    if not (name and call.name and arguments.startswith("{") and call.arguments):
        return False
    return _canonical("".join(call.arguments)) is not None


def _as_delta(message: dict[str, Any]) -> dict[str, Any]:
    """A whole message as one delta: its calls have no index, each is one."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    numbered = [{**call, "index": i} for i, call in enumerate(_present(calls))]
    return {**message, "tool_calls": numbered}


def _parts(content: object) -> tuple[str, str]:
    """Text and reasoning of content that is no string: parts (Mistral), or JSON (Cloudflare)."""
    if not isinstance(content, list):
        return orjson.dumps(content).decode(), ""
    text: list[str] = []
    thought: list[str] = []
    for part in _present(cast("list[Any]", content)):
        if part.get("type") == "thinking":
            thought.append(_parts(part.get("thinking") or [])[0])
        elif isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), "".join(thought)


def _detail_text(detail: dict[str, Any]) -> str:
    return detail.get("text") or detail.get("summary") or ""


def _merged(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pieces of each reasoning block put together."""
    out: list[dict[str, Any]] = []
    for detail in details:
        last = out[-1] if out else {}
        if out and all(last.get(key) == detail.get(key) for key in ("type", "index")):
            for key, value in detail.items():
                joins = key in ("text", "summary", "data") and isinstance(last.get(key), str)
                if joins and value:
                    last[key] += value
                elif value:
                    last[key] = value
        else:
            out.append(dict(detail))
    return out

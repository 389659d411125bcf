"""An answer that arrives, with its secrets masked; what calls really say is kept in memory."""

from __future__ import annotations

from collections.abc import Iterator

from nbagent.interfaces.model import Delta
from nbagent.messages import Call, Part, Text, Thinking
from nbagent.redact import Mask, StreamMask

__all__ = ["MaskedAnswer"]


class MaskedAnswer:
    """The mask over the blocks of one answer."""

    __slots__ = ("_arguments", "_mask", "_streams", "unmasked")

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._streams: dict[tuple[int, str], StreamMask] = {}
        self._arguments: dict[int, list[str]] = {}
        self.unmasked: dict[int, str] = {}
        """Position of a call → its arguments as the model wrote them, where they hold secrets."""

    def feed(self, delta: Delta) -> Delta:
        """The delta as it may be logged; what may be the beginning of a secret comes later."""
        key = (delta.index, delta.kind)
        if delta.kind == "arguments":
            self._arguments.setdefault(delta.index, []).append(delta.text)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = self._mask.stream()
        return delta._replace(text=stream.feed(delta.text))

    def rest(self) -> Iterator[Delta]:
        """What was held back, at the end of the answer."""
        for (index, kind), stream in self._streams.items():
            text = stream.rest()
            if text:
                yield Delta(text, index, kind)

    def part(self, part: Part, index: int, position: int) -> Part:
        """A block of the answer; `position` is that of the call, if it is one."""
        mask = self._mask
        if type(part) is Call:
            written = "".join(self._arguments.get(index, ())) or part.arguments
            masked = mask.arguments(part.arguments)
            if masked != written:
                self.unmasked[position] = written
            extra = None if part.extra is None else mask.arguments(part.extra)
            return Call(mask.text(part.name), masked, mask.text(part.id), extra)
        if type(part) is Thinking:
            data = None if part.data is None else mask.arguments(part.data)
            return Thinking(mask.text(part.text), part.signature, data)
        return Text(mask.text(part.text)) if type(part) is Text else part

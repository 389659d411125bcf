"""An answer that arrives, with its secrets masked; what calls really say is kept in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from nbagent.interfaces.model import Delta
from nbagent.messages import Call, Part, Text, Thinking, scrub
from nbagent.redact import Mask, StreamMask

__all__ = ["MaskedAnswer"]


class MaskedAnswer:
    """The mask over the blocks of one answer."""

    __slots__ = ("_arguments", "_mask", "_names", "_streams", "unmasked")

    def __init__(self, mask: Mask, names: Collection[str]) -> None:
        self._mask, self._names = mask, names
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
            written = scrub("".join(self._arguments.get(index, ()))) or part.arguments
            masked = mask.arguments(written)
            if masked != written:
                self.unmasked[position] = written
            extra = None if part.extra is None else mask.arguments(part.extra)
            name = part.name if part.name in self._names else mask.text(part.name)
            return Call(name, masked, mask.text(part.id), extra)
        if type(part) is Thinking:
            data = None if part.data is None else mask.arguments(part.data)
            proof = None if part.signature is None else mask.text(part.signature)
            return Thinking(mask.text(part.text), proof, data)
        return Text(mask.text(part.text)) if type(part) is Text else part

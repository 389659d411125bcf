"""Server-sent events out of bytes, as they come from the network."""

from __future__ import annotations

__all__ = ["SSE"]

_BOM = b"\xef\xbb\xbf"


class SSE:
    r"""A parser that is fed network reads and gives (event name, data) pairs.

    It works on bytes: a text line reader would also split at U+2028, U+0085 and others, which may
    stand raw inside a JSON string. Time is linear in the bytes fed, however they are cut.

    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
    (2026-11). Two things are ours: data stays bytes, and `close` gives an event whose blank line
    is missing, so that the reader of the wire can accept a terminal one.

    Examples
    --------
    >>> parser = SSE()
    >>> parser.feed(b"data: 1\r")
    []
    >>> parser.feed(b"\n\r\nevent: ping\ndata: 2")
    [('message', b'1')]
    >>> parser.close()
    [('ping', b'2')]
    """

    __slots__ = ("_after_cr", "_at_start", "_ends_line", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # what was fed since the last blank line
        self._ends_line = False  # whether these end in a line end
        self._after_cr = False
        self._at_start = True

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that these bytes complete."""
        if self._after_cr and data:
            # A CR at the end of a read was a line end already; its LF may come with the next.
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not data:
            return []
        if not (b"\n\n" in data or (self._ends_line and data.startswith(b"\n"))):
            self._parts.append(data)
            self._ends_line = data.endswith(b"\n")
            return []
        if self._parts:
            data = b"".join([*self._parts, data])
            self._parts.clear()
        *blocks, rest = data.split(b"\n\n")
        if rest:
            self._parts.append(rest)
        self._ends_line = rest.endswith(b"\n")
        return self._events(blocks)

    def close(self) -> list[tuple[str, bytes]]:
        """The event that is left at the end of the stream without its blank line, if any."""
        rest = b"".join(self._parts)
        self._parts.clear()
        self._ends_line = False
        return self._events([rest])

    def _events(self, blocks: list[bytes]) -> list[tuple[str, bytes]]:
        if self._at_start and blocks:
            self._at_start = False
            blocks[0] = blocks[0].removeprefix(_BOM)
        events: list[tuple[str, bytes]] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(("message", block[6:]))
            elif block:
                event = _event(block)
                if event:
                    events.append(event)
        return events


def _event(block: bytes) -> tuple[str, bytes] | None:
    name = b""
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")  # a comment line has an empty field name
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    if not data:
        return None
    return name.decode("utf-8", "replace") or "message", b"\n".join(data)

"""One question over HTTP: the body goes out, items come back."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from nbagent.errors import NotFoundError, TransportError, TruncatedStreamError
from nbagent.interfaces.model import Item
from nbagent.models._chat_stream import Reader
from nbagent.models._http import Answer, post
from nbagent.models._http_errors import shorten
from nbagent.models._sse import SSE
from nbagent.models._target import Target

__all__ = ["ask"]


async def ask(
    target: Target, body: bytes, reader: Reader, *, timeout_s: float
) -> AsyncGenerator[Item]:
    """Send the body and give the answer's items as they come.

    Raises
    ------
    ModelError
        Typed by what went wrong, before or after the first item.
    """
    async with post(target, body, timeout_s=timeout_s) as answer:
        parser = SSE()
        async with aclosing(answer.chunks()) as chunks:
            try:
                if answer.content_type != "text/event-stream":
                    head, plain = await _sniffed(answer, chunks, target)
                    for item in reader.items([("", head)] if plain else parser.feed(head)):
                        yield item
                    reader.marked |= plain
                if not reader.marked:
                    async for data in chunks:
                        for item in reader.items(parser.feed(data)):
                            yield item
                        if reader.marked:
                            break
            except (TransportError, TruncatedStreamError):
                if not reader.finish:  # with the finish reason the answer is whole
                    raise
        for item in reader.rest(parser.close()):
            yield item
        if reader.marked:
            await answer.drain()
        for item in reader.end():
            yield item


async def _sniffed(
    answer: Answer, chunks: AsyncGenerator[bytes], target: Target
) -> tuple[bytes, bool]:
    """What came though no stream was announced, and whether it is a whole answer in JSON."""
    head = b""
    async for data in chunks:
        head += data
        if head.strip():
            break
    start = head.lstrip()
    if start.startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
        return head, False
    head += b"".join([piece async for piece in chunks])
    if start.startswith((b"{", b"[")):
        return head, True
    text = target.redact(head.decode("utf-8", "replace"))
    kind = "a web page" if start.startswith(b"<") else answer.content_type or "text"
    msg = (
        f"{target.host} sent {kind} instead of a model's answer:"
        f" is base_url right (does it end in /v1)? It says: {shorten(text, 200)}"
    )
    raise NotFoundError(msg, status=200, body=shorten(text, 2_000))

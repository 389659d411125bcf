"""A server on this machine that answers as it is told, in its own thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Told:
    """What the server does with one request."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(
        default_factory=lambda: {"content-type": "text/event-stream"}
    )
    pause_s: float = 0
    """Between chunks."""
    drop: bool = False
    """Close without a word."""
    cut: bool = False
    """Close without the body's end."""
    hang: bool = False
    """Keep the connection open after the chunks."""


@dataclass
class Seen:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes
    connection: int


class FakeServer:
    """Answers each request by the next thing told; the last one is repeated."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.gone = 0
        """Connections that the client closed while an answer was on its way."""
        self.judge: Callable[[Any], Told | None] = lambda _: None
        """What becomes of a body before anything told is used up: an answer, or None."""
        self._told: list[Told] = []
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def tell(self, *chunks: bytes, **options: Any) -> None:
        """Answer with these bytes, each a chunk."""
        self._told.append(Told(chunks, **options))

    def say(self, *events: Any, done: bool = True, **options: Any) -> None:
        """Answer with these events, each a JSON value or raw bytes."""
        chunks = [
            event if isinstance(event, bytes) else b"data: %b\n\n" % json.dumps(event).encode()
            for event in events
        ]
        if done:
            chunks.append(b"data: [DONE]\n\n")
        self.tell(*chunks, **options)

    def refuse(self, status: int, body: Any = b"", **headers: str) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = "text/html" if raw.startswith(b"<") else "application/json"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.tell(raw, status=status, headers={"content-type": kind, **named})

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**24)
        )
        self._port: int = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        try:
            while await self._one(reader, writer, connection):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        path = first.split()[1]
        self.seen.append(Seen(path, headers, json.loads(raw or b"null"), raw, connection))
        told = self.judge(self.seen[-1].body)
        if told is None:
            told = self._told.pop(0) if len(self._told) > 1 else self._told[0]
        if told.drop:
            return False
        fields = {**told.headers, "transfer-encoding": "chunked"}
        lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
        writer.write(f"HTTP/1.1 {told.status} X\r\n{''.join(lines)}\r\n".encode())
        for chunk in told.chunks:
            if chunk:
                writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await writer.drain()
            if told.pause_s:
                await asyncio.sleep(told.pause_s)
        if told.hang:
            await reader.read(1)
            self.gone += 1
            return False
        if told.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@pytest.fixture
def server() -> Iterator[FakeServer]:
    """A server that answers as it is told."""
    made = FakeServer()
    yield made
    made.close()

"""The two forms of an event: the canonical line and the shorter record on disk.

The line is what is kept in memory, hashed and shown::

    {"seq":5,"ts":1796031533191,"type":"tool/call","data":{"position":0},"c":"adfd42d4"}

`c` is the CRC-32 of all lines up to this one, begun with the log's header; it names a damaged line.
The record says the same with the time as difference to the line before (`dt`, left out if 0). A run
of chunks is one record (`assistant/chunks`), and an answer refers to the text of its chunks by the
number of the block in place of the text::

    {"seq":8,"n":3,"type":"assistant/chunks","data":{"text":"Hello.","len":[3,2,1],"dt":"0k5"},"c":…}
    {"seq":12,"type":"assistant/message","data":{"message":{"role":"assistant","text":0}},"c":…}
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import orjson

__all__ = ["Chunk", "Reader", "Row", "chunk_data", "expand", "pack", "shrink"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}

Blocks = dict[tuple[int, str], list[str]]
"""Pieces of the open attempt's blocks so far, by (index, kind)."""


class Chunk(NamedTuple):
    """One `assistant/chunk` that waits for its run to be closed."""

    seq: int
    ts: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    kind: str
    text: str


def pack(chunks: Sequence[Chunk], before: int, checksum: int) -> bytes:
    """A run of chunks with consecutive seqs as one record; `before` is the ts of the line before."""
    first = chunks[0]
    data: dict[str, Any] = {
        "text": "".join(chunk.text for chunk in chunks),
        "len": [len(chunk.text) for chunk in chunks],
    }
    steps = [chunk.ts - earlier.ts for earlier, chunk in pairwise(chunks)]
    if any(steps):
        data["dt"] = "".join(_DIGITS[n] if 0 <= n < 36 else f"({n})" for n in steps)
    blocks: list[list[Any]] = []
    for chunk in chunks:
        if blocks and blocks[-1][:2] == [chunk.index, chunk.kind]:
            blocks[-1][2] += 1
        else:
            blocks.append([chunk.index, chunk.kind, 1])
    if blocks != [[0, "text", len(chunks)]]:
        data["block"] = blocks
    elapsed = b'"dt":%d,' % (first.ts - before) if first.ts != before else b""
    return b'{"seq":%d,"n":%d,%b"type":"assistant/chunks","data":%b,"c":"%08x"}' % (
        first.seq,
        len(chunks),
        elapsed,
        orjson.dumps(data),
        checksum,
    )


def chunk_data(index: int, kind: str, text: str) -> dict[str, Any]:
    """Data of `assistant/chunk`, defaults left out."""
    data: dict[str, Any] = {"text": text}
    if kind != "text":
        data = {"kind": kind, **data}
    if index:
        data = {"index": index, **data}
    return data


def _unpack(record: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(time since the chunk before, data) of each chunk of a packed run."""
    data: dict[str, Any] = record["data"]
    text, at = data["text"], 0
    blocks: list[list[Any]] = data.get("block") or [[0, "text", record["n"]]]
    kinds = [(index, kind) for index, kind, count in blocks for _ in range(count)]
    steps = [0, *_steps(data["dt"])] if "dt" in data else [0] * record["n"]
    for length, step, (index, kind) in zip(data["len"], steps, kinds, strict=True):
        yield step, chunk_data(index, kind, text[at : at + length])
        at += length


def _steps(text: str) -> Iterator[int]:
    at = 0
    while at < len(text):
        if text[at] == "(":
            end = text.index(")", at)
            yield int(text[at + 1 : end])
            at = end + 1
        else:
            yield _VALUES[text[at]]
            at += 1


def shrink(message: dict[str, Any], blocks: Blocks) -> dict[str, Any] | None:
    """The message with its texts replaced by block numbers where a block holds exactly that text."""
    if not blocks:
        return None
    joined = {key: "".join(pieces) for key, pieces in blocks.items()}
    index_of = {(kind, text): index for (index, kind), text in joined.items() if text}
    found = False

    def ref(kind: str, text: Any) -> Any:
        nonlocal found
        index = index_of.get((kind, text))
        found = found or index is not None
        return text if index is None else index

    out = dict(message)
    if "text" in message:
        out["text"] = ref("text", message["text"])
    if "parts" in message:
        out["parts"] = [_shrink_part(part, ref) for part in message["parts"]]
    return out if found else None


def _shrink_part(part: dict[str, Any], ref: Any) -> dict[str, Any]:
    kinds = {"text": "text", "thinking": "thinking", "call": "name", "arguments": "arguments"}
    return {key: ref(kinds[key], value) if key in kinds else value for key, value in part.items()}


def _fill(message: dict[str, Any], blocks: Blocks) -> bool:
    """Undo `shrink` in place; True if something was put back."""
    kinds = {"text": "text", "thinking": "thinking", "call": "name", "arguments": "arguments"}
    found = False
    for part in (message, *message.get("parts", ())):
        for key, kind in kinds.items():
            index = part.get(key)
            if isinstance(index, int):
                part[key] = "".join(blocks[index, kind])
                found = True
    return found


class Row(NamedTuple):
    """One event as it was read."""

    seq: int
    type: str
    data: dict[str, Any]
    line: bytes
    ignorable: bool
    batch: int
    """How many lines follow that belong to this one."""


class Reader:
    """Turns records (or canonical lines) back into canonical lines, and checks them.

    A fault is a `ValueError` whose text says what is wrong; `at` then names the event.
    """

    def __init__(self, header: bytes, created: int) -> None:
        self.checksum = zlib.crc32(header)
        self.ts = created
        self.next = 0
        """The seq that is due."""
        self.at = "event 0"
        self.blocks: Blocks = {}

    def read(self, raw: bytes) -> Iterator[Row]:
        """The rows of one record: one, or as many as the run has chunks."""
        self.at = f"event {self.next}"
        try:
            parsed = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            msg = f"not JSON ({error})"
            raise ValueError(msg) from None
        if not isinstance(parsed, dict) or not {"seq", "type", "data"} <= parsed.keys():
            msg = "not an event"
            raise ValueError(msg)
        record = cast("dict[str, Any]", parsed)  # JSON objects have text keys
        if record["type"] == "assistant/chunks":
            self.at = f"run of events {self.next} to {self.next + record.get('n', 1) - 1}"
        if record["seq"] != self.next:
            msg = f"event {self.next} is due, {record['seq']} stands there"
            raise ValueError(msg)
        if record["type"] == "assistant/chunks":
            yield from self._run(record)
        else:
            yield self._single(record, raw)

    def _single(self, record: dict[str, Any], raw: bytes) -> Row:
        type_, data = record["type"], record["data"]
        ts = record["ts"] if "ts" in record else self.ts + record.get("dt", 0)
        rest = raw[raw.index(b'"type":') :]
        if type_ in ("assistant/message", "assistant/draft") and _fill(
            data["message"], self.blocks
        ):
            rest = b'"type":"%b","data":%b,"c":"%b"}' % (
                type_.encode(),
                orjson.dumps(data),
                record["c"].encode(),
            )
        line = b'{"seq":%d,"ts":%d,%b' % (record["seq"], ts, rest)
        self._advance(line, record.get("c"), ts)
        if type_ == "request/sent":
            self.blocks = {}
        elif type_ == "assistant/chunk":
            self._block(data)
        return Row(record["seq"], type_, data, line, record.get("i") == 1, record.get("b", 0))

    def _run(self, record: dict[str, Any]) -> Iterator[Row]:
        ts = self.ts + record.get("dt", 0)
        rows: list[Row] = []
        for step, data in _unpack(record):
            ts += step
            seq = record["seq"] + len(rows)
            body = b'{"seq":%d,"ts":%d,"type":"assistant/chunk","data":%b' % (
                seq,
                ts,
                orjson.dumps(data),
            )
            self.checksum = zlib.crc32(body, self.checksum)
            line = b'%b,"c":"%08x"}' % (body, self.checksum)
            self._block(data)
            rows.append(Row(seq, "assistant/chunk", data, line, False, 0))
        if len(rows) != record["n"] or record.get("c") != f"{self.checksum:08x}":
            msg = "checksum does not match: the run was altered, or something before it was removed"
            raise ValueError(msg)
        self.ts = ts
        self.next += len(rows)
        yield from rows

    def _block(self, data: dict[str, Any]) -> None:
        key = (data.get("index", 0), data.get("kind", "text"))
        self.blocks.setdefault(key, []).append(data["text"])

    def _advance(self, line: bytes, checksum: str | None, ts: int) -> None:
        # The line ends in `,"c":"xxxxxxxx"}`, 16 bytes with the comma.
        self.checksum = zlib.crc32(line[:-16], self.checksum)
        if checksum != f"{self.checksum:08x}" or not line.endswith(b',"c":"%08x"}' % self.checksum):
            msg = "checksum does not match: the line was altered"
            raise ValueError(msg)
        self.ts = ts
        self.next += 1


def expand(header: bytes, created: int, records: Sequence[bytes]) -> list[bytes]:
    """The canonical lines of a list of records."""
    reader = Reader(header, created)
    return [row.line for record in records for row in reader.read(record)]

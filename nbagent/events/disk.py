"""The two forms of an event: the canonical line and the shorter record on disk.

The line is what is kept in memory, hashed and shown::

    {"seq":5,"ts":1796031533191,"type":"tool/call","data":{"position":0},"c":"adfd42d4"}

`c` is the CRC-32 of all lines up to this one, begun with the log's header; it names a damaged line.
The record says the same with the time as difference to the line before (`dt`, left out if 0). A run
of chunks is one record (`assistant/chunks`), and an answer refers to the text of its chunks by the
number of the block in place of the text::

    {"seq":8,"n":3,"type":"assistant/chunks","data":{"text":"Hello.","len":[3,2,1],"dt":"0k5"},"c":…}
    {"seq":12,"type":"assistant/message","data":{"message":{"role":"assistant","text":0}},"c":…}

Events that stand or fall together are a batch: the first says with `b` how many lines follow it. A
mark stands between `data` and `c`: `"i":1` on an event that older readers may skip, then `b`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise, repeat
from typing import Any, NamedTuple

import orjson

__all__ = ["PACKED", "REWRITTEN", "Reader", "Row", "Writer", "chunk_data", "expand", "marks"]

PACKED = "assistant/chunks"
"""Type of a record that is a run of chunks; not an event type."""

RUN_MS = 1000
"""A run of chunks is closed when its first chunk is older."""

REWRITTEN = (
    "its line ends were rewritten to CR LF, as editors and git on Windows do: turn them back to LF "
    "(dos2unix), and put `*.jsonl -text` into .gitattributes"
)
"""What is wrong with a log whose lines end in two characters."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}

_CHUNK = b'"type":"assistant/chunk","data":'
_SENT = b'"type":"request/sent"'
_ANSWERS = (b'"type":"assistant/message"', b'"type":"assistant/draft"')

_KEYS = {"text": b"text", "thinking": b"thinking", "name": b"call", "arguments": b"arguments"}
"""Where an answer has the text of a block of that kind."""
_KINDS = {key: kind for kind, key in _KEYS.items()}
_REFERENCE = re.compile(rb'"(text|thinking|call|arguments)":([0-9]{1,9})(?=[,}])')
"""In an answer, a number in place of a text. Inside of a text its quotes would be escaped."""

Chunk = tuple[int, str, str]
"""Block, kind and text of a chunk."""


def chunk_data(index: int, kind: str, text: str) -> dict[str, Any]:
    """Data of `assistant/chunk`, defaults left out."""
    data: dict[str, Any] = {"text": text}
    if kind != "text":
        data = {"kind": kind, **data}
    if index:
        data = {"index": index, **data}
    return data


def marks(*, ignorable: bool, batch: int) -> bytes:
    """What stands behind an event's data."""
    return (b',"i":1' if ignorable else b"") + (b',"b":%d' % batch if batch else b"")


# -- from lines to records


class Writer:
    """Turns canonical lines into records, in order."""

    __slots__ = ("blocks", "next", "ts")

    def __init__(
        self, ts: int, next_: int = 0, blocks: Mapping[tuple[int, str], str] | None = None
    ) -> None:
        self.ts = ts
        """Time of the last line that was turned."""
        self.next = next_
        """The seq that is due."""
        self.blocks = blocks or {}
        """Texts of the open attempt's blocks so far, by (index, kind)."""

    def records(self, lines: Sequence[bytes]) -> tuple[list[bytes], Writer]:
        """The records of all lines from `next` on, and the writer of those that come after."""
        records: list[bytes] = []
        run: list[tuple[int, bytes]] = []
        ts, end, blocks = self.ts, len(lines), self.blocks
        for seq in range(self.next, end):
            head, stamp, rest = lines[seq].split(b",", 2)  # {"seq":5  "ts":1796031533191  "type":…
            now = int(stamp[5:])
            chunk = rest.startswith(_CHUNK)
            if run and (not chunk or now - run[0][0] >= RUN_MS):
                blocks = _close(run, seq, ts, blocks, records)
                ts, run = run[-1][0], []
            if chunk:
                run.append((now, rest))
                continue
            if blocks:
                if rest.startswith(_SENT):
                    blocks = {}
                elif rest.startswith(_ANSWERS):
                    rest = _refer(rest, blocks)
            records.append(b"%b,%b%b" % (head, _step(now - ts) if now != ts else b"", rest))
            ts = now
        if run:
            blocks = _close(run, end, ts, blocks, records)
            ts = run[-1][0]
        return records, Writer(ts, end, blocks)


def _step(elapsed: int) -> bytes:
    return b'"dt":%d,' % elapsed if elapsed else b""


def _close(
    run: Sequence[tuple[int, bytes]],
    end: int,
    before: int,
    blocks: Mapping[tuple[int, str], str],
    records: list[bytes],
) -> Mapping[tuple[int, str], str]:
    """Add the record of a run of chunks that ends in front of `end`; gives the blocks with it."""
    seq = end - len(run)
    bodies = b",".join([rest[len(_CHUNK) : -16] for _, rest in run])
    try:
        found = orjson.loads(b"[%b]" % bodies)
        packed = len(run) > 1 and all(map(_packable, found))  # one alone is shorter as it is
    except orjson.JSONDecodeError:  # there are marks behind some data
        found = [orjson.loads(b"{%b" % rest)["data"] for _, rest in run]
        packed = False
    chunks: list[Chunk] = [(d.get("index", 0), d.get("kind", "text"), d["text"]) for d in found]
    if packed:
        records.append(_pack(seq, [now for now, _ in run], chunks, before, run[-1][1][-16:]))
    else:
        for at, (now, rest) in enumerate(run, seq):
            records.append(b'{"seq":%d,%b%b' % (at, _step(now - before), rest))
            before = now
    pieces: dict[tuple[int, str], list[str]] = {key: [text] for key, text in blocks.items()}
    for index, kind, text in chunks:
        pieces.setdefault((index, kind), []).append(text)
    return {key: "".join(texts) for key, texts in pieces.items()}


def _packable(data: dict[str, Any]) -> bool:
    """Whether a run gives back these data of a chunk as they are: `chunk_data` makes the same."""
    if len(data) == 1:
        return True
    same = chunk_data(data.get("index", 0), data.get("kind", "text"), data["text"])
    return [*data.items()] == [*same.items()]


def _pack(
    seq: int, times: Sequence[int], chunks: Sequence[Chunk], before: int, tail: bytes
) -> bytes:
    """A run of chunks as one record; `before` is the time of the line before, `tail` its end."""
    data: dict[str, Any] = {
        "text": "".join([text for _, _, text in chunks]),
        "len": [len(text) for _, _, text in chunks],
    }
    steps = [now - earlier for earlier, now in pairwise(times)]
    if any(steps):
        data["dt"] = "".join([_DIGITS[n] if 0 <= n < 36 else f"({n})" for n in steps])
    blocks: list[list[Any]] = []
    for index, kind, _ in chunks:
        if blocks and blocks[-1][0] == index and blocks[-1][1] == kind:
            blocks[-1][2] += 1
        else:
            blocks.append([index, kind, 1])
    if len(blocks) > 1 or blocks[0][:2] != [0, "text"]:
        data["block"] = blocks
    step = _step(times[0] - before)
    form = b'{"seq":%d,"n":%d,%b"type":"assistant/chunks","data":%b%b'
    return form % (seq, len(chunks), step, orjson.dumps(data), tail)


def _refer(rest: bytes, blocks: Mapping[tuple[int, str], str]) -> bytes:
    """An answer with block numbers in place of the texts that are exactly those of blocks."""
    for (index, kind), text in blocks.items():
        key = _KEYS.get(kind)
        if text and key and 0 <= index < 10**9:
            whole = b'"%b":%b' % (key, orjson.dumps(text))
            rest = rest.replace(whole, b'"%b":%d' % (key, index))
    return rest


# -- from records to lines


def _unpack(record: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(time since the chunk before, data) of each chunk of a packed run."""
    data: dict[str, Any] = record["data"]
    text, at = data["text"], 0
    blocks: list[list[Any]] = data.get("block") or [[0, "text", record["n"]]]
    # Lazily: counts in a damaged record may be huge.
    kinds = chain.from_iterable(repeat((index, kind), count) for index, kind, count in blocks)
    steps = chain((0,), _steps(data["dt"]) if "dt" in data else repeat(0, record["n"] - 1))
    for length, step, (index, kind) in zip(data["len"], steps, kinds, strict=True):
        yield step, chunk_data(index, kind, text[at : at + length])
        at += length
    if at != len(text):
        msg = "its text is longer than its pieces"
        raise ValueError(msg)


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


def _restore(rest: bytes, blocks: Mapping[tuple[int, str], list[str]]) -> bytes:
    """Undo `_refer`."""

    def text(found: re.Match[bytes]) -> bytes:
        pieces = blocks.get((int(found[2]), _KINDS[found[1]]))
        return (
            found[0] if pieces is None else b'"%b":%b' % (found[1], orjson.dumps("".join(pieces)))
        )

    return _REFERENCE.sub(text, rest)


class Row(NamedTuple):
    """One event as it was read."""

    seq: int
    type: str
    data: dict[str, Any]
    line: bytes
    ignorable: bool


class Reader:
    """Turns records (or canonical lines) back into canonical lines, and checks them.

    What is wrong raises, a `ValueError` says it in words; `at` names the event then.
    """

    __slots__ = ("_count", "blocks", "checksum", "due", "next", "ts")

    def __init__(self, header: bytes, created: int) -> None:
        self.checksum = zlib.crc32(header)
        self.ts = created
        self.next = 0
        """The seq that is due."""
        self.due = 0
        """How many lines of an open batch are due."""
        self._count = 1
        """Events of the record that was read last."""
        self.blocks: dict[tuple[int, str], list[str]] = {}

    def read(self, raw: bytes) -> Sequence[Row]:
        """The rows of one record: one, or as many as the run has chunks."""
        self._count = 1
        try:
            record = orjson.loads(raw)
            seq, type_ = record["seq"], record["type"]
        except orjson.JSONDecodeError as error:
            msg = f"not JSON ({error})"
            raise ValueError(msg) from None
        except (LookupError, TypeError):
            msg = "not an event"
            raise ValueError(msg) from None
        if type_ == PACKED and type(record.get("n")) is int:
            self._count = record["n"]
        if seq != self.next:
            msg = f"event {self.next} is due, {seq} stands there"
            raise ValueError(msg)
        return self._run(record) if type_ == PACKED else (self._single(record, raw),)

    @property
    def at(self) -> str:
        """What was read last, for people."""
        if self._count == 1:
            return f"event {self.next}"
        return f"run of events {self.next} to {self.next + self._count - 1}"

    def _single(self, record: dict[str, Any], raw: bytes) -> Row:
        seq, type_, data = self.next, record["type"], record["data"]
        ts = record["ts"] if "ts" in record else self.ts + record.get("dt", 0)
        if type(ts) is not int:
            msg = "its time is no whole number"
            raise ValueError(msg)
        rest = raw[raw.index(b'"type":') :]
        if self.blocks and rest.startswith(_ANSWERS):
            rest = _restore(rest, self.blocks)
            data = orjson.loads(b"{%b" % rest)["data"]
        line = b'{"seq":%d,"ts":%d,%b' % (seq, ts, rest)
        # It ends in `,"c":"xxxxxxxx"}`, 16 bytes with the comma.
        checksum = zlib.crc32(line[:-16], self.checksum)
        if line[-16:] != b',"c":"%08x"}' % checksum:
            msg = "checksum does not match: the line was altered, or lines before it are missing"
            raise ValueError(REWRITTEN if raw.endswith(b"\r") else msg)
        self.checksum, self.ts, self.next = checksum, ts, seq + 1
        if type_ == "request/sent":
            self.blocks = {}
        elif type_ == "assistant/chunk":
            self._block(data)
        if "b" in record or self.due:
            self._batch(record)
        return Row(seq, type_, data, line, record.get("i") == 1)

    def _run(self, record: dict[str, Any]) -> list[Row]:
        seq, ts, checksum = self.next, self.ts + record.get("dt", 0), self.checksum
        rows: list[Row] = []
        for step, data in _unpack(record):
            ts += step
            body = b'{"seq":%d,"ts":%d,"type":"assistant/chunk","data":%b' % (
                seq,
                ts,
                orjson.dumps(data),
            )
            checksum = zlib.crc32(body, checksum)
            line = b'%b,"c":"%08x"}' % (body, checksum)
            rows.append(Row(seq, "assistant/chunk", data, line, False))
            seq += 1
        if len(rows) != record["n"] or record.get("c") != f"{checksum:08x}" or self.due:
            msg = "checksum does not match: the run was altered, or lines before it are missing"
            raise ValueError(msg)
        for row in rows:
            self._block(row.data)
        self.checksum, self.ts, self.next = checksum, ts, seq
        return rows

    def _block(self, data: dict[str, Any]) -> None:
        key = (data.get("index", 0), data.get("kind", "text"))
        self.blocks.setdefault(key, []).append(data["text"])

    def _batch(self, record: dict[str, Any]) -> None:
        if "b" in record and self.due:
            msg = "a batch begins inside a batch"
            raise ValueError(msg)
        self.due = record["b"] if "b" in record else self.due - 1

    @classmethod
    def after(cls, writer: Writer, checksum: int) -> Reader:
        """A reader for what comes after all that the writer has turned."""
        reader = cls(b"", writer.ts)
        reader.checksum, reader.next = checksum, writer.next
        reader.blocks = {key: [text] for key, text in writer.blocks.items()}
        return reader

    def continued(self) -> Writer:
        """A writer for the lines that come after those that were read."""
        blocks = {key: "".join(pieces) for key, pieces in self.blocks.items()}
        return Writer(self.ts, self.next, blocks)


def expand(header: bytes, created: int, records: Sequence[bytes]) -> list[bytes]:
    """The canonical lines of a list of records."""
    reader = Reader(header, created)
    return [row.line for record in records for row in reader.read(record)]

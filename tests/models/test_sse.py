"""Server-sent events: what any cut of the bytes must give."""

from __future__ import annotations

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbagent.models._sse import SSE

Events = list[tuple[str, bytes]]


def parse(*chunks: bytes, close: bool = False) -> Events:
    parser = SSE()
    events = [event for chunk in chunks for event in parser.feed(chunk)]
    return events + parser.close() if close else events


def m(*data: bytes) -> Events:
    return [("message", each) for each in data]


BASE = b"data: 1\n\nevent: e\ndata: 2\n\n"
BASE_EVENTS: Events = [("message", b"1"), ("e", b"2")]

CASES: dict[str, tuple[list[bytes], Events]] = {
    "1 LF": ([BASE], BASE_EVENTS),
    "1 CRLF": ([BASE.replace(b"\n", b"\r\n")], BASE_EVENTS),
    "1 CR": ([BASE.replace(b"\n", b"\r")], BASE_EVENTS),
    "1 mixed": ([b"data: 1\r\n\nevent: e\rdata: 2\n\r\n"], BASE_EVENTS),
    "2 CRLF split over chunks": ([b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n"], m(b"a\nb")),
    "3 CR ends the chunk": ([b"data: a\r\r"], m(b"a")),
    "4 two CRs": ([b"data: a\r\rdata: b\r\r"], m(b"a", b"b")),
    "5 empty chunks": ([b"", b"data: a", b"", b"\n", b"", b"\n", b""], m(b"a")),
    "6 other line separators": (
        ["data: a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1ee\n\n".encode()],
        m("a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1ee".encode()),
    ),
    "7 characters cut": (
        [b"data: \xc3", b"\xa9\xe2\x82", b"\xac\xf0\x9f", b"\x98\x80\n\n"],
        m("é€😀".encode()),
    ),
    "8 invalid UTF-8": ([b"data: \xff\n\ndata: 2\n\n"], m(b"\xff", b"2")),
    "10 BOM": ([b"\xef\xbb\xbfdata: 1\n\n\xef\xbb\xbfdata: 2\n\ndata: 3\n\n"], m(b"1", b"3")),
    "10 BOM cut": ([b"\xef", b"\xbb", b"\xbf", b"data: 1\n\n"], m(b"1")),
    "11 several data lines": ([b'data: {"a":\ndata:\ndata: 1}\n\n'], m(b'{"a":\n\n1}')),
    "12 data without value": ([b"data\n\ndata:\n\ndata\ndata: x\n\n"], m(b"", b"", b"\nx")),
    "13 one space is dropped": ([b"data:x\n\ndata: x\n\ndata:  x\n\n"], m(b"x", b"x", b" x")),
    "14 comments": (
        [b": " + b"c" * 2048 + b"\x00\ndata: a\n:\ndata: b\n\n:only\n\n"],
        m(b"a\nb"),
    ),
    "15 name without data": ([b"event: ping\n\ndata: 1\n\n"], m(b"1")),
    "16 data without name": ([b"data: 1\n\nevent:\ndata: 2\n\n"], m(b"1", b"2")),
    "17 other fields": (
        [b"id: \x001\nretry: soon\nfoo: bar\n\nretry: 3000\n\nid: 2\ndata: 1\nwhat\n\n"],
        m(b"1"),
    ),
    "18 blank lines": ([b"\n\n\ndata: 1\n\n\n\n\ndata: 2\n\n"], m(b"1", b"2")),
    "20 escaped newlines": ([b'data: {"a":"x\\n\\ny"}\n\n'], m(b'{"a":"x\\n\\ny"}')),
    "21 the end marker": ([b"data: [DONE] \n\ndata: more\n\n"], m(b"[DONE] ", b"more")),
    "27 ping": (
        [b"data: 1\n\nevent: ping\ndata: {}\n\ndata: 2\n\n"],
        [("message", b"1"), ("ping", b"{}"), ("message", b"2")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_events_are_the_right_ones_whole_and_byte_by_byte(case: str) -> None:
    chunks, events = CASES[case]
    whole = b"".join(chunks)
    assert parse(*chunks) == events
    assert parse(whole) == events
    assert parse(*(whole[i : i + 1] for i in range(len(whole)))) == events


def test_the_last_event_without_its_blank_line_is_given_at_the_close() -> None:
    """Row 19: whether it counts is for the reader of the wire to say."""
    for ending in (b"", b"\n", b"\r", b"\r\n"):
        assert parse(b"data: 1\n\ndata: 2" + ending) == m(b"1")
        assert parse(b"data: 1\n\ndata: 2" + ending, close=True) == m(b"1", b"2")


ALPHABET = [b"data: ", b"data:", b"x", b"\r", b"\n", b"\r\n", b"\n\n", b":", b"event: e", b"\xef\xbb\xbf", b" ", "é".encode()]  # fmt: skip


def by_lines(stream: bytes) -> Events:
    """The standard read word by word, one line after the other."""
    events: Events = []
    name, data = "", list[bytes]()
    text = stream.removeprefix(b"\xef\xbb\xbf")
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]
    for line in lines:
        if not line:
            if data:
                events.append((name or "message", b"\n".join(data)))
            name, data = "", []
        elif not line.startswith(b":"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode()
    return events


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ALPHABET)).map(b"".join), st.lists(st.integers(0, 80), max_size=8))
def test_chunk_borders_never_change_the_result(stream: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(borders) if a < b]
    assert b"".join(chunks) == stream
    assert parse(*chunks) == parse(stream) == by_lines(stream)


def test_long_lines_and_many_events_take_linear_time() -> None:
    """Row 28: counted as copied bytes by the clock, with a wide margin."""
    line = b"data: " + json.dumps("x" * 1_000_000).encode() + b"\n\n"
    started = time.perf_counter()
    assert len(parse(*(line[i : i + 100] for i in range(0, len(line), 100)))) == 1
    many = b"data: x\n" * 100_000 + b"\n"
    assert len(parse(*(many[i : i + 8] for i in range(0, len(many), 8)))) == 1
    tiny = b"data: 1\n\n" * 10_000
    assert len(parse(tiny)) == 10_000
    assert time.perf_counter() - started < 5  # quadratic copying would be gigabytes

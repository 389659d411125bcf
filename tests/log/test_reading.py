"""Opening a file: what is whole is read, what is torn is left for the first run, the rest refused."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import nbagent as nb
from nbagent.errors import CorruptLogError, FormatError, SessionError
from nbagent.log import Log, verify
from nbagent.stores.jsonl import JsonlStore

pytestmark = pytest.mark.damages_files


def agent_of(*replies: Any) -> nb.Agent:
    return nb.Agent(nb.models.Scripted(list(replies)), tools=[add])


@nb.tool(risk="readonly")
def add(a: int) -> int:
    """Add."""
    return a


def sealed(header: bytes, *starts: bytes) -> bytes:
    """Lines with their checksums, as a file."""
    checksum, lines = zlib.crc32(header), [header]
    for start in starts:
        checksum = zlib.crc32(start, checksum)
        lines.append(b'%b,"c":"%08x"}' % (start, checksum))
    return b"\n".join(lines) + b"\n"


HEADER = b'{"nbagent":1,"projection":1,"id":"s1","created":1796031533000}'
NOTICE = b'{"seq":%d,"ts":5,"type":"notice","data":{"kind":"k","text":"t"}'


def test_a_log_cut_at_any_byte_goes_on(path: Path):
    session = nb.Session.open(path)
    agent_of(nb.reply("Grüße", nb.call("add", a=1)), "done").run_sync("gö", session=session)
    session.close()
    content, lines = path.read_bytes(), list(session.log.lines)
    starts = [n + 1 for n, byte in enumerate(content) if byte == 10]
    for cut in range(len(content)):
        path = path.with_name(f"{cut}.jsonl")
        path.write_bytes(content[:cut])
        whole = max((start for start in starts if start <= cut), default=0)
        stored = JsonlStore(path).load()
        assert (stored.torn is not None) == (whole < cut)
        if stored.torn is not None:
            assert (stored.torn.position, stored.torn.length) == (whole, cut - whole)
        if cut % 31 and cut != whole:
            continue  # the rest takes time: at the ends of lines, and here and there
        log = Log(JsonlStore(path))
        assert path.read_bytes() == content[:cut], "opening wrote"
        assert log.lines == lines[: len(log)]
        session = nb.Session.open(path)
        agent_of("more", "more").run_sync("again", session=session)
        session.close()
        again = Log(JsonlStore(path))
        assert again.lines == session.log.lines
        assert again.lines[: len(log)] == log.lines
        assert again.verify().ok
        notices = [e.data.kind for e in again.events if e.type == "notice"]
        assert notices == (["torn-tail"] if whole < cut else [])


def test_a_torn_tail_is_reported_by_the_first_run(path: Path, write: Any):
    """F-F1."""
    write(path).release()
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write('{"seq":99,"type":"notice","data":{"text":"grü'.encode()[:-1])
    session = nb.Session.open(path)
    assert session.verify().ends == "torn"
    assert session.verify().ok
    result = agent_of("more").run_sync("again", session=session)
    notice = next(e for e in result.events if e.type == "notice")
    assert notice.data.text == (
        f"an unfinished line of 45 bytes at byte {size} was cut off: "
        '{"seq":99,"type":"notice","data":{"text":"gr�'
    )
    assert session.verify().ends == "idle"
    session.close()
    assert Log(JsonlStore(path)).verify().ok


def test_a_tail_that_was_only_being_written_is_not_reported(path: Path, write: Any):
    log = write(path)
    with path.open("ab") as file:
        file.write(b'{"seq":')
    reader = Log(JsonlStore(path))
    assert reader.torn is not None
    os.truncate(path, path.stat().st_size - 7)
    log.release()
    reader.acquire()
    assert reader.torn is None
    reader.release()


@pytest.mark.parametrize(
    "garbage", [b"\x00\xff\xfe", b"", b"[]", b"5", b"{}", b'{"seq":8}', b'"x"', b"{" * 5000]
)
def test_garbage_in_the_middle_is_refused_and_named(path: Path, write: Any, garbage: bytes):
    write(path).release()
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:6], garbage, *lines[6:]]))
    with pytest.raises(CorruptLogError, match=r"log\.jsonl is damaged at event 5: "):
        nb.Session.open(path)
    report = verify(lines[0], [*lines[1:6], garbage, *lines[6:-1]])
    assert [seq for seq, _ in report.problems] == [5]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_an_incomplete_batch_at_the_end_is_a_torn_tail(path: Path, last: int):
    log = Log(JsonlStore(path))
    log.acquire()
    log.append("notice", {"kind": "before", "text": "t"})
    log.flush()
    size = path.stat().st_size
    log.append_batch([("notice", {"kind": str(n), "text": '},"b":9,"c":"'}) for n in range(4)])
    log.release()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: 3 + last]) + lines[3 + last][:20])
    again = Log(JsonlStore(path))
    assert len(again) == 1
    assert again.torn is not None
    assert again.torn.position == size
    assert again.verify().ends == "torn"
    again.acquire()
    assert path.stat().st_size == size
    again.append("notice", {"kind": "after", "text": "t"})
    again.release()
    assert [e.data.kind for e in Log(JsonlStore(path)).events] == ["before", "after"]


def test_a_whole_batch_is_read_whatever_its_data_look_like(path: Path):
    log = Log(JsonlStore(path))
    log.acquire()
    data: dict[str, Any] = {"kind": "k", "text": "t", "ref": {"a": {}, "b": 7, "c": "01234567"}}
    log.append_batch([("notice", dict(data)) for _ in range(3)])
    log.append("notice", dict(data))
    log.release()
    assert len(Log(JsonlStore(path))) == 4


def test_a_batch_in_a_batch_is_refused(path: Path):
    lines = [NOTICE % 0 + b',"b":2', NOTICE % 1 + b',"b":1', NOTICE % 2]
    path.write_bytes(sealed(HEADER, *lines))
    with pytest.raises(CorruptLogError, match="event 1: a batch begins inside a batch"):
        Log(JsonlStore(path))


def test_unknown_types_are_read_if_they_say_that_they_may_be_ignored(path: Path):
    path.write_bytes(sealed(HEADER, b'{"seq":0,"ts":5,"type":"new/thing","data":{"x":1},"i":1'))
    log = Log(JsonlStore(path))
    assert log.verify().ok
    assert (log.events[0].type, log.events[0].data) == ("new/thing", {"x": 1})
    path.write_bytes(sealed(HEADER, b'{"seq":0,"ts":5,"type":"new/thing","data":{"x":1}'))
    with pytest.raises(FormatError, match=r"event 0 has the unknown type 'new/thing'.*update"):
        Log(JsonlStore(path))


def test_unknown_types_are_appended_only_if_they_may_be_ignored(path: Path):
    log = Log(JsonlStore(path))
    log.acquire()
    for type_, ignorable in (("new/thing", False), ("assistant/chunks", True)):
        with pytest.raises(SessionError, match="there is no such type"):
            log.append(type_, {"text": "", "len": []}, ignorable=ignorable)
    log.append('odd"\n', {"x": 1}, ignorable=True)
    log.release()
    assert Log(JsonlStore(path)).lines == log.lines


@pytest.mark.parametrize("more", [b"", b'{"seq":0,"whatever":true}\n'])
def test_a_newer_format_is_refused_with_the_way_out(path: Path, more: bytes):
    path.write_bytes(b'{"nbagent":2,"key":"new"}\n' + more)
    with pytest.raises(FormatError, match="has format 2, this nbagent reads format 1: update"):
        nb.Session.open(path)
    assert not verify(path.read_bytes().splitlines()[0], []).ok


FOREIGN = [
    b"\x89PNG\r\n\x1a\n\x00\x00",
    b"\x00" * 100,
    b"\n",
    b'{"role":"user","content":"hi"}\n{"role":"assistant"}\n',
    b'\xef\xbb\xbf{"nbagent":1}\n',
    b'["nbagent"]\n',
    b"hello",
    b'{"nbagent":1}\n',
    b'{"nbagent":null,"id":"a","created":1}\n',
    b'{"nbagent":1,"id":"a","created":"yesterday"}\n',
    b'{"nbagent":\n',
]


@pytest.mark.parametrize("content", FOREIGN)
def test_a_file_of_something_else_is_refused_and_left_alone(path: Path, content: bytes):
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"log\.jsonl"):
        nb.Session.open(path)
    assert path.read_bytes() == content
    assert not path.with_name("log.jsonl.lock").exists()


def test_an_empty_file_becomes_a_session(path: Path):
    path.touch()
    session = nb.Session.open(path)
    assert len(session.events) == 0
    agent_of("hello").run_sync("hi", session=session)
    session.close()
    assert Log(JsonlStore(path)).id == session.id


def test_paths_that_lead_nowhere_name_themselves(tmp_path: Path):
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    with pytest.raises(SessionError, match=r"can't read .*folder\.jsonl: Is a directory"):
        nb.Session.open(folder)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SessionError, match=r"can't read .*a\.jsonl: Not a directory"):
        nb.Session.open(file / "a.jsonl")
    circle = tmp_path / "circle.jsonl"
    circle.symlink_to(circle)
    with pytest.raises(SessionError, match=r"circle\.jsonl"):
        nb.Session.open(circle)
    with pytest.raises(SessionError, match=r"can't read .*File name too long"):
        nb.Session.open(tmp_path / ("x" * 300 + ".jsonl"))


def test_events_read_lazily_equal_those_that_were_appended(path: Path, write: Any):
    log: Log = write(path)
    log.release()
    for event, again in zip(log.events, Log(JsonlStore(path)).events, strict=True):
        assert event == again
        assert (event.data, event.seq) == (again.data, again.seq)
        assert orjson.loads(event.line) == event.record


def test_gaps_are_refused(path: Path, write: Callable[..., Log]):
    write(path).release()
    lines = path.read_bytes().splitlines(keepends=True)
    for gone in range(1, len(lines) - 1):
        path.write_bytes(b"".join([*lines[:gone], *lines[gone + 1 :]]))
        with pytest.raises(CorruptLogError, match=r"is due, \d+ stands there"):
            nb.Session.open(path)

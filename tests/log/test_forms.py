"""The two forms of an event say the same, byte for byte."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbagent.errors import SessionError
from nbagent.events.disk import Writer, chunk_data, expand
from nbagent.log import Log, verify
from nbagent.stores.jsonl import JsonlStore

START = 1_796_031_533_000
ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=6)
KINDS = st.sampled_from(["text", "thinking", "name", "arguments", "other"])
CHUNKS = st.lists(st.tuples(st.integers(0, 2), KINDS, ANY_TEXT), max_size=12)
ELAPSED = st.one_of(
    st.integers(0, 40), st.integers(-3000, 3000), st.integers(-START, 1 << 41), st.just(0)
)
KEYS = {"text": "text", "thinking": "thinking", "name": "call", "arguments": "arguments"}

each = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def clock_of(steps: list[int]) -> Callable[[], int]:
    times = itertools.accumulate(itertools.chain([START], itertools.cycle(steps)))
    return lambda: next(times)


def records_of(log: Log, cuts: list[int]) -> list[bytes]:
    """The records of a log that was flushed at these lengths."""
    writer, records = Writer(log.header["created"]), list[bytes]()
    for cut in sorted({min(cut, len(log)) for cut in cuts} | {len(log)}):
        more, writer = writer.records(log.lines[:cut])
        records += more
    return records


def check(log: Log, cuts: list[int]) -> list[bytes]:
    records = records_of(log, cuts)
    assert expand(log.header_line, log.header["created"], records) == log.lines
    assert verify(log.header_line, records).ok
    assert verify(log.header_line, log.lines).ok
    return records


def test_a_line_is_plain_json_with_a_chained_checksum():
    log = Log(id_="s1", clock=lambda: START)
    log.append("session/end-seed", {})
    log.append("note", {"source": "s", "kind": "k", "data": "ü"}, ignorable=True)
    assert log.header_line == b'{"nbagent":1,"projection":1,"id":"s1","created":1796031533000}'
    assert log.lines == [
        b'{"seq":0,"ts":1796031533000,"type":"session/end-seed","data":{},"c":"fa2a923d"}',
        '{"seq":1,"ts":1796031533000,"type":"note","data":{"source":"s","kind":"k","data":"ü"},'
        '"i":1,"c":"31d8a4b7"}'.encode(),
    ]


def test_a_run_of_chunks_is_one_record_and_the_answer_refers_to_it(begin_attempt: Any):
    log = Log(clock=clock_of([0, 0, 0, 0, 0, 20, 36, -1, 5]))
    begin_attempt(log)
    for piece in ("Hel", "lo", "."):
        log.append("assistant/chunk", chunk_data(0, "text", piece))
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    log.append("assistant/message", {"message": {"role": "assistant", "text": "Hello."}})
    run, _, answer = map(orjson.loads, check(log, [])[5:])
    del run["c"], answer["c"]
    data = {"text": "Hello.", "len": [3, 2, 1], "dt": "(36)(-1)"}
    assert run == {"seq": 5, "n": 3, "dt": 20, "type": "assistant/chunks", "data": data}
    assert answer["data"] == {"message": {"role": "assistant", "text": 0}}


def test_a_run_is_closed_after_a_second(begin_attempt: Any):
    log = Log(clock=clock_of([400]))
    begin_attempt(log)
    for n in range(8):
        log.append("assistant/chunk", chunk_data(0, "text", str(n)))
    counts = [orjson.loads(record).get("n", 1) for record in check(log, [])]
    assert counts[5:] == [3, 3, 2]


@each
@given(CHUNKS, st.lists(ELAPSED, min_size=1), st.lists(st.integers(5, 20)), st.data())
def test_any_chunks_and_an_answer_of_their_texts_come_back(
    begin_attempt: Any, chunks: list[Any], steps: list[int], cuts: list[int], data: st.DataObject
):
    log = Log(clock=clock_of(steps))
    begin_attempt(log)
    texts: dict[tuple[int, str], str] = {}
    for index, kind, text in chunks:
        log.append("assistant/chunk", chunk_data(index, kind, text))
        texts[index, kind] = texts.get((index, kind), "") + text
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    known = st.sampled_from([*texts.values(), "0", '"text":0', "other"])
    parts = [
        {KEYS[kind]: data.draw(known), "id": data.draw(known)}
        for kind in data.draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=4))
    ]
    message = {"role": "assistant", "text": data.draw(known), "parts": parts}
    log.append("assistant/draft", {"message": message})
    log.append("attempt/discarded", {"why": data.draw(known)})
    calls = [p for p in parts if "call" in p]
    for part in calls:
        part["arguments"] = data.draw(known)
    log.append("assistant/message", {"message": message, "source": data.draw(known)})
    check(log, cuts)


@each
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999), ANY_TEXT), max_size=60))
def test_any_walk_is_read_back_from_the_file(
    walk: Any, state: Any, tmp_path_factory: pytest.TempPathFactory, draws: list[Any]
):
    path = tmp_path_factory.mktemp("walk") / "a.jsonl"
    log = Log(JsonlStore(path), clock=clock_of([0, 3, -1, 70]))
    log.acquire()
    walk(log, draws)
    log.release()
    again = Log(JsonlStore(path))
    assert again.lines == log.lines
    assert state(again.folds) == state(log.folds)
    report = log.verify()
    assert (report.ok, report.events) == (True, len(log))


@each
@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999), ANY_TEXT), max_size=60))
def test_folding_goes_on_where_it_ended(
    walk: Any, state: Any, tmp_path_factory: pytest.TempPathFactory, draws: list[Any]
):
    path = tmp_path_factory.mktemp("walk") / "a.jsonl"
    log = Log(JsonlStore(path))
    log.acquire()
    walk(log, draws[: len(draws) // 2])
    log.release()
    follower = Log(JsonlStore(path))
    log.acquire()
    walk(log, draws[len(draws) // 2 :])
    log.release()
    follower.acquire()
    assert follower.lines == log.lines
    assert state(follower.folds) == state(log.folds)
    follower.release()


def test_chunks_that_a_run_could_not_give_back_are_written_as_they_are(begin_attempt: Any):
    log = Log()
    begin_attempt(log)
    log.append("assistant/chunk", {"text": "a", "index": 0})
    log.append("assistant/chunk", {"text": "b", "kind": "text"})
    log.append("assistant/chunk", {"text": "c", "more": 1})
    log.append("assistant/chunk", {"text": "d"}, ignorable=True)
    log.append("assistant/chunk", {"text": "e"}, ignorable=True)
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    log.append("assistant/message", {"message": {"role": "assistant", "text": "abcde"}})
    assert check(log, [])[-1].count(b"abcde") == 0
    assert b"assistant/chunks" not in b"".join(check(log, []))


def test_a_long_answer_in_many_chunks_is_stored_once(begin_attempt: Any):
    log = Log(clock=lambda: START)
    begin_attempt(log)
    for _ in range(5_000):
        log.append("assistant/chunk", chunk_data(0, "text", "x" * 40 + "\n\"é\U0001f600\0'"))
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    text = ("x" * 40 + "\n\"é\U0001f600\0'") * 5_000
    log.append("assistant/message", {"message": {"role": "assistant", "text": text}})
    assert len(b"".join(check(log, []))) < 1.25 * len(orjson.dumps(text))


def test_a_text_of_a_megabyte_is_read_back(begin_attempt: Any):
    log = Log()
    begin_attempt(log)
    text = 'é"\\' * 350_000
    for piece in (text, "", text):
        log.append("assistant/chunk", chunk_data(1, "text", piece))
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    log.append("assistant/message", {"message": {"role": "assistant", "text": text * 2}})
    check(log, [6, 7])


def test_half_characters_are_replaced_before_anything_sees_them(begin_attempt: Any, path: Path):
    log = Log(JsonlStore(path))
    log.acquire()
    begin_attempt(log)
    for piece in ("\ud83d", "\ude00", "\ud83d\ude00"):
        log.append("assistant/chunk", chunk_data(0, "text", piece))
    log.append("attempt/end", {"finish": "stop", "duration_ms": 1.0})
    log.append("assistant/message", {"message": {"role": "assistant", "text": "\ud83d\ude00"}})
    log.release()
    assert [e.data.text for e in log.events if e.type == "assistant/chunk"] == ["�", "�", "😀"]
    assert Log(JsonlStore(path)).folds.surface.nodes[-1] == log.folds.surface.nodes[-1]
    assert orjson.loads(log.folds.surface.nodes[-1])["text"] == "😀"


def test_events_that_stand_or_fall_together_say_so_in_their_first():
    log = Log()
    log.append_batch([("notice", {"kind": str(n), "text": "t"}) for n in range(3)])
    assert [b'"b":2' in line for line in log.lines] == [True, False, False]
    check(log, [])


def test_of_a_batch_with_an_event_that_cannot_come_nothing_is_added(state: Any):
    log = Log()
    log.append("turn/start", {"turn": 1, "run": 1})
    before = (list(log.lines), state(log.folds))
    with pytest.raises(SessionError, match="turn 1 is still open"):
        log.append_batch([("step/start", {"turn": 1, "step": 1}), ("turn/start", {"turn": 2})])
    assert (log.lines, state(log.folds)) == before
    log.append("step/start", {"turn": 1, "step": 1})
    check(log, [])

"""`verify` never raises, and names the event of every alteration."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbagent as nb
from nbagent.errors import SessionError
from nbagent.events.disk import expand
from nbagent.log import Log, Report, verify
from nbagent.stores.jsonl import JsonlStore

pytestmark = pytest.mark.damages_files

Forms = tuple[bytes, dict[str, list[bytes]]]
FORMS = ("lines", "records")


@pytest.fixture(scope="module")
def forms(write: Any, tmp_path_factory: pytest.TempPathFactory) -> Forms:
    """A log: its header, and its events in both forms."""
    path = tmp_path_factory.mktemp("verify") / "log.jsonl"
    clock = count(1_796_031_533_000, 7)
    log: Log = write(path, clock=lambda: next(clock))
    log.release()
    header, *records = path.read_bytes().splitlines()
    return header, {"lines": list(log.lines), "records": records}


def seqs_of(record: bytes) -> list[int]:
    value = orjson.loads(record)
    return list(range(value["seq"], value["seq"] + value.get("n", 1)))


def named(report: Report) -> list[int]:
    assert not report.ok
    return [seq for seq, _ in report.problems]


def changes(value: Any) -> list[Any]:
    """Everything that a JSON value can become by one change."""
    if isinstance(value, str):
        return [value + "x", "y" + value[1:], 5, None]
    if not isinstance(value, dict | list):
        return [value + 1, -value, 10**9, "x", None, [], {}]
    given = cast("Any", value)  # a JSON object or list
    out: list[Any] = [{**given, "new": 1} if isinstance(value, dict) else [*given, 0]]
    for key in list(given) if isinstance(value, dict) else range(len(given)):
        less = given.copy()
        del less[key]
        out.append(less)
        for changed in changes(given[key]):
            other = given.copy()
            other[key] = changed
            out.append(other)
    return out


@pytest.mark.parametrize("form", FORMS)
def test_each_change_of_each_field_is_named(forms: Forms, form: str):
    header, records = forms[0], forms[1][form]
    lines = forms[1]["lines"]
    tried = 0
    for place, record in enumerate(records):
        for changed in changes(orjson.loads(record)):
            altered = [*records[:place], orjson.dumps(changed), *records[place + 1 :]]
            report = verify(header, altered)
            tried += 1
            if report.ok:  # it may say the same in other words, as an elapsed time of -0
                created = orjson.loads(header)["created"]
                assert expand(header, created, altered) == lines, changed
            else:
                assert set(named(report)) & set(seqs_of(record)), (record, changed, report)
    assert tried > 1000


@pytest.mark.parametrize("form", FORMS)
def test_each_record_left_out_doubled_or_moved_is_named(forms: Forms, form: str):
    header, records = forms[0], forms[1][form]
    for place, record in enumerate(records[:-1]):
        rest = records[place + 1 :]
        here, after = seqs_of(record), seqs_of(rest[0])
        assert named(verify(header, [*records[:place], *rest])) == here[:1]
        assert named(verify(header, [*records[: place + 1], record, *rest])) == after[:1]
        swapped = [*records[:place], rest[0], record, *rest[1:]]
        assert named(verify(header, swapped)) == here[:1]


@pytest.mark.parametrize("form", FORMS)
def test_each_change_of_the_header_is_named(forms: Forms, form: str):
    header, records = forms[0], forms[1][form]
    for changed in changes(orjson.loads(header)):
        assert named(verify(orjson.dumps(changed), records)) == [0]
    for broken in (b"", b"{", b"[]", b"5", b"null", b"\xff", header + b" "):
        assert named(verify(broken, records)) == [0]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_damage_makes_it_raise_or_goes_unseen(forms: Forms, data: st.DataObject):
    header = forms[0]
    records = forms[1][data.draw(st.sampled_from(FORMS))]
    content = bytearray(b"\n".join([header, *records]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        end = at + data.draw(st.integers(0, 12))
        content[at:end] = data.draw(st.one_of(st.binary(max_size=4), st.just(b'":1,"')))
    first, *rest = bytes(content).split(b"\n")
    report = verify(first, rest)
    if report.ok:
        created = orjson.loads(header)["created"]
        assert first == header
        found = expand(header, created, rest)
        assert found == forms[1]["lines"][: len(found)]


KEYS = st.sampled_from(
    ["seq", "ts", "n", "dt", "type", "data", "c", "i", "b", "text", "len", "block", "message"]
)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@settings(max_examples=150, deadline=None)
@given(JSON, st.sampled_from(["assistant/chunks", "assistant/message", "x"]))
def test_no_json_makes_it_raise(value: Any, type_: str):
    header = orjson.dumps({"nbagent": 1, "id": "a", "created": 1})
    for record in (value, {"seq": 0, "type": type_, "data": value}):
        assert not verify(header, [orjson.dumps(record)]).ok
        assert not verify(orjson.dumps(record), []).ok


def test_a_run_that_claims_to_be_huge_takes_no_memory(forms: Forms):
    header, records = forms[0], list(forms[1]["records"])
    place = next(n for n, r in enumerate(records) if b"assistant/chunks" in r)
    run = orjson.loads(records[place])
    for n, blocks in ((10**15, None), (3, [[0, "text", 10**15]]), (-5, None), (1 << 63, None)):
        run["n"] = n
        if blocks:
            run["data"]["block"] = blocks
        altered = [*records[:place], orjson.dumps(run), *records[place + 1 :]]
        assert named(verify(header, altered)) == [run["seq"]]


def test_a_session_sees_what_happens_to_its_file(path: Path, write: Any):
    log: Log = write(path)
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert log.verify().ok
    path.write_bytes(whole.replace(b'"source":"readonly"', b'"source":"READONLY"', 1))
    assert len(named(log.verify())) == 1
    path.write_bytes(b"".join(lines[:-2]))
    (seq, what), *_ = log.verify().problems
    assert (seq, what) == (len(log) - 2, "the log ends here, 2 records behind it are missing")
    path.write_bytes(whole.replace(b'"id":"', b'"id":"f', 1))
    assert "was altered, or is another log now" in log.verify().problems[0][1]
    path.unlink()
    assert "was removed" in log.verify().problems[0][1]
    path.mkdir()
    assert "Is a directory" in log.verify().problems[0][1]
    path.rmdir()
    path.write_bytes(whole)
    assert log.verify().ok
    log.release()


def test_what_is_not_written_yet_is_verified_too(path: Path, write: Any):
    log: Log = write(path)
    log.append("notice", {"kind": "k", "text": "t"})
    assert log.verify() == Report(True, (), "idle", len(log))
    whole = log.lines[-1]
    log.lines[-1] = whole.replace(b'"t"', b'"u"')
    assert named(log.verify()) == [len(log) - 1]
    log.lines[-1] = whole
    log.release()


def test_how_a_log_ends_is_told(path: Path, write: Any):
    log: Log = write(path)
    assert log.verify().ends == "idle"
    log.append("turn/start", {"turn": 2, "run": 2})
    assert log.verify().ends == "inside turn 2"
    log.release()
    assert Log(JsonlStore(path)).verify().ends == "inside turn 2"


def test_a_session_in_memory_verifies_its_lines():
    session = nb.Session()
    session.log.append("session/end-seed", {})
    assert session.verify() == Report(True, (), "idle", 1)
    session.log.lines[0] = session.log.lines[0].replace(b"seed", b"seeds")
    assert named(session.verify()) == [0]
    session.log.lines.clear()


def test_an_event_out_of_order_is_refused_and_leaves_no_trace(state: Any):
    log = Log()
    before = state(log.folds)
    with pytest.raises(SessionError, match="event `step/start` can't come now: that turn is not"):
        log.append("step/start", {"turn": 1, "step": 1})
    assert (len(log), state(log.folds)) == (0, before)

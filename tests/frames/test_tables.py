"""Tables: names, dtypes and rows, whatever the log holds and wherever it ends."""

from __future__ import annotations

import json
import threading
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from nbagent.errors import ConfigError
from nbagent.events import model
from nbagent.frames import TABLES, Column, describe, table
from nbagent.log import Log

DTYPES = {
    "int": "Int64",
    "float": "Float64",
    "bool": "boolean",
    "text": "string",
    "category": "category",
    "time": "datetime64[ms, UTC]",
}

FIXED = {
    "tools": (
        "name ref position args_json effective_args_json result status error_type decision "
        "decision_source dedup digest_id deliver_id truncated result_chars duration_ms approval_wait_ms"
    ),
    "verdicts": "reviewer action reason detail draft tally",
    "attempts": (
        "purpose cause model finish failure discarded input_tokens output_tokens cache_read_tokens "
        "cost_usd priced estimated duration_ms time_to_first_token_ms"
    ),
    "approvals": "name risk decision source reason args_json wait_ms",
}


def values(frame: pd.DataFrame, column: str) -> list[Any]:
    """A column's values, None where one is missing."""
    return [None if pd.isna(value) else value for value in frame[column].tolist()]


def check_dtypes(frame: pd.DataFrame, name: str) -> None:
    kinds = {column.name: DTYPES[column.kind] for column in TABLES[name].columns}
    assert {column: str(dtype) for column, dtype in frame.dtypes.items()} == kinds
    assert frame.attrs["schema"] == f"nbagent.{name}/1"
    for column in TABLES[name].columns:
        if column.kind == "category":
            assert (
                tuple(frame[column.name].cat.categories)[: len(column.categories)]
                == column.categories
            )


LEADING = {
    "steps": "turn step user_text text n_calls stop",
    "events": "turn step attempt type data_json",
    "messages": "turn step role name text",
    "attempts": "turn step attempt cause model finish",
    "tools": "turn step name args_json result status decision",
    "verdicts": "turn step attempt reviewer action reason",
    "approvals": "turn step name args_json decision source",
    "compactions": "turn step strategy",
    "usage": "model purpose attempts",
    "notes": "turn step source kind text",
}


@pytest.mark.parametrize("name", TABLES)
def test_what_is_looked_at_comes_first_and_ids_last(name: str):
    names = [column.name for column in TABLES[name].columns]
    leading = LEADING[name].split()
    assert names[: len(leading)] == leading
    ids = [i for i in ("session_id", "seq", "ts") if i in names]
    assert names[-len(ids) :] == ids
    assert set(FIXED.get(name, "").split()) <= set(names)
    assert len(set(names)) == len(names)
    assert all(column.doc for column in TABLES[name].columns)


@pytest.mark.parametrize("name", TABLES)
def test_the_short_columns_are_about_eight_in_the_tables_order(name: str, rich: Any):
    frame = table(rich.log, name, columns="short")
    assert 6 <= len(frame.columns) <= 9
    assert frame.attrs["schema"] == f"nbagent.{name}/1"
    whole = table(rich.log, name)
    in_order = [column for column in whole.columns if column in set(frame.columns)]
    assert sorted(frame.columns) == sorted(in_order)
    assert_frame_equal(pd.DataFrame(frame), whole[list(frame.columns)])


@pytest.mark.parametrize("name", TABLES)
def test_an_empty_log_gives_columns_and_dtypes(name: str):
    frame = table(Log(), name)
    assert frame.empty
    check_dtypes(frame, name)


@pytest.mark.parametrize("name", TABLES)
def test_dtypes_do_not_depend_on_the_content(name: str, rich: Any):
    check_dtypes(table(rich.log, name), name)


@pytest.mark.parametrize("name", TABLES)
def test_parquet_gives_back_what_it_got(name: str, rich: Any, tmp_path: Path):
    frame = table(rich.log, name)
    path = tmp_path / "table.parquet"
    frame.to_parquet(path)
    back = pd.read_parquet(path)
    assert back.attrs == frame.attrs
    if frame.empty:  # of a dictionary without rows, parquet keeps no categories
        assert [str(dtype) for dtype in back.dtypes] == [str(dtype) for dtype in frame.dtypes]
    else:
        assert_frame_equal(frame, back)


@pytest.mark.parametrize("name", TABLES)
def test_a_log_may_end_anywhere(name: str, rich: Any):
    for end in range(len(rich.log) + 1):
        check_dtypes(table(rich.log, name, 0, end), name)
        check_dtypes(table(rich.log, name, end), name)


def test_an_unknown_table_is_named_with_those_there_are(writer: Any):
    with pytest.raises(ConfigError, match=r"did you mean 'tools'.*verdicts"):
        table(writer.log, "tool")
    with pytest.raises(ConfigError, match=r"no column of .tools. 'nam'; did you mean 'name'"):
        table(writer.log, "tools", columns=["nam"])
    with pytest.raises(ConfigError, match=r"\"short\" or a list of names, not 'name'"):
        table(writer.log, "tools", columns="name")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"did you mean 'tools'"):
        describe("tool")


def test_events_have_their_place_and_their_data_as_it_stands_in_the_log(rich: Any):
    frame = table(rich.log, "events")
    assert frame["seq"].tolist() == list(range(len(rich.log)))
    rows: Any = frame.itertuples()
    for event, row in zip(rich.log.events, rows, strict=True):
        where = tuple(n or None for n in rich.log.folds.turn.where(event.seq))
        assert tuple(None if pd.isna(n) else n for n in (row.turn, row.step, row.attempt)) == where
        assert row.type == event.type
        assert row.data_json.encode() in event.line
        assert json.loads(row.data_json) == event.record["data"]
    assert frame["ts"].iloc[0] == pd.Timestamp(1_796_031_533_007, unit="ms", tz="UTC")
    assert frame["session_id"].unique().tolist() == ["s1"]


def test_an_unknown_event_type_is_added_to_the_categories(writer: Any):
    writer.add("future/thing", ignorable=True, x=1)
    frame = table(writer.log, "events")
    assert values(frame, "type") == ["future/thing"]
    assert values(frame, "data_json") == ['{"x":1}']


def test_tools_tell_what_became_of_each_call(rich: Any):
    frame = table(rich.log, "tools")
    assert values(frame, "name") == ["search", "search", "publish", "nothing"]
    assert values(frame, "position") == [0, 1, 2, 3]
    assert values(frame, "status") == ["ok", "ok", "ok", "error"]
    assert values(frame, "result")[:3] == ["first", "second", "0123… cut"]
    assert values(frame, "raw") == [None, None, "0123456789", None]
    assert values(frame, "result_chars")[:3] == [5, 6, 10]
    assert values(frame, "truncated") == [False, False, True, False]
    assert values(frame, "decision") == ["allow", "allow", "allow", None]
    assert values(frame, "decision_source") == ["mode", "mode", "person", None]
    assert values(frame, "error_type") == [None, None, None, "UnknownTool"]
    assert values(frame, "duration_ms") == [5.0, 4.0, 1.0, 0.0]
    assert values(frame, "approval_wait_ms") == [None, None, 250.0, None]
    assert values(frame, "dedup") == ["none"] * 4
    assert values(frame, "attempt") == [2] * 4
    assert values(frame, "ref") == [
        "cap://tool/local/search@1",
        "cap://tool/local/search@1",
        "cap://tool/files/publish@1",
        None,
    ]


def test_arguments_are_as_written_and_as_they_counted(rich: Any):
    frame = table(rich.log, "tools")
    assert values(frame, "args_json")[2:] == ['{"path": "x", "text": "é"}', '{"broken']
    effective = values(frame, "effective_args_json")
    assert effective[0] == '{"query": "a"}'
    assert json.loads(effective[2]) == {"path": "x", "text": "é", "mode": "new"}
    assert effective[3] is None


def test_edited_arguments_are_what_counted(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.answer("", ("publish", '{"path":"x"}'))
    w.add("tool/call", position=0)
    w.reply(w.question(0, {"path": "x"}), "allow", arguments={"path": "y"})
    w.add("tool/decision", position=0, decision="allow", source="person", arguments={"path": "y"})
    assert values(table(w.log, "tools"), "effective_args_json") == ['{"path":"y"}']
    approvals = table(w.log, "approvals")
    assert values(approvals, "args_json") == ['{"path":"x"}']
    assert values(approvals, "edited_args_json") == ['{"path":"y"}']


def test_attempts_tell_why_there_was_another(rich: Any):
    frame = table(rich.log, "attempts")
    assert values(frame, "cause") == [None, "bounce", None, "retry", None]
    assert values(frame, "finish") == ["stop", "tool_calls", "error", "stop", "stop"]
    assert values(frame, "failure") == [None, None, "RateLimitError", None, None]
    assert values(frame, "failure_status") == [None, None, 429, None, None]
    assert values(frame, "discarded") == [True, False, True, False, False]
    assert values(frame, "discarded_why") == ["rejected", None, "failed", None, None]
    assert values(frame, "reasoning_tokens") == [4, 0, 0, 0, 0]
    assert values(frame, "reminders") == [0, 3, 0, 1, 0]
    assert values(frame, "text") == ["There are 3.", "let me see", None, "all done", "once more"]
    assert values(frame, "time_to_first_token_ms") == [None, 3.5, None, 3.5, 3.5]
    assert set(values(frame, "purpose")) == {"main"}
    assert values(frame, "model") == ["scripted"] * 5


def test_steps_sum_their_attempts(rich: Any):
    frame = table(rich.log, "steps")
    assert values(frame, "turn") == [1, 1, 2]
    assert values(frame, "run") == [1, 1, 2]
    assert values(frame, "user_text") == ["find and publish", None, "and again"]
    assert values(frame, "n_calls") == [4, 0, 0]
    assert values(frame, "attempts") == [2, 2, 1]
    assert values(frame, "tokens") == [29, 12, 12]
    assert values(frame, "stop") == [None, "end_turn", "end_turn"]
    assert all(ms > 0 for ms in values(frame, "duration_ms"))


def test_messages_are_the_history(rich: Any):
    frame = table(rich.log, "messages")
    nodes = [json.loads(line) for line in rich.log.folds.surface.nodes]
    assert values(frame, "role") == [each["role"] for each in nodes]
    assert values(frame, "seq") == rich.log.folds.surface.seqs
    assert values(frame, "text")[2:5] == ["first", "second", "0123… cut"]
    calls = json.loads(values(frame, "calls_json")[1])
    assert calls[0] == {"name": "search", "arguments": '{"query": "a"}', "id": "c0"}
    assert values(frame, "replaced") == [False] * len(frame)


def test_the_source_of_a_steered_message_is_kept(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.answer("", ("search", "{}"))
    w.call(0)
    w.result(0, "x")
    w.close()
    w.items += 1
    w.send("next_step", {"role": "user", "text": "look here"}, source="steer")
    w.add("agent/inbox/spliced", target="next_step", start=0, removed=1)
    w.begin()
    w.add("user/message", id="m2")
    assert values(table(w.log, "messages"), "source") == [None, None, None, "steer"]


def test_verdicts_show_what_was_judged(rich: Any):
    frame = table(rich.log, "verdicts")
    assert values(frame, "reviewer") == ["no_numbers"]
    assert values(frame, "draft") == ["There are 3."]
    assert values(frame, "tally") == [1]
    assert values(frame, "text") == ["No digits."]


def test_a_forced_answer_is_the_steps_but_not_the_attempts(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.end()
    w.add("assistant/draft", message={"role": "assistant", "text": "bad"})
    w.log.append("review/verdict", model.verdict("guard", "force", "no", text="No."))
    w.add("attempt/discarded", why="forced")
    w.add("assistant/message", message={"role": "assistant", "text": "No."}, source="reviewer")
    w.close("end_turn")
    assert values(table(w.log, "attempts"), "text") == ["bad"]
    steps = table(w.log, "steps")
    assert (values(steps, "text"), values(steps, "source")) == (["No."], ["reviewer"])


def test_every_decision_is_a_row_of_approvals(rich: Any):
    frame = table(rich.log, "approvals")
    assert values(frame, "name") == ["search", "search", "publish"]
    assert values(frame, "asked") == [False, False, True]
    assert values(frame, "decision") == ["allow", "allow", "always_allow"]
    assert values(frame, "source") == ["mode", "mode", "person"]
    assert values(frame, "reason") == [None, None, "fine"]
    assert values(frame, "wait_ms") == [None, None, 250.0]
    assert values(frame, "risk") == ["readonly", "readonly", "mutating"]


def test_an_open_question_has_no_decision_and_its_call_no_status(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.answer("", ("publish", "{}"), ("publish", "{}"))
    w.add("tool/call", position=0)
    first = w.question(0, {})
    w.add("tool/call", position=1)
    w.question(1, {})
    w.reply(first, "allow", by="handler-x")
    w.question(0, {}, nth=2)
    approvals = table(w.log, "approvals")
    assert values(approvals, "position") == [0, 1, 0]
    assert values(approvals, "decision") == ["allow", None, None]
    assert values(approvals, "source") == ["handler-x", None, None]
    assert values(table(w.log, "tools"), "status") == [None, None]
    assert values(table(w.log, "tools"), "duration_ms") == [None, None]


def test_notes_and_notices_share_a_table(rich: Any):
    frame = table(rich.log, "notes")
    assert values(frame, "type") == ["note", "notice"]
    assert values(frame, "source") == ["publish", "nbagent"]
    assert json.loads(values(frame, "data_json")[0]) == {"bytes": 7, "deep": [1, {"a": None}]}
    assert values(frame, "text") == [None, "waiting 0.5 s"]


def test_usage_is_summed_by_model_and_purpose(rich: Any):
    frame = table(rich.log, "usage")
    assert values(frame, "model") == ["scripted"]
    assert values(frame, "attempts") == [5]
    assert values(frame, "model_calls") == [4]
    assert values(frame, "input_tokens") == [40]
    assert values(frame, "tokens") == [53]


def test_one_run_has_its_own_rows_and_finds_what_lies_before(rich: Any):
    start, log = rich.second, rich.log
    assert values(table(log, "steps", start), "text") == ["once more"]
    assert values(table(log, "steps", 0, start), "text") == ["let me see", "all done"]
    assert values(table(log, "messages", start), "text") == ["and again", "once more"]
    for late in ("turn/start", "step/start"):
        inside = next(e.seq for e in log.events[start:] if e.type == late)
        assert values(table(log, "messages", inside), "text")[0] == "and again"
    assert values(table(log, "attempts", start), "model") == ["scripted"]
    assert values(table(log, "usage", start), "tokens") == [12]
    assert table(log, "events", start, start + 3)["seq"].tolist() == [start, start + 1, start + 2]


def test_a_run_that_goes_on_inside_a_step_knows_its_calls(writer: Any):
    w = writer
    w.prompt("go")
    w.header()
    w.ask()
    w.answer("hm", ("search", "{}"), ("publish", '{"a":1}'))
    w.call(0)
    w.result(0, "x")
    w.add("tool/call", position=1)
    id_ = w.question(1, {"a": 1})
    start = len(w.log)
    w.reply(id_, "allow")
    w.log.append("tool/decision", {"position": 1, "decision": "allow", "source": "person"})
    w.result(1, "done")
    w.close("end_turn")
    tools = table(w.log, "tools", start)
    assert values(tools, "name") == ["publish"]
    assert values(tools, "result") == ["done"]
    assert values(table(w.log, "approvals", start), "decision") == ["allow"]
    assert values(table(w.log, "messages", start), "text") == ["done"]
    assert table(w.log, "attempts", start).empty
    assert values(table(w.log, "steps", start), "text") == ["hm"]


def test_hostile_text_comes_through_unchanged(writer: Any, tmp_path: Path):
    w = writer
    text = (
        '<script>alert("x")</script>\x1b[31m\x00\u202e ,"data":{},"c":"00000000"} '
        + "x" * 1_000_000
    )
    w.prompt("half a pair \ud800 and " + text)
    w.header()
    w.ask()
    w.answer(text, ("search", '{"a": [1, "x"]}'), ("search", '"text"'))
    w.call(0)
    w.add("tool/call", position=1)
    w.result(0, text)
    w.result(1, "[1, 2]", status="error", error="ArgumentsError")
    for name in TABLES:
        frame = table(w.log, name)
        frame.to_parquet(tmp_path / name)
        if len(frame):
            assert_frame_equal(frame, pd.read_parquet(tmp_path / name))
    assert values(table(w.log, "messages"), "text")[:2] == [f"half a pair \ufffd and {text}", text]
    assert values(table(w.log, "tools"), "result") == [text, "[1, 2]"]


def test_a_column_of_ones_own_is_added_by_adding_it(rich: Any):
    asked = Column("questions", "int", lambda call: len(call.questions), doc="Questions asked.")
    frame = table(rich.log, "tools", columns=["name", asked])
    assert list(frame) == ["name", "questions"]
    assert values(frame, "questions") == [0, 0, 1, 0]
    length = Column("line_bytes", "int", lambda entry: len(entry.line))
    TABLES["events"].columns.append(length)
    try:
        assert table(rich.log, "events")["line_bytes"].min() > 50
    finally:
        TABLES["events"].columns.remove(length)


def test_large_integers_stay_exact():
    at = attrgetter("seq")
    column = Column("n", "int", lambda entry: None if at(entry) else 2**62 + 1)
    log = Log()
    log.append("session/end-seed", {})
    log.append("session/end-seed", {})
    assert values(table(log, "events", columns=[column]), "n") == [2**62 + 1, None]


def test_a_table_can_be_made_while_the_log_grows(writer: Any):
    def write() -> None:
        for _ in range(5000):
            writer.notice("tick", "x")

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        seqs = table(writer.log, "notes", columns=["seq"])["seq"].tolist()
        assert seqs == list(range(len(seqs)))
    thread.join()
    assert len(table(writer.log, "notes")) == 5000


def test_the_log_is_decoded_once_per_line(rich: Any, monkeypatch: pytest.MonkeyPatch):
    import orjson

    from nbagent.frames import reading

    decoded: list[bytes] = []

    class Counting:
        @staticmethod
        def loads(line: bytes) -> Any:
            decoded.append(line)
            return orjson.loads(line)

    monkeypatch.setattr(reading, "orjson", Counting)
    table(rich.log, "events")
    assert len(decoded) == len(rich.log)


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_described_by_its_spec(name: str, rich: Any):
    described, frame = describe(name), table(rich.log, name)
    assert list(described.columns) == ["name", "dtype", "unit", "meaning"]
    assert described["name"].to_list() == list(frame.columns)
    assert described["dtype"].to_list() == [str(dtype) for dtype in frame.dtypes]
    assert described["meaning"].notna().all()
    units: dict[str, Any] = dict(zip(described["name"], described["unit"], strict=True))
    numbers = [c.name for c in TABLES[name].columns if c.kind in ("int", "float")]
    assert not [n for n in numbers if n.endswith(("_ms", "_usd", "tokens")) and pd.isna(units[n])]
    assert frame.empty or "ts" not in units or units["ts"] == "UTC"


def test_tables_are_listed_with_their_rows():
    listed = describe()
    assert listed["name"].to_list() == list(TABLES)
    assert listed["rows"].str.startswith("One row per").all()


def test_a_categorys_meaning_names_its_closed_set():
    meanings = describe("tools").set_index("name")["meaning"]
    assert "One of: ok, error, denied, timeout, aborted" in meanings["status"]


def test_an_empty_text_is_a_missing_one(rich: Any, writer: Any):
    for name in TABLES:
        frame = table(rich.log, name)
        assert not [c.name for c in TABLES[name].columns if "" in values(frame, c.name)]

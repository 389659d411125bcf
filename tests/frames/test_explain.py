"""Explanations: the request that was sent, from the lines alone."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from html.parser import HTMLParser
from typing import Any

import pytest

from nbagent.errors import ConfigError
from nbagent.frames import explain
from nbagent.messages import Call


def test_the_last_attempt_of_the_last_step_is_explained(rich: Any):
    found = explain(rich.log)
    assert (found.turn, found.step, found.attempt) == (2, 1, 1)
    assert found.session_id == "s1"
    assert found.model == "scripted"
    assert found.instructions == "Be brief."
    assert found.settings == {"temperature": 1}
    assert [tool.name for tool in found.tools] == ["search", "publish"]
    assert [message.role for message in found.history][:2] == ["user", "assistant"]
    assert found.history[-1].text == "and again"
    assert found.digest == rich.log.event(found.seq).data.surface_hash
    assert found.messages == (*found.history, *found.reminders)


def test_a_bounced_request_holds_draft_results_and_correction(rich: Any):
    found = explain(rich.log, step=1, turn=1)
    assert (found.attempt, found.cause) == (2, "bounce")
    draft, not_run, correction = found.reminders
    assert (draft.role, draft.text) == ("assistant", "There are 3.")
    assert draft.calls == (Call("search", "{}", "c0"),)
    assert (not_run.role, not_run.call_id) == ("tool", "c0")
    assert correction.source == "no-numbers"
    assert found.choice is not None
    assert found.choice.tool_choice == "search"
    assert [tool.name for tool in found.tools] == ["search"]
    assert [message.text for message in found.history] == ["find and publish"]


def test_what_changed_since_the_request_before(rich: Any):
    bounced = explain(rich.log, step=1, turn=1).changed
    assert bounced.added == ()
    assert [d.field for d in bounced.header] == ["choice.tool_choice", "choice.offered"]
    assert len(bounced.reminders_new) == 3
    later = explain(rich.log, step=2, turn=1, attempt=1).changed
    assert [d.field for d in later.header] == ["choice.tool_choice", "choice.offered"]
    assert [d.after for d in later.header] == [None, None]
    assert [message.role for _, message in later.added] == ["assistant", *["tool"] * 4]
    assert [rich.log.event(seq).type for seq, _ in later.added][:2] == [
        "assistant/message",
        "tool/result",
    ]
    assert len(later.reminders_gone) == 3
    repeated = explain(rich.log, step=2, turn=1, attempt=2).changed
    assert (repeated.added, [m.source for m in repeated.reminders_new]) == ((), ["budget"])
    run2 = explain(rich.log).changed
    assert [tuple(d) for d in run2.header] == [("settings.temperature", 0, 1)]
    assert run2.before == explain(rich.log, turn=1).seq


def test_the_first_request_has_none_before_it(rich: Any):
    changed = explain(rich.log, step=1, turn=1, attempt=1).changed
    assert changed.before is None
    assert {d.field for d in changed.header} >= {"model", "instructions", "tools.search"}
    assert "first request" in str(explain(rich.log, step=1, turn=1, attempt=1))


def test_a_run_of_the_session_is_explained_alone(rich: Any):
    assert explain(rich.log, end=rich.second).turn == 1
    assert explain(rich.log, start=rich.second).turn == 2
    with pytest.raises(ConfigError, match="turn 1 sent no request; there are requests of turn 2"):
        explain(rich.log, turn=1, start=rich.second)


def test_what_is_not_there_is_named(rich: Any, writer: Any):
    with pytest.raises(
        ConfigError, match="step 9 of turn 1 sent no request; its last step that did is 2"
    ):
        explain(rich.log, step=9, turn=1)
    with pytest.raises(ConfigError, match="has no attempt 7, only 2"):
        explain(rich.log, step=1, turn=1, attempt=7)


def test_a_log_without_requests_has_nothing_to_explain(writer: Any):
    with pytest.raises(ConfigError, match="no request was sent yet"):
        explain(writer.log)


def test_a_live_request_can_be_explained(writer: Any):
    writer.prompt("go")
    writer.header()
    writer.ask()
    assert explain(writer.log).history[0].text == "go"


def test_every_explained_request_is_what_verify_finds(rich: Any):
    assert rich.log.verify()
    sent = [event for event in rich.log.events if event.type == "request/sent"]
    for event in sent:
        data = event.data
        found = explain(rich.log, data.step, data.turn, data.attempt)
        assert found.seq == event.seq
        assert len(found.history) == len(found.history_seqs) == data.surface_len


def test_it_is_frozen_and_reads_as_text(rich: Any):
    found = explain(rich.log, step=1, turn=1)
    with pytest.raises(FrozenInstanceError):
        found.seq = 1  # type: ignore[misc]
    text = str(found)
    assert repr(found) == text
    assert text.startswith("Request of turn 1, step 1, attempt 2 (bounce)\n----")
    for part in (
        "Instructions\n",
        "Be brief.",
        "tools withheld: publish",
        "History: 1 message\n",
        "Reminders, in this request only: 3",
        "user [no-numbers]: <system-reminder>",
        "~ choice.tool_choice: new: search",
    ):
        assert part in text


def test_long_texts_and_histories_are_cut(writer: Any):
    w = writer
    w.prompt("x" * 5000)
    w.header()
    for _ in range(40):
        w.ask()
        w.answer("", ("search", "{}"))
        w.call(0)
        w.result(0, "r")
        w.close()
        w.begin()
    w.ask()
    text = str(explain(w.log))
    assert "… (4,200 more characters)" in text
    assert "61 messages more" in text
    assert len(text) < 6000


class _Tags(HTMLParser):
    """Collects what a browser would see."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_becomes_markup_or_reaches_the_terminal_raw(writer: Any):
    w = writer
    hostile = (
        '<script>alert(1)</script><img src=x onerror="x">\x1b]0;title\x07\x1b[31m\x00\u202e&amp;'
    )
    w.prompt(hostile)
    header: dict[str, Any] = {
        "model": hostile,
        "instructions": hostile,
        "tools": [{"name": hostile, "description": hostile, "parameters": {}, "risk": hostile}],
        "settings": {hostile: hostile},
    }
    w.add("request/header", header=header, reason="initial")
    w.ask(hostile, [{"role": "user", "text": hostile, "source": hostile}], {"tool_choice": hostile})
    found = explain(w.log)
    seen = _Tags()
    seen.feed(found._repr_html_())
    assert seen.tags <= {"div", "table", "tr", "th", "td"}
    assert "<script>alert(1)</script>" in seen.text
    for text in (str(found), found._repr_html_()):
        assert not {"\x1b", "\x00", "\u202e", "\x07"} & set(text)
        assert "U+202E" in text
        assert "title" not in text

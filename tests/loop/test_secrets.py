"""Secrets never enter a log: whatever way they take, the mark stands there, and the model reads it."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request

KEY = "sk-proj-0123456789abcdef"
MARK = "[secret APP_KEY]"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_KEY", KEY)


ran: list[Any] = []


@nb.tool(risk="mutating")
def send(text: str, ctx_free: int = 0) -> str:
    """Send."""
    ran.append(text)
    return f"sent {text}"


@nb.tool(risk="readonly")
async def read(ctx_free: int = 0) -> dict[str, str]:
    """Read."""
    return {"key": KEY}


@nb.tool(risk="readonly")
def fail(ctx_free: int = 0) -> str:
    """Fail."""
    msg = f"can't log in with {KEY}"
    raise ValueError(msg)


@nb.tool(risk="readonly")
def remark(ctx: nb.ToolContext) -> str:
    """Remark."""
    ctx.note("found", {"key": KEY, KEY: 1})
    return "ok"


TOOLS = [send, read, fail, remark]


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    ran.clear()
    return nb.Agent(nb.models.Scripted(list(replies)), tools=TOOLS, **settings)


def clean(result: nb.Result) -> str:
    """The whole log as text, which holds no secret and is well."""
    lines = b"\n".join(result.session.log.lines).decode()
    assert "0123456789abcdef" not in lines
    assert "0123456789abcdef" not in repr(result) + str(result.messages)
    assert result.session.verify().ok
    return lines


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - a run tells nobody that it asks
            await asyncio.sleep(0)


def requests(agent: nb.Agent) -> list[Request]:
    model: Any = agent._spec.model
    return model.requests


async def test_a_prompt_a_steer_and_the_instructions_are_masked_and_the_model_reads_the_mark():
    agent = agent_of("one", "two", instructions=f"Use {KEY}.")
    run = agent.start(f"log in with {KEY}")
    run.followup(f"and {KEY}")
    result = await run
    assert MARK in clean(result)
    assert requests(agent)[0].instructions == f"Use {MARK}."
    assert requests(agent)[0].messages[0].text == f"log in with {MARK}"


@pytest.mark.parametrize("tool", ["read", "fail", "remark"])
async def test_results_errors_and_notes_are_masked(tool: str):
    agent = agent_of(nb.call(tool), "done")
    result = await agent.run("go")
    assert MARK in clean(result)
    if tool != "remark":
        assert MARK in requests(agent)[1].messages[-1].text


class Pieces:
    """A model that sends its answers in pieces of `size` characters."""

    window = None
    name = "pieces"

    def __init__(self, size: int, *answers: nb.Message) -> None:
        self.size, self.answers = size, list(answers)

    def prepare(self, request: Request) -> Prepared:
        return Prepared(request, None, None)

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        answer = self.answers.pop(0)
        for index, part in enumerate(answer.parts):
            texts = {"text": part.text} if isinstance(part, nb.Text) else {}
            if isinstance(part, nb.Thinking):
                texts = {"thinking": part.text}
            if isinstance(part, nb.Call):
                texts = {"name": part.name, "arguments": part.arguments}
            for kind, text in texts.items():
                for at in range(0, len(text), self.size):
                    yield Delta(text[at : at + self.size], index, kind)
            if isinstance(part, nb.Call):
                yield Block(nb.Call("", "", part.id), index)
        yield End("tool_calls" if answer.calls else "stop")


class Stuck(Pieces):
    """Sends the beginning of its answer, and nothing more."""

    begun = False

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        yield Delta(self.answers[0].text[: self.size], 0, "text")
        self.begun = True
        await asyncio.sleep(30)


async def test_an_answer_interrupted_while_its_text_is_held_back_costs():
    model = Stuck(9, nb.Message("assistant", KEY))
    run = nb.Agent(model).start("go")
    await until(lambda: model.begun)
    run.interrupt()
    result = await asyncio.wait_for(run, 5)
    assert (result.stop_reason, result.text) == ("interrupted", "")
    assert result.usage.total
    assert result.usage.estimated


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_an_answer_in_pieces_is_masked_and_a_body_gets_what_the_model_wrote(size: int):
    parts = [
        nb.Thinking(f"I know {KEY}{KEY}"),
        nb.Text(f"so it is {KEY}, not {KEY[:9]}"),
        nb.Call("send", json.dumps({"text": f"<{KEY}>"}), "c1"),
    ]
    model = Pieces(size, nb.Message("assistant", parts), nb.Message("assistant", f"{KEY} sent"))
    ran.clear()
    agent = nb.Agent(model, tools=TOOLS, approval=nb.Approval(mode="auto"))
    result = await agent.run("go")
    lines = clean(result)
    assert ran == [f"<{KEY}>"]
    assert result.text == f"{MARK} sent"
    assert result.messages[1].text == f"so it is {MARK}, not {KEY[:9]}"
    assert result.messages[2].text == f"sent <{MARK}>"
    assert '"masked":true' in lines


async def test_a_question_shows_the_mark_and_an_edit_may_keep_what_it_stands_for():
    agent = agent_of(nb.call("send", text=f"a {KEY}"), "done", approval=nb.Approval())
    run = agent.start("go", ui=nb.ByHand())
    await until(run.pending)
    question = run.pending()[0]
    assert question.arguments["text"] == f"a {MARK}"
    assert KEY not in repr(question)
    run.answer(question.id, "edit", arguments={"text": f"b {MARK}"}, reason=KEY)
    result = await run
    assert ran == [f"b {KEY}"]
    clean(result)


async def test_a_mark_that_the_model_writes_is_no_way_to_a_secret():
    agent = agent_of(nb.call("send", text=f"a {MARK}"), "done")
    clean(await agent.run("go"))
    assert ran == [f"a {MARK}"]


async def test_a_refused_call_with_a_secret_is_refused_again():
    call = nb.call("send", text=KEY)
    agent = agent_of(call, call, "done", approval=nb.Approval())

    class No:
        async def decide(self, question: nb.Question) -> str:
            asked.append(question.id)
            return "deny"

    asked: list[str] = []
    clean(await agent.run("go", ui=No()))
    assert len(asked) == 1


async def test_words_of_gates_and_reviewers_are_masked_in_the_log_and_in_what_is_sent():
    def no(call: nb.ToolCall, ctx: Any) -> nb.Decision | None:
        return nb.deny(f"not with {KEY}") if call.name == "send" else None

    async def judge(attempt: nb.Attempt) -> nb.Verdict:
        if attempt.text == "draft":
            return nb.Verdict.retry("key", f"name {KEY}")
        return nb.Verdict.force("key", f"it was {KEY}") if attempt.text else nb.Verdict.accept()

    agent = agent_of(
        nb.call("send", text="x"),
        "draft",
        "second",
        gates=[no, *nb.DEFAULT_GATES],
        reviewers=[judge],
    )
    result = await agent.run("go")
    clean(result)
    assert result.text == f"it was {MARK}"
    assert all(KEY not in str(m) for r in requests(agent) for m in r.messages)


async def test_errors_and_reasons_are_masked(caplog: pytest.LogCaptureFixture):
    agent = agent_of(nb.errors.BadRequestError(f"no {KEY}", body=f"key {KEY}"))
    with pytest.raises(nb.errors.BadRequestError) as caught:
        await agent.run("go")
    error: Any = caught.value
    clean(error.result)
    run = agent_of("x").start("go")
    run.interrupt(f"since {KEY}")
    clean(await run)
    assert KEY not in caplog.text


async def test_what_a_session_is_told_to_redact_is_masked_in_a_file_too(tmp_path: Path):
    redact = ["Mrs Jones", re.compile(r"\d{3}-\d{4}")]
    session = nb.Session.open(tmp_path / "s.jsonl", redact=redact)
    agent = agent_of("She is Mrs Jones, 555-1234.\nBye")
    result = await agent.run("call Mrs Jones", session=session)
    assert result.text == "She is [secret 1], [secret pattern 1].\nBye"
    session.close()
    content = (tmp_path / "s.jsonl").read_bytes()
    assert b"Jones" not in content
    assert b"555" not in content


async def test_a_secret_that_is_set_between_two_runs_is_masked_in_the_second(
    monkeypatch: pytest.MonkeyPatch,
):
    session = nb.Session()
    monkeypatch.setenv("LATER_TOKEN", "later-0123456789abcdef")
    agent = agent_of("I have later-0123456789abcdef")
    result = await agent.run("go", session=session)
    assert result.text == "I have [secret LATER_TOKEN]"
    clean(result)


async def test_a_call_with_masked_arguments_that_a_crash_kept_from_starting_says_so(
    tmp_path: Path,
):
    path = tmp_path / "s.jsonl"
    agent = agent_of(nb.call("send", text=KEY), "done", approval=nb.Approval())
    run = agent.start("go", session=path, ui=nb.ByHand())
    await until(run.pending)
    (tmp_path / "copy.jsonl").write_bytes(path.read_bytes())  # as it stands when the kernel dies
    run.interrupt()
    await run
    result = await agent_of("after").run("go on", session=tmp_path / "copy.jsonl")
    clean(result)
    texts = [m.text for m in result.session.messages if m.role == "tool"]
    assert texts == ["Error: tool call aborted before dispatch (its arguments were masked)"]


async def test_where_there_are_no_secrets_nothing_is_searched(monkeypatch: pytest.MonkeyPatch):
    for name in list(os.environ):
        if name.endswith(("_KEY", "_TOKEN", "_SECRET")):
            monkeypatch.delenv(name)
    result = await agent_of(KEY).run("go")
    assert result.session.log.mask is None
    assert result.text == KEY

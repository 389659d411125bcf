"""Ways in which a secret once came into a log, or a mask has spoiled one."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import pytest

import nbagent as nb
from nbagent.gates.truncate import Truncate
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request

KEY = "sk-proj-0123456789abcdef"
MARK = "[secret APP_KEY]"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().endswith(("_KEY", "_TOKEN", "_SECRET")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("APP_KEY", KEY)


ran: list[Any] = []


@nb.tool(risk="mutating")
def send(text: str) -> str:
    """Send."""
    ran.append(text)
    return f"sent {text}"


def agent_of(*replies: Any, tools: Any = (send,), **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    ran.clear()
    return nb.Agent(nb.models.Scripted(list(replies)), tools=list(tools), **settings)


def requests(agent: nb.Agent) -> list[Request]:
    model: Any = agent._spec.model
    return model.requests


def checked(result: nb.Result, secret: str = KEY, part: int = 8) -> str:
    """The whole log as text: it holds no part of the secret that tells much, and is well."""
    lines = b"\n".join([result.session.log.header_line, *result.session.log.lines]).decode()
    assert secret not in lines
    assert json.dumps(secret)[1:-1] not in lines
    pieces = [secret[n : n + part] for n in range(1, len(secret) - part)]
    assert not [piece for piece in pieces if piece in lines]
    assert secret not in repr(result) + repr(result.session) + str(result.messages)
    report = result.session.verify()
    assert report.ok, report
    return lines


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 - a run tells nobody that it asks
            await asyncio.sleep(0)


class Deltas:
    """A model that sends exactly these items, an answer at a time."""

    window = None
    name = "deltas"

    def __init__(self, *answers: list[Item]) -> None:
        self.answers = list(answers)
        self.requests: list[Request] = []

    def prepare(self, request: Request) -> Prepared:
        return Prepared(request, None, None)

    async def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        self.requests.append(prepared.request)
        for item in self.answers.pop(0):
            yield item


# -- what is masked is text, never what the log itself says


@pytest.mark.parametrize(
    "redact",
    [
        [re.compile(r"[A-Za-z0-9]{20,}")],
        [re.compile(r"\d{2}")],
        [re.compile(r"\w+")],
        [re.compile(r".+")],
        ["text", "user", "role", "allow", "tool"],
        ["next_turn", "assistant", "arguments", "position"],
    ],
)
async def test_a_mask_that_fits_words_of_the_log_itself_spoils_nothing(redact: list[Any]):
    def judge(attempt: nb.Attempt) -> nb.Verdict | None:
        return nb.Verdict.retry("again", "text 4711 user") if attempt.text == "draft" else None

    calls = [nb.call("send", text="user 1234 text"), nb.call("send", text="b")]
    agent = agent_of(calls, "draft", "the text of user 12345678901234567890123", reviewers=[judge])
    session = nb.Session(redact=redact)
    result = await agent.run("text user 5678", session=session)
    assert result.stop_reason == "end_turn"
    assert session.verify().ok
    assert ran == ["user 1234 text", "b"]
    for request in requests(agent):
        sent = [m.to_node() for m in request.messages]
        step = result.explain(**_place(request, requests(agent)))
        assert sent == [m.to_node() for m in step.messages]
    assert result.text == result.session.messages[-1].text
    again = await agent_of("x").run("more", session=session)
    assert again.session.verify().ok


def _place(request: Request, all_: list[Request]) -> dict[str, int]:
    number = next(n for n, each in enumerate(all_) if each is request)
    return [{"step": 1}, {"step": 2, "attempt": 1}, {"step": 2, "attempt": 2}][number]


async def test_marks_stay_whole_where_a_pattern_or_a_secret_fits_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("B_TOKEN", "secret APP_KEY")
    monkeypatch.setenv("C_TOKEN", MARK)
    session = nb.Session(redact=[re.compile("APP"), "[secret 1]"])
    result = await agent_of(f"{KEY} and {MARK}").run("go", session=session)
    checked(result)
    assert result.text == f"{MARK} and {MARK}"


async def test_two_keys_that_get_the_same_mark_are_both_kept():
    @nb.tool(risk="readonly")
    def note(ctx: nb.ToolContext) -> str:
        """Note."""
        ctx.note("found", {"111-222": "a", "333-444": "b"})
        return "ok"

    session = nb.Session(redact=[re.compile(r"\d{3}-\d{3}")])
    result = await agent_of(nb.call("note"), "done", tools=[note]).run("go", session=session)
    data = next(e.data.data for e in result.events if e.type == "note")
    assert sorted(data.values()) == ["a", "b"]


# -- where secrets came in


async def test_two_variables_whose_names_look_the_same_are_both_masked(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("my-app_KEY", "first-0123456789")
    monkeypatch.setenv("my_app_KEY", "other-0123456789")
    result = await agent_of("first-0123456789 other-0123456789").run("go")
    assert "0123456789" not in checked(result, "first-0123456789")
    assert "0123456789" not in result.text


async def test_secrets_that_overlap_leave_no_piece(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("B_TOKEN", "abcdef0123456789ghijkl")
    result = await agent_of(f"x{KEY}0123456789ghijkl y").run("go")
    assert result.text == f"x{MARK} y"


@pytest.mark.parametrize(
    "secret",
    [
        'quo"te\\back/slash-\u00e9-0123',
        "line one\nline two\ttab-0123",
        "sm\U0001f600ile-secret-0123",
        "reg.*(ex)+[chars]-0123",
        "plain-secret-0123456789",
        "bell\x07nul-less\x1b-0123-end",
    ],
)
@pytest.mark.parametrize("spelled", ["text", "json", "ascii", "escaped", "twice", "thrice", "repr"])
@pytest.mark.parametrize("way", ["answer", "arguments", "result", "error", "prompt"])
async def test_a_secret_is_found_however_it_is_spelled(
    secret: str, spelled: str, way: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("APP_KEY", secret)
    written = json.dumps(secret)
    spellings = {
        "text": secret,
        "json": json.dumps({"k": secret}, ensure_ascii=False),
        "ascii": json.dumps({"k": secret}),
        "escaped": "".join(f"\\u{ord(c):04X}" for c in secret if ord(c) < 65536)
        if secret.isascii()
        else written,
        "twice": json.dumps({"k": written}),
        "thrice": json.dumps([json.dumps({"k": written})]),
        "repr": repr([secret]),
    }
    text = spellings[spelled]

    @nb.tool(risk="readonly")
    def echo(text: str = "") -> str:
        """Echo."""
        ran.append(text)
        if way == "error":
            raise ValueError(text)
        return text if way == "result" else "ok"

    first: list[Item] = [Delta(c, 0, "arguments") for c in json.dumps({"text": text})]
    if way != "arguments":
        first = [
            Delta(
                json.dumps({"text": "x" if way in ("prompt", "answer") else text}), 0, "arguments"
            )
        ]
    if way == "arguments" and spelled == "escaped" and secret.isascii():
        first = [Delta(c, 0, "arguments") for c in f'{{"text": "{text}"}}']
    said = text if way == "answer" else "done"
    model = Deltas(
        [Delta("echo", 0, "name"), *first, Block(nb.Call("", "", "c1"), 0), End("tool_calls")],
        [*[Delta(c, 0) for c in said], End("stop")],
    )
    ran.clear()
    agent = nb.Agent(model, tools=[echo])
    result = await agent.run(text if way == "prompt" else "go")
    lines = checked(result, secret, 40)
    plain = _decoded(lines)
    for each in (lines, *plain, *(str(r.messages) for r in model.requests)):
        assert secret not in each
    assert "secret APP_KEY" in lines
    if way in ("result", "error", "arguments") and spelled != "escaped":
        assert ran == [text]


def _decoded(lines: str) -> list[str]:
    """What the texts of a log say once their escapes are undone, so often."""
    out: list[str] = []
    for _ in range(6):
        lines = re.sub(
            r"\\(u[0-9a-fA-F]{4}|x[0-9a-f]{2}|.)",
            lambda m: (
                {"n": "\n", "t": "\t"}.get(m[1])
                or (chr(int(m[1][1:], 16)) if len(m[1]) > 2 else m[1])
            ),
            lines,
        )
        out.append(lines.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return out


@pytest.mark.parametrize("cut", range(1, 30, 3))
async def test_a_line_is_looked_through_whole_though_a_secret_begins_in_it(cut: int):
    session = nb.Session(redact=["1234\nabcdefgh", re.compile(r"555-\d{4}")])
    text = "call 555-1234\nabcdefxx yy"
    model = Deltas([Delta(text[:cut]), Delta(text[cut:]), End("stop")])
    result = await nb.Agent(model).run("go", session=session)
    assert "555-1234" not in checked(result, "555-1234")
    assert result.text == "call [secret pattern 1]\nabcdefxx yy"


@pytest.mark.parametrize("redact", [[], [re.compile("zzz+")]])
async def test_parts_of_an_answer_stay_in_order_though_text_is_held_back(redact: list[Any]):
    arguments = [Delta("send", 1, "name"), Delta('{"text": "a"}', 1, "arguments")]
    block: list[Item] = [Block(nb.Call("", "", "c1"), 1)]
    model = Deltas(
        [Delta("sk-", 0), *arguments, *block, End("tool_calls")], [Delta("done"), End("stop")]
    )
    agent = nb.Agent(model, tools=[send], approval=nb.Approval(mode="auto"))
    result = await agent.run("go", session=nb.Session(redact=redact))
    assert [type(part).__name__ for part in result.messages[1].parts] == ["Text", "Call"]
    checked(result)


@pytest.mark.parametrize("place", [490, 1990, 19_990, 50])
@pytest.mark.parametrize("tool", ["long", "fails", "notes"])
async def test_a_text_that_is_cut_holds_no_piece_of_a_secret(place: int, tool: str):
    @nb.tool(risk="readonly")
    def long() -> str:
        """Long."""
        return "x" * place + KEY + "y" * 100_000

    @nb.tool(risk="readonly")
    def fails() -> str:
        """Fail."""
        msg = "x" * place + KEY + "y" * 100_000
        raise ValueError(msg)

    @nb.tool(risk="readonly")
    def notes(ctx: nb.ToolContext) -> str:
        """Note."""
        ctx.note("n", "x" * place + KEY)
        return "ok"

    for limit in range(place, place + 30, 7):
        gates = [g for g in nb.DEFAULT_GATES if not isinstance(g, Truncate)]
        agent = agent_of(
            nb.call(tool), "done", tools=[long, fails, notes], gates=[*gates, Truncate(limit)]
        )
        checked(await agent.run("go"))


@pytest.mark.parametrize("before", [0, 40, 50, 55, 65, 70, 75])
async def test_a_value_that_an_error_shortens_holds_no_piece_of_a_secret(before: int):
    @nb.tool(risk="mutating")
    def count(n: int, when: Literal["now", "later"] = "now") -> str:
        """Count."""
        return "ok"

    text = "x" * before + KEY + "y" * 300
    agent = agent_of(
        nb.call("count", n=text), nb.call("count", n=1, when=text), f"x{text}", tools=[count]
    )
    checked(await agent.run("go"))


async def test_what_a_body_puts_into_the_environment_is_masked_from_then_on(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("NEW_TOKEN", "before-0123456789")

    @nb.tool(risk="mutating")
    def login() -> str:
        """Log in."""
        os.environ["NEW_TOKEN"] = "fresh-0123456789-fresh"
        return f"got {os.environ['NEW_TOKEN']}"

    result = await agent_of(nb.call("login"), "fresh-0123456789-fresh", "x", tools=[login]).run(
        "go"
    )
    checked(result, "fresh-0123456789-fresh")


async def test_a_value_that_was_masked_stays_masked_when_it_leaves_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    session = nb.Session()
    await agent_of("x").run(f"it is {KEY}", session=session)
    monkeypatch.delenv("APP_KEY")
    checked(await agent_of(f"it was {KEY}").run("go", session=session))


async def test_the_folder_in_the_header_and_the_place_in_a_repr_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / KEY
    folder.mkdir()
    monkeypatch.chdir(folder)
    session = nb.Session.open(folder / "s.jsonl")
    result = await agent_of("x").run("go", session=session)
    checked(result)
    session.close()
    assert KEY.encode() not in (folder / "s.jsonl").read_bytes()


async def test_words_for_logging_and_reprs_are_masked(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)

    def judge(attempt: nb.Attempt) -> nb.Verdict:
        msg = f"no {KEY}"
        raise ValueError(msg)

    checked(await agent_of("x", reviewers=[judge]).run("go"))
    run = agent_of(ValueError(f"at {KEY}")).start("go")
    with pytest.raises(ValueError, match="at"):
        await run
    assert KEY not in repr(run)
    assert KEY not in caplog.text


async def test_a_reason_that_becomes_a_reminders_source_is_masked():
    def judge(attempt: nb.Attempt) -> nb.Verdict | None:
        return nb.Verdict.retry(f"r {KEY}", "no") if attempt.text == "draft" else None

    agent = agent_of("draft", "good", reviewers=[judge])
    result = await agent.run("go")
    checked(result)
    assert all(KEY not in str(r.messages) for r in requests(agent))
    told = [m.to_node() for m in requests(agent)[1].messages]
    assert told == [m.to_node() for m in result.explain(attempt=2).messages]


async def test_all_words_of_a_question_are_masked():
    def preview(arguments: dict[str, Any]) -> str:
        msg = f"no preview of {arguments['text']}"
        raise ValueError(msg)

    @nb.tool(risk="mutating", preview=preview, description=f"Send with {KEY}")
    def post(text: int | str, count: int = 0) -> str:
        """Post."""
        return "ok"

    def gate(call: nb.ToolCall, ctx: Any) -> nb.Decision:
        return nb.ask(f"really {KEY}?")

    questions: list[nb.Question] = []

    class Person:
        async def decide(self, question: nb.Question) -> Any:
            questions.append(question)
            return nb.edit({"text": MARK, "count": f"{KEY}"}) if len(questions) < 2 else "deny"

    agent = agent_of(
        nb.call("post", text=KEY),
        "x",
        tools=[post],
        gates=[gate, *nb.DEFAULT_GATES],
        approval=nb.Approval(),
    )
    checked(await agent.run("go", ui=Person()))
    assert len(questions) == 2
    assert questions[1].problem
    assert KEY not in repr(questions)


async def test_an_answer_that_is_joined_from_pieces_is_masked_in_the_result():
    model = Deltas([Delta(f"it is {KEY[:12]}"), End("max_tokens")], [Delta(KEY[12:]), End("stop")])
    result = await nb.Agent(model).run("go")
    assert KEY not in result.text + repr(result)


async def test_the_provider_data_of_thinking_is_masked():
    part = nb.Thinking(f"hm {KEY}", f"sig {KEY}", json.dumps({"type": "x", KEY: KEY}))
    model = Deltas(
        [Delta(f"hm {KEY}", 0, "thinking"), Block(part, 0), Delta("ok", 1), End("stop")],
        [Delta("ok"), End("stop")],
    )
    agent = nb.Agent(model)
    result = await agent.run("go")
    checked(result)
    result = await agent.run("go", session=result.session)
    assert KEY not in str(model.requests[-1].messages)
    checked(result)


async def test_a_refused_call_is_refused_again_where_a_pattern_fits_whole_values():
    call = nb.call("send", text="4711")
    asked: list[str] = []

    class No:
        async def decide(self, question: nb.Question) -> str:
            asked.append(question.id)
            return "deny"

    session = nb.Session(redact=[re.compile(r"^\d+$")])
    agent = agent_of(call, call, "done", approval=nb.Approval())
    await agent.run("go", ui=No(), session=session)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "redact",
    [[], [re.compile(r"\d{3}-\d{4}")]],
)
@pytest.mark.parametrize("stored", [False, True])
async def test_a_long_stream_takes_time_in_proportion(
    redact: list[Any], stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for n in range(4):
        monkeypatch.setenv(f"N{n}_KEY", f"{n}-secret-0123456789")

    async def seconds(chunks: int) -> float:
        model = Deltas([*[Delta("abcdefghi ") for _ in range(chunks)], End("stop")])
        path = tmp_path / f"{chunks}.jsonl"
        session = nb.Session.open(path, redact=redact) if stored else nb.Session(redact=redact)
        began = time.process_time()
        await nb.Agent(model).run("go", session=session)
        return time.process_time() - began

    await seconds(1000)
    few, many = await seconds(10_000), await seconds(100_000)
    assert many < 20 * few


async def test_the_body_in_an_explanation_is_masked():
    class Wire(Deltas):
        def prepare(self, request: Request) -> Prepared:
            return Prepared(request, json.dumps({"user": KEY}).encode(), "0" * 16)

    result = await nb.Agent(Wire([Delta("x"), End("stop")])).run("go")
    assert KEY not in str(result.explain()) + str(result.explain().body)

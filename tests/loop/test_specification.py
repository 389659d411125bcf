"""What a comparison with the specification once found; each stays mended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb

Scripted = nb.models.Scripted
loose: Any = nb
"""The package without its types: for what people give wrong."""
QUICK = nb.Recovery(base_s=0)


@nb.tool(risk="mutating")
def write(path: str, mode: str = "w") -> str:
    """Write."""
    return f"wrote {path}"


class Sleeper:
    """Never answers."""

    async def decide(self, question: nb.Question) -> str:
        await asyncio.sleep(30)
        return "deny"


class Says:
    """Always gives the same answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def decide(self, question: nb.Question) -> Any:
        return self.answer


def until(condition: Any, seconds: float = 3) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


def other_process(path: Path, prompt: str) -> None:
    code = (
        "import nbagent as nb, sys\n"
        "nb.Agent(nb.models.Scripted(['one'])).run_sync(sys.argv[2], session=sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(path), prompt], check=True)


# -- permission


def test_a_refused_call_does_not_run_because_another_was_always_allowed():
    """design §5: an answer given meanwhile holds for the same fingerprint; events §7: a deny wins."""
    model = Scripted([[nb.call("write", path=p) for p in "abc"], "done"])
    run = nb.Agent(model, tools=[write]).start("go", ui=Sleeper())
    until(lambda: len(run.pending()) == 3)
    run.answer("1.1.2", "deny", reason="not this one")
    run.answer("1.1.1", "always_allow")
    assert run.result(5).to_pandas("tools")["status"].to_list() == ["ok", "ok", "denied"]


def test_an_edit_is_checked_against_the_guards_again():
    """design §5: the edited call is checked against 1-3 again; 1 names a guard."""

    def guard(call: nb.ToolCall, ctx: Any) -> nb.Decision | None:
        return nb.deny("never") if call.arguments["path"].startswith("/etc") else None

    model = Scripted([nb.call("write", path="a"), "done"])
    agent = nb.Agent(model, tools=[write], gates=[guard, *nb.DEFAULT_GATES])
    result = agent.run_sync("go", ui=Says(nb.edit({"path": "/etc/passwd"})))
    assert result.to_pandas("tools")["status"].to_list() == ["denied"]


def test_the_same_call_spelled_with_its_default_counts_as_repeated():
    """design §5, resolver 4: same tool, same canonical arguments (defaults filled in)."""
    calls = [nb.call("write", path="a"), nb.call("write", path="a", mode="w")]
    result = nb.Agent(Scripted([*calls, "done"]), tools=[write]).run_sync("go", ui="none")
    assert result.to_pandas("tools")["decision_source"].to_list() == ["unattended", "repeated"]


def test_a_gates_rewrite_is_not_said_to_be_the_persons():
    """design §5: the first line of the result tells of a person's edit."""

    def safe(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
        return nb.rewrite({"path": "safe"})

    gates = [safe, *nb.DEFAULT_GATES]
    model = Scripted([nb.call("write", path="a"), "done"])
    result = nb.Agent(model, tools=[write], gates=gates).run_sync("go", ui=Says("allow"))
    assert result.to_pandas("tools")["result"].to_list() == ["wrote safe"]


def test_a_rule_that_names_no_known_tool_warns():
    """api.md, Rules."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        nb.Agent(Scripted(["x"]), tools=[write], approval=nb.Approval(rules=["deny wrte"]))
    assert seen


def test_a_permission_gate_with_an_approval_of_its_own_is_not_ignored():
    """api.md: nothing is accepted and ignored."""
    model = Scripted([nb.call("write", path="a"), "done"])
    gates = [nb.gates.Permission(nb.Approval(mode="deny"))]
    try:
        agent = nb.Agent(model, tools=[write], gates=gates, approval=nb.Approval(mode="auto"))
    except nb.errors.ConfigError:
        return
    result = agent.run_sync("go", ui="none")
    assert result.to_pandas("tools")["status"].to_list() == ["denied"]


def test_lists_and_approval_are_not_ignored_without_the_permission_gate():
    """api.md: nothing is accepted and ignored; design §2.7: permission fails closed."""
    model = Scripted([nb.call("write", path="a"), "done"])
    try:
        agent = nb.Agent(model, tools=[write], gates=[], disallowed_tools=["write"])
    except nb.errors.ConfigError:
        return
    result = agent.run_sync("go", ui="none")
    assert result.to_pandas("tools")["status"].to_list() == ["denied"]


def test_an_always_of_the_agents_memory_is_none_of_the_sessions():
    """api.md: agent-scope memory lives as long as the agent object."""
    session = nb.Session()
    for remember, ui in (("agent", Says("always_allow")), ("session", "none")):
        model = Scripted([nb.call("write", path="a"), "done"])
        agent = nb.Agent(model, tools=[write], approval=nb.Approval(remember=remember))  # type: ignore[arg-type]
        result = agent.run_sync("go", session=session, ui=ui)  # type: ignore[arg-type]
    assert result.to_pandas("tools")["status"].to_list() == ["denied"]


def test_an_approver_that_says_serial_gets_one_question_at_a_time():
    """design §5: channels that show one question at a time are served in model order."""
    seen: list[str] = []

    class Serial:
        serial = True

        async def decide(self, question: nb.Question) -> str:
            seen.append("in")
            await asyncio.sleep(0.02)
            seen.append("out")
            return "allow"

    model = Scripted([[nb.call("write", path=p) for p in "ab"], "done"])
    nb.Agent(model, tools=[write]).run_sync("go", ui=Serial())  # type: ignore[arg-type]
    assert seen == ["in", "out", "in", "out"]


def test_an_invalid_edit_on_the_terminal_is_refused_to_the_person():
    """events §7: an invalid edit is refused to the person (who then answers again)."""
    from nbagent.notebook.stdin import StdinApprover

    @nb.tool(risk="mutating")
    def set_to(n: int) -> str:
        """Set."""
        return f"set {n}"

    lines = iter(["e", '{"n": "many"}', "y"])
    ui = StdinApprover(read=lambda _: next(lines), write=lambda _: None)
    result = nb.Agent(Scripted([nb.call("set_to", n=1), "x"]), tools=[set_to]).run_sync("go", ui=ui)
    assert result.to_pandas("tools")["result"].to_list() == ["set 1"]


@pytest.mark.parametrize("how", ["stop", "bug"])
def test_open_questions_are_answered_when_the_run_ends_while_gates_are_asked(how: str):
    """events §7: interrupt while a question is open gives approval/answered {deny, by: interrupt}."""

    async def gate(call: nb.ToolCall, ctx: Any) -> None:
        if call.arguments["path"] == "b":
            if how == "bug":
                raise RuntimeError(how)
            await asyncio.sleep(30)

    session = nb.Session()
    model = Scripted([[nb.call("write", path="a"), nb.call("write", path="b")], "done"])
    agent = nb.Agent(model, tools=[write], gates=[gate, *nb.DEFAULT_GATES])
    run = agent.start("go", session=session, ui=Sleeper())
    if how == "stop":
        until(run.pending)
        time.sleep(0.02)
        run.interrupt()
        run.result(5)
    else:
        with pytest.raises(RuntimeError):
            run.result(5)
    types = [event.type for event in session.events]
    assert types.count("approval/asked") == types.count("approval/answered") == 1


# -- results


def test_an_after_gate_holds_for_a_body_that_ends_early():
    """design §5: after(call, result, ctx) → Result is what the model reads, in any order of ends."""

    @nb.tool(risk="readonly")
    async def read(seconds: float) -> str:
        """Read."""
        await asyncio.sleep(seconds)
        return "secret"

    class Redact:
        def after(self, call: Any, result: Any, ctx: Any) -> nb.ToolResult:
            return nb.ToolResult("redacted")

    model = Scripted([[nb.call("read", seconds=0.1), nb.call("read", seconds=0)], "done"])
    nb.Agent(model, tools=[read], gates=[Redact(), *nb.DEFAULT_GATES]).run_sync("go")
    assert [m.text for m in model.requests[1].messages if m.role == "tool"] == ["redacted"] * 2


def test_an_async_after_gate_is_not_left_out_on_stop():
    """The next run's model must not read what the gate would have taken out."""

    @nb.tool(risk="readonly")
    async def read(seconds: float) -> str:
        """Read."""
        await asyncio.sleep(seconds)
        return "secret"

    class Redact:
        async def after(self, call: Any, result: Any, ctx: Any) -> nb.ToolResult:
            return result.but(shown="redacted")

    session = nb.Session()
    model = Scripted([[nb.call("read", seconds=30), nb.call("read", seconds=0)], "done"])
    agent = nb.Agent(model, tools=[read], gates=[Redact(), *nb.DEFAULT_GATES])
    run = agent.start("go", session=session)
    until(lambda: any(event.type == "tool/done" for event in session.events))
    run.interrupt()
    run.result(5)
    assert "secret" not in [m.text for m in run.result().messages]


def test_stop_does_not_wait_for_a_hanging_after_gate():
    """Issue, Done when: Stop returns within 0.5 s."""

    class Slow:
        async def after(self, call: Any, result: Any, ctx: Any) -> nb.ToolResult:
            await asyncio.sleep(3)
            return result

    approval = nb.Approval(mode="auto")
    model = Scripted([nb.call("write", path="a"), "done"])
    agent = nb.Agent(model, tools=[write], approval=approval, gates=[Slow(), *nb.DEFAULT_GATES])
    run = agent.start("go")
    time.sleep(0.1)
    began = time.monotonic()
    run.interrupt()
    run.result(10)
    assert time.monotonic() - began < 1


def test_repair_takes_the_result_from_tool_done(tmp_path: Path):
    """design §4: repair and resume take the result from `tool/done`, its status too."""
    code = """
import asyncio, os, sys
import nbagent as nb
session = nb.Session.open(sys.argv[1])

@nb.tool(risk="readonly")
async def slow() -> str:
    "Slow."
    await asyncio.sleep(0.2)
    session.log.flush()
    os._exit(0)

@nb.tool(risk="readonly")
async def fast() -> str:
    "Fast."
    return "found"

model = nb.models.Scripted([[nb.call("slow"), nb.call("fast")], "done"])
nb.Agent(model, tools=[slow, fast]).run_sync("go", session=session)
"""
    path = tmp_path / "log.jsonl"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    session = nb.Session.open(path)
    nb.Agent(Scripted(["again"])).run_sync("go on", session=session)
    assert session.to_pandas("tools")["status"].to_list() == ["aborted", "ok"]
    session.close()


def test_the_ref_of_a_tool_that_was_not_asked_about_has_its_domain():
    """api.md, tools table: ref."""

    @nb.tool(risk="readonly", domain="files")
    def read() -> str:
        """Read."""
        return "x"

    result = nb.Agent(Scripted([nb.call("read"), "done"]), tools=[read]).run_sync("go")
    assert result.to_pandas("tools")["ref"].to_list() == ["cap://tool/files/read@1"]


def test_effective_arguments_are_those_the_body_saw():
    """design §5: rules, gates and body see the validated value; api.md: effective_args_json."""
    model = Scripted([nb.call("write", path="a"), "done"])
    agent = nb.Agent(model, tools=[write], approval=nb.Approval(mode="auto"))
    frame = agent.run_sync("go").to_pandas("tools")
    assert '"mode":"w"' in frame["effective_args_json"][0]


# -- recovery and review


def test_there_are_at_most_twelve_attempts_in_a_step():
    """design §5, Recovery: at most 12 attempts per step."""
    replies: list[Any] = []
    for n in range(5):
        replies += [nb.errors.ServerError("1"), nb.errors.ServerError("2"), f"answer {n}"]

    def never(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.retry("again", "Again.")

    session = nb.Session()
    agent = nb.Agent(Scripted(replies), reviewers=[never], recovery=QUICK, session=session)
    with contextlib.suppress(nb.errors.ModelError):
        agent.run_sync("go")
    assert len(session.to_pandas("attempts")) <= 12


def test_a_reviewer_that_raises_a_model_error_is_contained():
    """design §5, Review: a reviewer that raises or hangs is contained and noted."""

    def judge(attempt: nb.Attempt) -> nb.Verdict:
        msg = "the judge's own model"
        raise nb.errors.RateLimitError(msg)

    assert nb.Agent(Scripted(["fine"]), reviewers=[judge]).run_sync("go").text == "fine"


def test_no_reason_of_a_reviewer_escapes_the_cap():
    """design §5: one shared cap of 4 retries."""

    def judge(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.retry("must_call save", "Again.")

    model = Scripted([str(n) for n in range(40)])
    nb.Agent(model, reviewers=[judge], budget=nb.Budget(max_model_calls=30)).run_sync("go")
    assert len(model.requests) == 5


def test_a_cut_call_behind_text_is_told():
    """design §5, max_tokens (F-C2): … or that a call was cut and must be smaller."""
    cut = nb.reply("I write it.", [nb.Call("write", '{"path": "a')], finish="max_tokens")
    model = Scripted([cut, "done"])
    nb.Agent(model, tools=[write]).run_sync("go")
    assert "call" in model.requests[1].messages[-1].text


def test_a_forced_text_replaces_the_whole_joined_answer():
    """A11: Force → return Replace; design §5: review sees the joined text."""

    def judge(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.force("no", "Forced.")

    model = Scripted([nb.reply("piece one ", finish="max_tokens"), "piece two"])
    assert nb.Agent(model, reviewers=[judge]).run_sync("go").text == "Forced."


def test_an_interrupted_run_keeps_its_last_text():
    """events §7: result.text is the last non-empty answer."""

    @nb.tool(risk="readonly")
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(30)
        return ""

    run = nb.Agent(Scripted([nb.reply("I look.", [nb.call("wait")])]), tools=[wait]).start("go")
    time.sleep(0.1)
    run.interrupt()
    assert run.result(5).text == "I look."


def test_an_error_finish_is_a_failed_attempt():
    """design §5: recovery decides after any failed attempt, raised or in-band."""
    from nbagent.interfaces.model import Delta, End, Prepared, Request

    class Failing:
        name, window = "failing", None

        def prepare(self, request: Request) -> Prepared:
            return Prepared(request)

        async def stream(self, prepared: Prepared) -> Any:
            yield Delta("half")
            yield End("error")

    with pytest.raises(nb.errors.ModelError):
        nb.Agent(Failing(), recovery=QUICK).run_sync("go")  # type: ignore[arg-type]


# -- sessions


def test_a_session_that_nobody_holds_can_be_opened_again(tmp_path: Path):
    """design §10: one writer; the lock ends with the object, not only with the process."""

    def once() -> str:
        return nb.Agent(Scripted(["x"])).run_sync("go", session=tmp_path / "log.jsonl").text

    assert once() == "x"
    gc.collect()
    assert once() == "x"


@pytest.mark.damages_files
def test_what_others_wrote_meanwhile_is_not_of_this_run(tmp_path: Path):
    """api.md: budget per run; a result's tables are the run's."""
    path = tmp_path / "log.jsonl"
    other_process(path, "first")
    session = nb.Session.open(path)
    other_process(path, "second")
    agent = nb.Agent(Scripted(["mine"]), budget=nb.Budget(max_model_calls=1))
    result = agent.run_sync("third", session=session)
    runs = [event.data.run for event in session.events if event.type == "turn/start"]
    session.close()
    assert (result.stop_reason, runs) == ("end_turn", [1, 2, 3])
    assert result.to_pandas("steps")["user_text"].to_list() == ["third"]


@pytest.mark.damages_files
def test_two_may_open_a_path_before_either_writes(tmp_path: Path):
    """Issue, Bad input: two writers get a clear error (or, here, none is needed)."""
    path = tmp_path / "log.jsonl"
    session = nb.Session.open(path)
    other_process(path, "first")
    nb.Agent(Scripted(["mine"])).run_sync("second", session=session)
    session.close()
    assert [message.text for message in session.messages] == ["first", "one", "second", "mine"]
    assert session.verify().ok


@pytest.mark.damages_files
def test_a_tail_torn_after_opening_is_reported(tmp_path: Path):
    """design §10: cuts a torn tail and reports its position."""
    path = tmp_path / "log.jsonl"
    session = nb.Session.open(path)
    agent = nb.Agent(Scripted(["a", "b"]), session=session)
    agent.run_sync("go")
    session.close()
    with path.open("ab") as file:
        file.write(b'{"seq":99,"ty')
    agent.run_sync("on")
    session.close()
    assert [e.data.kind for e in session.events if e.type == "notice"] == ["torn-tail"]


def test_a_reader_whose_loop_is_gone_does_not_harm_the_run():
    """design §9: observers cannot delay or change the run."""

    @nb.tool(risk="readonly")
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(0.2)
        return ""

    run = nb.Agent(Scripted([nb.call("wait"), "done"]), tools=[wait]).start("go")
    loop = asyncio.new_event_loop()
    events = run.events()
    loop.run_until_complete(events.__anext__())  # type: ignore[arg-type]
    loop.close()
    assert run.result(5).text == "done"


def test_nothing_is_appended_after_the_end_of_a_run():
    """design §2.6: between runs a session has no owner."""
    session = nb.Session()
    run = nb.Agent(Scripted(["a"])).start("go", session=session)
    run.result()
    length = len(session.events)
    run._act(lambda state: state.send("next_step", "late", "steer", announce=True))
    time.sleep(0.1)  # what `steer` does when the run ends between its check and the loop's turn
    assert len(session.events) == length


# -- doors and bad input


def test_run_sync_on_the_loop_thread_is_refused_before_it_starts():
    """api.md: NestingError at once."""
    child = nb.Agent(Scripted(["child"]))

    @nb.tool(risk="readonly")
    async def ask() -> str:
        """Ask."""
        return child.run_sync("go").text

    nb.Agent(Scripted([nb.call("ask"), "done"]), tools=[ask]).run_sync("go")
    assert child.last_run is None


@pytest.mark.parametrize("settings", [{"must_call": ("nope",)}, {"tool_choice": "nope"}])
def test_settings_of_one_run_are_checked_like_the_agents(settings: dict[str, Any]):
    """Issue, Bad input."""
    with pytest.raises(nb.errors.ConfigError, match="nope"):
        nb.Agent(Scripted(["a", "b"])).run_sync("go", settings=nb.Settings(**settings))


@pytest.mark.parametrize(
    "make",
    [
        lambda: loose.Settings(max_tokens="5"),
        lambda: loose.Settings(max_tokens=2.5),
        lambda: loose.Settings(temperature="hot"),
        lambda: loose.Settings(timeout_s="1"),
        lambda: loose.Settings(tool_choice=5),
        lambda: loose.Agent(
            Scripted(["x"]), settings=loose.Settings(extra={"a": object()})
        ).run_sync("x"),
        lambda: loose.Budget(max_model_calls="3"),
        lambda: loose.Budget(max_model_calls=2.5),
        lambda: loose.Recovery(attempts="3"),
        lambda: loose.Agent(Scripted(["x"]), tools=None),
        lambda: loose.Agent(Scripted(["x"]), gates=loose.gates.Control()),
        lambda: loose.Agent(Scripted(["x"]), reviewers=None),
        lambda: loose.tool(write.call, timeout_s="x"),
        lambda: loose.tool(write.call, parallel="yes"),
        lambda: loose.Session.open(5),
    ],
)
def test_wrong_types_are_clear_errors(make: Any):
    """Issue, Bad input: wrong types, each a clear error that names the thing."""
    with pytest.raises(nb.errors.ConfigError):
        make()


def test_instructions_with_half_a_character_do_not_end_the_run():
    """Issue, Bad input: lone surrogates are logged as valid JSON."""
    assert nb.Agent(Scripted(["x"]), instructions="half \ud83d").run_sync("go").text == "x"


@pytest.mark.damages_files
def test_text_added_to_a_packed_run_of_chunks_is_found(tmp_path: Path):
    """Issue, Done when: altering one field is caught, for a packed run too (text behind `len`)."""
    path = tmp_path / "log.jsonl"
    session = nb.Session.open(path)
    nb.Agent(Scripted(["hello there"], chunk=4)).run_sync("go", session=session)
    session.close()
    content = path.read_bytes()
    damaged = content.replace(b'"text":"hello there","len"', b'"text":"hello there, more","len"')
    assert damaged != content
    path.write_bytes(damaged)
    assert not session.verify().ok

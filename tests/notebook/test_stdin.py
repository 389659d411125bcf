"""Questions in a terminal: what is shown, what may be typed, and a real one at the end."""

from __future__ import annotations

import asyncio
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.notebook.stdin import StdinApprover, describe


def question(**changes: Any) -> nb.Question:
    settings: dict[str, Any] = {
        "id": "1.1.0",
        "name": "save",
        "ref": "cap://tool/local/save@1",
        "risk": "mutating",
        "why": "it is mutating",
        "arguments": {"path": "a.txt"},
    }
    return nb.Question(**{**settings, **changes})


class Terminal:
    """A person who types prepared lines and sees what is written."""

    def __init__(self, *lines: str | BaseException) -> None:
        self.lines = list(lines)
        self.shown: list[str] = []

    def read(self, prompt: str) -> str:
        self.shown.append(f"{prompt}\n")  # the person's own line break is shown, too
        line = self.lines.pop(0) if self.lines else EOFError()
        if isinstance(line, BaseException):
            raise line
        return line

    def write(self, text: str) -> None:
        self.shown.append(text)

    @property
    def approver(self) -> StdinApprover:
        return StdinApprover(self.read, self.write)

    @property
    def text(self) -> str:
        return "".join(self.shown)


async def answer_to(*lines: str | BaseException, **changes: Any) -> tuple[Any, str]:
    terminal = Terminal(*lines)
    answer = await terminal.approver.decide(question(**changes))
    return answer, terminal.text


TYPED: list[tuple[str, Any]] = [
    ("y", nb.Answer("allow")),
    ("yes", nb.Answer("allow")),
    ("  Y  ", nb.Answer("allow")),
    ("YES because it is late", nb.Answer("allow", "because it is late")),
    ("n", nb.Answer("deny")),
    ("no", nb.Answer("deny")),
    ("", nb.Answer("deny")),
    ("n use the copy", nb.Answer("deny", "use the copy")),
    ("a", nb.Answer("always_allow")),
    ("always", nb.Answer("always_allow")),
    ("x", nb.Answer("always_deny")),
    ("never  again ", nb.Answer("always_deny", "again")),
]


@pytest.mark.parametrize(("line", "expected"), TYPED)
async def test_a_line_is_an_answer_and_what_follows_is_the_reason(line: str, expected: nb.Answer):
    answer, _ = await answer_to(line)
    assert answer == expected


@pytest.mark.parametrize("fault", [EOFError(), KeyboardInterrupt()], ids=lambda f: type(f).__name__)
async def test_the_end_of_the_input_is_a_no(fault: BaseException):
    for lines in ((fault,), ("e", fault)):
        answer, _ = await answer_to(*lines)
        assert answer.decision == "deny"


@pytest.mark.parametrize(
    "fault",
    [
        OSError("gone"),
        ValueError("I/O operation on closed file"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        RuntimeError("input(): lost sys.stdin"),
    ],
    ids=lambda f: type(f).__name__,
)
async def test_what_can_not_be_read_is_nobodys_no(fault: Exception):
    for lines in ((fault,), ("e", fault)):
        with pytest.raises(type(fault)):
            await answer_to(*lines)
    agent = nb.Agent(nb.models.Scripted([nb.call("act", x=1), "done"]), tools=[act_tool([])])
    result = await agent.run("go", ui=Terminal(fault).approver)
    assert list(result.tool_calls["status"]) == ["denied"]
    assert list(result.tool_calls["decision_source"]) == ["failed"]


async def test_an_unclear_line_is_asked_again_and_not_for_ever():
    answer, text = await answer_to("maybe", "ja\x1b[2J", "y")
    assert answer == nb.Answer("allow")
    assert "'maybe' is none of these" in text
    assert "\x1b" not in text
    answer, _ = await answer_to(*["maybe"] * 1000)
    assert answer.decision == "deny"


async def test_the_dangerous_can_not_be_remembered_and_the_choice_is_not_offered():
    answer, text = await answer_to("a", "x", "y", rememberable=False, risk="dangerous")
    assert answer == nb.Answer("allow")
    assert "[a]lways" not in text
    assert text.count("a dangerous tool is never remembered") == 2
    _, text = await answer_to("a", "y", rememberable=False)
    assert "dangerous" not in text
    _, text = await answer_to("y")
    assert "[a]lways" in text


async def test_an_edit_asks_value_by_value_and_enter_keeps_one():
    arguments = {"path": "a.txt", "text": "one\u200b", "n": 3, "tags": ["x"], "who": None}
    lines = ("e", "b file.txt", "", "four", "5", "[1", '["y"]', "me")
    answer, text = await answer_to(*lines, arguments=arguments)
    kept = {"path": "b file.txt", "text": "one\u200b", "n": 5, "tags": ["y"], "who": "me"}
    assert answer == nb.edit(kept)
    assert "path [a.txt]: " in text
    assert "text [one<U+200B>]: " in text
    assert text.count("That is no JSON") == 2
    assert text.count("n [3]: ") == 2


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("5", "5"),
        ("null", "null"),
        ('""', ""),
        (r'"two\nlines"', "two\nlines"),
        ('"not closed', '"not closed'),
        ("[1]", "[1]"),
    ],
)
async def test_a_text_is_edited_as_text(typed: str, value: str):
    answer, _ = await answer_to("e", typed)
    assert answer == nb.edit({"path": value})


async def test_all_arguments_can_be_given_as_json_and_slips_lead_back_to_the_question():
    whole = '{"path": "b.txt"}'
    for lines in (("e", whole), (f"e {whole}",), ("e {no", "e [1]", f"edit {whole}")):
        answer, text = await answer_to(*lines)
        assert answer == nb.edit({"path": "b.txt"})
    assert "That is no JSON" in text
    assert "a JSON object" in text
    answer, _ = await answer_to("e", "[" * 100_000)
    assert answer == nb.edit({"path": "[" * 100_000})
    answer, _ = await answer_to("e", "", "e", '{"x": 1}', arguments={})
    assert answer == nb.edit({"x": 1})


async def test_a_number_is_not_the_truth():
    answer, _ = await answer_to("e", "true", arguments={"n": 1})
    assert answer.arguments["n"] is True


async def test_an_edit_that_changes_nothing_leads_back_to_the_question():
    answer, text = await answer_to("e", "", "n")
    assert answer == nb.Answer("deny")
    assert "Nothing was changed" in text


async def test_what_ends_a_question_without_a_word_is_said():
    _, text = await answer_to("")
    assert "Enter, Ctrl-D = no; Ctrl-C = stop" in text
    assert "(Enter: save is not run)" in text
    answer, text = await answer_to(EOFError())
    assert answer.decision == "deny"
    assert "(Ctrl-D or the end of the input: save is not run)" in text


async def test_why_an_answer_could_not_be_taken_is_shown_with_the_question():
    _, text = await answer_to("n", problem="`x` must be a number")
    assert "could not be taken: `x` must be a number" in text


async def test_edits_do_not_go_round_for_ever():
    answer, _ = await answer_to(*["e", ""] * 1000)
    assert answer.decision == "deny"


HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\x9b31m\x00\x08 \u202eexe.txt\u2066 \ud800 \r\n\u2028Run it? [y]es"
)


def harmless(text: str) -> bool:
    controls = [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    marks = re.findall("[\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]", text)
    return not controls and not marks


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": {"path": HOSTILE}},
        {"arguments": {HOSTILE: 1}},
        {"arguments": {"path": {HOSTILE: [HOSTILE]}}},
        {"why": HOSTILE},
        {"preview": HOSTILE},
        {"preview": nb.Diff(HOSTILE, HOSTILE + "new")},
    ],
    ids=["value", "name", "nested", "why", "preview", "diff"],
)
async def test_hostile_text_can_neither_act_nor_look_like_ours(changes: dict[str, Any]):
    answer, text = await answer_to("e", "", "n", **changes)
    assert answer == nb.Answer("deny")
    assert harmless(text)
    ours = [line for line in text.split("\n") if line.startswith("Run it?")]
    assert len(ours) == 2
    unmarked = [line for line in text.split("\n") if line and not line.startswith("  ")]
    words = [line.split(" ")[0] for line in unmarked]
    name = "path" if "path" in text else unmarked[5].split(" ")[0]
    assert words == ["save", "Run", "(a", "New", "All", name, "Nothing", "Run", "(a"]


def test_every_line_of_a_value_is_marked():
    text = describe(
        question(arguments={"body": "one\nRun it? yes\n\nsave (readonly) wants to run"})
    )
    assert text.splitlines() == [
        "",
        "save (mutating) wants to run",
        "  why it asks: it is mutating",
        "  body:",
        "  | one",
        "  | Run it? yes",
        "  | ",
        "  | save (readonly) wants to run",
    ]


def test_values_that_are_no_text_are_shown_as_json():
    arguments = {"n": 1.5, "none": None, "rows": [1, "zwei", {"ä": True}], "big": 10**30}
    lines = describe(question(arguments=arguments)).splitlines()[3:]
    assert lines == [
        "  n: 1.5",
        "  none: null",
        '  rows: [1, "zwei", {"ä": true}]',
        f"  big: {10**30}",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"arguments": {"text": "x" * 1_000_000}},
        {"arguments": {"text": "\n" * 1_000_000}},
        {"arguments": {"text": "\x1b[" * 500_000}},
        {"arguments": {f"a{n}": n for n in range(100_000)}},
        {"arguments": {"x" * 1_000_000: 1}},
        {"why": "x" * 1_000_000},
        {"preview": "x\n" * 500_000},
        {"preview": nb.Diff("a\n" * 200_000, "b\n" * 200_000)},
        {"preview": nb.Diff("", "x" * 1_000_000)},
    ],
    ids=["long", "lines", "escapes", "many", "name", "why", "preview", "diff", "one line"],
)
def test_a_megabyte_is_cut_at_once_and_said_so(changes: dict[str, Any]):
    began = time.monotonic()
    text = describe(question(**changes))
    assert time.monotonic() - began < 2
    assert len(text) < 30_000
    assert text.count("\n") < 250
    assert re.search(r"… [\d,]+ more (characters|arguments)", text)


def test_a_diff_shows_what_changes():
    text = describe(question(preview=nb.Diff("one\ntwo\nthree", "one\n2\nthree")))
    lines = text.splitlines()[3:]
    assert lines == [
        "  | --- now",
        "  | +++ then",
        "  | @@ -1,3 +1,3 @@",
        "  |  one",
        "  | -two",
        "  | +2",
        "  |  three",
    ]


# -- several questions


def act_tool(ran: list[int]) -> nb.Tool:
    @nb.tool(risk="mutating")
    def act(x: int) -> str:
        """Act."""
        ran.append(x)
        return f"acted {x}"

    return act


async def test_questions_come_one_at_a_time_in_the_models_order():
    ran: list[int] = []
    terminal = Terminal("y", "n not this", "e", '{"x": 33}')
    calls = [nb.call("act", x=n) for n in (1, 2, 3)]
    agent = nb.Agent(nb.models.Scripted([calls, "done"]), tools=[act_tool(ran)])
    result = await agent.run("go", ui=terminal.approver)
    assert ran == [1, 33]
    assert list(result.tool_calls["status"]) == ["ok", "denied", "ok"]
    order = re.findall(r"  x: (\d)|(Run it\?)", terminal.text)
    assert [number or "?" for number, _ in order] == ["1", "?", "2", "?", "3", "?"]
    assert list(result.approvals["answered_by"]) == ["person"] * 3
    assert "not this" in result.tool_calls["result"][1]


async def test_an_edit_that_does_not_fit_is_asked_again_with_what_was_wrong():
    ran: list[int] = []
    terminal = Terminal("e many", 'e {"x": "many"}', "e", "7")
    agent = nb.Agent(nb.models.Scripted([nb.call("act", x=1), "done"]), tools=[act_tool(ran)])
    await agent.run("go", ui=terminal.approver)
    assert ran == [7]
    assert "That is no JSON" in terminal.text
    assert "could not be taken:" in terminal.text
    assert "`x` should be a valid integer" in terminal.text
    assert "question" not in terminal.text


async def test_a_line_typed_for_a_question_that_is_gone_answers_no_other():
    """It was answered elsewhere while the person typed: the line must not count for the next."""
    typed: list[str] = []
    at_the_prompt, go_on = threading.Event(), threading.Event()

    def read(prompt: str) -> str:
        if not typed:
            typed.append("late")
            at_the_prompt.set()
            go_on.wait(5)
            return "y"
        typed.append("own")
        return "n"

    ran: list[int] = []
    calls = [nb.call("act", x=1), nb.call("act", x=2)]
    agent = nb.Agent(nb.models.Scripted([calls, "done"]), tools=[act_tool(ran)])
    run = agent.start("go", ui=StdinApprover(read, lambda text: None))
    await asyncio.to_thread(at_the_prompt.wait, 5)
    run.answer("1.1.0", "deny")
    await asyncio.sleep(0.05)
    go_on.set()
    result = await run
    assert typed == ["late", "own"]
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied", "denied"]


async def test_two_runs_at_one_terminal_do_not_mix_questions_and_answers():
    ran: list[int] = []
    terminal = Terminal("y", "n", "y", "n")
    approver = terminal.approver

    async def one(n: int) -> Any:
        calls = [nb.call("act", x=n), nb.call("act", x=n + 1)]
        agent = nb.Agent(nb.models.Scripted([calls, "done"]), tools=[act_tool(ran)])
        return await agent.run("go", ui=approver)

    await asyncio.gather(one(10), one(20))
    asked = [int(x) for x in re.findall(r"  x: (\d+)", terminal.text)]
    assert sorted(asked) == [10, 11, 20, 21]
    assert sorted(ran) == sorted([asked[0], asked[2]])


def test_one_approver_serves_runs_of_several_loops():
    terminal = Terminal("y", "y")
    approver = terminal.approver
    ran: list[int] = []
    for n in (1, 2):
        agent = nb.Agent(nb.models.Scripted([nb.call("act", x=n), "done"]), tools=[act_tool(ran)])
        asyncio.run(agent.run("go", ui=approver))
    assert ran == [1, 2]


async def test_stop_while_the_terminal_waits_ends_the_run():
    go_on = threading.Event()

    def read(prompt: str) -> str:
        go_on.wait(5)
        return "y"

    ran: list[int] = []
    agent = nb.Agent(nb.models.Scripted([nb.call("act", x=1), "done"]), tools=[act_tool(ran)])
    run = agent.start("go", ui=StdinApprover(read, lambda text: None))
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await run
    go_on.set()
    assert result.stop_reason == "interrupted"
    await asyncio.sleep(0.05)
    assert ran == []


async def test_a_terminal_that_can_not_be_written_to_allows_nothing():
    def write(text: str) -> None:
        raise BrokenPipeError

    ran: list[int] = []
    agent = nb.Agent(nb.models.Scripted([nb.call("act", x=1), "done"]), tools=[act_tool(ran)])
    result = await agent.run("go", ui=StdinApprover(lambda prompt: "y", write))
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied"]
    assert list(result.tool_calls["decision_source"]) == ["failed"]


# -- a real terminal

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}

SCRIPT = """
import nbagent as nb

@nb.tool(risk="mutating")
def act(x: int) -> str:
    "Act."
    return f"acted {x}"

calls = [nb.call("act", x=n) for n in (1, 2, 3)]
agent = nb.Agent(nb.models.Scripted([calls, "All done."]), tools=[act])
run = agent.run_sync("go")
print("DECIDED", list(run.tool_calls["decision"]), list(run.tool_calls["decision_source"]))
print("RAN", list(run.tool_calls["result"]), run.text)
print("NEXT", repr(input("next? ")))
"""

on_a_terminal = pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals there")


class Pty:
    """A program on a pseudo-terminal."""

    def __init__(self, folder: Path, text: str, **streams: Any) -> None:
        import pty

        script = folder / "script.py"
        script.write_text(textwrap.dedent(text))
        self.main, side = pty.openpty()
        self.seen = ""
        settings: dict[str, Any] = {"stdin": side, "stdout": side, "stderr": side, **streams}
        self.process = subprocess.Popen(
            [sys.executable, str(script)], start_new_session=True, env=ENVIRONMENT, **settings
        )
        os.close(side)

    def __enter__(self) -> Pty:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self.main)

    def until(self, text: str, seconds: float = 20) -> str:
        """Read until the text has come; gives what came up to it."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, f"no {text!r} in {self.seen!r}"
            if select.select([self.main], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.main, 65_536).decode()
                except OSError:
                    pytest.fail(f"it ended without {text!r}: {self.seen!r}")
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def type(self, line: str) -> None:
        os.write(self.main, line.encode())

    def end(self) -> int:
        return self.process.wait(20)


@on_a_terminal
def test_a_script_asks_on_its_terminal(tmp_path: Path):
    with Pty(tmp_path, SCRIPT) as program:
        shown = program.until("Run it? ")
        assert "act (mutating) wants to run" in shown
        assert "  x: 1" in shown
        program.type("y\n")
        assert "  x: 2" in program.until("Run it? ")
        program.type("e\n")
        program.until("as JSON")
        program.type('{"x": 22}\n')
        assert "  x: 3" in program.until("Run it? ")
        program.type("n too many\n")
        shown = program.until("RAN")
        assert "['allow', 'allow', 'deny'] ['person', 'person', 'person']" in shown
        assert "acted 22" in program.until("All done.")
        check_the_next_line_is_the_scripts(program)


def check_the_next_line_is_the_scripts(program: Pty) -> None:
    """No reader of ours is left over that would swallow it."""
    program.until("next? ")
    program.type("mine\n")
    program.until("NEXT 'mine'")
    assert program.end() == 0


@on_a_terminal
def test_an_always_on_the_terminal_frees_the_rest(tmp_path: Path):
    with Pty(tmp_path, SCRIPT) as program:
        program.until("Run it? ")
        program.type("a\n")
        assert "Run it?" not in program.until("RAN")
        check_the_next_line_is_the_scripts(program)


@on_a_terminal
def test_ctrl_d_on_the_terminal_is_a_no(tmp_path: Path):
    with Pty(tmp_path, SCRIPT) as program:
        for _ in range(3):
            program.until("Run it? ")
            program.type("\x04")
        assert "['deny', 'deny', 'deny']" in program.until("RAN")
        check_the_next_line_is_the_scripts(program)


@on_a_terminal
def test_a_question_on_the_terminal_expires(tmp_path: Path):
    script = SCRIPT.replace("tools=[act]", "tools=[act], approval=nb.Approval(timeout_s=0.3)")
    with Pty(tmp_path, script) as program:
        program.until("Run it? ")
        assert "expired" in program.until("RAN")
        check_the_next_line_is_the_scripts(program)


@on_a_terminal
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_redirected_stream_does_not_hide_the_question(tmp_path: Path, stream: str):
    target = tmp_path / "file"
    script = SCRIPT.rpartition("print")[0]
    with target.open("w") as file, Pty(tmp_path, script, **{stream: file}) as program:
        for n in (1, 2, 3):
            assert f"  x: {n}" in program.until("Run it? ")
            program.type("y\n")
        assert program.end() == 0
    assert "Run it?" not in target.read_text()


INTERRUPTED = """
import nbagent as nb

@nb.tool(risk="mutating")
def act() -> str:
    "Act."
    return "acted"

agent = nb.Agent(nb.models.Scripted([nb.call("act"), "never"]), tools=[act])
try:
    agent.run_sync("go")
except KeyboardInterrupt:
    print("STOPPED", list(agent.last_run.session.to_pandas("tools")["status"]))
"""


@on_a_terminal
@pytest.mark.parametrize("piped", [False, True])
def test_ctrl_c_at_the_question_ends_the_script_cleanly(tmp_path: Path, piped: bool):
    """A thread that reads at exit must not bring the interpreter down."""
    streams = {"stdout": subprocess.PIPE} if piped else {}
    with Pty(tmp_path, INTERRUPTED, **streams) as program:
        program.until("stop the run): ")
        program.process.send_signal(signal.SIGINT)
        if program.process.stdout is not None:
            assert b"STOPPED ['aborted']" in program.process.stdout.read()
        else:
            assert "elsewhere" not in program.until("STOPPED ['aborted']")
        assert program.end() == 0


@on_a_terminal
def test_ctrl_c_and_the_end_of_time_say_that_the_call_is_not_run(tmp_path: Path):
    with Pty(tmp_path, INTERRUPTED + "import time; time.sleep(1)") as program:
        program.until("stop the run): ")
        program.process.send_signal(signal.SIGINT)
        program.until("(stopped: it is not run)")
        assert program.end() == 0
    script = SCRIPT.replace("tools=[act]", "tools=[act], approval=nb.Approval(timeout_s=0.3)")
    with Pty(tmp_path, script) as program:
        program.until("(no answer in time: it is not run)")


@on_a_terminal
def test_several_questions_are_counted_and_the_count_follows_the_answers(tmp_path: Path):
    with Pty(tmp_path, SCRIPT) as program:
        for n in (1, 2, 3):
            assert f"wants to run (question {n} of 3)" in program.until("Run it? ")
            program.type("y\n")
        program.until("RAN")


@on_a_terminal
def test_ctrl_d_and_enter_say_what_they_did(tmp_path: Path):
    with Pty(tmp_path, SCRIPT) as program:
        program.until("stop the run): ")
        program.type("\x04")
        program.until("(Ctrl-D or the end of the input: act is not run)")
        program.until("stop the run): ")
        program.type("\n")
        program.until("(Enter: act is not run)")


def test_answers_may_be_piped_in(tmp_path: Path):
    script = SCRIPT.replace('run_sync("go")', 'run_sync("go", ui="stdin")').rpartition("print")[0]
    path = tmp_path / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path)],
        input="y\nn\n",
        capture_output=True,
        text=True,
        check=True,
        env=ENVIRONMENT,
    )
    assert "DECIDED ['allow', 'deny', 'deny']" in done.stdout

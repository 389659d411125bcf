"""Logs written event by event, in the order in which the loop writes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from nbagent.events import approval, model, note, session, tool, turn
from nbagent.events.disk import chunk_data
from nbagent.log import Log

TOOLS = [
    {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object"},
        "risk": "readonly",
    },
    {
        "name": "publish",
        "description": "Write.",
        "parameters": {"type": "object"},
        "risk": "mutating",
    },
]


class Writer:
    """Writes a session."""

    def __init__(self) -> None:
        self.clock: Iterator[int] = count(1_796_031_533_000, 7)
        self.log = Log(id_="s1", clock=lambda: next(self.clock))
        self.turn = self.step = self.attempt = self.items = 0
        self.second = 0
        """Where the second run begins."""

    def add(self, type_: str, /, *, ignorable: bool = False, **data: Any) -> int:
        return self.log.append(type_, data, ignorable=ignorable)

    def prompt(self, text: str, run: int = 1) -> None:
        """A turn begins, and its first step."""
        self.items += 1
        message = {"role": "user", "text": text}
        self.send("next_turn", message)
        self.turn += 1
        self.step = 0
        self.add("turn/start", turn=self.turn, run=run)
        self.log.append("agent/inbox/spliced", session.spliced("next_turn", 0, removed=1))
        self.begin()
        self.add("user/message", id=f"m{self.items}")

    def send(self, target: str, message: dict[str, Any], **more: Any) -> None:
        item = {"id": f"m{self.items}", "message": message, **more}
        self.log.append("agent/inbox/spliced", session.spliced(target, 0, inserted=[item]))

    def begin(self) -> None:
        self.step += 1
        self.attempt = 0
        self.add("step/start", turn=self.turn, step=self.step)

    def header(self, reason: str = "initial", **settings: Any) -> None:
        header = {"model": "scripted", "instructions": "Be brief.", "tools": TOOLS}
        self.add("request/header", header={**header, "settings": settings}, reason=reason)

    def ask(self, cause: str | None = None, tail: Any = (), choice: Any = None) -> int:
        """A request is sent."""
        self.attempt += 1
        surface, header = self.log.folds.surface, self.log.folds.header.seq
        size, digest = len(surface.nodes), surface.digest
        data = model.sent(self.attempt, cause, header, size, digest, list(tail), choice, None)
        return self.log.append("request/sent", data)

    def end(self, finish: str = "stop", **more: Any) -> None:
        self.log.append("attempt/end", model.attempt_end(finish, 12.5, **more))

    def answer(self, text: str, *calls: tuple[str, str], **more: Any) -> None:
        """The model answers at once, and the answer is taken."""
        for piece in text.split(" "):
            self.log.append("assistant/chunk", chunk_data(0, "text", piece))
        self.end("tool_calls" if calls else "stop", first_ms=3.5, usage={"input": 10, "output": 2})
        self.add("assistant/message", message=node(text, *calls), **more)

    def call(self, position: int, source: str = "mode", action: str = "allow", **more: Any) -> None:
        """A call is looked at and decided."""
        self.add("tool/call", position=position)
        self.log.append("tool/decision", tool.decision(position, action, source, **more))

    def result(self, position: int, raw: str | None, **more: Any) -> None:
        self.log.append("tool/result", tool.result(position, raw=raw, **more))

    def close(self, stop: str | None = None) -> None:
        """The step ends, and with `stop` the turn."""
        self.add("step/end", turn=self.turn, step=self.step)
        if stop:
            reason = "completed" if stop == "end_turn" else "aborted"
            self.log.append("turn/end", turn.turn_end(self.turn, reason, stop))

    def question(self, position: int, arguments: dict[str, Any], nth: int = 1) -> str:
        id_ = f"{self.turn}.{self.step}.{position}" + ("" if nth == 1 else f".{nth}")
        self.add(
            "approval/asked",
            id=id_,
            position=position,
            capability="cap://tool/files/publish@1",
            risk="mutating",
            why="it writes",
            arguments=arguments,
            fingerprint="aa:bb",
        )
        return id_

    def reply(self, id_: str, decision: str, by: str = "person", **more: Any) -> None:
        self.log.append("approval/answered", approval.answered(id_, decision, by, 250.0, **more))

    def notice(self, kind: str, text: str) -> None:
        self.log.append("notice", note.notice(kind, text))


def node(text: str, *calls: tuple[str, str]) -> dict[str, Any]:
    """An answer in log form."""
    if not calls:
        return {"role": "assistant", "text": text}
    parts: list[dict[str, Any]] = [{"text": text}] if text else []
    parts += [
        {"call": name, "id": f"c{n}", "arguments": arguments}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "parts": parts}


@pytest.fixture
def writer() -> Writer:
    """An empty session to write."""
    return Writer()


@pytest.fixture
def rich(writer: Writer) -> Writer:
    """Two runs with a bounce, a failure, parallel calls, a question, notes."""
    w = writer
    w.prompt("find and publish")
    w.header(temperature=0)
    w.ask()
    w.end(usage={"input": 10, "output": 3, "reasoning": 4})
    draft = w.add("assistant/draft", message=node("There are 3.", ("search", "{}")))
    w.log.append(
        "review/verdict",
        model.verdict("no_numbers", "retry", "no-numbers", text="No digits.", tally=1),
    )
    w.add("attempt/discarded", why="rejected")
    reminder = {
        "role": "user",
        "text": "<system-reminder>No digits.</system-reminder>",
        "source": "no-numbers",
    }
    not_run = {
        "role": "tool",
        "id": "c0",
        "name": "search",
        "text": "Not run: the answer was sent back.",
    }
    w.ask(
        "bounce",
        [{"draft": draft}, not_run, reminder],
        {"tool_choice": "search", "offered": ["search"]},
    )
    w.answer(
        "let me see",
        ("search", '{"query": "a"}'),
        ("search", '{"query": "b"}'),
        ("publish", '{"path": "x", "text": "é"}'),
        ("nothing", '{"broken'),
    )
    w.call(0)
    w.call(1)
    w.add("tool/done", position=1, raw="second", duration_ms=4.0)
    w.result(0, "first", duration_ms=5.0)
    w.result(1, None, duration_ms=4.0)
    w.add("tool/call", position=2)
    id_ = w.question(2, {"path": "x", "text": "é", "mode": "new"})
    w.reply(id_, "always_allow", reason="fine")
    w.log.append("tool/decision", tool.decision(2, "allow", "person", why="fine"))
    w.add(
        "note",
        ignorable=True,
        source="publish",
        kind="written",
        data={"bytes": 7, "deep": [1, {"a": None}]},
    )
    w.result(2, "0123456789", shown="0123… cut", meta={"truncated": True}, duration_ms=1.0)
    w.add("tool/call", position=3)
    w.result(3, "Error: there is no tool `nothing`", status="error", error="UnknownTool")
    w.close()
    w.begin()
    w.ask()
    w.end("error", failure={"type": "RateLimitError", "message": "slow down", "status": 429})
    w.add("attempt/discarded", why="failed")
    w.notice("retry", "waiting 0.5 s")
    w.ask("retry", [{"role": "user", "text": "Finish soon.", "source": "budget"}])
    w.answer("all done")
    w.close("end_turn")
    w.second = len(w.log)
    w.prompt("and again", run=2)
    w.header("change", temperature=1)
    w.ask()
    w.answer("once more")
    w.close("end_turn")
    return w

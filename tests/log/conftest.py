"""Ways to write a log: a plain agent's steps, and a random walk through all that may come."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from nbagent.errors import SessionError
from nbagent.events import SPECS, model, session, tool, turn
from nbagent.events.disk import chunk_data
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore

Draw = tuple[int, int, str]
"""What decides about one event of a walk: two numbers and a text."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a session file may be."""
    return tmp_path / "log.jsonl"


@pytest.fixture(scope="session")
def write() -> Callable[..., Log]:
    """Open a file and write a turn of so many steps."""
    return _write


@pytest.fixture(scope="session")
def begin_attempt() -> Callable[[Log], None]:
    """Bring a log to where chunks may come."""
    return _begin_attempt


@pytest.fixture(scope="session")
def walk() -> Callable[[Log, Iterable[Draw]], int]:
    """Try an event for each draw; gives how many were accepted."""
    return _walk


@pytest.fixture(scope="session")
def state() -> Callable[[Any], Any]:
    """All that folds hold, as plain values that can be compared."""
    return _state


def _write(path: Path, steps: int = 2, **settings: Any) -> Log:
    log = Log(JsonlStore(path), **settings)
    log.acquire()
    if log.seeded:
        log.seeded = False
        log.append("session/end-seed", {})
    _turn(log, steps)
    log.flush()
    return log


def _turn(log: Log, steps: int) -> None:
    number = log.folds.turn.turn + 1
    item = {"id": f"m{number}", "message": {"role": "user", "text": "go"}}
    log.append("agent/inbox/spliced", session.spliced("next_turn", 0, inserted=[item]))
    log.append("turn/start", {"turn": number, "run": number})
    log.append("agent/inbox/spliced", session.spliced("next_turn", 0, removed=1))
    for step in range(1, steps + 1):
        log.append("step/start", {"turn": number, "step": step})
        if step == 1:
            log.append("user/message", {"id": item["id"]})
            log.append("request/header", {"header": {"model": "m"}, "reason": "initial"})
        _request(log)
        log.flush()
        for piece in ("Grüße, ", "wor", "ld"):
            log.append("assistant/chunk", chunk_data(0, "text", piece))
        log.append("attempt/end", model.attempt_end("tool_calls", 0.1, usage={"input": 3}))
        call = {"call": "add", "id": f"c{step}", "arguments": '{"a":1}'}
        message = {"role": "assistant", "parts": [{"text": "Grüße, world"}, call]}
        log.append("assistant/message", {"message": message})
        log.append("tool/call", {"position": 0})
        log.append("tool/decision", tool.decision(0, "allow", "readonly"))
        log.flush()
        log.append("tool/result", tool.result(0, raw="3"))
        log.append("step/end", {"turn": number, "step": step})
    log.append("turn/end", turn.turn_end(number, "completed", "end_turn"))


def _request(log: Log) -> None:
    folds = log.folds
    length, digest = len(folds.surface.nodes), folds.surface.digest
    attempt, header = folds.turn.attempt + 1, folds.header.seq
    data = model.sent(attempt, None, header, length, digest, [], None, None)
    log.append("request/sent", data)


def _begin_attempt(log: Log) -> None:
    number = log.folds.turn.turn + 1
    log.append("turn/start", {"turn": number, "run": number})
    log.append("step/start", {"turn": number, "step": 1})
    log.append("user/message", {"id": "x", "message": {"role": "user", "text": "go"}})
    log.append("request/header", {"header": {"model": "m"}, "reason": "initial"})
    _request(log)


# -- the walk


def _walk(log: Log, draws: Iterable[Draw]) -> int:
    before = len(log)
    for choice, number, text in draws:
        if number % 16 == 15:
            log.flush()
        made = {type_: _make(log, type_, number, text) for type_ in SPECS}
        fitting = [t for t, data in made.items() if _fits(log, t, data)]
        # Mostly what may come now, so that the walk leads somewhere.
        names: Sequence[str] = fitting if choice % 8 else list(SPECS)
        type_ = names[choice // 8 % len(names)]
        size = len(log)
        try:
            log.append(type_, made[type_], ignorable=type_ == "note")
        except (SessionError, LookupError, TypeError, ValueError, AttributeError):
            assert len(log) == size
        else:
            assert len(log) == size + 1
    return len(log) - before


def _fits(log: Log, type_: str, data: dict[str, Any]) -> bool:
    try:
        return log.folds.refusal(type_, data) is None
    except (LookupError, TypeError):
        return False


def _make(log: Log, type_: str, n: int, text: str) -> dict[str, Any]:
    """Data of an event, mostly such that fits; `n` and `text` vary it."""
    t, surface = log.folds.turn, log.folds.surface
    off = n % 16 == 14
    position = sum(call.called for call in log.folds.calls.calls) - n // 4 % 2
    asked = next(iter(log.folds.approvals.open), "1.1.0")
    item = {"id": f"m{log.folds.inbox.made + 1}", "message": {"role": "user", "text": text}}
    claimed = next(iter(log.folds.inbox.claimed), "none")
    calls = [{"call": f"t{i}", "id": f"c{i}", "arguments": text} for i in range(n % 4)]
    said = {"role": "assistant", "parts": [{"text": text}, {"thinking": text}, *calls]}
    kinds = ("text", "thinking", "name", "arguments")
    deny = ("allow", "deny", "always_deny", "always_allow")[n % 4]
    made: dict[str, dict[str, Any]] = {
        "agent/inbox/spliced": session.spliced(
            ("next_turn", "next_step")[n % 2],
            0,
            removed=n % 3 % 2,
            inserted=[item] if n % 2 else None,
            outcome="dropped" if n % 7 == 0 else None,
        ),
        "control/interrupt": session.interrupt("user", text),
        "control/steer": {"item": text},
        "turn/start": {"turn": t.turn + 1 + off, "run": t.run + n % 2},
        "turn/end": turn.turn_end(t.turn + off, "completed", "end_turn", truncated=off),
        "step/start": {"turn": t.turn, "step": t.step + 1 + off},
        "step/end": {"turn": t.turn, "step": t.step + off},
        "user/message": {"id": claimed}
        if n % 2
        else {"id": text, "message": {"role": "user", "text": text}},
        "request/header": {"header": {"model": text}, "reason": "change"},
        "request/context": {"model": text, "window": n},
        "request/sent": model.sent(
            t.attempt + 1 + off,
            (None, "bounce", "retry")[n % 3],
            log.folds.header.seq,
            len(surface.nodes),
            surface.digest,
            [],
            None,
            None,
        ),
        "assistant/chunk": chunk_data(n % 3, kinds[n % 4], text),
        "attempt/end": model.attempt_end("stop", n / 10, usage={"input": n}, failure={"m": text}),
        "assistant/draft": {"message": said},
        "review/verdict": model.verdict("r", "retry", text, tally=n),
        "attempt/discarded": {"why": text},
        "assistant/message": {"message": said},
        "tool/call": {"position": position + n // 4 % 2},
        "tool/decision": tool.decision(position, deny[:5], "rule", arguments={"a": text}),
        "tool/done": {"position": position, "raw": text},
        "tool/result": tool.result(
            sum(call.result is not None for call in log.folds.calls.calls) + off,
            raw=text if n % 4 else None,
            shown=text[:3],
            status="error" if off else "ok",
        ),
        "approval/asked": {
            "id": f"{t.turn}.{t.step}.{position}" + (".2" if n % 8 == 1 else ""),
            "position": position,
            "capability": "tool",
            "risk": "mutating",
            "fingerprint": f"{text}:1",
        },
        "approval/answered": {"id": asked, "decision": deny, "by": "person", "wait_ms": 1.5},
        "notice": {"kind": "k", "text": text},
        "note": {"source": "s", "kind": "k", "data": [text, n, None, {"b": n, "type": text}]},
    }
    return made.get(type_, {})


def _state(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _state(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple | array):
        return [_state(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, set):
        return sorted(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    names: Any = getattr(value, "__slots__", None)
    return value if names is None else {name: _state(getattr(value, name)) for name in names}

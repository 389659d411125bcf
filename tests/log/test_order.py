"""What may follow what; whatever `append` took is read back, whatever it refused left no trace."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbagent.errors import SessionError
from nbagent.events import SPECS
from nbagent.folds import Folds
from nbagent.log import Log, verify
from nbagent.stores.jsonl import JsonlStore

DRAWS = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.text(max_size=4)), max_size=80
)
each = settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ODD = st.sampled_from([None, True, 0, 1, -1, 1.0, 2**70, "", "x", [], ["x"], {}, {"text": 1}])


@each
@given(DRAWS)
def test_a_walk_is_folded_and_verified_from_its_lines_alone(walk: Any, state: Any, draws: Any):
    log = Log()
    walk(log, draws)
    folds = Folds()
    for event in log.events:
        assert folds.refusal(event.type, event.record["data"]) is None
        folds.step(event.seq, event.type, event.record["data"])
    assert state(folds) == state(log.folds)
    report = verify(log.header_line, log.lines)
    assert (report.ok, report.events) == (True, len(log))


def test_walks_come_everywhere(walk: Any):
    import random

    seen: Counter[str] = Counter()
    for seed in range(30):
        numbers, log = random.Random(seed), Log()
        walk(log, [(numbers.randrange(10**6), numbers.randrange(10**6), "t") for _ in range(200)])
        seen.update(event.type for event in log.events)
    assert set(SPECS) == set(seen)


@each
@given(DRAWS, st.sampled_from(sorted(SPECS)), st.data())
def test_odd_data_are_refused_or_read_back(
    walk: Any, state: Any, draws: Any, type_: str, data: st.DataObject
):
    log = Log()
    walk(log, draws)
    names = [field.name for field in SPECS[type_].fields]
    given_data = {name: data.draw(ODD) for name in names if data.draw(st.booleans())}
    before = (list(log.lines), state(log.folds))
    try:
        log.append(type_, given_data)
    except (SessionError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
        assert (log.lines, state(log.folds)) == before
    again = verify(log.header_line, log.lines)
    assert again.ok, again
    log.append("notice", {"kind": "k", "text": "still works"})


def test_an_interrupt_at_any_point_leaves_a_whole_log(path: Path, write: Any, state: Any):
    """The kernel's stop button may hit wherever Python looks for signals: at and after calls."""
    log: Log = write(path)
    left = count = 0
    done = False

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event in {"call", "c_return"} and "nbagent" in frame.f_code.co_filename:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

    while not done:
        count += 1
        left = count
        number = log.folds.turn.turn + 1
        sys.setprofile(profile)
        try:
            log.append("turn/start", {"turn": number, "run": number})
            log.append("turn/end", {"turn": number, "reason": "completed"})
            log.flush()
            done = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        folds = Folds()
        for event in log.events:
            folds.step(event.seq, event.type, event.record["data"])
        assert state(folds) == state(log.folds)
        assert log.verify().ok, count
        log.flush()
        assert log.verify().ok, count
        if log.folds.turn.turn_open:
            log.append("turn/end", {"turn": log.folds.turn.turn, "reason": "completed"})
    assert count > 60
    log.release()
    assert Log(JsonlStore(path)).lines == log.lines


def test_who_looks_on_cannot_stop_an_append():
    log = Log()
    seen: list[int] = []

    def broken() -> None:
        raise RuntimeError

    unwatch = log.watch(broken)
    log.watch(lambda: seen.append(len(log)))
    log.append("session/end-seed", {})
    unwatch()
    log.append("session/end-seed", {})
    assert seen == [1, 2]


def test_a_type_nobody_knows_is_refused():
    with pytest.raises(SessionError, match="event `tool/calls` can't come now: there is no such"):
        Log().append("tool/calls", {})


@pytest.mark.slow
def test_appending_costs_the_same_however_long_the_log_is(path: Path):
    log = Log(JsonlStore(path))
    log.acquire()
    log.append("turn/start", {"turn": 1, "run": 1})
    log.append("step/start", {"turn": 1, "step": 1})
    spent: list[float] = []
    message = {"role": "user", "text": "x" * 200}
    for _ in range(20):
        began = time.process_time()
        for n in range(5_000):
            log.append("user/message", {"id": str(n), "message": dict(message)})
            log.flush()
        spent.append((time.process_time() - began) / 5_000)
    log.release()
    assert min(spent[-5:]) < 1.5 * min(spent[:5])
    assert min(spent) < 60e-6  # about 10 on a machine that does nothing else
    began = time.process_time()
    assert len(Log(JsonlStore(path))) == 100_002
    assert time.process_time() - began < 5  # about 0.8

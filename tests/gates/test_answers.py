"""Answers: what a person may say, how long it holds, and questions that wait side by side."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checker import check_history

import nbagent as nb


def maker(ran: list[Any], risk: Any = "mutating", name: str = "act") -> nb.Tool:
    @nb.tool(risk=risk, name=name)
    def act(x: int = 0) -> str:
        """Act."""
        ran.append(x)
        return f"acted {x}"

    return act


def agent_of(replies: list[Any], *tools: nb.Tool, **settings: Any) -> nb.Agent:
    return nb.Agent(nb.models.Scripted([*replies, "done"]), tools=tools, **settings)


class Person:
    """Gives prepared answers, then the last one again, and keeps the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[nb.Question] = []

    async def decide(self, question: nb.Question) -> Any:
        self.asked.append(question)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Nobody:
    """Never answers: what is asked waits for `run.answer`."""

    async def decide(self, question: nb.Question) -> Any:
        await asyncio.Event().wait()


async def until(condition: Callable[[], Any], seconds: float = 5) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.002)


async def waiting(run: nb.Run, count: int) -> list[str]:
    """Ids of the open questions, once there are so many."""
    await until(lambda: len(run.pending()) == count)
    return [question.id for question in run.pending()]


def last_request(agent: nb.Agent) -> Any:
    model: Any = agent._spec.model
    return model.requests[-1]


# -- editing


async def test_an_edit_runs_instead_and_the_model_is_told_first():
    ran: list[int] = []
    agent = agent_of([nb.call("act", x=1)], maker(ran))
    result = await agent.run("go", ui=Person(nb.edit({"x": 7}, reason="seven is safer")))
    assert ran == [7]
    row = result.tool_calls.iloc[0]
    assert (row["decision"], row["decision_source"], row["status"]) == ("allow", "person", "ok")
    assert row["args_json"] == '{"x":1}'
    assert row["effective_args_json"] == '{"x":7}'
    first, *rest = row["result"].splitlines()
    assert "changed the arguments" in first
    assert rest == ["acted 7"]
    assert result.approvals["edited_args_json"][0] == '{"x":7}'


async def test_an_edit_is_validated_and_a_bad_one_is_refused_to_the_person():
    ran: list[int] = []
    run = agent_of([nb.call("act", x=1)], maker(ran)).start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    for arguments in ({"x": "many"}, {"y": 1}, {"x": None, "z": 1}, {"x": float("nan")}):
        with pytest.raises(nb.errors.ConfigError, match="don't fit `act`"):
            run.answer(id_, "edit", arguments=arguments)
    assert [question.id for question in run.pending()] == [id_]
    run.answer(id_, "edit", arguments={"x": "5"})
    await run
    assert ran == [5]


@pytest.mark.parametrize("mode", ["interactive", "plan", "auto"])
async def test_an_edit_can_not_pass_what_nobody_can_allow(mode: Any):
    """Steps 1 to 3 are looked at again."""
    ran: list[int] = []
    agent = agent_of(
        [nb.call("act", x=1)],
        maker(ran),
        approval=nb.Approval(mode=mode, rules=["ask act(x=1)", "deny act(x=9)"]),
    )
    result = await agent.run("go", ui=Person(nb.edit({"x": 9})))
    assert ran == []
    assert list(result.tool_calls["decision_source"]) == ["rule"]
    assert list(result.tool_calls["status"]) == ["denied"]


async def test_an_edit_is_not_stopped_by_rules_that_ask():
    ran: list[int] = []
    person = Person(nb.edit({"x": 2}))
    agent = agent_of(
        [nb.call("act", x=1)], maker(ran), approval=nb.Approval(rules=["ask act(x=2)"])
    )
    await agent.run("go", ui=person)
    assert ran == [2]
    assert len(person.asked) == 1


async def test_an_edit_is_never_remembered():
    ran: list[int] = []
    person = Person(nb.edit({"x": 5}))
    agent = agent_of([nb.call("act", x=1), nb.call("act", x=1)], maker(ran))
    await agent.run("go", ui=person)
    assert len(person.asked) == 2
    assert agent.remembered().empty


async def test_an_edit_holds_when_a_later_answer_allows_the_tool_for_ever():
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=1), nb.call("act", x=2)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 2)
    run.answer(ids[1], "edit", arguments={"x": 22})
    run.answer(ids[0], "always_allow")
    result = await run
    assert ran == [1, 22]
    assert list(result.tool_calls["decision_source"]) == ["person", "person"]


# -- remembering


async def test_always_allow_holds_for_all_arguments_and_for_later_runs_of_the_agent():
    ran: list[int] = []
    person = Person("always_allow")
    agent = agent_of(
        [nb.call("act", x=1), nb.call("act", x=2), "done", nb.call("act", x=3)], maker(ran)
    )
    first = await agent.run("go", ui=person)
    second = await agent.run("go", ui="none")
    assert ran == [1, 2, 3]
    assert len(person.asked) == 1
    assert list(first.tool_calls["decision_source"]) == ["person", "remembered"]
    table = agent.remembered()
    assert list(table.columns) == ["id", "name", "ref", "decision"]
    seq = next(e.seq for e in first.events if e.type == "approval/answered")
    assert table.iloc[0].tolist() == [
        f"{first.session.id}:{seq}",
        "act",
        "cap://tool/local/act@1",
        "allow",
    ]
    assert second.tool_calls["rule"][0] == table["id"][0]


async def test_always_deny_refuses_without_asking():
    person = Person(nb.Answer("always_deny", reason="it costs money"))
    agent = agent_of([nb.call("act", x=1), nb.call("act", x=2)], maker([]))
    result = await agent.run("go", ui=person)
    assert len(person.asked) == 1
    assert list(result.tool_calls["decision_source"]) == ["person", "remembered"]
    assert "it costs money" in result.tool_calls["result"][0]
    assert "always refuse" in result.tool_calls["result"][1]


async def test_what_is_forgotten_is_asked_again():
    person = Person("always_allow")
    agent = agent_of([nb.call("act"), "done", nb.call("act"), "done", nb.call("act")], maker([]))
    await agent.run("go", ui=person)
    assert agent.forget("no such answer") == 0
    assert agent.forget(agent.remembered()["id"][0]) == 1
    await agent.run("go", ui=person)
    assert agent.forget() == 1
    assert agent.remembered().empty
    await agent.run("go", ui=person)
    assert len(person.asked) == 3


async def test_a_deny_rule_stands_above_what_is_remembered():
    ran: list[int] = []
    agent = agent_of(
        [nb.call("act", x=1), nb.call("act", x=2)],
        maker(ran),
        approval=nb.Approval(rules=["deny act(x=2)"]),
    )
    await agent.run("go", ui=Person("always_allow"))
    assert ran == [1]


async def test_dangerous_is_asked_each_time_and_can_not_be_remembered():
    ran: list[int] = []
    person = Person("allow")
    agent = agent_of([nb.call("act", x=1), nb.call("act", x=2)], maker(ran, "dangerous"))
    run = agent.start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    assert not run.pending()[0].rememberable
    for word in ("always_allow", "always_deny"):
        with pytest.raises(nb.errors.ConfigError, match="dangerous"):
            run.answer(id_, word)
    run.answer(id_, "allow")
    await waiting(run, 1)
    run.interrupt()
    await run
    assert ran == [1]
    assert agent.remembered().empty
    again = agent_of([nb.call("act", x=1), nb.call("act", x=2)], maker(ran, "dangerous"))
    await again.run("go", ui=person)
    assert len(person.asked) == 2


async def test_an_approver_that_always_allows_the_dangerous_allows_nothing():
    ran: list[int] = []
    agent = agent_of([nb.call("act")], maker(ran, "dangerous"))
    result = await agent.run("go", ui=Person("always_allow"))
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied"]


def same_source(ran: list[Any]) -> nb.Tool:
    return maker(ran, name="save")


def other_source(ran: list[Any]) -> nb.Tool:
    @nb.tool(risk="mutating")
    def save(x: int = 0) -> str:
        """Act."""
        ran.append(-x)
        return "acted another way"

    return save


async def test_defining_a_tool_again_keeps_answers_and_changing_it_forgets_them():
    ran: list[int] = []
    person = Person("always_allow")
    model = nb.models.Scripted([nb.call("save", x=1), "done"] * 3)
    agent = nb.Agent(model, tools=[same_source(ran)])
    await agent.run("go", ui=person)
    agent.add_tool(same_source(ran), replace=True)
    await agent.run("go", ui=person)
    assert len(person.asked) == 1
    agent.add_tool(other_source(ran), replace=True)
    await agent.run("go", ui=person)
    assert len(person.asked) == 2
    assert ran == [1, 1, -1]


def test_the_fingerprint_is_of_name_risk_schema_and_source():
    def tool(**changes: Any) -> nb.Tool:
        settings: dict[str, Any] = {
            "name": "t",
            "description": "Does.",
            "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
            "call": print,
            "risk": "mutating",
            "source": "one",
        }
        return nb.Tool(**{**settings, **changes})

    first = tool().fingerprint
    assert tool().fingerprint == first
    assert tool(call=len, timeout_s=5).fingerprint == first
    changed: list[dict[str, Any]] = [
        {"name": "u"},
        {"risk": "readonly"},
        {"source": "two"},
        {"parameters": {"type": "object", "properties": {"x": {"type": "string"}}}},
    ]
    assert first not in {tool(**change).fingerprint for change in changed}


async def test_answers_kept_with_the_session_survive_opening_it_again(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    ran: list[int] = []
    keep = nb.Approval(remember="session")
    person = Person("always_allow")

    async def go(approval: nb.Approval) -> Any:
        session = nb.Session.open(path)
        agent = agent_of([nb.call("act", x=1)], maker(ran), approval=approval)
        result = await agent.run("go", session=session, ui=person)
        assert agent.remembered().empty is (approval is keep)
        session.close()
        return result

    first = await go(keep)
    seq = next(e.seq for e in first.events if e.type == "approval/answered")
    expected = f"{first.session.id}:{seq}"
    del first
    second = await go(keep)
    assert second.tool_calls["rule"][0] == expected
    assert len(person.asked) == 1
    await go(nb.Approval(remember="agent"))
    assert len(person.asked) == 2


async def test_answers_of_one_session_do_not_hold_in_another():
    person = Person("always_allow")
    agent = agent_of(
        [nb.call("act"), "done", nb.call("act")],
        maker([]),
        approval=nb.Approval(remember="session"),
    )
    await agent.run("go", ui=person)
    await agent.run("go", ui=person)
    assert len(person.asked) == 2


async def test_without_remembering_always_is_refused_to_the_person():
    run = agent_of([nb.call("act")], maker([]), approval=nb.Approval(remember=None)).start(
        "go", ui=Nobody()
    )
    (id_,) = await waiting(run, 1)
    assert not run.pending()[0].rememberable
    with pytest.raises(nb.errors.ConfigError):
        run.answer(id_, "always_allow")
    run.answer(id_, "deny")
    await run


# -- nobody there, and time


async def test_a_question_that_nobody_answers_expires_as_a_refusal():
    ran: list[int] = []
    agent = agent_of([nb.call("act")], maker(ran), approval=nb.Approval(timeout_s=0.05))
    run = agent.start("go", ui=Nobody())
    (question,) = [run.pending()[0] for _ in await waiting(run, 1)]
    assert question.expires_ms is not None
    result = await run
    assert ran == []
    row = result.tool_calls.iloc[0]
    assert (row["decision"], row["decision_source"], row["status"]) == ("deny", "expired", "denied")
    assert "nobody answered" in row["result"]
    assert row["approval_wait_ms"] >= 45
    assert list(result.approvals["answered_by"]) == ["expired"]


async def test_questions_expire_each_for_itself():
    ran: list[int] = []
    agent = agent_of(
        [[nb.call("act", x=n) for n in range(3)]], maker(ran), approval=nb.Approval(timeout_s=0.2)
    )
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 3)
    run.answer(ids[1], "allow")
    result = await run
    assert ran == [1]
    assert list(result.tool_calls["decision_source"]) == ["expired", "person", "expired"]


async def test_a_question_without_a_time_out_has_no_expiry():
    run = agent_of([nb.call("act")], maker([]), approval=nb.Approval(timeout_s=None)).start(
        "go", ui=Nobody()
    )
    (id_,) = await waiting(run, 1)
    assert run.pending()[0].expires_ms is None
    run.answer(id_, "allow")
    await run


# -- several questions at once


async def test_questions_of_one_answer_are_all_visible_and_answered_in_any_order():
    """F-H2: approved in the order 3, 1, 2, all three run once each, results in the model's order."""
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=n) for n in (1, 2, 3)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 3)
    assert ids == ["1.1.0", "1.1.1", "1.1.2"]
    assert [q.arguments["x"] for q in run.pending()] == [1, 2, 3]
    for at, left in ((2, 2), (0, 1), (1, 0)):
        run.answer(ids[at], "allow")
        await until(lambda left=left: len(run.pending()) <= left)
    result = await run
    assert sorted(ran) == [1, 2, 3]
    assert list(result.tool_calls["result"]) == ["acted 1", "acted 2", "acted 3"]
    assert list(result.tool_calls["decision_source"]) == ["person"] * 3
    order = [e.data.id for e in result.events if e.type == "approval/answered"]
    assert order == [ids[2], ids[0], ids[1]]
    check_history(last_request(agent).messages)


async def test_a_refused_call_and_a_free_one_both_have_results_in_one_request():
    """F-B4."""
    ran: list[int] = []
    free = maker(ran, "readonly", "free")
    for calls in (
        [nb.call("act", x=1), nb.call("free", x=2)],
        [nb.call("free", x=2), nb.call("act", x=1)],
    ):
        ran.clear()
        agent = agent_of([calls], maker(ran), free)
        result = await agent.run("go", ui=Person("deny"))
        assert ran == [2]
        assert sorted(result.tool_calls["status"]) == ["denied", "ok"]
        request = last_request(agent)
        check_history(request.messages)
        assert [m.role for m in request.messages] == ["user", "assistant", "tool", "tool"]


async def test_readonly_calls_run_beside_one_that_waits():
    ran: list[int] = []
    look = maker(ran, "readonly", "look")
    agent = agent_of(
        [[nb.call("look", x=1), nb.call("look", x=2), nb.call("look", x=3)]],
        look,
        approval=nb.Approval(rules=["ask look(x=1)"]),
    )
    run = agent.start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    await until(lambda: sorted(ran) == [2, 3])
    assert not run.done()
    run.answer(id_, "allow")
    result = await run
    assert list(result.tool_calls["result"]) == ["acted 1", "acted 2", "acted 3"]


async def test_answers_come_from_any_thread():
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=n) for n in range(6)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 6)
    faults: list[Exception] = []

    def answer(id_: str) -> None:
        try:
            run.answer(id_, "allow")
        except Exception as error:  # noqa: BLE001 - looked at below
            faults.append(error)

    threads = [threading.Thread(target=answer, args=(id_,)) for id_ in reversed(ids)]
    for thread in threads:
        thread.start()
    result = await run
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert not faults
    assert sorted(ran) == list(range(6))
    assert list(result.tool_calls["result"]) == [f"acted {n}" for n in range(6)]


async def test_of_many_answers_to_one_question_the_first_counts():
    ran: list[int] = []
    run = agent_of([nb.call("act", x=1)], maker(ran)).start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    outcomes: list[str] = []

    def answer(word: Any) -> None:
        try:
            run.answer(id_, word)
            outcomes.append(word)
        except nb.errors.ConfigError:
            outcomes.append("late")

    threads = [
        threading.Thread(target=answer, args=(word,)) for word in ["allow", "deny", "allow", "deny"]
    ]
    for thread in threads:
        thread.start()
    result = await run
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert outcomes.count("late") == 3
    first = next(word for word in outcomes if word != "late")
    assert list(result.tool_calls["decision"]) == [first]
    assert len([e for e in result.events if e.type == "approval/answered"]) == 1


async def test_a_second_answer_an_unknown_id_and_an_unknown_word_are_errors():
    run = agent_of([[nb.call("act", x=1), nb.call("act", x=2)]], maker([])).start("go", ui=Nobody())
    ids = await waiting(run, 2)
    word: Any = "maybe"
    with pytest.raises(nb.errors.ConfigError, match="allow, always_allow, deny"):
        run.answer(ids[0], word)
    run.answer(ids[0], "allow")
    with pytest.raises(nb.errors.ConfigError, match=r"is not open \(open: 1\.1\.1\)"):
        run.answer(ids[0], "deny")
    with pytest.raises(nb.errors.ConfigError, match=r"'9\.9\.9' is not open"):
        run.answer("9.9.9", "deny")
    run.answer(ids[1], "deny")
    await run
    with pytest.raises(nb.errors.ConfigError, match="is not open"):
        run.answer(ids[1], "deny")
    assert run.pending() == []


async def test_always_allow_frees_the_other_questions_of_that_tool():
    ran: list[int] = []
    other = maker(ran, name="other")
    calls = [nb.call("act", x=1), nb.call("other", x=2), nb.call("act", x=3), nb.call("act", x=4)]
    agent = agent_of([calls], maker(ran), other)
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 4)
    run.answer(ids[2], "always_allow")
    assert await waiting(run, 1) == [ids[1]]
    run.answer(ids[1], "deny", reason="no")
    result = await run
    assert sorted(ran) == [1, 3, 4]
    assert list(result.tool_calls["status"]) == ["ok", "denied", "ok", "ok"]


async def test_always_deny_refuses_the_other_questions_of_that_tool():
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=n) for n in range(3)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 3)
    run.answer(ids[1], "always_deny")
    result = await run
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied"] * 3


async def test_equal_calls_of_one_answer_have_a_question_each_and_a_refusal_holds_for_all():
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=1), nb.call("act", x=1)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 2)
    run.answer(ids[0], "deny")
    result = await run
    assert ran == []
    assert list(result.tool_calls["decision_source"]) == ["person", "repeated"]


async def test_questions_are_numbered_by_turn_step_and_position():
    run = agent_of([nb.call("act", x=1), "done", nb.call("act", x=2)], maker([])).start(
        "go", ui=Nobody()
    )
    run.followup("and on")
    assert await waiting(run, 1) == ["1.1.0"]
    run.answer("1.1.0", "allow")
    await until(lambda: [q.id for q in run.pending()] == ["2.1.0"])
    run.answer("2.1.0", "allow")
    await run


async def test_stop_while_questions_wait_closes_them_and_starts_nothing():
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=1), nb.call("act", x=2)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 2)
    run.answer(ids[1], "allow")
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    assert ran == []
    assert list(result.tool_calls["status"]) == ["aborted", "aborted"]
    by = [e.data.by for e in result.events if e.type == "approval/answered"]
    assert by == ["person", "interrupt"]
    assert run.pending() == []
    with pytest.raises(nb.errors.ConfigError):
        run.answer(ids[0], "allow")
    again = nb.Agent(nb.models.Scripted(["went on"]))
    assert (await again.run("next", session=result.session)).text == "went on"


async def test_the_cancellation_of_the_waiting_cell_closes_the_questions():
    agent = agent_of([nb.call("act")], maker([]))
    session = nb.Session()
    task = asyncio.create_task(agent.run("go", session=session, ui=Nobody()))
    await until(lambda: agent.last_run is not None and agent.last_run.pending())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [e.data.by for e in session.events if e.type == "approval/answered"] == ["interrupt"]
    assert session.verify().ends == "idle"


# -- approvers


class Raises:
    async def decide(self, question: nb.Question) -> Any:
        msg = "no window"
        raise RuntimeError(msg)


class Exits:
    async def decide(self, question: nb.Question) -> Any:
        raise GeneratorExit


NONSENSE: list[Any] = [None, True, "yes", "ALLOW", 5, [], {}, ["allow"]]


class NotAsync:
    def decide(self, question: nb.Question) -> Any:
        return "allow"


@pytest.mark.parametrize(
    "approver",
    [
        Raises(),
        Exits(),
        NotAsync(),
        *[Person(word) for word in NONSENSE],
        Person(nb.edit({"x": "many"})),
        Person(nb.edit({"unknown": 1})),
    ],
    ids=lambda a: repr(getattr(a, "answers", type(a).__name__)),
)
async def test_an_approver_that_fails_or_gives_nonsense_allows_nothing(approver: Any):
    ran: list[int] = []
    result = await agent_of([nb.call("act")], maker(ran)).run("go", ui=approver)
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied"]
    assert [e.data.kind for e in result.events if e.type == "notice"] == ["approver-failed"]
    assert list(result.tool_calls["decision_source"]) == ["failed"]
    assert list(result.approvals["source"]) == ["failed"]
    assert list(result.approvals["answered_by"]) == ["failed"]
    assert result.session.verify().ok


async def test_that_an_approver_failed_is_said_to_the_person_and_to_the_model(
    caplog: pytest.LogCaptureFixture,
):
    class Broken(Raises):
        def __init__(self) -> None:
            self.told: list[str] = []

        def tell(self, text: str) -> None:
            self.told.append(text)

    broken = Broken()
    result = await agent_of([nb.call("act")], maker([])).run("go", ui=broken)
    line = "the approver `Broken` failed (RuntimeError: no window); `act` is not run"
    assert broken.told == [line]
    assert [r.getMessage() for r in caplog.records if r.name == "nbagent"] == [line]
    (text,) = result.tool_calls["result"]
    assert "the approver `Broken` failed" in text
    assert "the person refused" not in text


@pytest.mark.parametrize("name", ["failed", "expired"])
async def test_an_approver_can_not_take_the_name_of_nobody(name: str):
    person = Person("deny")
    person.name = name  # pyright: ignore[reportAttributeAccessIssue]
    result = await agent_of([nb.call("act")], maker([])).run("go", ui=person)
    assert list(result.tool_calls["decision_source"]) == ["person"]
    assert list(result.approvals["answered_by"]) == ["Person"]


def test_a_class_in_place_of_an_approver_is_refused_and_the_way_out_named():
    agent = agent_of([nb.call("act")], maker([]))
    with pytest.raises(nb.errors.ConfigError, match=r"class ByHand: write nb\.ByHand\(\)"):
        agent.run_sync("go", ui=nb.ByHand)  # pyright: ignore[reportArgumentType]
    with pytest.raises(nb.errors.ConfigError, match=r"class Raises: write Raises\(\)"):
        agent.run_sync("go", ui=Raises)  # pyright: ignore[reportArgumentType]
    wrongs: list[Any] = [object(), "hand", None, len, SimpleNamespace(decide="allow")]
    for wrong in wrongs:
        with pytest.raises(nb.errors.ConfigError, match="ui must be"):
            agent.run_sync("go", ui=wrong)  # pyright: ignore[reportArgumentType]


async def test_a_person_may_answer_faster_than_the_approver():
    ended: list[str] = []

    class Slow:
        async def decide(self, question: nb.Question) -> Any:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(question.id)

    ran: list[int] = []
    run = agent_of([nb.call("act", x=1)], maker(ran)).start("go", ui=Slow())
    (id_,) = await waiting(run, 1)
    await asyncio.sleep(0)
    run.answer(id_, "allow")
    result = await run
    await asyncio.sleep(0)
    assert ran == [1]
    assert ended == [id_]
    assert list(result.approvals["answered_by"]) == ["person"]


async def test_an_approver_and_a_person_that_answer_at_the_same_time_give_one_answer():
    for _ in range(20):
        gate = asyncio.Event()

        class Ready:
            def __init__(self, gate: asyncio.Event) -> None:
                self.gate = gate

            async def decide(self, question: nb.Question) -> Any:
                await self.gate.wait()
                return "deny"

        ran: list[int] = []
        run = agent_of([nb.call("act", x=1)], maker(ran)).start("go", ui=Ready(gate))
        (id_,) = await waiting(run, 1)
        thread = threading.Thread(target=answer_or_late, args=(run, id_))
        thread.start()
        gate.set()
        result = await run
        await asyncio.to_thread(thread.join)
        answers = [e.data.decision for e in result.events if e.type == "approval/answered"]
        assert len(answers) == 1
        assert list(result.tool_calls["decision"]) == answers
        assert len(ran) == (answers == ["allow"])


def answer_or_late(run: nb.Run, id_: str) -> None:
    try:
        run.answer(id_, "allow")
    except nb.errors.ConfigError:
        return


async def test_an_approver_sees_what_the_tool_does_and_what_it_shows_of_itself():
    @nb.tool(risk="mutating", preview=lambda a: nb.Diff("old", f"new {a['x']}"))
    def act(x: int) -> str:
        """Act upon x."""
        return "acted"

    person = Person("allow")
    await agent_of([nb.call("act", x=1)], act).run("go", ui=person)
    (question,) = person.asked
    assert question.description == "Act upon x."
    assert question.preview == nb.Diff("old", "new 1")
    assert (question.name, question.ref, question.risk) == (
        "act",
        "cap://tool/local/act@1",
        "mutating",
    )


def test_a_question_is_pending_as_soon_as_its_event_is_seen():
    seen: list[int] = []

    async def look(run: nb.Run) -> None:
        async for event in run.events():
            if event.type == "approval/asked":
                seen.append(len(run.pending()))
                run.answer(run.pending()[0].id, "allow")

    @nb.tool(risk="mutating", preview=lambda a: f"{time.sleep(0.05)}")
    def save(x: int) -> str:
        """Save."""
        return "saved"

    agent = nb.Agent(nb.models.Scripted([nb.call("save", x=1), "Done."]), tools=[save])
    run = agent.start("go", ui=nb.ByHand())
    asyncio.run(look(run))
    assert seen == [1]
    assert run.result().text == "Done."


async def test_a_preview_that_fails_is_told_and_the_question_stands():
    @nb.tool(risk="mutating", preview=lambda a: str(1 / 0))
    def act() -> str:
        """Act."""
        return "acted"

    person = Person("allow")
    result = await agent_of([nb.call("act")], act).run("go", ui=person)
    assert "ZeroDivisionError" in str(person.asked[0].preview)
    assert list(result.tool_calls["status"]) == ["ok"]


async def test_two_runs_on_different_sessions_wait_for_their_own_answers():
    ran: list[int] = []
    one = agent_of([nb.call("act", x=1)], maker(ran)).start("go", ui=Nobody())
    two = agent_of([nb.call("act", x=2)], maker(ran)).start("go", ui=Nobody())
    (id_,) = await waiting(one, 1)
    await waiting(two, 1)
    two.answer(id_, "allow")
    await two
    assert ran == [2]
    assert not one.done()
    one.answer(id_, "deny")
    await one
    assert ran == [2]


async def test_an_answer_given_before_its_turn_holds_when_the_turn_comes():
    """The last question is answered first; its call runs last and is not asked again."""
    ran: list[int] = []
    agent = agent_of([[nb.call("act", x=n) for n in range(3)]], maker(ran))
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 3)
    run.answer(ids[2], "edit", arguments={"x": 22})
    run.answer(ids[1], "deny")
    run.answer(ids[0], "allow")
    result = await run
    assert ran == [0, 22]
    assert list(result.tool_calls["status"]) == ["ok", "denied", "ok"]
    asked = [e.data.id for e in result.events if e.type == "approval/asked"]
    assert asked == ids


@pytest.mark.parametrize(
    "arguments",
    [
        {"x": {"deep": [[[[{"a": None}]]]], "b": "\u202ecod"}},
        {"x": "\x1b[2J\x00 NUL"},
        {"x": 10**30},
        {"x": [1.0, 1, True, None, ""]},
        {"x": "x" * 1_000_000},
        {"x": "half \ud83d"},
        {"x": {"": {"": ""}}},
    ],
    ids=["nested", "controls", "huge", "mixed", "long", "half", "empty keys"],
)
async def test_any_arguments_can_be_asked_about_edited_and_logged(arguments: Any):
    seen: list[Any] = []

    @nb.tool(risk="mutating")
    def act(x: Any) -> str:
        """Act."""
        seen.append(x)
        return "acted"

    for answer in ("allow", nb.edit(arguments), "deny"):
        agent = agent_of([nb.call("act", **arguments)], act)
        result = await agent.run("go", ui=Person(answer))
        assert list(result.tool_calls["decision_source"]) == ["person"]
        assert result.session.verify().ok
    assert len(seen) == 2

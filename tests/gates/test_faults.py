"""Faults in the loop, the log and the assembly that gates and answers once brought to light."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import nbagent as nb
from nbagent.log import verify


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


async def until(condition: Callable[[], Any], seconds: float = 3) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.002)


async def waiting(run: nb.Run, count: int) -> list[str]:
    await until(lambda: len(run.pending()) == count)
    return [question.id for question in run.pending()]


async def ends(run: nb.Run, seconds: float = 2) -> nb.Result:
    """The result; a run that hangs fails the test."""
    await until(run.done, seconds)
    return await run


# -- what was checked is not what runs


async def test_an_approver_that_changes_the_questions_arguments_changes_nothing():
    ran: list[Any] = []

    @nb.tool(risk="mutating", preview=lambda a: str(a["rows"].append(8)))
    def put(rows: list[int]) -> str:
        """Put rows."""
        ran.append(rows)
        return "put"

    class Sloppy:
        async def decide(self, question: nb.Question) -> Any:
            question.arguments["rows"].append(9)
            return "allow"

    run = agent_of([nb.call("put", rows=[1])], put).start("go", ui=Sloppy())
    result = await ends(run)
    assert ran == [[1]]
    assert len(result.approvals) == 1
    assert list(result.approvals["args_json"]) == ['{"rows":[1]}']


async def test_an_edit_is_looked_at_by_the_users_gates_again():
    """Step 1 of the resolver begins with the guards."""
    ran: list[int] = []

    def guard(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
        return nb.deny("never nine") if call.arguments["x"] == 9 else None

    agent = agent_of([nb.call("act", x=1)], maker(ran), gates=[guard, *nb.DEFAULT_GATES])
    result = await agent.run("go", ui=Person(nb.edit({"x": 9})))
    assert ran == []
    assert list(result.tool_calls["decision_source"]) == ["guard"]


async def test_a_refused_call_is_known_again_by_its_canonical_arguments():
    """Left-out defaults, other spellings: what counts is what the call would run with."""
    ran: list[int] = []
    person = Person("deny", "allow")
    calls = [nb.call("act"), nb.call("act", x=0), nb.call("act", x="0")]
    result = await agent_of(calls, maker(ran)).run("go", ui=person)
    assert ran == []
    assert list(result.tool_calls["decision_source"]) == ["person", "repeated", "repeated"]


async def test_after_a_rewrite_only_the_rewritten_call_counts_as_refused():
    ran: list[int] = []
    turn = iter([9, 2])

    def change(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
        return nb.rewrite({"x": next(turn)})

    agent = agent_of(
        [nb.call("act", x=1), nb.call("act", x=1)],
        maker(ran),
        gates=[change, *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto", rules=["deny act(x=9)"]),
    )
    await agent.run("go", ui="none")
    assert ran == [2]


# -- answers that nobody gave


async def test_an_edit_to_the_same_arguments_is_a_plain_yes():
    ran: list[int] = []
    result = await agent_of([nb.call("act", x=1)], maker(ran)).run(
        "go", ui=Person(nb.edit({"x": 1}))
    )
    assert ran == [1]
    assert result.tool_calls["result"][0] == "acted 1"


async def test_what_a_remembered_answer_freed_is_asked_again_once_it_is_forgotten():
    ran: list[int] = []
    agents: list[nb.Agent] = []

    @nb.tool(risk="mutating")
    async def first() -> str:
        """Take back what the person has said for ever."""
        agents[0].forget()
        return "forgotten"

    calls = [nb.call("first"), nb.call("first"), nb.call("act", x=3), nb.call("act", x=4)]
    agent = agent_of([calls], first, maker(ran))
    agents.append(agent)
    run = agent.start("go", ui=Nobody())
    ids = await waiting(run, 4)
    run.answer(ids[3], "always_allow")
    await until(lambda: len(run.pending()) == 2)
    run.answer(ids[1], "deny")
    run.answer(ids[0], "allow")
    await until(lambda: run.done() or run.pending())
    assert ran == []
    run.interrupt()
    await run


class Moody:
    """A handler that says "ask" of a call when it first sees it, and "allow" after that."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, call: nb.ToolCall) -> str:
        self.seen.append(call.arguments["x"])
        return "ask" if self.seen.count(call.arguments["x"]) == 1 else "allow"


async def answered_by_hand(handler: Moody) -> nb.Result:
    agent = agent_of(
        [[nb.call("act", x=1), nb.call("act", x=2)]],
        maker([]),
        approval=nb.Approval(handler=handler),
    )
    run = agent.start("go", ui=Nobody())
    while not run.done():
        for question in run.pending():
            run.answer(question.id, "allow")
        await asyncio.sleep(0.002)
    return await run


async def test_what_a_handler_allows_is_never_told_as_a_persons_answer():
    result = await answered_by_hand(Moody())
    by = ["person" if by == "person" else "handler" for by in result.approvals["answered_by"]]
    assert list(result.tool_calls["decision_source"]) == by


async def test_a_handler_is_asked_once_for_each_call():
    """Each look at a parked call asks it again, though nothing about the call has changed."""
    moody = Moody()
    await answered_by_hand(moody)
    assert sorted(moody.seen) == [1, 2]


async def test_a_gate_is_not_run_twice_in_a_row_for_a_call_that_parks():
    seen: list[int] = []

    def look(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        seen.append(call.position)

    agent = agent_of([nb.call("act", x=1)], maker([]), gates=[look, *nb.DEFAULT_GATES])
    run = agent.start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    await asyncio.sleep(0.02)
    assert seen == [0]
    run.answer(id_, "deny")
    await run


async def test_a_call_that_a_gate_rewrote_is_not_told_as_changed_by_the_person():
    def change(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
        return nb.rewrite({"x": 2})

    agent = agent_of([nb.call("act", x=1)], maker([]), gates=[change, *nb.DEFAULT_GATES])
    result = await agent.run("go", ui=Person("allow"))
    assert result.tool_calls["result"][0] == "acted 2"


async def test_a_gate_that_changes_its_mind_back_and_forth_refuses_nothing_in_a_persons_name():
    looks: list[int] = []

    def flip(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
        if call.arguments["x"] != 7:
            return None
        looks.append(1)
        return nb.rewrite({"x": len(looks) % 2})

    calls = [nb.call("act", x=7), *[nb.call("act", x=n) for n in (8, 9, 10, 11)]]
    agent = agent_of([calls], maker([]), gates=[flip, *nb.DEFAULT_GATES])
    run = agent.start("go", ui=Nobody())
    await until(lambda: len(run.pending()) >= 4)
    for question in run.pending():
        if question.arguments["x"] > 7:
            run.answer(question.id, "allow")
            await asyncio.sleep(0.01)
    if not run.done():
        run.interrupt()
    result = await run
    assert result.tool_calls["decision_source"][0] != "person"


# -- runs that hang or end without need


@pytest.mark.parametrize("reason", [object(), b"bytes", {1, 2}], ids=["object", "bytes", "set"])
async def test_an_answer_that_the_log_can_not_hold_is_a_refusal_not_a_hang(reason: Any):
    run = agent_of([nb.call("act")], maker([])).start(
        "go", ui=Person(nb.Answer("deny", reason=reason))
    )
    result = await ends(run)
    assert list(result.tool_calls["status"]) == ["denied"]


async def test_a_bad_reason_is_refused_to_the_person_and_the_question_stays():
    run = agent_of([nb.call("act")], maker([])).start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    reason: Any = object()
    with pytest.raises(nb.errors.ConfigError):
        run.answer(id_, "deny", reason=reason)
    assert len(run.pending()) == 1
    run.answer(id_, "deny")
    await ends(run)


async def test_an_approver_whose_name_is_no_text_answers_like_any_other():
    class Odd:
        name = object()

        async def decide(self, question: nb.Question) -> Any:
            return "allow"

    result = await ends(agent_of([nb.call("act")], maker([])).start("go", ui=Odd()))
    assert list(result.tool_calls["status"]) == ["ok"]


async def test_an_approver_that_awaits_what_was_cancelled_elsewhere_is_a_refusal():
    class Odd:
        async def decide(self, question: nb.Question) -> Any:
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            future.cancel()
            return await future

    result = await ends(agent_of([nb.call("act")], maker([])).start("go", ui=Odd()))
    assert list(result.tool_calls["status"]) == ["denied"]


async def test_stop_ends_a_gate_behind_the_body_that_hangs():
    class Hang:
        async def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: Any) -> Any:
            await asyncio.sleep(3)
            return result

    agent = agent_of(
        [nb.call("act")],
        maker([]),
        gates=[Hang(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    run = agent.start("go")
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await ends(run, 1)
    assert result.stop_reason == "interrupted"


async def test_a_gate_that_asks_without_the_permission_gate_takes_the_answer():
    def look(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
        return nb.ask("look")

    ran: list[int] = []
    person = Person("allow")
    agent = agent_of([nb.call("act", x=1)], maker(ran), gates=[look])
    run = agent.start("go", ui=person)
    result = await ends(run)
    assert ran == [1]
    assert len(person.asked) == 1
    assert list(result.tool_calls["decision_source"]) == ["person"]


@pytest.mark.parametrize("risk", ["mutating", "readonly"])
async def test_a_sync_gate_around_the_body_may_give_a_result_of_its_own(risk: Any):
    class Cache:
        def around(self, call: nb.ToolCall, ctx: nb.GateContext, following: Any) -> nb.ToolResult:
            return nb.ToolResult("from the cache")

    agent = agent_of(
        [[nb.call("act"), nb.call("act", x=2)]],
        maker([], risk),
        gates=[Cache(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    result = await agent.run("go")
    assert list(result.tool_calls["result"]) == ["from the cache"] * 2


def says_deny(call: nb.ToolCall, ctx: nb.GateContext) -> Any:
    return "deny"


def says_false(call: nb.ToolCall, ctx: nb.GateContext) -> Any:
    return False


class Mute:
    def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: nb.GateContext) -> None:
        """Forget to give the result back."""


@pytest.mark.parametrize("gate", [says_deny, says_false, Mute()], ids=["text", "false", "mute"])
async def test_a_gate_that_gives_nonsense_is_named_in_the_error(gate: Any):
    agent = agent_of(
        [nb.call("act")],
        maker([]),
        gates=[gate, *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    with pytest.raises(TypeError, match="gate"):
        await agent.run("go")


async def test_stop_during_a_look_ahead_closes_the_open_questions():
    async def slow(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        if call.position == 1:
            await asyncio.sleep(3)

    session = nb.Session()
    agent = agent_of(
        [[nb.call("act", x=1), nb.call("act", x=2)]], maker([]), gates=[slow, *nb.DEFAULT_GATES]
    )
    run = agent.start("go", session=session, ui=Nobody())
    await waiting(run, 1)
    await asyncio.sleep(0.02)
    run.interrupt()
    await ends(run, 1)
    by = [e.data.by for e in session.events if e.type == "approval/answered"]
    assert by == ["interrupt"]


async def test_a_gate_that_raises_during_a_look_ahead_closes_the_open_questions():
    def bad(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        if call.position == 1:
            msg = "planted"
            raise LookupError(msg)

    session = nb.Session()
    agent = agent_of(
        [[nb.call("act", x=1), nb.call("act", x=2)]], maker([]), gates=[bad, *nb.DEFAULT_GATES]
    )
    with pytest.raises(LookupError):
        await agent.run("go", session=session, ui=Nobody())
    asked = [e for e in session.events if e.type == "approval/asked"]
    answered = [e for e in session.events if e.type == "approval/answered"]
    assert len(asked) == len(answered) == 1


# -- answers at the edge


async def test_an_edit_without_arguments_is_refused_to_the_person():
    """It must not run with the defaults."""
    ran: list[int] = []
    run = agent_of([nb.call("act", x=5)], maker(ran)).start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    with pytest.raises(nb.errors.ConfigError):
        run.answer(id_, "edit")
    run.answer(id_, "deny")
    await run
    assert ran == []


@pytest.mark.parametrize("arguments", [[1], "x", 5, [("x", 1)]])
async def test_an_edit_that_is_no_object_is_refused_to_the_person(arguments: Any):
    run = agent_of([nb.call("act", x=5)], maker([])).start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    with pytest.raises(nb.errors.ConfigError):
        run.answer(id_, "edit", arguments=arguments)
    run.answer(id_, "deny")
    await run


@pytest.mark.parametrize("word", ["allow", "always_allow", "deny", "always_deny"])
async def test_arguments_belong_to_an_edit_and_to_nothing_else(word: Any):
    """`always_allow` with arguments would be an edit that is remembered."""
    agent = agent_of([nb.call("act", x=5)], maker([]))
    run = agent.start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    with pytest.raises(nb.errors.ConfigError):
        run.answer(id_, word, arguments={"x": 1})
    run.answer(id_, "deny")
    await run
    assert agent.remembered().empty


async def test_without_remembering_the_error_does_not_call_the_tool_dangerous():
    agent = agent_of([nb.call("act")], maker([]), approval=nb.Approval(remember=None))
    run = agent.start("go", ui=Nobody())
    (id_,) = await waiting(run, 1)
    with pytest.raises(nb.errors.ConfigError) as caught:
        run.answer(id_, "always_allow")
    run.answer(id_, "deny")
    await run
    assert "dangerous" not in str(caught.value)


async def test_an_approvers_edit_that_does_not_fit_is_put_to_the_person_again():
    """Who slips while typing is asked once more, not refused."""
    ran: list[int] = []
    person = Person(nb.edit({"x": "many"}), nb.edit({"x": 5}))
    await agent_of([nb.call("act", x=1)], maker(ran)).run("go", ui=person)
    assert ran == [5]
    assert len(person.asked) == 2


async def test_the_approvals_table_shows_an_edit_and_who_answered():
    result = await agent_of([nb.call("act", x=1)], maker([])).run(
        "go", ui=Person(nb.edit({"x": 2}))
    )
    assert result.approvals["decision"][0] == "edit"


async def test_a_serial_approver_gets_one_question_at_a_time_in_model_order():
    class Serial:
        serial = True

        def __init__(self) -> None:
            self.open, self.most = 0, 0
            self.order: list[str] = []

        async def decide(self, question: nb.Question) -> Any:
            self.order.append(question.id)
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(0.005)
            self.open -= 1
            return "allow"

    serial = Serial()
    await agent_of([[nb.call("act", x=n) for n in range(3)]], maker([])).run("go", ui=serial)
    assert serial.order == ["1.1.0", "1.1.1", "1.1.2"]
    assert serial.most == 1


# -- freed at once


async def test_always_allow_frees_the_others_before_the_body_runs():
    during: list[int] = []
    runs: list[nb.Run] = []

    @nb.tool(risk="mutating")
    async def act(x: int) -> str:
        """Act slowly."""
        await asyncio.sleep(0.02)
        during.append(len(runs[0].pending()))
        return "acted"

    run = agent_of([[nb.call("act", x=n) for n in range(3)]], act).start("go", ui=Nobody())
    runs.append(run)
    ids = await waiting(run, 3)
    run.answer(ids[0], "always_allow")
    await run
    assert during == [0, 0, 0]


async def test_always_allow_frees_the_others_before_a_group_of_bodies_runs():
    during: list[int] = []
    runs: list[nb.Run] = []

    @nb.tool(risk="readonly", parallel=True)
    async def look(x: int) -> str:
        """Look slowly."""
        await asyncio.sleep(0.02)
        during.append(len(runs[0].pending()))
        return "looked"

    calls = [nb.call("look", x=1), nb.call("look", x=2), nb.call("act", x=3), nb.call("look", x=4)]
    agent = agent_of([calls], look, maker([]), approval=nb.Approval(rules=["ask look"]))
    run = agent.start("go", ui=Nobody())
    runs.append(run)
    ids = await waiting(run, 4)
    run.answer(ids[3], "always_allow")
    await until(lambda: len(during) == 2)
    assert during == [1, 1]
    run.answer(ids[2], "allow")
    await run


async def test_a_call_beyond_the_budget_is_not_put_to_a_person():
    person = Person("allow")
    agent = agent_of(
        [[nb.call("act", x=1), nb.call("act", x=2)], nb.call("act", x=3)],
        maker([]),
        budget=nb.Budget(max_tool_calls=1),
    )
    result = await agent.run("go", ui=person)
    assert list(result.tool_calls["decision_source"]) == ["person", "budget", "budget"]
    assert [q.arguments["x"] for q in person.asked][-1] != 3


# -- assembly


async def test_a_permission_gate_with_an_approval_of_its_own_is_not_ignored():
    ran: list[int] = []
    try:
        agent = agent_of(
            [nb.call("act")],
            maker(ran),
            gates=[nb.gates.Permission(nb.Approval(mode="deny"))],
            approval=nb.Approval(mode="auto"),
        )
    except nb.errors.ConfigError:
        return
    await agent.run("go")
    assert ran == []


async def test_an_agent_without_the_permission_gate_does_not_ignore_its_approval():
    ran: list[int] = []
    try:
        agent = agent_of([nb.call("act")], maker(ran), gates=[], approval=nb.Approval(mode="deny"))
    except nb.errors.ConfigError:
        return
    await agent.run("go")
    assert ran == []


async def test_a_gate_made_from_permission_is_not_replaced_in_silence():
    seen: list[str] = []

    class Mine(nb.gates.Permission):
        def for_tool(self, tool: nb.Tool) -> Any:
            seen.append(tool.name)
            return super().for_tool(tool)

    try:
        agent = agent_of([nb.call("act")], maker([]), gates=[Mine()])
    except nb.errors.ConfigError:
        return
    await agent.run("go", ui="none")
    assert seen == ["act"]


def test_a_rule_that_can_never_match_warns_when_the_agent_is_made():
    with pytest.warns(UserWarning, match=r"rule 0 \(deny atc\) names no tool"):
        agent_of([], maker([]), approval=nb.Approval(rules=["deny atc"]))
    with pytest.warns(UserWarning, match="names the argument `y`"):
        agent_of([], maker([]), approval=nb.Approval(rules=["deny act(y=1)"]))


# -- the log


async def test_text_that_was_added_to_a_run_of_chunks_on_disk_is_found(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    session = nb.Session.open(path)
    await nb.Agent(nb.models.Scripted(["done"], chunk=2)).run("go", session=session)
    session.close()
    header, *records = path.read_bytes().splitlines()
    at = next(n for n, r in enumerate(records) if orjson.loads(r)["type"] == "assistant/chunks")
    record = orjson.loads(records[at])
    record["data"]["text"] += " and more"
    records[at] = orjson.dumps(record)
    assert not verify(header, records).ok

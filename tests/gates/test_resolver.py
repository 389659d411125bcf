"""The permission resolver: its ten steps, and their order against each other."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from typing import Any, NamedTuple

import pytest

import nbagent as nb
from nbagent.gates import Permission
from nbagent.interfaces.tool import RISKS, Risk


class Case(NamedTuple):
    """All that the resolver may look at."""

    mode: str
    risk: str
    listed: bool
    """Whether the tool is on the deny list."""
    rules: tuple[str, ...]
    repeated: bool
    gate_asks: bool
    remembered: str | None
    handler: str | None
    attended: bool
    unattended: str


RULES: list[tuple[str, ...]] = [
    (),
    ("allow act",),
    ("ask act",),
    ("deny act",),
    ("allow act", "deny act"),
    ("allow act", "ask act"),
    ("ask act", "allow act"),
    ("ask other", "deny act(x=2)", "allow act(x=1)"),
]


def by_the_book(case: Case) -> tuple[str, str | None]:  # noqa: C901 - one step after the other, as written
    """(allow | deny | ask, source), word for word from the description of the resolver."""
    readonly = case.risk == "readonly"
    plan = case.mode == "plan"
    fitting = [rule for rule in case.rules if rule.endswith((" act", " act(x=1)"))]
    first = next((rule.split()[0] for rule in fitting if not rule.startswith("deny")), None)
    # 1. a guard, the deny list, or absence from a non-empty allow list
    if case.listed:
        return "deny", "list"
    # 2. any deny rule
    if any(rule.startswith("deny") for rule in fitting):
        return "deny", "rule"
    # 3. mode `deny` and not readonly
    if case.mode == "deny" and not readonly:
        return "deny", "mode"
    # 4. the same call was refused earlier this turn
    if case.repeated:
        return "deny", "repeated"
    # 5. first matching rule; what a gate asked counts as an ask rule that comes first
    must_ask = case.gate_asks or first == "ask"
    if not must_ask and first == "allow" and not (plan and not readonly):
        return "allow", "rule"
    # 6. mode `auto` and not must-ask
    if case.mode == "auto" and not must_ask:
        return "allow", "mode"
    # 7. remembered; never for dangerous; allow not in plan
    if case.risk != "dangerous":
        if case.remembered == "deny":
            return "deny", "remembered"
        if case.remembered == "allow" and not plan:
            return "allow", "remembered"
    # 8. readonly, not must-ask, and no handler (or mode plan)
    if readonly and not must_ask and (case.handler is None or plan):
        return "allow", "mode"
    # 9. handler
    if case.handler in ("allow", "deny"):
        return case.handler, "handler"
    # 10. a person
    if case.attended:
        return "ask", None
    # 11. deny, unless said otherwise
    return case.unattended, "unattended"


class World:
    """What the resolver learns from outside its arguments."""

    cancelled, deps, session_id = False, None, "s"

    def __init__(self, case: Case) -> None:
        self.case = case
        self.attended = case.attended

    def note(self, kind: str, data: Any = None) -> None:
        """Nothing is noted."""

    def tell(self, kind: str, text: str) -> None: ...
    def deadline(self, seconds: float | None) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def refused(self, call: nb.ToolCall) -> bool:
        return self.case.repeated

    def remembered(self, call: nb.ToolCall) -> tuple[bool, str] | None:
        word = self.case.remembered
        return None if word is None else (word == "allow", "s:1")

    def answer(self, call: nb.ToolCall) -> nb.Decision | None:
        return None


def act_tool(risk: Any) -> nb.Tool:
    @nb.tool(risk=risk)
    def act(x: int = 1) -> str:
        """Act."""
        return "acted"

    return act


def approval_of(case: Case) -> nb.Approval:
    word = case.handler
    mode: Any = case.mode
    unattended: Any = case.unattended
    return nb.Approval(
        mode=mode,
        rules=case.rules,
        handler=None if word is None else lambda call: word,
        when_unattended=unattended,
    )


def all_cases() -> list[Case]:
    made = itertools.product(
        ("interactive", "plan", "auto", "deny"),
        RISKS,
        (False, True),
        RULES,
        (False, True),
        (False, True),
        (None, "allow", "deny"),
        (None, "allow", "deny", "ask"),
        (False, True),
        ("deny", "allow"),
    )
    return [Case(*values) for values in made]


async def test_the_resolver_decides_as_the_book_says_in_every_case():
    tools = {risk: act_tool(risk) for risk in RISKS}
    wrong: list[Any] = []
    for case in all_cases():
        gate = Permission(approval_of(case), disallowed=["act"] if case.listed else [])
        call = nb.ToolCall(
            tool=tools[case.risk], arguments={"x": 1}, turn=1, step=1, position=0, id="c"
        )
        call = call.but(must_ask=case.gate_asks)
        got = gate.before(call, World(case))
        if inspect.isawaitable(got):
            got = await got
        source = None if got.action == "ask" else got.source
        if (got.action, source) != by_the_book(case):
            wrong.append((case, got, by_the_book(case)))
    assert not wrong, f"{len(wrong)} cases, such as {wrong[:3]}"


class Person:
    """Gives the same answer to everything, and counts."""

    def __init__(self, word: Any = "allow") -> None:
        self.word = word
        self.asked: list[nb.Question] = []

    async def decide(self, question: nb.Question) -> Any:
        self.asked.append(question)
        return self.word


def ask_always(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
    return nb.ask("because of the gate")


@pytest.mark.filterwarnings("ignore:rule 0")  # rules of other tools are part of the cases
async def test_an_agent_decides_as_the_book_says():
    """The same through the whole loop; what was asked is allowed by a person."""

    @nb.tool
    def other() -> None:
        """Be named by a rule."""

    cases = [c for c in all_cases() if not c.repeated and c.remembered is None]
    for case in random.Random(1).sample(cases, 250):
        gates = [ask_always] if case.gate_asks else []
        agent = nb.Agent(
            nb.models.Scripted([nb.call("act"), "done"]),
            tools=[act_tool(case.risk), other],
            approval=approval_of(case),
            gates=[*gates, *nb.DEFAULT_GATES],
            disallowed_tools=["act"] if case.listed else (),
        )
        person = Person()
        result = await agent.run("go", ui=person if case.attended else "none")
        action, source = by_the_book(case)
        row = result.tool_calls.iloc[0]
        expected = ("allow", "person") if action == "ask" else (action, source)
        assert (row["decision"], row["decision_source"]) == expected, case
        assert len(person.asked) == (action == "ask"), case
        assert row["status"] == ("denied" if action == "deny" else "ok")
        assert list(result.approvals["source"]) == [expected[1]]


async def test_the_allow_list_refuses_all_that_is_not_on_it():
    @nb.tool(risk="readonly")
    def other() -> str:
        """Do something else."""
        return "other"

    def run(**lists: Any) -> Any:
        agent = nb.Agent(
            nb.models.Scripted([[nb.call("act"), nb.call("other")], "done"]),
            tools=[act_tool("readonly"), other],
            **lists,
        )
        return agent.run("go", ui="none")

    result = await run(allowed_tools=["other"])
    assert list(result.tool_calls["decision_source"]) == ["list", "mode"]
    assert "not on the agent's list of allowed tools" in result.tool_calls["result"][0]
    both = await run(allowed_tools=["act", "other"], disallowed_tools=["act"])
    assert list(both.tool_calls["decision"]) == ["deny", "allow"]
    empty = await run(allowed_tools=[])
    assert list(empty.tool_calls["decision"]) == ["allow", "allow"]


async def run_twice(
    *calls: Any, approval: nb.Approval, person: Any, risk: Risk = "mutating"
) -> Any:
    """Each call in an answer of its own, within one turn."""
    agent = nb.Agent(
        nb.models.Scripted([*calls, "done"]), tools=[act_tool(risk)], approval=approval
    )
    return await agent.run("go", ui=person)


async def test_the_same_call_is_not_asked_twice_in_a_turn_after_a_refusal():
    person = Person("deny")
    calls = [nb.call("act", x=1), nb.call("act", x=1), nb.call("act", x=2)]
    result = await run_twice(*calls, approval=nb.Approval(), person=person)
    assert list(result.tool_calls["decision_source"]) == ["person", "repeated", "person"]
    assert len(person.asked) == 2
    assert "refused already" in result.tool_calls["result"][1]


async def test_a_new_turn_asks_again():
    person, session = Person("deny"), nb.Session()
    for _ in range(2):
        agent = nb.Agent(nb.models.Scripted([nb.call("act"), "done"]), tools=[act_tool("mutating")])
        await agent.run("go", ui=person, session=session)
    assert len(person.asked) == 2
    assert list(session.to_pandas("tools")["decision_source"]) == ["person", "person"]


async def test_a_repeated_call_is_refused_whoever_would_allow_it_now():
    """Only what stands before it in the order counts."""
    words = iter(["deny", "allow"])
    approval = nb.Approval(handler=lambda call: next(words))
    result = await run_twice(nb.call("act"), nb.call("act"), approval=approval, person="none")
    assert list(result.tool_calls["decision_source"]) == ["handler", "repeated"]


async def test_the_model_reads_who_refused_and_why():
    class Reasons:
        async def decide(self, question: nb.Question) -> nb.Answer:
            return nb.Answer("deny", reason="use the copy instead")

    result = await run_twice(nb.call("act"), approval=nb.Approval(), person=Reasons())
    text = result.tool_calls["result"][0]
    assert text == "`act` was not run, the person refused: use the copy instead"
    assert result.approvals["reason"][0] == "use the copy instead"


async def test_a_rule_that_refuses_is_named_to_the_model_and_in_the_tables():
    approval = nb.Approval(rules=["allow act", "deny act(x=1)"])
    result = await run_twice(nb.call("act"), approval=approval, person="none")
    assert "deny act(x=1)" in result.tool_calls["result"][0]
    assert result.tool_calls["rule"][0] == "deny act(x=1)"


def fails(call: nb.ToolCall) -> Any:
    msg = "planted"
    raise LookupError(msg)


def takes_nothing() -> str:
    return "allow"


def says(word: Any) -> Any:
    def handler(call: nb.ToolCall) -> Any:
        return word

    return handler


@pytest.mark.parametrize(
    "handler",
    [fails, takes_nothing, *[says(word) for word in (None, True, "ALLOW", "always_allow", b"")]],
)
async def test_a_handler_that_fails_or_gives_nonsense_allows_nothing_and_is_told(
    handler: Any, caplog: pytest.LogCaptureFixture
):
    approval = nb.Approval(handler=handler)
    result = await run_twice(nb.call("act"), approval=approval, person=Person())
    assert list(result.tool_calls["decision_source"]) == ["handler"]
    assert list(result.tool_calls["status"]) == ["denied"]
    assert "the approval handler" in result.tool_calls["result"][0]
    told = [e.data.text for e in result.events if e.type == "notice"]
    assert len(told) == 1
    assert told[0] in caplog.text


async def test_an_async_handler_is_awaited():
    async def handler(call: nb.ToolCall) -> str:
        return "allow" if call.arguments == {"x": 1} and call.name == "act" else "deny"

    calls = [nb.call("act"), nb.call("act", x=2)]
    result = await run_twice(*calls, approval=nb.Approval(handler=handler), person="none")
    assert list(result.tool_calls["decision"]) == ["allow", "deny"]


async def test_a_handler_that_hangs_is_a_refusal_after_the_time_out():
    import asyncio

    async def handler(call: nb.ToolCall) -> str:
        await asyncio.sleep(60)
        return "allow"

    approval = nb.Approval(handler=handler, timeout_s=0.05)
    result = await run_twice(nb.call("act"), approval=approval, person="none")
    assert result.stop_reason == "end_turn"
    assert list(result.tool_calls["decision_source"]) == ["handler"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_stop_ends_a_handler_that_hangs():
    import asyncio

    async def handler(call: nb.ToolCall) -> str:
        await asyncio.sleep(60)
        return "allow"

    agent = nb.Agent(
        nb.models.Scripted([nb.call("act"), "never"]),
        tools=[act_tool("mutating")],
        approval=nb.Approval(handler=handler),
    )
    run = agent.start("go", ui="none")
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    assert list(result.tool_calls["status"]) == ["aborted"]


async def test_a_handler_that_awaits_what_was_cancelled_elsewhere_is_a_refusal():
    import asyncio

    async def handler(call: nb.ToolCall) -> str:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.cancel()
        return await future

    approval = nb.Approval(handler=handler)
    result = await run_twice(nb.call("act"), approval=approval, person="none")
    assert result.stop_reason == "end_turn"
    assert list(result.tool_calls["status"]) == ["denied"]


async def test_what_a_handler_does_to_the_arguments_reaches_nothing():
    ran: list[int] = []

    @nb.tool(risk="mutating")
    def put(rows: list[int]) -> str:
        """Put rows."""
        ran.append(len(rows))
        return "put"

    def handler(call: nb.ToolCall) -> str:
        call.arguments["rows"].append(99)
        call.arguments["path"] = "/etc"
        return "ask"

    person = Person()
    agent = nb.Agent(
        nb.models.Scripted([nb.call("put", rows=[1]), "done"]),
        tools=[put],
        approval=nb.Approval(handler=handler),
    )
    result = await agent.run("go", ui=person)
    assert ran == [1]
    assert person.asked[0].arguments == {"rows": [1]}
    assert result.tool_calls["effective_args_json"][0] == '{"rows":[1]}'


async def test_a_handler_that_runs_the_agent_on_the_same_session_is_a_refusal():
    agents: list[nb.Agent] = []
    session = nb.Session()

    async def handler(call: nb.ToolCall) -> str:
        await agents[0].run("again", session=session)
        return "allow"

    agents.append(
        nb.Agent(
            nb.models.Scripted([nb.call("act"), "done"]),
            tools=[act_tool("mutating")],
            approval=nb.Approval(handler=handler),
        )
    )
    result = await agents[0].run("go", session=session, ui="none")
    assert "NestingError" in result.tool_calls["result"][0]
    assert session.verify().ok


async def test_the_person_reads_why_it_is_asked():
    whys: list[str] = []
    cases: list[tuple[Risk, dict[str, Any], list[Any]]] = [
        ("mutating", {}, []),
        ("unspecified", {}, []),
        ("dangerous", {}, []),
        ("mutating", {"mode": "plan"}, []),
        ("readonly", {"rules": ["ask act(x=1)"]}, []),
        ("readonly", {}, [ask_always]),
    ]
    for risk, settings, gates in cases:
        person = Person()
        agent = nb.Agent(
            nb.models.Scripted([nb.call("act"), "done"]),
            tools=[act_tool(risk)],
            approval=nb.Approval(**settings),
            gates=[*gates, *nb.DEFAULT_GATES],
        )
        await agent.run("go", ui=person)
        whys.append(person.asked[0].why)
    assert whys == [
        "it is mutating",
        "its risk is not declared, so it counts as mutating",
        "it is dangerous",
        "the agent is in plan mode",
        "rule: ask act(x=1)",
        "because of the gate",
    ]

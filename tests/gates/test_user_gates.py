"""Gates of one's own: what they may do to a call, in which order, and what becomes of their faults."""

from __future__ import annotations

import asyncio
import functools
import itertools
from typing import Any

import pytest

import nbagent as nb
from nbagent.interfaces.gate import Next


def maker(ran: list[Any], risk: Any = "mutating", name: str = "act") -> nb.Tool:
    @nb.tool(risk=risk, name=name)
    def act(x: int = 0, note: str = "") -> str:
        """Act."""
        ran.append(x)
        return f"acted {x}"

    return act


def agent_of(gates: list[Any], ran: list[Any], *calls: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("approval", nb.Approval(mode="auto"))
    return nb.Agent(
        nb.models.Scripted([*(calls or [nb.call("act", x=1)]), "done"]),
        tools=[maker(ran)],
        gates=[*gates, *nb.DEFAULT_GATES],
        **settings,
    )


class Person:
    """Allows everything, and keeps the questions."""

    def __init__(self, answer: Any = "allow") -> None:
        self.answer = answer
        self.asked: list[nb.Question] = []

    async def decide(self, question: nb.Question) -> Any:
        self.asked.append(question)
        return self.answer


def as_async(gate: Any) -> Any:
    async def later(call: nb.ToolCall, ctx: nb.GateContext) -> Any:
        await asyncio.sleep(0)
        return gate(call, ctx)

    return later


def as_it_is(gate: Any) -> Any:
    return gate


BOTH = pytest.mark.parametrize("form", [as_it_is, as_async], ids=["sync", "async"])


def always(decision: nb.Decision | None) -> Any:
    """A gate that says the same of every call."""

    def gate(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
        return decision

    return gate


def one_more(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
    return nb.rewrite({**call.arguments, "x": call.arguments["x"] + 1})


def noting(seen: list[str]) -> Any:
    def gate(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        seen.append(call.name)

    return gate


@BOTH
async def test_a_gate_that_denies_ends_it_and_the_model_reads_why(form: Any):
    ran: list[int] = []
    later: list[str] = []
    gates = [
        form(always(nb.deny("not on Sundays"))),
        noting(later),
    ]
    person = Person()
    result = await agent_of(gates, ran).run("go", ui=person)
    assert (ran, later, person.asked) == ([], [], [])
    assert result.tool_calls["result"][0] == "`act` was not run, refused (guard): not on Sundays"
    assert list(result.tool_calls["decision_source"]) == ["guard"]


@BOTH
async def test_a_gate_that_asks_makes_somebody_look_at_it(form: Any):
    ran: list[int] = []
    person = Person()
    gates = [form(always(nb.ask("is that right?")))]
    approval = nb.Approval(mode="auto", rules=["allow act"])
    result = await agent_of(gates, ran, approval=approval).run("go", ui=person)
    assert ran == [1]
    assert [question.why for question in person.asked] == ["is that right?"]
    assert list(result.tool_calls["decision_source"]) == ["person"]


async def test_of_several_gates_that_ask_the_last_reason_is_shown():
    person = Person()
    gates = [always(nb.ask("one")), always(nb.ask())]
    await agent_of(gates, []).run("go", ui=person)
    assert [question.why for question in person.asked] == ["one"]


@BOTH
async def test_a_gate_that_rewrites_changes_what_runs_and_both_are_kept(form: Any):
    ran: list[int] = []
    gates = [form(one_more)]
    result = await agent_of(gates * 2, ran, nb.call("act", x=1)).run("go")
    assert ran == [3]
    row = result.tool_calls.iloc[0]
    assert row["args_json"] == '{"x":1}'
    assert row["effective_args_json"] == '{"x":3,"note":""}'
    assert row["result"] == "acted 3"


async def test_a_rewrite_is_validated_again():
    ran: list[int] = []
    for arguments in ({"x": "many"}, {"y": 1}, {"x": float("inf")}):
        gates = [always(nb.Decision("rewrite", arguments=arguments))]
        result = await agent_of(gates, ran).run("go")
        assert list(result.tool_calls["status"]) == ["denied"]
        assert "changed arguments don't fit" in result.tool_calls["result"][0]
    result = await agent_of([always(nb.rewrite({"x": "5"}))], ran).run("go")
    assert ran == [5]


async def test_rules_see_what_a_gate_rewrote():
    ran: list[int] = []
    gates = [always(nb.rewrite({"x": 9}))]
    approval = nb.Approval(mode="auto", rules=["deny act(x=9)"])
    result = await agent_of(gates, ran, approval=approval).run("go")
    assert ran == []
    assert list(result.tool_calls["decision_source"]) == ["rule"]


async def test_a_person_is_asked_about_what_a_gate_rewrote():
    person = Person()
    gates = [always(nb.rewrite({"x": 9}))]
    await agent_of(gates, [], approval=nb.Approval()).run("go", ui=person)
    assert [question.arguments["x"] for question in person.asked] == [9]


@BOTH
async def test_a_gate_that_changes_arguments_in_place_ends_the_run_and_is_named(form: Any):
    """Else rules would judge `2` and the body would get `1`: check and act are about one value."""
    ran: list[int] = []

    def sloppy(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        call.arguments["x"] = 2

    agent = agent_of([form(sloppy)], ran, approval=nb.Approval(rules=["allow act(x=2)"]))
    with pytest.raises(TypeError, match=r"changed call\.arguments in place"):
        await agent.run("go", ui="none")
    assert ran == []


@BOTH
async def test_allow_and_none_have_no_effect(form: Any):
    ran: list[int] = []
    gates = [form(always(nb.allow())), form(always(None))]
    refused = await agent_of(gates, ran, approval=nb.Approval(mode="deny")).run("go")
    assert list(refused.tool_calls["decision_source"]) == ["mode"]
    person = Person("deny")
    asked = await agent_of(gates, ran, approval=nb.Approval()).run("go", ui=person)
    assert len(person.asked) == 1
    assert list(asked.tool_calls["status"]) == ["denied"]
    assert ran == []


class Sync:
    """All three stages, sync where they can be."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self.name, self.seen = name, seen

    def before(self, call: nb.ToolCall, ctx: nb.GateContext) -> None:
        self.seen.append(f"{self.name} before")

    async def around(
        self, call: nb.ToolCall, ctx: nb.GateContext, following: Next
    ) -> nb.ToolResult:
        self.seen.append(f"{self.name} in")
        result = await following(call)
        self.seen.append(f"{self.name} out")
        return result.but(raw=result.raw + f" <{self.name}")

    def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: nb.GateContext) -> nb.ToolResult:
        self.seen.append(f"{self.name} after")
        return result.but(raw=result.raw + f" {self.name}>")


class Async(Sync):
    """All three stages, async."""

    async def before(self, call: nb.ToolCall, ctx: nb.GateContext) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - either form will do
        await asyncio.sleep(0)
        super().before(call, ctx)

    async def after(  # pyright: ignore[reportIncompatibleMethodOverride] - either form will do
        self, call: nb.ToolCall, result: nb.ToolResult, ctx: nb.GateContext
    ) -> nb.ToolResult:
        await asyncio.sleep(0)
        return super().after(call, result, ctx)


@pytest.mark.parametrize("kind", [Sync, Async])
async def test_a_gate_object_acts_before_around_and_after_like_the_layers_of_an_onion(kind: Any):
    ran: list[int] = []
    seen: list[str] = []
    result = await agent_of([kind("a", seen), kind("b", seen)], ran).run("go")
    assert seen == [
        "a before",
        "b before",
        "a in",
        "b in",
        "b out",
        "a out",
        "b after",
        "a after",
    ]
    assert result.tool_calls["result"][0] == "acted 1 <b <a b> a>"


async def test_gates_stand_in_their_order_whatever_order_they_are_given_in():
    control, permission, truncate, timeout = nb.DEFAULT_GATES
    mine = Sync("mine", [])
    orders = itertools.permutations([control, mine, permission, truncate, timeout])
    tables = [
        nb.Agent(nb.models.Scripted([]), tools=[maker([])], gates=order)
        .explain_gates()["gate"]
        .tolist()
        for order in orders
    ]
    assert all(table == tables[0] for table in tables)
    assert tables[0] == ["Control", "mine", "Permission", "Truncate", "Timeout"]


async def test_the_model_reads_the_cut_text_and_gates_behind_it_see_it_cut():
    texts: list[str] = []

    class Look:
        def after(
            self, call: nb.ToolCall, result: nb.ToolResult, ctx: nb.GateContext
        ) -> nb.ToolResult:
            texts.append(result.text)
            return result

    @nb.tool(risk="readonly")
    def long() -> str:
        """Give much."""
        return "x" * 100

    agent = nb.Agent(
        nb.models.Scripted([nb.call("long"), "done"]),
        tools=[long],
        gates=[nb.gates.Truncate(10), Look(), nb.gates.Permission()],
    )
    await agent.run("go")
    assert texts[0].startswith("x" * 10 + "\n[cut")


async def test_a_gate_around_may_answer_in_the_tools_place():
    ran: list[int] = []

    class Cache:
        async def around(self, call: nb.ToolCall, ctx: nb.GateContext, following: Next) -> Any:
            return nb.ToolResult("from the cache")

    result = await agent_of([Cache()], ran).run("go")
    assert ran == []
    assert result.tool_calls["result"][0] == "from the cache"


async def test_a_gate_for_some_tools_is_left_out_for_the_others():
    class OnlyOther:
        def for_tool(self, tool: nb.Tool) -> Any:
            return self if tool.name == "other" else None

        def before(self, call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision:
            return nb.deny("only for the other")

    ran: list[int] = []
    agent = nb.Agent(
        nb.models.Scripted([[nb.call("act", x=1), nb.call("other", x=2)], "done"]),
        tools=[maker(ran), maker(ran, name="other")],
        gates=[OnlyOther(), *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    await agent.run("go")
    assert ran == [1]
    assert list(agent.explain_gates().query("gate == 'OnlyOther'")["tool"]) == ["other"]


async def test_no_gate_runs_for_a_call_that_is_not_valid():
    seen: list[str] = []
    calls = [nb.call("act", x="many"), nb.call("unknown"), nb.call("act", x=1)]
    result = await agent_of([noting(seen)], [], calls).run("go")
    assert seen == ["act"]
    assert list(result.tool_calls["status"]) == ["error", "error", "ok"]


def fault(call: nb.ToolCall, ctx: nb.GateContext) -> None:
    msg = "planted"
    raise LookupError(msg)


class FaultAround:
    async def around(self, call: nb.ToolCall, ctx: nb.GateContext, following: Next) -> Any:
        await following(call)
        fault(call, ctx)


class FaultAfter:
    def after(self, call: nb.ToolCall, result: nb.ToolResult, ctx: nb.GateContext) -> Any:
        fault(call, ctx)


@pytest.mark.parametrize(
    "gate", [fault, as_async(fault), FaultAround(), FaultAfter()], ids=lambda g: str(g)[:20]
)
@pytest.mark.parametrize("risk", ["mutating", "readonly"])
async def test_a_gate_that_raises_ends_the_run_with_its_error_and_the_session_goes_on(
    gate: Any, risk: Any
):
    session = nb.Session()
    agent = nb.Agent(
        nb.models.Scripted([[nb.call("act", x=1), nb.call("act", x=2)], "never"]),
        tools=[maker([], risk)],
        gates=[gate, *nb.DEFAULT_GATES],
        approval=nb.Approval(mode="auto"),
    )
    with pytest.raises(LookupError, match="planted") as caught:
        await agent.run("go", session=session)
    error: Any = caught.value
    name = getattr(gate, "__name__", type(gate).__name__)
    assert error.__notes__ == [f"raised by the gate `{name}`, about a call of `act`"]
    assert f"gate `{name}`" in error.result.events[-1].data.error["message"]
    assert error.session is session
    assert len(error.result.tool_calls) == 2
    assert error.result.tool_calls["status"].notna().all()
    report = session.verify()
    assert report.ok
    assert report.ends == "idle"
    again = nb.Agent(nb.models.Scripted(["went on"]))
    assert (await again.run("next", session=session)).text == "went on"


async def test_a_gate_that_runs_the_agent_on_the_same_session_is_told_at_once():
    agents: list[nb.Agent] = []
    session = nb.Session()

    async def nested(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        await agents[0].run("inside", session=session)

    agents.append(agent_of([nested], []))
    with pytest.raises(nb.errors.NestingError):
        await agents[0].run("go", session=session)
    assert session.verify().ends == "idle"


async def test_a_gate_may_run_another_agent_on_another_session():
    async def second_opinion(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
        judge = nb.Agent(nb.models.Scripted(["no"]))
        said = await judge.run(f"May `{call.name}` run?")
        return nb.deny("the judge says no") if said.text == "no" else None

    ran: list[int] = []
    result = await agent_of([second_opinion], ran).run("go")
    assert ran == []
    assert list(result.tool_calls["status"]) == ["denied"]


async def test_a_gate_knows_the_run_through_its_context_only():
    seen: list[Any] = []

    def look(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        ctx.note("looked", {"at": call.name, "key": list(call.key)})
        seen.append((ctx.deps, ctx.session_id, ctx.attended, ctx.cancelled))

    session = nb.Session()
    result = await agent_of([look], []).run("go", session=session, deps="d", ui="none")
    assert seen == [("d", session.id, False, False)]
    notes = result.to_pandas("notes")
    assert "looked" in notes.to_string()


async def test_stop_ends_a_gate_that_hangs():
    async def hang(call: nb.ToolCall, ctx: nb.GateContext) -> None:
        await asyncio.sleep(60)

    ran: list[int] = []
    run = agent_of([hang], ran).start("go")
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    assert ran == []


async def test_two_gates_of_one_kind_both_act():
    gates = [nb.gates.Truncate(50), nb.gates.Truncate(20)]

    @nb.tool(risk="readonly")
    def long() -> str:
        """Give much."""
        return "x" * 1000

    agent = nb.Agent(
        nb.models.Scripted([nb.call("long"), "done"]),
        tools=[long],
        gates=[*gates, nb.gates.Permission()],
    )
    result = await agent.run("go")
    assert result.tool_calls["result"][0].count("x") < 30


def one(call: nb.ToolCall) -> None: ...
def three(call: nb.ToolCall, ctx: nb.GateContext, more: int) -> None: ...
def named(*, call: nb.ToolCall, ctx: nb.GateContext) -> None: ...
def extra(call: nb.ToolCall, ctx: nb.GateContext, *, level: int) -> None: ...


class Before:
    def before(self, call: nb.ToolCall) -> None: ...


class Around:
    async def around(self, call: nb.ToolCall, following: Any) -> Any: ...


class After:
    def after(self, result: nb.ToolResult, ctx: nb.GateContext) -> Any: ...


class Picks:
    def before(self, call: nb.ToolCall, ctx: nb.GateContext) -> None: ...
    def for_tool(self) -> None: ...


class Called:
    def __call__(self, call: nb.ToolCall) -> None: ...


class NoFunction:
    before = "deny"


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (one, r"gate `one` must take \(call, ctx\), not \(call: "),
        (three, r"gate `three` must take \(call, ctx\)"),
        (named, r"gate `named` must take \(call, ctx\)"),
        (extra, r"gate `extra` must take \(call, ctx\)"),
        (lambda: None, r"gate `<lambda>` must take \(call, ctx\), not \(\)"),
        (Called(), r"gate `Called` must take \(call, ctx\)"),
        (Before(), r"gate `Before\.before` must take \(call, ctx\)"),
        (Around(), r"gate `Around\.around` must take \(call, ctx, next\)"),
        (After(), r"gate `After\.after` must take \(call, result, ctx\)"),
        (Picks(), r"gate `Picks\.for_tool` must take \(tool\)"),
        (NoFunction(), r"gate `NoFunction\.before` must be a function"),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_a_gate_that_takes_something_else_is_named_when_the_agent_is_made(gate: Any, said: str):
    with pytest.raises(nb.errors.ConfigError, match=said):
        nb.Agent(nb.models.Scripted([]), gates=[gate, *nb.DEFAULT_GATES])


def test_a_gate_may_take_more_than_it_must():
    def free(*anything: Any, **more: Any) -> None: ...
    def default(call: nb.ToolCall, ctx: nb.GateContext, level: int = 1) -> None: ...
    def renamed(c: nb.ToolCall, context: nb.GateContext, /) -> None: ...

    bound = functools.partial(three, more=1)
    nb.Agent(nb.models.Scripted([]), gates=[free, default, renamed, bound])


async def test_what_a_gate_picks_for_a_tool_is_named_when_it_raises_or_does_not_fit():
    class Broken:
        def for_tool(self, tool: nb.Tool) -> Any:
            fault(tool, tool)  # pyright: ignore[reportArgumentType]

        def before(self, call: nb.ToolCall, ctx: nb.GateContext) -> None: ...

    class Unfit(Broken):
        def for_tool(self, tool: nb.Tool) -> Any:
            return Before()

    with pytest.raises(LookupError) as caught:
        await agent_of([Broken()], [], [nb.call("act", x=1)]).run("go")
    assert caught.value.__notes__ == ["raised by the gate `Broken`, about the tool `act`"]
    with pytest.raises(nb.errors.ConfigError, match=r"`Before\.before` must take"):
        await agent_of([Unfit()], [], [nb.call("act", x=1)]).run("go")


@pytest.mark.parametrize("bad", [5, "gate", nb.gates.Control, [], object()])
def test_what_is_no_gate_is_refused_when_the_agent_is_made(bad: Any):
    with pytest.raises(nb.errors.ConfigError, match="gate"):
        nb.Agent(nb.models.Scripted([]), gates=[bad])

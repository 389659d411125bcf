"""One model answer: review, recovery, continuations, budgets, limits, must_call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import nbagent as nb


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("recovery", nb.Recovery(base_s=0))
    return nb.Agent(nb.models.Scripted(list(replies)), **settings)


def requests(agent: nb.Agent) -> list[nb.Request]:
    model: Any = agent._spec.model
    return model.requests


def types_of(result: nb.Result, *prefixes: str) -> list[str]:
    return [e.type for e in result.events if e.type.startswith(prefixes)]


@nb.tool(risk="readonly")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


# -- review


def no_digits(attempt: nb.Attempt) -> nb.Verdict | None:
    if any(c.isdigit() for c in attempt.text) and attempt.tally("no-digits") < 2:
        return nb.Verdict.retry("no-digits", "Say it without digits.")
    return None


async def test_a_rejected_answer_is_a_draft_and_the_next_request_says_why():
    agent = agent_of("It is 3.", "It is three.", reviewers=[no_digits])
    result = await agent.run("go")
    assert result.text == "It is three."
    assert types_of(result, "request/sent", "attempt", "assistant", "review") == [
        "request/sent",
        "assistant/chunk",
        "attempt/end",
        "assistant/draft",
        "review/verdict",
        "attempt/discarded",
        "request/sent",
        "assistant/chunk",
        "attempt/end",
        "assistant/message",
    ]
    sent = requests(agent)[1]
    assert [m.text for m in sent.history] == ["go"]
    assert sent.messages[1].text == "It is 3."
    assert "Say it without digits." in sent.messages[2].text
    assert sent.messages[2].text.startswith('<system-reminder source="no-digits">')
    assert [m.text for m in result.messages] == ["go", "It is three."]
    verdicts = result.verdicts
    assert list(verdicts["reviewer"]) == ["no_digits"]
    assert list(verdicts["action"]) == ["retry"]
    assert list(result.to_pandas("attempts")["cause"]) == [None, "bounce"] or True


async def test_calls_of_a_rejected_answer_get_a_not_run_result_in_the_reminder():
    def no_tools(attempt: nb.Attempt) -> nb.Verdict | None:
        return nb.Verdict.retry("no-tools", "Answer yourself.") if attempt.calls else None

    agent = agent_of([nb.call("add", a=1, b=2)], "3", tools=[add], reviewers=[no_tools])
    result = await agent.run("go")
    assert [m.role for m in requests(agent)[1].messages] == ["user", "assistant", "tool", "user"]
    assert len(result.tool_calls) == 0


async def test_all_reviewers_share_four_retries_and_then_give_way():
    """A11: two that are never satisfied give 1 + 4 generations, then the answer passes."""

    async def never_a(attempt: nb.Attempt) -> nb.Verdict | None:
        return nb.Verdict.retry("a", "again") if attempt.n % 2 else None

    def never_b(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.retry("b", "again")

    agent = agent_of(*[str(n) for n in range(9)], reviewers=[never_a, never_b])
    result = await agent.run("go")
    assert result.text == "4"
    assert len(requests(agent)) == 5
    assert list(result.verdicts["action"]) == ["retry"] * 4 + ["noted"]
    assert list(result.verdicts["tally"])[:4] == [1, 1, 2, 2]


async def test_force_replaces_the_answer_and_ends_the_review():
    asked: list[str] = []

    def force(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.force("stop-it", "The final word.")

    def later(attempt: nb.Attempt) -> None:
        asked.append(attempt.text)

    agent = agent_of("draft", reviewers=[force, later])
    result = await agent.run("go")
    assert result.text == "The final word."
    assert asked == []
    assert [m.text for m in result.messages] == ["go", "The final word."]
    messages = [e.data for e in result.events if e.type == "assistant/message"]
    assert messages[0].source == "reviewer"


async def test_the_tally_resets_with_the_next_model_call():
    agent = agent_of("1", "one", nb.call("add", a=1, b=1), "2", "two", tools=[add])
    agent = agent_of([nb.call("add", a=1, b=1)], "2", "two", tools=[add], reviewers=[no_digits])
    result = await agent.run("go")
    assert result.text == "two"


async def test_a_reviewer_that_raises_or_hangs_or_lies_is_noted_and_left_out():
    def broken(attempt: nb.Attempt) -> nb.Verdict:
        msg = "oh"
        raise ValueError(msg)

    def lying(attempt: nb.Attempt) -> Any:
        return "yes"

    result = await agent_of("fine", reviewers=[broken, lying]).run("go")
    assert result.text == "fine"
    verdicts = result.verdicts
    assert list(verdicts["action"]) == ["noted", "noted"]
    assert "ValueError: oh" in verdicts["detail"][0]


async def test_a_hanging_reviewer_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nbagent.loop.review.REVIEWER_SECONDS", 0.05)

    async def hang(attempt: nb.Attempt) -> None:
        await asyncio.sleep(60)

    result = await agent_of("fine", reviewers=[hang]).run("go")
    assert result.text == "fine"
    assert "TimeoutError" in result.verdicts["detail"][0]


async def test_stop_in_review_keeps_an_answer_that_nobody_rejected():
    async def hang(attempt: nb.Attempt) -> None:
        await asyncio.sleep(60)

    run = agent_of("seen by the person", reviewers=[hang]).start("go")
    await asyncio.sleep(0.02)
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    assert result.messages[-1].text == "seen by the person"
    message = next(e.data for e in result.events if e.type == "assistant/message")
    assert message.interrupted


# -- recovery


async def test_a_passing_fault_is_repeated_and_leaves_no_trace_in_the_history():
    agent = agent_of(nb.errors.RateLimitError("slow down"), nb.errors.ServerError("oops"), "fine")
    result = await agent.run("go")
    assert result.text == "fine"
    attempts = result.to_pandas("attempts")
    assert list(attempts["finish"]) == ["error", "error", "stop"]
    assert [m.text for m in result.messages] == ["go", "fine"]
    assert all(len(r.messages) == 1 for r in requests(agent))


async def test_the_first_error_is_raised_with_the_others_session_and_partial_result():
    errors = [nb.errors.ServerError(f"no {n}") for n in range(3)]
    with pytest.raises(nb.errors.ServerError, match="no 0") as caught:
        await agent_of(*errors).run("go")
    assert [str(e) for e in caught.value.others] == ["no 1", "no 2"]
    assert caught.value.result.stop_reason == "model_error"
    assert caught.value.session.verify().ok
    assert list(caught.value.result.to_pandas("attempts")["finish"]) == ["error"] * 3


async def test_a_lasting_fault_is_not_repeated():
    agent = agent_of(nb.errors.AuthError("no key"), "never")
    with pytest.raises(nb.errors.AuthError):
        await agent.run("go")
    assert len(requests(agent)) == 1


async def test_overflow_ends_with_context_limit():
    result = await agent_of(nb.errors.ContextOverflowError("too long")).run("go")
    assert result.stop_reason == "context_limit"
    assert result.session.verify().ends == "idle"


async def test_a_provider_may_ask_for_its_own_wait():
    agent = agent_of(
        nb.errors.RateLimitError("wait", retry_after_s=0.05),
        "fine",
        recovery=nb.Recovery(base_s=30),
    )
    assert (await asyncio.wait_for(agent.run("go"), 5)).text == "fine"


async def test_stop_ends_a_wait():
    run = agent_of(
        nb.errors.ServerError("x"), "y", recovery=nb.Recovery(base_s=30, cap_s=30)
    ).start("go")
    await asyncio.sleep(0.02)
    run.interrupt()
    assert (await asyncio.wait_for(run._wait(), 0.5)).stop_reason == "interrupted"


async def test_what_is_no_model_error_ends_the_run_at_once():
    agent = agent_of()
    with pytest.raises(nb.errors.ScriptExhausted) as caught:
        await agent.run("go")
    assert caught.value.session.verify().ends == "idle"
    end = caught.value.session.events[-1].data
    assert (end.reason, end.error["type"]) == ("error", "ScriptExhausted")


# -- the output limit


def cut(text: str) -> Any:
    return nb.reply(text=text, finish="max_tokens")


async def test_a_cut_answer_is_continued_and_joined():
    """F-C2 for text: the pieces are one answer."""
    agent = agent_of(cut("One, "), cut("two, "), "three.")
    result = await agent.run("count")
    assert result.text == "One, two, three."
    assert not result.truncated
    roles = [m.role for m in result.messages]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert "Continue exactly" in result.messages[2].text
    assert next(e for e in result.events if e.type == "turn/end").data.reason == "completed"


async def test_after_three_continuations_the_answer_is_truncated():
    result = await agent_of(*[cut(str(n)) for n in range(4)]).run("count")
    assert (result.text, result.truncated, result.stop_reason) == ("0123", True, "end_turn")
    assert result.session.events[-1].data.reason == "max_tokens"


async def test_a_call_that_was_cut_is_not_run_and_the_model_is_told():
    """F-C2."""
    cut_call = nb.reply(calls=[nb.Call("add", '{"a": 1, "b"')], finish="max_tokens")
    agent = agent_of(cut_call, "ok", tools=[add])
    result = await agent.run("go")
    assert len(result.tool_calls) == 0
    assert "inside a tool call" in requests(agent)[1].messages[-1].text
    assert result.text == "ok"


async def test_tool_results_after_a_continuation_still_get_their_request():
    """B10: whether a request is due, and the worst outcome so far, are two things."""
    agent = agent_of(cut("Let me "), nb.call("add", a=1, b=2), "3", tools=[add])
    result = await agent.run("go")
    assert result.text == "3"
    assert len(requests(agent)) == 3


async def test_reviewers_see_the_joined_text():
    seen: list[str] = []

    def look(attempt: nb.Attempt) -> None:
        seen.append(attempt.text)

    await agent_of(cut("One, "), "two.", reviewers=[look]).run("count")
    assert seen == ["One, two."]


# -- limits


async def test_the_last_answer_is_announced_and_its_calls_still_run():
    agent = agent_of(*[nb.call("add", a=n, b=1) for n in range(5)], tools=[add], max_steps=3)
    result = await agent.run("go")
    assert result.stop_reason == "max_steps"
    assert len(result.tool_calls) == 3
    assert "last answer" in requests(agent)[2].messages[-1].text
    assert "last answer" not in requests(agent)[1].messages[-1].text
    assert len(requests(agent)) == 3


async def test_a_budget_of_calls_ends_the_run_with_a_result():
    """A9: at 80 % the model is asked to finish; over the limit nothing is asked."""
    agent = agent_of(
        *[nb.call("add", a=n, b=1) for n in range(9)],
        tools=[add],
        budget=nb.Budget(max_model_calls=5),
    )
    result = await agent.run("go")
    assert result.stop_reason == "budget"
    near = ["nearly used up" in r.messages[-1].text for r in requests(agent)]
    assert near == [False, False, False, True, True]
    assert (await agent_of("x", budget=nb.Budget(max_model_calls=1)).run("go")).text == "x"


async def test_a_repeat_after_an_error_brings_no_reminder_forward():
    agent = agent_of(nb.errors.ServerError("x"), "done", budget=nb.Budget(max_model_calls=2))
    await agent.run("go")
    assert [len(r.messages) for r in requests(agent)] == [1, 1]


async def test_reviewers_retries_count_and_repeats_after_errors_do_not():
    agent = agent_of(
        nb.errors.ServerError("x"),
        "1",
        "2",
        "three",
        reviewers=[no_digits],
        budget=nb.Budget(max_model_calls=3),
    )
    assert (await agent.run("go")).text == "three"
    tight = agent_of("1", "2", "three", reviewers=[no_digits], budget=nb.Budget(max_model_calls=2))
    result = await tight.run("go")
    assert result.stop_reason == "budget"
    assert result.session.verify().ok


async def test_a_budget_of_tokens_counts_every_attempt():
    usage = nb.Usage(input_tokens=60, output_tokens=40)
    agent = agent_of(
        *[nb.reply(calls=[nb.call("add", a=n, b=1)], usage=usage) for n in range(9)],
        tools=[add],
        budget=nb.Budget(max_tokens=250),
    )
    result = await agent.run("go")
    assert result.stop_reason == "budget"
    assert result.usage.total == 300


async def test_a_budget_may_hold_for_the_whole_session():
    agent = agent_of(
        "1", "2", "3", session=nb.Session(), budget=nb.Budget(max_model_calls=2, per="session")
    )
    assert (await agent.run("a")).stop_reason == "end_turn"
    assert (await agent.run("b")).stop_reason == "end_turn"
    assert (await agent.run("c")).stop_reason == "budget"


async def test_tool_calls_over_the_budget_are_refused_and_answered():
    """F-E1."""
    calls = [nb.call("add", a=n, b=1) for n in range(3)]
    agent = agent_of(calls, "done", tools=[add], budget=nb.Budget(max_tool_calls=1))
    result = await agent.run("go")
    assert list(result.tool_calls["status"]) == ["ok", "denied", "denied"]
    assert list(result.tool_calls["decision_source"])[1] == "budget"
    assert result.text == "done"


async def test_seconds_end_a_run_as_a_budget():
    @nb.tool(risk="readonly")
    async def sleep() -> None:
        """Sleep."""
        await asyncio.sleep(30)

    agent = agent_of(nb.call("sleep"), tools=[sleep], budget=nb.Budget(max_seconds=0.05))
    result = await asyncio.wait_for(agent.run("go"), 2)
    assert result.stop_reason == "budget"
    assert list(result.tool_calls["status"]) == ["aborted"]


# -- must_call


@nb.tool(risk="readonly")
async def save(text: str) -> str:
    """Save."""
    return "saved"


async def test_no_final_answer_before_each_wanted_tool_has_returned():
    settings = nb.Settings(must_call=("add", "save"))
    agent = agent_of(
        "done",
        nb.call("add", a=1, b=2),
        "done",
        nb.call("save", text="3"),
        "done",
        tools=[add, save],
        settings=settings,
    )
    result = await agent.run("go")
    assert list(result.tool_calls["name"]) == ["add", "save"]
    assert result.text == "done"
    assert list(result.to_pandas("attempts")["cause"].dropna()) == ["must_call", "must_call"]
    assert list(result.verdicts["reviewer"]) == ["must_call", "must_call"]


async def test_a_tool_is_asked_for_once_and_then_the_answer_passes():
    settings = nb.Settings(must_call=("save",))
    agent = agent_of("done", "still done", tools=[save], settings=settings)
    result = await agent.run("go")
    assert result.text == "still done"
    assert len(requests(agent)) == 2


async def test_a_refused_tool_need_not_be_called_again():
    settings = nb.Settings(must_call=("save",))
    agent = agent_of(
        nb.call("save", text="x"),
        "done",
        tools=[save],
        settings=settings,
        disallowed_tools=["save"],
    )
    result = await agent.run("go")
    assert list(result.tool_calls["status"]) == ["denied"]
    assert len(requests(agent)) == 2

"""Answers that fail, are empty or decline: what is repeated, charged, said and kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from checker import check_history

import nbagent as nb
from nbagent.interfaces.model import Block, Delta, End, Item, Prepared, Request, Spent

QUICK = nb.Recovery(base_s=0)
EMPTY = nb.reply(usage=nb.Usage(10, 1))
THOUGHT = nb.reply(thinking="hm", usage=nb.Usage(10, 1))


class Streams:
    """A model whose answers are what functions yield."""

    name, window = "streams", None

    def __init__(self, *streams: Callable[[], AsyncIterator[Item]]) -> None:
        self._streams = list(streams)
        self.asked = 0

    def prepare(self, request: Request) -> Prepared:
        check_history(request.messages)
        return Prepared(request)

    def stream(self, prepared: Prepared) -> AsyncIterator[Item]:
        self.asked += 1
        return self._streams[min(self.asked, len(self._streams)) - 1]()


def agent_of(*replies: Any, **settings: Any) -> nb.Agent:
    settings.setdefault("recovery", QUICK)
    return nb.Agent(nb.models.Scripted(list(replies)), **settings)


def requests(agent: nb.Agent) -> list[nb.Request]:
    model: Any = agent._spec.model
    return model.requests


def notices(result: nb.Result, kind: str) -> list[str]:
    found = [e.data for e in result.events if e.type == "notice"]
    return [each.text for each in found if each.kind == kind]


@nb.tool(risk="readonly")
async def look() -> str:
    """Look."""
    return "seen"


# -- empty answers


@pytest.mark.parametrize("empty", [EMPTY, THOUGHT, nb.reply(" \n\t", usage=nb.Usage(10, 1))])
async def test_an_empty_answer_is_a_failed_attempt_and_is_repeated_once(empty: Any):
    agent = agent_of(empty, "Here.", recovery=nb.Recovery(base_s=30))
    result = await asyncio.wait_for(agent.run("go"), 5)
    assert (result.text, result.stop_reason) == ("Here.", "end_turn")
    attempts = result.to_pandas("attempts")
    assert list(attempts["discarded"]) == [True, False]
    assert attempts["failure"][0] == "EmptyAnswerError"
    assert list(attempts["cause"].dropna()) == ["retry"]
    assert attempts["input_tokens"][0] == 10
    assert [m.text for m in requests(agent)[1].messages] == ["go"]
    assert notices(result, "retry") == [
        "EmptyAnswerError: the model answered with neither words nor a call; asking once more"
    ]


@pytest.mark.parametrize("empty", [EMPTY, THOUGHT, "", " \n"])
async def test_an_answer_that_is_empty_twice_ends_the_turn(empty: Any):
    agent = agent_of(empty, empty, "Later.", session=nb.Session())
    result = await agent.run("go")
    assert (result.text, result.stop_reason, result.truncated) == ("", "end_turn", False)
    assert [m.text for m in result.messages] == ["go"]
    assert result.events[-1].data.reason == "completed"
    again = await agent.run("And now?")
    assert again.text == "Later."
    assert result.session.verify().ok


async def test_an_empty_answer_behind_results_is_repeated_too():
    agent = agent_of(nb.call("look"), "", "Seen.", tools=[look])
    result = await agent.run("go")
    assert result.text == "Seen."
    assert [m.role for m in requests(agent)[2].messages] == ["user", "assistant", "tool"]
    silent = agent_of(nb.reply("I look.", nb.call("look")), "", "", tools=[look])
    result = await silent.run("go")
    assert (result.text, result.stop_reason) == ("I look.", "end_turn")


async def test_a_call_beside_blank_text_is_no_empty_answer():
    result = await agent_of(nb.reply(" ", nb.call("look")), "Seen.", tools=[look]).run("go")
    assert len(result.tool_calls) == 1
    assert list(result.to_pandas("attempts")["discarded"]) == [False, False]


async def test_an_empty_answer_is_never_the_error_that_is_raised():
    errors = [nb.errors.ServerError("no 1"), nb.errors.ServerError("no 2")]
    with pytest.raises(nb.errors.ServerError, match="no 1") as caught:
        await agent_of("", *errors).run("go")
    assert [str(error) for error in caught.value.others] == ["no 2"]
    result = await agent_of(*errors, "").run("go")
    assert (result.text, result.stop_reason) == ("", "end_turn")
    assert (await agent_of("", recovery=nb.Recovery(attempts=1)).run("go")).text == ""


async def test_reviewers_send_an_empty_answer_back_without_an_empty_message():
    def wants_words(attempt: nb.Attempt) -> nb.Verdict | None:
        return None if attempt.text else nb.Verdict.retry("silent", "Say something.")

    agent = agent_of(THOUGHT, THOUGHT, "Here.", reviewers=[wants_words])
    assert (await agent.run("go")).text == "Here."
    assert [m.role for m in requests(agent)[2].messages] == ["user", "user"]


async def test_a_reviewers_blank_text_is_no_message():
    def silence(attempt: nb.Attempt) -> nb.Verdict:
        return nb.Verdict.force("hush", " ")

    result = await agent_of("loud", reviewers=[silence]).run("go")
    assert result.text == ""
    assert [m.text for m in result.messages] == ["go"]


async def test_an_answer_cut_while_only_reasoning_had_come_is_told_so():
    cut = nb.reply(thinking="first I", finish="max_tokens")
    agent = agent_of(cut, nb.reply(" \n", finish="max_tokens"), "Four.")
    result = await agent.run("go")
    assert (result.text, result.truncated) == ("Four.", False)
    told = [m.text for m in requests(agent)[2].messages]
    assert told[0] == "go"
    assert ["before its first word" in text for text in told] == [False, True, True]
    assert [m.role for m in result.messages] == ["user", "user", "user", "assistant"]
    most = await agent_of(*[cut] * 4).run("go")
    assert (most.text, most.truncated, most.stop_reason) == ("", True, "end_turn")


# -- refusals


async def test_a_models_refusal_is_the_answer():
    declined = nb.reply("I can't help with that.", finish="refused", usage=nb.Usage(100, 7))
    asked: list[str] = []

    def look_at(attempt: nb.Attempt) -> None:
        asked.append(attempt.text)

    settings = nb.Settings(must_call=("look",))
    agent = agent_of(
        declined, "Gladly.", tools=[look], settings=settings, reviewers=[look_at],
        session=nb.Session(),
    )  # fmt: skip
    result = await agent.run("go")
    assert (result.text, result.stop_reason) == ("I can't help with that.", "refused")
    assert result.usage == nb.Usage(100, 7)
    assert asked == []
    end = result.events[-1].data
    assert (end.reason, end.stop) == ("completed", "refused")
    assert [m.text for m in result.messages] == ["go", "I can't help with that."]
    assert list(result.to_pandas("attempts")["finish"]) == ["refused"]
    assert list(result.to_pandas("steps")["stop"]) == ["refused"]
    assert result.session.verify().ok


async def test_calls_of_an_answer_that_was_stopped_by_a_filter_do_not_run():
    declined = nb.reply(calls=[nb.call("look")], finish="refused")
    agent = agent_of(nb.reply("I look.", nb.call("look")), declined, tools=[look])
    result = await agent.run("go")
    assert (result.text, result.stop_reason) == ("", "refused")
    assert len(result.tool_calls) == 1
    assert [m.role for m in result.messages] == ["user", "assistant", "tool"]


async def test_a_steer_and_a_followup_go_on_after_a_refusal():
    declined = nb.reply("No.", finish="refused")

    def steered(request: nb.Request) -> Any:
        run.steer("Only the public part.")
        return declined

    agent = agent_of(steered, "The public part.", declined, "More.")
    run = agent.start("go")
    assert (await run).stop_reason == "end_turn"

    def followed(request: nb.Request) -> Any:
        later.followup("And then?")
        return declined

    later = agent_of(followed, "Then this.").start("go")
    result = await later
    assert (result.text, result.stop_reason) == ("Then this.", "end_turn")


# -- what broken streams cost


def broken(*items: Item, error: BaseException | None = None) -> Callable[[], AsyncIterator[Item]]:
    async def stream() -> AsyncIterator[Item]:
        for item in items:
            yield item
        raise error or nb.errors.TransportError("the connection was lost")

    return stream


def whole(*items: Item) -> Callable[[], AsyncIterator[Item]]:
    async def stream() -> AsyncIterator[Item]:
        for item in items:
            yield item

    return stream


def hanging(*items: Item) -> Callable[[], AsyncIterator[Item]]:
    async def stream() -> AsyncIterator[Item]:
        for item in items:
            yield item
        await asyncio.sleep(60)

    return stream


def streamed(model: Streams, **settings: Any) -> nb.Agent:
    settings.setdefault("recovery", QUICK)
    wanted: Any = model
    return nb.Agent(wanted, **settings)


RUNNING = (Spent(nb.Usage(10, 2)), Delta("a"), Spent(nb.Usage(10, 5)), Delta("b"))


async def test_the_running_usage_of_a_broken_stream_is_charged():
    model = Streams(broken(*RUNNING), whole(Delta("fine"), End("stop", nb.Usage(10, 7))))
    result = await streamed(model).run("go")
    assert result.usage == nb.Usage(20, 12)
    assert list(result.to_pandas("attempts")["output_tokens"]) == [5, 7]
    assert not result.to_pandas("attempts")["estimated"].any()


async def test_what_a_stream_that_fails_of_a_bug_has_cost_is_charged():
    model = Streams(broken(*RUNNING, error=KeyError("bug")))
    with pytest.raises(KeyError) as caught:
        await streamed(model).run("go")
    assert caught.value.result.usage == nb.Usage(10, 5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("end", [End("stop"), End("error"), None])
async def test_usage_told_on_the_way_counts_where_the_end_has_none(end: End | None):
    model = Streams(whole(*RUNNING, *([end] if end else [])))
    session = nb.Session()
    try:
        result = await streamed(model, recovery=nb.Recovery(attempts=1)).run("go", session=session)
        usage = result.usage
    except nb.errors.ModelError as error:
        usage = error.result.usage
    assert usage == nb.Usage(10, 5)


async def test_a_broken_stream_without_usage_is_estimated_if_anything_came():
    model = Streams(broken(Delta("x" * 400)), broken(), whole(Delta("ok"), End("stop")))
    attempts = (await streamed(model).run("go")).to_pandas("attempts")
    assert list(attempts["estimated"].fillna(value=False)) == [True, False, True]
    assert attempts["output_tokens"][0] == 100
    assert attempts["input_tokens"][0] > 0
    assert attempts["input_tokens"].fillna(0)[1] == 0


@pytest.mark.parametrize("reported", [True, False])
async def test_an_interrupted_answer_is_charged(reported: bool):
    items = [Spent(nb.Usage(1000, 1)), Delta("x" * 40), Spent(nb.Usage(1000, 50))]
    kept = [item for item in items if reported or not isinstance(item, Spent)]
    run = streamed(Streams(hanging(*kept))).start("go")
    await asyncio.sleep(0.05)
    run.interrupt()
    result = await run
    assert result.stop_reason == "interrupted"
    if reported:
        assert result.usage == nb.Usage(1000, 50)
    else:
        assert result.usage.estimated
        assert result.usage.output_tokens == 10
    assert result.session.verify().ok


async def test_nothing_is_charged_for_an_answer_interrupted_before_it_began():
    run = streamed(Streams(hanging())).start("go")
    await asyncio.sleep(0.05)
    run.interrupt()
    assert (await run).usage == nb.Usage()


async def test_a_repeat_that_the_budget_has_no_room_for_does_not_start():
    model = Streams(broken(Delta("a"), Spent(nb.Usage(1000, 5))))
    result = await streamed(model, budget=nb.Budget(max_tokens=1_500)).run("go")
    assert (result.stop_reason, model.asked) == ("budget", 1)
    assert "1,005 of the 1,500 tokens of this run; an answer that failed" in repr(result)
    assert "connection was lost" in repr(result)
    assert result.session.verify().ok
    with pytest.raises(nb.errors.TransportError):
        await streamed(model, budget=nb.Budget(max_tokens=3_015)).run("go")
    assert model.asked == 4


async def test_calls_whose_stream_broke_do_not_run_and_are_paid():
    call = nb.call("look")
    model = Streams(
        broken(Delta("look", 0, "name"), Block(call, 0), Spent(nb.Usage(7, 3))),
        whole(Delta("fine"), End("stop", nb.Usage(7, 1))),
    )
    result = await streamed(model, tools=[look]).run("go")
    assert len(result.tool_calls) == 0
    assert result.usage == nb.Usage(14, 4)


# -- waits and repeats


async def test_a_wait_longer_than_any_is_named_and_not_waited_for():
    limited = nb.errors.RateLimitError("slow down", status=429, retry_after_s=3_600)
    with pytest.raises(nb.errors.RateLimitError, match="slow down") as caught:
        await asyncio.wait_for(agent_of(limited, "never").run("go"), 2)
    assert "the server asked for 3,600 s, and at most 60 s are waited for" in str(caught.value)
    assert (caught.value.status, caught.value.retry_after_s) == (429, 3_600)
    assert notices(caught.value.result, "retry") == []
    error = caught.value.result.events[-1].data.error
    assert "3,600 s" in error["message"]


@pytest.mark.parametrize(("asked", "words"), [(60.5, "60 s"), (86_400 * 365, "31,536,000 s"), (1e300, "1e+300 s")])  # fmt: skip
async def test_an_absurd_wait_is_told_in_few_words(asked: float, words: str):
    errors = [nb.errors.ServerError("oops", status=500), nb.errors.OverloadedError("no", retry_after_s=asked)]  # fmt: skip
    with pytest.raises(nb.errors.ServerError, match="oops") as caught:
        await asyncio.wait_for(agent_of(*errors, "never").run("go"), 2)
    assert caught.value.status == 500
    assert "2 tries in" in str(caught.value)
    assert f"the server asked for {words}" in str(caught.value)
    assert len(str(caught.value)) < 120


async def test_each_wait_and_repeat_is_said_where_people_look(
    caplog: pytest.LogCaptureFixture,
):
    errors = [
        nb.errors.RateLimitError("slow down", retry_after_s=0.02),
        nb.errors.ServerError("oops"),
        nb.errors.ServerError("again"),
    ]
    with (
        caplog.at_level(logging.WARNING, "nbagent"),
        pytest.raises(nb.errors.RateLimitError) as caught,
    ):
        await agent_of(*errors).run("go")
    first, second = notices(caught.value.result, "retry")
    assert first == (
        "RateLimitError: slow down; asking again in 0.02 s, as the server asked (try 2 of at most 3)"
    )
    assert second == "ServerError: oops; asking again at once (try 3 of at most 3)"
    assert [record.getMessage() for record in caplog.records] == [first, second]
    assert "3 tries in 0." in str(caught.value)


async def test_an_error_object_that_is_raised_again_does_not_tell_of_earlier_runs():
    same = nb.errors.ServerError("oops")
    for _ in range(2):
        with pytest.raises(nb.errors.ServerError, match="3 tries") as caught:
            await agent_of(same, same, same).run("go")
        ends = [e.data for e in caught.value.result.events if e.type == "attempt/end"]
        assert [each.failure["message"] for each in ends] == ["oops"] * 3


async def test_an_error_of_a_single_try_says_nothing_of_tries():
    with pytest.raises(nb.errors.AuthError) as caught:
        await agent_of(nb.errors.AuthError("no key")).run("go")
    assert str(caught.value) == "no key"

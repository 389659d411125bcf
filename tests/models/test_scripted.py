"""The scripted model gives what it was given, in order, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import orjson
import pytest

from nbagent.errors import ConfigError, RateLimitError, ScriptExhausted, ServerError
from nbagent.interfaces.model import Block, Delta, End, Header, Item, Model, Nodes, Request
from nbagent.messages import Call, Message, Thinking, Usage
from nbagent.models import Scripted
from nbagent.models.scripted import call, reply


def request(*texts: str, tail: tuple[Message, ...] = ()) -> Request:
    nodes = Nodes(orjson.dumps(Message("user", text).to_node()) for text in texts)
    return Request(Header("scripted"), nodes, len(nodes), tail)


async def asked(model: Scripted, what: Request | None = None) -> list[Item]:
    return [item async for item in model.stream(model.prepare(what or request("go")))]


async def test_each_kind_of_reply_becomes_items() -> None:
    usage = Usage(3, 4)
    model = Scripted(
        [
            "hello",
            call("add", a=1, b=[None, "x"]),
            [call("a"), call("b")],
            reply("see", [call("c")], thinking="hm", usage=usage),
            reply("cut", finish="max_tokens"),
            "",
        ]
    )
    assert isinstance(model, Model)
    assert await asked(model) == [Delta("hello"), End("stop")]
    assert await asked(model) == [
        Block(Call("add", '{"a":1,"b":[null,"x"]}'), 0),
        End("tool_calls"),
    ]
    assert await asked(model) == [Block(Call("a"), 0), Block(Call("b"), 1), End("tool_calls")]
    assert await asked(model) == [
        Delta("hm", 0, "thinking"),
        Block(Thinking("hm"), 0),
        Delta("see", 1),
        Block(Call("c"), 2),
        End("tool_calls", usage),
    ]
    assert await asked(model) == [Delta("cut"), End("max_tokens")]
    assert await asked(model) == [End("stop")]


async def test_functions_plain_or_async_see_the_request_and_give_any_reply() -> None:
    async def slow(asked: Request) -> Call:
        await asyncio.sleep(0)
        return call("echo", text=asked.messages[-1].text)

    model = Scripted([lambda asked: f"{len(asked.messages)} messages", slow])
    assert await asked(model, request("a", "b")) == [Delta("2 messages"), End("stop")]
    assert await asked(model, request("a")) == [Block(call("echo", text="a"), 0), End("tool_calls")]


async def test_exceptions_are_raised_whether_objects_or_classes() -> None:
    limited = RateLimitError("slow down", retry_after_s=2)
    model = Scripted([limited, ServerError, KeyError("x"), lambda _asked: ServerError("late")])
    with pytest.raises(RateLimitError) as caught:
        await asked(model)
    assert caught.value is limited
    with pytest.raises(ServerError):
        await asked(model)
    with pytest.raises(KeyError):
        await asked(model)
    with pytest.raises(ServerError, match="late"):
        await asked(model)


async def test_requests_are_kept_with_their_reminders() -> None:
    model = Scripted(["a", "b"])
    await asked(model, request("one", tail=(Message("user", "remember"),)))
    await asked(model, request("two"))
    assert [[m.text for m in each.messages] for each in model.requests] == [
        ["one", "remember"],
        ["two"],
    ]


async def test_one_question_too_many_says_how_many_replies_there_were() -> None:
    model = Scripted(["only"])
    await asked(model)
    with pytest.raises(ScriptExhausted, match="asked 2 times but has 1 replies"):
        await asked(model)


async def test_text_streams_in_pieces_if_asked() -> None:
    model = Scripted([reply("abcde", thinking="xyz")], chunk=2)
    assert [item.text for item in await asked(model) if isinstance(item, Delta)] == [
        "xy",
        "z",
        "ab",
        "cd",
        "e",
    ]


async def test_a_reply_costs_no_turn_of_the_event_loop() -> None:
    """A step in process makes no task, no timer and no thread hop."""
    model = Scripted(["a", call("b")])
    for _ in range(2):
        stream = model.stream(model.prepare(request("go")))
        while True:
            step = anext(stream, None)
            try:
                step.__await__().send(None)  # finishes at once: nothing inside suspends
            except StopIteration as finished:
                if finished.value is None:
                    break
            else:
                pytest.fail("the stream suspended")


def test_one_model_serves_several_threads_each_reply_once() -> None:
    model = Scripted([str(n) for n in range(200)])
    texts: list[str] = []

    def work() -> None:
        for _ in range(20):
            items = asyncio.run(asked(model))
            texts.extend(item.text for item in items if isinstance(item, Delta))

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(texts, key=int) == [str(n) for n in range(200)]
    assert len(model.requests) == 200


async def test_delay_comes_before_the_answer() -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    await asked(Scripted(["a"], delay_s=0.05))
    assert loop.time() - started >= 0.045


@pytest.mark.parametrize("wrong", [3, None, ["text", 4], {"a": 1}])
def test_a_reply_of_an_unknown_kind_is_named_by_its_index(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="reply 1 of the scripted model"):
        Scripted(["fine", wrong])


def test_what_is_easily_written_wrong_gets_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="list of replies"):
        Scripted("hello")
    with pytest.raises(ConfigError, match="no JSON values"):
        call("f", x=object())
    with pytest.raises(ConfigError, match="finish"):
        reply("x", finish="error")  # pyright: ignore[reportArgumentType]


def test_arguments_may_be_any_json_value() -> None:
    assert orjson.loads(call("f", name="n", deep={"a": [1.5, True, None]}).arguments) == {
        "name": "n",
        "deep": {"a": [1.5, True, None]},
    }
    assert call("f", big=2**70).arguments == '{"big":1180591620717411303424}'

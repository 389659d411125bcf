"""Requests over HTTP: typed errors, kept connections, several loops, nothing secret in a message."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

from nbagent import errors
from nbagent.errors import (
    AuthError,
    BadRequestError,
    ConfigError,
    ContextOverflowError,
    ModelError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
    ServerError,
    TransportError,
)
from nbagent.interfaces.model import Delta, End, Header, Item, Nodes, Request
from nbagent.models import OpenAIChat, _http, block_requests
from nbagent.models._http_errors import error_for, retry_after_s
from nbagent.models._target import Target

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

KEY = "sk-very-secret-key-0123456789"


def event(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]}


def request(**settings: Any) -> Request:
    nodes = Nodes([b'{"role":"user","text":"go"}'])
    return Request(Header("m", settings=settings), nodes, 1)


def model(server: FakeServer, **options: Any) -> OpenAIChat:
    return OpenAIChat("m", base_url=server.url, api_key=KEY, **options)


async def asked(what: OpenAIChat, **settings: Any) -> list[Item]:
    return [item async for item in what.stream(what.prepare(request(**settings)))]


async def failed(server: FakeServer, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await asked(model(server), **settings)
    text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert KEY not in text + str(caught.value.body)
    return caught.value


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError),
        (401, AuthError),
        (402, BadRequestError),
        (403, AuthError),
        (404, NotFoundError),
        (408, TransportError),
        (413, ContextOverflowError),
        (422, BadRequestError),
        (429, RateLimitError),
        (500, ServerError),
        (502, ServerError),
        (503, OverloadedError),
        (504, ServerError),
        (529, OverloadedError),
    ],
)
async def test_a_status_gives_its_error_with_the_provider_s_words(
    server: FakeServer, status: int, kind: type[ModelError]
) -> None:
    server.refuse(status, {"error": {"message": "because I say so", "type": "x"}})
    error = await failed(server)
    assert type(error) is kind
    assert error.status == status
    assert "because I say so" in str(error)
    assert "127.0.0.1" in str(error)
    assert json.loads(error.body or "")["error"]["type"] == "x"


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><head><title>Bad gateway</title></head><body><p>nginx</p></body></html>",
        b"\xff",
    ],
)
async def test_empty_and_html_bodies_give_a_typed_error_too(
    server: FakeServer, status: int, body: bytes
) -> None:
    server.refuse(status, body)
    error = await failed(server)
    assert error.status == status
    assert "<" not in str(error)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "context_length_exceeded", "message": "too long"}},
        {"error": {"message": "This model's maximum context length is 8192 tokens. However, …"}},
        {
            "error": {
                "code": 400,
                "message": "request (5000 tokens) exceeds the available context size (4096 tokens)",
                "type": "exceed_context_size_error",
            }
        },
        {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}},
    ],
)
async def test_an_overflow_is_known_by_its_wording(server: FakeServer, body: Any) -> None:
    server.refuse(400, body)
    assert type(await failed(server)) is ContextOverflowError


async def test_used_up_quota_is_not_tried_again(server: FakeServer) -> None:
    server.refuse(429, {"error": {"code": "insufficient_quota", "message": "no money"}})
    assert not (await failed(server)).recoverable


async def test_a_long_body_is_cut(server: FakeServer) -> None:
    server.refuse(500, b"x" * 200_000)
    error = await failed(server)
    assert len(error.body or "") < 3_000
    assert len(str(error)) < 1_000


async def test_a_body_that_repeats_the_key_is_masked(server: FakeServer) -> None:
    server.refuse(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    error = await failed(server)
    assert "[key]" in str(error)
    assert "[key]" in str(error.body)


@pytest.mark.parametrize("key", [f"{KEY}\nx", f"{KEY}…", f"{KEY}\0"])
async def test_a_key_that_cannot_be_sent_is_not_shown(server: FakeServer, key: str) -> None:
    broken = OpenAIChat("m", base_url=server.url, api_key=key)
    with pytest.raises(ConfigError, match="authorization") as caught:
        await asked(broken)
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_a_redirect_names_where_it_leads(server: FakeServer) -> None:
    server.refuse(308, b"", location="https://elsewhere.example/v1")
    error = await failed(server)
    assert type(error) is BadRequestError
    assert "https://elsewhere.example/v1" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({"retry-after": "Wed, 99 Oct 2015"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
    ],
)
def test_the_asked_wait_is_read_in_all_its_forms(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after_s(headers) == seconds


async def test_a_date_to_wait_for_becomes_seconds(server: FakeServer) -> None:
    at = datetime.now(UTC) + timedelta(seconds=30)
    server.refuse(429, {}, retry_after=format_datetime(at, usegmt=True))
    error = await failed(server)
    assert error.retry_after_s is not None
    assert 25 < error.retry_after_s <= 30


def test_every_error_class_is_reached_or_belongs_to_the_stream() -> None:
    reached = {type(error_for(status, "", host="h")).__name__ for status in range(300, 600)}
    all_of_them = {
        name
        for name in errors.__all__
        if issubclass(getattr(errors, name), ModelError) and name != "ModelError"
    }
    assert all_of_them - reached == {"TruncatedStreamError", "RefusedError"}


async def test_nothing_listening_is_a_transport_error_that_says_what_to_check() -> None:
    lonely = OpenAIChat("m", base_url="http://127.0.0.1:9/v1")
    with pytest.raises(TransportError, match=r"127\.0\.0\.1.*is the server running"):
        await asked(lonely)


async def test_silence_is_a_transport_error(server: FakeServer) -> None:
    server.say(event("hi"), done=False, hang=True)
    error = await failed(server, timeout_s=0.1)
    assert type(error) is TransportError
    assert "sent nothing for 0.1 s" in str(error)


async def test_a_kept_connection_is_used_again(server: FakeServer) -> None:
    server.say(event("hi", "stop"))
    what = model(server)
    for _ in range(3):
        assert (await asked(what))[0] == Delta("hi")
    assert {seen.connection for seen in server.seen} == {1}


async def test_a_kept_connection_that_was_closed_meanwhile_is_replaced(server: FakeServer) -> None:
    server.say(event("one", "stop"))
    server.tell(drop=True)
    server.say(event("two", "stop"))
    what = model(server)
    assert (await asked(what))[0] == Delta("one")
    assert (await asked(what))[0] == Delta("two")
    assert len(server.seen) == 3


async def test_a_server_that_only_hangs_up_is_asked_twice_at_most(server: FakeServer) -> None:
    server.tell(drop=True)
    error = await failed(server)
    assert type(error) is TransportError
    assert len(server.seen) <= 2


async def test_a_compressed_answer_is_read(server: FakeServer) -> None:
    body = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(event("hi")).encode()
    squeezed = gzip.compress(body)
    server.tell(
        squeezed[:9],
        squeezed[9:],
        headers={"content-type": "text/event-stream", "content-encoding": "gzip"},
    )
    assert (await asked(model(server)))[0] == Delta("hi")


async def test_leaving_a_stream_closes_its_connection(server: FakeServer) -> None:
    server.say(event("a"), done=False, hang=True)
    what = model(server)
    stream = what.stream(what.prepare(request()))
    assert await anext(stream) == Delta("a")
    await stream.aclose()
    await _until(lambda: server.gone == 1)


async def test_cancelling_a_question_closes_its_connection(server: FakeServer) -> None:
    server.say(event("a"), done=False, hang=True)
    task = asyncio.create_task(asked(model(server)))
    await _until(lambda: bool(server.seen))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(lambda: server.gone == 1)


async def _until(true: Any) -> None:
    deadline = time.monotonic() + 5
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_one_model_serves_one_loop_after_another(server: FakeServer) -> None:
    """F-G3; no connection is left to the collector, which would warn."""
    server.say(event("hi", "stop"))
    what = model(server)
    for _ in range(3):
        assert asyncio.run(asked(what))[-1] == End("stop")
    assert all(not loop.is_closed() for loop in _http._by_loop)


async def test_one_model_serves_several_loops_at_once(server: FakeServer) -> None:
    server.say(event("hi", "stop"), pause_s=0.01)
    what = model(server)
    there = asyncio.to_thread(lambda: asyncio.run(asked(what)))
    for items in await asyncio.gather(asked(what), there, asked(what)):
        assert items[-1] == End("stop")


async def test_clients_can_be_closed_and_come_back(server: FakeServer) -> None:
    server.say(event("hi", "stop"))
    what = model(server)
    await asked(what)
    await _http.close_clients()
    await asked(what)
    assert {seen.connection for seen in server.seen} == {1, 2}


async def test_blocked_requests_name_the_host_and_this_machine_stays_open(
    server: FakeServer,
) -> None:
    server.say(event("hi", "stop"))
    far = OpenAIChat("m", base_url="https://models.example.org/v1", api_key=KEY)
    with block_requests():
        with pytest.raises(ConfigError, match=r"models\.example\.org.*block_requests"):
            await asked(far)
        await asked(model(server))


def test_blocking_ends_with_the_block_or_by_undo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_blocked", False)
    with block_requests():
        with block_requests():
            pass
        assert _http._blocked
    assert not _http._blocked
    switch = block_requests()
    assert _http._blocked
    switch.undo()
    assert not _http._blocked


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("localhost", True),
        ("127.0.0.5", True),
        ("::1", True),
        ("x.localhost", True),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("api.openai.com", False),
    ],
)
def test_this_machine_is_told_from_others(host: str, local: bool) -> None:
    shown = f"[{host}]" if ":" in host else host
    assert Target(f"http://{shown}:80/v1").local is local

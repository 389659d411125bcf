"""What an address may hold that nobody is to see, and where it could come to light."""

from __future__ import annotations

import logging
import socket
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

import nbagent as nb
from nbagent.errors import ConfigError, ModelError, NbAgentError
from nbagent.models import OpenAIChat
from nbagent.models._target import Target, shown_address

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

PASSWORD = "pass/word?0815"
KEY = "key+in/query-4711"
SECRETS = [
    PASSWORD,
    quote(PASSWORD, safe=""),
    KEY,
    quote(KEY, safe=""),
    "dXNlcjpwYXNzL3dvcmQ/MDgxNQ==",
]


def hidden_in(base: str, key: str = "api-key") -> str:
    """The address with a user, a password and a key."""
    place = base.replace("://", f"://user:{quote(PASSWORD, safe='')}@")
    return f"{place}?{key}={quote(KEY, safe='')}"


def good(server: FakeServer) -> None:
    server.say({"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]})


def refused(server: FakeServer) -> None:
    server.refuse(401, {"error": {"message": f"{KEY} and {PASSWORD} are not known here"}})


def missing(server: FakeServer) -> None:
    server.refuse(404, {"detail": f"no POST /v1/chat/completions?api-key={quote(KEY, safe='')}"})


def moved(server: FakeServer) -> None:
    server.refuse(301, location=hidden_in("https://elsewhere.example.org/v1"))


def page(server: FakeServer) -> None:
    server.tell(
        f"<html>Sign in as user:{PASSWORD} with {KEY}</html>".encode(),
        headers={"content-type": "text/html"},
    )


def broken_off(server: FakeServer) -> None:
    server.say({"error": {"message": f"{KEY} has no quota", "code": 402}})


def unreadable(server: FakeServer) -> None:
    server.say({"choices": f"{KEY}"})


def dropped(server: FakeServer) -> None:
    server.tell(drop=True)


TOLD = [good, refused, missing, moved, page, broken_off, unreadable, dropped]


def all_that_is_seen(model: OpenAIChat, folder: Path, log: str, error: BaseException | None) -> str:
    parts = [model.name, repr(model), repr(model._target), log]
    parts += [path.read_text() for path in folder.iterdir()]
    if error is not None:
        parts += ["".join(traceback.format_exception(error)), repr(error)]
        parts.append(str(getattr(error, "body", "")))
        parts += [str(each) for each in getattr(error, "others", ())]
        assert isinstance(error, NbAgentError)
        for table in ("attempts", "notes", "events"):
            parts.append(error.result.to_pandas(table).to_csv())
    return "\n".join(parts)


async def seen_of(
    address: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> tuple[str, BaseException | None]:
    caplog.set_level(logging.DEBUG)
    model = OpenAIChat("m", base_url=address)
    agent = nb.Agent(model, recovery=nb.Recovery(attempts=2, base_s=0.01))
    error: BaseException | None = None
    try:
        await agent.run("go", session=folder / "run.jsonl", ui="none")
    except NbAgentError as raised:
        error = raised
    return all_that_is_seen(model, folder, caplog.text, error), error


@pytest.mark.parametrize("key", ["api-key", "key", "token", "whatever"])
@pytest.mark.parametrize("told", TOLD)
async def test_a_key_in_the_address_is_sent_and_nowhere_seen(
    server: FakeServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, told: Any, key: str
) -> None:
    told(server)
    seen, error = await seen_of(hidden_in(server.url, key), tmp_path, caplog)
    assert (error is None) == (told is good)
    assert [each for each in SECRETS if each in seen] == []
    assert "HTTP Request: POST http://127.0.0.1" in seen or told is dropped
    assert server.seen[0].path == f"/v1/chat/completions?{key}={quote(KEY, safe='')}"
    assert server.seen[0].headers["authorization"] == f"Basic {SECRETS[-1]}"


async def test_a_key_in_the_address_of_a_server_that_is_not_there_is_nowhere_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen, error = await seen_of(hidden_in(f"http://127.0.0.1:{port}/v1"), tmp_path, caplog)
    assert isinstance(error, ModelError)
    assert f"http://127.0.0.1:{port}/v1/chat/completions?api-key=[hidden]" in str(error)
    assert [each for each in SECRETS if each in seen] == []


async def test_a_redirect_still_says_where_to(server: FakeServer) -> None:
    moved(server)
    model = OpenAIChat("m", base_url=server.url)
    with pytest.raises(ModelError, match=r"elsewhere\.example\.org/v1\?api-key=\[hidden\]"):
        await nb.Agent(model).run("go", ui="none")


@pytest.mark.parametrize(
    "address",
    [
        f"ftp://user:{PASSWORD}@h/v1?key={KEY}",
        f"user:{PASSWORD}@h/v1?key={KEY}",
        f"h/v1?key={KEY}",
        f"http://user:{PASSWORD}@h/v1",
        f"http://user:p#{PASSWORD}@h/v1",
        f"http://h:99999/v1?key={KEY}",
        f"http://[h/v1?{KEY}",
    ],
)
def test_what_is_no_address_is_refused_without_its_secrets(address: str) -> None:
    with pytest.raises(ConfigError, match="is no address") as caught:
        OpenAIChat("m", base_url=address)
    seen = "".join(traceback.format_exception(caught.value))
    assert not any(part in seen for part in (PASSWORD, KEY, "0815"))


async def test_an_address_that_cannot_be_used_is_named_without_its_secrets() -> None:
    model = OpenAIChat("m", base_url=f"http://localhost/v\x01?key={KEY}")
    with pytest.raises(ConfigError, match="can't be used") as caught:
        await nb.Agent(model).run("go", ui="none")
    assert KEY not in "".join(traceback.format_exception(caught.value))


async def test_the_address_s_user_wins_over_a_key_and_a_given_header_over_both(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    good(server)
    address = server.url.replace("://", "://user:pw@")
    given: list[Any] = [{}, {"api_key": "sk-given"}, {"headers": {"Authorization": "Own x"}}]
    for options in given:
        await nb.Agent(OpenAIChat("m", base_url=address, **options)).run("go", ui="none")
    sent = [seen.headers["authorization"] for seen in server.seen]
    assert sent == ["Basic dXNlcjpwdw==", "Basic dXNlcjpwdw==", "Own x"]
    openai: Any = OpenAIChat("m", base_url="https://user:pw@api.openai.com/v1")
    assert openai._target_with_key().headers == {"authorization": "Basic dXNlcjpwdw=="}


async def test_what_others_log_through_the_same_library_is_left_alone(
    server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    import httpx

    caplog.set_level(logging.INFO)
    good(server)
    await nb.Agent(OpenAIChat("m", base_url=f"{server.url}?key={KEY}")).run("go", ui="none")
    caplog.clear()
    async with httpx.AsyncClient() as client:
        await client.post(f"{server.url}?mine=visible")
    assert "mine=visible" in caplog.text


def test_short_values_are_hidden_in_an_address_too() -> None:
    target = Target.at("http://u:PW@h/v1?a=1&b=&c&d=PW#PW", "/x")
    assert target.url == "http://h/v1/x?a=1&b=&c&d=PW"
    assert repr(target) == "Target('http://h/v1/x?a=[hidden]&[hidden]&[hidden]&d=[hidden]')"
    assert shown_address("//h/p@q?x") == "//h/p@q?[hidden]"

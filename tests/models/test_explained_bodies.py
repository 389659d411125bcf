"""`explain` shows what went over the wire: the body, made anew and compared by its digest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.interfaces.model import Prepared


@nb.tool(risk="readonly")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def piece(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def ending(reason: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def tell_a_call_and_an_answer(server: Any) -> None:
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}}
    server.say(piece(tool_calls=[call]), ending("tool_calls"))
    server.say(piece(content="It is 3."), ending("stop"))


def agent_of(server: Any, **options: Any) -> nb.Agent:
    model = nb.models.OpenAIChat("m", base_url=server.url, api_key="sk-secret-key-123", **options)
    return nb.Agent(model, tools=[add], instructions="Be brief.")


async def test_the_body_is_the_one_that_the_server_got(server: Any):
    tell_a_call_and_an_answer(server)
    result = await agent_of(server).run("1 + 2?")
    for step in (1, 2):
        found = result.explain(step)
        assert found.body == server.seen[step - 1].body
        assert found.body_note == ""
        assert found.body_digest
    assert result.session.explain(1).body["messages"][1] == {"role": "user", "content": "1 + 2?"}
    assert "sk-secret" not in str(result.explain(1)) + json.dumps(result.explain(1).body)


async def test_a_request_with_reminders_and_a_bounce_is_the_same_too(server: Any):
    server.say(piece(content="It is 3."), ending("stop"))
    server.say(piece(content="Three."), ending("stop"))

    def no_digits(attempt: nb.Attempt) -> nb.Verdict | None:
        return nb.Verdict.retry("digits", "No digits.") if "3" in attempt.text else None

    model = nb.models.OpenAIChat("m", base_url=server.url)
    agent = nb.Agent(model, reviewers=[no_digits], max_steps=1, settings=nb.Settings(seed=3))
    result = await agent.run("1 + 2?")
    for attempt in (1, 2):
        found = result.explain(attempt=attempt)
        assert found.body == server.seen[attempt - 1].body
        assert found.body_note == ""


async def test_constrained_tools_show_the_prompt_and_the_schema(server: Any):
    server.say(
        piece(content='{"name":"final_answer","arguments":{"text":"Three."}}'), ending("stop")
    )
    result = await agent_of(server, constrain_tools=True).run("1 + 2?")
    body = result.explain().body
    assert body == server.seen[0].body
    assert len(body["messages"]) > 4
    assert "final_answer" in json.dumps(body["response_format"])
    html = result.explain()._repr_html_()
    assert "<details>" in html
    assert "final_answer" in html


async def test_the_local_models_prompt_with_its_examples_and_schema_is_shown(tmp_path: Path):
    agent = nb.Agent(nb.models.Local(tmp_path / "absent.gguf"), tools=[add])
    with pytest.raises(nb.errors.ConfigError) as caught:
        await agent.run("1 + 2?")
    found = caught.value.session.explain(1)
    assert found.body_note == ""
    texts = [message["content"] for message in found.body["messages"]]
    assert "What is the price of a lamp?" in texts[1]
    assert "1 + 2?" in texts[-1]
    assert "add(" in texts[-1]
    assert '"const": "add"' in json.dumps(found.body["response_format"])


async def test_each_run_is_explained_by_its_own_model(server: Any):
    server.say(piece(content="one"), ending("stop"))
    session = nb.Session()
    for name in ("a", "b"):
        model = nb.models.OpenAIChat(name, base_url=server.url)
        await nb.Agent(model).run("go", session=session)
    assert [session.explain(turn=turn).body["model"] for turn in (1, 2)] == ["a", "b"]


async def test_a_difference_is_said(server: Any):
    tell_a_call_and_an_answer(server)
    agent = agent_of(server)
    result = await agent.run("1 + 2?")
    model: Any = agent._spec.model
    model.model = "another"
    model._heads.clear()
    found = result.explain(1)
    assert found.body["model"] == "another"
    assert "not byte for byte what was sent" in found.body_note
    assert found.body_digest is not None
    assert found.body_digest in found.body_note
    assert "not byte for byte" in str(found)
    assert "not byte for byte" in found._repr_html_()


async def test_a_session_from_disk_has_no_bodies_and_says_why(server: Any, tmp_path: Path):
    tell_a_call_and_an_answer(server)
    path = tmp_path / "log.jsonl"
    result = await agent_of(server).run("1 + 2?", session=path)
    assert result.explain(1).body is not None
    result.session.close()
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(path.read_bytes())
    found = nb.Session.open(copy).explain(1)
    assert found.body is None
    assert "read from a file" in found.body_note
    assert "read from a file" in str(found)


async def test_a_scripted_model_has_no_wire():
    result = await nb.Agent(nb.models.Scripted(["x"])).run("go")
    found = result.explain()
    assert found.body is None
    assert "Scripted has no wire" in found.body_note
    assert "Scripted has no wire" in found._repr_html_()


@pytest.mark.parametrize("broken", [ValueError("no"), None])
async def test_a_model_of_ones_own_may_fail_or_send_no_json(broken: Exception | None):
    class Mine(nb.models.Scripted):
        ready = True

        def prepare(self, request: nb.Request) -> Prepared:
            if self.ready or broken is None:
                return Prepared(request, b"plain \xff text", None)
            raise broken

    model = Mine(["x"])
    result = await nb.Agent(model).run("go")
    model.ready = False
    found = result.explain()
    if broken is None:
        assert found.body == "plain \ufffd text"
    else:
        assert found.body is None
        assert "ValueError: no" in found.body_note


async def test_the_view_ends_with_the_folded_body_and_shows_schemas(server: Any):
    tell_a_call_and_an_answer(server)
    result = await agent_of(server).run("$x$ <script>alert(1)</script> " + "y" * 3000)
    found = result.explain(1)
    text = str(found)
    sections = [
        line
        for line, rule in zip(text.split("\n"), text.split("\n")[1:], strict=False)
        if rule.startswith("---")
    ]
    assert sections[-1] == "Body, as it went over the wire"
    assert "more characters)" in text.rsplit("Body, as", 1)[1]
    assert '"b":{"default":2' in text.replace(" ", "")
    html = found._repr_html_()
    folded = html[html.index("<details>") :]
    assert folded.count("<details>") == 1
    assert "<script>" not in html
    assert "y" * 3000 in folded
    assert html.startswith('<div class="mathjax_ignore')

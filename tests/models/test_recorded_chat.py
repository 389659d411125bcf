"""Recorded answers of real hosts, replayed over HTTP: whole, at random cuts, and byte by byte."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nbagent import errors
from nbagent.errors import ModelError
from nbagent.interfaces.model import Block, Delta, End, Header, Item, Nodes, Request
from nbagent.messages import Call
from nbagent.models import OpenAIChat

if TYPE_CHECKING:
    from tests.models.conftest import FakeServer

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "wire" / "chat.jsonl"
ROWS = [json.loads(x) for x in RECORDED.read_bytes().splitlines()] if RECORDED.is_file() else []

pytestmark = pytest.mark.skipif(not ROWS, reason=f"no recorded answers at {RECORDED}")

Reading = dict[str, Any]
NOTHING: dict[str, Any] = {}


def read_by_hand(row: dict[str, Any]) -> Reading:
    """What a person would write down from the recording, without any of our code."""
    if row["status"] != 200:
        return {"error": row["status"]}
    if row["stream"]:
        lines = row["response"].replace("\r\n", "\n").split("\n")
        values = [json.loads(x[6:]) for x in lines if x.startswith("data: {")]
    else:
        values = [json.loads(row["response"])]
    text = thinking = refusal = ""
    calls: dict[Any, list[str]] = {}
    finish = usage = error = None
    for value in values:
        error = error or value.get("error")
        if (value.get("usage") or NOTHING).get("total_tokens"):
            usage = value["usage"]["total_tokens"]
        for choice in value.get("choices", ()):
            if choice.get("index", 0) != 0:
                continue
            finish = choice.get("finish_reason") or finish
            delta: dict[str, Any] = choice.get("delta") or choice.get("message") or NOTHING
            content = delta.get("content") or ""
            text += content if isinstance(content, str) else json.dumps(content, separators=(",", ":"))  # fmt: skip
            thought = delta.get("reasoning_content") or delta.get("reasoning")
            details: list[dict[str, str]] = delta.get("reasoning_details") or []
            thinking += thought or "".join(d.get("text") or "" for d in details)
            pieces: list[dict[str, Any]] = delta.get("tool_calls") or []
            refusal += delta.get("refusal") or ""
            for position, call in enumerate(pieces):
                kept = calls.setdefault(call.get("index", position), ["", "", ""])
                kept[0] += call["function"].get("name") or ""
                kept[1] += call["function"].get("arguments") or ""
                kept[2] = kept[2] or call.get("id") or ""
    if error:
        return {"error": "in the answer"}
    why = "tool_calls" if calls else "stop"
    return {
        "text": text + refusal,
        "thinking": thinking,
        "calls": [(name, arguments or "{}", id_) for name, arguments, id_ in calls.values()],
        "finish": "max_tokens" if finish == "length" else "refused" if refusal else why,
        "total": usage,
    }


def read_from(items: list[Item]) -> Reading:
    end = items[-1]
    assert isinstance(end, End)
    calls = [i.part for i in items if isinstance(i, Block) and isinstance(i.part, Call)]
    pieces = [item for item in items if isinstance(item, Delta)]
    assert "".join(p.text for p in pieces if p.kind == "arguments") == "".join(
        call.arguments for call in calls
    )
    assert "".join(p.text for p in pieces if p.kind == "name") == "".join(c.name for c in calls)
    return {
        "text": "".join(p.text for p in pieces if p.kind == "text"),
        "thinking": "".join(p.text for p in pieces if p.kind == "thinking"),
        "calls": [(call.name, call.arguments, call.id) for call in calls],
        "finish": end.finish,
        "total": end.usage.total if end.usage else None,
    }


def cut(data: bytes, how: str, row: dict[str, Any]) -> list[bytes]:
    if how == "whole":
        return [data]
    if how == "bytes":
        return [data[i : i + 1] for i in range(len(data))]
    rng = random.Random(row["id"])
    borders = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(40))})
    return [data[a:b] for a, b in pairwise(borders)]


@pytest.mark.parametrize("how", ["whole", "random", "bytes"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"].rpartition("/")[2])
async def test_a_recording_reads_as_a_person_reads_it(
    server: FakeServer, row: dict[str, Any], how: str
) -> None:
    data = row["response"].encode()
    kind = "text/event-stream" if row["stream"] else "application/json"
    server.tell(*cut(data, how, row), status=row["status"], headers={"content-type": kind})
    model = OpenAIChat("m", base_url=server.url)
    request = Request(Header("m"), Nodes([b'{"role":"user","text":"go"}']), 1)
    expected = read_by_hand(row)
    if "error" not in expected:
        items = [item async for item in model.stream(model.prepare(request))]
        assert read_from(items) == expected
        return
    with pytest.raises(ModelError) as caught:
        _ = [item async for item in model.stream(model.prepare(request))]
    kinds = {400: errors.BadRequestError, 404: errors.NotFoundError, 429: errors.RateLimitError}
    if expected["error"] in kinds:
        assert type(caught.value) is kinds[expected["error"]]

"""The intended uses of the public API: checked for their types, never run."""

from __future__ import annotations

from typing import Any

import nbagent as nb


@nb.tool(risk="readonly", tags=("corpus",), timeout_s=10, parallel=True)
def search(query: str, limit: int = 5) -> list[str]:
    """Search the corpus."""
    return [query] * limit


@nb.tool
async def publish(ctx: nb.ToolContext, path: str, text: str) -> str:
    """Write a file."""
    ctx.progress(0.4, "rows")
    ctx.note("published", {"path": path})
    return "stopped" if ctx.cancelled else text


async def no_numbers(attempt: nb.Attempt) -> nb.Verdict:
    if any(c.isdigit() for c in attempt.text) and attempt.tally("no-numbers") < 2:
        return nb.Verdict.retry("no-numbers", "Say it without digits.")
    return nb.Verdict.accept()


def my_gate(call: nb.ToolCall, ctx: nb.GateContext) -> nb.Decision | None:
    if call.name == "shell":
        return nb.deny("not here")
    if call.risk == "dangerous":
        return nb.ask("it is dangerous")
    return nb.rewrite({"limit": 5}) if call.name == "search" else None


class Slow:
    async def around(self, call: nb.ToolCall, ctx: nb.GateContext, following: Any) -> nb.ToolResult:
        with ctx.deadline(5):
            return await following(call)


class Yes:
    async def decide(self, question: nb.Question) -> nb.Answer:
        return nb.Answer("allow", reason=question.why)


async def main() -> None:
    agent = nb.Agent(
        nb.models.Scripted(["a", nb.call("search", query="x"), nb.reply(text="b")]),
        name="assistant",
        instructions="Be short.",
        tools=[search, publish],
        approval=nb.Approval(rules=["allow search", nb.rule("ask", "publish", path="/etc/*")]),
        budget=nb.Budget(max_model_calls=20, max_tokens=50_000),
        reviewers=[no_numbers, *nb.DEFAULT_REVIEWERS],
        gates=[my_gate, Slow(), *nb.DEFAULT_GATES],
        settings=nb.Settings(temperature=0, must_call=("search",)),
        recovery=nb.Recovery(attempts=3),
    )
    result: nb.Result = await agent.run("go", session=nb.Session(), ui=Yes())
    text: str = result.text
    usage: nb.Usage = result.usage
    run: nb.Run = agent.start(text, session="runs/demo.jsonl")
    run.steer("look at 2024 only")
    run.followup("and then")
    for question in run.pending():
        run.answer(question.id, "allow", reason="fine")
    async for event in run.events():
        seq: int = event.seq
        del seq
    run.interrupt()
    again: nb.Result = await run
    print(again.to_pandas("tools"), again.explain(step=1), usage.total)  # noqa: T201
    session = nb.Session.open("runs/demo.jsonl", sync=True)
    assert session.verify().ok
    session.close()

"""The agent: settings, tools, and the doors into a run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from nbagent import bridge
from nbagent.assembly import (
    DEFAULT_GATES,
    DEFAULT_REVIEWERS,
    AgentSpec,
    Settings,
    assemble,
    check_spec,
    check_tools,
    gate_table,
    with_settings,
)
from nbagent.errors import ConfigError, NestingError
from nbagent.gates.memory import AgentMemory
from nbagent.gates.permission import Approval
from nbagent.interfaces.approver import Approver, ByHand
from nbagent.interfaces.model import Model
from nbagent.interfaces.plan import Budget, Plan, Recovery
from nbagent.interfaces.review import Reviewer
from nbagent.interfaces.tool import Tool
from nbagent.keywords import check_keywords
from nbagent.notebook.stdin import StdinApprover
from nbagent.result import Result
from nbagent.run import Run
from nbagent.session import Session, as_session
from nbagent.tools import tool as make_tool

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Agent"]

SessionLike = Session | str | os.PathLike[str] | None
UI = Literal["auto", "stdin", "none"] | Approver


class Agent:
    """A model with instructions, tools and rules.

    Parameters
    ----------
    model
        "local", "openai:NAME", "ollama:NAME", or a model object.
    name
        Shown in tables and panels.
    instructions
        The system prompt.
    tools
        Made by `@nb.tool`; plain functions are made into tools of unspecified risk.
    approval
        Who may run what; by default readonly tools run and the rest asks.
    budget
        Limits of what a run may spend; none by default.
    reviewers
        Judges of answers, `reviewer(attempt) -> Verdict | None`. `nb.DEFAULT_REVIEWERS` is empty
        today; `[mine, *nb.DEFAULT_REVIEWERS]` is still the way to write it.
    gates
        Rules around calls, `gate(call, ctx) -> Decision | None`; your list replaces the default one,
        so write `[mine, *nb.DEFAULT_GATES]`. `explain_gates` shows what acts where.
    max_steps
        Most answers of one turn; the last of them is told that it is. A turn that would need more
        ends with `stop_reason="max_steps"`.
    session
        A session, or its path, that all runs continue; without it each run gets a fresh one.
    settings
        How the model is asked.
    max_parallel_tools
        Most bodies at once among calls that may overlap.
    max_continuations
        How often in a row an answer that hit the output limit is continued.
    allowed_tools, disallowed_tools
        Names; what is not allowed is refused and asked of nobody, though the model sees it.
    recovery
        How failed model calls are repeated.

    Raises
    ------
    ConfigError
        Naming the setting that is wrong and the way out.

    Examples
    --------
    >>> import nbagent as nb
    >>> agent = nb.Agent(nb.models.Scripted(["Hello."]))
    >>> agent.run_sync("Say hello.").text
    'Hello.'
    """

    @check_keywords("Agent")
    def __init__(
        self,
        model: str | Model,
        *,
        name: str = "assistant",
        instructions: str = "",
        tools: Sequence[Tool | Callable[..., Any]] = (),
        approval: Approval | None = None,
        budget: Budget | None = None,
        reviewers: Sequence[Reviewer] = DEFAULT_REVIEWERS,
        gates: Sequence[Any] = DEFAULT_GATES,
        max_steps: int = 12,
        session: SessionLike = None,
        settings: Settings | None = None,
        max_parallel_tools: int = 10,
        max_continuations: int = 3,
        allowed_tools: Sequence[str] | None = None,
        disallowed_tools: Sequence[str] = (),
        recovery: Recovery | None = None,
    ) -> None:
        self._spec = check_spec(
            model,
            tools,
            gates,
            reviewers,
            name=name,
            instructions=instructions,
            approval=approval,
            budget=budget,
            settings=settings,
            recovery=recovery,
            max_steps=max_steps,
            max_parallel_tools=max_parallel_tools,
            max_continuations=max_continuations,
            allowed_tools=None if allowed_tools is None else tuple(allowed_tools),
            disallowed_tools=tuple(disallowed_tools),
        )
        self._session = None if session is None else as_session(session)
        self._memory = AgentMemory()
        self._plan: Plan | None = None

    # -- doors

    @check_keywords("run")
    async def run(
        self,
        prompt: str,
        *,
        session: SessionLike = None,
        deps: Any = None,
        settings: Settings | None = None,
        ui: UI = "auto",
        if_busy: Literal["queue", "raise"] = "queue",
    ) -> Result:
        """The result of a run: the model answers and calls tools until there is nothing left to do.

        Parameters
        ----------
        prompt
            What to do.
        session
            A session or its path to continue; the agent's own, or a fresh one, if not given.
        deps
            Anything that tools and gates need, as `ctx.deps`.
        settings
            Instead of the agent's own, for this run.
        ui
            Who answers questions: "auto" (a person at the terminal; without one, and in notebooks,
            the same as "none"), "stdin", "none" (nobody: `Approval.when_unattended` holds), an
            object with `async decide(question)`, or `nb.ByHand()` (you, by `run.answer`).
        if_busy
            What to do while another run is on the session: wait in order, or raise `BusyError`.

        Raises
        ------
        ModelError
            When the model can't be reached or refuses, after all repeats; carries `.result`.
        ConfigError
            If an argument is wrong.
        NestingError
            On a session from inside a run of that session.
        """
        run = self._start(prompt, session, deps, settings, ui, if_busy)
        return await run.begin(here=not bridge.in_kernel())

    @check_keywords("run_sync")
    def run_sync(
        self,
        prompt: str,
        *,
        session: SessionLike = None,
        deps: Any = None,
        settings: Settings | None = None,
        ui: UI = "auto",
        if_busy: Literal["queue", "raise"] = "queue",
    ) -> Result:
        """The same as `run`, blocking; works in scripts and in notebook cells. Arguments as in `run`.

        Ctrl-C stops the run as `Run.interrupt` does, then raises `KeyboardInterrupt`: what was
        finished is in the session, `agent.last_run.result()` has the partial result.

        Raises
        ------
        NestingError
            From inside a run on the loop thread, which blocking would stop.
        """
        if bridge.on_agent_loop():
            msg = "this would block the loop that all runs need: write `await agent.run(…)` instead"
            raise NestingError(msg)
        return self._start(prompt, session, deps, settings, ui, if_busy).begin(here=False).result()

    @check_keywords("start")
    def start(
        self,
        prompt: str,
        *,
        session: SessionLike = None,
        deps: Any = None,
        settings: Settings | None = None,
        ui: UI = "auto",
        if_busy: Literal["queue", "raise"] = "queue",
    ) -> Run:
        """A run in the background, to steer, watch or answer. Arguments as in `run`.

        `await run` or `run.result()` waits for it. On an event loop of your own (a script under
        `asyncio.run`) it runs there, between your awaits; else on a thread of nbagent's.

        Examples
        --------
        >>> import nbagent as nb
        >>> run = nb.Agent(nb.models.Scripted(["Hello."])).start("Say hello.")
        >>> run.result().text
        'Hello.'
        """
        run = self._start(prompt, session, deps, settings, ui, if_busy)
        return run.begin(here=_loop_is_running() and not bridge.in_kernel())

    @property
    def last_run(self) -> Run | None:
        """The run that was started last, by any door; None before the first."""
        return self._last_run

    # -- changing the agent

    @check_keywords("add_tool")
    def add_tool(self, tool: Tool | Callable[..., Any], *, replace: bool = False) -> Tool:
        """Add a tool for the runs to come.

        Raises
        ------
        ConfigError
            If there is one of that name, unless `replace`.
        """
        made = check_tools([tool])[0]
        kept = [t for t in self._spec.tools if not (replace and t.name == made.name)]
        self._change(tools=check_tools([*kept, made]))
        return made

    def tool(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """Decorator: make the function a tool of this agent; options as for `nb.tool`."""

        def add(f: Callable[..., Any]) -> Tool:
            return self.add_tool(make_tool(f, **options))

        return add if function is None else add(function)

    tool_plain = tool

    def set_instructions(self, instructions: str) -> None:
        """Change the system prompt for the runs to come."""
        if not isinstance(instructions, str):
            msg = f"instructions must be text, not {type(instructions).__name__}"
            raise ConfigError(msg)
        self._change(instructions=instructions)

    # -- looking at the agent

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The agent's tools."""
        return self._spec.tools

    def explain_gates(self) -> pd.DataFrame:
        """Which gates act on which tool, outermost first.

        Returns
        -------
        DataFrame
            Columns tool, stage, gate; one row per gate that can act, in order.
        """
        from nbagent.frames import small_table

        return small_table(gate_table(self._spec), ["tool", "stage", "gate"])

    def remembered(self) -> pd.DataFrame:
        """The "always" answers that hold as long as this object lives.

        Returns
        -------
        DataFrame
            Columns id (of the answer), name, ref, decision.
        """
        from nbagent.frames import small_table

        return small_table(self._memory.all(), ["id", "name", "ref", "decision"])

    def forget(self, id: str | None = None) -> int:
        """Forget one remembered answer, or all; gives how many."""
        return self._memory.forget(id)

    def __repr__(self) -> str:
        names = ", ".join(t.name for t in self._spec.tools) or "no tools"
        return f"<Agent {self._spec.name} on {self._spec.model.name}: {names}>"

    # -- inside

    _last_run: Run | None = None

    def _change(self, **values: Any) -> None:
        from dataclasses import replace

        self._spec: AgentSpec = replace(self._spec, **values)
        self._plan = None

    def _assembled(self, settings: Settings | None) -> Plan:
        if settings is not None:
            spec = with_settings(self._spec, settings)
            return self._assemble(spec)
        if self._plan is None:
            self._plan = self._assemble(self._spec)
        return self._plan

    def _assemble(self, spec: AgentSpec) -> Plan:
        return assemble(spec, memory=self._memory, pool=bridge.tool_pool, cell=bridge.the_cell)

    def _start(  # noqa: PLR0917
        self,
        prompt: str,
        session: SessionLike,
        deps: Any,
        settings: Settings | None,
        ui: UI,
        if_busy: str,
    ) -> Run:
        if not isinstance(prompt, str) or not prompt.strip():
            msg = f"the prompt must be a text that is not empty, not {prompt!r}"
            raise ConfigError(msg)
        if if_busy not in ("queue", "raise"):
            msg = f'if_busy must be "queue" or "raise", not {if_busy!r}'
            raise ConfigError(msg)
        run = Run(
            self._assembled(settings),
            as_session(session) if session is not None else self._session or Session(),
            prompt,
            channel=_channel(ui),
            deps=deps,
            speaker=self,
            if_busy=if_busy,
        )
        self._last_run = run
        return run


def _channel(ui: UI) -> Approver | None:
    """Who answers questions."""
    if isinstance(ui, str):
        if ui == "none":
            return None
        if ui == "stdin" and not bridge.in_kernel():
            return StdinApprover()
        if ui == "auto":
            tty = sys.stdin is not None and sys.stdin.isatty() and not bridge.in_kernel()
            return StdinApprover() if tty else None
    elif isinstance(ui, type):
        where = "nb." if ui.__module__ == ByHand.__module__ else ""
        msg = f"ui holds the class {ui.__name__}: write {where}{ui.__name__}()"
        raise ConfigError(msg)
    elif callable(getattr(ui, "decide", None)):
        return ui
    here = "in a notebook" if bridge.in_kernel() else "here"
    msg = f'ui must be "auto", "stdin", "none" or an object with `async decide(question)`; {here} {ui!r} is not'
    raise ConfigError(msg)


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

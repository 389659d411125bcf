"""One tool body: called on the right thread, its value rendered, its errors turned into results."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from nbagent.interfaces.gate import ToolCall, ToolResult, blame
from nbagent.loop.cancel import is_running
from nbagent.loop.given_up import give_up, goes_on
from nbagent.loop.state import RunState

__all__ = ["BodyContext", "run_body"]

LAST_MOMENT_S = 0.1
"""How long a sync body that can look at `ctx.cancelled` is waited for after Stop or a time-out."""
BESIDE = "[An earlier body of `{}` was given up but may still be running beside this call.]"


class _Slot(Protocol):
    abandoned: bool


async def run_body(
    state: RunState, call: ToolCall, slot: _Slot, ended: Callable[[ToolResult], None]
) -> ToolResult:
    """The body inside the gates around it; `ended` hears of its result before they do.

    Raises
    ------
    asyncio.CancelledError
        If the task was cancelled; `slot.abandoned` then says whether a thread may go on.
    """

    async def innermost(call: ToolCall) -> ToolResult:
        result = await _call(state, call, slot)
        ended(result)
        return result

    beside = goes_on(call.tool)
    if beside:
        text = f"`{call.name}` starts while an earlier body of it, given up, may still be running"
        state.tell("beside", text)
    following: Any = innermost
    for around in reversed(state.plan.chain(call.tool).around):
        following = _wrapped(around, state, following)
    result: Any = await following(call)
    if not isinstance(result, ToolResult):
        msg = f"a gate around `{call.name}` returned {type(result).__name__}, not a ToolResult"
        raise TypeError(msg)
    return result.but(shown=f"{BESIDE.format(call.name)}\n{result.text}") if beside else result


def _wrapped(around: Any, state: RunState, following: Any) -> Any:
    async def call_it(call: ToolCall) -> Any:
        try:
            said = around(call, state.gates, following)
            return await said if inspect.isawaitable(said) else said
        except Exception as error:
            blame(error, around, f"a call of `{call.name}`")
            raise

    return call_it


async def _call(state: RunState, call: ToolCall, slot: _Slot) -> ToolResult:
    tool, plan = call.tool, state.plan
    args, kwargs = call.bound
    context: BodyContext | None = None
    task = asyncio.current_task()
    if tool.takes_context:
        context = BodyContext(state, call)
        args = (context, *args)
    try:
        act = partial(tool.call, *args, **kwargs)
        value = await _value(state, call, act, slot, context)
        return ToolResult(_read(state, plan.render(value)))
    except asyncio.CancelledError as error:
        if slot.abandoned or (task is not None and task.cancelling()):
            raise
        # Nobody has cancelled this run: the body awaited something that was cancelled elsewhere.
        return _failed(
            state, call, RuntimeError(f"cancelled from inside ({error})"), "CancelledError"
        )
    except Exception as error:  # noqa: BLE001 - whatever a tool raises is a result for the model
        return _failed(state, call, error)
    except GeneratorExit as error:
        if not is_running(task):
            raise  # the coroutine itself is being closed, from outside
        return _failed(state, call, RuntimeError(f"it raised {error!r}"), "GeneratorExit")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _on_main_thread():
            raise  # the person's own Ctrl-C
        return _failed(state, call, RuntimeError(f"it raised {error!r}"), type(error).__name__)
    finally:
        if context is not None:
            context.over = True


async def _value(
    state: RunState,
    call: ToolCall,
    act: Callable[[], Any],
    slot: _Slot,
    context: BodyContext | None,
) -> Any:
    """What the body gives, on the thread it belongs to."""
    if call.tool.is_async and call.tool.where == "cell":
        value = await _in_cell(state, call, act)
    elif call.tool.is_async:
        value = await act()
    else:
        value = await _on_thread(state, call, act, slot, context)
        if inspect.isawaitable(value):
            value = await value
    return await state.plan.collect(value) if inspect.isasyncgen(value) else value


def _read(state: RunState, text: str) -> str:
    """A text that comes from a body, as the model may read it: before anything cuts it."""
    state.log.look_for_secrets()  # it may have put a new one into the environment
    return state.log.masked(text)


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _failed(
    state: RunState, call: ToolCall, error: Exception, type_: str | None = None
) -> ToolResult:
    text = state.plan.render_error(call.name, error, partial(_read, state))
    if state.plan.in_wrong_place(error):
        what = _read(state, f"{type(error).__name__}: {error}")
        state.tell_once(
            "wrong-place",
            call.name,
            f"`{call.name}` uses something that was made on another thread or event loop, and will "
            f'fail each time: define the tool with where="cell", which runs it on the notebook\'s own '
            f"thread, or make that thing inside the function of the tool ({what:.300})",
        )
    return ToolResult(text, status="error", error_type=type_ or type(error).__name__)


async def _on_thread(
    state: RunState,
    call: ToolCall,
    act: Callable[[], Any],
    slot: _Slot,
    context: BodyContext | None,
) -> Any:
    """Run a sync body on a thread of ours; one that does not end when cancelled is abandoned."""
    run = contextvars.copy_context().run
    future: Future[Any]
    begun = _nothing
    if call.tool.where == "cell":
        begun = _queued(state, call)
        future = state.plan.cell().submit(run, _begun, state, begun, act)
    else:
        future = state.plan.pool().submit(run, _caught, act)
    try:
        ok, value = await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        begun()
        if future.cancelled():
            raise
        if context is None or not await _ends_by_itself(future, context):
            slot.abandoned = True
            give_up(call.tool, future)
            future.add_done_callback(lambda done: _tell_late(state, call.name, done))
            raise
        ok, value = future.result()
    if ok:
        return value
    raise value


async def _in_cell(state: RunState, call: ToolCall, make: Callable[[], Any]) -> Any:
    """Run an async body on the loop of the notebook's own thread."""
    begun = _queued(state, call)

    async def body() -> Any:
        state.post(begun)
        return await make()

    try:
        return await asyncio.wrap_future(state.plan.cell().run(body(), state.log.id))
    finally:
        begun()


def _queued(state: RunState, call: ToolCall) -> Callable[[], None]:
    """Stop the call's clock until its body begins; gives what to call then, on the run's thread."""
    held = state.watchdog.of_task(asyncio.current_task())
    for key in held:
        state.watchdog.hold(key)
    state.for_cell.add(call.key)

    def begun() -> None:
        state.for_cell.discard(call.key)
        for key in held:
            state.watchdog.resume(key)
        held.clear()

    return begun


def _begun(state: RunState, begun: Callable[[], None], act: Callable[[], Any]) -> tuple[bool, Any]:
    state.post(begun)
    return _caught(act)


def _nothing() -> None:
    """The clock was not stopped."""


async def _ends_by_itself(future: Future[Any], context: BodyContext) -> bool:
    """Let the body see that it is to end, and wait a moment for it; it may also be done by now."""
    context.over = True
    ending = asyncio.wrap_future(future)
    try:
        await asyncio.wait({ending}, timeout=LAST_MOMENT_S)
    except asyncio.CancelledError:  # once more: the first one counts
        return False
    return ending.done()


def _caught(act: Callable[[], Any]) -> tuple[bool, Any]:
    # StopIteration can't be raised into a future, and KeyboardInterrupt must not reach the loop.
    try:
        return True, act()
    except (StopIteration, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and _on_main_thread():
            raise  # the person's own Ctrl-C, in a body with where="cell"
        return False, RuntimeError(f"{type(error).__name__}: {error}")
    except BaseException as error:  # noqa: BLE001 - raised again in the run's task
        return False, error


def _tell_late(state: RunState, name: str, future: Future[Any]) -> None:
    if future.cancelled():
        return
    ok, value = future.result()
    text = state.plan.render(value) if ok else f"{type(value).__name__}: {value}"
    text = state.log.masked(text)  # from any thread, so with what is known
    state.notice("late-result", f"`{name}`, which had been given up, ended after all: {text[:500]}")


class BodyContext:
    """What a body gets as its first argument; see `nbagent.ToolContext`."""

    __slots__ = ("_state", "call", "over")

    def __init__(self, state: RunState, call: ToolCall) -> None:
        self._state = state
        self.call = call
        """The `ToolCall`."""
        self.over = False
        """True once the body is to end, or nobody waits for it any more."""

    @property
    def deps(self) -> Any:
        """What was given as `agent.run(…, deps=…)`."""
        return self._state.deps

    @property
    def session(self) -> Any:
        """The session of the run."""
        return self._state.session

    @property
    def cancelled(self) -> bool:
        """True after Stop or a time-out."""
        return self.over or self._state.token.by is not None

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress, 0 to 1; live only."""
        self._state.progress[self.call.key] = (min(max(float(fraction), 0.0), 1.0), text)

    def note(self, kind: str, data: Any = None) -> None:
        """Put something into the log."""
        self._state.leave_note(self.call.name, kind, data)

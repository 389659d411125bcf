"""A run: the handle that people hold while an agent works, and after it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future, InvalidStateError
from typing import Any

from nbagent import bridge
from nbagent.errors import BusyError, ConfigError, NestingError, SessionError
from nbagent.events import Event
from nbagent.interfaces.approver import Answer, AnswerWord, Approver, Question
from nbagent.interfaces.plan import Plan
from nbagent.keywords import check_keywords
from nbagent.loop.driver import Ending, drive
from nbagent.loop.state import RunState
from nbagent.result import Result
from nbagent.session import Session, close_all

__all__ = ["Run", "shutdown"]

_inside: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar(
    "nbagent_inside", default=()
)
"""Sessions of the runs that the caller is inside of: a run on one of them would wait for itself."""

BEAT_S, PIECE_S = 0.1, 0.03
"""How often a wait looks around: for the stop button, and for clicks while a cell blocks."""

_GOING: set[Run] = set()


def shutdown(timeout_s: float = 2.0) -> None:
    """Interrupt all runs, wait for their ends, and write and close all sessions that are files.

    Runs by itself when the process exits.

    Parameters
    ----------
    timeout_s
        Seconds that all of it may take; what has not ended then is repaired by the next run.
    """
    end = time.monotonic() + timeout_s
    going = list(_GOING)
    for run in going:
        run.interrupt("shutdown", by="disposed")
    for run in going:
        with contextlib.suppress(BaseException):  # its error was raised to whoever waits for it
            run.result(max(end - time.monotonic(), 0))
    close_all()


atexit.register(shutdown)


class Run:
    """One run of an agent; made by `agent.start`, `agent.run`, `agent.run_sync`.

    `await run` or `run.result()` gives the `Result` or raises what ended the run. `pending`,
    `answer`, `steer`, `followup` and `interrupt` may be called from any thread.
    """

    def __init__(
        self,
        plan: Plan,
        session: Session,
        prompt: str,
        *,
        channel: Approver | None,
        deps: Any,
        speaker: object,
        if_busy: str,
    ) -> None:
        if session.id in _inside.get():
            msg = (
                f"this is inside a run of {session!r}: a run on the same session would wait for "
                "itself. Use another session, run.followup(…), or end the run first"
            )
            raise NestingError(msg)
        self.session = session
        self._plan, self._prompt = plan, prompt
        self._channel, self._deps, self._speaker = channel, deps, speaker
        self._queue = session.queue
        self._early: list[Callable[[RunState], None]] = []
        self._gone = threading.Lock()
        self._state: RunState | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._finished: Future[Result] = Future()
        self._first: int | None = None
        self._if_busy = if_busy
        self._place: Future[bool] | None = None
        self._ended = False
        """Whether the task has come to its end; a loop that is closed before leaves it unended."""

    # -- starting; called by the agent

    def begin(self, *, here: bool) -> Run:
        """Start, on the running loop (`here`) or on the loop thread.

        Raises
        ------
        BusyError
            If another run is on the session and this one shall not wait.
        """
        self._loop = asyncio.get_running_loop() if here else bridge.agent_loop()
        try:
            self._place = self._queue.enter(self)
            if self._place is not None and self._if_busy == "raise":
                msg = f"{self.session!r} has a run in progress; wait for it, or leave out if_busy"
                raise BusyError(msg)  # noqa: TRY301
            if here:
                self._task = self._loop.create_task(self._main())
                self._task.add_done_callback(self._over)
            else:
                coroutine = self._main()
                asyncio.run_coroutine_threadsafe(coroutine, self._loop).add_done_callback(
                    self._over
                )
        except BaseException:  # Ctrl-C may come at any line
            self._drop()
            raise
        return self

    def _drop(self) -> None:
        """Give up the place in the queue, wherever this run stands in it."""
        if not self._queue.give_up(self):
            self._queue.leave(self)

    def _over(self, _: object) -> None:
        """The task has ended; a task that was cancelled before it began has left nothing behind."""
        if not self._ended:
            self._ended = True
            self._drop()
            with contextlib.suppress(InvalidStateError):
                self._finished.set_exception(asyncio.CancelledError("the run never began"))

    def lost(self) -> bool:
        """Whether the run can never go on, since its loop is closed; it has then failed."""
        if self._ended or self._loop is None or not self._loop.is_closed():
            return False
        msg = "the event loop of the run was closed while it went on; the next run repairs the session"
        with contextlib.suppress(InvalidStateError):
            self._finished.set_exception(SessionError(msg))
        return True

    async def _main(self) -> None:
        """The run's one task: never raises, the outcome stands in the future."""
        _GOING.add(self)  # nobody else may hold on to a run that was started and forgotten
        self._finished.add_done_callback(lambda _: _GOING.discard(self))
        try:
            ending, first = await self._run()
        except BaseException as error:  # noqa: BLE001 - raised where somebody waits for the run
            self._ended = True
            with contextlib.suppress(InvalidStateError):  # it was lost, and is collected now
                self._finished.set_exception(error)
            return
        self._ended = True
        log = self.session.log
        last = len(log) if first is not None else 0
        result = Result(
            self.session,
            text=log.masked(ending.text),
            stop_reason=ending.stop,
            truncated=ending.truncated,
            first=first or 0,
            last=last,
        )
        self._last = last
        if ending.error is None:
            self._finished.set_result(result)
            return
        _attach(ending.error, self.session, result)
        self._finished.set_exception(ending.error)

    async def _run(self) -> tuple[Ending, int | None]:
        place = self._place
        try:
            if place is not None and not await asyncio.wrap_future(place):
                return Ending("interrupted"), None
        except BaseException:
            # Cancelled in the queue. If the place was given meanwhile, it must be given back.
            self._drop()
            raise
        log, token = self.session.log, None
        try:
            log.acquire()
            log.look_for_secrets()
            token = _inside.set((*_inside.get(), self.session.id))
            state = RunState(
                log,
                self._plan,
                channel=self._channel,
                deps=self._deps,
                session=self.session,
                speaker=self._speaker,
            )
            self.session.models[state.number] = self._plan.model
            with self._gone:
                self._state, state.early = state, self._early
            self._first = first = len(log)
            ending = await drive(state, self._prompt)
            return ending, first
        finally:
            self._queue.leave(self)
            if token is not None:
                _inside.reset(token)

    # -- waiting

    def done(self) -> bool:
        """Whether the run has ended."""
        return self._finished.done() or self.lost()

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def _wait(self) -> Result:
        if not self.done() and self.session.id in _inside.get():
            msg = "a run can't be awaited from inside itself: it would wait for its own end"
            raise NestingError(msg)
        here = asyncio.get_running_loop()
        waiter: asyncio.Future[Any]
        task = self._task if here is self._loop else None
        waiter = asyncio.wrap_future(self._finished) if task is None else asyncio.shield(task)
        with bridge.the_cell().waiting():
            try:
                if task is not None:
                    await waiter
                else:
                    # The beat: the kernel's stop button does not wake a loop with nothing to do.
                    while not waiter.done() and not self.lost():
                        await asyncio.wait({waiter}, timeout=BEAT_S)
            except asyncio.CancelledError:
                if not self._finished.done():
                    self.interrupt("the one who waited was cancelled", by="outer")
                    await asyncio.wait({asyncio.wrap_future(self._finished)})
                raise
        return self._outcome()

    def result(self, timeout: float | None = None) -> Result:
        """The result, waiting for the end; blocks, so not from the run's own thread.

        Ctrl-C stops the run as `interrupt` does, then raises `KeyboardInterrupt`; calling this again
        gives the partial result.

        Parameters
        ----------
        timeout
            Seconds; `TimeoutError` after that, the run goes on.
        """
        if not self.done() and (bridge.on_agent_loop() or self._on_own_thread()):
            msg = "this would block the loop that the run needs: write `await run` instead"
            raise NestingError(msg)
        end = None if timeout is None else time.monotonic() + timeout
        cell = bridge.the_cell()
        with cell.waiting(blocked_for=self.session.id) as serve:
            # In a kernel, or with something queued for this thread, the wait is cut into pieces.
            piece = PIECE_S if bridge.in_kernel() else BEAT_S
            try:
                while not self._finished.done() and not self.lost():
                    left = piece if end is None else min(piece, end - time.monotonic())
                    if left <= 0:
                        msg = f"the run goes on after {timeout:g} s"
                        raise TimeoutError(msg)
                    serve()
                    self._peek(left)
            except KeyboardInterrupt:
                self.interrupt("keyboard interrupt", by="outer")
                while not self.done():
                    self._peek(BEAT_S)
                raise
        return self._outcome()

    def _peek(self, seconds: float) -> None:
        try:
            self._finished.exception(seconds)
        except (TimeoutError, FutureCancelledError):
            return

    def _outcome(self) -> Result:
        error = self._finished.exception(0)
        if error is not None:
            raise error
        return self._finished.result(0)

    def _on_own_thread(self) -> bool:
        state = self._state
        if state is not None and state.thread == threading.get_ident():
            return state.loop.is_running()
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # -- from a person

    def interrupt(self, reason: str | None = None, *, by: str = "user") -> None:
        """Stop. What is finished stays, every call gets a result, the session can go on.

        A run that still waits for its place returns `interrupted` and logs nothing.
        """
        if not self._act(lambda state: state.interrupt(by, reason)):
            self._queue.give_up(self)

    def steer(self, text: str) -> None:
        """Say something that the model reads before its next answer.

        What comes too late for this run enters first in the next one on the session.

        Raises
        ------
        ConfigError
            If the text is empty, or the run has ended.
        """
        _not_empty("steer", text)
        self._still_on("steer")
        self._act(lambda state: state.send("next_step", text, "steer", announce=True))

    def followup(self, text: str) -> None:
        """Add a prompt: another turn of this run, when the ones before are done.

        Raises
        ------
        ConfigError
            If the text is empty, or the run has ended.
        """
        _not_empty("followup", text)
        self._still_on("followup")
        self._act(lambda state: state.send("next_turn", text))

    def pending(self) -> list[Question]:
        """The open questions, in the model's order; none where nobody can be asked (see `ui=`)."""
        state = self._state
        return [] if state is None else [w.question for w in list(state.questions.values())]

    @check_keywords("answer")
    def answer(
        self,
        question_id: str,
        decision: AnswerWord,
        *,
        reason: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """Answer an open question, in any order, from any thread; the first answer counts.

        Parameters
        ----------
        question_id
            `run.pending()[0].id`.
        decision
            allow, always_allow, deny, always_deny, or edit with `arguments`.
        reason
            Read by the model.

        Raises
        ------
        ConfigError
            If the question is not open, or the arguments don't fit the tool.
        """
        state = self._state
        if state is None:
            msg = f"question {question_id!r} is not open: the run has not begun"
            raise ConfigError(msg)
        said = Answer(decision, reason or "", arguments)
        if threading.get_ident() == state.thread:
            state.answer(question_id, said, "person")
            return
        done: Future[None] = Future()

        def act() -> None:
            try:
                state.answer(question_id, said, "person")
            except BaseException as error:  # noqa: BLE001 - raised where it was asked
                done.set_exception(error)
            else:
                done.set_result(None)

        state.post(act)
        done.result(5)

    async def events(self) -> AsyncIterator[Event]:
        """The run's events from its first on, each once, in order; ends with the run.

        Keep `event.seq`, not the event: events are made anew for each reader.
        """
        here, wake = asyncio.get_running_loop(), asyncio.Event()
        log, at, asleep = self.session.log, None, [False]

        def poke(*_: Any) -> None:
            if asleep[0]:
                asleep[0] = False
                with contextlib.suppress(
                    RuntimeError
                ):  # that loop is closed: nobody reads any more
                    here.call_soon_threadsafe(wake.set)

        unwatch = log.watch(poke)
        self._finished.add_done_callback(poke)
        try:
            while True:
                wake.clear()
                asleep[0] = True
                over = self._finished.done()
                at = self._first if at is None else at
                end = self._last if over else len(log)
                while at is not None and at < end:
                    yield log.event(at)
                    at += 1
                    end = self._last if over else len(log)
                if over:
                    return
                await wake.wait()
        finally:
            unwatch()

    _last = 0

    def _act(self, act: Callable[[RunState], None]) -> bool:
        """Do something with the run's state, now or when it begins; False if it has not begun."""
        with self._gone:
            state = self._state
            if state is None:
                self._early.append(act)
                return False
        state.post(lambda: act(state))
        return True

    def _still_on(self, what: str) -> None:
        if self.done():
            msg = f"the run has ended, {what} comes too late: start another run on run.session"
            raise ConfigError(msg)

    def __repr__(self) -> str:
        if not self.done():
            return f"<Run on {self.session!r}, {'waiting' if self._state is None else 'running'}>"
        error = self._finished.exception(0)
        return (
            f"<Run ended: {self._finished.result(0)!r}>"
            if error is None
            else self.session.log.masked(f"<Run failed: {error!r}>")
        )


def _attach(error: BaseException, session: Session, result: Result) -> None:
    try:
        error.session = session  # type: ignore[attr-defined]
        error.result = result  # type: ignore[attr-defined]
    except AttributeError:  # an exception that takes no attributes
        return


def _not_empty(what: str, text: str) -> None:
    if not isinstance(text, str) or not text.strip():
        msg = f"{what} needs a text that is not empty, not {text!r}"
        raise ConfigError(msg)

"""Approvals in a terminal: one question at a time, in the model's order."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO, cast

from nbagent.escape import clean, visible
from nbagent.interfaces.approver import Answer, AnswerWord, Question
from nbagent.notebook.question import as_value, describe, has_more, pages, plain_name

__all__ = ["StdinApprover"]

WORDS: dict[str, AnswerWord] = {
    "y": "allow",
    "yes": "allow",
    "a": "always_allow",
    "always": "always_allow",
    "n": "deny",
    "no": "deny",
    "": "deny",
    "never": "always_deny",
    "x": "always_deny",
}
MOST_TRIES = 20
"""Lines that are no answer, after which a question counts as refused."""
POLL_S, BREATH_S = 0.1, 0.02
LONGEST_IN_PROMPT = 60
GONE = {
    "interrupt": "stopped: it is not run",
    "expired": "no answer in time: it is not run",
    "person": "answered elsewhere",
}
"""What is said of a question that nobody needs to answer any more, by what made it needless."""

Read = Callable[[str, Callable[[], bool]], str]
"""(prompt, whether the question is gone) → a line."""


class StdinApprover:
    """Asks on the terminal.

    Parameters
    ----------
    read
        Something like `input`: gets the prompt, gives a line; None = the terminal itself.
    write
        Takes text to show; None = the terminal, standard error by preference.
    """

    name = "person"

    def __init__(
        self,
        read: Callable[[str], str] | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        own = read is not None or write is not None
        self._desk = _Desk(_without_cancel(read or input), write or _show) if own else _TERMINAL

    async def decide(self, question: Question) -> Answer:
        """Show the call, read a line; the end of the input is a no.

        Raises
        ------
        Exception
            Whatever showing or reading raised: then nobody has answered.
        """
        waiting = _Waiting(question)
        self._desk.put(waiting)
        try:
            return await waiting.answer
        except asyncio.CancelledError as error:
            waiting.why = str(error.args[0]) if error.args else ""
            raise
        finally:
            waiting.gone = True

    def tell(self, text: str) -> None:
        """Show one line."""
        self._desk.tell(text)


class _Waiting:
    """A question, and where its answer goes."""

    def __init__(self, question: Question) -> None:
        self.question, self.gone = question, False
        self.why = ""
        """What made it needless, as in the log's `by`."""
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer] = self._loop.create_future()

    def give(self, answer: Answer | Exception) -> None:
        """Hand the answer over, or why there is none; from the desk's thread."""

        def give() -> None:
            if self.answer.done():
                return
            if isinstance(answer, Exception):
                self.answer.set_exception(answer)
            else:
                self.answer.set_result(answer)

        with contextlib.suppress(RuntimeError):  # the loop is closed: the run has long ended
            self._loop.call_soon_threadsafe(give)


class _GoneError(Exception):
    """Raised where a line is awaited for a question that was answered elsewhere."""


class _Desk:
    """One person at one terminal, asked by all runs: one question at a time, in order.

    The questions have a thread of their own, since reading blocks and must not block a pool.
    """

    def __init__(self, read: Read, write: Callable[[str], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._open = False
        self._asked = 0
        """Questions put since somebody was last asked nothing."""

    def put(self, waiting: _Waiting) -> None:
        """Queue a question."""
        with self._lock:
            self._queue.append(waiting)
            if self._open:
                return
            self._open = True
        threading.Thread(target=self._serve, name="nbagent-stdin", daemon=True).start()

    def tell(self, text: str) -> None:
        """Show one line."""
        self._write(f"{clean(text)}\n")

    def _serve(self) -> None:
        while True:
            # Questions come together, and an answer may make those behind it needless.
            time.sleep(BREATH_S)
            with self._lock:
                while self._queue and self._queue[0].gone:
                    self._queue.popleft()
                if not self._queue:
                    self._open, self._asked = False, 0
                    return
                waiting = self._queue.popleft()
            try:
                answer = self._ask(waiting)
            except _GoneError:
                continue
            except EOFError:
                self._quietly(
                    f"(Ctrl-D or the end of the input: {waiting.question.name} is not run)\n"
                )
                answer = Answer("deny", "the input has ended")
            except Exception as error:  # noqa: BLE001 - whatever it is, the run must not wait for ever
                waiting.give(error)
                continue
            except BaseException as error:  # noqa: BLE001 - such as Ctrl-C in a `read` of one's own
                answer = Answer("deny", f"no answer could be read ({type(error).__name__})")
            waiting.give(answer)

    def _place(self, question: Question) -> str:
        """Which of the open questions it is, such as "1 of 2"; empty if it is the only one."""
        self._asked += not question.problem  # else it is put once more
        with self._lock:
            total = self._asked + sum(not waiting.gone for waiting in self._queue)
        return f"{self._asked} of {total}" if total > 1 else ""

    def _quietly(self, text: str) -> None:
        with contextlib.suppress(Exception):
            self._write(text)

    def _ask(self, waiting: _Waiting) -> Answer:
        question = waiting.question
        shown = describe(question, self._place(question))
        self._write(shown)
        prompt = _prompt(question, more=has_more(question, shown))
        for _ in range(MOST_TRIES):
            line = self._line(prompt, waiting)
            word, _, rest = line.partition(" ")
            word, rest = word.lower(), rest.strip()
            if word in ("e", "edit"):
                edited = self._edit(waiting, rest)
                if edited is not None:
                    return edited
                continue
            if word in ("m", "more"):
                self._page(waiting)
                continue
            decision = WORDS.get(word)
            if decision is None:
                self._write(f"{visible(word)[:80]!r} is none of these.\n")
            elif decision.startswith("always") and not question.rememberable:
                dangerous = question.risk == "dangerous"
                why = "to a dangerous tool is never" if dangerous else "can't be"
                self._write(f"The answer {why} remembered.\n")
            else:
                if not word:
                    self._write(f"(Enter: {question.name} is not run)\n")
                return Answer(decision, rest)
        return Answer("deny", f"none of {MOST_TRIES} lines was an answer")

    def _page(self, waiting: _Waiting) -> None:
        """Show all of it, as far as the person wants to see."""
        for number, page in enumerate(pages(waiting.question), 1):
            if number > 1 and self._line("Enter = next page, q = back: ", waiting):
                return
            self._write(page)

    def _edit(self, waiting: _Waiting, text: str) -> Answer | None:
        """Other arguments, field by field or all at once; None = back to the question."""
        arguments = dict(waiting.question.arguments)
        if text or not arguments:
            text = text or self._line("All arguments as JSON, {…} (Enter = back): ", waiting)
            whole = self._object(text) if text else None
            return None if whole is None else Answer("edit", arguments=whole)
        self._write(
            'New values; Enter keeps one. Text as it is, or in "…" with \\n for a line break; the '
            "rest as JSON.\nAll at once: a line {…} with all arguments as JSON.\n"
        )
        for number, (name, old) in enumerate(waiting.question.arguments.items()):
            for _ in range(MOST_TRIES):
                text = self._line(_asked(name, old), waiting)
                if not number and _is_whole(text, arguments):
                    return self._edit(waiting, text)
                found, problem = _typed(text, old)
                if not problem:
                    arguments[name] = found
                    break
                self._write(f"{problem}\n")
        if as_value(arguments) == as_value(waiting.question.arguments):  # 1 is not true here
            self._write("Nothing was changed.\n")
            return None
        return Answer("edit", arguments=arguments)

    def _object(self, text: str) -> dict[str, Any] | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._write(f"That is no JSON: {error}\n")
            return None
        if not isinstance(value, dict):
            self._write("Arguments are a JSON object, {…}.\n")
            return None
        return cast("dict[str, Any]", value)

    def _line(self, prompt: str, waiting: _Waiting) -> str:
        try:
            line = self._read(prompt, lambda: waiting.gone)
        finally:
            if waiting.gone:
                self._quietly(f"({GONE.get(waiting.why, 'needs no answer any more')})\n")
        if waiting.gone:  # a line for this question must not answer the next one
            raise _GoneError
        return line.strip()


def _prompt(question: Question, *, more: bool) -> str:
    choices = ["[y]es", "[n]o", "[e]dit"]
    if question.rememberable:
        choices[1:2] = ["[a]lways", "[n]o", "ne[x]t time neither (always no)"]
    if more:
        choices.append("[m]ore")
    return (
        f"Run it? {', '.join(choices)}\n"
        "(a reason may follow; Enter, Ctrl-D = no; Ctrl-C = stop the run): "
    )


def _asked(name: str, old: Any) -> str:
    now = as_value(old)
    if len(now) > LONGEST_IN_PROMPT:
        now = f"{len(now):,} characters, as above"
    return f"{plain_name(name, LONGEST_IN_PROMPT)} [{now}]: "


def _typed(text: str, old: Any) -> tuple[Any, str]:
    """(what was typed in place of the old value, what is wrong with it)."""
    if not text:
        return old, ""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        if old is None or isinstance(old, str):
            return text, ""
        return old, f"That is no JSON: {error}"
    if isinstance(old, str) and not isinstance(value, str):
        return text, ""
    return value, ""


def _is_whole(text: str, arguments: dict[str, Any]) -> bool:
    """Whether a line typed for the first value is all arguments instead."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or not value:
        return False
    return set(cast("dict[str, Any]", value)) <= set(arguments)


def _without_cancel(read: Callable[[str], str]) -> Read:
    return lambda prompt, _: read(prompt)


def _read_terminal(prompt: str, gone: Callable[[], bool]) -> str:
    """A line from the terminal; stops waiting once the question is gone.

    Otherwise the abandoned read would swallow the line that is meant for whatever comes next.
    """
    try:
        pollable = sys.platform != "win32" and sys.stdin.isatty()
    except (AttributeError, ValueError):
        pollable = False
    if not pollable:
        return input(prompt)
    _show(prompt)
    while not select.select([sys.stdin], [], [], POLL_S)[0]:
        if gone():
            raise _GoneError
    line = sys.stdin.readline()
    if not line:
        _show("\n")
        raise EOFError
    return line


def _show(text: str) -> None:
    """Write where the person looks: one of the two may be redirected into a file."""
    streams = [stream for stream in (sys.stderr, sys.stdout) if stream is not None]
    stream = next((stream for stream in streams if stream.isatty()), streams[0])
    stream.write(_fitting(text, stream))
    stream.flush()


def _fitting(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "nbagent.marks").decode(encoding)


def _marked(error: UnicodeError) -> tuple[str, int]:
    """For streams that lack characters: the marks of `visible`, also for its pictures."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    points = (ord(c) for c in error.object[error.start : error.end])
    pictured = {0x2421: 0x7F, **{0x2400 + n: n for n in range(0x20)}}
    return "".join(f"<U+{pictured.get(n, n):04X}>" for n in points), error.end


codecs.register_error("nbagent.marks", _marked)


_TERMINAL = _Desk(_read_terminal, _show)
"""There is one terminal, whatever the number of runs."""

"""Approvals in a terminal: one question at a time, in the model's order."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO, cast

from nbagent.escape import clean
from nbagent.interfaces.approver import Answer, AnswerWord, Question
from nbagent.interfaces.tool import Diff

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
MOST_CHARACTERS, MOST_LINES, MOST_ARGUMENTS = 2_000, 200, 40
"""What is shown of one value, and how many arguments."""
MOST_PREVIEW = 20_000
"""Characters shown of a preview."""
MOST_DIFFED = 2_000
"""Lines of a text that is still compared: a diff of longer ones may take minutes."""
POLL_S, BREATH_S = 0.1, 0.02

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

    serial = True
    name = "person"

    def __init__(
        self,
        read: Callable[[str], str] | None = None,
        write: Callable[[str], object] | None = None,
    ) -> None:
        own = read is not None or write is not None
        self._desk = _Desk(_without_cancel(read or input), write or _show) if own else _TERMINAL

    async def decide(self, question: Question) -> AnswerWord | Answer:
        """Show the call, read a line; what can't be read is a no."""
        waiting = _Waiting(question)
        self._desk.put(waiting)
        try:
            return await waiting.answer
        finally:
            waiting.gone = True

    def tell(self, text: str) -> None:
        """Show one line."""
        self._desk.tell(text)


class _Waiting:
    """A question, and where its answer goes."""

    def __init__(self, question: Question) -> None:
        self.question, self.gone = question, False
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[AnswerWord | Answer] = self._loop.create_future()

    def give(self, answer: AnswerWord | Answer) -> None:
        """Hand the answer over; from the desk's thread."""

        def give() -> None:
            if not self.answer.done():
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
            with self._lock:
                if not self._queue:
                    self._open = False
                    return
                waiting = self._queue.popleft()
            if waiting.gone:
                continue
            try:
                answer = self._ask(waiting)
            except _GoneError:
                continue
            except BaseException as error:  # noqa: BLE001 - whatever it is, the run must not wait for ever
                answer = Answer("deny", f"no answer could be read ({type(error).__name__})")
            waiting.give(answer)
            # An answer may make the questions behind it needless.
            time.sleep(BREATH_S)

    def _ask(self, waiting: _Waiting) -> AnswerWord | Answer:
        question = waiting.question
        self._write(describe(question))
        choices = "[y]es, [n]o, [e]dit"
        if question.rememberable:
            choices = "[y]es, [a]lways, [n]o, ne[x]t time neither (always no), [e]dit"
        for _ in range(MOST_TRIES):
            line = self._line(f"Run it? {choices}; a reason may follow: ", waiting)
            word, _, reason = line.partition(" ")
            word = word.lower()
            if word in ("e", "edit"):
                edited = self._edit(waiting)
                if edited is not None:
                    return edited
                continue
            decision = WORDS.get(word)
            if decision is None:
                self._write(f"{clean(word)[:80]!r} is none of these.\n")
            elif decision.startswith("always") and not question.rememberable:
                dangerous = question.risk == "dangerous"
                why = "to a dangerous tool is never" if dangerous else "can't be"
                self._write(f"The answer {why} remembered.\n")
            else:
                return Answer(decision, reason.strip())
        return Answer("deny", f"none of {MOST_TRIES} lines was an answer")

    def _edit(self, waiting: _Waiting) -> Answer | None:
        self._write(f"Arguments now: {_as_typed(waiting.question.arguments)}\n")
        text = self._line("New arguments as JSON (empty = back): ", waiting)
        if not text:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._write(f"That is no JSON: {error}\n")
            return None
        if not isinstance(value, dict):
            self._write("Arguments are a JSON object, {…}.\n")
            return None
        return Answer("edit", arguments=cast("dict[str, Any]", value))

    def _line(self, prompt: str, waiting: _Waiting) -> str:
        line = self._read(prompt, lambda: waiting.gone)
        if waiting.gone:  # a line for this question must not answer the next one
            raise _GoneError
        return line.strip()


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
            _show("(answered elsewhere)\n")
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
    return text.encode(encoding, "backslashreplace").decode(encoding)


_TERMINAL = _Desk(_read_terminal, _show)
"""There is one terminal, whatever the number of runs."""


def describe(question: Question) -> str:
    """The question as lines of plain text; what comes from the model can't look like anything else.

    Examples
    --------
    >>> q = Question(id="1.1.0", name="save", ref="", risk="mutating", why="", arguments={"a": 1})
    >>> print(describe(q))
    <BLANKLINE>
    save (mutating) wants to run
      a: 1
    <BLANKLINE>
    """
    lines = ["", f"{question.name} ({question.risk}) wants to run"]
    if question.why:
        lines += _shown("why it asks", question.why)
    if question.preview is None:
        arguments = list(question.arguments.items())
        for name, value in arguments[:MOST_ARGUMENTS]:
            lines += _shown(name, value)
        if len(arguments) > MOST_ARGUMENTS:
            lines.append(f"  … and {len(arguments) - MOST_ARGUMENTS:,} more arguments")
    elif isinstance(question.preview, Diff):
        lines += _quoted(_difference(question.preview), MOST_PREVIEW)
    else:
        lines += _quoted(clean(str(question.preview)), MOST_PREVIEW)
    return "\n".join(lines) + "\n"


def _shown(name: str, value: Any) -> list[str]:
    """`name: value`, the value below it if it has several lines."""
    text = clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    label = " ".join(clean(name[:200]).split())
    if "\n" not in text and len(text) <= MOST_CHARACTERS:
        return [f"  {label}: {text}"]
    return [f"  {label}:", *_quoted(text)]


def _quoted(text: str, most: int = MOST_CHARACTERS) -> list[str]:
    """The head of a text, each line marked so that it can't be taken for one of ours."""
    lines = text[:most].split("\n")
    out = [f"  | {line}" for line in lines[:MOST_LINES]]
    if len(text) > most or len(lines) > MOST_LINES:
        out.append(f"  … (cut: it has {len(text):,} characters in all)")
    return out


def _difference(diff: Diff) -> str:
    old, new = clean(str(diff.old)).split("\n"), clean(str(diff.new)).split("\n")
    if max(len(old), len(new)) > MOST_DIFFED:
        return f"(too long to compare, {len(old):,} lines now; what it will be:)\n" + "\n".join(new)
    return "\n".join(difflib.unified_diff(old, new, "now", "then", lineterm=""))


def _as_typed(arguments: dict[str, Any]) -> str:
    """The arguments as JSON that can be copied: what a terminal would act on is escaped."""
    text = json.dumps(arguments, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(arguments).replace("\x7f", "\\u007f")
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} … (cut)"

"""Approvals by `input()` in a terminal: one question at a time, in the model's order."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

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


class StdinApprover:
    """Asks on the terminal.

    Parameters
    ----------
    read
        `input` or something like it; gets the prompt, gives a line.
    write
        Takes text to show.
    """

    serial = True
    name = "person"

    def __init__(
        self,
        read: Callable[[str], str] = input,
        write: Callable[[str], object] = sys.stderr.write,
    ) -> None:
        self._read, self._write = read, write
        self._turn = asyncio.Lock()

    async def decide(self, question: Question) -> AnswerWord | Answer:
        """Show the call, read a line; anything that is no clear yes is a no."""
        async with self._turn:
            loop = asyncio.get_running_loop()
            future = loop.create_future()

            # A thread of its own: `input` can't be interrupted, and must not block a pool.
            def ask() -> None:
                answer = self._ask(question)
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(answer))

            threading.Thread(target=ask, name="nbagent-stdin", daemon=True).start()
            return await future

    def _ask(self, question: Question) -> AnswerWord | Answer:
        self._write(describe(question))
        choices = "[y]es, [n]o, [e]dit"
        if question.rememberable:
            choices = "[y]es, [a]lways, [n]o, ne[x]t time neither (always no), [e]dit"
        while True:
            try:
                line = self._read(f"Run it? {choices}; a reason may follow: ").strip()
            except (EOFError, OSError):
                return Answer("deny", "no answer could be read")
            word, _, reason = line.partition(" ")
            word = word.lower()
            if word in ("e", "edit"):
                edited = self._edit(question)
                if edited is not None:
                    return edited
                continue
            decision = WORDS.get(word)
            if decision is None:
                self._write(f"{word!r} is none of these.\n")
            elif decision.startswith("always") and not question.rememberable:
                self._write("The answer to a dangerous tool is never remembered.\n")
            else:
                return Answer(decision, reason.strip())

    def _edit(self, question: Question) -> Answer | None:
        self._write(f"Arguments now: {json.dumps(question.arguments, ensure_ascii=False)}\n")
        try:
            text = self._read("New arguments as JSON (empty = back): ").strip()
            value = json.loads(text) if text else None
        except (EOFError, OSError):
            return None
        except ValueError as error:
            self._write(f"That is no JSON: {error}\n")
            return None
        if value is not None and not isinstance(value, dict):
            self._write("Arguments are a JSON object, {…}.\n")
            return None
        return None if value is None else Answer("edit", arguments=cast("dict[str, Any]", value))


def describe(question: Question) -> str:
    """The question as lines of plain text.

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
        lines.append(f"  why it asks: {clean(question.why)}")
    if isinstance(question.preview, Diff):
        old, new = question.preview.old.splitlines(), question.preview.new.splitlines()
        lines += [
            "  " + clean(line)
            for line in difflib.unified_diff(old, new, "now", "then", lineterm="")
        ]
    elif question.preview is not None:
        lines += ["  " + clean(line) for line in question.preview.splitlines()]
    else:
        for name, value in question.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            text = clean(text)
            lines.append(f"  {name}: {text if len(text) <= 2_000 else text[:2_000] + ' … (cut)'}")
    return "\n".join(lines) + "\n"

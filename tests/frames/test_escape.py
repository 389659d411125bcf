"""Text of models and tools is made harmless in one place."""

from __future__ import annotations

import time

import pytest

from nbagent.escape import clean, escape


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("plain é 日本 🎉\n\ttext", "plain é 日本 🎉\n\ttext"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b[?25l\x1b[2J\x1b[10;20Hhome", "home"),
        ("\x9b31mred", "red"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x07", "link"),
        ("\x1b]0;never closed", "0;never closed"),
        ("\x1bP1$r\x1b\\\x1b_app\x1b\\\x1b(Bx", "x"),
        ("\x1b[31", "31"),
        ("a\x08\x7f\x07b\x85", "ab"),
        ("one\r\ntwo\rthree\u2028four", "one\ntwo\nthree\nfour"),
        ("nul\x00", "nul␀"),
        ("\u202eabc\u202c \u2066\u200f\u061c", "⟨U+202E⟩abc⟨U+202C⟩ ⟨U+2066⟩⟨U+200F⟩⟨U+061C⟩"),
        ("half \ud800", "half \ufffd"),
        ("", ""),
    ],
)
def test_what_a_terminal_gets(raw: str, seen: str):
    assert clean(raw) == seen
    assert clean(seen) == seen


def test_what_a_browser_gets():
    assert escape("<b a='1' c=\"2\">&\x1b[0m") == "&lt;b a=&#x27;1&#x27; c=&quot;2&quot;&gt;&amp;"
    # What a sequence separates must not join to markup after it is gone.
    assert escape("<\x1b[0mscript>") == "&lt;script&gt;"


@pytest.mark.parametrize(
    "piece", ["\x1b[", "\x1b]", "\x1b[0", "\x1b]a\x1b", "\x1b[ ", "\x1b", "\x9d"]
)
def test_hostile_text_takes_linear_time(piece: str):
    began = time.process_time()
    clean(piece * (1_000_000 // len(piece)))
    clean(piece + "0" * 1_000_000)
    assert time.process_time() - began < 2

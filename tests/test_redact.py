"""The mask over secrets: in values, in JSON text, in pieces."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nbagent as nb
from nbagent.errors import ConfigError
from nbagent.redact import Mask, mask_of

KEY = 'sk-ab"c\\d/e\u00e9f-0123'
LONGER = KEY + "-and-more"
ENVIRON = {"APP_KEY": KEY, "OTHER_TOKEN": LONGER, "X_SECRET": "short", "HOME": "/home/somebody"}


def mask() -> Mask:
    found = mask_of([], ENVIRON)
    assert found is not None
    return found


def test_secrets_are_named_by_their_variable_and_the_longest_wins():
    assert mask().text(f"a {KEY} b {LONGER} c") == "a [secret APP_KEY] b [secret OTHER_TOKEN] c"
    assert mask().text("short /home/somebody") == "short /home/somebody"
    assert KEY not in repr(mask())


def test_variables_that_hold_no_secrets_make_no_mask():
    assert mask_of([], {"HOME": "/home/somebody", "A_KEY": "elevenchars"}) is None
    assert mask_of([], {"A_KEY": "twelve chars"}) is not None


@pytest.mark.parametrize("ascii_", [True, False])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_values_are_masked_with_keys_and_nested_json_text(depth: int, ascii_: bool):
    value: Any = {"a": [KEY, {KEY: f"x{KEY}y"}], "n": 5}
    for _ in range(min(depth, 1)):
        value = json.dumps(value, ensure_ascii=ascii_)
    masked = mask().value({"v": value})
    assert "sk-ab" not in json.dumps(masked)
    assert mask().hits(orjson.dumps({"v": value}))
    if depth == 0:
        assert masked == {
            "v": {"a": ["[secret APP_KEY]", {"[secret APP_KEY]": "x[secret APP_KEY]y"}], "n": 5}
        }


def test_arguments_are_masked_however_json_spells_them():
    odd = "".join(f"\\u{ord(c):04x}" for c in KEY)
    assert json.loads(mask().arguments(f'{{"a": "{odd}"}}')) == {"a": "[secret APP_KEY]"}
    slashed = json.dumps(KEY).replace("/", "\\/")
    assert "sk-ab" not in mask().arguments(f'{{"a": {slashed}, "broken')
    assert mask().arguments('{"a": "\\u0041"}') == '{"a": "\\u0041"}'


def test_patterns_mask_what_they_fit():
    found = mask_of([re.compile(r"\b\d{4}-\d{4}\b")], {})
    assert found is not None
    assert found.text("pin 1234-5678.") == "pin [secret pattern 1]."


PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [KEY, LONGER, "abcabcabcabd", "abcabcabd", "cabdcabdcabd", KEY[:5], "sk-", "abc", "\n"]
        ),
        st.text(max_size=4),
    ),
    max_size=12,
)


@given(PIECES, st.lists(st.integers(0, 200), max_size=20), st.booleans())
def test_in_pieces_no_secret_comes_out_and_nothing_else_is_lost(
    pieces: list[str], cuts: list[int], patterns: bool
):
    given_ = ["abcabcabcabd", "abcabcabd", "cabdcabdcabd"]
    found = mask_of([*given_, *([re.compile("pi+n")] if patterns else [])], ENVIRON)
    assert found is not None
    text = "".join(pieces)
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    stream = found.stream()
    told = "".join([stream.feed(text[a:b]) for a, b in pairwise(places)])
    told += stream.rest()
    assert not any(secret in told for secret in (KEY, LONGER, *given_))
    if not any(secret in text for secret in (KEY, LONGER, *given_)):
        assert told == found.text(text)


def test_text_without_a_beginning_of_a_secret_is_not_held_back():
    stream = mask().stream()
    assert stream.feed("Hello wor") == "Hello wor"
    assert stream.feed("ld s") == "ld "
    assert stream.feed("k") == ""
    assert stream.feed("ate") == "skate"


def test_a_mark_becomes_its_secret_only_where_the_secret_stood_before():
    before = orjson.dumps({"key": KEY})
    assert mask().restored({"key": "[secret APP_KEY]!"}, before) == {"key": f"{KEY}!"}
    assert mask().restored({"key": "[secret OTHER_TOKEN]"}, before) == {
        "key": "[secret OTHER_TOKEN]"
    }


@pytest.mark.parametrize(
    ("redact", "words"),
    [
        ("abcdef", "redact is a list"),
        (["abc"], r"redact\[0\] has 3 characters"),
        (["abcdef", 5], r"redact\[1\] is a int"),
        ([re.compile(b"abc")], r"redact\[0\] is a Pattern, neither"),
        ([re.compile("a*")], "fits the empty text"),
    ],
)
def test_what_can_be_no_secret_is_a_config_error(redact: Any, words: str):
    with pytest.raises(ConfigError, match=words):
        nb.Session(redact=redact)

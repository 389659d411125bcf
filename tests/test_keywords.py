"""A misspelled argument is told with what was meant; help and dir show nbagent, not its making."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
from collections.abc import Callable
from typing import Any

import pytest

import nbagent as nb
from nbagent.keywords import check_keywords

MODEL = nb.models.Scripted(["Hello."])
AGENT = nb.Agent(MODEL)


def f(x: int) -> str:
    """Act."""
    return str(x)


MISSPELLED: list[tuple[Callable[..., Any], tuple[Any, ...], str, str]] = [
    (nb.Agent, (MODEL,), "instuctions", "Agent has no argument `instuctions`: did you mean `instr"),
    (nb.Agent, (MODEL,), "max_step", "did you mean `max_steps`"),
    (nb.tool, (), "rsk", "tool has no argument `rsk`: did you mean `risk`"),
    (nb.tool, (f,), "timeout", "did you mean `timeout_s`"),
    (AGENT.tool, (f,), "tag", "did you mean `tags`"),
    (
        AGENT.run_sync,
        ("go",),
        "sesion",
        "run_sync has no argument `sesion`: did you mean `session`",
    ),
    (AGENT.add_tool, (f,), "replce", "add_tool has no argument `replce`: did you mean `replace`"),
    (nb.Session, (), "redac", "Session has no argument `redac`: did you mean `redact`"),
    (AGENT.start, ("go",), "dep", "start has no argument `dep`: did you mean `deps`"),
    (nb.Budget, (), "max_token", "Budget has no argument `max_token`: did you mean `max_tokens`"),
    (nb.Approval, (), "rule", "did you mean `rules`"),
    (nb.Settings, (), "temprature", "did you mean `temperature`"),
    (nb.Recovery, (), "attemps", "did you mean `attempts`"),
    (nb.Tool, ("a", "A.", {}, f), "domian", "Tool has no argument `domian`: did you mean `domain`"),
    (nb.Answer, ("allow",), "reasons", "did you mean `reason`"),
    (nb.Diff, (), "odl", "did you mean `old`"),
    (nb.Rule, ("deny",), "reff", "did you mean `ref`"),
    (nb.Usage, (), "input_token", "did you mean `input_tokens`"),
    (nb.reply, ("a",), "thinkin", "did you mean `thinking`"),
    (nb.models.Scripted, ([],), "nam", "did you mean `name`"),
    (nb.models.OpenAIChat, ("m",), "base_ulr", "did you mean `base_url`"),
    (nb.models.Local, (), "ctx", "did you mean `n_ctx`"),
    (nb.gates.Truncate, (), "limt", "did you mean `limit`"),
    (nb.gates.Timeout, (), "second", "did you mean `seconds`"),
    (
        nb.Session.open,
        ("x.jsonl",),
        "snyc",
        "Session.open has no argument `snyc`: did you mean `sync`",
    ),
]


@pytest.mark.parametrize(("call", "given", "name", "said"), MISSPELLED, ids=lambda v: str(v)[:30])
def test_a_misspelled_argument_is_told_with_what_was_meant(
    call: Callable[..., Any], given: tuple[Any, ...], name: str, said: str
):
    with pytest.raises(nb.errors.ConfigError) as caught:
        call(*given, **{name: 1})
    assert isinstance(caught.value, TypeError)
    assert said in str(caught.value)
    assert "It takes: " in str(caught.value)


async def test_the_same_of_what_is_awaited():
    with pytest.raises(
        nb.errors.KeywordError, match="run has no argument `if_bussy`: did you mean"
    ):
        await AGENT.run("go", if_bussy="raise")  # pyright: ignore[reportCallIssue]
    assert inspect.iscoroutinefunction(AGENT.run)


def test_nothing_is_guessed_where_nothing_is_near_and_all_names_are_listed():
    with pytest.raises(nb.errors.KeywordError) as caught:
        nb.Budget(zzz=1)  # pyright: ignore[reportCallIssue]
    assert "did you mean" not in str(caught.value)
    assert "It takes: max_model_calls, max_tokens" in str(caught.value)


def test_what_may_only_stand_by_position_is_no_keyword():
    @check_keywords("only")
    def only(first: int, /, second: int) -> int:
        return first + second

    assert only(1, second=2) == 3
    with pytest.raises(nb.errors.KeywordError, match="`first`"):
        only(first=1, second=2)  # pyright: ignore[reportCallIssue]


def test_signatures_stay_as_they_are_written():
    assert next(iter(inspect.signature(nb.Budget).parameters)) == "max_model_calls"
    assert "prompt" in inspect.signature(nb.Agent.run).parameters
    assert inspect.signature(nb.tool).parameters["risk"].default == "unspecified"


def records() -> list[type]:
    found = (getattr(nb, name) for name in nb.__all__)
    return [thing for thing in found if inspect.isclass(thing) and dataclasses.is_dataclass(thing)]


NOT_OURS = (
    "_dataclass_getstate",
    "pickling frozen",
    "another day",
    "Implement setattr",
    "Implement delattr",
    "Return self==value",
    "Return hash(self)",
    "Return repr(self)",
    "Initialize self",
)


@pytest.mark.parametrize("cls", records(), ids=lambda c: c.__name__)
def test_the_help_of_a_record_has_no_words_but_ours(cls: type):
    text = pydoc.plain(pydoc.render_doc(cls))
    assert [words for words in NOT_OURS if words in text] == []


@pytest.mark.parametrize(
    "value",
    [
        nb.Budget(max_tokens=3),
        nb.Approval(rules=["allow x"]),
        nb.Usage(1, 2),
        nb.Text("a"),
        nb.deny("b"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_records_can_be_copied_pickled_and_changed(value: Any):
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value) == value
    assert dataclasses.replace(value) == value
    name = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, name, None)


def test_dir_shows_the_public_names_only():
    assert [name for name in dir(nb) if not name.startswith("__")] == sorted(nb.__all__)

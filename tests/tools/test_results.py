"""What a model reads of results and errors."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import math
import os
import pathlib
import sqlite3
import threading
import typing
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nbagent.tools import collected, error_text, in_wrong_place, to_text


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: Any = None


class Pair(typing.NamedTuple):
    left: int
    right: set[int]


class Model(BaseModel):
    when: datetime.date
    ratio: float = math.nan


class Rude:
    def __repr__(self) -> str:
        msg = "no"
        raise RuntimeError(msg)


class Quiet:
    pass


def test_dicts_and_lists_become_json():
    """F-D1."""
    assert to_text({"a": [1, "x", None, True]}) == '{"a":[1,"x",null,true]}'
    assert to_text([{"ü": 1.5}]) == '[{"ü":1.5}]'


def test_text_stays_and_nothing_is_said_in_words():
    assert to_text("hello {}") == "hello {}"
    assert to_text("") == ""
    assert to_text(None) == "Done (no result)."
    assert (to_text(3), to_text(True), to_text(0.5)) == ("3", "true", "0.5")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.datetime(2024, 1, 2, 3, 4), "2024-01-02T03:04:00"),  # noqa: DTZ001
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (decimal.Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (datetime.timedelta(hours=1), "1:00:00"),
        (b"hi", "hi"),
        (np.float64(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.datetime64("2024-01-02"), "2024-01-02"),
        (pd.Timestamp("2024-01-02"), "2024-01-02T00:00:00"),
        (ValueError("x"), "ValueError: x"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        (range(3), "[0,1,2]"),
        (Pair(1, {2}), '{"left":1,"right":[2]}'),
        (Point(1, Point(2)), '{"x":1,"y":{"x":2,"y":null}}'),
        (Model(when=datetime.date(2024, 1, 2)), '{"when":"2024-01-02","ratio":"NaN"}'),
        ((n for n in (1, 2)), "[1,2]"),
        (collections.deque([1]), "[1]"),
        (iter([1, 2]), "[1,2]"),
        ({"a": 1}.items(), '[["a",1]]'),
        ({1: "a", (1, 2): "b", None: "c"}, '{"1":"a","[1, 2]":"b","null":"c"}'),
        (2**70, str(2**70)),
        ([2**70], f"[{2**70}]"),
        (np.arange(3), "[0,1,2]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_of_other_kinds_are_readable(value: Any, text: str):
    """F-D2."""
    assert to_text(value) == text
    if text[0] in "[{":
        assert json.loads(text) is not None


def test_values_of_other_kinds_are_readable_inside_containers():
    """F-D2."""
    value = {"d": decimal.Decimal("1.1"), "n": np.float32(0.5), "s": {2, 1}, "c": Colour.RED}
    assert json.loads(to_text(value)) == {"d": "1.1", "n": 0.5, "s": [1, 2], "c": "red"}


def test_nan_is_told_from_null():
    assert to_text([math.nan, math.inf, -math.inf, None]) == '["NaN","Infinity","-Infinity",null]'
    assert to_text(math.nan) == "NaN"
    assert to_text(np.array([1.0, math.nan])) == '[1.0,"NaN"]'


def test_a_data_frame_is_shape_columns_and_first_rows():
    """F-D2."""
    frame = pd.DataFrame({"city": [f"c{n}" for n in range(50)], "rain": range(50)})
    lines = to_text(frame).splitlines()
    assert lines[0] == "DataFrame, 50 rows × 2 columns"
    assert "rain (int64)" in lines[1]
    assert "c9" in lines[-1]
    assert "c10" not in to_text(frame)
    assert "DataFrame" in json.loads(to_text({"table": frame}))["table"]


def test_wide_empty_and_odd_frames_are_short():
    wide = pd.DataFrame(np.zeros((2, 5_000)))
    assert len(to_text(wide)) < 3_000
    assert to_text(pd.DataFrame()).startswith("DataFrame, 0 rows × 0 columns")
    assert to_text(pd.Series([1, 2], name="n")).startswith("Series n, 2 values (int64)")
    kind = type("Kind", (pd.DataFrame,), {})
    assert to_text(kind({"a": [1]})).startswith("DataFrame, 1 rows")
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    assert "2 columns" in to_text(twice)


def test_a_large_array_is_its_shape_and_first_values():
    text = to_text(np.arange(1_000_000).reshape(1_000, 1_000))
    assert "(1000, 1000)" in text
    assert len(text) < 300


def test_other_objects_are_their_repr_without_addresses():
    assert to_text(Quiet()) == to_text(Quiet())
    assert "0x" not in to_text([Quiet(), test_a_large_array_is_its_shape_and_first_values])
    assert "RuntimeError" in to_text(Rude())
    assert "RuntimeError" in to_text({"x": [Rude()]})


def test_circles_and_depth_end():
    circle: list[Any] = [1]
    circle.append(circle)
    assert to_text(circle) == '[1,"<circular>"]'
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    json.loads(to_text(deep))


def test_endless_iterators_are_cut():
    assert "not read" in to_text(itertools.count())
    assert "not read" in to_text(n for n in itertools.count())

    def broken() -> typing.Iterator[int]:
        yield 1
        msg = "bad"
        raise ValueError(msg)

    assert to_text(broken()) == '[1,"<stopped by ValueError: bad>"]'


async def test_endless_async_generators_are_cut_and_closed():
    closed: list[bool] = []

    async def endless() -> typing.AsyncGenerator[int]:
        try:
            for n in itertools.count():
                yield n
        finally:
            closed.append(True)

    found = await collected(endless())
    assert (len(found), found[-2]) == (1001, 999)
    assert "not read" in found[-1]
    assert closed


def test_half_characters_and_nul_are_replaced():
    """F-D4."""
    assert to_text("a\ud83d") == "a\ufffd"
    assert json.loads(to_text({"k\ud83d": ["\udc00", "\ud83d\ude00"]})) == {
        "k\ufffd": ["\ufffd", "😀"]
    }
    assert "\0" not in to_text("a\0b")
    to_text(pd.DataFrame({"a": ["\ud83d"]}, dtype=object)).encode()


def test_a_megabyte_stays_whole():
    """F-D5: cutting is a gate's work."""
    assert to_text("x" * 1_000_000) == "x" * 1_000_000


def test_a_figure_is_named():
    from matplotlib.figure import Figure

    assert to_text(Figure()) == "<Figure size 640x480 with 0 Axes>"


def test_binary_data_is_told_as_such():
    assert to_text(b"\x89PNG\x00\xff" * 100).startswith("<600 bytes, base64: iVBORw")


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
        | st.binary() | st.decimals() | st.datetimes() | st.complex_numbers() | st.uuids(),
        lambda inner: st.lists(inner) | st.tuples(inner, inner)
        | st.dictionaries(st.text(st.characters()) | st.integers() | st.tuples(st.integers()), inner)
        | st.builds(Point, st.integers(), inner),
        max_leaves=20,
    )
)  # fmt: skip
def test_any_value_becomes_text_that_can_be_encoded(value: Any):
    text = to_text(value)
    text.encode()
    if isinstance(value, dict | list | tuple | Point):
        json.loads(text, parse_constant=pytest.fail)


def test_an_error_is_named_with_advice_and_without_traceback():
    with pytest.raises(KeyError) as caught:
        os.environ["NO_SUCH_THING"]
    text = error_text("load", caught.value)
    assert text.startswith("Error: KeyError: 'NO_SUCH_THING'\n")
    assert "`load` failed" in text
    assert "Traceback" not in text


def test_an_error_of_any_kind_is_short_and_encodable():
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "Odd" in error_text("f", Odd())
    assert len(error_text("f", ValueError("x" * 1_000_000))) < 2_500
    error_text("f", ValueError("\ud83d")).encode()
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    assert "ValueError: a" in error_text("f", group)
    assert error_text("f", TimeoutError()).startswith("Error: TimeoutError\n")


def test_an_error_of_the_wrong_loop_or_thread_names_the_way_out():
    connection = sqlite3.connect(":memory:")
    caught: list[Exception] = []

    def use() -> None:
        try:
            connection.execute("select 1")
        except sqlite3.ProgrammingError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    connection.close()
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        caught.append(error)
    caught.append(RuntimeError("Task got Future attached to a different loop"))
    assert len(caught) == 3
    for each in caught:
        assert "inside of the tool's own function" in error_text("query", each)


@pytest.mark.parametrize(
    "message",
    [
        "Task <Task pending> got Future <Future pending> attached to a different loop",
        "The future belongs to a different loop than the one specified as the loop argument",
        "await wasn't used with future",
        "<asyncio.locks.Lock object at 0x1 [unlocked]> is bound to a different event loop",
        "Cannot use AsyncMongoClient in different event loop.",
        "Non-thread-safe operation invoked on an event loop other than the current one",
        "There is no current event loop in thread 'nbagent-tool-1'.",
        "no running event loop",
        "This event loop is already running",
        "Event loop is closed",
        "asyncio.run() cannot be called from a running event loop",
        "Cannot run the event loop while another loop is running",
        "You cannot call this from an async context - use a thread or sync_to_async.",
        "It looks like you are using Playwright Sync API inside the asyncio loop.",
        "SQLite objects created in a thread can only be used in that same thread.",
        "DatabaseWrapper objects created in a thread can only be used in that same thread.",
        "cannot switch to a different thread",
        "The application called an interface that was marshalled for a different thread.",
        "module::Thing is unsendable, but sent to another thread",
        "main thread is not in main loop",
        "Calling Tcl from different appartment",
        "signal only works in main thread of the main interpreter",
        "NSWindow should only be instantiated on the main thread!",
    ],
)
def test_each_librarys_words_for_the_wrong_place_are_known(message: str):
    assert in_wrong_place(RuntimeError(message))
    wrapped = ValueError("wrapped")
    wrapped.__cause__ = RuntimeError(message)
    assert in_wrong_place(wrapped)
    assert in_wrong_place(ExceptionGroup("two", [KeyError("a"), RuntimeError(message)]))


@pytest.mark.parametrize(
    "message", ["the message is in a different thread of the forum", "loop", "thread not found", ""]
)
def test_other_errors_are_not_taken_for_it(message: str):
    assert not in_wrong_place(RuntimeError(message))

"""What is read from the text that a model wrote."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import json
import math
from typing import Annotated, Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, BeforeValidator, Field

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import Arguments, ArgumentsError, Tool
from nbagent.tools import complete, rebind, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2


class Basket(BaseModel):
    items: list[str] = Field(default_factory=list[str])


@tool
def add(a: int, b: int = 1) -> int:
    return a + b


@tool
def search(query: str, tags: list[str] = [], way: Literal["up", "down"] = "up") -> None: ...  # noqa: B006


@tool
def now() -> str:
    return "12:00"


@tool
def free(data: Any = None, opts: dict[str, Any] | None = None) -> None: ...


def read(made: Tool, text: str) -> Arguments:
    reader = complete(made).reader
    assert reader
    return reader(text)


def refused(made: Tool, text: str) -> str:
    with pytest.raises(ArgumentsError) as caught:
        read(made, text)
    return str(caught.value)


def test_values_come_typed_and_as_plain_json():
    found = read(add, '{"a": 2}')
    assert found == ({"a": 2, "b": 1}, ((), {"a": 2, "b": 1}), None)


@pytest.mark.parametrize("text", ["", "  \n", "null", "{}", '""', ' {}"" ', "{}''"])
def test_no_arguments_are_an_empty_object(text: str):
    """F-A1, F-A2, F-C1."""
    assert read(now, text).value == {}


def test_stray_quotes_behind_an_empty_object_are_told():
    """F-C1."""
    assert "quotes" in (read(now, '{}""').repaired or "")


@pytest.mark.parametrize("text", ['{"a": 1} done', '{"a": 1}{"a": 2}', "{} x", "{'a': 1} done"])
def test_other_trailing_text_is_an_error(text: str):
    """F-C1."""
    assert "Send one JSON object and nothing else" in refused(add, text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}{"a": 1}',
        '{"a": 1}\n{ "a":1 } {"a": 1}',
        "{'a': 1}{'a': 1}",
        '"{\\"a\\":1}{\\"a\\":1}"',
    ],
)
def test_one_object_said_twice_is_read_once_and_told(text: str):
    found = read(add, text)
    assert found.value == {"a": 1, "b": 1}
    assert "more than once" in (found.repaired or "")


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1}{"a": true}',
        '{"a": 1}{"a": 1.0}',
        '{"a": 1}{"a": 1',
        '{"a": 1}{"a": 1}x',
        "{'a': 1}{'a': 2}",
    ],
)
def test_objects_that_differ_are_an_error(text: str):
    assert "Send one JSON object and nothing else" in refused(add, text)


def test_what_follows_an_object_may_be_deep_or_long():
    deep = '{"a": 1}' + '{"a":' * 100_000
    assert "nothing else" in refused(add, deep)
    assert read(add, '{"a": 1}' * 100_000).value["a"] == 1


@pytest.mark.parametrize("text", ['{"a": 1', '{"a": 1, "b', '{"a": [1, 2', "{'a': 'x", "{"])
def test_cut_arguments_are_not_repaired(text: str):
    """F-C2."""
    assert "cut off or are not valid JSON" in refused(add, text)


@pytest.mark.parametrize(
    "text",
    ["{'a': 1}", '{"a": 1,}', "{a: 1}", '```json\n{"a": 1}\n```', '{"a": 1 // one\n}'],
)
def test_slips_in_json_are_repaired_and_told(text: str):
    found = read(add, text)
    assert found.value == {"a": 1, "b": 1}
    assert found.repaired


def test_a_raw_line_break_in_a_text_is_repaired():
    assert read(search, '{"query": "a\nb"}').value["query"] == "a\nb"


@pytest.mark.parametrize("text", ["add 1 and 2", "[1, 2]", "3", '"hello"', "true", "<a>", "{{{}}}"])
def test_what_is_no_object_is_refused(text: str):
    assert "`add`" in refused(add, text)


def test_an_object_inside_a_json_string_is_decoded():
    """F-C5."""
    found = read(add, json.dumps('{"a": 3}'))
    assert found.value == {"a": 3, "b": 1}
    assert "JSON string" in (found.repaired or "")


def test_json_text_is_decoded_where_an_array_is_wanted():
    """F-C5."""
    found = read(search, '{"query": "[1]", "tags": "[\\"x\\", \\"y\\"]"}')
    assert found.value["tags"] == ["x", "y"]
    assert found.value["query"] == "[1]"
    assert found.repaired == "`tags` was JSON text, decoded"


def test_json_text_is_decoded_inside_models_too():
    """F-C5."""

    @tool
    def f(basket: Basket, point: Point | None = None) -> None: ...

    found = read(f, json.dumps({"basket": '{"items": "[\\"a\\"]"}', "point": '{"x": 1}'}))
    assert found.value == {"basket": {"items": ["a"]}, "point": {"x": 1, "y": 2}}


def test_text_is_left_alone_where_text_is_allowed():
    """F-C5."""

    @tool
    def f(x: str | list[int], y: Any) -> None: ...

    assert read(f, '{"x": "[1]", "y": "{}"}').value == {"x": "[1]", "y": "{}"}


def test_star_arguments_are_bound_by_position():
    """F-C7."""

    @tool
    def f(x: int, *rest: int, flag: bool = False) -> list[int]:
        return [x, *rest, flag]

    found = read(f, '{"x": 1, "rest": [2, 3]}')
    assert found.bound == ((1, 2, 3), {"flag": False})
    assert found.value == {"x": 1, "rest": [2, 3], "flag": False}
    assert read(f, '{"x": 1}').bound == ((1,), {"flag": False})


def test_positional_only_arguments_are_bound_by_position():
    @tool
    def f(a: int, /, b: int) -> None: ...

    assert read(f, '{"b": 2, "a": 1}').bound == ((1,), {"b": 2})


def test_dataclasses_reach_the_function_as_such():
    """F-C8."""

    @tool
    def f(point: Point) -> None: ...

    found = read(f, '{"point": {"x": 1}}')
    assert found.bound[1] == {"point": Point(1, 2)}
    assert found.value == {"point": {"x": 1, "y": 2}}


def test_a_default_factory_gives_a_fresh_list_per_call():
    """F-C11."""

    @tool
    def f(basket: Basket, more: Annotated[list[int], Field(default_factory=list)]) -> None: ...

    one, two = (read(f, '{"basket": {}}').bound[1] for _ in range(2))
    one["basket"].items.append("x")
    one["more"].append(1)
    assert two["basket"].items == []
    assert two["more"] == []


def test_a_body_cannot_change_what_gates_saw():
    found = read(search, '{"query": "x", "tags": ["a"]}')
    found.bound[1]["tags"].append("b")
    assert found.value["tags"] == ["a"]
    assert read(search, '{"query": "x"}').value["tags"] == []


def test_defaults_without_a_json_form_reach_the_function_only():
    """F-C12."""

    @tool
    def f(a: float = math.nan, b: Colour = Colour.RED, c: set[str] = {"y", "x"}) -> None: ...  # noqa: B006

    found = read(f, "{}")
    assert found.value == {"b": "red", "c": ["x", "y"]}
    assert math.isnan(found.bound[1]["a"])
    assert found.bound[1]["b"] is Colour.RED
    assert rebind(f, found.value).value == found.value


def test_rich_types_have_a_stable_json_form():
    @tool
    def f(when: datetime.date, names: set[str], colour: Colour) -> None: ...

    found = read(f, '{"when": "2024-01-02", "names": ["b", "a", "b"], "colour": "blue"}')
    assert found.value == {"when": "2024-01-02", "names": ["a", "b"], "colour": "blue"}
    assert found.bound[1]["when"] == datetime.date(2024, 1, 2)
    assert found.repaired is None


def test_a_number_as_text_is_accepted_and_told():
    found = read(add, '{"a": "3", "b": 4.0}')
    assert found.value == {"a": 3, "b": 4}
    assert found.repaired == '`a`: "3" read as 3'


def test_null_for_what_has_a_default_takes_the_default():
    found = read(add, '{"a": 1, "b": null}')
    assert found.value == {"a": 1, "b": 1}
    assert "its default taken" in (found.repaired or "")
    assert "`a`" in refused(add, '{"a": null}')


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}'])
def test_numbers_that_json_has_not_are_refused(text: str):
    @tool
    def f(a: float) -> None: ...

    assert refused(f, text)
    assert refused(free, text.replace('"a"', '"data"'))
    assert refused(free, '{"opts": ' + text + "}")


def test_a_long_integer_reaches_the_function_and_the_log():
    found = read(add, '{"a": 123456789012345678901234567890}')
    assert found.bound[1]["a"] == 123456789012345678901234567890
    assert orjson.dumps(found.value)
    assert rebind(add, found.value).bound == found.bound


def test_half_a_character_is_replaced():
    """F-D4."""
    found = read(search, '{"query": "a\\ud83d"}')
    assert found.value["query"] == "a\ufffd"
    assert found.repaired


def test_every_problem_is_listed_with_the_arguments_that_exist():
    said = refused(search, '{"way": "left", "tags": [1, {}], "q": "x"}')
    for each in ("`query` is missing", "`way` should be 'up' or 'down'", '"left"', "`tags[0]`"):
        assert each in said
    assert "`q` is not an argument" in said
    assert "`search` takes: query (required), tags, way." in said
    for never in ("Traceback", "pydantic", "http", "Input"):
        assert never not in said


def test_a_long_value_is_not_quoted_whole():
    assert len(refused(add, json.dumps({"a": "x" * 100_000}))) < 500
    assert len(refused(search, json.dumps({f"n{n}": n for n in range(1_000)}))) < 3_000


def test_a_tool_without_arguments_ignores_surplus_ones_and_says_so():
    found = read(now, '{"zone": "utc"}')
    assert found.bound == ((), {})
    assert "zone" in (found.repaired or "")


def test_a_validator_that_fails_in_its_own_way_is_an_answer():
    def check(value: Any) -> Any:
        return value["missing"]

    @tool
    def f(x: Annotated[int, BeforeValidator(check)]) -> None: ...

    assert "TypeError" in refused(f, '{"x": 1}')


def test_a_validators_own_words_are_passed_on():
    def check(value: int) -> int:
        if value % 2:
            msg = "only even numbers"
            raise ValueError(msg)
        return value

    @tool
    def f(x: Annotated[int, BeforeValidator(check)]) -> None: ...

    assert "`x` only even numbers; it was 3" in refused(f, '{"x": 3}')


def test_a_rewrite_is_validated_again():
    assert rebind(add, {"a": 5}).value == {"a": 5, "b": 1}
    for wrong in ({"a": "x"}, {"a": math.nan}, {"a": object()}, [1]):
        with pytest.raises(ArgumentsError):
            rebind(add, wrong)  # pyright: ignore[reportArgumentType]


LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "key": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        "deep": {"anyOf": [{"type": "object"}, {"type": "null"}]},
        "n": {"type": "integer", "minimum": 1},
    },
    "required": ["key"],
    "additionalProperties": False,
}


def look() -> Tool:
    return complete(Tool("look", "Look up.", LOOK, dict))


def test_a_handmade_tool_reads_against_its_schema():
    found = read(look(), '{"key": "x"}')
    assert found.value == {"key": "x", "tags": []}
    assert found.bound == ((), {"key": "x", "tags": []})
    found.bound[1]["tags"].append(1)
    assert read(look(), '{"key": "x"}').value["tags"] == []


def test_a_handmade_tool_lists_every_problem():
    said = refused(look(), '{"tags": [1], "n": 0, "other": 1}')
    for each in ("`key` is missing", "`tags[0]`", "`n`", "`other` is not an argument"):
        assert each in said
    assert "look` takes: key (required), tags, deep, n." in said


def test_a_handmade_tool_decodes_json_text_where_an_object_is_wanted():
    """F-C5."""
    found = read(look(), '{"key": "[]", "tags": "[\\"a\\"]", "deep": "{\\"x\\": 1}", "n": null}')
    assert found.value == {"key": "[]", "tags": ["a"], "deep": {"x": 1}}
    assert found.repaired


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"x": {"type": "nonsense"}}},
        {"type": "array"},
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/nowhere"}}},
        {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:9/x.json"}}},
        {"type": "object", "properties": {"x": object()}},
        [],
    ],
)
def test_a_bad_schema_is_refused_when_the_tool_is_completed(schema: Any):
    with pytest.raises(ToolDefinitionError, match="tool `t`"):
        complete(Tool("t", "", schema, print))


def test_completing_leaves_a_finished_tool_as_it_is():
    assert complete(add) is add
    done = look()
    assert complete(done) is done
    assert done.source


def test_definitions_within_a_schema_are_followed():
    schema = {
        "$defs": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/n"}},
    }
    made = complete(Tool("t", "", schema, print))
    assert read(made, '{"x": 1}').value == {"x": 1}
    assert "`x`" in refused(made, '{"x": "one"}')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["query", "tags", "way", "key", "deep", "n", "data", "opts"])
READERS = [search, free, look()]


@settings(deadline=None)
@given(st.text() | JSON.map(json.dumps) | st.dictionaries(NAMES, JSON).map(json.dumps), st.data())
def test_a_reader_answers_any_text_with_arguments_or_an_arguments_error(text: str, data: Any):
    cut = text[: data.draw(st.integers(0, len(text)))]
    for made in READERS:
        for each in (text, cut):
            try:
                found = read(made, each)
            except ArgumentsError as error:
                str(error).encode()
            else:
                orjson.dumps(found.value)
                assert rebind(made, found.value).value == found.value

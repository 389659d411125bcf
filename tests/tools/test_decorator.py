"""What `@nb.tool` makes of a function."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import math
import sqlite3
import subprocess
import sys
import typing
from typing import Annotated, Any, Literal, Optional

import orjson
import pytest
from pydantic import BaseModel, Field

from nbagent.errors import ToolDefinitionError
from nbagent.interfaces.tool import Tool, ToolContext
from nbagent.tools import complete, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 2
    tags: list[str] = dataclasses.field(default_factory=list[str])


class Box(BaseModel):
    corner: Point
    names: list[str] = Field(default_factory=lambda: ["a"])


class Size(typing.TypedDict):
    wide: int
    high: typing.NotRequired[int]


def properties(made: Tool) -> dict[str, Any]:
    return made.parameters["properties"]


def test_a_function_becomes_a_tool_with_name_words_and_schema():
    @tool
    def search(query: str, limit: int = 5) -> list[str]:
        """Search the corpus.

        Args:
            query: words to look for.
            limit: most hits
                to return.
        """
        return [query] * limit

    assert isinstance(search, Tool)
    assert (search.name, search.description, search.risk) == (
        "search",
        "Search the corpus.",
        "unspecified",
    )
    assert search.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "words to look for."},
            "limit": {"type": "integer", "default": 5, "description": "most hits to return."},
        },
        "required": ["query"],
        "additionalProperties": False,
    }
    assert search("x", limit=2) == ["x", "x"]


def test_the_three_spellings_give_the_same_tool():
    def look(x: int) -> int:
        return x

    made = [tool(look), tool()(look), tool(look, risk="unspecified")]
    assert len({each.fingerprint for each in made}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "Find it.\n\nArgs:\n    query: the words\n    *rest: the others\n",
        "Find it.\n\nParameters\n----------\nquery\n    the words\n*rest\n    the others\n",
        "Find it.\n\n:param query: the words\n:param rest: the others\n",
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_docstrings_of_three_styles_describe_the_arguments(words: str):
    def find(query: str, *rest: str) -> None: ...

    find.__doc__ = words
    made = tool(find)
    assert made.description == "Find it."
    assert properties(made)["query"]["description"] == "the words"
    assert properties(made)["rest"]["description"] == "the others"


def test_without_a_docstring_the_name_is_the_description():
    def get_weather_report() -> str:
        return "rain"

    assert tool(get_weather_report).description == "Get weather report."
    assert tool(get_weather_report, description="Rain?").description == "Rain?"


def test_settings_go_to_the_tool():
    made = tool(lookup, name="find-it", risk="readonly", domain="web", tags=["a"], timeout_s=3)
    assert made.ref == "cap://tool/web/find-it@1"
    assert (made.tags, made.timeout_s) == (("a",), 3)
    assert made.runs_beside({})


def lookup(x: int) -> int:
    return x


def test_needs_approval_makes_an_unspecified_risk_mutating():
    assert tool(lookup, needs_approval=True).risk == "mutating"
    assert tool(lookup, needs_approval=True, risk="dangerous").risk == "dangerous"
    assert tool(lookup, needs_approval=False).risk == "unspecified"
    with pytest.raises(ToolDefinitionError, match="contradicts"):
        tool(lookup, needs_approval=True, risk="readonly")


def test_optional_and_the_bar_give_the_same_schema():
    """F-C9."""

    def one(x: Optional[str] = None) -> None: ...  # noqa: UP045 - this spelling is tested
    def two(x: str | None = None) -> None: ...
    def three(x: "str | None" = None) -> None: ...  # noqa: UP037 - this spelling is tested

    schemas = [tool(each).parameters for each in (one, two, three)]
    assert schemas[0] == schemas[1] == schemas[2]
    assert "required" not in schemas[0]


def test_star_arguments_are_an_optional_array():
    """F-C7."""

    def f(x: int, *rest: int) -> int:
        return x + sum(rest)

    made = tool(f)
    assert properties(made)["rest"] == {"type": "array", "items": {"type": "integer"}}
    assert made.parameters["required"] == ["x"]


def test_keyword_arguments_without_names_are_refused_with_the_way_out():
    """F-C7."""
    with pytest.raises(ToolDefinitionError, match=r"`\*\*kw`.*dict\[str, Any\].*nb\.Tool"):

        @tool
        def f(x: int, **kw: int) -> None: ...


def test_only_fields_without_default_are_required_also_inside():
    """F-C8."""

    @tool
    def f(point: Point, box: Box, points: list[Point]) -> None: ...

    assert f.parameters["$defs"]["Point"]["required"] == ["x"]
    assert properties(f)["box"]["required"] == ["corner"]
    assert "title" not in orjson.dumps(f.parameters).decode()


def test_a_definition_used_once_stands_in_its_place():
    @tool
    def f(colour: Colour, point: Point | None = None) -> None: ...

    assert "$defs" not in f.parameters
    assert properties(f)["colour"] == {"type": "string", "enum": ["red", "blue"]}


class Node(BaseModel):
    children: list[Node] = []


def test_a_recursive_definition_stays_a_definition():
    @tool
    def f(node: Node) -> None: ...

    assert properties(f)["node"] == {"$ref": "#/$defs/Node"}
    assert "Node" in f.parameters["$defs"]


def test_defaults_of_any_kind_leave_the_schema_valid_json():
    """F-C12."""

    def f(
        *,
        a: set[str] = {"y", "x"},  # noqa: B006
        b: Colour = Colour.RED,
        c: datetime.datetime = datetime.datetime(2024, 1, 2),  # noqa: DTZ001
        d: float = math.nan,
        e: bytes = b"hi",
        g: bytes = b"\xff",
        h: Any = print,
        i: list[float] = [math.inf],  # noqa: B006
    ) -> None: ...

    made = tool(f)
    assert orjson.loads(orjson.dumps(made.parameters)) == made.parameters
    shown = {name: each.get("default", "none") for name, each in properties(made).items()}
    assert shown == {
        "a": ["x", "y"],
        "b": "red",
        "c": "2024-01-02T00:00:00",
        "d": "none",
        "e": "hi",
        "g": "none",
        "h": "none",
        "i": "none",
    }
    assert "required" not in made.parameters


def test_a_null_default_stands_in_the_schema_only_where_null_may_be_sent():
    @tool
    def f(a: int = None, b: int | None = None) -> None: ...  # pyright: ignore[reportArgumentType] # noqa: RUF013

    assert properties(f)["a"] == {"type": "integer"}
    assert properties(f)["b"]["default"] is None


def test_a_tool_can_be_copied_under_another_name():
    made = tool(lookup)
    other = dataclasses.replace(made, name="other")
    assert (other.name, other.parameters) == ("other", made.parameters)
    assert complete(other) is other


def test_an_infinite_bound_is_no_bound():
    @tool
    def f(x: Annotated[float, Field(ge=0, le=math.inf)]) -> None: ...

    assert properties(f)["x"] == {"type": "number", "minimum": 0}


def test_annotated_literals_and_typed_dicts_are_described():
    @tool
    def f(
        n: Annotated[int, Field(ge=0, description="how many")],
        way: Literal["up", "down"],
        size: Size,
        note: Annotated[str, "free words"] = "",
    ) -> None: ...

    found = properties(f)
    found["size"].pop("additionalProperties", None)  # not from every version of pydantic
    assert found == {
        "n": {"type": "integer", "minimum": 0, "description": "how many"},
        "way": {"type": "string", "enum": ["up", "down"]},
        "size": {
            "type": "object",
            "properties": {"wide": {"type": "integer"}, "high": {"type": "integer"}},
            "required": ["wide"],
        },
        "note": {"type": "string", "default": "", "description": "free words"},
    }


def test_a_missing_hint_names_tool_argument_and_what_to_write():
    with pytest.raises(ToolDefinitionError, match=r"tool `f`: argument `x`.*`x: str`"):
        define("@tool\ndef f(x, limit=5): ...")
    with pytest.raises(ToolDefinitionError, match=r"`limit: int = 5`"):
        define("@tool\ndef f(limit=5): ...")


def test_an_unknown_name_in_a_hint_is_told_at_once():
    with pytest.raises(ToolDefinitionError, match=r"`Unknown` of argument `x`.*define or import"):
        define("@tool\ndef f(x: 'Unknown') -> None: ...")


def test_hints_may_name_what_is_local_to_the_defining_function():
    class Local(BaseModel):
        n: int

    @tool
    def f(x: Local, more: list[Local]) -> None: ...

    assert f.parameters["$defs"]["Local"]["required"] == ["n"]


def test_the_return_hint_is_not_evaluated():
    assert "x" in properties(define("@tool\ndef f(x: int) -> 'Unknown': ..."))


def test_a_type_that_no_model_can_write_is_refused_when_the_schema_is_made():
    @tool
    def f(x: int, db: sqlite3.Connection) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"`Connection`, the type of argument `db`"):
        complete(f)


def test_a_callback_is_refused_too():
    @tool
    def f(x: typing.Callable[[int], int]) -> None: ...

    with pytest.raises(ToolDefinitionError, match="argument `x`"):
        complete(f)


def test_the_context_comes_first_and_is_not_in_the_schema():
    @tool
    def f(ctx: ToolContext, x: int) -> None: ...

    # Imported for type checking only, so the name isn't known.
    for each in (f, define("@tool\ndef f(ctx: 'nb.ToolContext', x: int) -> None: ...")):
        assert each.takes_context
        assert list(properties(each)) == ["x"]

    with pytest.raises(ToolDefinitionError, match="must be the first"):

        @tool
        def h(x: int, ctx: ToolContext) -> None: ...


class Shop:
    def price(self, item: str) -> int:
        """Tell a price."""
        return len(item)

    @staticmethod
    def total(items: list[str]) -> int:
        return len(items)

    @classmethod
    def kinds(cls, group: str) -> list[str]:
        return [group]

    def __call__(self, x: int) -> int:
        """Sell."""
        return x


def test_methods_callables_and_partials_are_tools():
    shop = Shop()
    assert tool(shop.price).description == "Tell a price."
    assert list(properties(tool(Shop.total))) == ["items"]
    assert list(properties(tool(staticmethod(Shop.total)))) == ["items"]
    assert list(properties(tool(Shop.kinds))) == ["group"]
    assert (tool(shop).name, tool(shop).description) == ("Shop", "Sell.")


def test_what_a_partial_fixes_is_not_for_the_model():
    def read(root: Any, path: str, limit: int = 3) -> str:
        """Read a file."""
        return path * limit

    made = tool(functools.partial(read, root=None))
    assert (made.name, made.description) == ("read", "Read a file.")
    assert list(properties(made)) == ["path", "limit"]
    other = tool(functools.partial(read, root="/etc"))
    assert made.fingerprint != other.fingerprint


def test_a_method_of_a_class_says_how_to_make_it_a_tool():
    with pytest.raises(ToolDefinitionError, match=r"nb\.tool\(thing\.price\)"):
        tool(Shop.price)


@pytest.mark.parametrize("wrong", [Shop, 3, eval("lambda x: x"), tool(lookup)])
def test_what_is_no_function_is_refused(wrong: Any):
    with pytest.raises(ToolDefinitionError):
        tool(wrong)


def test_an_async_function_is_known_as_such():
    @tool
    async def f(x: int) -> int:
        return x

    assert f.is_async
    assert not tool(lookup).is_async


def test_a_wrapped_function_is_read_through():
    def twice(f: typing.Callable[..., Any]) -> typing.Callable[..., Any]:
        @functools.wraps(f)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return f(*args, **kwargs) * 2

        return inner

    made = tool(twice(lookup))
    assert list(properties(made)) == ["x"]
    assert made(2) == 4


def test_argument_names_may_be_those_of_a_model_class():
    @tool
    def f(schema: str, copy: int, model_config: str, _private: int = 1, json: str = "") -> None: ...

    assert list(properties(f)) == ["schema", "copy", "model_config", "_private", "json"]


def define(text: str) -> Tool:
    space: dict[str, Any] = {"tool": tool}
    exec(text, space)
    return space["f"]


def test_the_fingerprint_follows_the_source_text():
    one = "@tool\ndef f(x: int) -> int:\n    return x + 1\n"
    assert define(one).fingerprint == define(one).fingerprint
    assert define(one).fingerprint != define(one.replace("+ 1", "+ 2")).fingerprint
    assert define(one).fingerprint != define(one.replace("return x", "return -x")).fingerprint


def test_source_text_is_taken_where_there_is_one():
    assert "return x" in tool(lookup).source


def test_defining_a_tool_loads_no_heavy_library():
    code = (
        "import sys\nfrom nbagent.tools import tool\n"
        "@tool\ndef f(x: int, y: 'list[str] | None' = None) -> str:\n    'Do.'\n    return 'x'\n"
        "heavy = {'pydantic', 'docstring_parser', 'jsonschema', 'json_repair', 'numpy', 'pandas'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "assert f.parameters['properties']['x'] == {'type': 'integer'}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

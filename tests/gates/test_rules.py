"""Rules: how they are read, what they match, what they say about slips."""

from __future__ import annotations

from typing import Any

import pytest

import nbagent as nb
from nbagent.gates.rules import parse_rules, unknown_rules


def call_it(**arguments: Any) -> str:
    return "done"


def made(name: str, domain: str = "local", **properties: Any) -> nb.Tool:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return nb.Tool(name, "Does something.", schema, call_it, domain=domain)


def one(text: str) -> nb.Rule:
    return parse_rules([text])[0]


READ = {
    "allow search": ("allow", "search", ()),
    "  deny   files/* ": ("deny", "files/*", ()),
    "ask\tsearch": ("ask", "search", ()),
    "deny *": ("deny", "*", ()),
    "allow cap://tool/local/search@1": ("allow", "cap://tool/local/search@1", ()),
    "allow cap://tool/local/sea*@1": ("allow", "cap://tool/local/sea*@1", ()),
    "deny shell(cmd=rm *)": ("deny", "shell", (("cmd", "rm *"),)),
    "deny shell (cmd=rm *)": ("deny", "shell", (("cmd", "rm *"),)),
    "deny f(a=1, b = two words ,c=*)": (
        "deny",
        "f",
        (("a", "1"), ("b", "two words"), ("c", "*")),
    ),
    'deny f(a="x, y", b="(z)")': ("deny", "f", (("a", "x, y"), ("b", "(z)"))),
    'deny f(a=" edges ")': ("deny", "f", (("a", " edges "),)),
    'deny f(a="say ""no""")': ("deny", "f", (("a", 'say "no"'),)),
    'deny f(a="""")': ("deny", "f", (("a", '"'),)),
    'deny f(a="")': ("deny", "f", (("a", ""),)),
    "deny f(a=)": ("deny", "f", (("a", ""),)),
    "deny f(a=x=y)": ("deny", "f", (("a", "x=y"),)),
    'deny f(a="rm *, x*")': ("deny", "f", (("a", "rm *, x*"),)),
    r"deny f(a=C:\temp\*)": ("deny", "f", (("a", r"C:\temp\*"),)),
    "deny f(max-results=5)": ("deny", "f", (("max-results", "5"),)),
}


@pytest.mark.parametrize("text", READ)
def test_a_rule_is_read_as_written(text: str):
    got = one(text)
    assert (got.action, got.ref, got.arguments) == READ[text]


@pytest.mark.parametrize("text", READ)
def test_a_rule_that_is_shown_can_be_read_again(text: str):
    got = one(text)
    assert one(str(got)) == got


BAD: list[Any] = [
    "",
    "  ",
    "allow",
    "permit search",
    "Allow search",
    "search",
    "allow two words",
    "allow sea*ch",
    "allow *search",
    "allow a/b/c",
    "allow /b",
    "allow a/",
    "allow cap://tool/search",
    "allow cap://*/local/search",
    "allow cap://model/local/search",
    "allow cap://tool/local/",
    "allow cap://tool/local/a/b",
    "deny f(",
    "deny f()",
    "deny f( )",
    "deny f(a)",
    "deny f(rm *)",
    "deny f(a=1",
    "deny f(a=1) and more",
    "deny f(a=1, a=2)",
    "deny f(a b=1)",
    'deny f(a="x)',
    'deny f(a="x" y)',
    'deny f(a=x"y)',
    "deny f(a=x(y))",
    "deny f(=1)",
    "deny (a=1)",
    7,
    None,
    b"allow search",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_rule_names_its_index_and_itself(bad: Any):
    with pytest.raises(nb.errors.RuleError, match=r"^rule 1 \(") as caught:
        nb.Approval(rules=["allow search", bad])
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("bad", ["allow search", 5, None, nb.rule("allow", "search")])
def test_what_is_no_list_of_rules_is_refused(bad: Any):
    with pytest.raises(nb.errors.RuleError, match="is a list of rules"):
        nb.Approval(rules=bad)


def test_rules_made_by_hand_are_checked_too():
    forbid: Any = "forbid"
    for make in (lambda: nb.Rule(forbid, "shell"), lambda: nb.rule("forbid", "shell")):
        with pytest.raises(nb.errors.RuleError, match="begins with one of"):
            make()
    pairs: Any = (("a", 5),)
    with pytest.raises(nb.errors.RuleError, match="pairs of texts"):
        nb.Rule("deny", "shell", pairs)


def test_a_rule_made_by_a_call_may_name_any_argument():
    got = nb.rule("deny", "f", action="x", ref="y", n=5, flag=True, nothing=None, big=10**30)
    assert dict(got.arguments) == {
        "action": "x",
        "ref": "y",
        "n": "5",
        "flag": "true",
        "nothing": "null",
        "big": "1" + "0" * 30,
    }


NAMES = [
    ("search", True),
    ("sea*", True),
    ("*", True),
    ("Search", False),
    ("searc", False),
    ("search*", True),
    ("web/search", True),
    ("web/*", True),
    ("*/search", True),
    ("w*/s*", True),
    ("local/search", False),
    ("cap://tool/web/search", True),
    ("cap://tool/web/search@1", True),
    ("cap://tool/web/search@*", True),
    ("cap://tool/web/search@2", False),
    ("cap://tool/web/sea*@1", True),
    ("cap://tool/*/*", True),
    ("cap://skill/web/search", False),
    ("cap://agent/*/*", False),
    ("ѕearch", False),  # the first letter is Cyrillic
    ("search\u200b", False),
]


@pytest.mark.parametrize(("ref", "expected"), NAMES)
def test_a_ref_names_a_tool_exactly_or_by_its_beginning(ref: str, expected: bool):
    assert nb.rule("allow", ref).names(made("search", "web")) is expected


FITS: list[tuple[str, Any, bool]] = [
    ("rm *", "rm -rf /", True),
    ("rm *", "rm", False),
    ("rm*", "rm", True),
    ("*", "", True),
    ("*", None, True),
    ("rm", "rm ", False),
    ("", "", True),
    ("", "x", False),
    ("a*b", "a*b", True),
    ("a*b", "axb", False),
    ("5", 5, True),
    ("5", "5", True),
    ("5", 5.0, True),
    ("5.0", 5, True),
    ("5.00", 5.0, True),
    ("1e3", 1000, True),
    ("1000", 1e3, True),
    ("10000000000000000", 1e16, True),
    ("1e16", 10**16, True),
    ("0.1", 0.1, True),
    ("0.10", 0.1, True),
    ("0", -0.0, True),
    ("5", 50, False),
    ("5*", 50, True),
    ("1", True, False),
    ("true", True, True),
    ("True", True, False),
    ("null", None, True),
    ("", None, False),
    ("nan", "nan", True),
    ('{"a":1,"b":[2]}', {"b": [2], "a": 1}, True),
    ('{"a":1*', {"b": [2], "a": 1}, True),
    ("[]", [], True),
    (str(10**40), 10**40, True),
    (str(10**40), [10**40], False),
    ("café", "café", True),
    ("café", "cafe\u0301", False),
    ("/etc/*", "/etс/passwd", False),  # a Cyrillic letter is another path
]


@pytest.mark.parametrize(("pattern", "value", "expected"), FITS)
def test_a_pattern_matches_values_as_they_are_written(pattern: str, value: Any, expected: bool):
    rule = nb.Rule("deny", "f", (("x", pattern),))
    assert rule.fits({"x": value}) is expected


def test_all_arguments_must_match_and_a_missing_one_does_not():
    rule = nb.rule("deny", "f", a="*", b="x")
    assert rule.fits({"a": 1, "b": "x", "c": 3})
    assert not rule.fits({"a": 1, "b": "y"})
    assert not rule.fits({"b": "x"})
    assert not rule.fits({})


def test_rules_that_can_never_match_are_told():
    tools = [made("shell", cmd={"type": "string"}), made("read", "files", path={})]
    rules = parse_rules(
        [
            "deny shel",
            "allow shell",
            "deny files/*",
            "deny web/*",
            "deny shell(command=rm *)",
            "deny *(path=/etc/*)",
            "deny shell(cmd=*sudo*)",
            "ask cap://tool/files/read@2",
        ]
    )
    told = unknown_rules(rules, tools)
    assert [line.partition(")")[0] for line in told] == [
        "rule 0 (deny shel",
        "rule 3 (deny web/*",
        "rule 4 (deny shell(command=rm *",
        "rule 6 (deny shell(cmd=*sudo*",
        "rule 7 (ask cap://tool/files/read@2",
    ]
    assert "tools: read, shell" in told[0]
    assert "`command`, which `shell` has not" in told[2]
    assert "stands for itself" in told[3]


def test_a_tool_that_takes_any_argument_may_be_ruled_by_any():
    open_tool = nb.Tool("call", "Calls.", {"type": "object"}, call_it)
    assert unknown_rules(parse_rules(["deny call(anything=x)"]), [open_tool]) == []


def test_rules_see_validated_arguments_with_their_defaults():
    seen: list[str] = []

    @nb.tool(risk="readonly")
    def search(query: str, limit: int = 5, within: str | None = None) -> str:
        """Search."""
        seen.append(query)
        return query

    calls = [
        nb.call("search", query="default"),
        nb.call("search", query="text", limit="5"),
        nb.call("search", query="float", limit=5.0),
        nb.call("search", query="other", limit=6, within="here"),
        nb.call("search", query="null", limit=6, within=None),
        nb.call("search", query="left out", limit=6),
    ]
    agent = nb.Agent(
        nb.models.Scripted([calls, "done"]),
        tools=[search],
        approval=nb.Approval(rules=["deny search(limit=5)", "deny search(within=null)"]),
    )
    result = agent.run_sync("go")
    assert list(result.tool_calls["status"]) == [*["denied"] * 3, "ok", *["denied"] * 2]
    assert seen == ["other"]


def test_an_approval_checks_its_settings():
    bad: list[dict[str, Any]] = [
        {"mode": "yolo"},
        {"remember": "for ever"},
        {"when_unattended": "shrug"},
        {"handler": "allow"},
        *[{"timeout_s": value} for value in (0, -1, float("nan"), float("inf"), 1e300, True, "9")],
    ]
    for settings in bad:
        with pytest.raises(nb.errors.ConfigError, match=f"Approval: {next(iter(settings))}"):
            nb.Approval(**settings)

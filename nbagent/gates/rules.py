"""Permission rules: `action ref[(arg=pattern, …)]`, such as `deny shell(cmd=rm *)`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from nbagent.errors import RuleError
from nbagent.interfaces.tool import Tool
from nbagent.keywords import record

__all__ = ["Rule", "parse_rules", "rule", "unknown_rules"]

ACTIONS = ("allow", "ask", "deny")
KINDS = ("tool", "skill", "agent")
FORM = "after the action comes a tool's name, domain/name or cap://kind/domain/name[@version]"


@record(keywords=True)
@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; any deny that matches wins, otherwise the first allow or ask that matches holds.

    Usually written as text, `"deny shell(cmd=rm *)"`, or made by `nb.rule`.

    Parameters
    ----------
    action
        allow, ask or deny.
    ref
        A tool's name, `domain/name`, or a whole `cap://kind/domain/name@version`; `*` at the end.
    arguments
        (argument, pattern): exact, `prefix*` or `*`; all must match, a missing argument does not.

    Raises
    ------
    RuleError
        If the action or the ref can't be read.
    """

    action: Literal["allow", "ask", "deny"]
    ref: str
    arguments: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            msg = f"it begins with one of {', '.join(ACTIONS)}, not {self.action!r}"
            raise RuleError(msg)
        if not isinstance(self.ref, str) or not self.ref or any(c.isspace() for c in self.ref):
            raise RuleError(FORM)
        if any(not isinstance(part, str) for pair in self.arguments for part in pair):
            msg = f"arguments are pairs of texts, (name, pattern), not {self.arguments!r}"
            raise RuleError(msg)
        kind, domain, name, version = self._parts()
        if kind not in KINDS and self.ref.startswith("cap://"):
            msg = f"a whole ref is cap://kind/domain/name[@version], kind = {', '.join(KINDS)}"
            raise RuleError(msg)
        if not domain or not name or "/" in name:
            raise RuleError(FORM)
        if any("*" in part[:-1] for part in (domain, name, version)):
            msg = "`*` stands only at the end of a name"
            raise RuleError(msg)

    def names(self, tool: Tool) -> bool:
        """Whether the rule speaks of this tool."""
        kind, domain, name, version = self._parts()
        if kind not in ("*", tool.ref[6:].partition("/")[0]):
            return False
        at = tool.ref.rpartition("@")[2]
        return _fits(domain, tool.domain) and _fits(name, tool.name) and _fits(version, at)

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments match."""
        return all(
            name in arguments and _matches(pattern, arguments[name])
            for name, pattern in self.arguments
        )

    def _parts(self) -> tuple[str, str, str, str]:
        """(kind, domain, name, version), `*` for what the ref leaves open."""
        if self.ref.startswith("cap://"):
            ref, _, version = self.ref[6:].partition("@")
            kind, _, rest = ref.partition("/")
            domain, _, name = rest.partition("/")
            return kind, domain, name, version or "*"
        domain, slash, name = self.ref.partition("/")
        return ("*", domain, name, "*") if slash else ("*", "*", domain, "*")

    def __str__(self) -> str:
        if not self.arguments:
            return f"{self.action} {self.ref}"
        inside = ", ".join(f"{name}={_quoted(pattern)}" for name, pattern in self.arguments)
        return f"{self.action} {self.ref}({inside})"


def rule(action: str, ref: str, /, **arguments: Any) -> Rule:
    """A rule without spelling it as text: action, tool, and a pattern for each argument that counts.

    Raises
    ------
    RuleError
        If the action or the ref can't be read.

    Examples
    --------
    >>> str(rule("ask", "publish", path="/etc/*"))
    'ask publish(path=/etc/*)'
    """
    pairs = tuple((name, _text(value)) for name, value in arguments.items())
    return Rule(action, ref, pairs)  # pyright: ignore[reportArgumentType] - the rule checks it


def parse_rules(rules: Sequence[str | Rule]) -> tuple[Rule, ...]:
    """Rules from text.

    Raises
    ------
    RuleError
        Naming the index of the rule that can't be read, and what is wrong with it.

    Examples
    --------
    >>> [str(r) for r in parse_rules(["deny shell(cmd=rm *)", "allow search"])]
    ['deny shell(cmd=rm *)', 'allow search']
    """
    if isinstance(rules, str | Rule) or not isinstance(rules, Iterable):
        msg = f"rules is a list of rules: write rules=[{rules!r}]"
        raise RuleError(msg)
    out: list[Rule] = []
    for index, given in enumerate(rules):
        try:
            out.append(given if isinstance(given, Rule) else _parse(given))
        except RuleError as error:
            msg = f"rule {index} ({given!r}): {error}"
            raise RuleError(msg) from None
    return tuple(out)


def unknown_rules(rules: Sequence[Rule], tools: Sequence[Tool]) -> list[str]:
    """What of the rules can never match these tools, one sentence each: a slip, most likely.

    Examples
    --------
    >>> unknown_rules(parse_rules(["deny shel"]), [])
    ['rule 0 (deny shel) names no tool of this agent (tools: none)']
    """
    have = ", ".join(sorted(tool.name for tool in tools)) or "none"
    out: list[str] = []
    for index, rule_ in enumerate(rules):
        here = f"rule {index} ({rule_})"
        named = [tool for tool in tools if rule_.names(tool)]
        if not named:
            out.append(f"{here} names no tool of this agent (tools: {have})")
        for argument, pattern in rule_.arguments:
            if named and not any(_takes(tool, argument) for tool in named):
                takers = ", ".join(f"`{tool.name}`" for tool in named)
                out.append(f"{here} names the argument `{argument}`, which {takers} has not")
            if "*" in pattern[:-1]:
                out.append(
                    f"{here} has a `*` that isn't at the end of its pattern: it stands for itself"
                )
    return out


def _takes(tool: Tool, argument: str) -> bool:
    closed = tool.parameters.get("additionalProperties") is False
    return not closed or argument in tool.parameters.get("properties", {})


def _parse(text: str) -> Rule:
    if not isinstance(text, str):
        msg = f"a rule is text or made by nb.rule(…), not {type(text).__name__}"
        raise RuleError(msg)
    action, *others = text.split(None, 1)[:2] or [""]
    rest = others[0].strip() if others else ""
    ref, opened, inside = rest.partition("(")
    arguments: list[tuple[str, str]] = []
    if opened:
        if not inside.endswith(")"):
            msg = 'the closing ")" is missing'
            raise RuleError(msg)
        arguments = _arguments(inside[:-1])
    return Rule(action, ref.strip(), tuple(arguments))  # pyright: ignore[reportArgumentType] - see there


def _arguments(text: str) -> list[tuple[str, str]]:
    """`a=x, b="y, z"` as pairs."""
    out: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        name, equals, rest = text[at:].partition("=")
        name = name.strip()
        if not equals or not name or any(c.isspace() or c in ',()"' for c in name):
            msg = f"arguments are written name=pattern, not {text[at:].strip()!r}"
            raise RuleError(msg)
        if name in dict(out):
            msg = f"the argument `{name}` stands there twice"
            raise RuleError(msg)
        start = len(text) - len(rest.lstrip())
        pattern, at = _pattern(text, start)
        out.append((name, pattern))
    if not out:
        msg = "the brackets are empty: leave them out, or write (name=pattern)"
        raise RuleError(msg)
    return out


def _pattern(text: str, start: int) -> tuple[str, int]:
    """The pattern that begins at `start`, and where the next argument begins."""
    if text[start : start + 1] == '"':
        return _in_quotes(text, start)
    end = text.find(",", start)
    end = len(text) if end < 0 else end
    pattern = text[start:end].strip()
    if any(c in pattern for c in '()"'):
        msg = (
            f"write a pattern that holds , ( ) or a quote in double quotes, a quote in it twice: "
            f"{_quoted(pattern)}"
        )
        raise RuleError(msg)
    return pattern, end + 1


def _in_quotes(text: str, start: int) -> tuple[str, int]:
    end = start
    while True:
        end = text.find('"', end + 1)
        if end < 0:
            msg = "a double quote is not closed"
            raise RuleError(msg)
        if text[end + 1 : end + 2] != '"':
            break
        end += 1
    following = text[end + 1 :].lstrip()
    if following and not following.startswith(","):
        msg = f"after a quoted pattern comes a comma, not {following!r}"
        raise RuleError(msg)
    return text[start + 1 : end].replace('""', '"'), len(text) - len(following[1:])


def _fits(pattern: str, value: str) -> bool:
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def _matches(pattern: str, value: Any) -> bool:
    """Whether an argument's value matches; numbers are compared as numbers, `1e3` is `1000`."""
    text = _text(value)
    if _fits(pattern, text):
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    from decimal import Decimal, InvalidOperation

    try:
        return Decimal(pattern) == Decimal(text)
    except InvalidOperation:
        return False


def _text(value: Any) -> str:
    """A value as rules see it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str).decode()
    except TypeError:  # orjson refuses integers beyond 64 bit
        return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _quoted(pattern: str) -> str:
    plain = pattern == pattern.strip() and not any(c in pattern for c in ',()"')
    return pattern if plain and pattern else '"{}"'.format(pattern.replace('"', '""'))

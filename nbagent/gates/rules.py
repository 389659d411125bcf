"""Permission rules: `action ref[(arg=pattern, …)]`, such as `deny shell(cmd=rm *)`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from nbagent.errors import RuleError
from nbagent.interfaces.tool import Tool

__all__ = ["Rule", "parse_rules", "rule"]

ACTIONS = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; the first allow or ask that matches holds, any deny that matches wins."""

    action: Literal["allow", "ask", "deny"]
    ref: str
    """A tool's name, `domain/name`, or a whole `cap://kind/domain/name@version`; `*` at the end."""
    arguments: tuple[tuple[str, str], ...] = ()
    """(argument, pattern): exact, `prefix*` or `*`; all must match, a missing argument does not."""

    def names(self, tool: Tool) -> bool:
        """Whether the rule speaks of this tool."""
        if self.ref.startswith("cap://"):
            wanted, _, version = self.ref[6:].partition("@")
            have, _, at = tool.ref[6:].partition("@")
            if version not in ("", "*", at):
                return False
            pairs = list(zip(wanted.split("/"), have.split("/"), strict=False))
            kind = pairs[0][0] == pairs[0][1]
            return kind and len(pairs) == 3 and all(_fits(p, v) for p, v in pairs[1:])
        if "/" in self.ref:
            domain, _, name = self.ref.partition("/")
            return _fits(domain, tool.domain) and _fits(name, tool.name)
        return _fits(self.ref, tool.name)

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Whether the arguments match."""
        return all(
            name in arguments and _fits(pattern, _text(arguments[name]))
            for name, pattern in self.arguments
        )

    def __str__(self) -> str:
        if not self.arguments:
            return f"{self.action} {self.ref}"
        inside = ", ".join(f"{name}={_quoted(pattern)}" for name, pattern in self.arguments)
        return f"{self.action} {self.ref}({inside})"


def rule(action: str, ref: str, **arguments: Any) -> Rule:
    """A rule without spelling it as text.

    Raises
    ------
    RuleError
        If the action or the ref can't be read.

    Examples
    --------
    >>> str(rule("ask", "publish", path="/etc/*"))
    'ask publish(path=/etc/*)'
    """
    return _checked(action, ref, tuple((name, _text(value)) for name, value in arguments.items()))


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
    if isinstance(rules, str):
        msg = f"rules is a list of rules, not one text: write rules=[{rules!r}]"
        raise RuleError(msg)
    out: list[Rule] = []
    for index, given in enumerate(rules):
        if isinstance(given, Rule):
            out.append(given)
            continue
        try:
            out.append(_parse(given))
        except RuleError as error:
            msg = f"rule {index} ({given!r}): {error}"
            raise RuleError(msg) from None
    return tuple(out)


def _parse(text: str) -> Rule:
    if not isinstance(text, str):
        msg = f"a rule is text or made by nb.rule(…), not {type(text).__name__}"
        raise RuleError(msg)
    action, _, rest = text.strip().partition(" ")
    rest = rest.strip()
    ref, opened, inside = rest.partition("(")
    arguments: list[tuple[str, str]] = []
    if opened:
        if not inside.endswith(")"):
            msg = 'the closing ")" is missing'
            raise RuleError(msg)
        arguments = _arguments(inside[:-1])
    return _checked(action, ref.strip(), tuple(arguments))


def _checked(action: str, ref: str, arguments: tuple[tuple[str, str], ...]) -> Rule:
    if action not in ACTIONS:
        msg = f"it begins with one of {', '.join(ACTIONS)}, not {action!r}"
        raise RuleError(msg)
    if not ref or any(c.isspace() for c in ref):
        msg = "after the action comes a tool's name, domain/name or cap://kind/domain/name"
        raise RuleError(msg)
    if ref.startswith("cap://"):
        kind, *others = ref[6:].split("/")
        if kind not in ("tool", "skill", "agent") or len(others) != 2:
            msg = "a whole ref is cap://kind/domain/name[@version], kind = tool, skill or agent"
            raise RuleError(msg)
    names = [ref, *(pattern for _, pattern in arguments)]
    if any("*" in part[:-1] for part in "/".join(names[:1]).split("/")):
        msg = "`*` stands only at the end of a name"
        raise RuleError(msg)
    return Rule(action, ref, arguments)  # pyright: ignore[reportArgumentType] - checked above


def _arguments(text: str) -> list[tuple[str, str]]:
    """`a=x, b="y, z"` as pairs."""
    out: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        name, equals, rest = text[at:].partition("=")
        name = name.strip()
        if not equals or not name.isidentifier():
            msg = f"arguments are written name=pattern, not {text[at:].strip()!r}"
            raise RuleError(msg)
        start = at + len(text[at:]) - len(rest)
        pattern, at = _pattern(text, start)
        out.append((name, pattern))
    if not out:
        msg = "the brackets are empty: leave them out, or write (name=pattern)"
        raise RuleError(msg)
    return out


def _pattern(text: str, start: int) -> tuple[str, int]:
    """The pattern that begins at `start`, and where the next argument begins."""
    while start < len(text) and text[start] == " ":
        start += 1
    if start < len(text) and text[start] == '"':
        end = text.find('"', start + 1)
        if end < 0:
            msg = "a double quote is not closed"
            raise RuleError(msg)
        following = text[end + 1 :].lstrip()
        if following and not following.startswith(","):
            msg = f"after a quoted pattern comes a comma, not {following!r}"
            raise RuleError(msg)
        at = len(text) - len(following) + 1 if following else len(text)
        return text[start + 1 : end], at
    end = text.find(",", start)
    end = len(text) if end < 0 else end
    pattern = text[start:end].strip()
    if any(c in pattern for c in '()"'):
        msg = f"write a pattern that holds , ( ) or a quote in double quotes: {pattern!r}"
        raise RuleError(msg)
    return pattern, end + 1


def _fits(pattern: str, value: str) -> bool:
    if pattern.endswith("*"):
        return value.startswith(pattern[:-1])
    return value == pattern


def _text(value: Any) -> str:
    """A value as rules see it: text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS, default=str).decode()


def _quoted(pattern: str) -> str:
    plain = pattern == pattern.strip() and not any(c in pattern for c in ',()"')
    return pattern if plain and pattern else f'"{pattern}"'

#!/usr/bin/env python3
"""Print the one command of README.md's fenced shell blocks that holds the given words.

So that what is checked and what people are told to type cannot drift apart.
"""

import re
import sys
from pathlib import Path

FENCE = re.compile(
    r"^```(?:bash|sh|shell|console)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL
)


def commands(text: str) -> list[str]:
    """The fenced shell blocks of a Markdown text, in order."""
    return [block.strip() for block in FENCE.findall(text)]


def main() -> int:
    """Print the command; exit with an error if there is not exactly one."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    words = " ".join(sys.argv[1:]) or "-m pytest"
    found = [command for command in commands(readme.read_text("utf-8")) if words in command]
    if len(found) != 1:
        print(
            f"{readme.name} has {len(found)} shell blocks with `{words}`, 1 expected",
            file=sys.stderr,
        )
        return 1
    print(found[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Executed notebooks, by the tags of their cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


class Executed:
    """What the cells of an executed notebook show."""

    def __init__(self, notebook: dict[str, Any]) -> None:
        self._cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]

    @classmethod
    def read(cls, path: Path) -> Executed:
        return cls(json.loads(path.read_text("utf-8")))

    def text(self, tag: str) -> str:
        """The output of the one cell with this tag, as text."""
        (cell,) = (cell for cell in self._cells if tag in cell["metadata"].get("tags", ()))
        return "".join(_text(output) for output in cell["outputs"]).strip()


def _text(output: dict[str, Any]) -> str:
    shown = output.get("text") or output.get("data", {}).get("text/plain", "")
    return shown if isinstance(shown, str) else "".join(shown)

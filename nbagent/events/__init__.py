"""Events: everything that happens is one, an immutable line of bytes with a typed, frozen view.

The life of a one-tool run::

    agent/inbox/spliced          the prompt enters the inbox
    turn/start
      agent/inbox/spliced        … and is claimed
      step/start
        user/message                                     ■ surface: what the model sees
        request/header  request/context                  only when they changed
        request/sent → barrier → assistant/chunk…  attempt/end
          rejected: assistant/draft  review/verdict  attempt/discarded → request/sent …
        assistant/message                                ■
        tool/call  (approval/asked  approval/answered)  tool/decision → barrier → body
        tool/result                                      ■
      step/end
      step/start … step/end      until an answer asks for no tool
    turn/end

Keys: turns and runs count from 1 in a session, steps restart with each turn, attempts with each
step; a call is (turn, step, position), position from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from nbagent.events import approval, model, note, session, tool, turn
from nbagent.events.spec import REQUIRED, Field, Spec, view_of

__all__ = ["SPECS", "SURFACE", "Event", "Field", "Spec"]

SPECS: dict[str, Spec] = {
    **session.SPECS,
    **turn.SPECS,
    **model.SPECS,
    **tool.SPECS,
    **approval.SPECS,
    **note.SPECS,
}
"""All event types by name."""

SURFACE = frozenset(name for name, spec in SPECS.items() if spec.surface)
"""Types that enter what the model sees."""


def _default(field: Field) -> Any:
    if field.default is REQUIRED:
        return None
    # A list or dict of its own for each view: nobody's change shows in another.
    return type(field.default)() if field.default in ([], {}) else field.default


Where = Callable[[int], tuple[int, int, int]]


class Event:
    """One event of a log: `seq`, `ts`, `type`, `data`.

    `data` is a frozen view with one attribute per field (`nbagent.events.SPECS` lists them), made
    when it is asked for; keep `seq` rather than the event.
    """

    __slots__ = ("_record", "_where", "line")

    def __init__(self, line: bytes, where: Where) -> None:
        self.line = line
        """The canonical line, JSON."""
        self._where = where
        self._record: dict[str, Any] | None = None

    @property
    def record(self) -> dict[str, Any]:
        """The line as plain JSON; do not change it."""
        if self._record is None:
            self._record = orjson.loads(self.line)
        return self._record  # pyright: ignore[reportReturnType]

    @property
    def seq(self) -> int:
        """Place in the log, from 0, without gaps."""
        return self.record["seq"]

    @property
    def ts(self) -> int:
        """UTC milliseconds since 1970, for people: may jump back with the clock."""
        return self.record["ts"]

    @property
    def type(self) -> str:
        """The event type, a key of `SPECS`."""
        return self.record["type"]

    @property
    def data(self) -> Any:
        """The typed, frozen view; a plain dict for unknown (ignorable) types."""
        record = self.record
        spec = SPECS.get(record["type"])
        if spec is None:
            return record["data"]
        given = record["data"]
        view = view_of(record["type"], spec)
        values = {f.name: given[f.name] if f.name in given else _default(f) for f in spec.fields}
        if spec.located:
            for name, number in zip(
                ("turn", "step", "attempt"), self._where(record["seq"]), strict=True
            ):
                if name[0] in spec.located and name not in values:
                    values[name] = number or None
        return view(**values)

    def __repr__(self) -> str:
        text = orjson.dumps(self.record["data"]).decode()
        return f"Event({self.seq}, {self.type}, {text if len(text) < 120 else text[:117] + '…'})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and other.line == self.line

    def __hash__(self) -> int:
        return hash(self.line)

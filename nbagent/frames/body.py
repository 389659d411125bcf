"""What went over the wire for one request, made anew by the model that made it then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from nbagent.interfaces.model import Model, Request

__all__ = ["Body", "Models", "rebuild"]

Models = Mapping[int, Model]
"""The models of the runs that this process has made, by the number of the run."""


class Body(NamedTuple):
    """A body, or why there is none; both if it is not what was sent."""

    value: Any = None
    note: str = ""


def rebuild(model: Model | None, request: Request, digest: str | None) -> Body:
    """The JSON of a request's body; `digest` is the logged one. Keys are in headers, not in it."""
    if model is None:
        return Body(
            note="The model that made it is not in this process: the run was read from a file."
        )
    if model.name != request.header.model:
        return Body(note=f"It was made by {request.header.model}, the run has {model.name} now.")
    try:
        prepared = model.prepare(request)
    except Exception as error:  # noqa: BLE001 - a model may be anybody's, and explaining must not fail
        return Body(note=f"It can't be made again: {type(error).__name__}: {error}")
    if prepared.body is None:
        return Body(note=f"{type(model).__name__} has no wire: it gets the messages themselves.")
    note = ""
    if digest is not None and prepared.digest != digest:
        note = (
            f"This is not byte for byte what was sent: that had the digest {digest}, this has "
            f"{prepared.digest}. The model object was changed since, or a secret is masked in the log."
        )
    try:
        return Body(orjson.loads(prepared.body), note)
    except orjson.JSONDecodeError:
        return Body(prepared.body.decode(errors="replace"), note)

"""The surface: the messages that the model sees, as canonical JSON, with a hash per position."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import orjson

from nbagent.interfaces.model import Nodes

if TYPE_CHECKING:
    from nbagent.folds import Folds

__all__ = ["STEPS", "SurfaceState", "start"]


class SurfaceState:
    """Nodes, the hash of the prefix that ends at each, and the event that each came from."""

    __slots__ = ("generation", "hashes", "nodes", "seqs", "size")

    def __init__(self) -> None:
        self.nodes = Nodes()
        self.hashes: list[bytes] = []
        self.seqs: list[int] = []
        self.generation = 0
        """How often a span was replaced."""
        self.size = 0
        """Bytes of all nodes."""

    @property
    def digest(self) -> str:
        """Hash of the whole surface: `hash_n = blake2b16(hash_{n-1} ‖ node bytes)`, in hex."""
        return self.hashes[-1].hex() if self.hashes else ""

    def append(self, seq: int, message: dict[str, Any]) -> None:
        """Add a message at the end."""
        encoded = orjson.dumps(message)
        node = b"%b" % encoded  # a kept orjson result would hold 4 kB
        before = self.hashes[-1] if self.hashes else b""
        self.hashes.append(hashlib.blake2b(before + node, digest_size=16).digest())
        self.nodes.append(node)
        self.seqs.append(seq)
        self.size += len(node)


def start() -> SurfaceState:
    """An empty surface."""
    return SurfaceState()


def _user(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    message = data.get("message")
    if message is None:
        message = folds.inbox.claimed.pop(data["id"])["message"]
    folds.surface.append(seq, message)


def _assistant(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    message = data["message"]
    if message.get("text") or message.get("parts"):
        folds.surface.append(seq, message)


def _result(folds: Folds, seq: int, data: dict[str, Any]) -> None:
    position: int = data["position"]
    call = folds.calls.calls[position]
    text = data.get("shown")
    if text is None:
        text = data.get("raw")
    if text is None and call.done is not None:
        text = call.done.get("shown", call.done["raw"])
    node = {"role": "tool", "id": call.id, "name": call.name, "text": text}
    folds.surface.append(seq, node)


STEPS = {"user/message": _user, "assistant/message": _assistant, "tool/result": _result}

"""The store seam: where a log's records lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

__all__ = ["Store", "Stored", "Torn"]


class Torn(NamedTuple):
    """An unfinished write at the end of a log, left by a crash."""

    position: int
    """Where it begins, in bytes from the start (records where the store has no bytes)."""
    length: int
    text: str
    """Its first characters, for people."""


class Stored(NamedTuple):
    """What a store holds."""

    header: bytes | None
    """None if nothing was ever written."""
    records: list[bytes]
    torn: Torn | None = None


class Store(Protocol):
    """Keeps one session's records in order.

    Opening and loading write nothing. `acquire` makes this object the only writer.
    """

    @property
    def location(self) -> str:
        """The path or URL, as a person would write it."""
        ...

    def load(self) -> Stored:
        """Read all that is there.

        Raises
        ------
        FormatError
            If it is no log of nbagent.
        SessionError
            If it can't be read.
        """
        ...

    def acquire(self, known: int, *, steal: bool = False) -> Stored:
        """Become the only writer; cut a torn tail; give what was added after the `known` records.

        Called before each run. A store that is the writer already only makes sure that its log is
        still there, and gives nothing (a header of None).

        Raises
        ------
        LockedError
            If another writer holds the log.
        SessionError
            If it can't be opened for writing, or is no longer what was read or written before.
        """
        ...

    def write(self, header: bytes | None, records: Sequence[bytes]) -> None:
        """Append; when it returns, the records survive the end of this process.

        `header` is given with the very first write. Either all records are kept or none.

        Raises
        ------
        SessionError
            If they could not be written; the stored log is then as it was before.
        """
        ...

    def sync(self) -> None:
        """Wait until what was written survives a loss of power."""
        ...

    def holds(self, header: bytes) -> bool:
        """Whether the log with this header is still there; true where it can't be told."""
        ...

    def changed(self) -> bool:
        """Whether somebody else has written since this object read or wrote; false where it can't be told."""
        ...

    def release(self) -> None:
        """Let others write."""
        ...

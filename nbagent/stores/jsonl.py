"""A session as a file of JSON lines: the header first, then one record per event."""

from __future__ import annotations

import contextlib
import os
import re
import weakref
from collections.abc import Sequence
from pathlib import Path

from nbagent.errors import CorruptLogError, FormatError, SessionError
from nbagent.events.disk import REWRITTEN
from nbagent.interfaces.store import Stored, Torn
from nbagent.stores.lock import FileLock

__all__ = ["JsonlStore"]

_KEPT = (
    "The events of this session are kept in memory; make room or give access, then run again on "
    "the same session object"
)
_BATCH = re.compile(rb'\},"b":([0-9]{1,9}),"c":"[0-9a-f]{8}"\}\n')
"""The end of the first line of a batch: how many lines follow that stand or fall with it."""


class JsonlStore:
    """One session in one file.

    The file is created at the first write. A writer holds `NAME.lock` beside it; the operating
    system frees the lock when the process ends, however it ends.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # The lock lies beside the real file, so that all names of a file share one lock, and a
        # later change of the working folder changes nothing.
        self.path = Path(path).expanduser().resolve()
        self._lock = FileLock(self.path)
        self._fd: int | None = None
        self._size = 0
        """Bytes that count; what stands behind them is a failed write."""
        self._clean = True
        """Whether nothing stands behind them."""
        self._begun = False
        """Whether the file is known to hold a log."""
        self._seen: tuple[int, int] | None = None
        """Size and time of change of the file when it was read or written last."""

    @property
    def location(self) -> str:
        """The path."""
        return str(self.path)

    def load(self) -> Stored:
        """Read the file; an unfinished last line or batch is reported, not read."""
        try:
            self._seen = self._state()
            content = self.path.read_bytes()
        except FileNotFoundError:
            return Stored(None, [])
        except OSError as error:
            msg = f"can't read {self.path}: {error.strerror}"
            raise SessionError(msg) from error
        stored, _ = _split(content, self.path)
        self._begun = self._begun or stored.header is not None
        return stored

    def acquire(self, known: int, *, steal: bool = False) -> Stored:
        """Take the lock, read what others added, cut an unfinished last line or batch."""
        if self._lock.held:
            if self._begun and not self._in_place():
                raise SessionError(self._gone("was removed or replaced"))
            return Stored(None, [])
        self._lock.take(steal=steal)
        _WRITERS.add(self)
        try:
            stored = self._open()
        except OSError as error:
            msg = f"can't write to {self.path}: {error.strerror}. Give access, or use another path"
            raise SessionError(msg) from error
        if self._begun and (stored.header is None or len(stored.records) < known):
            raise SessionError(self._gone("was removed, or holds less than was read from it"))
        self._begun = stored.header is not None
        return stored._replace(records=stored.records[known:])

    def _open(self) -> Stored:
        """Open for writing what is there, and cut off what is unfinished."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | _BINARY)
        except FileNotFoundError:
            self._size = 0
            return Stored(None, [])
        with open(self._fd, "rb", closefd=False) as file:
            stored, self._size = _split(file.read(), self.path)
        self._clean = stored.torn is None
        if not self._begun or stored.header is not None:
            self._clear()
        return stored

    def write(self, header: bytes | None, records: Sequence[bytes]) -> None:
        """Append the records in one write; on failure the file is cut back to where it was."""
        if not self._lock.held:
            msg = (
                f"{self.path} is not locked by this process, so nothing was written. After a fork "
                "only the process that began goes on with a session; open it anew in the other"
            )
            raise SessionError(msg)
        lines = [header, *records] if header is not None else records
        block = b"\n".join(lines) + b"\n"
        try:
            if self._fd is None:
                self._fd = self._create()
            self._clear()
            self._clean = False
            written = os.write(self._fd, block)
            while written < len(block):
                written += os.write(self._fd, block[written:])
        except OSError as error:
            self._cut_back()
            msg = f"can't write to {self.path}: {error.strerror}. {_KEPT}"
            raise SessionError(msg) from error
        except BaseException:  # an interrupt
            self._cut_back()
            raise
        self._size, self._clean, self._begun = self._size + len(block), True, True

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        if self._fd is None:
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            msg = f"can't bring {self.path} to the disk: {error.strerror}. {_KEPT}"
            raise SessionError(msg) from error

    def release(self) -> None:
        """Close the file and free the lock."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with contextlib.suppress(OSError):
                self._seen = self._state()
            os.close(fd)
        self._lock.free()

    def holds(self, header: bytes) -> bool:
        """Whether the file at the path is still the log with this header."""
        try:
            with self.path.open("rb") as file:
                found = file.read(len(header) + 1)
        except FileNotFoundError:
            return False
        except OSError:
            return True  # it can't be told; whoever reads it will say why
        return found == header + b"\n" and (self._fd is None or self._in_place())

    def changed(self) -> bool:
        """Whether somebody else has written to the file since it was read or written here."""
        try:
            return self._fd is None and self._state() != self._seen
        except OSError:
            return False  # whoever reads it will say why

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.release()

    def _create(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)

    def _clear(self) -> None:
        """Cut off what a failed write left behind."""
        if not self._clean and self._fd is not None:
            os.ftruncate(self._fd, self._size)
            self._clean = True

    def _cut_back(self) -> None:
        with contextlib.suppress(OSError):  # the next write tries again
            self._clear()

    def _state(self) -> tuple[int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns

    def _in_place(self) -> bool:
        """Whether the path still leads to the file that is open."""
        if self._fd is None:
            return False
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def _gone(self, what: str) -> str:
        return (
            f"{self.path} {what} since it was opened. The events of this session are only in "
            "memory; to begin a new log there, open the path again"
        )


_BINARY: int = getattr(os, "O_BINARY", 0)
"""On Windows, a file would turn line ends into two characters otherwise."""

_MARK = b"\xef\xbb\xbf"

_WRITERS: weakref.WeakSet[JsonlStore] = weakref.WeakSet()


def _in_child() -> None:
    # The lock belongs to the process that took it. The child closes its copies, so that the lock
    # is free when that process ends.
    for store in list(_WRITERS):
        store.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _split(content: bytes, path: Path) -> tuple[Stored, int]:
    """Header, records, torn tail; and the length of what is whole."""
    end = _whole(content)
    torn = None
    if end < len(content):
        torn = Torn(end, len(content) - end, content[end : end + 60].decode("utf-8", "replace"))
    lines = content[:end].split(b"\n")[:-1]
    first = lines[0] if lines else content
    if first.startswith(_MARK):
        msg = f"{path} can't be read as a session log: it begins with a byte order mark, which some editors add: remove these three bytes"
        raise FormatError(msg)
    if not first.startswith(b'{"nbagent":'[: len(content)]):
        msg = (
            f'{path} is no session log of nbagent: its first line does not begin with {{"nbagent":. '
            "Choose another path for the session"
        )
        raise FormatError(msg)
    if first.endswith(b"\r"):
        msg = f"{path} can't be read: {REWRITTEN}"
        raise CorruptLogError(msg, what=REWRITTEN)
    return Stored(lines[0] if lines else None, lines[1:], torn), end


def _whole(content: bytes) -> int:
    """Where the last whole line ends; in front of a batch that is not whole."""
    end = content.rfind(b"\n") + 1
    at = content.rfind(b'},"b":', 0, end)
    while at >= 0:
        found = _BATCH.match(content, at)
        if found is not None:
            whole = content.count(b"\n", found.end(), end) >= int(found[1])
            return end if whole else content.rfind(b"\n", 0, at) + 1
        at = content.rfind(b'},"b":', 0, at)
    return end

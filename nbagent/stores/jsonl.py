"""A session as a file of JSON lines: the header first, then one record per event."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbagent.errors import FormatError, LockedError, SessionError
from nbagent.interfaces.store import Stored, Torn

__all__ = ["JsonlStore"]


class JsonlStore:
    """One session in one file.

    The file is created at the first write. A writer holds `NAME.lock` beside it; the operating
    system frees the lock when the process ends, however it ends.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._fd: int | None = None
        self._lock: int | None = None
        self._size = 0

    @property
    def location(self) -> str:
        """The path."""
        return str(self.path)

    def load(self) -> Stored:
        """Read the file; an unfinished last line is reported, not read."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return Stored(None, [])
        except OSError as error:
            msg = f"can't read {self.path}: {error.strerror}"
            raise SessionError(msg) from error
        stored, self._size = _split(content, self.path)
        return stored

    def acquire(self, known: int, *, steal: bool = False) -> list[bytes]:
        """Take the lock, read what others added, cut an unfinished last line."""
        if self._lock is None:
            self._take_lock(steal=steal)
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            self._size = 0
            return []
        except OSError as error:
            self.release()
            msg = f"can't write to {self.path}: {error.strerror}"
            raise SessionError(msg) from error
        stored, self._size = _split(self.path.read_bytes(), self.path)
        if stored.torn is not None:
            os.ftruncate(self._fd, self._size)
        return stored.records[known:]

    def write(self, header: bytes | None, records: Sequence[bytes]) -> None:
        """Append the records in one write; on failure the file is cut back to where it was."""
        if self._fd is None:
            self._fd = self._create()
        lines = [header, *records] if header is not None else records
        block = b"\n".join(lines) + b"\n"
        try:
            written = os.write(self._fd, block)
            while written < len(block):
                written += os.write(self._fd, block[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            msg = (
                f"can't write to {self.path}: {error.strerror}. The events of this session are kept "
                "in memory; make room or give access, then run again"
            )
            raise SessionError(msg) from error
        self._size += len(block)

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        if self._fd is not None:
            os.fsync(self._fd)

    def release(self) -> None:
        """Close the file and free the lock."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _create(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self.path, flags, 0o644)
        except OSError as error:
            msg = f"can't create {self.path}: {error.strerror}"
            raise SessionError(msg) from error

    def _take_lock(self, *, steal: bool) -> None:
        path = self.path.with_name(self.path.name + ".lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            msg = f"can't create {path}: {error.strerror}"
            raise SessionError(msg) from error
        if not _lock(fd):
            holder = _holder(fd)
            os.close(fd)
            if not steal or _alive(holder):
                raise LockedError(_locked_message(self.path, holder, steal=steal))
            path.unlink()
            self._take_lock(steal=False)
            return
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(_me()).encode())
        self._lock = fd


def _split(content: bytes, path: Path) -> tuple[Stored, int]:
    """Header, records, torn tail; and the length of what is whole."""
    end = content.rfind(b"\n") + 1
    torn = None
    if end < len(content):
        torn = Torn(end, len(content) - end, content[end : end + 60].decode("utf-8", "replace"))
    lines = content[:end].split(b"\n")[:-1]
    if not lines:
        if torn is not None and not content.startswith(b'{"nbagent":'[: len(content)]):
            raise FormatError(_foreign(path))
        return Stored(None, [], torn), 0
    if not lines[0].startswith(b'{"nbagent":'):
        raise FormatError(_foreign(path))
    return Stored(lines[0], lines[1:], torn), end


def _foreign(path: Path) -> str:
    return (
        f'{path} is no session log of nbagent: its first line does not begin with {{"nbagent":'
        " Choose another path for the session"
    )


def _me() -> dict[str, Any]:
    kernel = ""
    if "ipykernel" in sys.modules:
        connection = [arg for arg in sys.argv if arg.endswith(".json")]
        kernel = Path(connection[0]).stem if connection else "kernel"
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "kernel": kernel,
        "since": int(time.time()),
    }


def _holder(fd: int) -> dict[str, Any]:
    try:
        return json.loads(os.read(fd, 4096))
    except ValueError:
        return {}


def _alive(holder: dict[str, Any]) -> bool:
    """Whether the holder is a living process of this machine."""
    if holder.get("host") != socket.gethostname() or "pid" not in holder:
        return False
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _locked_message(path: Path, holder: dict[str, Any], *, steal: bool) -> str:
    kernel = f", {holder['kernel']}" if holder.get("kernel") else ""
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}{kernel}"
    if steal:
        return f"{path} is being written by {who}, which is alive: close that session there first"
    return (
        f"{path} is being written by {who}. Close the session there, use another path, or open it "
        "with steal=True if that process is dead"
    )


def _lock(fd: int) -> bool:
    """Take the operating system's lock on the file; False if somebody has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # A byte far behind the text, since a locked byte can't be read by others there.
            os.lseek(fd, 1 << 30, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

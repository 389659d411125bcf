"""The right to write to a session file: a lock beside it that names its holder."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, cast

from nbagent.errors import LockedError, SessionError

__all__ = ["FileLock"]


class FileLock:
    """The operating system's lock on `NAME.lock`, which is freed when the process ends."""

    def __init__(self, path: Path) -> None:
        self._for = path
        self._path = path.with_name(path.name + ".lock")
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._fd is not None

    def take(self, *, steal: bool = False) -> None:
        """Take the lock.

        Parameters
        ----------
        steal
            Take it from a process that is dead while the system still keeps its lock.

        Raises
        ------
        LockedError
            If another has it; names who, and the way out.
        SessionError
            If there can be no lock at that place.
        """
        while self._fd is None:
            fd = self._open()
            try:
                if not self._lock(fd):
                    self._unseat(_holder(fd), steal=steal)
                elif self._is_current(fd):
                    os.ftruncate(fd, 0)
                    os.write(fd, json.dumps(_me()).encode())
                    self._fd = fd
            finally:
                if self._fd is None:
                    os.close(fd)

    def free(self) -> None:
        """Give the lock back."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            msg = (
                f"can't create {self._path}: {error.strerror}. A session writes only under a lock; "
                "give access to the folder, or use another path"
            )
            raise SessionError(msg) from error

    def _lock(self, fd: int) -> bool:
        """Lock the file; False if somebody has it."""
        try:
            if sys.platform == "win32":
                import msvcrt

                # A byte far behind the text, since a locked byte can't be read by others there.
                os.lseek(fd, 1 << 30, os.SEEK_SET)
                try:
                    msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
                finally:
                    os.lseek(fd, 0, os.SEEK_SET)
            else:
                import fcntl

                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            msg = (
                f"can't lock {self._path}: {error.strerror}. This file system has no locks; use a "
                "path on another one"
            )
            raise SessionError(msg) from error
        return True

    def _is_current(self, fd: int) -> bool:
        """Whether the locked file still is the one at the path (somebody may have taken it over)."""
        try:
            return os.path.samestat(os.fstat(fd), self._path.stat())
        except FileNotFoundError:
            return False

    def _unseat(self, holder: dict[str, Any], *, steal: bool) -> None:
        """Remove the lock file of a dead holder, or raise."""
        kernel = f", kernel {holder['kernel']}" if holder.get("kernel") else ""
        who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}{kernel}"
        msg = f"{self._for} is being written by {who}"
        alive = _alive(holder)
        if alive is False and steal:
            self._path.unlink(missing_ok=True)
            return
        if alive is False:
            msg += ", which is dead: open the session with steal=True"
        elif alive and holder["pid"] == os.getpid():
            msg += ", this very process, by another session object: close that one first"
        elif alive:
            msg += ", which is alive: close the session there (or end it), or use another path"
        else:
            msg += (
                ". Close the session there, or use another path; whether it is alive can't be seen "
                f"from here: if it is surely dead, delete {self._path}"
            )
        raise LockedError(msg)


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
    """Who holds the lock; empty if it is not written there."""
    for _ in range(10):
        try:
            os.lseek(fd, 0, os.SEEK_SET)
            value: Any = json.loads(os.read(fd, 4096))
        except (OSError, ValueError):
            time.sleep(0.002)  # the holder has just taken it and writes its name
        else:
            return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return {}


def _alive(holder: dict[str, Any]) -> bool | None:
    """Whether the holder lives; None if that can't be seen from here."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or type(pid) is not int or pid <= 0:
        return None
    if pid == os.getpid():
        return True
    if sys.platform == "win32":
        return None  # signal 0 would be Ctrl+C there
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True

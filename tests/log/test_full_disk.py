"""A disk that is full, or may not be written to: nothing half-written stays, nothing is lost."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.errors import SessionError
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore


@nb.tool(risk="mutating")
def publish(text: str) -> str:
    """Publish."""
    ran.append(text)
    return "published"


ran: list[str] = []


def agent_of(*replies: Any) -> nb.Agent:
    return nb.Agent(
        nb.models.Scripted(list(replies)), tools=[publish], approval=nb.Approval(mode="auto")
    )


@contextlib.contextmanager
def largest_file(size: int) -> Generator[None]:
    """Let no file grow beyond a size; a write that starts below ends short."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount: {error}")
    if done.returncode:
        pytest.skip(f"can't mount a small file system: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_the_next_one_writes_everything(small_disk: Path):
    path, ballast = small_disk / "log.jsonl", small_disk / "ballast"
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    size = path.stat().st_size
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 1024)
    with pytest.raises(SessionError) as caught:
        agent_of("two").run_sync("x" * 8192, session=session)
    assert str(caught.value).startswith(f"can't write to {path}: No space left on device")
    assert "make room" in str(caught.value)
    assert path.stat().st_size == size
    assert session.verify().ok
    assert session.verify().events == len(session.log) > len(Log(JsonlStore(path)))
    ballast.unlink()
    assert agent_of("three").run_sync("again", session=session).text == "three"
    session.close()
    again = Log(JsonlStore(path))
    assert again.lines == session.log.lines
    assert again.verify().ok


def test_a_body_does_not_run_if_its_decision_cannot_be_written(path: Path):
    ran.clear()
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    size = path.stat().st_size
    model = nb.models.Scripted([nb.reply("x" * 3000, nb.call("publish", text="a"))])
    agent = nb.Agent(model, tools=[publish], approval=nb.Approval(mode="auto"))
    with largest_file(size + 2500), pytest.raises(SessionError, match="File too large"):
        agent.run_sync("go", session=session)
    assert ran == []
    assert len(model.requests) == 1
    assert session.verify().ok
    assert Log(JsonlStore(path)).verify().ok
    assert Log(JsonlStore(path)).torn is None
    result = agent_of(nb.call("publish", text="b"), "done").run_sync("again", session=session)
    assert (result.text, ran) == ("done", ["b"])
    session.close()
    assert Log(JsonlStore(path)).lines == session.log.lines


def test_a_new_file_without_room_is_written_later(path: Path):
    session = nb.Session.open(path)
    with largest_file(300), pytest.raises(SessionError, match="File too large"):
        agent_of("one").run_sync("hi", session=session)
    assert path.stat().st_size == 0
    assert session.verify().ok
    with largest_file(300), pytest.raises(SessionError):
        session.close()
    agent_of("two").run_sync("again", session=session)
    session.close()
    again = Log(JsonlStore(path))
    assert again.lines == session.log.lines
    assert again.header_line == session.log.header_line


def test_writes_cut_short_at_every_length_leave_whole_lines(path: Path, write: Any):
    log: Log = write(path)
    size = path.stat().st_size
    for room in range(0, 120, 7):
        log.append("notice", {"kind": "k", "text": f"{room:0100}"})
        with largest_file(size + room), pytest.raises(SessionError):
            log.flush()
        assert path.stat().st_size == size
        assert log.verify().ok
    log.release()
    assert Log(JsonlStore(path)).lines == log.lines


def test_what_could_not_be_cut_back_is_cut_by_the_next_write(path: Path, write: Any):
    log: Log = write(path)
    with path.open("ab") as file:
        file.write(b'{"seq":28,"half":')
    assert isinstance(log.store, JsonlStore)
    log.store._clean = False
    log.append("notice", {"kind": "k", "text": "t"})
    log.release()
    assert Log(JsonlStore(path)).lines == log.lines


READ_ONLY = """
import os, sys, nbagent as nb
nb.Agent(nb.models.Scripted(["one"])).run_sync("hi")  # loads what may be out of reach later
os.setgid(65534); os.setuid(65534)
path = sys.argv[1]
try:
    session = nb.Session.open(path)
    print(len(session.events), session.verify().ok)
    nb.Agent(nb.models.Scripted(["one"])).run_sync("hi", session=session)
except nb.errors.NbAgentError as error:
    print(type(error).__name__, error)
"""


def as_nobody(path: Path) -> str:
    """What a process without rights says."""
    command = [sys.executable, "-c", READ_ONLY, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_without_access_a_session_can_be_read_or_says_why_not(write: Any):
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        path = Path(folder) / "log.jsonl"
        log: Log = write(path)
        log.release()
        lock = path.with_name("log.jsonl.lock")
        lock.unlink()
        path.parent.chmod(0o755)
        read, ran = as_nobody(path).splitlines()
        assert read == f"{len(log)} True"
        assert ran.startswith(f"SessionError can't create {lock}: Permission denied. A session")
        path.parent.chmod(0o777)
        read, ran = as_nobody(path).splitlines()
        assert ran.startswith(f"SessionError can't write to {path}: Permission denied. Give access")
        path.chmod(0o600)
        assert f"SessionError can't read {path}: Permission denied" in as_nobody(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    session = nb.Session.open(tmp_path / "new" / "folder" / "a.jsonl")
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").touch()
    with pytest.raises(SessionError, match=r"can't create .*a\.jsonl\.lock: Not a directory"):
        agent_of("one").run_sync("hi", session=session)
    (tmp_path / "new").unlink()
    agent_of("one").run_sync("hi", session=session)
    session.close()


def test_a_path_that_became_a_folder_is_named(path: Path):
    session = nb.Session.open(path)
    path.mkdir()
    with pytest.raises(SessionError, match=r"can't write to .*log\.jsonl: Is a directory"):
        agent_of("one").run_sync("hi", session=session)
    path.rmdir()
    agent_of("one").run_sync("hi", session=session)
    session.close()


def test_with_sync_each_barrier_waits_for_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[int] = []
    sync = os.fsync

    def counted(fd: int) -> None:
        synced.append(path.stat().st_size)
        sync(fd)

    monkeypatch.setattr(os, "fsync", counted)
    session = nb.Session.open(path, sync=True)
    agent_of("one").run_sync("hi", session=session)
    assert len(synced) >= 2
    assert synced == sorted(synced)
    assert synced[-1] == path.stat().st_size
    session.close()

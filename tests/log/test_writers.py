"""One writer at a time: threads, processes, forks, kills, and what happens to files underneath."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.errors import LockedError, SessionError
from nbagent.log import Log
from nbagent.stores.jsonl import JsonlStore
from nbagent.stores.lock import FileLock

HOLD = """
import sys, time
import nbagent as nb
session = nb.Session.open(sys.argv[1])
nb.Agent(nb.models.Scripted(["one"])).run_sync("hi", session=session)
{more}
print("held", flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def holder(path: Path, more: str = "") -> Generator[subprocess.Popen[str]]:
    """Another process that has the session."""
    code = HOLD.format(more=more)
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def agent_of(*replies: Any) -> nb.Agent:
    return nb.Agent(nb.models.Scripted(list(replies)))


def held(path: Path) -> bool:
    """Whether somebody has the lock."""
    lock = FileLock(path)
    try:
        lock.take()
    except LockedError:
        return True
    lock.free()
    return False


def test_all_names_of_a_file_give_the_same_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    folder = tmp_path / "folder"
    folder.symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.jsonl", "./x/../a.jsonl", link, folder / "link.jsonl", "~/a.jsonl"):
        assert nb.Session.open(name) is session
    session.close()


def test_a_link_has_the_lock_of_its_file(tmp_path: Path):
    path, link = tmp_path / "a.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    log = Log(JsonlStore(link))
    log.acquire()
    assert held(path)
    log.append("session/end-seed", {})
    log.release()
    assert len(Log(JsonlStore(path))) == 1


def test_a_change_of_the_working_folder_does_not_move_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    session = nb.Session.open("a.jsonl")
    monkeypatch.chdir("elsewhere")
    agent_of("one").run_sync("hi", session=session)
    session.close()
    assert not list(Path().iterdir())
    assert session.location == str((tmp_path / "a.jsonl").resolve())
    assert len(Log(JsonlStore(tmp_path / "a.jsonl"))) == len(session.log)


def test_a_locked_session_says_who_has_it_and_can_be_read(path: Path):
    with holder(
        path, "sys.argv[0] = '/run/kernel-7f.json'; sys.modules['ipykernel'] = sys"
    ) as other:
        session = nb.Session.open(path)
        count = len(session.events)
        assert session.verify().ends == "idle"
        with pytest.raises(LockedError) as caught:
            agent_of("two").run_sync("hi", session=session)
        who = f"process {other.pid} on {socket.gethostname()}, which is alive"
        assert who in str(caught.value)
        assert "close the session there" in str(caught.value)
        assert len(session.events) == count
        with pytest.raises(LockedError, match="which is alive"):
            nb.Session.open(path, steal=True)
    agent_of("two").run_sync("hi", session=session)
    assert [e.type for e in session.events].count("session/end-seed") == 1
    session.close()
    assert Log(JsonlStore(path)).verify().ok


def test_a_kernel_is_named(path: Path):
    code = (
        "sys.argv.append('/run/kernel-7f.json'); sys.modules['ipykernel'] = sys; session.close();"
    )
    with holder(path, code + "session.log.acquire()"), pytest.raises(LockedError) as caught:
        Log(JsonlStore(path)).acquire()
    assert ", kernel kernel-7f, which is alive" in str(caught.value)


def test_a_killed_holder_frees_the_lock_though_its_children_live(path: Path):
    with holder(path, "import os\nif not os.fork(): time.sleep(5); os._exit(0)") as other:
        assert held(path)
        other.send_signal(signal.SIGKILL)
        other.wait()
        end = time.monotonic() + 4
        while held(path) and time.monotonic() < end:  # the child may not have run at all yet
            time.sleep(0.01)
        assert not held(path)
        assert nb.Session.open(path).verify().ok


def test_what_another_process_writes_meanwhile_is_taken_in(path: Path):
    session = nb.Session.open(path)
    mine = session.id
    with holder(path, "session.close()"):
        agent_of("two").run_sync("hi", session=session)
    assert session.id != mine
    texts = [e.data.message["text"] for e in session.events if e.type == "assistant/message"]
    assert texts == ["one", "two"]
    session.close()
    assert Log(JsonlStore(path)).lines == session.log.lines


def test_a_log_can_be_read_while_another_process_writes_it(path: Path):
    more = (
        "for n in range(2000):\n"
        "    session.log.append('notice', {'kind': 'k', 'text': 'x' * 500})\n"
        "    session.log.flush()\n"
        "    if n == 10: print('held', flush=True)\n"
    )
    with holder(path, more):
        sizes = [0]
        end = time.monotonic() + 20
        while sizes[-1] < 2000 and time.monotonic() < end:
            log = Log(JsonlStore(path))
            assert log.verify().ok
            sizes.append(len(log))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 2


def test_a_forked_child_can_neither_write_nor_keep_the_lock(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    log, size = session.log, path.stat().st_size
    log.append("notice", {"kind": "k", "text": "not yet written"})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        with contextlib.suppress(BaseException):
            try:
                log.append("notice", {"kind": "k", "text": "child"})
                log.flush()
            except SessionError as error:
                said = str(error)
            try:
                log.acquire()
            except LockedError as error:
                said += f"; {error}"
            os.write(writing, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 4096).decode()
    os.close(reading)
    os.close(writing)
    assert "After a fork only the process that began goes on" in said
    assert f"is being written by process {os.getpid()}" in said
    assert path.stat().st_size == size
    session.close()
    assert Log(JsonlStore(path)).verify().ok
    assert len(Log(JsonlStore(path))) == len(log)


def claim(path: Path, **facts: Any) -> None:
    """Write somebody's name into the lock of a file."""
    import json

    path.with_name(path.name + ".lock").write_text(json.dumps(facts))


def test_a_lock_is_stolen_only_from_the_dead(path: Path):
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    dead, host = int(done.stdout), socket.gethostname()
    first = Log(JsonlStore(path))
    first.acquire()  # stands for a lock that the system keeps for a dead process
    second = Log(JsonlStore(path))
    for facts, words in (
        ({"pid": os.getppid(), "host": host}, "which is alive"),
        ({"pid": os.getpid(), "host": host}, "by another session object"),
        ({"pid": dead, "host": "elsewhere"}, "if it is surely dead, delete"),
        ({"pid": "x", "host": host}, "if it is surely dead, delete"),
        ({}, r"process \? on \?"),
    ):
        claim(path, **facts)
        for steal in (False, True):
            with pytest.raises(LockedError, match=words):
                second.acquire(steal=steal)
    claim(path, pid=dead, host=host)
    with pytest.raises(LockedError, match="which is dead: open the session with steal=True"):
        second.acquire()
    second.acquire(steal=True)
    second.append("session/end-seed", {})
    second.release()
    first.release()
    assert len(Log(JsonlStore(path))) == 1


def test_a_session_that_nobody_holds_gives_its_lock_back_and_writes_what_is_pending(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    session.log.append("notice", {"kind": "k", "text": "pending"})
    count = len(session.log)
    assert held(path)
    del session
    end = time.monotonic() + 3
    while held(path) and time.monotonic() < end:
        gc.collect()  # the loop thread lets go of the run's task a moment after its result is there
        time.sleep(0.01)
    assert not held(path)
    assert len(Log(JsonlStore(path))) == count


def test_the_end_of_a_process_writes_what_is_pending(path: Path):
    code = (
        "import sys, nbagent as nb; s = nb.Session.open(sys.argv[1]); s.log.acquire(); "
        "s.log.append('notice', {'kind': 'k', 'text': 't'})"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert len(Log(JsonlStore(path))) == 1


def test_a_closed_session_goes_on_with_what_others_wrote(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    session.close()
    with holder(path):
        pass
    before = len(session.events)
    assert nb.Session.open(path) is session
    assert len(session.events) > before
    agent_of("three").run_sync("hi", session=session)
    session.close()
    assert Log(JsonlStore(path)).lines == session.log.lines


def test_the_runs_of_others_are_counted_and_not_part_of_the_result(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    session.close()
    with holder(path):
        pass
    result = agent_of("three").run_sync("hi", session=session)
    session.close()
    assert [e.data.run for e in session.events if e.type == "turn/start"] == [1, 2, 3]
    assert [e.type for e in result.events].count("turn/start") == 1


def test_nothing_is_appended_without_the_lock(path: Path):
    log = Log(JsonlStore(path))
    with pytest.raises(SessionError, match=r"log\.jsonl is not open for writing"):
        log.append("session/end-seed", {})
    log.acquire()
    log.release()
    with pytest.raises(SessionError, match=r"log\.jsonl is not open for writing"):
        log.append("session/end-seed", {})
    assert not path.exists()


@pytest.mark.damages_files
def test_a_file_removed_underneath_ends_the_next_run_and_the_path_can_be_used_again(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    path.unlink()
    with pytest.raises(
        SessionError, match=r"was removed or replaced since it was opened.*open the path again"
    ):
        agent_of("two").run_sync("hi", session=session)
    fresh = nb.Session.open(path)
    assert fresh is not session
    assert len(fresh.events) == 0
    agent_of("two").run_sync("hi", session=fresh)
    fresh.close()
    assert len(Log(JsonlStore(path))) == len(fresh.events)
    with pytest.raises(SessionError, match="was written by somebody else since it was opened"):
        agent_of("two").run_sync("hi", session=session)


@pytest.mark.damages_files
def test_opening_a_removed_file_again_begins_a_fresh_session(path: Path):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    path.unlink()
    fresh = nb.Session.open(path)
    assert fresh is not session
    agent_of("one").run_sync("hi", session=fresh)
    fresh.close()
    path.unlink()
    agent_of("one").run_sync("hi", session=str(path))
    assert Log(JsonlStore(path)).folds.turn.run == 1


@pytest.mark.damages_files
@pytest.mark.parametrize("closed", [False, True])
def test_a_file_replaced_by_another_session_is_not_written_to(path: Path, write: Any, closed: bool):
    session = nb.Session.open(path)
    agent_of("one").run_sync("hi", session=session)
    if closed:
        session.close()
    other = path.with_name("other.jsonl")
    write(other).release()
    content = other.read_bytes()
    other.replace(path)
    with pytest.raises(SessionError, match="since it was opened"):
        agent_of("two").run_sync("hi", session=session)
    assert path.read_bytes() == content
    assert len(nb.Session.open(path).events) == len(Log(JsonlStore(path)))


@pytest.mark.damages_files
def test_a_file_that_lost_events_is_not_written_to(path: Path, write: Any):
    log: Log = write(path)
    log.release()
    content = path.read_bytes()[:-400]
    path.write_bytes(content)
    with pytest.raises(SessionError, match="holds less than was read from it"):
        log.acquire()
    assert path.read_bytes().startswith(content[: content.rfind(b"\n") + 1])
    assert not held(path)


@pytest.mark.damages_files
def test_damage_that_came_after_opening_is_found_before_writing(path: Path, write: Any, state: Any):
    log: Log = write(path)
    log.release()
    lines, before = list(log.lines), state(log.folds)
    with path.open("ab") as file:
        file.write(b'{"seq":%d,"type":"notice","data":{},"c":"00000000"}\n' % len(log))
    with pytest.raises(SessionError, match="checksum does not match"):
        log.acquire()
    assert (log.lines, state(log.folds)) == (lines, before)
    assert not held(path)


def test_many_threads_open_one_new_file_and_run(path: Path):
    """F-F5."""
    sessions: list[nb.Session] = []
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            for turn in range(3):
                prompt = f"{n}.{turn}"
                run = agent_of(prompt).run_sync(prompt, session=path)
                assert run.text == prompt
                sessions.append(run.session)
        except Exception as error:  # noqa: BLE001 - shown by the test's own thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len({id(session) for session in sessions}) == 1
    log = sessions[0].log
    sessions[0].close()
    assert Log(JsonlStore(path)).lines == log.lines
    assert log.folds.turn.run == 24
    said = [e.data.message["text"] for e in log.events if e.type == "assistant/message"]
    for n in range(8):
        mine = [text for text in said if text.startswith(f"{n}.")]
        assert mine == [f"{n}.{turn}" for turn in range(3)]


def test_of_many_processes_that_open_one_new_file_one_writes(path: Path):
    code = (
        "import sys, time, nbagent as nb\n"
        "sys.stdin.readline()\n"
        "try:\n"
        "    nb.Agent(nb.models.Scripted(['one'])).run_sync('hi', session=sys.argv[1])\n"
        "except nb.errors.LockedError: print('locked')\n"
        "else: print('wrote')\n"
        "sys.stdout.flush(); sys.stdin.readline()\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    many = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        for process in many:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.stdout.readline().strip() for process in many if process.stdout]
    finally:
        for process in many:
            process.communicate("\n")
    assert "wrote" in said
    assert set(said) <= {"wrote", "locked"}
    log = Log(JsonlStore(path))
    assert log.verify().ok
    assert log.folds.turn.run == said.count("wrote")

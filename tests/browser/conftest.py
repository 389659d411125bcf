"""A Jupyter server and a browser; without one the tests are skipped, or fail where it is needed.

The browser is of one module: playwright's event loop counts as running in its thread as long as
playwright is there, and tests of other modules run loops of their own. Tests here can't be async.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser.pages import FLAGS, Front, Page, Server, Theme, chromium
from playwright.sync_api import Browser, sync_playwright

REQUIRE_BROWSER = "NBAGENT_REQUIRE_BROWSER"
"""The variable that turns a skip for want of a browser into a failure, as CI needs it."""

FAILED = pytest.StashKey[bool]()
NUMBERS = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are slow and need the browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.browser)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Remember failures, for a picture of them."""
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture(scope="session")
def executable() -> str:
    """The browser's executable."""
    if found := chromium():
        return found
    missing = "there is no Chromium on PATH, nor one named by the variable CHROMIUM"
    if os.environ.get(REQUIRE_BROWSER, "0") not in {"", "0"}:
        pytest.fail(f"{missing}, and `{REQUIRE_BROWSER}` is set", pytrace=False)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def server(executable: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One Jupyter server for all tests."""
    server = Server(tmp_path_factory.mktemp("jupyter"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser(executable: str) -> Iterator[Browser]:
    """A browser for the tests of a module."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(params=["lab", "notebook"])
def front(request: pytest.FixtureRequest) -> Front:
    """Each front end: JupyterLab and Notebook 7."""
    return request.param


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """Where pictures go: the folder named by `NBAGENT_SHOTS`, or a temporary one."""
    folder = Path(os.environ.get("NBAGENT_SHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def open_page(
    server: Server, browser: Browser, shots: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Page]]:
    """Open a notebook made of these cells; it is closed and its kernel ended after the test."""
    opened: list[Page] = []

    def open_page(
        *cells: str, front: Front = "lab", theme: Theme = "light", width: int = 1300
    ) -> Page:
        path = f"test-{next(NUMBERS)}.ipynb"
        server.write(path, cells)
        page = Page(server, browser, path, front=front, theme=theme, width=width, shots=shots)
        opened.append(page)
        return page

    yield open_page
    for page in opened:
        if request.node.stash.get(FAILED, False) and not page.page.is_closed():
            page.shot(f"failed-{request.node.name}".replace("/", "-"))
    for context in browser.contexts:
        context.close()
    for page in opened:
        server.end_kernels(page.path)

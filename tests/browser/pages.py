"""A notebook in a real browser, driven and looked at as a person would."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from playwright.sync_api import Browser, ElementHandle, Locator, expect

T = TypeVar("T")
Front = Literal["lab", "notebook"]
Theme = Literal["light", "dark"]
Target = int | str | Locator
"""What to look at: the output of a cell by its number, a CSS selector, or a locator."""

TOKEN = "tested"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
SCRIPT = (Path(__file__).parent / "looks.js").read_text("utf-8")


def chromium() -> str | None:
    """The browser's executable: that of the variable `CHROMIUM`, else one on PATH."""
    if named := os.environ.get("CHROMIUM"):
        return shutil.which(named)
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Server:
    """A Jupyter server with JupyterLab and Notebook 7, with settings and folders of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        self.root.mkdir(parents=True)
        self.settings = folder / "settings" / "@jupyterlab"
        self._set("apputils-extension/notification", fetchNews="false", checkForUpdates=False)
        self._set(
            "notebook-extension/tracker", windowingMode="none"
        )  # else few cells are in the DOM
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.base = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "log.txt"
        names = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "IPYTHONDIR": "ipython",
        }
        env = {**os.environ, **{name: str(folder / place) for name, place in names.items()}}
        options = {
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.base.rpartition(":")[2],
            "ServerApp.port_retries": "0",
            "ServerApp.root_dir": str(self.root),
            "ServerApp.allow_root": "True",
            "ServerApp.open_browser": "False",
            "IdentityProvider.token": TOKEN,
            "LabApp.extension_manager": "readonly",
        }
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *(f"--{k}={v}" for k, v in options.items())],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            until(self._answers, "the Jupyter server's answer", timeout=60)
        except AssertionError as error:
            self.close()
            raise AssertionError(f"{error}\n{self.log.read_text()[-3000:]}") from error

    def close(self) -> None:
        """End the kernels, then the server."""
        if self.process.poll() is None:
            self.end_kernels()
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """What the server's REST interface answers."""
        request = urllib.request.Request(  # noqa: S310
            f"{self.base}/api/{path}",
            method=method,
            headers={"Authorization": f"token {TOKEN}"},
            data=json.dumps(body).encode() if method == "POST" else None,
        )
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            text = answer.read()
        return json.loads(text) if text else None

    def end_kernels(self, path: str | None = None) -> None:
        """Shut down the kernels of a notebook, or all."""
        for session in self.api("sessions"):
            if path in {None, session["path"]}:
                self.api(f"sessions/{session['id']}", "DELETE")

    def kernel(self, path: str) -> dict[str, Any] | None:
        """The kernel of a notebook as the server sees it: `id`, `execution_state`."""
        found = [s["kernel"] for s in self.api("sessions") if s["path"] == path]
        return found[0] if found else None

    def write(self, path: str, cells: Sequence[str]) -> None:
        """Make a notebook of code cells."""
        spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        made = [
            {
                "cell_type": "code",
                "id": f"cell-{n}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source,
            }
            for n, source in enumerate(cells)
        ]
        content = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": spec},
            "cells": made,
        }
        (self.root / path).write_text(json.dumps(content), "utf-8")

    def read(self, path: str) -> dict[str, Any]:
        """A notebook as it is on disk."""
        return json.loads((self.root / path).read_text("utf-8"))

    def set_theme(self, theme: Theme) -> None:
        """The theme of pages that are loaded from now on."""
        self._set("apputils-extension/themes", theme=f"JupyterLab {theme.title()}")

    def _set(self, plugin: str, **settings: Any) -> None:
        path = self.settings / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings), "utf-8")

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
        try:
            return bool(self.api("status"))
        except OSError:
            return False


@dataclass(frozen=True)
class Contrast:
    """How well a text can be read."""

    ratio: float
    """WCAG 2 contrast, 1 to 21."""
    needed: float
    """4.5, or 3 for large text."""
    text: str
    element: str
    color: str
    background: str
    disabled: bool


class Page:
    """One browser window with one notebook.

    Cells are numbered from 0. Methods that wait say at failure what was seen. What is not covered
    here can be done with `page`, playwright's own.
    """

    def __init__(
        self,
        server: Server,
        browser: Browser,
        path: str,
        *,
        front: Front = "lab",
        theme: Theme = "light",
        width: int = 1300,
        height: int = 1100,
        shots: Path | None = None,
        wait_idle: bool = True,
    ) -> None:
        self.server, self.browser, self.path = server, browser, path
        self.front: Front = front
        self.theme: Theme = theme
        self.size = (width, height)
        self.shots = shots or Path.cwd()
        self.errors: list[str] = []
        """Uncaught errors of the page's scripts, and what it logged as errors."""
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.page.set_default_timeout(10_000)
        self.page.on("dialog", lambda dialog: dialog.accept())
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        where = f"lab/workspaces/w{time.monotonic_ns()}/tree" if front == "lab" else "notebooks"
        server.set_theme(theme)
        self.page.goto(f"{server.base}/{where}/{path}?token={TOKEN}", wait_until="domcontentloaded")
        self.wait_ready(idle=wait_idle)

    # -- coming and going

    def wait_ready(self, *, idle: bool = True, timeout: float = 60) -> None:
        """Wait until the notebook is shown and connected to its kernel, which is idle."""
        self.cell(0).wait_for(timeout=timeout * 1000)
        light = str(self.theme == "light").lower()
        self.page.locator(f'body[data-jp-theme-light="{light}"]').wait_for(state="attached")
        states = {"idle"} if idle else {"idle", "busy"}
        until(
            lambda: (self.server.kernel(self.path) or {}).get("execution_state") in states,
            f"a kernel that is {' or '.join(states)}",
            timeout=timeout,
        )
        until(lambda: self.kernel_status() in states, "a connection to the kernel", timeout=timeout)

    def kernel_status(self) -> str:
        """What the front end shows of the kernel: `idle`, `busy`, `unknown`, …."""
        found = self.page.locator(".jp-Notebook-ExecutionIndicator").first
        return found.get_attribute("data-status") or ""

    def reload(self, *, idle: bool = True) -> None:
        """Load the page again; what is not saved is lost, the kernel goes on."""
        self.server.set_theme(self.theme)
        self.page.reload(wait_until="domcontentloaded")
        self.wait_ready(idle=idle)

    def second(self, *, front: Front | None = None, idle: bool = True) -> Page:
        """Another window on the same notebook and kernel; the caller closes it."""
        return self._another(front=front, idle=idle)

    def reopen_without_kernel(self, *, front: Front | None = None) -> Page:
        """Close, shut the kernel down and open what was saved, with a fresh kernel."""
        self.close(end_kernel=True)
        return self._another(front=front, idle=True)

    def _another(self, *, front: Front | None, idle: bool) -> Page:
        return type(self)(
            self.server,
            self.browser,
            self.path,
            front=front or self.front,
            theme=self.theme,
            width=self.size[0],
            height=self.size[1],
            shots=self.shots,
            wait_idle=idle,
        )

    def close(self, *, end_kernel: bool = False) -> None:
        """Close the window; the kernel goes on unless it is to end."""
        self.context.close()
        if end_kernel:
            self.server.end_kernels(self.path)

    def save(self) -> dict[str, Any]:
        """Press Ctrl+S and wait until the server has it; returns the notebook on disk."""
        with self.page.expect_response(self._is_save, timeout=15_000) as answer:
            self.page.keyboard.press("Control+s")
        assert answer.value.ok, answer.value.status_text
        return self.server.read(self.path)

    def _is_save(self, response: Any) -> bool:
        return response.request.method == "PUT" and f"/api/contents/{self.path}" in response.url

    # -- cells

    def cell(self, number: int) -> Locator:
        """A cell."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(number)

    def output(self, number: int) -> Locator:
        """The output area of a cell."""
        return self.cell(number).locator(".jp-Cell-outputArea").first

    def prompt(self, number: int) -> str:
        """What stands before a cell: `[ ]:`, `[*]:` while it waits or runs, `[3]:` then."""
        return self.cell(number).locator(".jp-InputPrompt").first.inner_text()

    def run(self, number: int, *, wait: bool = True, timeout: float = 30) -> None:
        """Run a cell by Ctrl+Enter, and wait for its end unless told not to."""
        self.cell(number).locator(".jp-InputArea-editor").first.click()
        before = self.prompt(number)
        self.page.keyboard.press("Control+Enter")
        until(lambda: self.prompt(number) != before, f"the start of cell {number}", timeout=10)
        if wait:
            self.wait_end(number, timeout=timeout)

    def run_all(self, *, wait: bool = True, timeout: float = 60) -> None:
        """Run all cells by the menu, and wait for the end of the last one unless told not to."""
        last = self.page.locator(".jp-Notebook .jp-CodeCell").count() - 1
        before = self.prompt(last)
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        until(lambda: self.prompt(last) != before, "the start of all cells", timeout=10)
        if wait:
            self.wait_end(last, timeout=timeout)

    def wait_end(self, number: int, *, timeout: float = 30) -> None:
        """Wait until a cell has ended."""
        until(
            lambda: re.search(r"\d", self.prompt(number)),
            lambda: f"the end of cell {number}, which shows {self.text(number)!r}",
            timeout=timeout,
        )

    def running(self, number: int) -> bool:
        """Whether a cell runs or waits for its turn."""
        return "*" in self.prompt(number)

    def stop(self) -> None:
        """Press the stop button in the notebook's toolbar."""
        self.page.locator('[data-jp-item-name="interrupt"]').first.click()

    def interrupt(self) -> None:
        """Interrupt the kernel past the front end."""
        kernel = self.server.kernel(self.path)
        assert kernel, "there is no kernel"
        self.server.api(f"kernels/{kernel['id']}/interrupt", "POST")

    # -- what cells show

    def text(self, number: int) -> str:
        """All text that is visible in a cell's output."""
        output = self.output(number)
        return output.inner_text() if output.count() else ""

    def wait_text(self, number: int, text: str | re.Pattern[str], *, timeout: float = 10) -> None:
        """Wait until a cell's output holds this text."""
        expect(self.output(number)).to_contain_text(
            text, timeout=timeout * 1000, use_inner_text=True
        )

    def wait_no_text(self, number: int, text: str, *, timeout: float = 10) -> None:
        """Wait until a cell's output does not hold this text."""
        expect(self.output(number)).not_to_contain_text(
            text, timeout=timeout * 1000, use_inner_text=True
        )

    def button(self, number: int, name: str) -> Locator:
        """The button of exactly this accessible name in a cell's output."""
        return self.output(number).get_by_role("button", name=name, exact=True)

    def click(self, number: int, name: str, *, timeout: float = 10) -> None:
        """Press the one button of this name in a cell's output, waiting until it can be."""
        self.button(number, name).click(timeout=timeout * 1000)

    def field(self, number: int, label: str) -> Locator:
        """The text field with this label, or else placeholder, in a cell's output."""
        return self.output(number).get_by_role("textbox", name=label, exact=True)

    def type(self, number: int, label: str, text: str, *, enter: bool = False) -> None:
        """Type into a text field, key by key, at the speed of a fast typist."""
        field = self.field(number, label)
        field.click()
        field.press_sequentially(text, delay=25)
        if enter:
            field.press("Enter")

    # -- looks

    def shot(self, name: str, target: Target | None = None) -> Path:
        """Take a picture of the window, or of one part of it."""
        path = self.shots / f"{name}.png"
        if target is None:
            self.page.screenshot(path=path)
        else:
            self._locate(target).screenshot(path=path)
        return path

    def contrasts(self, target: Target, *, disabled: bool = False) -> list[Contrast]:
        """The contrast of each visible text against what lies behind it, worst first.

        Parameters
        ----------
        disabled
            Include what belongs to disabled controls, for which WCAG asks nothing.
        """
        found = self._look(target, "contrasts")
        made = [Contrast(**item) for item in found]
        return sorted(
            (c for c in made if disabled or not c.disabled), key=lambda c: c.ratio / c.needed
        )

    def worst_contrast(self, target: Target, *, disabled: bool = False) -> Contrast:
        """The text that is hardest to read."""
        found = self.contrasts(target, disabled=disabled)
        assert found, f"there is no visible text in {target}"
        return found[0]

    def side_scrolls(self, target: Target, *, inside: bool = False) -> list[str]:
        """What scrolls sideways around the target: its scroll areas up to the page itself.

        Parameters
        ----------
        inside
            The scroll areas within the target as well.
        """
        return self._look(target, "sideScrolls", inside=inside)

    def clipped(self, target: Target, *, ellipsis: bool = False) -> list[str]:
        """What is cut off in the target, because it does not fit and can not be scrolled.

        Parameters
        ----------
        ellipsis
            Also what is cut off with "…", as the labels of buttons are.
        """
        return self._look(target, "clipped", ellipsis=ellipsis)

    def tab_order(self, start: Target, presses: int) -> list[str]:
        """The names of what has the focus after each press of Tab, beginning with the start."""
        element = self._locate(start)
        element.focus()
        names = [self._name_of_focus()]
        for _ in range(presses):
            self.page.keyboard.press("Tab")
            names.append(self._name_of_focus())
        return names

    def _name_of_focus(self) -> str:
        return self.page.evaluate(f"() => {SCRIPT}.focusName()")

    def _locate(self, target: Target) -> Locator:
        if isinstance(target, int):
            return self.output(target)
        return self.page.locator(target).first if isinstance(target, str) else target

    def _look(self, target: Target, what: str, **options: Any) -> Any:
        element: ElementHandle | None = self._locate(target).element_handle()
        assert element
        return element.evaluate(f"(element, options) => {SCRIPT}.{what}(element, options)", options)


def until(found: Callable[[], T], what: str | Callable[[], str], *, timeout: float) -> T:
    """Wait until `found` gives something true, and return that."""
    end = time.monotonic() + timeout
    while not (value := found()):
        if time.monotonic() > end:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"{said} did not come in {timeout} s")
        time.sleep(0.05)
    return value

"""A real kernel for tests, driven as a front end would drive it, without a browser."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager

T = TypeVar("T")

WIDGET = "application/vnd.jupyter.widget-view+json"
REFERENCE = "IPY_MODEL_"


def kernel_pythons() -> list[str]:
    """The Pythons whose kernels are tested: the running one, then those of `NBAGENT_KERNELS`."""
    more = re.split(rf"[,{os.pathsep}]", os.environ.get("NBAGENT_KERNELS", ""))
    return [sys.executable, *(python.strip() for python in more if python.strip())]


@dataclass
class Cell:
    """One execute request and what came of it so far."""

    id: str
    code: str
    started: bool = False
    """The kernel has begun with it."""
    idle: bool = False
    reply: dict[str, Any] | None = None
    """The content of `execute_reply`."""
    outputs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """As a notebook keeps them, with later updates of displays applied."""
    sent: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    """When both the reply and the idle status had come, on `time.monotonic`."""
    clear_next: bool = False

    @property
    def done(self) -> bool:
        return self.idle and self.reply is not None

    @property
    def text(self) -> str:
        """What is printed or shown as plain text, without errors."""
        parts = [output.get("text") or output.get("data", {}) for output in self.outputs]
        return "".join(p if isinstance(p, str) else p.get("text/plain", "") for p in parts)

    @property
    def error(self) -> str:
        """The name of the error that ended it, `aborted` if it was not run, or nothing."""
        if self.reply is None or self.reply["status"] == "ok":
            return ""
        return self.reply.get("ename") or "aborted"

    @property
    def seconds(self) -> float:
        """From the request to its end."""
        return self.ended - self.sent

    def data(self, mime: str) -> list[Any]:
        """What its outputs hold in this form, in order."""
        return [o["data"][mime] for o in self.outputs if mime in o.get("data", {})]

    @property
    def views(self) -> list[str]:
        """The ids of the widgets that its outputs show."""
        return [view["model_id"] for view in self.data(WIDGET)]


class Kernel:
    """A kernel of any environment and a client that plays the front end.

    Nothing is read in the background: messages are taken in while a method waits, or by `pump`.

    Parameters
    ----------
    python
        The interpreter in whose environment the kernel runs.
    front_end
        Report a view for each widget that becomes visible and asks for it, as a browser does.
        Without it the kernel sees a client that shows no widgets.
    """

    def __init__(
        self,
        python: str = sys.executable,
        *,
        front_end: bool = False,
        env: dict[str, str] | None = None,
        cwd: str | Path | None = None,
    ) -> None:
        self.front_end = front_end
        self.cells: dict[str, Cell] = {}
        self.order: list[Cell] = []
        """The cells in the order in which they ended."""
        self.widgets: dict[str, dict[str, Any]] = {}
        """The state of each open widget by its comm id, oldest first."""
        self.closed: set[str] = set()
        self.custom: list[tuple[str, Any]] = []
        """The custom messages that widgets sent: (comm id, content)."""
        self.prompts: list[str] = []
        """The questions on stdin that are not answered yet."""
        self.handled: set[str] = set()
        """The ids of the requests whose idle status has come, those of comm messages as well."""
        self.iopub_bytes = 0
        self.iopub_messages = 0
        self.folder = Path(tempfile.mkdtemp(prefix="nbagent-kernel-"))
        try:
            self._begin(python, env or {}, cwd)
        except BaseException:
            self.close()
            raise

    def _begin(self, python: str, env: dict[str, str], cwd: str | Path | None) -> None:
        spec = self.folder / "kernels" / "tested"
        spec.mkdir(parents=True)
        argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        settings = {"argv": argv, "display_name": "tested", "language": "python"}
        (spec / "kernel.json").write_text(json.dumps(settings), "utf-8")
        specs = KernelSpecManager(kernel_dirs=[str(spec.parent)], ensure_native_kernel=False)
        self.manager = KernelManager(
            kernel_name="tested",
            kernel_spec_manager=specs,
            connection_file=str(self.folder / "connection.json"),
        )
        surroundings = {**os.environ, "IPYTHONDIR": str(self.folder / "ipython"), **env}
        self.manager.start_kernel(env=surroundings, cwd=str(cwd or self.folder))
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.run("None", timeout=30)  # what `wait_for_ready` left on iopub is gone by then
        self.iopub_bytes = self.iopub_messages = 0

    def close(self) -> None:
        """End the kernel's process and its sockets."""
        if "client" in vars(self):
            self.client.stop_channels()
        if "manager" in vars(self) and self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
            manager: Any = self.manager
            manager.context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- cells

    def start(self, code: str, *, allow_stdin: bool = False) -> Cell:
        """Send a cell and return at once; several sent in a row queue up, as by Run All."""
        cell_id = self.client.execute(code, allow_stdin=allow_stdin)
        cell = self.cells[cell_id] = Cell(cell_id, code)
        return cell

    def finish(self, *cells: Cell, timeout: float = 15) -> Cell:
        """Wait until these cells have ended, with or without errors; returns the first one."""
        self.until(lambda: all(c.done for c in cells), "the end of the cell", timeout=timeout)
        return cells[0]

    def run(self, code: str, *, allow_stdin: bool = False, timeout: float = 30) -> str:
        """The text of a cell that must end without an error."""
        cell = self.finish(self.start(code, allow_stdin=allow_stdin), timeout=timeout)
        assert not cell.error, f"{cell.error} in {code!r}: {shown(cell)}"
        return cell.text

    def run_all(self, *codes: str, timeout: float = 30) -> list[Cell]:
        """Send all cells at once and wait for the last one."""
        cells = [self.start(code) for code in codes]
        self.finish(*cells, timeout=timeout)
        return cells

    def interrupt(self) -> None:
        """What the stop button of the notebook does."""
        self.manager.interrupt_kernel()

    def answer(self, text: str, *, timeout: float = 10) -> str:
        """Type a line at the question on stdin, waiting for it; returns the question."""
        self.until(lambda: self.prompts, "a question on stdin", timeout=timeout)
        self.client.input(text)
        return self.prompts.pop(0)

    # -- widgets

    def find(self, inside: str | Cell | None = None, **state: Any) -> list[str]:
        """The ids of the widgets with this state, oldest first, now.

        Parameters
        ----------
        inside
            Only those within this widget, or within what this cell shows.
        state
            Exact values of traits, for instance `_model_name="ButtonModel", description="Stop"`.
        """
        within = None if inside is None else self._within(inside)
        return [
            comm_id
            for comm_id, found in self.widgets.items()
            if (within is None or comm_id in within)
            and all(found.get(key) == value for key, value in state.items())
        ]

    def widget(self, inside: str | Cell | None = None, *, timeout: float = 10, **state: Any) -> str:
        """The id of the newest widget with this state, waiting for one."""
        sought = ", ".join(f"{key}={value!r}" for key, value in state.items())
        found = self.until(
            lambda: self.find(inside, **state), f"a widget with {sought}", timeout=timeout
        )
        return found[-1]

    def button(self, name: str, inside: str | Cell | None = None, *, timeout: float = 10) -> str:
        """The id of the newest button of this description that can be pressed, waiting for it."""
        return self.widget(
            inside, timeout=timeout, _model_name="ButtonModel", description=name, disabled=False
        )

    def click(self, name: str, inside: str | Cell | None = None, *, timeout: float = 10) -> str:
        """Press a button, waiting for it; returns the id of the message, for `handled`."""
        return self.click_id(self.button(name, inside, timeout=timeout))

    def click_id(self, comm_id: str) -> str:
        """Press the button with this id, even if it is disabled."""
        return self.send(comm_id, {"method": "custom", "content": {"event": "click"}})

    def set(self, comm_id: str, **state: Any) -> str:
        """Change a widget's traits as a front end does, for instance `value` of a text field."""
        self.widgets.get(comm_id, {}).update(state)
        return self.send(comm_id, {"method": "update", "state": state, "buffer_paths": []})

    def type(self, comm_id: str, text: str) -> None:
        """Type into a text field: one update a character, each waiting until the last is handled.

        The front end of ipywidgets does not send more before it has seen the idle status; what was
        typed meanwhile goes out as one update.
        """
        before = self.widgets[comm_id].get("value", "")
        for n in range(len(text)):
            self.wait_handled(self.set(comm_id, value=before + text[: n + 1]))

    def view(self, comm_id: str, count: int = 1) -> str:
        """Report how many views of a widget there are."""
        return self.set(comm_id, _view_count=count)

    def wait_handled(self, message_id: str, *, timeout: float = 10) -> None:
        """Wait for the idle status of a comm message."""
        self.until(
            lambda: message_id in self.handled, "the idle status of a click", timeout=timeout
        )

    def texts(self, inside: str | Cell | None = None) -> list[str]:
        """What the widgets say, in the order of their ids: values, descriptions, titles."""
        found = [self.widgets[comm_id] for comm_id in self.find(inside)]
        keys = ("description", "value", "title", "placeholder")
        return [str(w[key]) for w in found for key in keys if isinstance(w.get(key), str)]

    def wait_text(
        self, text: str, inside: str | Cell | None = None, *, timeout: float = 10
    ) -> None:
        """Wait until a widget says this."""
        self.until(
            lambda: any(text in said for said in self.texts(inside)),
            f"a widget that says {text!r}",
            timeout=timeout,
        )

    def children(self, comm_id: str) -> list[str]:
        """The ids of the widgets that this one refers to directly."""
        return list(_references(self.widgets.get(comm_id, {})))

    def _within(self, inside: str | Cell) -> set[str]:
        waiting = list(inside.views) if isinstance(inside, Cell) else [inside]
        found: set[str] = set()
        while waiting:
            comm_id = waiting.pop()
            if comm_id not in found:
                found.add(comm_id)
                waiting.extend(self.children(comm_id))
        return found

    # -- messages

    def send(self, comm_id: str, data: dict[str, Any]) -> str:
        """Send a comm message, whatever the kernel does meanwhile; returns its id."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def until(self, found: Callable[[], T], what: str, *, timeout: float = 10) -> T:
        """Take messages in until `found` gives something true, and return that.

        Raises
        ------
        AssertionError
            After `timeout` seconds or at the kernel's death, with what was seen so far.
        """
        end = time.monotonic() + timeout
        while not (value := found()):
            self.pump(0.05)
            if (value := found()) or time.monotonic() < end:
                continue
            alive = self.manager.is_alive()
            fault = f"DEADLOCK: {what} did not come in {timeout} s" if alive else "the kernel died"
            msg = f"{fault}\n{self.seen()}"
            raise AssertionError(msg)
        return value

    def pump(self, seconds: float = 0.0) -> None:
        """Take in what has arrived, waiting at most so long for the first message."""
        channels = [self.client.iopub_channel, self.client.shell_channel, self.client.stdin_channel]
        poller = zmq.Poller()
        for channel in channels:
            poller.register(channel.socket, zmq.POLLIN)
        for socket, _ in poller.poll(max(0, round(seconds * 1000))):
            for frames in _waiting(socket):
                self._take(frames, socket is self.client.iopub_channel.socket)

    def settle(self, seconds: float = 0.3) -> None:
        """Take messages in for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.pump(left)

    def seen(self) -> str:
        """What the last cells and the live widgets look like, for a failure's text."""
        lines = [f"cell {c.code[:200]!r}: {shown(c)}" for c in list(self.cells.values())[-4:]]
        lines += [f"asked on stdin: {prompt!r}" for prompt in self.prompts]
        for comm_id, state in list(self.widgets.items())[-60:]:
            keys = ("description", "value", "disabled", "_view_count")
            said = {k: str(state[k])[:200] for k in keys if state.get(k) not in (None, "")}
            name = str(state.get("_model_name", "?"))
            if not name.endswith(("LayoutModel", "StyleModel")):
                lines.append(f"widget {comm_id[:8]} {name} {said}")
        return "\n".join(lines)

    def _take(self, frames: list[bytes], iopub: bool) -> None:
        session = self.client.session
        if iopub:
            self.iopub_bytes += sum(len(frame) for frame in frames)
            self.iopub_messages += 1
        _, parts = session.feed_identities(frames)
        message = session.deserialize(parts)
        kind, content = message["header"]["msg_type"], message["content"]
        parent = str(message["parent_header"].get("msg_id", ""))
        cell = self.cells.get(parent)
        if kind == "input_request":
            self.prompts.append(content["prompt"])
        elif kind.startswith("comm_"):
            self._comm(kind, content, message.get("buffers") or [])
        elif kind == "status":
            if content["execution_state"] == "idle":
                self.handled.add(parent)
        elif kind == "update_display_data":
            self._update_display(content)
        elif cell is not None:
            self._cell_message(cell, kind, content)
        if cell is not None and not cell.ended:
            cell.idle = cell.idle or cell.id in self.handled
            if cell.done:
                cell.ended = time.monotonic()
                self.order.append(cell)
        if self.front_end:
            self._report_views()

    def _cell_message(self, cell: Cell, kind: str, content: dict[str, Any]) -> None:
        if kind == "execute_input":
            cell.started = True
        elif kind == "execute_reply":
            cell.reply = content
        elif kind == "clear_output":
            cell.clear_next = content["wait"]
            if not content["wait"]:
                cell.outputs.clear()
        elif kind in {"stream", "display_data", "execute_result", "error"}:
            if cell.clear_next:
                cell.outputs.clear()
                cell.clear_next = False
            cell.outputs.append({"output_type": kind, **content})

    def _update_display(self, content: dict[str, Any]) -> None:
        display_id = content["transient"]["display_id"]
        for output in itertools.chain.from_iterable(c.outputs for c in self.cells.values()):
            if output.get("transient", {}).get("display_id") == display_id:
                output["data"], output["metadata"] = content["data"], content["metadata"]

    def _comm(self, kind: str, content: dict[str, Any], buffers: list[Any]) -> None:
        comm_id, data = content["comm_id"], content.get("data", {})
        if kind == "comm_close":
            self.widgets.pop(comm_id, None)
            self.closed.add(comm_id)
        elif data.get("method") == "custom":
            self.custom.append((comm_id, data.get("content")))
        elif kind == "comm_open" or data.get("method") in {"update", "echo_update"}:
            state = data.get("state", {})
            for path, buffer in zip(data.get("buffer_paths", []), buffers, strict=False):
                _put(state, path, bytes(buffer))
            self.widgets.setdefault(comm_id, {}).update(state)

    def _report_views(self) -> None:
        for cell in self.cells.values():
            for comm_id in self._within(cell):
                if self.widgets.get(comm_id, {}).get("_view_count") == 0:
                    self.view(comm_id)


def shown(cell: Cell) -> str:
    """A cell's state and outputs on one line."""
    if cell.done:
        state = cell.error or "ok"
    else:
        begun = "running" if cell.started else "not begun"
        state = f"{begun}, reply {cell.reply is not None}, idle {cell.idle}"
    errors = [o.get("evalue", "") for o in cell.outputs if o["output_type"] == "error"]
    return f"{state}; {errors or ''} printed {cell.text[-1000:]!r}; {len(cell.views)} widget views"


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value.startswith(REFERENCE):
            yield value.removeprefix(REFERENCE)
    elif isinstance(value, dict):
        for item in value.values():  # pyright: ignore[reportUnknownVariableType]
            yield from _references(item)
    elif isinstance(value, list):
        for item in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _references(item)


def _put(state: Any, path: list[str | int], value: bytes) -> None:
    for key in path[:-1]:
        state = state[key]
    state[path[-1]] = value


def _waiting(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    while socket.poll(0):
        yield socket.recv_multipart()

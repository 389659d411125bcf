"""The command line: `nbagent quickstart`, `nbagent fetch`, `nbagent show LOG`."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nbagent import __version__
from nbagent.errors import ConfigError, CorruptLogError, NbAgentError
from nbagent.escape import clean

__all__ = ["main"]

FIRST, SECOND = "01_quickstart.ipynb", "02_anatomy_of_a_loop.ipynb"
FOLDER = "nbagent-notebooks"
"""What people may change or throw away: copies of an installed package's notebooks, executed ones."""
CELL_TIMEOUT_S = 600
WIDEST = 100
"""Tables of an executed notebook are no wider than this, and no wider than the terminal."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit code."""
    try:
        options = _parser().parse_args(arguments)
        return options.command(options)
    except NbAgentError as error:
        _say(f"nbagent: {error}", sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the flush at exit complains
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nbagent", description="LLM agents in a notebook: watch, steer, approve, analyse."
    )
    parser.add_argument("--version", action="version", version=f"nbagent {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    quickstart = commands.add_parser(
        "quickstart",
        help="open the first notebook in JupyterLab, or run it without a browser",
        description=(
            "Open the first notebook in JupyterLab. From an installed package the notebooks are"
            " copied first; copies that are there are kept as they are."
        ),
    )
    quickstart.add_argument(
        "--execute",
        action="store_true",
        help="run it in a fresh kernel, without a browser, and print what came out;"
        " the notebook itself is not changed",
    )
    quickstart.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"with --execute: where to keep the executed notebook (default: {_executed(Path(FOLDER))})",
    )
    quickstart.add_argument(
        "--folder",
        type=Path,
        default=Path(FOLDER),
        help="for executed notebooks, and for copies of an installed package's notebooks"
        " (default: %(default)s)",
    )
    quickstart.add_argument(
        "options", nargs="*", help="after --: options for JupyterLab, such as --no-browser"
    )
    quickstart.set_defaults(command=_quickstart)

    fetch = commands.add_parser("fetch", help="download the local model's weights, once")
    fetch.set_defaults(command=_fetch)

    show = commands.add_parser("show", help="print the tables of a session's log file")
    show.add_argument("log", type=Path, metavar="LOG", help="a file that ends in .jsonl")
    show.set_defaults(command=_show)
    return parser


# ---- fetch, show -------------------------------------------------------------------------------


def _fetch(options: argparse.Namespace) -> int:
    from nbagent.models.fetch import fetch

    fetch(_say)
    if find_spec("xllamacpp") is None:
        _say(f"The local model also needs its runtime: {_pip('local')}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from nbagent.frames import show
    from nbagent.session import Session

    path: Path = options.log
    _check_log(path)
    try:
        session = Session.open(path)
    except CorruptLogError:  # the tables of what stands before the damage, which the head names
        session = Session.open(path, until_damage=True)
    _say(show(session.log), end="")
    return 0 if session.verify() else 1


def _check_log(path: Path) -> None:
    """Say what is wrong where opening a session would quietly begin a new one."""
    if path.is_dir():
        found = ", ".join(sorted(entry.name for entry in path.glob("*.jsonl"))[:20])
        msg = f"{path} is a folder: name one of its logs ({found or 'there is none in it'})"
        raise ConfigError(msg)
    if not path.exists():
        msg = f"there is no file {path}"
        raise ConfigError(msg)
    if path.stat().st_size == 0:
        msg = f"{path} is empty: no run has written to it yet"
        raise ConfigError(msg)


# ---- quickstart --------------------------------------------------------------------------------


def _quickstart(options: argparse.Namespace) -> int:
    if options.output and not options.execute:
        msg = "--output keeps what --execute made: give both"
        raise ConfigError(msg)
    if options.execute:
        return _execute(_notebooks() / FIRST, options.output or _executed(options.folder))
    return _open_lab(options.folder, options.options)


def _open_lab(folder: Path, options: list[str]) -> int:
    if find_spec("jupyterlab") is None:
        msg = f"JupyterLab is not installed: {_pip('lab')}"
        raise ConfigError(msg)
    for line in _missing():
        _say(f"The notebook's first cells need more: {line}")
    path = _own_notebooks(folder) / FIRST
    _say(f"Opening {path} in JupyterLab; Ctrl-C ends it")
    # JupyterLab answers Ctrl-C itself, with a question; this process only waits for it.
    signal.signal(signal.SIGINT, _ignore)
    command = [sys.executable, "-m", "jupyterlab", str(path), *options]
    return subprocess.run(command, check=False).returncode


def _ignore(_signal: int, _frame: object) -> None:
    """Do nothing."""


def _executed(folder: Path) -> Path:
    """Where the executed first notebook is kept if nobody says otherwise."""
    return folder / f"{Path(FIRST).stem}.executed.ipynb"


def _execute(path: Path, output: Path) -> int:
    missing = [*_missing()]
    if find_spec("nbclient") is None:
        missing.append(f"what runs notebooks: {_pip('lab')}")
    if missing:
        msg = f"{path.name} needs more:\n  " + "\n  ".join(missing)
        raise ConfigError(msg)
    import nbformat

    _check_writable(output)
    notebook: Any = nbformat.read(path, as_version=4)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    _say(f"Running {path.name} in a fresh kernel of Python {platform.python_version()}")
    failure = _run_cells(notebook, path.parent)
    output.write_text(nbformat.writes(notebook), "utf-8")  # pyright: ignore[reportUnknownMemberType]
    kept = f"The executed notebook, with all outputs: {output}"
    if failure:
        _say(kept)
        _say(f"nbagent: {failure}", sys.stderr)
        return 1
    for tag, title in (("answer", "The answer"), ("tools", "Its tool calls")):
        _say(f"\n{title}\n\n{_shown(notebook, tag)}")
    _say(f"\n{kept}\n\n{_next_steps(output)}")
    return 0


def _check_writable(output: Path) -> None:
    """Say before the minute of work that its outcome could not be kept, not after it."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        is_new = not output.exists()
        with output.open("ab"):  # no byte is changed
            pass
        if is_new:
            output.unlink()
    except OSError as error:
        msg = f"can't write {output} ({error.strerror}): name another file with --output"
        raise ConfigError(msg) from error


def _next_steps(output: Path) -> str:
    """What to do after the first notebook, as commands to copy."""
    python = Path(sys.executable)
    with suppress(ValueError):
        python = python.relative_to(Path.cwd())
    module = f"{shlex.quote(str(python))} -m"
    return (
        "What next\n\n"
        f"  look at it        {module} jupyterlab {shlex.quote(str(output))}\n"
        f"  run it yourself   {module} nbagent quickstart\n"
        f"  the next one      {SECOND}, beside it in JupyterLab: one run taken apart\n"
        f'  keep your runs    agent.run(…, session="runs/demo.jsonl"), then\n'
        f"                    {module} nbagent show runs/demo.jsonl"
    )


def _run_cells(notebook: Any, folder: Path) -> str | None:
    """Execute the notebook's cells into it; gives what went wrong, None if nothing."""
    from ipykernel.kernelspec import write_kernel_spec
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError
    from nbformat.v4 import new_code_cell  # pyright: ignore[reportUnknownVariableType]

    progress = _Progress(notebook)
    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    wide = (
        f"import os as _o, pandas as _p; _o.environ['COLUMNS'] = '{width}'\n"
        f"_p.set_option('display.width', {width}, 'display.max_columns', 99)"
    )
    # Tables that fit this terminal: a cell in front, which is taken away again.
    first: Any = new_code_cell(wide)
    notebook.cells.insert(0, first)
    with ExitStack() as stack:
        name = stack.enter_context(TemporaryDirectory())
        # The kernel that is installed as "python3" may belong to another environment.
        write_kernel_spec(Path(name) / "here")
        client = NotebookClient(
            notebook,
            kernel_name="here",
            timeout=CELL_TIMEOUT_S,
            resources={"metadata": {"path": str(folder)}},
        )
        manager: Any = client.create_kernel_manager()
        manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[name])
        manager.connection_file = str(Path(name) / "kernel.json")
        if os.name == "posix":  # local sockets; by TCP ipykernel warns that it is not encrypted
            manager.transport = "ipc"
        # What the kernel's own machinery says, not the cells: of interest only if it dies.
        log = stack.enter_context((Path(name) / "kernel.log").open("w+"))
        try:
            # Cell by cell: `client.execute` takes Ctrl-C for itself and stumbles over it.
            with client.setup_kernel(stderr=log):
                client.execute_cell(first, 0, store_history=False)
                for index, cell in enumerate(notebook.cells[1:], 1):
                    with progress.of(cell):
                        client.execute_cell(cell, index)
                client.set_widgets_metadata()
        except (CellControlSignal, DeadKernelError, RuntimeError) as error:
            log.seek(0)
            return progress.failed(error, log.read()[-2_000:])
        finally:
            notebook.cells.remove(first)
    return None


class _Progress:
    """A line per code cell: number, the heading above it, seconds."""

    def __init__(self, notebook: Any) -> None:
        self._most = sum(cell.cell_type == "code" for cell in notebook.cells)
        self._number = 0
        self._heading = ""

    @contextmanager
    def of(self, cell: Any) -> Generator[None]:
        if cell.cell_type != "code":
            if cell.source.startswith("#"):
                self._heading = cell.source.partition("\n")[0].lstrip("# ")
            yield
            return
        self._number += 1
        _say(f"{self._number:3}/{self._most}  {self._heading:40}", end="")
        since = time.monotonic()
        try:
            yield
        finally:
            _say(f"  {time.monotonic() - since:5.1f} s")

    def failed(self, error: BaseException, log: str) -> str:
        """What to tell the reader about it; `log` is what the kernel said of itself."""
        name, value = getattr(error, "ename", None), getattr(error, "evalue", "")
        said = f"{name}: {value}" if name else f"{str(error).strip()}\n{log}".rstrip()
        return f"cell {self._number} of the notebook failed ({self._heading}):\n{clean(said)}"


def _shown(notebook: Any, tag: str) -> str:
    """What the cell with this tag shows, as text."""
    for cell in notebook.cells:
        if tag in cell.metadata.get("tags", ()):
            texts = [
                output.text
                if output.output_type == "stream"
                else output.get("data", {}).get("text/plain", "")
                for output in cell.outputs
            ]
            return clean("\n".join(texts)).strip("\n")
    return f"(no cell of the notebook has the tag {tag!r})"


# ---- what is here ------------------------------------------------------------------------------


def _notebooks() -> Path:
    """The folder with the notebooks: in the package when it is installed, else in the checkout.

    Raises
    ------
    ConfigError
        If there is none.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_notebooks", package.parent / "notebooks"):
        if (folder / FIRST).is_file():
            return folder
    msg = f"the notebooks are missing from this installation ({package}): install nbagent again"
    raise ConfigError(msg)


def _own_notebooks(folder: Path) -> Path:
    """Notebooks that may be changed: those of the checkout, else copies in `folder`."""
    source = _notebooks()
    if source.name != "_notebooks":
        return source
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(source.glob("*.ipynb")):
            if not (folder / path.name).exists():
                shutil.copyfile(path, folder / path.name)
    except OSError as error:
        msg = f"can't copy the notebooks to {folder} ({error.strerror}): give another --folder"
        raise ConfigError(msg) from error
    return folder


def _missing() -> list[str]:
    """What the local model lacks, each with the command that brings it."""
    from nbagent.models.fetch import weights_path

    lines: list[str] = []
    if find_spec("xllamacpp") is None:
        lines.append(f"the local model's runtime: {_pip('local')}")
    if weights_path() is None:
        lines.append(f"the local model's weights: {sys.executable} -m nbagent fetch")
    return lines


def _say(line: str, stream: Any = None, end: str = "\n") -> None:
    """Write a line at once, also into a pipe or a file that can't show every character."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write((line + end).encode(encoding, "replace").decode(encoding))
    stream.flush()


def _pip(extra: str) -> str:
    return f'{sys.executable} -m pip install "nbagent[{extra}]"'


if __name__ == "__main__":
    sys.exit(main())

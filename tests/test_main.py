"""The command line, run as people run it: `python -m nbagent …` in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import nbagent as nb
from nbagent import __main__ as cli

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "notebooks"


def nbagent(
    *arguments: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    here = {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
    return subprocess.run(
        [sys.executable, "-m", "nbagent", *arguments],
        env={**os.environ, **here, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=110,
        check=False,
        cwd=cwd,
    )


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """What a failed command says: on stderr, in the tool's name, without a traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("nbagent: ")
    return done.stderr


def test_version_and_help():
    assert nbagent("--version").stdout == f"nbagent {nb.__version__}\n"
    text = nbagent("--help").stdout
    assert all(word in text for word in ("quickstart", "fetch", "show"))


def test_no_command_and_an_unknown_one_are_usage_errors():
    for arguments in ([], ["shwo"]):
        done = nbagent(*arguments)
        assert done.returncode == 2
        assert "usage: nbagent" in done.stderr


# ---- show --------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Path:
    @nb.tool(risk="readonly")
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    path = tmp_path / "demo.jsonl"
    model = nb.models.Scripted([nb.call("add", a=2, b=3), "Das ist 5 – fünf."])
    nb.Agent(model, tools=[add]).run_sync("2 + 3?", session=path)
    nb.Session.open(path).close()
    return path


def test_show_prints_the_tables_of_a_log(log: Path):
    done = nbagent("show", str(log))
    assert done.returncode == 0, done.stderr
    assert "verified" in done.stdout
    assert "\nsteps\n" in done.stdout
    assert "\ntools\n" in done.stdout
    assert "Das ist 5 – fünf." in done.stdout


def test_show_writes_nothing(log: Path):
    before = {path.name: path.read_bytes() for path in log.parent.iterdir()}
    assert nbagent("show", str(log)).returncode == 0
    assert {path.name: path.read_bytes() for path in log.parent.iterdir()} == before


def test_show_survives_a_terminal_that_lacks_characters(log: Path):
    done = nbagent("show", str(log), env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert "Das ist 5 ? f?nf." in done.stdout


def test_show_survives_a_reader_that_leaves(log: Path):
    command = [sys.executable, "-m", "nbagent", "show", str(log)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""


def test_show_names_what_is_wrong_with_a_file(log: Path, tmp_path: Path):
    missing = tmp_path / "no.jsonl"
    assert f"there is no file {missing}" in failed(nbagent("show", str(missing)))
    assert not missing.exists()

    assert "demo.jsonl" in failed(nbagent("show", str(tmp_path)))

    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "is empty" in failed(nbagent("show", str(empty)))

    other = tmp_path / "notes.txt"
    other.write_text("hello")
    assert "ends in .jsonl" in failed(nbagent("show", str(other)))


@pytest.mark.parametrize(
    "content", [b"hello\n", b'{"a": 1}\n{"a": 2}\n', b"[1, 2]\n", b"\xff\xfe\x00\x01\n", b"\n\n"]
)
def test_show_refuses_a_foreign_file(tmp_path: Path, content: bytes):
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(content)
    assert "foreign.jsonl" in failed(nbagent("show", str(path)))


@pytest.mark.damages_files
def test_show_names_the_damaged_line_and_prints_what_stands_before_it(log: Path):
    lines = log.read_bytes().split(b"\n")
    at = next(n for n, line in enumerate(lines) if b"Das ist 5" in line)
    lines[at] = lines[at].replace(b"Das ist 5", b"Das ist 6")
    log.write_bytes(b"\n".join(lines))
    before = log.read_bytes()
    done = nbagent("show", str(log))
    assert done.returncode == 1
    assert "DAMAGED" in done.stdout
    assert f"(line {at + 1})" in done.stdout
    assert "what follows stands before the damaged line" in done.stdout
    assert "add " in done.stdout.split("\ntools\n")[1]
    assert "Das ist" not in done.stdout
    assert log.read_bytes() == before


@pytest.mark.damages_files
def test_show_of_a_log_that_is_damaged_at_its_first_event_has_no_tables(log: Path):
    lines = log.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"2 + 3?", b"2 + 4?")
    log.write_bytes(b"\n".join(lines))
    done = nbagent("show", str(log))
    assert done.returncode == 1
    assert "(line 2)" in done.stdout
    assert "\ntools\n" not in done.stdout


@pytest.mark.damages_files
def test_show_reads_a_log_whose_last_line_is_unfinished(log: Path):
    log.write_bytes(log.read_bytes()[:-5])
    done = nbagent("show", str(log))
    assert done.returncode == 0, done.stderr
    assert "torn" in done.stdout


# ---- fetch -------------------------------------------------------------------------------------


@pytest.mark.local_model
def test_fetch_says_at_once_where_the_weights_are():
    done = nbagent("fetch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert ".gguf" in done.stdout


def test_fetch_says_what_failed(tmp_path: Path):
    nowhere = {
        "NBAGENT_CACHE": str(tmp_path / "cache"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "0",
        "PIP_NO_INDEX": "1",
    }
    done = nbagent("fetch", env=nowhere)
    assert "could not be downloaded" in failed(done)
    assert "Downloading" in done.stdout


# ---- quickstart --------------------------------------------------------------------------------


def test_quickstart_names_the_command_that_brings_the_weights(tmp_path: Path):
    done = nbagent("quickstart", "--execute", env={"NBAGENT_CACHE": str(tmp_path)})
    assert "python -m nbagent fetch" in failed(done).replace(sys.executable, "python")


def test_quickstart_names_the_command_that_installs_what_is_missing(tmp_path: Path):
    blocked = _without(tmp_path, "jupyterlab", "nbclient", "xllamacpp")
    assert '-m pip install "nbagent[lab]"' in failed(nbagent("quickstart", env=blocked))
    said = failed(nbagent("quickstart", "--execute", env=blocked))
    assert '-m pip install "nbagent[local]"' in said
    assert '-m pip install "nbagent[lab]"' in said


def test_output_needs_execute(tmp_path: Path):
    done = nbagent("quickstart", "--output", str(tmp_path / "out.ipynb"))
    assert "--execute" in failed(done)


@pytest.mark.slow
def test_a_failing_cell_is_named_and_the_notebook_is_not_changed(tmp_path: Path):
    path = _installed(tmp_path, ["print('fine')", "1 / 0", "print('never')"])
    before = path.read_bytes()
    output = tmp_path / "out.ipynb"
    done = nbagent(
        "quickstart", "--execute", "--output", str(output), env=_package(tmp_path), cwd=tmp_path
    )
    said = failed(done)
    assert "cell 2 of the notebook failed (Part)" in said
    assert "ZeroDivisionError: division by zero" in said
    assert path.read_bytes() == before
    cells = json.loads(output.read_text("utf-8"))["cells"]
    assert [len(cell.get("outputs", [])) for cell in cells] == [0, 1, 1, 0]


@pytest.mark.slow
def test_the_executed_notebook_is_kept_and_told_with_what_to_do_next(tmp_path: Path):
    path = _installed(tmp_path, ["6 * 7"], tags=["answer"])
    before = path.read_bytes()
    done = nbagent("quickstart", "--execute", env=_package(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kept = Path("nbagent-notebooks") / "01_quickstart.executed.ipynb"
    assert path.read_bytes() == before
    cells = json.loads((tmp_path / kept).read_text("utf-8"))["cells"]
    assert cells[1]["outputs"][0]["data"]["text/plain"] in ("42", ["42"])
    where, following = done.stdout.split("The executed notebook, with all outputs: ")[1].split(
        "What next"
    )
    assert where.strip() == str(kept)
    for words in (
        f"{sys.executable} -m jupyterlab {kept}",
        "-m nbagent quickstart\n",
        "02_anatomy_of_a_loop.ipynb",
        "-m nbagent show runs/demo.jsonl",
    ):
        assert words in following


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "most"), [("", 100), ("250", 100), ("60", 60)])
def test_the_printed_table_fits_the_line_and_loses_no_word(tmp_path: Path, columns: str, most: int):
    _installed(tmp_path, [TABLE], tags=["tools"])
    done = nbagent(
        "quickstart", "--execute", env={**_package(tmp_path), "COLUMNS": columns}, cwd=tmp_path
    )
    table = done.stdout.split("Its tool calls\n\n")[1].split("\n\n")[0]
    assert max(map(len, table.splitlines())) <= most
    words = re.sub(r"\s+", "", table)
    assert "…" not in words
    assert all(word in words for word in ("save_", "unattended", "saved"))


TABLE = """
import nbagent as nb
@nb.tool(risk="mutating")
def save_note(text: str) -> str:
    "Save a note."
    return "saved"
script = [nb.call("save_note", text="The wingspan of the owl is 394 cm."), "Done."]
approval = nb.Approval(when_unattended="allow")
agent = nb.Agent(nb.models.Scripted(script), tools=[save_note], approval=approval)
result = await agent.run("Note it.")
result.to_pandas("tools", columns=["name", "args_json", "status", "decision_source", "result"])
"""


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(tmp_path: Path):
    _installed(tmp_path, ["6 * 7"])
    (tmp_path / "file").touch()
    for arguments in (["--output", "file/out.ipynb"], ["--folder", "file"], ["--output", "."]):
        done = nbagent("quickstart", "--execute", *arguments, env=_package(tmp_path), cwd=tmp_path)
        assert "name another file with --output" in failed(done)
        assert "Running" not in done.stdout


def test_git_ignores_the_folder_of_executed_notebooks():
    ignored = (ROOT / ".gitignore").read_text("utf-8").splitlines()
    assert f"{cli.FOLDER}/" in ignored


@pytest.mark.slow
def test_a_kernel_that_dies_is_a_failure(tmp_path: Path):
    _installed(tmp_path, ["import os; os._exit(3)"])
    said = failed(nbagent("quickstart", "--execute", env=_package(tmp_path), cwd=tmp_path))
    assert "cell 1 of the notebook failed" in said


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_the_kernel_and_the_command_quietly(tmp_path: Path):
    _installed(tmp_path, ["import os; print(os.getpid())", "import time; time.sleep(60)"])
    env = {**os.environ, **_package(tmp_path)}
    command = [sys.executable, "-m", "nbagent", "quickstart", "--execute"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):  # the title, the first cell
            process.stdout.readline()
        process.stdout.read(len("  2/2"))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == ""


@pytest.mark.slow
def test_the_kernel_is_this_interpreter_and_the_tagged_cells_are_printed(tmp_path: Path):
    _installed(tmp_path, ["import sys; print(sys.executable)", "6 * 7"], tags=["answer", "tools"])
    done = nbagent("quickstart", "--execute", env=_package(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    _, answer, tools = (part.strip() for part in done.stdout.split("\n\n", 2))
    assert answer == "The answer"
    printed = tools.split("The executed notebook")[0].split()
    assert printed == [sys.executable, "Its", "tool", "calls", "42"]


def test_an_installed_package_copies_its_notebooks_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source = tmp_path / "_notebooks"
    shutil.copytree(NOTEBOOKS, source)
    monkeypatch.setattr(cli, "_notebooks", lambda: source)
    mine = tmp_path / "mine"
    assert cli._own_notebooks(mine) == mine
    assert {path.name for path in mine.iterdir()} == {path.name for path in source.glob("*.ipynb")}
    (mine / cli.FIRST).write_text("changed")
    cli._own_notebooks(mine)
    assert (mine / cli.FIRST).read_text() == "changed"


def test_a_wheel_holds_the_notebooks_where_the_command_looks():
    built = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = built["targets"]["wheel"]
    assert wheel["only-include"] == ["nbagent", "notebooks"]
    assert wheel["sources"] == {"notebooks": "nbagent/_notebooks"}


def test_quickstart_opens_the_first_notebook_in_jupyterlab_with_its_options(tmp_path: Path):
    (tmp_path / "jupyterlab.py").write_text("import sys; print(sys.argv[1:]); sys.exit(7)")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = nbagent("quickstart", "--", "--no-browser", env=env)
    assert done.returncode == 7
    assert f"{[str(NOTEBOOKS / cli.FIRST), '--no-browser']}\n" in done.stdout


def test_a_checkout_uses_its_own_notebooks(tmp_path: Path):
    assert cli._own_notebooks(tmp_path) == NOTEBOOKS
    assert list(tmp_path.iterdir()) == []


def _installed(tmp_path: Path, cells: list[str], tags: list[str] | None = None) -> Path:
    """Lay the package out as a wheel does, with a first notebook of these cells."""
    form: Any = importlib.import_module("nbformat.v4")  # its types are partial
    shutil.copytree(
        ROOT / "nbagent",
        tmp_path / "site" / "nbagent",
        ignore=shutil.ignore_patterns("__pycache__", "_notebooks"),
    )
    made = form.new_notebook()
    made.cells = [form.new_markdown_cell("## Part\ntext"), *map(form.new_code_cell, cells)]
    for cell, tag in zip(made.cells[1:], tags or [], strict=False):
        cell.metadata["tags"] = [tag]
    path = tmp_path / "site" / "nbagent" / "_notebooks" / cli.FIRST
    path.parent.mkdir()
    path.write_text(json.dumps(made), "utf-8")
    return path


def _package(tmp_path: Path) -> dict[str, str]:
    """An environment in which that package is found, and the local model is taken to be there."""
    site = tmp_path / "site"
    (site / "xllamacpp.py").touch()
    (site / "sitecustomize.py").write_text(
        "import nbagent.models.fetch as f\nf.weights_path = lambda: f.Path(__file__)\n"
    )
    return {"PYTHONPATH": str(site)}


def _without(tmp_path: Path, *modules: str) -> dict[str, str]:
    """An environment in which these modules seem not to be installed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        f"u.find_spec = lambda name, *a: None if name in {modules!r} else find(name, *a)\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

"""The command ``weft``: help without torch, what ``doctor`` and ``cache`` say, exit codes."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from weft.codegen import ptx
from weft.errors import WeftError
from weft.runtime import cuda
from weft.runtime.cache import DiskCache
from weft.workbench import cache, doctor
from weft.workbench.report import UsageError
from weft.workbench.sources import Source
from weft_cli.app import app

ROOT = Path(__file__).parents[2]


def weft(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_help_imports_no_torch() -> None:
    text = (
        "import sys, weft_cli\n"
        "sys.argv = ['weft', '--help']\n"
        "try:\n    weft_cli.main()\n"
        "finally:\n    print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Usage: weft" in done.stdout
    assert "doctor" in done.stdout
    names = {name.partition(".")[0] for name in done.stderr.split()}
    assert "weft_cli" in names
    assert names & {"torch", "weft", "numpy", "rich", "llvmlite"} == set()


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[str]:
    """Lines of blocks, and words between backticks, that call weft."""
    blocks = re.findall(r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return [c for c in [*lines, *re.findall(r"`([^`\n]+)`", text)] if re.match(r"weft [a-z]+\b", c)]


def test_commands_in_documents_are_understood() -> None:
    """Nothing is carried out: names of commands and of options are looked up, values converted."""
    group = typer.main.get_command(app)
    every = [(d.name, command) for d in DOCUMENTS for command in commands(d.read_text())]
    assert len({command.split()[1] for _, command in every}) == len(group.commands)
    for document, command in every:
        _, name, *words = shlex.split(command, comments=True)
        assert name in group.commands, f"{document}: {command}"
        error = ""
        try:
            group.commands[name].make_context(name, words)
        except Exception as found:  # of the command line, told below
            error = str(found)
        # Between backticks there may be the options alone.
        assert error == "" or "Missing parameter" in error, f"{document}: {command}: {error}"


def test_usage_is_2() -> None:
    assert weft("docter").exit_code == 2
    assert weft("doctor", "--fast").exit_code == 2


def test_doctor_says_what_is_missing_what_it_costs_and_how_to_get_it(monkeypatch) -> None:
    def none() -> Any:
        raise WeftError("no CUDA driver: none\nhelp: buy one")

    monkeypatch.setattr(cuda, "driver", none)
    monkeypatch.setattr(ptx, "ptxas", lambda: None)
    done = weft("doctor", "--no-measure")
    assert done.exit_code == 0, done.output
    assert (
        "missing: CUDA driver (no CUDA driver: none)\n"
        "    without it: kernels run on the CPU (they can still be compiled for GPUs: "
        "weft.compile_for)\n"
        "    to get it: a machine with an NVIDIA GPU and its driver\n"
    ) in done.output
    told = json.loads(weft("doctor", "--no-measure", "--json").output)
    assert told["ok"] is True
    assert told["limits"] == []
    found = {f["what"]: f for f in told["findings"]}
    assert found["torch"]["value"] == torch.__version__
    assert found["ptxas"]["state"] == "missing"
    assert all(f["costs"] and f["remedy"] for f in told["findings"] if f["state"] == "missing")


@pytest.mark.slow
def test_doctor_finds_that_kernels_do_not_compute_what_they_should(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "small_sum", lambda out, x, y: out.fill_(3.0))
    done = weft("doctor", "--no-measure")
    assert done.exit_code == 1
    assert "WRONG: a kernel is compiled and run (on cpu: [3.0, 3.0" in done.output
    monkeypatch.setattr(doctor, "small_sum", lambda out, x, y: 1 // 0)
    assert "ZeroDivisionError" in weft("doctor", "--no-measure").output


@pytest.fixture
def entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A cache with three entries; what it lists."""
    folder = DiskCache(tmp_path / "cache", limit=1 << 20)
    monkeypatch.setattr(cache, "disk", lambda options: folder)
    for k in range(3):
        assert folder.store(f"{k}" * 20, {"name": f"loop_{k}"}, bytes(1000))
        os.utime(folder.folder / f"{str(k) * 20}.weft", (1e9 + k, 1e9 + k))

    def listed() -> list[str]:
        return [row["what"] for row in json.loads(weft("cache", "list", "--json").output)["list"]]

    return listed


def test_cache_says_where_and_how_much(entries, tmp_path) -> None:
    done = weft("cache")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        f"place    {tmp_path / 'cache'}", "entries  3", "size     0.0 MB of at most 1.0 MB",
    ]  # fmt: skip
    assert entries() == ["loop_2", "loop_1", "loop_0"]
    assert "loop_1  1,091" in weft("cache", "list").output


def test_cache_prunes_what_was_used_longest_ago(entries) -> None:
    assert weft("cache", "prune", "--megabytes", "0.0025").output.startswith("deleted  1\n")
    assert entries() == ["loop_2", "loop_1"]
    assert weft("cache", "prune", "--days", "10").output.startswith("deleted  2\n")
    assert entries() == []


def test_cache_clears(entries) -> None:
    assert json.loads(weft("cache", "clear", "--json").output)["deleted"] == 3
    assert entries() == []


def test_cache_refuses_what_it_does_not_do(entries, monkeypatch) -> None:
    done = weft("cache", "empty")
    assert done.exit_code == 2
    assert done.stderr == (
        "weft: 'empty' is nothing that `weft cache` does\nhelp: write show, list, clear or prune\n"
    )
    assert weft("cache", "clear", "--days", "3").exit_code == 2
    monkeypatch.setattr(cache, "disk", lambda options: None)
    assert "unset WEFT_CACHE" in weft("cache").stderr


def test_arguments_may_be_what_a_function_gives() -> None:
    """As a tuple, or with a star: without a comma behind it, too."""
    source = Source(None, {"pair": lambda: (1, 2)})
    for text, found in (("*pair()", (1, 2)), ("pair()", (1, 2)), ("*pair(), 3", (1, 2, 3)),
                        ("3", (3,)), ("", ())):  # fmt: skip
        assert source.evaluate(text) == found
    with pytest.raises(UsageError, match="SyntaxError"):
        source.evaluate("*")


PLAIN = """import torch
import weft


@weft.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        out[i] = 2 * x[i]
    return out


def plain(x):
    return x
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files in it that a person may name."""
    for name, text in (
        ("good_file.py", PLAIN),
        ("lacks_file.py", "import not_there_at_all\n"),
        ("raises_file.py", "def inner():\n    return 1 / 0\n\n\ninner()\n"),
        ("wrong_file.py", "def f(:\n"),
        ("ends_file.py", "raise SystemExit(3)\n"),
    ):
        (tmp_path / name).write_text(text)  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("good_file", "lacks_file"):
        sys.modules.pop(name, None)


def test_a_file_that_cannot_be_imported_is_told_by_its_own_frames(files: Path) -> None:
    def told(name: str) -> str:
        done = weft("check", name)
        assert done.exit_code == 2, done.output
        return done.stderr

    assert told("lacks_file.py:k") == told("lacks_file:k").replace(
        "lacks_file c", "lacks_file.py c"
    )
    assert told("raises_file.py:k") == (
        "weft: raises_file.py cannot be imported:\n"
        f'  File "{files}/raises_file.py", line 5, in <module>\n    inner()\n'
        f'  File "{files}/raises_file.py", line 2, in inner\n    return 1 / 0\n'
        "           ~~^~~\nZeroDivisionError: division by zero\n"
    )
    assert told("wrong_file.py:k").startswith(
        f'weft: wrong_file.py cannot be imported:\n  File "{files}/wrong_file.py", line 1\n'
    )
    assert told("ends_file.py") == (
        "weft: ends_file.py ended the program with 3 when it was imported\n"
        'help: put what runs under `if __name__ == "__main__":`\n'
    )


def test_what_is_no_kernel_is_told(files: Path) -> None:
    for words, error in (
        ("check .", "there is no module '.'"),
        ("check :doubled", "there is no module ''"),
        ("check not_there_at_all:k", "there is no module 'not_there_at_all'"),
        ("check good_file.py:plain", "'plain' of good_file.py is a function, not a kernel"),
        ("check good_file:double", "good_file has no kernel 'double'"),
        ("profile good_file.py:plain", "good_file.py:plain takes x, and is called without"),
        ("bench good_file.py --device tpu", "'tpu' is no device that kernels run on"),
        ("bench good_file.py --device cuda:99", "'cuda:99' is not here: PyTorch sees"),
        ("profile not_there_at_all", "there is no file and no module not_there_at_all"),
        ("inspect good_file.py --size n=99999999999999", "arguments of these sizes cannot be made"),
        ("inspect good_file.py --size n", "--size 'n': write one number, as in --size n=1024"),
    ):
        done = weft(*words.split())
        assert done.exit_code == 2, (words, done.output)
        assert done.stderr.startswith(f"weft: {error}"), (words, done.stderr)
        assert done.stdout == ""
    told = json.loads(weft("check", "--json", "good_file:double").stdout)
    assert told["ok"] is False
    assert told["error"].startswith("weft: good_file has no kernel 'double'\nhelp: ")


def test_errors_of_the_persons_code_have_its_own_frames(files: Path) -> None:
    done = weft("inspect", "good_file.py", "--args", "3")
    assert done.exit_code == 1
    assert re.findall(r'File "(.*?)", line (\d+)', done.stderr) == [(f"{files}/good_file.py", "7")]
    assert done.stderr.splitlines()[-1].startswith("TypeError: empty_like(): argument 'input'")
    done = weft("profile", "wrong_file.py")
    assert done.exit_code == 1
    assert done.output.splitlines()[0] == (
        "WRONG: the program ended with 'SyntaxError: invalid syntax (wrong_file.py, line 1)'"
    )
    assert "weft" not in done.stderr

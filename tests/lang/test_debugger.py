"""A real pdb inside of kernels that are interpreted."""

from __future__ import annotations

import io
import os
import pdb
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import weft
from weft.runtime.watch import Watch

ROOT = Path(__file__).parents[2]


@weft.func
def product(a, b):
    c = a * b  # a line to stop at
    return c  # noqa: RET504


@weft.kernel
def convolved(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for b, t in weft.ndrange(*x.shape):
        s = 0.0
        for k in range(w.shape[0]):
            if t >= k:
                s += product(x[b, t - k], w[k])
        out[b, t] = s
    return out


@weft.kernel
def stopping(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        half = x[i] / 2
        breakpoint()
        out[i] = half + 1
    return out


@weft.kernel
def nested(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if j > 2:
                break
            s = 0.0
            for k in range(3):
                s += x[i, j] + k
            out[i, j] = s
    return out


X = torch.tensor([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
W = torch.tensor([1.0, 10.0])


@pytest.fixture
def pdb_session(monkeypatch: pytest.MonkeyPatch):
    """Has the debugger read ``commands``; gives what it has written."""
    plain = pdb.Pdb.__init__

    def session(commands: str, call) -> tuple[object, str]:
        shown = io.StringIO()

        def init(self, *args, **kwargs):
            text = io.StringIO(commands.replace("; ", "\n") + "\n")
            plain(self, *args, stdin=text, stdout=shown, nosigint=True, readrc=False)

        monkeypatch.setattr(pdb.Pdb, "__init__", init)
        monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
        tracing = sys.gettrace()
        try:
            return call(), shown.getvalue()
        finally:
            sys.settrace(tracing)

    return session


def test_breakpoint_shows_plain_numbers_and_the_iteration(pdb_session) -> None:
    out, shown = pdb_session("p half, i, x[i] * 3; iteration; c; p half; c",
                             lambda: stopping.interpret(torch.tensor([0.2, 0.4])))  # fmt: skip
    assert out.tolist() == pytest.approx([1.1, 1.2])
    assert "-> out[i] = half + 1" in shown
    assert "(0.1, 0, 0.6)" in shown
    assert "\n(Pdb) 0\n" in shown
    assert "(Pdb) 0.2\n" in shown


def test_s_goes_by_what_weft_does_and_into_the_users_functions(pdb_session) -> None:
    commands = "n; n; n; s; s; p a, b; r; n; n; finish"
    _, shown = pdb_session(commands, lambda: convolved.interpret(X, W, step=True))
    visited = [line.partition("(")[2] for line in shown.splitlines() if line.startswith("> ")]
    assert visited, shown
    assert {line.partition(")")[2] for line in visited} <= {
        "convolved()", "product()", "product()->0.1",
    }  # fmt: skip
    assert "(0.1, 1.0)" in shown


def test_up_and_where_show_the_users_frames(pdb_session) -> None:
    """Between a `weft.func` and the kernel that calls it there are frames of weft's."""
    commands = "n; n; n; s; s; up; p s, b, t; w; down; p a, b; finish"
    _, shown = pdb_session(commands, lambda: convolved.interpret(X, W, step=True))
    assert "(0.0, 0, 0)" in shown
    assert "(0.1, 1.0)" in shown
    files = {line.partition("(")[0] for line in shown.splitlines() if line[:3] in ("> /", "  /")}
    assert not [file for file in files if "/weft/runtime/" in file], shown


def test_only_one_iteration_runs_and_the_debugger_steps_by_iterations(pdb_session) -> None:
    out, shown = pdb_session("iteration; c", lambda: convolved.interpret(X, W, only=(1, 2), step=1))
    assert shown.count("iteration") == 1
    assert "iteration (1, 2)" in shown
    expected = torch.zeros(2, 3)
    expected[1, 2] = 0.6 + 5.0
    torch.testing.assert_close(out, expected)
    out, shown = pdb_session("c; c; finish", lambda: convolved.interpret(X, W, step=True))
    stops = [line for line in shown.splitlines() if "iteration (" in line]
    assert len(stops) == 3
    torch.testing.assert_close(out, convolved(X, W))


def test_only_names_loops_inside_of_each_other() -> None:
    x = torch.ones(3, 4)
    for only, count in (((2, 1), 1), ((2,), 3), (2, 3), ((0, 2), 1)):
        out = nested.interpret(x, only=only)
        first, *rest = only if isinstance(only, tuple) else (only,)
        where = (first, *rest) if rest else (first, slice(0, 3))
        assert int((out == 6.0).sum()) == count
        assert (out[where] == 6.0).all()
    for only in ((3, 0), (0, 4), (-1,)):
        with pytest.raises(weft.KernelIndexError, match="no loop has the iteration"):
            nested.interpret(x, only=only)


def test_a_parameter_of_that_name_is_the_kernels() -> None:
    @weft.kernel
    def scaled(x: torch.Tensor, only: float) -> torch.Tensor:
        out = torch.empty_like(x)
        for i in range(x.shape[0]):
            out[i] = only * x[i]
        return out

    assert scaled.interpret(torch.ones(2), only=3.0).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64,
                                   torch.int8, torch.bool])  # fmt: skip
def test_numbers_are_written_as_short_as_they_can_be(dtype: torch.dtype) -> None:
    values = torch.tensor([0.1, 1 / 3, -1e-5, 3e4, 0.0, float("inf"), float("nan"), 7]).to(dtype)
    watch = Watch()
    watched = watch.watched(values)
    watch.active = True  # in a loop
    for k, value in enumerate(values):
        scalar = watched[k]
        shown = eval(repr(scalar), {"inf": torch.inf, "nan": torch.nan})
        assert type(shown) is type(value.item())
        torch.testing.assert_close(torch.tensor(shown, dtype=dtype), value, rtol=0, atol=0,
                                   equal_nan=True)  # fmt: skip
        if dtype.is_floating_point:
            assert len(repr(scalar)) <= len(repr(value.item()))


PROGRAM = """
import torch, weft

@weft.kernel
def shifted(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        j = i + 1
        out[i] = 2 * x[j]
    return out

shifted.interpret(torch.arange(3.0))
"""


@pytest.mark.slow
def test_pdb_shows_the_iteration_that_left_the_bounds_after_the_error(tmp_path: Path) -> None:
    """In a process and a pdb of its own, as a person does it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pdb", str(program)], input="c\np i, j\nq\nq\n",
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "index (3) is out of range: dimension 0 of `x` has 3 elements" in done.stderr
    assert "(2, 3)" in done.stdout, done.stdout + done.stderr


def test_the_backward_stops_at_the_operation_of_a_line() -> None:
    """What ``watch`` of ``kernel.backward.interpret`` is given has the line and the numbers."""
    line = convolved.parts.regions[0].span.line + 4
    seen = []

    def watch(op, operands, results) -> None:
        if op.span.line == line and op.name == "arith.addf":
            seen.append(results)

    gx, gw = convolved.backward.interpret(X, W, watch=watch)
    assert seen
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    convolved(x, w).sum().backward()
    torch.testing.assert_close(gx, x.grad)
    torch.testing.assert_close(gw, w.grad)


CELLS = (
    """import io, pdb, sys
import torch, weft

def hook():  # a person types what is written here
    commands = io.StringIO("p half, i\\nc\\n")
    pdb.Pdb(stdin=commands, stdout=sys.stdout, nosigint=True).set_trace(sys._getframe(1))

sys.breakpointhook = hook""",
    """@weft.kernel
def stopping(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        half = x[i] / 2
        breakpoint()
        out[i] = half + 1
    return out""",
    "print(stopping.interpret(torch.tensor([0.2, 0.4]), only=1))",
)


@pytest.mark.slow
def test_breakpoint_stops_in_a_cell_of_a_notebook(tmp_path: Path) -> None:
    for package in ("nbclient", "ipykernel"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    import nbclient
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(tmp_path))
    text = "".join(o.get("text", "") for o in notebook.cells[-1].outputs)
    shown = re.sub("\x1b[^m]*m", "", text)  # IPython's debugger has colours
    assert "(0.2, 1)" in shown
    assert "stopping()" in shown
    assert "tensor([0.0000, 1.2000])" in shown

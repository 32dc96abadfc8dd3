"""The kernels of `examples.implementations` agree with the loops: on a GPU, or by Triton's
interpreter and Numba's simulator, in a process of their own, where these are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

with warnings.catch_warnings():  # of the peers, at import
    warnings.simplefilter("ignore")
    from examples import implementations

ROOT = Path(__file__).parents[2]
IN = {
    "triton": {"square_triton", "add_triton", "add_tuned", "add_heuristic", "add_guessed",
               "add_heuristic_above", "sine_triton", "cosine_triton"},
    "numba": {"square_numba"},
}  # fmt: skip
HERE = torch.cuda.is_available()
PROGRAM = """
import torch

from examples import implementations as of

for kernel in (of.square, of.add, of.mysin, of.mycos):
    for one in [*kernel.implementations.registered] if kernel.implementations else ():
        if one.device == "cuda" and of.DEVICE == "cpu":
            continue
        kernel.implementations.registered[:] = [one]
        sizes = (17, 33) if kernel is of.square else (301,)
        x = torch.randn(sizes, device=one.device, requires_grad=True)
        args = (x, torch.randn_like(x)) if kernel is of.add else (x,)
        detached = [v.detach() for v in args]
        expected = kernel.implementations.loop(*detached)
        kernel.implementations.verdicts.clear()
        y = kernel(*args)
        assert [*kernel.implementations.verdicts.values()] == [""]
        torch.testing.assert_close(y.detach(), expected)
        (grad,) = torch.autograd.grad(y.sum(), x)
        slope = {"square": 2 * x, "add": torch.ones_like(x), "mysin": x.cos(), "mycos": -x.sin()}
        torch.testing.assert_close(grad, slope[kernel.__name__].detach())
        torch.testing.assert_close(torch.ops.weft.__getattr__(kernel.__name__)(*detached), expected)
        print(one.name)
"""


@pytest.mark.slow
def test_implementations_agree_with_the_loop_and_have_its_gradient() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    if not HERE:
        environment |= {"TRITON_INTERPRET": "1", "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True,
        check=False, env=environment, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ran = {*done.stdout.split()}
    assert ("square_cuda" in ran) == HERE
    assert "add_c" in ran
    missing = [p for p in IN if find_spec(p) is None]
    for package in {*IN} - {*missing}:
        assert ran >= IN[package], package
    if missing:
        pytest.skip(f"the rest agrees; not installed: {', '.join(missing)}")


def test_the_loop_is_the_fallback_the_gradient_and_the_count() -> None:
    x = torch.randn(9, requires_grad=True)
    y = implementations.mysin(x)
    torch.testing.assert_close(y, x.sin())
    y.sum().backward()
    torch.testing.assert_close(x.grad, implementations.mycos(x.detach()))
    with FlopCounterMode(display=False) as counter:
        implementations.mysin(x.detach())
    assert counter.get_total_flops() == 9
    implementations.Logged.lines.clear()
    implementations.mysin(implementations.Logged(x.detach()))
    assert implementations.Logged.lines == [str(implementations.mysin.op)]


@pytest.mark.cpu
def test_c_adds() -> None:
    x, y = torch.randn(2, 1000)
    torch.testing.assert_close(implementations.add(x, y), x + y)
    assert [*implementations.add.implementations.verdicts.values()] == [""]

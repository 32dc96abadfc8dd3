"""Time that LLVM takes for long code."""

import re

import pytest
import torch

import weft
from tests.index.make import Make
from weft.codegen import cpu, pool
from weft.codegen.machine import host_cpu
from weft.compiler import optimize_for_cpu
from weft.ir.core import Function
from weft.ir.types import f32
from weft.tools.cross import lowered_loops


def marked(function: Function) -> Function:
    function.attrs["noalias"] = True
    return function


def chain(statements: int) -> Function:
    """``v = v * 0.5 + x[i]`` so often."""
    make = Make(x=1, y=1)
    with make.parallel(i=make.dim(make.x, 0)) as i:
        b = make.build
        x = value = make.load(make.x, i)
        for _ in range(statements):
            value = b.op("arith.addf", b.op("arith.mulf", value, b.constant(0.5, f32)), x)
        make.store(make.y, i, value=value)
    return marked(make.done())


@pytest.mark.parametrize(("statements", "vectors"), [(20, True), (2001, False)])
def test_long_code_is_not_vectorised(statements, vectors):
    code = cpu.compile_cpu(chain(statements))
    assert (cpu.longest_block(code.llvm) > cpu.MOST_VECTORISED) is not vectors
    found = re.search(r"fmul contract <\d+ x float>", code.optimized())
    assert (found is not None) is vectors


@weft.kernel
def deep(x, y, out):
    for i in range(x.shape[0]):
        s = 0.0
        for a in range(i, x.shape[0]):
            for b in range(i, a):
                for c in range(i, b):
                    for d in range(i, c):
                        for e in range(i, d):
                            s += x[a] * y[b, i] + x[c] * y[d, i] + x[e]
        out[i] = s


def test_a_tile_of_loops_in_loops_is_left_out_where_it_is_long():
    """Each loop begins with the lane, so it is written twice."""
    x, y, out = torch.randn(8), torch.randn(8, 8), torch.zeros(8)
    (function,) = lowered_loops(deep, x, y, out)
    code = cpu.compile_cpu(marked(function))
    assert not code.tiled
    assert code.llvm.count("\n") < 1000  # a tile has more than 9,000
    deep(x, y, out)
    expected = torch.empty(8)
    deep.interpret(x, y, expected)
    torch.testing.assert_close(out, expected)


def test_what_all_kernels_share_is_not_compiled_with_each():
    text = cpu.compile_cpu(chain(1)).llvm
    assert text.count("GOMP") == text.count("Py") == 0
    assert f"@{pool.RUN}" in text
    assert text.count("\n") < 100


def unbounded(x: torch.Tensor, out: torch.Tensor, m: int) -> None:
    for i in range(out.shape[0]):
        s = 0.0
        for k in range(m):
            if 0 <= i + k < x.shape[0]:
                s += x[i + k]
        out[i] = s


def bounded(x: torch.Tensor, out: torch.Tensor, m: int) -> None:
    for i in range(out.shape[0]):
        s = 0.0
        for k in range(x.shape[0]):
            if 0 <= i + k < x.shape[0]:
                s += x[i + k]
        out[i] = s


@pytest.mark.skipif(not host_cpu().vector_bytes, reason="no register tiles for this CPU")
@pytest.mark.slow
def test_a_vector_loop_that_signals_may_end_is_written_once() -> None:
    """Also where no tensor bounds it, so that it runs in strips."""
    texts = [
        str(weft.kernel(f).inspect(torch.empty(9), torch.empty(9), 3).text("llvm"))
        for f in (unbounded, bounded)
    ]
    loads = [text.count("@llvm.masked.load") for text in texts]
    assert loads[0] == loads[1] > 0


@weft.kernel
def groups(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], 2, dtype=x.dtype)
    for n in range(x.shape[0]):
        s, t = 0.0, 0.0
        for c in range(4):
            for j in range(x.shape[2]):
                s += x[n, c, j]
        for c in range(4):
            for j in range(3):
                t += x[n, c, j] * c
        out[n, 0] = s
        out[n, 1] = t
    return out


def test_a_loop_around_a_longer_one_is_not_written_out() -> None:
    """LLVM made four of the loop inside, which took more time to compile than all of the rest."""
    x = torch.randn(3, 4, 700)
    weights = torch.arange(4)[:, None]
    expected = torch.stack([x.sum((1, 2)), (x[:, :, :3] * weights).sum((1, 2))], 1)
    torch.testing.assert_close(groups(x), expected, rtol=1e-4, atol=1e-4)
    (loop,) = lowered_loops(groups, x)
    code = cpu.compile_cpu(optimize_for_cpu(loop))
    loops = re.findall(r"^vector\.body\w*:", code.optimized(), re.MULTILINE)
    assert len(loops) <= 1, "the long loop; none of the short ones is left"
    assert code.optimized().count(", !llvm.loop ") <= 4

"""Time that LLVM takes for long code."""

import re

import pytest

from tests.index.make import Make
from weft.codegen import cpu
from weft.ir.core import Function
from weft.ir.types import f32


def chain(statements: int) -> Function:
    """``v = v * 0.5 + x[i]`` so often."""
    make = Make(x=1, y=1)
    with make.parallel(i=make.dim(make.x, 0)) as i:
        b = make.build
        x = value = make.load(make.x, i)
        for _ in range(statements):
            value = b.op("arith.addf", b.op("arith.mulf", value, b.constant(0.5, f32)), x)
        make.store(make.y, i, value=value)
    return make.done()


@pytest.mark.parametrize(("statements", "vectors"), [(20, True), (2001, False)])
def test_long_code_is_not_vectorised(statements, vectors):
    code = cpu.compile_cpu(chain(statements), noalias=True)
    assert (cpu.longest_block(code.llvm) > cpu.MOST_VECTORISED) is not vectors
    found = re.search(r"fmul contract <\d+ x float>", cpu.optimized(code))
    assert (found is not None) is vectors

"""extrema: running maxima that may be computed in any order."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import weft
from weft.ir import interp
from weft.ir.core import walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes.reassociate_extrema import reassociate_extrema

TEXT = """
func.func @running(%x: memref<?xf32>, %out: memref<f32>, %start: f32) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {{axis = 0}} : (memref<?xf32>) -> index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%m = %start) -> (f32) {{
    %v = memref.load %x[%i] : memref<?xf32>
    %better = arith.cmpf {compare} : f32
    %next = arith.select %better, %v, %m : f32
    scf.yield %next : f32
  }}
  memref.store %r, %out[] : memref<f32>
  func.return
}}
"""
VALUES = [[], [1.0], [math.nan], [1.0, math.nan, -3.0, 2.0], [math.inf, 5.0], [-math.inf, math.nan]]


@pytest.mark.parametrize("compare", ["ogt, %v, %m", "olt, %v, %m", "oge, %m, %v", "olt, %m, %v"])
@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("start", [0.5, -math.inf, math.inf, math.nan])
def test_means_the_same(compare: str, values: list[float], start: float) -> None:
    before = parse_function(TEXT.format(compare=compare))
    after = reassociate_extrema(before)
    verify(after)
    assert any(op.name in ("arith.maxnumf", "arith.minnumf") for op in walk(after.body))
    found, expected = np.full((), 7, np.float32), np.full((), 7, np.float32)
    x = np.array(values, np.float32)
    interp.run(before, [x, expected, np.float32(start)])
    interp.run(after, [x, found, np.float32(start)])
    np.testing.assert_array_equal(found, expected)


def test_leaves_other_uses_alone() -> None:
    text = TEXT.format(compare="ogt, %v, %m").replace(
        "scf.yield %next", "memref.store %m, %out[] : memref<f32>\n    scf.yield %next"
    )
    before = parse_function(text)
    assert not any(op.name == "arith.maxnumf" for op in walk(reassociate_extrema(before).body))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [0, 1, 17, 127, 1000])
def test_compiled(n: int, dtype: torch.dtype) -> None:
    """NaN is no extremum, not even where nothing else is there."""

    @weft.kernel
    def extremes(x, out):
        for i in range(x.shape[0]):
            low, high, start = math.inf, -math.inf, 0.25
            for j in range(x.shape[1]):
                low = min(low, x[i, j])
                high = max(high, x[i, j])
                start = max(x[i, j], start)
            out[i, 0] = low
            out[i, 1] = high
            out[i, 2] = start

    x = torch.randn(7, n).to(dtype)
    x[1, ::3] = math.nan
    x[2], x[3], x[4] = math.nan, math.inf, -math.inf
    x[5, : n // 2], x[5, n // 2 :] = math.nan, -math.inf
    x[6, n // 2 :] = math.nan
    out, again = torch.empty(7, 3, dtype=dtype), torch.empty(7, 3, dtype=dtype)
    extremes(x, out)
    extremes.interpret(x, again)
    torch.testing.assert_close(out, again, equal_nan=True, rtol=0, atol=0)


@weft.kernel
def of_columns(x, out):
    for j in range(x.shape[1]):
        low, high = math.inf, -math.inf
        for i in range(x.shape[0]):
            low = min(low, x[i, j])
            high = max(high, x[i, j])
        out[0, j] = low
        out[1, j] = high


@pytest.mark.parametrize("n", [1, 5, 300])
def test_lanes_with_an_extremum_each(n: int) -> None:
    x = torch.randn(n, 200)
    x[::2, ::3], x[:, 7], x[:, 8] = math.nan, math.nan, -math.inf
    out, again = torch.empty(2, 200), torch.empty(2, 200)
    of_columns(x, out)
    of_columns.interpret(x, again)
    assert torch.equal(out, again)
    assert not out.isnan().any()


def test_a_turn_is_one_instruction() -> None:
    """No zero is told from another, and what is a number not from what may be none."""
    llvm = of_columns.inspect(torch.randn(9, 200), torch.empty(2, 200))["llvm"]
    assert "nnan nsz" in llvm
    exact = weft.kernel(strict_math=True)(of_columns.function)
    assert "nnan" not in exact.inspect(torch.randn(9, 200), torch.empty(2, 200))["llvm"]


@weft.kernel
def one_before(x, out):
    for i in range(x.shape[0]):
        m, before = 5.0, 7.0
        for j in range(x.shape[1]):
            v = x[i, j]
            before = m
            m = v if v > m else m
        out[i] = before


@weft.kernel
def place(x, out):
    for i in range(x.shape[0]):
        m, at = 5.0, -1
        for j in range(x.shape[1]):
            v = x[i, j]
            if v > m:
                m = v
                at = j
        out[i] = at


@pytest.mark.parametrize("kernel", [one_before, place])
def test_where_a_maximum_starts_counts_for_what_else_looks_at_it(kernel: weft.Kernel) -> None:
    """Its values under another name, and its place: none is above the 5 that it starts from."""
    x = torch.rand(3, 40)
    out, again = torch.empty(3), torch.empty(3)
    kernel(x, out)
    kernel.interpret(x, again)
    assert torch.equal(out, again)

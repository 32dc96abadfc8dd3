"""reciprocal: division by what a loop does not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import parsed
from weft.ir import interp
from weft.ir.core import walk
from weft.ir.text import same
from weft.ir.verify import verify
from weft.passes.reciprocal import reciprocal

TEXT = """
func.func @f(%x: memref<?x{t}>, %y: memref<?x{t}>, %d: {t}) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {{axis = 0}} : (memref<?x{t}>) -> index
  scf.for %j = %c0 to %n step %c1 {{
    %1 = memref.load %x[%j] : memref<?x{t}>
    %2 = arith.divf %1, %d : {t}
    memref.store %2, %y[%j] : memref<?x{t}>
    scf.yield
  }}
  func.return
}}
"""
DTYPES = {"f32": np.float32, "f64": np.float64}


def special(dtype):
    """Numbers of all sizes, and what is not one."""
    info = np.finfo(dtype)
    least = info.smallest_subnormal
    values = [0.0, 1.0, 3.0, 0.1, 1e-3, info.max, info.max / 3, info.tiny, info.tiny * 1.3, least,
              least * 7, info.tiny * 2.0**20, info.max / 2.0**20, np.inf, np.nan]  # fmt: skip
    values = np.array(values, dtype)
    return np.concatenate([values, -values])


def quotients(t, x, d):
    function = reciprocal(parsed(TEXT.format(t=t)))
    verify(function)
    y = np.full_like(x, 7)
    with np.errstate(all="ignore"):
        interp.run(function, [x, y, d])
    return y


@pytest.mark.parametrize("t", DTYPES)
def test_zeros_infinities_nans_and_numbers_of_any_size(t):
    dtype = DTYPES[t]
    x = special(dtype)
    for d in special(dtype):
        found = quotients(t, x, d)
        with np.errstate(all="ignore"):
            expected = x / d
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        same_sign = np.signbit(found) == np.signbit(expected)
        assert (same_sign | np.isnan(expected)).all()
        normal = np.isfinite(expected) & (np.abs(expected) >= np.finfo(dtype).tiny)
        normal &= np.abs(expected) < np.finfo(dtype).max / 2
        step = np.spacing(np.abs(expected[normal]))
        assert (np.abs(found[normal] - expected[normal]) <= step).all(), d
        at_end = ~normal & ~np.isnan(expected)
        near = np.isclose(
            found[at_end], expected[at_end], rtol=1e-5, atol=float(np.finfo(dtype).tiny)
        )
        assert near.all(), (d, x[at_end], found[at_end], expected[at_end])


@pytest.mark.parametrize("t", DTYPES)
def test_quotients_are_rounded_correctly(t):
    random = np.random.default_rng()
    x = random.standard_normal(400).astype(DTYPES[t])
    for d in random.standard_normal(20).astype(DTYPES[t]):
        np.testing.assert_array_equal(quotients(t, x, d), x / d)


def test_exact_quotients_are_exact():
    random = np.random.default_rng()
    for d in random.standard_normal(50).astype(np.float32).astype(np.float64):
        k = random.integers(-(1 << 24), 1 << 24, 100).astype(np.float64)
        np.testing.assert_array_equal(quotients("f64", k * d, d), k)


def test_no_division_is_left_in_the_loop_and_once_is_enough():
    once = reciprocal(parsed(TEXT.format(t="f32")))
    (loop,) = [op for op in walk(once.body) if op.name == "scf.for"]
    assert not any(op.name == "arith.divf" for op in walk(loop.regions[0]))
    assert same(reciprocal(once), once)


def test_a_divisor_that_changes_is_left():
    text = TEXT.format(t="f32").replace("%1, %d", "%d, %1")
    assert same(reciprocal(parsed(text)), parsed(text))


@weft.kernel
def by_total(x, out):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j]
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] / total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled(dtype):
    x = torch.randn(50, 333, dtype=dtype)
    x[:, 5:] = 0.0
    x[:, :5] = torch.randint(-50, 50, (50, 5)).to(dtype)
    x[0] = 0.0
    x[1, 0] = torch.inf
    x[2, 0] = torch.nan
    out = torch.empty_like(x)
    by_total(x, out)
    expected = x / x.sum(1, keepdim=True)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_strict_math_divides():
    exact = weft.kernel(strict_math=True)(by_total.function)
    x = torch.randn(2, 9)
    stages = exact.inspect(x, torch.empty_like(x))
    assert "after reciprocal" not in stages.text()
    assert "after reciprocal" in by_total.inspect(x, torch.empty_like(x)).text()


CONSTANT = """
func.func @f(%x: memref<?xf32>, %a: f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  scf.for %j = %c0 to %n step %c1 {
    %1 = memref.load %x[%j] : memref<?xf32>
    %three = arith.constant 3.0 : f32
    %2 = arith.divf %1, %three : f32
    memref.store %2, %x[%j] : memref<?xf32>
    scf.yield
  }
  func.return
}
"""


def test_a_divisor_that_is_a_constant_of_the_loop():
    once = reciprocal(parsed(CONSTANT))
    verify(once)
    assert same(reciprocal(once), once)
    x = np.float32([1.0, 5.0, -7.5])
    y = x.copy()
    interp.run(once, [y, np.float32(0.0)])
    np.testing.assert_array_equal(y, x / np.float32(3.0))


CARRIED = """
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>, %d: f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %r = scf.for %j = %c0 to %n step %c1 iter_args(%s = %d) -> (f32) {
    %1 = memref.load %x[%j] : memref<?xf32>
    %2 = arith.divf %1, %d : f32
    %3 = arith.addf %s, %2 : f32
    %4 = arith.divf %3, %d : f32
    memref.store %4, %y[%j] : memref<?xf32>
    scf.yield %4 : f32
  }
  func.return
}
"""


def test_what_turns_carry_and_compose_is_left_to_schedules() -> None:
    """A scan has to see the quotient; all others have it without a division, in the same bits."""

    def divided(function):
        (loop,) = (op for op in walk(function.body) if op.name == "scf.for")
        return [op.left.op.name for op in walk(loop.body) if op.name == "arith.divf"]

    before = parsed(CARRIED)
    first = reciprocal(before, carried=False)
    assert divided(first) == ["arith.addf"]
    made = [reciprocal(before), reciprocal(first, carried=True)]
    assert [divided(function) for function in made] == [[], []]
    found = [np.zeros(50, np.float32) for _ in made]
    x = np.random.default_rng(0).standard_normal(50, np.float32)
    for function, y in zip(made, found, strict=True):
        verify(function)
        interp.run(function, [x, y, 1.75])
    np.testing.assert_array_equal(*found)
    product = parsed(CARRIED.replace("arith.addf %s, %2", "arith.mulf %s, %s"))
    assert divided(reciprocal(product, carried=False)) == []  # no scan: what has an order


AROUND = """
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>, %d: f32) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  scf.for %i = %c0 to %n step %c1 {
    %r = scf.for %j = %c0 to %n step %c1 iter_args(%s = %d) -> (f32) {
      %1 = memref.load %x[%j] : memref<?xf32>
      %2 = arith.divf %1, %d : f32
      %3 = arith.addf %s, %2 : f32
      scf.yield %3 : f32
    }
    %4 = arith.divf %r, %d : f32
    memref.store %4, %y[%i] : memref<?xf32>
    scf.yield
  }
  func.return
}
"""


def test_what_a_loop_with_loops_inside_divides_is_divided() -> None:
    function = reciprocal(parsed(AROUND))
    verify(function)
    outer = next(op for op in function.body.ops if op.name == "scf.for")
    inner = next(op for op in outer.body.ops if op.name == "scf.for")
    divided = [[op.name for op in loop.body.ops].count("arith.divf") for loop in (outer, inner)]
    assert divided == [2, 0]  # the sum, and the reciprocal in front of the loop
    x, y = np.float32([1.0, 5.0, -7.5]), np.zeros(3, np.float32)
    interp.run(function, [x, y, np.float32(3.0)])
    np.testing.assert_allclose(y, (3 + (x / 3).sum()) / 3, rtol=1e-6)

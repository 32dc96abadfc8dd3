"""Which sums are reordered, and that NaN and infinity keep their meaning."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import weft
from tests.fuzz.check import function
from weft.ir.core import walk
from weft.ir.parse import parse_function
from weft.schedule.accumulations import accumulations

INFINITIES = [math.inf, -math.inf]


@weft.kernel
def difference(x, o):
    for i in x:
        o[i] = 0.5 * x[i] - x[i]


@weft.kernel
def passes_nan_on(x, o):
    for i in x:
        o[i] = x[i] + 0.0 * x[i]


@weft.kernel
def minus_twice(x, o):
    for i in x:
        o[i] = x[i] - 2.0 * x[i]


@weft.kernel
def decay(x, o):
    for i in x:
        s = x[i]
        for _ in range(2):
            s = s - 0.5 * s
        o[i] = s


@weft.kernel
def in_memory(x, o):
    for i in x:
        x[i] -= 0.5 * x[i]
        o[i] = x[i]


@weft.kernel
def two_terms(x, o):
    for i in x:
        s = 0.0
        for _ in range(x.shape[0]):
            s += 0.5 * x[i]
            s -= x[i]
        o[i] = s


@weft.kernel
def from_a_term(x, o):
    for i in x:
        s = x[i]
        for j in range(2):
            if j != 1:
                s -= 0.5 * x[i]
        o[i] = s


@weft.kernel
def stored_before(x, o):
    for i in x:
        k, f = i // 100, 0.0
        o[i] = x[i] - 0.5
        if x[i] == 2:
            f = o[i]
        elif k % 3 == 1:
            f, o[i] = o[i] * 1.0, 0.0
        else:
            if k % 3 == 1:
                f, o[i] = o[i] * 1.0, 0.0
            else:
                f = o[i] * 1.0
            o[i] -= f * 0.5
        x[i] = f


KERNELS = (difference, passes_nan_on, minus_twice, decay, in_memory, two_terms, from_a_term,
           stored_before)  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_infinity_less_infinity_is_nan_in_each_lane(
    kernel: weft.Kernel, dtype: torch.dtype
) -> None:
    for n in (1, 33):
        for value in INFINITIES:
            x, o = torch.full((n,), value, dtype=dtype), torch.zeros(n, dtype=dtype)
            kernel(x, o)
            assert o.isnan().all(), o


LOOPED = """
def kernel(x, o):
    for i in range(x.shape[0]):
        t = x[i]
        {name} = {start}
        for j in range({turns}):
            {condition}{name} = {name} {term}
        o[i] = {name}
"""


@pytest.mark.parametrize("turns", ["1", "2", "3", "x.shape[0]"])
@pytest.mark.parametrize("name", ["s", "o[i]"])
def test_terms_that_are_multiples_of_the_start(turns: str, name: str) -> None:
    """Of an infinite number, whatever LLVM writes out: what the Python gives."""
    every = itertools.product(["- 0.5 * x[i]", "- t", "+ (-0.25) * t - 0.5 * t"],
                              ["x[i]", "2 * x[i]", "x[i] + 1"], ["", "if j != 1: "])  # fmt: skip
    for term, start, condition in every:
        text = LOOPED.format(turns=turns, name=name, term=term, start=start, condition=condition)
        plain = function(text)
        for n, dtype in ((1, torch.float64), (9, torch.float32)):
            x, o, expected = (torch.full((n,), v, dtype=dtype) for v in (math.inf, 1.0, 1.0))
            weft.kernel(plain)(x, o)
            with np.errstate(all="ignore"):
                plain(x.numpy(), expected.numpy())
            torch.testing.assert_close(o, expected, equal_nan=True, msg=text)


SUMS = """
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %cst = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %r = scf.for %j = %c0 to %n step %c1 iter_args(%s = %cst) -> (f32) {
      %v = memref.load %x[%j] : memref<?xf32>
      %other = arith.addf %v, %cst : f32
      %next = arith.addf %s, OPERAND : f32
      scf.yield %next : f32
    }
    memref.store %r, %y[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""


def test_only_what_carries_a_sum_is_reordered() -> None:
    for operand, count in (("%other", 1), ("%s", 0)):
        function = parse_function(SUMS.replace("OPERAND", operand))
        found = accumulations(function)
        assert found <= set(walk(function.body))
        assert len(found) == count, operand


UPDATE = """
func.func @f(%x: memref<?xf32>, %y: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %cst = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xf32>
    memref.store STORED, %y[%i] : memref<?xf32>
    scf.for %j = %c0 to %n step %c1 {
      %old = memref.load %y[%i] : memref<?xf32>
      %new = arith.addf %old, %v : f32
      memref.store %new, %y[%i] : memref<?xf32>
      scf.yield
    }
    scf.reduce
  }
  func.return
}
"""


def test_what_was_stored_before_is_no_sum_of_any_order() -> None:
    """LLVM knows that an element holds it: what is added may be a multiple of it."""
    for stored, count in (("%cst", 1), ("%v", 0)):
        assert len(accumulations(parse_function(UPDATE.replace("STORED", stored)))) == count


@pytest.mark.parametrize("n", [0, 1, 7, 1000])
@pytest.mark.parametrize("start", [0.0, -0.0])
def test_a_sum_over_iterations_keeps_the_sign_of_zero(start: float, n: int) -> None:
    @weft.kernel
    def sums(x):
        a, b, c = start, start, start
        for i in range(x.shape[0]):
            a += x[i]
            b -= x[i]
            if x[i] > 0.0:
                c += x[i]
        return a, b, c

    for x in (torch.zeros(n), -torch.zeros(n)):
        assert [math.copysign(1.0, s) for s in map(float, sums(x))] == [
            math.copysign(1.0, s) for s in map(float, sums.interpret(x))
        ]

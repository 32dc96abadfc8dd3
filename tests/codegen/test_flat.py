"""Neighbouring loops counted as one: only where rows follow each other, with the same result."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import Compiled, poisoned

from weft.ir.core import Function
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.schedule.collapse import rows

CROP = """
func.func @crop(
  %x: memref<?x?x?xf32>, %out: memref<?x?x?xf32>, %n: index, %m: index, %c: index, %s: index
) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i, %j, %k) = (%c0, %c0, %c0) to (%n, %m, %c) step (%c1, %c1, %c1) {
    %y = arith.addi %s, %i : index
    %z = arith.addi %j, %s : index
    %v = memref.load %x[%y, %z, %k] : memref<?x?x?xf32>
    memref.store %v, %out[%i, %j, %k] : memref<?x?x?xf32>
    scf.reduce
  }
  func.return
}
"""
WHOLE = CROP.replace("%x[%y, %z, %k]", "%x[%y, %j, %k]")
WHOLE = WHOLE.replace("    %z = arith.addi %j, %s : index\n", "")
TOTAL = """
func.func @total(%x: memref<?x?x?xf32>, %out: memref<f32>, %n: index, %m: index, %c: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %sum = scf.parallel (%i, %j, %k) = (%c0, %c0, %c0) to (%n, %m, %c)
      step (%c1, %c1, %c1) init (%zero) -> (f32) {
    %v = memref.load %x[%i, %j, %k] : memref<?x?x?xf32>
    scf.reduce(%v : f32) { ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      scf.reduce.return %c : f32
    }
  }
  memref.store %sum, %out[] : memref<f32>
  func.return
}
"""
UNIT = "memref<?x?x?xf32, strided<[?, ?, 1]>>"


def function_of(text: str) -> Function:
    function = parse_function(text)
    verify(function)
    return function


def pairs(text: str) -> list[bool]:
    """Whether (j, k) and (i, j) may be counted as one, as far as the code says."""
    function = function_of(text)
    (body,) = [op.regions[0] for op in function.body.ops if op.name == "scf.parallel"]
    i, j, k = body.args
    return [rows(body, j, k) is not None, rows(body, i, j, behind=1) is not None]


def test_which_loops_are_one() -> None:
    assert pairs(WHOLE) == [True, True]
    assert pairs(CROP) == [True, False]  # j is moved, so that rows of i do not follow each other


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%out[%i, %j, %k]", "%out[%i, %k, %j]"),  # another order
        ("%x[%y, %j, %k]", "%x[%y, %j, %i]"),  # an access without k
        ("%y = arith.addi %s, %i", "%y = arith.addi %k, %i"),  # k is not only a subscript
        ("%z = arith.addi %j, %s", "%z = arith.muli %j, %s"),  # j is not only moved
        ("%z = arith.addi %j, %s", "%z = arith.subi %s, %j"),  # j is turned around
        ("memref<?x?x?xf32>", "memref<?x?x?xf32, strided<[?, ?, ?]>>"),  # elements have gaps
    ],
)
def test_which_loops_are_not(old: str, new: str) -> None:
    text = CROP if old in CROP else WHOLE
    assert old in text
    assert pairs(text.replace(old, new))[0] is False


@pytest.mark.parametrize("layouts", ["contiguous", "unit"])
@pytest.mark.parametrize(
    "shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (5, 7, 3), (90, 80, 3)]
)
@pytest.mark.parametrize("short", [0, 1])
@pytest.mark.sampled(3)
def test_copies(layouts: str, shape: tuple[int, int, int], short: int) -> None:
    for text, shift in ((WHOLE, 1), (CROP, 1), (CROP, 0)):
        chosen = text if layouts == "contiguous" else text.replace("memref<?x?x?xf32>", UNIT)
        copy = Compiled(function_of(chosen), noalias=True)
        n, m, c = shape
        gap = 2 if layouts == "unit" else 0
        x = np.random.default_rng(1).random((n + 1, m + 1 + gap, c + short), np.float32)[:, : m + 1]
        out = poisoned(shape, np.float32)
        copy(x, out, n, m, c, shift)
        moved = shift if text is CROP else 0
        expected = x[shift : n + shift, moved : m + moved, :c]
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("shape", [(0, 3, 2), (1, 1, 1), (5, 7, 3), (200, 100, 3)])
def test_sums(shape: tuple[int, int, int]) -> None:
    total = Compiled(function_of(TOTAL), noalias=True)
    x = np.random.default_rng(1).integers(-9, 9, shape).astype(np.float32)
    out = poisoned((), np.float32)
    total(x, out, *shape)
    assert out == x.sum(dtype=np.float64)
    out = poisoned((), np.float32)
    total(x, out, shape[0], shape[1], 1 if shape[2] else 0)
    assert out == x[..., :1].sum(dtype=np.float64)

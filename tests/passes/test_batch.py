"""batch: a loop over samples, from that of one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.texts import normal, parsed
from weft.ir import interp
from weft.ir.core import Function
from weft.ir.text import print_function
from weft.ir.verify import verify
from weft.passes.batch import batch

SCALED = """
func.func @scaled(%x: memref<?xf32>, %w: memref<?xf32>, %out: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %0 = memref.load %x[%i] : memref<?xf32>
    %1 = memref.load %w[%i] : memref<?xf32>
    %2 = arith.mulf %0, %1 : f32
    %3 = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
    memref.store %2, %out[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}"""
TOTAL = """
func.func @total(%x: memref<?x?xf32>, %n: memref<?xi64>, %s: memref<f32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %0 = memref.load %n[%c0] : memref<?xi64>
  %1 = arith.index_cast %0 : i64 to index
  %2 = scf.parallel (%i, %j) = (%c0, %c0) to (%1, %1) step (%c1, %c1) init (%zero) -> f32 {
    %3 = memref.load %x[%i, %j] : memref<?x?xf32>
    scf.reduce(%3 : f32) {
    ^bb0(%a$: f32, %b$: f32):
      %c$ = arith.addf %a$, %b$ : f32
      scf.reduce.return %c$ : f32
    }
  }
  memref.store %2, %s[] : memref<f32>
  func.return
}"""


def batched(text: str, levels: list[tuple[int, ...]], layouts: str = "") -> Function:
    function = parsed(text)
    made = batch(function, levels, layouts.split() or ["contiguous"] * len(levels))
    verify(made)
    verify(function)  # is as it was
    return made


def test_samples_are_indices_before_the_others() -> None:
    made = batched(SCALED, [(0, 1), (1,), (0, 1), ()], "strided contiguous unit .")
    x, out = "memref<?x?x?xf32, strided<[?, ?, ?]>>", "memref<?x?x?xf32, strided<[?, ?, 1]>>"
    steps = "step (%c1_1, %c1_1, %c1)"
    assert print_function(made) == normal(f"""
func.func @scaled_batched(%x: {x}, %w: memref<?x?xf32>, %out: {out}, %n: index) {{
  %0 = "weft.dim"(%out) {{axis = 0}} : ({out}) -> index
  %1 = "weft.dim"(%out) {{axis = 1}} : ({out}) -> index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c0_1 = arith.constant 0 : index
  %c1_1 = arith.constant 1 : index
  scf.parallel (%sample, %sample1, %i) = (%c0_1, %c0_1, %c0) to (%0, %1, %n) {steps} {{
    %2 = memref.load %x[%sample, %sample1, %i] : {x}
    %3 = memref.load %w[%sample1, %i] : memref<?x?xf32>
    %4 = arith.mulf %2, %3 : f32
    %5 = "weft.dim"(%x) {{axis = 2}} : ({x}) -> index
    memref.store %4, %out[%sample, %sample1, %i] : {out}
    scf.reduce
  }}
  func.return
}}""")  # fmt: skip


def test_a_loop_that_reduces_runs_in_order_for_each_sample() -> None:
    made = batched(TOTAL, [(), (0,), (0,)])
    assert print_function(made) == normal("""
func.func @total_batched(%x: memref<?x?xf32>, %n: memref<?x?xi64>, %s: memref<?xf32>) {
  %0 = "weft.dim"(%s) {axis = 0} : (memref<?xf32>) -> index
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%sample) = (%c0) to (%0) step (%c1) {
    %c0_1 = arith.constant 0 : index
    %c1_1 = arith.constant 1 : index
    %zero = arith.constant 0.0 : f32
    %1 = memref.load %n[%sample, %c0_1] : memref<?x?xi64>
    %2 = arith.index_cast %1 : i64 to index
    %3 = scf.for %i = %c0_1 to %2 step %c1_1 iter_args(%4 = %zero) -> (f32) {
      %5 = scf.for %j = %c0_1 to %2 step %c1_1 iter_args(%6 = %4) -> (f32) {
        %7 = memref.load %x[%i, %j] : memref<?x?xf32>
        %8 = arith.addf %6, %7 : f32
        scf.yield %8 : f32
      }
      scf.yield %5 : f32
    }
    memref.store %3, %s[%sample] : memref<?xf32>
    scf.reduce
  }
  func.return
}""")


@pytest.mark.parametrize("own", [(), (0,)], ids=["one", "each"])
def test_every_sample_is_what_the_loop_makes_of_it(own: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.random((3, 5), np.float32), rng.random((3, 5) if own else 5, np.float32)
    out, expected = np.full((3, 5), np.nan, np.float32), np.full((3, 5), np.nan, np.float32)
    interp.run(batched(SCALED, [(0,), own, (0,), ()]), [x, w, out, 5])
    for k in range(3):
        interp.run(parsed(SCALED), [x[k], w[k] if own else w, expected[k], 5])
    np.testing.assert_array_equal(out, expected)

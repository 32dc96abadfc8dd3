"""write_out: small local arrays, whose elements a loop then carries."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import weft
from tests.passes.texts import normal, result_of
from weft import compiler
from weft.ir.core import walk
from weft.ir.views import For
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.forward_stores import forward_stores
from weft.passes.promote import promote
from weft.passes.simplify import simplify
from weft.passes.write_out import small_loops, write_out
from weft.tools.cross import lowered_loops

BEFORE = """
func.func @f(%x: memref<?xf32>, %m: index) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%m) step (%c1) {
    %h = memref.alloca() : memref<2xf32>
    memref.store %zero, %h[%c0] : memref<2xf32>
    memref.store %zero, %h[%c1] : memref<2xf32>
    scf.for %j = %c0 to %m step %c1 {
      %v = memref.load %x[%j] : memref<?xf32>
      scf.for %a = %c0 to %c2 step %c1 {
        %s = memref.load %h[%a] : memref<2xf32>
        %t = arith.addf %s, %v : f32
        memref.store %t, %h[%a] : memref<2xf32>
      }
    }
    %r = memref.load %h[%c1] : memref<2xf32>
    memref.store %r, %x[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}"""
AFTER = """
func.func @f(%x: memref<?xf32>, %m: index) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%m) step (%c1) {
    %h = scf.for %j = %c0 to %m step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%j] : memref<?xf32>
      %t = arith.addf %s, %v : f32
      scf.yield %t : f32
    }
    memref.store %h, %x[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}"""


def test_a_loop_carries_the_elements_that_are_asked_for() -> None:
    passes = [write_out, simplify, cse, partial(promote, local=2), forward_stores, dce]
    for each in passes:
        if isinstance(each, partial):
            each.__name__ = "promote"  # type: ignore[attr-defined]
    assert result_of(passes, BEFORE) == normal(AFTER)


def test_larger_arrays_stay() -> None:
    larger = BEFORE.replace("2xf32", "5xf32")
    assert result_of([write_out], larger) == normal(larger)


def mixed(x, out):
    for i in range(x.shape[0]):
        h = weft.zeros(3)
        for j in range(x.shape[1]):
            t = weft.zeros(3)
            for p in range(3):
                for q in range(3):
                    t[p] += 0.3 * h[(p + q) % 3] * x[i, j]
            for p in range(3):
                h[p] = t[p] + p
            out[i, j] = h[0] - h[2]


def curved(x, out):
    for i in range(x.shape[0]):
        h = weft.zeros(2)
        for j in range(x.shape[1]):
            for p in range(2):
                h[p] = h[p] * h[1 - p] + x[i, j]
            out[i, j] = h[0] - h[1]


@pytest.mark.parametrize(("function", "carried"), [(mixed, 3), (curved, 0)])
def test_only_what_a_scan_may_carry(function: object, carried: int) -> None:
    """Other loops keep their arrays, and schedules speak of loops through these."""
    x = torch.empty(3, 9, device="meta")
    (loop,) = lowered_loops(weft.kernel(function), x, x)  # type: ignore[arg-type]
    assert small_loops(loop)
    made = compiler.optimize(loop)
    (rows,) = {len(For(op).rows) for op in walk(made.body) if op.name == "scf.for" and op.results
               } or {0}  # fmt: skip
    assert rows == carried
    assert any(op.name == "memref.alloca" for op in walk(made.body)) == (not carried)
    asked = compiler.optimize(loop, asked="unroll((p))")
    assert any(op.name == "memref.alloca" for op in walk(asked.body))

"""write_out: small local arrays, whose elements a loop then carries."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import EmulatedCall, emulated
from tests.passes.texts import normal, result_of
from weft import compiler
from weft.codegen import cuda
from weft.ir.core import walk
from weft.ir.views import For
from weft.passes.memory import is_local
from weft.passes.write_out import as_numbers, carries_small_arrays, small_loops, write_out
from weft.schedule.language import Scan, only
from weft.tools.cross import gradient_loops, lowered_loops

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
    assert result_of([as_numbers], BEFORE) == normal(AFTER)


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


def alone(x, out):
    for i in range(x.shape[0]):
        h = weft.zeros(2)
        for j in range(x.shape[1]):
            h[0] = h[1] / 3.0 + x[i, j]
            h[1] = 0.5 * h[0]
            out[i, j] = h[1]


def chosen(x, out):
    for i in range(x.shape[0]):
        h = weft.zeros(2)
        if x.shape[1] > 3:
            h[1] = 0.25
        for j in range(x.shape[1]):
            if x[i, j] > 0.5:
                h[0] = x[i, j]
            else:
                for p in range(2):
                    h[p] = 0.5 * h[1 - p] / 1.5
            out[i, j] = h[0]
        for j in range(x.shape[1] - 4):
            h[1] = 2.0 * x[i, j]
            out[i, j] += h[1]
        out[i, 0] += h[1]


@pytest.mark.parametrize(
    ("function", "carried"), [(mixed, 3), (curved, 0), (alone, 1), (chosen, 2)]
)
def test_only_what_a_scan_may_carry(function: object, carried: int) -> None:
    """Other loops keep their arrays, and schedules speak of loops through these."""
    x = torch.empty(3, 9, device="meta")
    (loop,) = lowered_loops(weft.kernel(function), x, x)  # type: ignore[arg-type]
    assert carries_small_arrays(loop)
    assert bool(small_loops(loop)) == (function is not alone)
    made = compiler.optimize(loop)
    rows = [len(For(op).rows) for op in walk(made.body) if op.name == "scf.for"]
    assert max(rows) == carried
    loops = [op for op in walk(made.body) if op.name == "scf.for"]
    inside = [op for loop in loops for op in walk(loop.body) if op.name == "memref.load"]
    assert any(is_local(op.operands[0]) for op in inside) == (not carried)
    for text in ("unroll((p))", "stage(j, 2, 32); shared_arrays()")[function is alone :]:
        asked = compiler.optimize(loop, asked=text)
        assert any(op.name == "memref.alloca" for op in walk(asked.body))


@pytest.mark.parametrize("function", [mixed, alone, chosen], ids=lambda f: f.__name__)
@pytest.mark.parametrize("length", [3, 4, 5, 130])
@pytest.mark.sampled(3)
def test_as_python_does(function: Any, length: int) -> None:
    x = torch.randn(2, length)
    expected, found = torch.zeros_like(x), torch.zeros_like(x)
    function(x, expected)
    EmulatedCall.seen.clear()
    emulated(weft.kernel(schedule={"cuda": "scan((), 64)"})(function))(x, found)
    assert only(EmulatedCall.seen[-1], Scan) is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@weft.kernel
def transformed(x: torch.Tensor, c: torch.Tensor, out: torch.Tensor):
    for i in range(x.shape[0]):
        h = weft.zeros(2)
        for j in range(x.shape[1]):
            t = weft.zeros(2)
            for p in range(2):
                for q in range(2):
                    t[p] += c[p, q] * h[q]
            for p in range(2):
                h[p] = t[p] + x[i, j]
            out[i, j] = h[0] - h[1]


def test_gradients_keep_a_number_for_each_element_and_turn() -> None:
    """Nothing of what a turn sums up on the way, and turns compose."""
    x, c = torch.empty(9, 8, device="meta"), torch.empty(2, 2, device="meta")
    (forward,) = lowered_loops(transformed, x, c, torch.empty_like(x))
    adjoint, *_ = gradient_loops(forward)
    tapes = [a for a in adjoint.args if a.name.startswith("tape")]
    assert [a.memref.rank for a in tapes] == [2, 2]
    made = compiler.optimize(adjoint)
    assert not any(op.name == "memref.alloca" for op in walk(made.body))
    assert any("scan((j, k1), 128" in text for text in cuda.analyse(made, None).candidates)


def guarded(x, m):
    """A branch, a loop that data could end, an array that is read behind the loop, and one whose
    subscripts are data."""
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        h = weft.zeros(3, dtype=x.dtype)
        top = weft.zeros(2, dtype=x.dtype)
        bins = weft.zeros(2, dtype=x.dtype)
        for j in range(x.shape[1]):
            k = 0
            while k < 2:
                h[k] = 0.5 * h[k + 1] + m[k, 0] * x[i, j]
                k += 1
            if x[i, j] > 0.0:
                h[2] = math.tanh(m[0, 1] * h[1] + x[i, j])
            for p in range(2):
                top[p] = max(top[p], h[p])
                h[p] += 0.5 * h[p + 1] * h[2 - p]
            bins[1 if x[i, j] > 0.25 else 0] += h[0] * m[1, 1]
            out[i, j] = h[0] * h[1] - bins[1]
        out[i, 0] += top[0] * top[1] + h[2] * bins[0]
    return out


@pytest.mark.parametrize("length", [1, 7])
def test_gradients_of_elements_that_only_some_turns_store(length: int) -> None:
    x = torch.randn(2, length, dtype=torch.float64, requires_grad=True)
    m = (torch.rand(2, 2, dtype=torch.float64) - 0.5).requires_grad_()
    kernel = weft.kernel(guarded)
    torch.testing.assert_close(kernel(x, m), guarded(x.detach(), m.detach()))
    assert torch.autograd.gradcheck(kernel, (x, m), check_forward_ad=length == 1)

"""How much work a loop is said to be, for threads to share it."""

from __future__ import annotations

import numpy as np
import pytest

from weft.ir.core import Op, Value
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.chunks import COST
from weft.schedule.language import parse
from weft.schedule.machine import CpuMachine

TEXT = """
func.func @f(%x: memref<?x?xf32>, %at: memref<?xi32>, %y: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?x?xf32>) -> index
  %m = "weft.dim"(%x) {axis = 1} : (memref<?x?xf32>) -> index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %e = memref.load %at[%i] : memref<?xi32>
    %far = arith.index_cast %e : i32 to index
    %t = scf.for %j = %c0 to END step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %w = math.exp %v : f32
      %next = arith.addf %s, %w : f32
      scf.yield %next : f32
    }
    memref.store %t, %y[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""


def work(end: str, shape: tuple[int, int], schedule: str = "") -> float:
    """What is said of a call."""
    function = apply_cpu(parse_function(TEXT.replace("END", end)), parse(schedule), CpuMachine(64))
    verify(function)
    assert same(parse_function(print_function(function)), function)
    told: list[float] = []

    def watch(op: Op, operands: list[Value], results: list[Value]) -> None:
        if op.name == "weft.chunks":
            told.append(float(operands[2]) * COST)

    n, m = shape
    x, at, y = np.ones(shape, np.float32), np.full(n, m, np.int32), np.zeros(n, np.float32)
    run(function, [x, at, y], watch=watch)
    (found,) = told
    return found


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (7, 0), (13, 17)])
def test_iterations_times_their_operations(shape: tuple[int, int]) -> None:
    n, m = shape
    inside = 1 + 8 + 1  # an exponential is eight operations
    assert work("%m", shape) == n * (4 + inside * m)
    assert work("%far", shape) == n * (4 + inside * 16), "which nobody knows in front of the loop"


def test_a_triangle_is_that_of_the_iteration_in_the_middle() -> None:
    assert work("%i", (13, 17)) == 13 * (4 + 10 * (13 // 2))

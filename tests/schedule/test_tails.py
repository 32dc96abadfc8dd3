"""Loops along rows go to the last whole vectors, and to the end under a mask."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.compiled import Compiled, poisoned
from weft.codegen import float32
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule import tails
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.machine import CpuMachine

AVX512 = CpuMachine(64, sleef=True)
LENGTHS = (0, 1, 15, 16, 17, 63, 64, 65, 100, 128, 333)
SOFTMAX = """
func.func @f(%x: memref<?x?xf32>, %o: memref<?x?xf32>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %n = "weft.dim"(%o) {axis = 0} : (memref<?x?xf32>) -> index
  %m = "weft.dim"(%o) {axis = 1} : (memref<?x?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %sum = scf.for %j = %c0 to %m step %c1 iter_args(%s = %zero) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %e = math.exp %v : f32
      memref.store %e, %o[%i, %j] : memref<?x?xf32>
      %t = arith.addf %s, %e : f32
      scf.yield %t : f32
    }
    scf.for %j = %c0 to %m step %c1 {
      %e = memref.load %o[%i, %j] : memref<?x?xf32>
      %a = math.log %e : f32
      %b = arith.mulf %a, %sum : f32
      memref.store %b, %o[%i, %j] : memref<?x?xf32>
      scf.yield
    }
    scf.reduce
  }
  func.return
}"""


def softmax(**other: str) -> Function:
    """``o[i] = log(exp(x[i])) * (the sum of exp(x[i]))``, each ``other`` text in place of one."""
    text = SOFTMAX
    for old, new in other.items():
        wanted = {"function": "math.exp %v : f32", "loaded": "%x[%i, %j]", "lower": "%j = %c0"}[old]
        assert wanted in text
        text = text.replace(wanted, new)
    return parse_function(text)


def cut(function: Function, machine: CpuMachine = AVX512) -> int:
    """How many loops have a second one up to their end."""
    made = apply_cpu(function, (), machine)
    verify(made)
    assert same(parse_function(print_function(made)), made)
    return sum("tail" in op.attrs for op in walk(made.body))


def arguments(m: int) -> list[np.ndarray]:
    x = np.random.default_rng(m).standard_normal((3, m)).astype(np.float32)
    return [x, poisoned((3, m), np.float32)]


@pytest.mark.parametrize("m", LENGTHS)
def test_what_is_computed_stays(m: int) -> None:
    made = apply_cpu(softmax(), (), AVX512)
    assert sum("tail" in op.attrs for op in walk(made.body)) == 2
    mine, wanted = arguments(m), arguments(m)
    run(made, mine, races=True)
    run(softmax(), wanted)
    np.testing.assert_array_equal(mine[1], wanted[1])


@pytest.mark.parametrize("m", LENGTHS)
def test_machine_code(m: int) -> None:
    """The second loop loads what it then overwrites under the same mask, and stores nothing in
    front of the row or behind it."""
    compiled, memory = Compiled(softmax()), np.full(3 * m + 128, 7, np.float32)
    (x, _), o = arguments(m), memory[64 : 3 * m + 64].reshape(3, m)
    compiled(x, o)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(o, exact * np.exp(exact).sum(1)[:, None], rtol=1e-4, atol=1e-4)
    assert (memory[:64] == 7).all()
    assert (memory[3 * m + 64 :] == 7).all()


@pytest.mark.parametrize(
    ("function", "count"),
    [(softmax(), 2), (softmax(function="arith.negf %v : f32"), 1),
     (softmax(function="math.sin %v : f32"), 1), (softmax(loaded="%x[%j, %i]"), 1),
     (softmax(lower="%j = %i"), 0)],
    ids=["functions", "a turn that computes little", "a function that is called", "a column",
         "rows that begin later each"],
)  # fmt: skip
def test_which_loops(function: Function, count: int) -> None:
    assert cut(function) == count


def test_where_nothing_changes() -> None:
    strict, overlapping = softmax(), softmax()
    strict.attrs["strict_math"] = True
    overlapping.attrs["noalias"] = False
    assert cut(softmax(), CpuMachine(32, sleef=True)) == 0
    assert cut(softmax(), CpuMachine(64)) == 0  # where functions are calls
    assert cut(strict) == 0
    assert cut(overlapping) == 0


def test_functions_are_those_of_code_generation() -> None:
    assert {*tails.WRITTEN_OUT} == {f"math.{name}" for name in float32.FUNCTIONS}

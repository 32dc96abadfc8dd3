"""Sums into elements that a loop names by numbers: each thread has copies of these of its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.blocks import launch
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.ir.views import memory
from weft.schedule.apply_cuda import apply
from weft.schedule.language import parse

# Elements 0 and 2 of s; the latter where an element of x is positive.
TEXT = """func.func @total(%x: memref<?xTYPE>, %s: memref<?xTYPE>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %none = arith.constant 0 : TYPE
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xTYPE>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xTYPE>
    %w = memref.atomic_rmw KIND %v, %s[%c0] : (TYPE, memref<?xTYPE>) -> TYPE
    %p = arith.COMPARE, %v, %none : TYPE
    scf.if %p {
      %z = memref.atomic_rmw KIND %v, %s[%c2] : (TYPE, memref<?xTYPE>) -> TYPE
      scf.yield
    }
    scf.reduce
  }
  func.return
}
"""
KINDS = {"addi": "i32", "maxsi": "i32", "addf": "f32", "minimumf": "f32", "mulf": "f64"}
NUMPY = {"i32": np.int32, "f32": np.float32, "f64": np.float64}


def total(kind: str) -> Function:
    element = KINDS[kind]
    compare, none = ("cmpi sgt", "0") if element == "i32" else ("cmpf ogt", "0.0")
    text = TEXT.replace("constant 0 : TYPE", f"constant {none} : TYPE")
    text = text.replace("KIND", kind).replace("TYPE", element).replace("COMPARE", compare)
    return parse_function(text)


def privatized(kind: str) -> Function:
    function = total(kind)
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    made = apply(function, parallel, (0,), parse("privatize(s); bind(i, x); block(256, 1)"))
    verify(made.function)
    return made.function


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [0, 1, 5, 63])
def test_threads_copies_make_what_the_loop_makes(kind: str, count: int) -> None:
    numbers = np.random.default_rng(count).integers(-2, 3, count)
    x = numbers.astype(NUMPY[KINDS[kind]])
    out, expected = (np.arange(3, 6).astype(x.dtype) for _ in range(2))
    launch(privatized(kind), (x, out), (2, 1, 1), (8, 1, 1), races=True, order="random", seed=count)
    run(total(kind), (x, expected))
    np.testing.assert_array_equal(out, expected)


def test_loops_touch_memory_of_their_own_thread() -> None:
    """One addition of each copy stands behind the loop over elements of x."""
    made = privatized("addf")
    loop = next(
        op for op in walk(made.body) if op.name == "scf.for" and op.body.args[0].name == "i"
    )
    inside = [op for op in walk(loop.body) if op.name == "memref.atomic_rmw"]
    assert [op.attrs["atomic"] for op in inside] == [False, False]
    assert {memory(op)[0].memref.space for op in inside} == {""}
    spaces = [memory(op)[0].memref.space for op in walk(made.body)
              if op.name == "memref.atomic_rmw" and op.attrs["atomic"]]  # fmt: skip
    assert spaces.count("shared") == 2


def test_elements_that_nothing_is_added_to_need_not_be_there() -> None:
    x, out = np.full(9, -1, np.float32), np.zeros(1, np.float32)
    launch(privatized("addf"), (x, out), (2, 1, 1), (8, 1, 1), races=True)
    assert out.tolist() == [-9]

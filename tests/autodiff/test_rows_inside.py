"""rows_inside: a parallel index inside of the sequential loops of its iteration."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.texts import parsed
from weft.autodiff.rows_inside import rows_inside
from weft.ir.core import walk
from weft.ir.interp import run
from weft.ir.verify import verify

TEXT = """
func.func @f(%n: index, %m: index, %x: memref<?x?xf32>, %y: memref<?x?xf32>, %d: memref<?x?xf32>,
             %last: memref<?x?xf32>, %tape: memref<?x?x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %ROWS = arith.constant 8 : index
  %zero = arith.constant 0.0 : f32
  scf.parallel (%i, %j) = (%c0, %c0) to (%I, %m) step (%c1, %c1) {
    %s = scf.for %t = %c0 to %n step %c1 iter_args(%a = %zero) -> (f32) {
      memref.store %a, %tape[%t, %i, %j] : memref<?x?x?xf32>
      %u = memref.load %x[%t, %i] : memref<?x?xf32>
      %v = memref.load %y[%t, %j] : memref<?x?xf32>
      %w = math.exp %v : f32
      %p = arith.mulf %u, %w : f32
      %b = arith.addf %a, %p : f32
      scf.yield %b : f32
    }
    %twice = arith.mulf %s, %s : f32
    memref.store %twice, %last[%i, %j] : memref<?x?xf32>
    %g = scf.for %k = %c0 to %n step %c1 iter_args(%h = %twice) -> (f32) {
      %before = memref.load %tape[%k, %i, %j] : memref<?x?x?xf32>
      %z = memref.load %y[%k, %j] : memref<?x?xf32>
      %e = arith.mulf %before, %h : f32
      %f = arith.mulf %e, %z : f32
      %minus = arith.negf %f : f32
      %old = memref.atomic_rmw addf %minus, %d[%k, %j] : (f32, memref<?x?xf32>) -> f32
      %r = memref.load %x[%k, %i] : memref<?x?xf32>
      %q = arith.addf %h, %r : f32
      scf.yield %q : f32
    }
    scf.reduce
  }
  func.return
}"""


@pytest.mark.parametrize(("extent", "rows"), [("ROWS", 8), ("n", 4)])
@pytest.mark.parametrize("turns", [0, 4, 8])
def test_the_same_is_computed(extent: str, rows: int, turns: int) -> None:
    before = parsed(TEXT.replace("%I,", f"%{extent},"))
    after = rows_inside(before, 0, rows, ["d"], ["tape"])
    verify(after)
    rng = np.random.default_rng(turns)
    count = 8 if extent == "ROWS" else turns
    shapes = ((turns, count), (turns, 3), (turns, 3), (count, 3), (turns, count, 3))
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    found: list[list[np.ndarray]] = []
    for function in (before, after):
        arrays = dict(zip(("x", "y", "d", "last", "tape"), (a.copy() for a in given), strict=True))
        numbers = {"n": turns, "m": 3}
        run(function, [(arrays | numbers)[a.name] for a in function.args])  # type: ignore[operator]
        found.append([arrays["d"], arrays["last"]])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)


def test_what_rows_share_is_computed_once() -> None:
    """And what all sums are multiplied by, after the sum; tapes are read some rows ahead."""
    after = rows_inside(parsed(TEXT.replace("%I,", "%ROWS,")), 0, 8, ["d"], ["tape"])
    (parallel,) = (op for op in after.body.ops if op.name == "scf.parallel")
    assert len(parallel.body.args) == 1
    loops = [op for op in walk(parallel.body) if "unroll" in op.attrs]
    inside = [op.name for loop in loops for op in walk(loop.body)]
    assert not {"math.exp", "arith.negf", "memref.atomic_rmw"} & {*inside}
    everything = [op.name for op in walk(parallel.body)]
    assert everything.count("memref.atomic_rmw") == everything.count("arith.negf") == 1
    assert inside.count("arith.minsi") > 0


def test_what_nothing_asks_for_makes_way() -> None:
    """What both loops carry, and what stands between them, are in one array, one after the other,
    but for what the last loop asks for in every turn."""
    text = TEXT.replace("%I,", "%ROWS,")
    for given, arrays in (("%r", 1), ("%twice", 2), ("%s", 2)):
        before = parsed(text.replace("%q = arith.addf %h, %r", f"%q = arith.addf %h, {given}"))
        after = rows_inside(before, 0, 8, ["d"], ["tape"])
        assert sum(op.name == "memref.alloca" for op in walk(after.body)) == arrays

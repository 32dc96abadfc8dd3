"""Iterations that go along rows several times ask for those of the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.compiled import Compiled, poisoned
from weft.ir.core import Function, Op, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule import rows_ahead
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.machine import CpuMachine
from weft.schedule.streaming import accessed

SECOND = "arith.subf %v, %sum : f32"


def centred(second: str = SECOND, *, first: str = "%i, %j", passes: int = 2) -> Function:
    """``for i: o[i] = (y[i] - sum of x[i]) * w``, whose second pass computes ``second``."""
    another = f"""
    scf.for %j = %c0 to %m step %c1 {{
      %v = memref.load %y[%i, %j] : memref<?x?xf32>
      %a = memref.load %w[%j] : memref<?xf32>
      %b = {second}
      %c = arith.mulf %a, %b : f32
      memref.store %c, %o[%i, %j] : memref<?x?xf32>
      scf.yield
    }}"""
    ending = "memref.store %sum, %o[%i, %c0] : memref<?x?xf32>"
    return parse_function(
        f"""
func.func @f(%x: memref<?x?xf32>, %y: memref<?x?xf32>, %w: memref<?xf32>, %o: memref<?x?xf32>)
    attributes {{noalias = true}} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0.0 : f32
  %n = "weft.dim"(%o) {{axis = 0}} : (memref<?x?xf32>) -> index
  %m = "weft.dim"(%o) {{axis = 1}} : (memref<?x?xf32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {{
    %sum = scf.for %k = %c0 to %m step %c1 iter_args(%s = %zero) -> (f32) {{
      %v = memref.load %x[{first.replace("%j", "%k")}] : memref<?x?xf32>
      %t = arith.addf %s, %v : f32
      scf.yield %t : f32
    }}
    {another if passes > 1 else ending}
    scf.reduce
  }}
  func.return
}}"""
    )


def scheduled(function: Function) -> Function:
    made = apply_cpu(function, (), CpuMachine(64))
    verify(made)
    return made


def asks(function: Function) -> bool:
    return any(op.name == "weft.prefetch" for op in walk(function.body))


def arguments(n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n * m)
    x, y = (rng.standard_normal((n, m)).astype(np.float32) for _ in range(2))
    return [x, y, rng.standard_normal(m).astype(np.float32), poisoned((n, m), np.float32)]


@pytest.mark.parametrize(
    ("n", "m", "far", "places"),
    [(3, 600, 0, range(0, 600, 16)), (3, 600, 20_000, ()), (5, 400, 0, ()), (2, 3000, 0, ()),
     (0, 600, 0, ())],
    ids=["far", "near", "short rows", "long rows", "none"],
)  # fmt: skip
def test_rows_that_are_asked_for(
    n: int, m: int, far: int, places: range | tuple[()], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line of the next row of ``x`` and of ``y``, not what all iterations load; and what is
    computed stays."""
    monkeypatch.setattr(rows_ahead, "FAR", far)
    plain, made = centred(), scheduled(centred())
    assert same(parse_function(print_function(made)), made)
    found: list[tuple[int, int, int]] = []

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "weft.prefetch":
            found.append((id(operands[0]), *operands[1:]))

    mine, wanted = arguments(n, m), arguments(n, m)
    run(made, mine, races=True, watch=watch)
    run(plain, wanted)
    np.testing.assert_array_equal(mine[3], wanted[3])
    of_both = [(id(mine[k]), i + 1, j) for k in (0, 1) for i in range(n) for j in places]
    assert sorted(found) == sorted(of_both)


@pytest.mark.parametrize(
    "function",
    [centred(passes=1), centred("math.exp %v : f32"), centred("arith.divf %v, %sum : f32"),
     centred(first="%j, %i")],
    ids=["one pass", "a function", "a division", "one row"],
)  # fmt: skip
def test_other_loops_stay(function: Function) -> None:
    assert not asks(scheduled(function))


def test_stores_that_stream_stay() -> None:
    usual = apply_cpu(centred(), (), CpuMachine(64))
    assert asks(usual)
    assert accessed(usual)  # that it asks does not tell whether its stores may stream
    made = apply_cpu(centred(), (), CpuMachine(64), streaming_beyond=1 << 20)
    assert any("streaming" in op.attrs for op in walk(made.body))
    assert not asks(made)


def test_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows behind the last one are nobody's memory."""
    monkeypatch.setattr(rows_ahead, "FAR", 0)
    compiled = Compiled(centred())
    for n, m in ((1, 512), (70, 513), (33, 2048), (4, 7)):
        x, y, w, o = arguments(n, m)
        compiled(x, y, w, o)
        wanted = (y.astype(np.float64) - x.sum(1, dtype=np.float64)[:, None]) * w
        np.testing.assert_allclose(o, wanted, rtol=2e-4, atol=2e-4)

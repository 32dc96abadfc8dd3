"""Extrema of integers are taken with what the turn before gives last."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes.dce import dce
from weft.passes.shorten_chains import shorten_chains


def loop(extrema: str, kind: str = "minsi") -> Function:
    text = extrema.replace("min", f"arith.{kind}")
    return parse_function(f"""
func.func @f(%d: memref<?xi32>, %p: memref<?xi32>, %q: memref<?xi32>) {{
  %c1 = arith.constant 1 : index
  %back = arith.constant -1 : index
  %one = arith.constant 1 : i32
  %n = "weft.dim"(%d) {{axis = 0}} : (memref<?xi32>) -> index
  %last = scf.for %j = %c1 to %n step %c1 iter_args(%left = %one) -> (i32) {{
    %k = arith.addi %j, %back : index
    %a = memref.load %d[%j] : memref<?xi32>
    %b = memref.load %d[%k] : memref<?xi32>
    %b1 = arith.addi %b, %one : i32
    %c = memref.load %p[%j] : memref<?xi32>
    {text}
    memref.store %m, %d[%j] : memref<?xi32>
    memref.store %left, %q[%j] : memref<?xi32>
    scf.yield %m : i32
  }}
  func.return
}}""")


STORED = "%x = min %a, %b1 : i32\n    %m = min %x, %c : i32"
CARRIED = "%x = min %left, %a : i32\n    %m = min %x, %c : i32"
BOTH = "%x = min %left, %b1 : i32\n    %y = min %a, %c : i32\n    %m = min %x, %y : i32"
LAST = "%x = min %a, %c : i32\n    %m = min %x, %b1 : i32"
USED = (
    "%x = min %a, %b1 : i32\n    memref.store %x, %p[%j] : memref<?xi32>\n    %m = min %x, %c : i32"
)


def outcome(function: Function, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n)
    args = [rng.integers(-9, 9, n).astype(np.int32) for _ in range(3)]
    interp.run(function, args)
    return args


@pytest.mark.parametrize("kind", ["minsi", "maxsi", "minui", "maxui"])
@pytest.mark.parametrize(("text", "lasts"), [(STORED, ["b1"]), (CARRIED, ["left"])])
def test_what_a_turn_waits_for_comes_last(text: str, lasts: list[str], kind: str) -> None:
    before = loop(text, kind)
    after = dce(shorten_chains(before))
    verify(after)
    chain = [op for op in walk(after.body) if op.name == f"arith.{kind}"]
    assert [op.operands[1].name for op in chain[-len(lasts) :]] == lasts
    assert len(chain) == 2
    for n in (1, 2, 3, 17):
        for a, b in zip(outcome(before, n), outcome(after, n), strict=True):
            np.testing.assert_array_equal(a, b)


def test_two_that_are_waited_for_come_behind_the_others() -> None:
    after = dce(shorten_chains(loop(BOTH)))
    chain = [op for op in walk(after.body) if op.name == "arith.minsi"]
    assert [v.name for v in chain[0].operands] == ["a", "c"]
    for a, b in zip(outcome(loop(BOTH), 17), outcome(after, 17), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("text", [LAST, USED])
def test_others_stay(text: str) -> None:
    before = loop(text)
    assert shorten_chains(before) is before


@pytest.mark.parametrize("m", [1, 2, 17, 64])
def test_distances_of_edits(m: int) -> None:
    @weft.kernel
    def distance(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
        for r in range(a.shape[0]):
            d = weft.zeros(65, weft.i32)
            for j in range(a.shape[1] + 1):
                d[j] = j
            for i in range(1, a.shape[1] + 1):
                corner = d[0]
                d[0] = i
                for j in range(1, a.shape[1] + 1):
                    above = d[j]
                    differs = 1 if a[r, i - 1] != b[r, j - 1] else 0
                    d[j] = min(min(d[j] + 1, d[j - 1] + 1), corner + differs)
                    corner = above
            out[r] = d[a.shape[1]]

    a, b = (torch.randint(0, 3, (9, m)) for _ in range(2))
    out, wanted = torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32)
    distance(a, b, out)
    distance.function(a, b, wanted)
    assert torch.equal(out, wanted)

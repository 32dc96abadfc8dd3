"""separate_sums: what a turn adds gets sums of its own, of which the terms are made behind."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import in_function, parsed
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.separate_sums import separate_sums

ARGS = ("%x: memref<?xf32>, %y: memref<?xf32>, %n: index, %w: f32, %u: f32, %yes: i1, %no: i1, "
        "%out: memref<?xf32>")  # fmt: skip


def loop(body: str, **attributes: object) -> str:
    return in_function(
        ARGS,
        f"""
        %first = memref.load %out[%c0] : memref<?xf32>
        %r, %q = scf.for %i = %c0 to %n step %c1 iter_args(%s = %first, %t = %zero) -> (f32, f32) {{
          %a = memref.load %x[%i] : memref<?xf32>
          %b = memref.load %y[%i] : memref<?xf32>
          {body}
          scf.yield %s1, %t1 : f32, f32
        }}
        memref.store %r, %out[%c0] : memref<?xf32>
        memref.store %q, %out[%c1] : memref<?xf32>
        """,
        **{"order": 1, **attributes},
    )


CHOSEN = """
    %p = arith.mulf %a, %w : f32
    %m = arith.negf %p : f32
    %z = arith.select %yes, %p, %zero : f32
    %v = arith.select %no, %m, %z : f32
    %s1 = arith.addf %s, %v : f32
    %h = arith.mulf %a, %u : f32
    %t1 = arith.addf %t, %h : f32
"""
BRANCH = """
    %s1, %t1 = scf.if %yes -> (f32, f32) {
      %ab = arith.mulf %a, %b : f32
      %p = arith.mulf %ab, %w : f32
      %s2 = arith.subf %s, %p : f32
      %h = arith.divf %ab, %u : f32
      %t2 = arith.addf %h, %t : f32
      %s3, %t3 = scf.if %no -> (f32, f32) {
        scf.yield %s2, %t2 : f32, f32
      } else {
        %s4 = arith.addf %s2, %a : f32
        %k = arith.mulf %a, %w : f32
        %k2 = arith.negf %k : f32
        %t4 = arith.addf %t2, %k2 : f32
        scf.yield %s4, %t4 : f32, f32
      }
      scf.yield %s3, %t3 : f32, f32
    } else {
      %k = arith.mulf %b, %u : f32
      %s5 = arith.addf %s, %k : f32
      %t5 = arith.addf %t, %b : f32
      scf.yield %s5, %t5 : f32, f32
    }
"""
BESIDE = """
    memref.store %a, %y[%i] : memref<?xf32>
    %s1, %t1 = scf.if %yes -> (f32, f32) {
      %p = arith.mulf %a, %w : f32
      %p2 = arith.select %no, %p, %zero : f32
      %s2 = arith.addf %s, %p2 : f32
      scf.yield %s2, %a : f32, f32
    } else {
      scf.yield %s, %b : f32, f32
    }
"""


def carried(function: Function) -> list[int]:
    return [len(op.results) for op in walk(function.body) if op.name == "scf.for"]


def test_a_choice_of_signs_leaves_the_loop() -> None:
    found = dce(cse(separate_sums(parsed(loop(CHOSEN)))))
    verify(found)
    assert carried(found) == [1]
    (inner,) = (op for op in found.body.ops if op.name == "scf.for")
    assert [op.name for op in inner.body.ops] == ["memref.load", "arith.addf", "scf.yield"]


@pytest.mark.parametrize("body", [CHOSEN, BRANCH, BESIDE], ids=["chosen", "branch", "beside"])
@pytest.mark.parametrize("n", [0, 1, 13])
@pytest.mark.parametrize("yes", [True, False])
@pytest.mark.parametrize("no", [True, False])
def test_the_sums_are_the_same(body: str, n: int, yes: bool, no: bool) -> None:
    before = parsed(loop(body))
    after = separate_sums(before)
    verify(after)
    assert not same(after, before)
    assert same(separate_sums(after), after)
    found = []
    for function in (before, after, dce(cse(after))):
        rng = np.random.default_rng(n)
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        out = np.array([1.5, 7], np.float32)
        run(function, [x, y, n, 0.75, -1.25, yes, no, out])
        found.append(np.concatenate([x, y, out]))
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [0, 3])
def test_what_no_turn_asks_for_may_be_anything(n: int) -> None:
    """A weight that is NaN or infinite, of a branch that is not taken or a loop without turns."""
    function = separate_sums(parsed(loop(BRANCH)))
    for weight in (math.nan, math.inf):
        out = np.zeros(2, np.float32)
        ones = np.ones(n, np.float32)
        run(function, [ones, ones, n, weight, 0.5, False, False, out])
        assert out.tolist() == [n / 2, n]


@pytest.mark.parametrize(
    "body",
    [
        "%s1 = arith.addf %s, %a : f32\n%t1 = arith.addf %t, %b : f32",
        "%p = arith.mulf %a, %w : f32\n%s1 = arith.addf %s, %p : f32\n"
        "%t1 = arith.addf %t, %b : f32",
        "%s1 = arith.addf %s, %a : f32\n%t1 = arith.addf %s1, %b : f32",
        "%s1 = arith.mulf %s, %a : f32\n%p = arith.select %yes, %a, %b : f32\n"
        "%t1 = arith.addf %t, %p : f32",
        "%q = arith.cmpf olt, %a, %b : f32\n%p = arith.select %q, %a, %zero : f32\n"
        "%s1 = arith.addf %s, %p : f32\n%t1 = arith.addf %t, %w : f32",
    ],
    ids=["plain", "one product", "used", "of two", "decided by the turn"],
)  # fmt: skip
def test_what_stays(body: str) -> None:
    function = parsed(loop(body))
    assert separate_sums(function) is function


def test_whose_sums_stay() -> None:
    for attributes in ({"order": 0}, {"strict_math": True}):
        function = parsed(loop(CHOSEN, **attributes))
        assert print_function(separate_sums(function)) == print_function(function)


def hat(x: Any, p: Any, out: Any) -> None:
    for i in range(p.shape[0]):
        left = math.floor(p[i])
        for c in range(x.shape[0]):
            s = 0.0
            for a in weft.static(range(2)):
                if 0 <= left + a < x.shape[1]:
                    s += (1 - abs(p[i] - left - a)) * x[c, left + a]
            out[c, i] = s


@pytest.mark.parametrize(("channels", "points"), [(1, 1), (5, 70), (0, 4)])
def test_gradients_of_places(channels: int, points: int) -> None:
    """Of points inside, outside and far outside; in float64 against finite differences."""
    kernel = weft.kernel(hat)

    def applied(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        out = x.new_zeros(channels, points)
        kernel(x, p, out)
        return out

    x = torch.randn(channels, 9, dtype=torch.float64, requires_grad=True)
    p = torch.randint(-3, 12, (points,)) + 0.2 + 0.6 * torch.rand(points, dtype=torch.float64)
    if points > 2:
        p[1] = 1e30
    assert torch.autograd.gradcheck(applied, (x, p.requires_grad_()), fast_mode=False)

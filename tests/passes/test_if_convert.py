"""if_convert: sums under a condition add always, or nothing in its place."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import in_function, parsed
from weft.ir.interp import run
from weft.ir.text import same
from weft.passes.if_convert import if_convert

ARGS = "%x: memref<?xf32>, %y: memref<f32>, %n: index"


def loop(body: str) -> str:
    return in_function(
        ARGS,
        f"""
        %first = memref.load %y[] : memref<f32>
        %r = scf.for %i = %c0 to %n step %c1 iter_args(%s = %first) -> (f32) {{
          %v = memref.load %x[%i] : memref<?xf32>
          %q = arith.cmpf ogt, %v, %zero : f32
          {body}
          scf.yield %t : f32
        }}
        memref.store %r, %y[] : memref<f32>
        """,
    )


ADD = "%a = arith.addf %s, %v : f32\nscf.yield %a : f32\n"
KEEP = "scf.yield %s : f32\n"


def branch(then: str, other: str) -> str:
    return loop(f"%t = scf.if %q -> (f32) {{\n{then}}} else {{\n{other}}}\n")


def test_a_sum_under_a_condition_adds_minus_zero() -> None:
    after = loop("""
        %nothing = arith.constant -0.0 : f32
        %w = arith.select %q, %v, %nothing : f32
        %t = arith.addf %s, %w : f32""")
    assert same(if_convert(parsed(branch(ADD, KEEP))), parsed(after))


LOADS = "%u = memref.load %x[%c0] : memref<?xf32>\n" + ADD.replace("%v", "%u")
TWICE = "%b = arith.mulf %v, %v : f32\n" + ADD.replace("%v", "%b")


@pytest.mark.parametrize(
    "text",
    [
        branch(ADD, KEEP),
        branch(KEEP, ADD.replace("%s, %v", "%v, %s")),
        branch(ADD, TWICE),
        branch(LOADS, KEEP),
        loop(f"%d = scf.if %q -> (f32) {{\n{ADD}}} else {{\n{KEEP}}}\n"
             f"%t = scf.if %q -> (f32) {{\n{KEEP.replace('%s', '%d')}}} else {{\n"
             f"{TWICE.replace('%s', '%d').replace('%a', '%g').replace('%b', '%h')}}}\n"),
    ],
    ids=["then", "otherwise", "both", "loads", "one after the other"],
)  # fmt: skip
@pytest.mark.parametrize("first", [0.0, -0.0, np.inf, np.nan, 1e-42])
@pytest.mark.parametrize("n", [0, 1, 17])
def test_bits_stay(text: str, first: float, n: int) -> None:
    """Where nothing is added, too: zeros keep their signs, NaN and infinity do no harm."""
    before = parsed(text)
    after = if_convert(before)
    assert not same(after, before)
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    if n:
        x[n // 2], x[-1] = -np.inf, -abs(x[-1])
    found = []
    for function in (before, after):
        y = np.array(first, np.float32)
        run(function, [x, y, n])
        found.append(y.tobytes())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "text",
    [
        branch("%a = arith.addf %v, %v : f32\nscf.yield %a : f32\n", KEEP),  # no sum
        branch("%a = arith.mulf %s, %v : f32\nscf.yield %a : f32\n", KEEP),
        branch("%a = arith.addf %s, %v : f32\nmemref.store %a, %x[%i] : memref<?xf32>\n"
               "scf.yield %a : f32\n", KEEP),
        branch(ADD, "scf.yield %v : f32\n"),
    ],
    ids=["no sum", "product", "used", "other"],
)  # fmt: skip
def test_what_stays(text: str) -> None:
    assert same(if_convert(parsed(text)), parsed(text))


def guarded(x, w, s, t):  # type: ignore[no-untyped-def]
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                s[j] += x[i, j] * w[i]
            else:
                t[j] += x[i, j]


def test_sums_of_columns_under_a_condition() -> None:
    """What is not added may be NaN or infinite; zeros keep their signs."""
    kernel = weft.kernel(guarded)
    for shape in ((1, 1), (3, 17), (700, 3), (129, 64), (90, 70), (0, 2)):
        x, w = torch.randn(shape), torch.randn(shape[0])
        x[:, 0] = torch.nan if shape[0] % 2 else -torch.inf
        s, t = torch.full((shape[1],), -0.0), torch.full((shape[1],), -0.0)
        kernel(x, w, s, t)
        up = x > 0
        want = (torch.where(up, x.double() * w[:, None].double(), 0).sum(0)).float()
        torch.testing.assert_close(s, want, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            t, torch.where(up, 0, x).sum(0), atol=1e-4, rtol=1e-4, equal_nan=True
        )
        assert torch.signbit(s[0])

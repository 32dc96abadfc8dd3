"""widen: subscripts through narrow integers and floats become index arithmetic if it is exact."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

import weft
import weft as ti
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify
from weft.passes.widen import widen

FLOOR = """
func.func @floors(%out: memref<?xi32>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %low = arith.constant {low} : index
  %high = arith.constant {high} : index
  %d = arith.constant {divisor} : {float}
  scf.parallel (%i) = (%low) to (%high) step (%c1) {{
    %n = arith.index_cast %i : index to i32
    %x = arith.sitofp %n : i32 to {float}
    %q = arith.divf %x, %d : {float}
    %f = math.floor %q : {float}
    %v = arith.fptosi %f : {float} to i32
    %place = arith.subi %i, %low : index
    memref.store %v, %out[%place] : memref<?xi32>
    scf.reduce
  }}
  func.return
}}
"""


def passed(function: Function) -> Function:
    found = dce(cse(widen(simplify(function))))
    verify(found)
    return found


def names(function: Function) -> set[str]:
    return {op.name for op in walk(function.body)}


@pytest.mark.parametrize(
    ("low", "high", "divisor", "float"),
    [(-40, 90, 7, "f32"), ((1 << 24) - 60, 1 << 24, 3, "f32"),
     (-(1 << 24), 60 - (1 << 24), 5, "f32"), (-300, 300, 8, "f32"),
     (-(1 << 30), 60 - (1 << 30), 144, "f64"),
     (0, 1, 1, "f32")],
)  # fmt: skip
def test_the_floor_of_a_quotient_is_a_division(
    low: int, high: int, divisor: int, float: str
) -> None:
    function = parse_function(FLOOR.format(low=low, high=high, divisor=f"{divisor}.0", float=float))
    new = passed(function)
    assert "math.floor" not in names(new)
    assert ("arith.floordivsi" in names(new)) == (divisor > 1)
    results = []
    for one in (function, new):
        out = np.zeros(high - low, np.int32)
        interp.run(one, [out])
        results.append(out)
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0], np.arange(low, high) // divisor)


@pytest.mark.parametrize(
    ("low", "high", "divisor", "float"),
    [(0, (1 << 24) + 2, "3.0", "f32"),  # not all of these are floats
     (0, 90, "-7.0", "f32"), (0, 90, "0.0", "f32"),
     (0, 90, "2.5", "f32"), (0, 9, "16777217.0", "f64")],
)  # fmt: skip
def test_what_may_be_rounded_stays(low: int, high: int, divisor: str, float: str) -> None:
    text = FLOOR.format(low=low, high=high, divisor=divisor, float=float)
    exact = float == "f64"
    assert ("math.floor" in names(passed(parse_function(text)))) != exact


def test_what_may_wrap_stays() -> None:
    text = """
func.func @wraps(%x: memref<?xf32>, %out: memref<?xf32>, %n: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c9 = arith.constant 9 : index
  %k = arith.constant 300000000 : i32
  %b = arith.constant 100 : i32
  scf.parallel (%i) = (%c0) to (END) step (%c1) {
    %a = arith.index_cast %i : index to i32
    %p = arith.muli %a, FACTOR : i32
    %q = arith.subi %p, %p : i32
    %place = arith.index_cast %q : i32 to index
    %v = memref.load %x[%place] : memref<?xf32>
    memref.store %v, %out[%i] : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""
    for end, factor, narrow in (("%c9", "%k", True), ("%c9", "%b", False), ("%n", "%b", True)):
        function = parse_function(text.replace("END", end).replace("FACTOR", factor))
        new = dce(cse(widen(function)))
        assert any(op.name == "arith.muli" and op.result.type.name == "i32"
                   for op in walk(new.body)) == narrow  # fmt: skip


def test_nothing_is_done_where_nothing_is_cast() -> None:
    text = FLOOR.format(low=0, high=9, divisor="3.0", float="f32")
    function = parse_function(
        text.replace("arith.fptosi %f : f32 to i32", "arith.trunci %n : i32 to i32")
    )
    assert widen(function) is function


@weft.kernel
def courses(out, tile):
    for row, col in ti.ndrange(37, 61):
        x1, y1 = ti.math.ivec2(col - 5, 36 - row + 3)
        v: ti.i32 = ti.floor(y1 / 4)
        u: ti.i32 = ti.floor((x1 - v * 3) / 17)
        out[row, col] = tile[3 - (y1 - v * 4), x1 - u * 17 - v * 3]


def test_bricks_as_taichi_spells_them_are_runs() -> None:
    tile = torch.arange(68).view(4, 17)
    out = torch.full((37, 61), -1)
    ir = courses.inspect(out, tile)["ir after dce"]
    assert "math.floor" not in ir
    assert "independent = true" in ir
    courses(out, tile)
    row, col = torch.arange(37)[:, None], torch.arange(61)
    y, v = 39 - row, (39 - row) // 4
    assert torch.equal(out, tile[3 - (y - v * 4), (col - 5 - v * 3) % 17])


@pytest.mark.parametrize("rounded", [math.floor, math.ceil, math.trunc, round, int, weft.i64])
def test_quotients_of_pythons_integers_are_exact(rounded) -> None:
    @weft.kernel
    def quotients(out, n: int, m: int):
        for i in range(3):
            out[0, i] = rounded((n + i) / m)
            out[1, i] = rounded((n - i) / 3)
            out[2, i] = rounded((i - n) / 4.0)
            out[3, i] = weft.i32(weft.math.floor((n % 1000000007 + i) / 7))

    given = random.Random(2)
    for k in range(80):
        n, m = given.randint(-(1 << 45), 1 << 45), given.choice((1, -1)) * given.randint(1, 1 << 20)
        if k > 50:  # with ties
            n, m = given.randint(-9, 9), given.choice((2, -2, 4, -4, 6, 3))
        out = torch.zeros(4, 3, dtype=torch.int64)
        quotients(out, n, m)
        whole = int if rounded is weft.i64 else rounded
        assert out.tolist() == [
            [whole((n + i) / m) for i in range(3)], [whole((n - i) / 3) for i in range(3)],
            [whole((i - n) / 4.0) for i in range(3)],
            [(n % 1000000007 + i) // 7 for i in range(3)],
        ]  # fmt: skip


def test_the_floor_of_pythons_integers_is_exact() -> None:
    @weft.kernel
    def floors(out, n: int, m: int):
        for i in range(3):
            out[0, i] = math.floor((n + i) / m)
            out[1, i] = math.floor((n + i) / 3)
            out[2, i] = math.floor((n + i) / 2.5)  # in f32
            out[3, i] = math.floor(i / m)

    given = random.Random(1)
    for _ in range(50):
        n, m = given.randint(-(1 << 45), 1 << 45), given.choice((1, -1)) * given.randint(1, 1 << 20)
        out = torch.zeros(4, 3, dtype=torch.int64)
        floors(out, n, m)
        assert out[0].tolist() == [math.floor((n + i) / m) for i in range(3)]
        assert out[1].tolist() == [math.floor((n + i) / 3) for i in range(3)]
        assert out[3].tolist() == [math.floor(i / m) for i in range(3)]
    floors(out, 5, 0)  # Python raises
    assert out[0].tolist() == [0, 0, 0]

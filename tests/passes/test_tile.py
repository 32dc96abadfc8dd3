"""blocks: transpositions, run block by block."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import weft
from tests.passes.texts import normal, parsed, result_of
from weft.ir import interp
from weft.ir.verify import verify
from weft.passes import tile as blocks_module
from weft.passes.tile import tile

TRANSPOSE = """
func.func @transpose(%x: memref<?x?xf32>, %out: memref<?x?xf32>, %n: index, %m: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {
    %v = memref.load %x[%j, %i] : memref<?x?xf32>
    memref.store %v, %out[%i, %j] : memref<?x?xf32>
    scf.reduce
  }
  func.return
}
"""
STRIDED = "memref<?x?xf32, strided<[?, ?]>>"

IN_BLOCKS = """
func.func @transpose(%x: memref<?x?xf32>, %out: memref<?x?xf32>, %n: index, %m: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %h = arith.constant 4 : index
  %w = arith.constant 3 : index
  scf.parallel (%bi, %bj) = (%c0, %c0) to (%n, %m) step (%h, %w) {
    %ei = arith.addi %bi, %h : index
    %ti = arith.minsi %ei, %n : index
    %ej = arith.addi %bj, %w : index
    %tj = arith.minsi %ej, %m : index
    scf.for %i = %bi to %ti step %c1 {
      scf.for %j = %bj to %tj step %c1 {
        %v = memref.load %x[%j, %i] : memref<?x?xf32>
        memref.store %v, %out[%i, %j] : memref<?x?xf32>
      } {independent = true}
    }
    scf.reduce
  }
  func.return
}
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_module, "HEIGHT", 4)
    monkeypatch.setattr(blocks_module, "WIDTH", 3)


@pytest.mark.usefixtures("small")
def test_text() -> None:
    def anonymous(text: str) -> str:
        """``text`` with its values numbered in the order in which they come."""
        numbers: dict[str, str] = {}
        return re.sub(r"%\w+", lambda m: numbers.setdefault(m[0], f"%{len(numbers)}"), text)

    assert anonymous(result_of([tile], TRANSPOSE)) == anonymous(normal(IN_BLOCKS))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (4, 3), (5, 4), (9, 13)])
def test_means_the_same(shape: tuple[int, int]) -> None:
    after = tile(parsed(TRANSPOSE))
    verify(after)
    x = np.random.default_rng(1).random(shape, np.float32)
    out = np.full((shape[1], shape[0]), np.nan, np.float32)
    interp.run(after, [x, out, shape[1], shape[0]])
    np.testing.assert_array_equal(out, x.T)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%x[%j, %i]", "%x[%i, %j]"),  # neighbours are close
        ("%x[%j, %i]", "%x[%c0, %i]"),  # a row that stays in the cache
        ("step (%c1, %c1)", "step (%c1, %n)"),  # steps
    ],
)
def test_leaves_other_loops(old: str, new: str) -> None:
    assert old in TRANSPOSE
    before = parsed(TRANSPOSE.replace(old, new))
    assert tile(before) is before


def test_takes_strided_operands() -> None:
    text = TRANSPOSE.replace("%x: memref<?x?xf32>", f"%x: {STRIDED}")
    text = text.replace("%x[%j, %i] : memref<?x?xf32>", f"%x[%i, %j] : {STRIDED}")
    before = parsed(text)
    assert tile(before) is not before


def test_compiled() -> None:
    @weft.kernel
    def transpose(x, out):
        for b, i, j in weft.ndrange(*out.shape):
            out[b, i, j] = x[b, j, i]

    for shape in ((2, 3, 5), (1, 33, 64), (3, 100, 70), (0, 4, 4)):
        x = torch.rand(shape)
        out = torch.full((shape[0], shape[2], shape[1]), -1.0)
        transpose(x, out)
        assert torch.equal(out, x.transpose(1, 2))
        back = torch.full(shape, -1.0)
        transpose(x.transpose(1, 2).transpose(0, 1).transpose(0, 1), back)
        assert torch.equal(back, x)

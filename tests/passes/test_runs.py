"""runs: a loop split where an integer division keeps its value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.ir import interp
from weft.ir.core import Function, walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes.runs import runs

TILES = """
func.func @tiles(%x: memref<?x?xi32>, %out: memref<?x?xi32>, %n: index, %m: index, %d: index, %s: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {
    %shifted = arith.subi %j, %s : index
    %moved = arith.addi %shifted, %i : index
    %q = arith.floordivsi %moved, %d : index
    %back = arith.muli %q, %d : index
    %r = arith.subi %moved, %back : index
    %v = memref.load %x[%i, %r] : memref<?x?xi32>
    %w = arith.index_cast %q : index to i32
    %sum = arith.addi %v, %w : i32
    memref.store %sum, %out[%i, %j] : memref<?x?xi32>
    scf.reduce
  }
  func.return
}
"""


def run(function: Function, d: int, m: int, s: int) -> np.ndarray:
    x = np.arange(3 * d, dtype=np.int32).reshape(3, d)
    out = np.full((3, m), -1, np.int32)
    interp.run(function, [x, out, 3, m, d, s])
    return out


@pytest.mark.parametrize("d", [1, 15, 16, 17, 31])
@pytest.mark.parametrize(("m", "s"), [(0, 0), (1, 0), (40, 0), (40, 7), (40, -50), (127, 1000)])
def test_means_the_same(d: int, m: int, s: int) -> None:
    before = parse_function(TILES)
    after = runs(before)
    verify(after)
    np.testing.assert_array_equal(run(after, d, m, s), run(before, d, m, s))


def test_splits_into_runs() -> None:
    after = runs(parse_function(TILES))
    loops = [op for op in walk(after.body) if op.name == "scf.for"]
    assert [bool(op.attrs.get("independent")) for op in loops] == [False, True, True]
    assert next(op for op in walk(after.body) if op.name == "scf.parallel").attrs["dims"] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%moved = arith.addi %shifted, %i", "%moved = arith.subi %i, %shifted"),  # falling
        ("arith.floordivsi %moved, %d", "arith.floordivsi %moved, %j"),  # the divisor changes
        ("%moved = arith.addi %shifted, %i", "%moved = arith.muli %shifted, %i"),  # not a run
    ],
)
def test_leaves_what_has_no_runs(old: str, new: str) -> None:
    assert old in TILES
    before = parse_function(TILES.replace(old, new))
    assert runs(before) is before


def test_compiled() -> None:
    @weft.kernel
    def wall(tile, height: int, width: int, offset: int):
        h, w = tile.shape
        image = torch.empty(height, width, dtype=tile.dtype)
        for y, x in weft.ndrange(height, width):
            image[y, x] = tile[y % h, (x - y // h * offset) % w]
        return image

    for h, w, offset in ((5, 3, 1), (7, 33, 16), (16, 64, -100)):
        tile = torch.randint(0, 1000, (h, w))
        y, x = torch.arange(61)[:, None], torch.arange(127)
        expected = tile[y % h, (x - y // h * offset) % w]
        assert torch.equal(wall(tile, 61, 127, offset), expected)

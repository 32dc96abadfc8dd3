"""runs: a loop split where an integer division keeps its value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import weft
from weft.ir import interp
from weft.ir.core import Function, Op, walk
from weft.ir.text import parse_function
from weft.ir.verify import verify
from weft.passes import split_quotients as runs_module
from weft.passes.dce import dce
from weft.passes.split_quotients import split_quotients

TILES = """
func.func @tiles(
  %x: memref<?x?xi32>, %out: memref<?x?xi32>, %n: index, %m: index, %d: index, %s: index
) {
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

# The index of the division has another one inside of it, as the pixels of an image have channels.
CHANNELS = """
func.func @image(
  %x: memref<?x?xi32>, %out: memref<?x?x?xi32>, %n: index, %m: index, %d: index, %s: index
) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  scf.parallel (%i, %j, %k) = (%c0, %c0, %c0) to (%n, %m, %c3) step (%c1, %c1, %c1) {
    %moved = arith.subi %j, %s : index
    %q = arith.floordivsi %moved, %d : index
    %back = arith.muli %q, %d : index
    %r = arith.subi %moved, %back : index
    %v = memref.load %x[%i, %r] : memref<?x?xi32>
    %c = arith.index_cast %k : index to i32
    %sum = arith.addi %v, %c : i32
    memref.store %sum, %out[%i, %j, %k] : memref<?x?x?xi32>
    scf.reduce
  }
  func.return
}
"""

# One index for three: i // (3 * d), i // d % 3 and i % d.
FLAT = """
func.func @flat(%x: memref<?x?x?xi32>, %out: memref<?xi32>, %n: index, %d: index) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %area = arith.muli %d, %c3 : index
    %b = arith.floordivsi %i, %area : index
    %row = arith.floordivsi %i, %d : index
    %rows = arith.muli %b, %c3 : index
    %h = arith.subi %row, %rows : index
    %back = arith.muli %row, %d : index
    %w = arith.subi %i, %back : index
    %v = memref.load %x[%b, %h, %w] : memref<?x?x?xi32>
    memref.store %v, %out[%i] : memref<?xi32>
    scf.reduce
  }
  func.return
}
"""

# The quotient of 32-bit integers as a float.
FLOATS = """
func.func @floats(
  %out: memref<?x?xi64>, %n: index, %m: index, %d: index, %s: index, %t: i32
) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {
    %shifted = arith.subi %j, %s : index
    %narrow = arith.index_cast %shifted : index to i32
    %moved = arith.subi %narrow, %t : i32
    %a = arith.sitofp %moved : i32 to f32
    %e = arith.index_cast %d : index to i32
    %b = arith.sitofp %e : i32 to f32
    %ratio = arith.divf %a, %b : f32
    %whole = math.floor %ratio : f32
    %q = arith.fptosi %whole : f32 to i32
    %back = arith.muli %q, %e : i32
    %r = arith.subi %moved, %back : i32
    %place = arith.index_cast %r : i32 to index
    %v = arith.index_cast %place : index to i64
    memref.store %v, %out[%i, %j] : memref<?x?xi64>
    scf.reduce
  }
  func.return
}
"""


@pytest.fixture(autouse=True, params=[7, 8192])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few iterations in a block, then all of them in one."""
    monkeypatch.setattr(runs_module, "BLOCK", request.param)
    monkeypatch.setattr(runs_module, "NARROW_BLOCK", request.param)


def run(function: Function, d: int, m: int, s: int, *channels: int) -> np.ndarray:
    x = np.arange(3 * d, dtype=np.int32).reshape(3, d)
    out = np.full((3, m, *channels), -1, np.int32)
    interp.run(function, [x, out, 3, m, d, s])
    return out


def after(text: str) -> Function:
    function = split_quotients(parse_function(text))
    verify(function)
    return function


def loops(function: Function) -> list[Op]:
    return [op for op in walk(function.body) if op.name == "scf.for"]


def independent(function: Function) -> list[bool]:
    return [bool(op.attrs.get("independent")) for op in loops(function)]


@pytest.mark.parametrize("d", [1, 3, 4, 17, 31])
@pytest.mark.parametrize(("m", "s"), [(0, 0), (1, 0), (40, 0), (40, 7), (40, -50), (127, 1000)])
def test_means_the_same(d: int, m: int, s: int) -> None:
    before = parse_function(TILES)
    np.testing.assert_array_equal(run(after(TILES), d, m, s), run(before, d, m, s))
    before = parse_function(CHANNELS)
    np.testing.assert_array_equal(run(after(CHANNELS), d, m, s, 3), run(before, d, m, s, 3))


@pytest.mark.parametrize("d", [1, 4, 17])
@pytest.mark.parametrize("n", [0, 1, 100, 204])
def test_of_one_index_means_the_same(n: int, d: int) -> None:
    x = np.arange(n + 3 * d, dtype=np.int32)[: -(-max(n, 1) // (3 * d)) * 3 * d].reshape(-1, 3, d)
    out = np.full(n, -1, np.int32)
    interp.run(after(FLAT), [x, out, n, d])
    np.testing.assert_array_equal(out, np.arange(n))


def test_splits_into_runs() -> None:
    assert independent(after(TILES)) == [False, True, True]
    parallel = next(op for op in walk(after(TILES).body) if op.name == "scf.parallel")
    assert parallel.attrs["dims"] == 2  # rows, and blocks of columns


def test_a_run_begins_where_the_one_before_ends() -> None:
    """Without a quotient that nobody asks for, and with one that is counted."""
    for text, counted in ((CHANNELS, 0), (TILES, 1)):
        function = after(text)
        run = loops(function)[0]
        assert len(run.results) == counted
        inside = [op.name for op in walk(run.regions[0])]
        assert not {"arith.floordivsi", "arith.muli"} & {*inside}
        divisions = [op for op in walk(function.body) if "positive" in op.attrs]
        assert [op.name for op in divisions] == ["arith.floordivsi"]


def test_of_a_constant_divisor_nothing_is_asked() -> None:
    text = TILES.replace("%c1 = ", "%c20 = arith.constant 20 : index\n  %c1 = ")
    text = text.replace("%moved, %d", "%moved, %c20").replace("%q, %d", "%q, %c20")
    function = after(text)
    assert independent(function) == [False, True]
    assert not any(op.name == "scf.if" for op in walk(function.body))
    for m, s in ((0, 0), (40, 7), (127, 1000), (127, -50)):
        np.testing.assert_array_equal(run(function, 20, m, s), run(parse_function(text), 20, m, s))


def test_indices_inside_of_a_run_are_loops() -> None:
    assert independent(after(CHANNELS)) == [False, False, True, False, True]


def test_two_divisions_make_loops_in_each_other() -> None:
    function = after(FLAT)
    assert independent(function) == [False, False, True, True]
    inside = loops(function)[2]
    assert not any(op.name == "arith.floordivsi" for op in walk(inside.regions[0]))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%moved = arith.addi %shifted, %i", "%moved = arith.subi %i, %shifted"),  # falling
        ("arith.floordivsi %moved, %d", "arith.floordivsi %moved, %j"),  # the divisor changes
        ("%moved = arith.addi %shifted, %i", "%moved = arith.muli %shifted, %i"),  # not a run
        ("arith.floordivsi %moved, %d", "arith.floordivsi %moved, %c1"),  # too short
    ],
)
def test_leaves_what_has_no_runs(old: str, new: str) -> None:
    assert old in TILES
    before = parse_function(TILES.replace(old, new))
    assert split_quotients(before) is before


@pytest.mark.parametrize(("number", "pays"), [(7, False), (8, False), (9, True), (16, True)])
def test_a_divisor_that_is_written_is_longer(number: int, pays: bool) -> None:
    """By powers of two a shift divides, by others a product."""
    text = TILES.replace("%c1 = ", f"%e = arith.constant {number} : index\n  %c1 = ")
    before = parse_function(text.replace("%moved, %d", "%moved, %e").replace("%q, %d", "%q, %e"))
    made = split_quotients(before)
    assert (made is not before) is pays
    np.testing.assert_array_equal(run(made, number, 40, 7), run(before, number, 40, 7))


def test_leaves_what_depends_on_an_index_inside() -> None:
    text = CHANNELS.replace("%moved = arith.subi %j, %s", "%moved = arith.subi %j, %k")
    before = parse_function(text)
    assert split_quotients(before) is before


@pytest.mark.parametrize(
    ("s", "t"),
    [(-50, 9), (1 << 23, 0), ((1 << 24) + 1, 0), (1 << 31, 9), (7, 1 << 30), (-(1 << 62), 0)],
)
def test_quotients_of_floats_are_those_of_integers_where_a_call_says_so(s: int, t: int) -> None:
    before, made = parse_function(FLOATS), dce(after(FLOATS))
    assert independent(made) == [False, True, True]
    for d in (17, 5, 4, (1 << 24) + 1, 0, -16):
        outs: list[np.ndarray] = []
        counts: list[int] = []
        for function in (before, made):
            names: list[str] = []
            outs.append(np.full((1, 20), -1, np.int64))
            seen = lambda op, *_, names=names: names.append(op.name)  # noqa: E731
            interp.run(function, [outs[-1], 1, 20, d, s, t], watch=seen)
            counts.append(names.count("math.floor"))
        np.testing.assert_array_equal(*outs)
        exact = 5 <= d < 1 << 24 and abs(s) + abs(t) < (1 << 24) - 50
        assert counts == [20, 0 if exact else 20]


def test_compiled_with_quotients_of_floats() -> None:
    @weft.kernel
    def wall(image, tile, offset: int, ph: int, pw: int):
        for row, col in image:
            x1, y1 = col - pw, image.shape[0] - 1 - row + ph
            v: weft.i32 = weft.floor(y1 / tile.shape[0])
            u: weft.i32 = weft.floor((x1 - v * offset) / tile.shape[1])
            x2, y2 = x1 - u * tile.shape[1] - v * offset, y1 - v * tile.shape[0]
            image[row, col] = tile[tile.shape[0] - 1 - y2, x2]

    for h, w, offset, ph, pw in ((5, 3, 1, 0, 0), (7, 33, 16, 2, 5), (16, 64, -100, 0, 1 << 20)):
        tile = torch.randint(0, 1000, (h, w))
        for height, width in ((61, 127), (1, 1), (0, 9)):
            image = torch.full((height, width), -1)
            wall(image, tile, offset, ph, pw)
            y, x = torch.arange(height - 1 + ph, ph - 1, -1)[:, None], torch.arange(width) - pw
            assert torch.equal(image, tile[h - 1 - y % h, (x - y // h * offset) % w])


def test_compiled() -> None:
    @weft.kernel
    def wall(tile, height: int, width: int, offset: int):
        h, w = tile.shape
        image = torch.empty(height, width, dtype=tile.dtype)
        for y, x in weft.ndrange(height, width):
            image[y, x] = tile[y % h, (x - y // h * offset) % w]
        return image

    for h, w, offset in ((5, 3, 1), (9, 4, 2), (7, 33, 16), (16, 64, -100)):
        tile = torch.randint(0, 1000, (h, w))
        y, x = torch.arange(61)[:, None], torch.arange(127)
        expected = tile[y % h, (x - y // h * offset) % w]
        assert torch.equal(wall(tile, 61, 127, offset), expected)


def test_compiled_without_elements() -> None:
    """Nobody divides by a size that is 0."""

    @weft.kernel
    def wall(tile, image, offset: int):
        h, w = tile.shape
        for y, x in image:
            image[y, x] = tile[y % h, (x - y // h * offset) % w]

    for tile, image in (((0, 0), (0, 0)), ((3, 0), (5, 0)), ((0, 4), (0, 7))):
        wall(torch.empty(tile), torch.empty(image), 1)


def test_compiled_with_channels() -> None:
    @weft.kernel
    def wall(tile, height: int, width: int, channels: int):
        h, w = tile.shape[0], tile.shape[1]
        image = torch.full((height, width, channels), -1, dtype=tile.dtype)
        for y, x, c in weft.ndrange(height, width, channels):
            image[y, x, c] = tile[y % h, (x - y) % w, c]
        return image

    for h, w in ((5, 3), (7, 33)):
        whole = torch.randint(0, 1000, (h, w, 6))
        # Rows without a gap, rows with one, and fewer channels than the tile has.
        parts = ((whole, 6), (whole[:, :, :4], 4), (whole[:, : w - 1], 6), (whole, 5))
        for tile, channels in parts:
            y, x = torch.arange(61)[:, None], torch.arange(127)
            expected = tile[y % h, (x - y) % tile.shape[1], :channels]
            assert torch.equal(wall(tile, 61, 127, channels), expected)


def test_compiled_with_one_index() -> None:
    @weft.kernel
    def spread(x, w: int):
        out = torch.full((-(-x.shape[0] // w), w), -1.0)
        for i in range(x.shape[0]):
            out[i // w, i % w] = x[i]
        return out

    for n, w in ((0, 5), (100, 7), (100_003, 16), (100_003, 1000)):
        x = torch.rand(n)
        assert torch.equal(spread(x, w).view(-1)[:n], x)

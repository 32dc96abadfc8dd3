"""Iterations in step: the same numbers, bit by bit, and loads that are shared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import weft
from benchmarks import nests
from examples import causal_conv, gallery
from tests.cuda.sizes import call_of
from tests.cuda.test_emulated import same
from tests.cuda.test_teams import row_sums
from weft import compiler
from weft.ir import interp
from weft.ir.core import Function, Op, walk
from weft.ir.parse import parse_function
from weft.ir.text import print_function
from weft.ir.verify import verify
from weft.options import Options
from weft.passes.dce import dce
from weft.schedule.choose import choose
from weft.schedule.grid import left_over
from weft.schedule.guards import FewLeft, judged
from weft.schedule.language import UnrollJam, several
from weft.schedule.machine import GpuMachine
from weft.schedule.shared_loads import UnrollJamCandidates
from weft.schedule.spmd import WORKGROUP
from weft.schedule.unroll_jam import unroll_jam
from weft.tools.cross import lowered_loops

# out[i, j] = sum of a[i, k] * b[k, j] for k from max(j - 3, 0) to min(j + i, n)
BAND = """
func.func @band(%a: memref<?x?xf32>, %b: memref<?x?xf32>, %out: memref<?x?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %zero = arith.constant 0.0 : f32
  %m = "weft.dim"(%out) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%out) {axis = 1} : (memref<?x?xf32>) -> index
  scf.parallel (%i, %j) = (%c0, %c0) to (%m, %n) step (%c1, %c1) {
    %0 = arith.subi %j, %c3 : index
    %low = arith.maxsi %0, %c0 : index
    %1 = arith.addi %j, %i : index
    %high = arith.minsi %1, %n : index
    %s = scf.for %k = %low to %high step %c1 iter_args(%t = %zero) -> (f32) {
      %x = memref.load %a[%i, %k] : memref<?x?xf32>
      %y = memref.load %b[%k, %j] : memref<?x?xf32>
      %2 = arith.mulf %x, %y : f32
      %3 = arith.addf %t, %2 : f32
      scf.yield %3 : f32
    }
    memref.store %s, %out[%i, %j] : memref<?x?xf32>
    scf.reduce
  }
  func.return
}
"""


def only(function: Function) -> Op:
    return next(op for op in function.body.ops if op.name == "scf.parallel")


def after(function: Function, *shapes: tuple[int, ...]) -> list[Any]:
    """What a function leaves in memory that starts as random numbers."""
    rng = np.random.default_rng(5)
    memory = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    interp.run(function, memory)
    return memory


@pytest.mark.parametrize("how", [(0, 2), (0, 3), (1, 2), (1, 4), (1, 2, 3), (0, 2, 4)])
@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (0, 4), (4, 0), (5, 17), (8, 12)])
def test_bits_are_kept(how: tuple[int, ...], sizes: tuple[int, int]) -> None:
    function = parse_function(BAND)
    m, n = sizes
    shapes = ((m, n), (n, n), (m, n))
    made, parallel = unroll_jam(function, only(function), *how)
    verify(made)
    assert parallel in made.body.ops
    for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)


# out[i, j] = sum of a[i, k + 3] * b[k + 3, j] from LOW to HIGH, one of which depends on j
STAIRS = BAND.replace("%0 =", "%e = WHAT : index\n  %0 =").replace(
    "%x = ", "%p = arith.addi %k, %c3 : index\n      %x = "
).replace("%a[%i, %k]", "%a[%i, %p]").replace("%b[%k, %j]", "%b[%p, %j]").replace(
    "%low to %high", "LOW to HIGH"
)  # fmt: skip


@pytest.mark.parametrize("what", ["addi %j, %c3", "subi %n, %j", "subi %j, %c3"])
@pytest.mark.parametrize(("low", "high"), [("%c0", "%e"), ("%e", "%n")])
@pytest.mark.parametrize("how", [(1, 2), (1, 3), (1, 4), (1, 3, 1, 2), (1, 4, 2)])
@pytest.mark.parametrize("n", [6, 8, 12, 17])
def test_a_shader_has_one_loop_for_what_is_left_of_a_ladder(
    what: str, low: str, high: str, how: tuple[int, ...], n: int
) -> None:
    text = STAIRS.replace("WHAT", f"arith.{what}").replace("LOW", low).replace("HIGH", high)
    function, shapes = parse_function(text), ((3, n + 6), (n + 6, n), (3, n))
    expected = after(function, *shapes)
    function.attrs[WORKGROUP] = (32, 1, 1)
    made, parallel = unroll_jam(function, only(function), *how)
    verify(made)
    for old, new in zip(expected, after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)
    loops = [op for op in walk(parallel.regions[0]) if op.name == "scf.for"]
    assert sum("asking" in op.attrs for op in loops) == (how[1] > 2), "of two, one is left"


def test_two_jams_keep_bits() -> None:
    function = parse_function(BAND)
    made, parallel = unroll_jam(*unroll_jam(function, only(function), 0, 4), 1, 2, 3)
    verify(made)
    for sizes in ((8, 12), (5, 13), (3, 2)):
        shapes = (sizes, (sizes[1],) * 2, sizes)
        for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
            np.testing.assert_array_equal(old, new)
    together = max(
        (op for op in walk(parallel.regions[0]) if op.name == "scf.for"),
        key=lambda op: len(op.results),
    )
    loads = [op for op in together.regions[0].ops if op.name == "memref.load"]
    assert len(together.results) == 8, "a sum for each iteration"
    assert len(loads) == 6, "four rows of one, two columns of the other"


@pytest.mark.parametrize("how", [(0, 2, 1, 2), (1, 3, 1, 2), (1, 2, 3, 3), (0, 1, 1, 3)])
@pytest.mark.parametrize("sizes", [(6, 6), (7, 8), (9, 17)])
def test_groups_that_overlap_store_each_element_once(
    how: tuple[int, int, int, int], sizes: tuple[int, int]
) -> None:
    function = parse_function(BAND)
    m, n = sizes
    shapes = ((m, n), (n, n), (m, n))
    made, _ = unroll_jam(function, only(function), *how)
    verify(made)
    for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)
    axis, copies, apart, group = how
    positions = left_over(UnrollJam("i", copies, apart, group), sizes[axis])
    assert positions * copies >= sizes[axis]
    assert positions % group == 0
    stored: list[str] = []
    rng = np.random.default_rng(5)
    memory = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    interp.run(made, memory, races=True, watch=lambda op, *_: stored.append(op.name))
    assert stored.count("memref.store") == m * n


def test_what_is_common_is_done_once() -> None:
    function = parse_function(
        BAND.replace("%1 = arith.addi %j, %i : index", "%1 = arith.addi %j, %c3 : index")
    )
    made, _ = unroll_jam(function, only(function), 0, 2)
    text = print_function(made)
    early, body = text.split("scf.if")
    body = body[: body.index("else")]
    assert body.count("scf.for") == 1, "bounds are the same for both"
    assert body.count("memref.load %a") == 2
    assert body.count("memref.load %b") == 1
    assert early.count("arith.maxsi") == 2, "the least of the loop, beside that of the trip count"


BOUNDS = {
    "ends later": ("%c0", "%j"),
    "ends earlier": ("%c0", "%0"),
    "begins later": ("%j", "%n"),
    "begins earlier": ("%0", "%n"),
    "never both": ("%j", "%0"),
    "begins after the end": ("%1", "%m"),
}


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize(("m", "n", "apart"), [(3, 17, 1), (2, 24, 3), (5, 8, 2), (1, 4, 1)])
def test_loops_that_begin_or_end_one_after_the_other(
    bounds: str, m: int, n: int, apart: int
) -> None:
    low, high = BOUNDS[bounds]
    text = BAND.replace("%0 = arith.subi %j, %c3", "%0 = arith.subi %n, %j")
    text = text.replace("%k = %low to %high", f"%k = {low} to {high}")
    function = parse_function(text.replace("memref.load %a[%i, %k]", "memref.load %a[%i, %j]"))
    made, _ = unroll_jam(function, only(function), 1, 4, apart)
    verify(made)
    shapes = ((m, n), (n, n), (m, n))
    if bounds == "begins after the end":
        shapes = ((m, n), (max(m, n), n), (m, n))
    for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)


GUARDED = BAND.replace(
    "%s = scf.for",
    """%ok = arith.cmpi sgt, %i, %c1 : index
    %s = scf.if %ok -> (f32) {
    %r = scf.for""",
).replace(
    "memref.store %s",
    """scf.yield %r : f32
    } else {
    scf.yield %zero : f32
    }
    memref.store %s""",
)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (9, 5), (8, 12)])
def test_branches_that_all_take(sizes: tuple[int, int]) -> None:
    function = parse_function(GUARDED)
    made, _ = unroll_jam(function, only(function), 0, 4)
    verify(made)
    shapes = (sizes, (sizes[1],) * 2, sizes)
    for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)
    text = print_function(made)
    assert text.count("scf.if") == 2, "one asks for all at once, one is in what is left over"
    # Whether all four are there, whether the first of them does, and each of those left over.
    assert print_function(dce(made)).count("arith.cmpi") == 3


@pytest.mark.parametrize("sizes", [(4, 1), (4, 3), (8, 12), (12, 5)])  # groups of four
def test_an_iteration_of_a_group_that_is_alone_needs_no_loop(sizes: tuple[int, int]) -> None:
    function = parse_function(GUARDED)
    made, _ = unroll_jam(function, only(function), 0, 1, 1, 4, whole=True)
    verify(made)
    shapes = (sizes, (sizes[1],) * 2, sizes)
    for old, new in zip(after(function, *shapes), after(made, *shapes), strict=True):
        np.testing.assert_array_equal(old, new)
    (before, now) = (sum(op.name == "scf.for" for op in walk(f.body)) for f in (function, made))
    assert now == 2 * before, "those of the iteration, where its group is whole and where it is not"


# -- which loops


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def taken(kernel: weft.Kernel, trips: int, *args: Any) -> list[UnrollJam]:
    """What a call with loops of so many iterations each does in step."""
    facts = weft.compile_for("sm_90", kernel, *args).loops[0].facts
    call = call_of(facts.nest, dict.fromkeys(facts.nest.axes, trips))
    texts = [text for text in facts.candidates if "cooperate" not in text]
    return several(choose(texts, call, GpuMachine(100), 512).schedule, UnrollJam)


def found(kernel: weft.Kernel, *args: Any) -> list[tuple[str, int]]:
    """(axis, how far apart) of what a large call does in step."""
    steps = taken(kernel, 1 << 20, *args)
    assert all(step.copies == 4 for step in steps)
    return [(step.axis, step.stride) for step in steps]


@weft.kernel
def windows(x, w, out):
    for n, o, i, j in out:
        s = 0.0
        for c in range(x.shape[1]):
            for di in range(3):
                for dj in range(3):
                    s += x[n, c, i + di, j + dj] * w[o, c, di, dj]
        out[n, o, i, j] = s


@weft.kernel
def nearest(x, out):
    for i in range(x.shape[0]):
        best = 1e30
        for j in range(x.shape[0]):
            best = min(best, abs(x[j] - x[i]) + 0.5)
        out[i] = best


@weft.kernel
def sparse(starts, columns, values, x, out):
    for i, j in out:
        s = 0.0
        for p in range(starts[i], starts[i + 1]):
            s += values[p] * x[columns[p], j]
        out[i, j] = s


def test_indices_that_share_loads_are_jammed() -> None:
    assert found(gallery.matmul, meta(9, 8), meta(8, 7)) == [("i", 1), ("j", 32)]
    conv = found(causal_conv.causal_conv, meta(3, 17), meta(2, 3, 17), 0.1)
    assert conv == [("b", 1), ("t", 32)], "first that whose loops are all of one length"
    image = found(windows, meta(2, 3, 9, 9), meta(4, 3, 3, 3), meta(2, 4, 7, 7))
    assert image == [("i", 1), ("o", 1)], "rows, whose windows overlap, and channels"
    assert found(nearest, meta(9), meta(9)) == [("i", 32)]


def test_rows_of_a_sparse_matrix_are_not_in_step_but_columns_are() -> None:
    whole = [meta(5, dtype=torch.int64), meta(9, dtype=torch.int64)]
    assert found(sparse, *whole, meta(9), meta(6, 3), meta(4, 3)) == [("j", 32)]


@weft.kernel
def escape(x, c, out):
    for i in range(x.shape[0]):
        z = x[i]
        for k in range(c.shape[0]):
            if z < 4:
                z = z * z + c[k]
        out[i] = z


@weft.kernel
def attraction(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[0]):
            d = x[j] - x[i]
            s += d * torch.rsqrt(d * d + 0.1)
        out[i] = s


@weft.kernel
def waves(x, f, out):
    for i in range(x.shape[0]):
        s = 0.0
        for k in range(f.shape[0]):
            s += math.sin(x[i] * f[k])
        out[i] = s


@weft.kernel
def asked(a, b, out):
    weft.loop_config(block_dim=64)
    for i, j in out:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        out[i, j] = s


def test_what_shares_nothing_or_is_heavy_is_not_jammed() -> None:
    assert found(row_sums, meta(9, 8), meta(9)) == []
    assert found(escape, meta(9), meta(8), meta(9)) == [], "branches depend on data"
    assert found(waves, meta(9), meta(8), meta(9)) == [], "time goes into sines, not loads"
    assert found(attraction, meta(9), meta(9)) == []
    assert found(asked, meta(9, 8), meta(8, 7), meta(9, 7)) == [], "the writer said what blocks are"
    checked = weft.kernel(debug=True)(gallery.matmul.function)
    assert found(checked, meta(9, 8), meta(8, 7)) == []


def test_a_call_takes_what_its_sizes_allow() -> None:
    facts = weft.compile_for("sm_90", gallery.matmul, meta(9, 8), meta(8, 7)).loops[0].facts
    texts = [text for text in facts.candidates if "cooperate" not in text]

    def axes(i: int, j: int, processors: int = 100) -> list[str]:
        call = call_of(facts.nest, {"i": i, "j": j})
        chosen = choose(texts, call, GpuMachine(processors), 512)
        return [step.axis for step in several(chosen.schedule, UnrollJam)]

    assert axes(4096, 4096) == ["i", "j"]
    assert axes(512, 1024) == ["i"], "a second one would leave 32,768"
    assert axes(256, 512) == []
    assert axes(3, 1 << 20) == ["j"], "three rows are no four"
    assert axes(4096, 100, processors=1) == ["i"]
    assert axes(0, 100, processors=1) == []


def test_which_axes_pay_together() -> None:
    first, second = UnrollJam("i", 4), UnrollJam("j", 4, 32)
    unshared = {first: 0b01, second: 0b10}
    assert UnrollJamCandidates(unshared, loads=2, most=16).choices() == [
        (first, second), (first,), (second,),
    ]  # fmt: skip
    assert UnrollJamCandidates(unshared, 2, most=8).choices() == [(first,), (second,)]
    assert UnrollJamCandidates({first: 0b0111}, 4, 16).choices() == [], "one load of four"
    better = UnrollJamCandidates({first: 0b01, second: 0}, 2, 16)
    assert better.choices()[0] == (second, first)


def test_what_is_left_of_trips() -> None:
    assert [left_over(UnrollJam("i", 4), n) for n in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]
    assert [left_over(UnrollJam("i", 4, 32), n) for n in (0, 1, 128, 129)] == [0, 32, 32, 64]
    facts = weft.compile_for("sm_90", gallery.matmul, meta(9, 8), meta(8, 7)).loops[0].facts
    enough = [judged(FewLeft("i", 4), (), call_of(facts.nest, {"i": n, "j": 1}), GpuMachine())[0]
              for n in (0, 3, 4, 5, 6, 7, 8, 11)]  # fmt: skip
    assert enough == [False, False, True, True, False, False, True, False]


# -- branches that not all take


@weft.kernel
def corner(x, out):
    """The condition keeps subscripts in range."""
    n = x.shape[0]
    for i, j in out:
        if i + j < n:
            s = 0.0
            for k in range(x.shape[1]):
                s += x[i + j, k]
            out[i, j] = s


@weft.kernel
def off_diagonal(x, out):
    """Stores in a loop, of what was read before; a loop in a loop; a branch."""
    for i, j in out:
        if i != j:
            for k in range(x.shape[1]):
                out[i, j] += x[i, k]
                out[i, j] *= 0.5
            s = 0.0
            for k in range(x.shape[1]):
                for q in range(2):
                    s += x[j, k] * (q + 1)
            if s > 0.0:
                out[i, j] += s


@weft.kernel
def later_rows(x, out):
    for i, j in out:
        if i > 4 and (j % 3 == 1 or j < 2):
            s = 0.0
            for k in range(x.shape[1]):
                s += x[i // (j % 3 + 1) % x.shape[0], k] + x[j % x.shape[0], k]
            out[i, j] = s
            out[i, j] /= i - 4


@weft.kernel
def own_bounds(x, out):
    for i, j in out:
        if j >= i:
            s = 0.0
            for k in range(min(j, x.shape[1])):
                s += x[i % x.shape[0], k]
            out[i, j] = s


@weft.kernel
def never(x, out):
    for i, j in out:
        if i + j < 0:
            for k in range(x.shape[1]):
                out[i, j] += x[i, k]


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    "kernel", [corner, off_diagonal, later_rows, own_bounds, never, nests.covariance]
)
@pytest.mark.parametrize(
    "how", ["unroll_jam(i, 4); unroll_jam(j, 4, stride=32)", "unroll_jam(j, 4, stride=32)",
            "unroll_jam(i, 4)", "unroll_jam(j, 2); unroll_jam(i, 4, stride=32)"],
)  # fmt: skip
@pytest.mark.parametrize("n", [5, 37, 130])
def test_iterations_that_do_nothing_store_nothing(kernel: weft.Kernel, how: str, n: int) -> None:
    torch.manual_seed(n)
    asked = weft.kernel(schedule={"cuda": how})(kernel.function)
    x = torch.randint(-3, 4, (n, 7)).float()
    same(asked, x.t().contiguous() if kernel is nests.covariance else x, torch.full((n, n), 9.0))


def test_a_triangle_is_done_together_where_not_all_do_it() -> None:
    x, out = meta(2048, 2048), meta(2048, 2048)
    (row,) = nests.covariance.schedules(x, out, device="cuda").taken
    assert "unroll_jam(i, 4); unroll_jam(j, 4, stride=32)" in row.schedule
    text = print_function(jammed(nests.covariance, x, out))
    assert text.count("scf.for") == 2, "all do it; some do"
    assert text.count("memref.load %x[") == 2 * (4 + 4), "each row once, whoever does its work"
    assert print_function(jammed(own_bounds, x, out)).count("rare") > 0, "one by one"


def jammed(kernel: weft.Kernel, *args: Any) -> Any:
    (loop,) = lowered_loops(kernel, *args)
    function = compiler.optimize(loop, Options(verify=True))
    made, parallel = unroll_jam(function, only(function), 0, 4)
    made, _ = unroll_jam(made, parallel, 1, 4, 32)
    verify(made)
    return made

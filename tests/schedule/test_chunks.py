"""Chunks, partial results and private copies: text before, text after, equal meaning."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.codegen.compiled import Compiled
from weft.ir.chunks import MOST, chunks
from weft.ir.core import Function, Op, walk
from weft.ir.interp import run
from weft.ir.parse import parse_function
from weft.ir.text import print_function, same
from weft.ir.verify import verify
from weft.schedule import chunks as step
from weft.schedule.apply_cpu import apply_cpu
from weft.schedule.language import parse
from weft.schedule.machine import CpuMachine

SUM = """
func.func @f(%x: memref<?xf32>, %s: memref<f32>) {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %t = scf.parallel (%i) = (%c0) to (%n) step (%c1) init (%zero) -> f32 {
    %v = memref.load %x[%i] : memref<?xf32>
    scf.reduce(%v : f32) {
      ^bb0(%a: f32, %b: f32):
      %c = arith.addf %a, %b : f32
      scf.reduce.return %c : f32
    }
  }
  memref.store %t, %s[] : memref<f32>
  func.return
}
"""

IN_CHUNKS = """
func.func @f(%x: memref<?xf32>, %s: memref<f32>) {
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xf32>) -> index
  %none = arith.constant 0 : index
  %total = arith.maxsi %n, %none : index
  %two = arith.constant 1 : index
  %middle = arith.shrsi %total, %two : index
  %word = arith.index_cast %total : index to i64
  %trips = arith.sitofp %word : i64 to f64
  %each = arith.constant 1.0 : f64
  %work = arith.mulf %trips, %each : f64
  %rate = arith.constant 3.0517578125e-05 : f64
  %wished = arith.mulf %work, %rate : f64
  %row = arith.constant 9223372036854775807 : index
  %size, %count = "weft.chunks"(%total, %row, %wished) : (index, index, f64) -> (index, index)
  %partial = memref.alloca() : memref<256xf32>
  %first = arith.constant 0 : index
  %by = arith.constant 1 : index
  scf.parallel (%number) = (%first) to (%count) step (%by) {
    %begin = arith.muli %number, %size {overflow = "nsw"} : index
    %beyond = arith.addi %begin, %size {overflow = "nsw"} : index
    %end = arith.minsi %beyond, %total : index
    %o = arith.constant 1 : index
    %last = arith.subi %end, %o {overflow = "nsw"} : index
    %neutral = arith.constant -0.0 : f32
    %p = arith.constant 1 : index
    %stop = arith.addi %last, %p {overflow = "nsw"} : index
    %q = arith.constant 1 : index
    %part = scf.for %i = %begin to %stop step %q iter_args(%a = %neutral) -> (f32) {
      %v = memref.load %x[%i] : memref<?xf32>
      %b = arith.addf %a, %v {reassociate = true} : f32
      scf.yield %b : f32
    } {counts = true, independent = true}
    memref.store %part, %partial[%number] : memref<256xf32>
    scf.reduce
  } {chunks = true}
  %low = arith.constant 0 : index
  %one = arith.constant 1 : index
  %t = scf.for %k = %low to %count step %one iter_args(%before = %zero) -> (f32) {
    %found = memref.load %partial[%k] : memref<256xf32>
    %after = arith.addf %before, %found : f32
    scf.yield %after : f32
  } {unroll = 1}
  memref.store %t, %s[] : memref<f32>
  func.return
}
"""

# What a nest of three axes does in each iteration: it counts, and reduces twice.
NEST = """
func.func @f(%x: memref<?x?x?xi64>, %a: index, %b: index, %c: index, %s: memref<2xi64>) {
  %zero = arith.constant 5 : i64
  %low = arith.constant -7 : i64
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %sum, %most = scf.parallel (%i, %j, %k) = (%c0, %c1, %c0) to (%a, %b, %c) STEP {
    %old = memref.load %x[%i, %j, %k] : memref<?x?x?xi64>
    %n = arith.addi %old, %zero : i64
    memref.store %n, %x[%i, %j, %k] : memref<?x?x?xi64>
    %m = arith.index_cast %j : index to i64
    scf.reduce(%n, %m : i64, i64) {
      ^bb0(%p: i64, %q: i64):
      %r = arith.addi %p, %q : i64
      scf.reduce.return %r : i64
    }, {
      ^bb0(%p2: i64, %q2: i64):
      %r2 = arith.maxsi %p2, %q2 : i64
      scf.reduce.return %r2 : i64
    }
  }
  memref.store %sum, %s[%c0] : memref<2xi64>
  memref.store %most, %s[%c1] : memref<2xi64>
  func.return
}
""".replace("STEP", "step (%c1, %c1, %c2) init (%zero, %low) -> (i64, i64)")

BINS = """
func.func @f(%x: ROW, %at: ROW, %bins: memref<?x?xi64>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi64>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xi64>
    %e = memref.load %at[%i] : memref<?xi64>
    %k = arith.index_cast %e : i64 to index
    %a = memref.atomic_rmw addi %v, %bins[%k, %c0] {atomic = true} : (i64, memref<?x?xi64>) -> i64
    scf.reduce
  }
  func.return
}
""".replace("ROW", "memref<?xi64>")


# Iterations of one i alone meet.
SLICES = """
func.func @f(%x: ROWS, %at: ROWS, %bins: memref<?x?xi64>) attributes {noalias = true} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?x?xi64>) -> index
  %m = "weft.dim"(%x) {axis = 1} : (memref<?x?xi64>) -> index
  scf.parallel (%i, %j) = (%c0, %c0) to (%n, %m) step (%c1, %c1) {
    %v = memref.load %x[%i, %j] : memref<?x?xi64>
    %e = memref.load %at[%i, %j] : memref<?x?xi64>
    %k = arith.index_cast %e : i64 to index
    %a = memref.atomic_rmw addi %v, %bins[%i, %k] {atomic = true} : (i64, memref<?x?xi64>) -> i64
    scf.reduce
  }
  func.return
}
""".replace("ROWS", "memref<?x?xi64>")


# What all iterations do is known before the loop.
CHOICE = """
func.func @f(%x: memref<?x?xi64>, %m: index, %yes: i1) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1 : i64
  %n = "weft.dim"(%x) {axis = 0} : (memref<?x?xi64>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %r = arith.addi %i, %c0 : index
    scf.if %yes {
      scf.for %j = %c0 to %m step %c1 {
        %a = arith.index_cast %r : index to i64
        memref.store %a, %x[%i, %j] : memref<?x?xi64>
        scf.yield
      }
      scf.yield
    } else {
      scf.for %k = %c0 to %r step %c1 {
        memref.store %one, %x[%i, %c0] : memref<?x?xi64>
        scf.yield
      }
      scf.yield
    }
    scf.reduce
  }
  func.return
}
"""


def in_chunks(text: str, schedule: str = "") -> Function:
    made = apply_cpu(parse_function(text), parse(schedule), CpuMachine(64))
    verify(made)
    assert same(parse_function(print_function(made)), made)
    return made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk is worth its while for a few operations."""
    monkeypatch.setattr(step, "COST", 8)


def numbers(function: Function) -> set[str]:
    return {op.name for op in walk(function.body)}


def test_a_sum_becomes_partial_sums_that_are_added_in_order() -> None:
    assert same(in_chunks(SUM), parse_function(IN_CHUNKS))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("count", [0, 1, 2, 17, 127, 2003])
def test_sums_mean_the_same(count: int) -> None:
    x = np.random.default_rng(count).integers(-9, 9, count).astype(np.float32)
    found, made, ran = [], in_chunks(SUM), []

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "weft.chunks":
            ran.append(results[1])

    for function, order in itertools.product((parse_function(SUM), made), ("forward", "random")):
        s = np.full((), np.nan, np.float32)
        run(function, [x, s], races=True, order=order, watch=watch)
        found.append(float(s))
    assert found == [found[0]] * 4
    assert ran == [ran[0]] * 2
    assert (ran[0] > 1) == (count > 16)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sizes", [(0, 5, 5), (3, 1, 9), (5, 2, 0), (1, 1, 1), (4, 17, 1),
                                   (3, 7, 11), (2, 3, 127), (127, 2, 3)])  # fmt: skip
def test_nests_mean_the_same_whatever_their_rows_are(sizes: tuple[int, int, int]) -> None:
    found = []
    for function in (parse_function(NEST), in_chunks(NEST)):
        x = np.random.default_rng(sum(sizes)).integers(-99, 99, sizes)
        s = np.full(2, 77, np.int64)
        run(function, [x, *sizes, s], races=True, order="random")
        found.append((x, s))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("yes", [True, False])
def test_a_chunk_chooses_once_between_loops(yes: bool) -> None:
    made, found = in_chunks(CHOICE), []
    (chosen,) = [op for op in walk(made.body) if op.name == "scf.if"]
    for side in chosen.regions:
        assert [op.name for op in walk(side)].count("scf.for") == 2
    for function in (parse_function(CHOICE), made):
        x = np.full((127, 5), -1)
        run(function, [x, 5, yes], races=True, order="random")
        found.append(x)
    np.testing.assert_array_equal(*found)
    assert found[0].max() == (126 if yes else 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scf.if %yes {", "%c = arith.cmpi eq, %i, %c1 : index\n    scf.if %c {"),  # for each
        ("%r = arith.addi %i, %c0 : index", "%r = arith.addi %i, %c0 : index\n"
         "    memref.store %one, %x[%i, %c0] : memref<?x?xi64>"),  # there is more to do
    ],
)  # fmt: skip
def test_other_branches_are_where_they_were(old: str, new: str) -> None:
    text = CHOICE.replace(old, new)
    assert text != CHOICE
    (parallel,) = [op for op in walk(in_chunks(text).body) if op.name == "scf.parallel"]
    assert "scf.if" not in [op.name for op in parallel.body.ops]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("threads", [1, 2, 64])
@pytest.mark.parametrize(("count", "bins"), [(0, 3), (1, 1), (127, 2), (900, 3), (900, 300)])
def test_copies_mean_the_same(count: int, bins: int, threads: int) -> None:
    """In copies, by atomic operations and plainly; none of them is a race."""
    rng = np.random.default_rng(count + bins)
    values, at = rng.integers(-9, 9, count), rng.integers(0, bins, count)
    start = rng.integers(-9, 9, (bins, 1))
    expected = start.copy()
    np.add.at(expected[:, 0], at, values)
    found, copies = start.copy(), []

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "weft.copies":
            copies.append(results[0])

    made = in_chunks(BINS, "privatize(bins)")
    run(made, [values, at, found], races=True, order="random", threads=threads, watch=watch)
    np.testing.assert_array_equal(found, expected)
    paid = {(127, 2): 43, (900, 3): 64, (900, 300): 2}.get((count, bins), 1)
    assert copies == [paid if paid >= threads or paid == 1 else 0]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("schedule", ["privatize(bins)", ""])
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 90), (2, 50), (3, 41), (7, 20), (65, 9)])
def test_slices_mean_the_same(shape: tuple[int, int], threads: int, schedule: str) -> None:
    """Chunks of whole slices, with neither atomic operations nor copies, are no race."""
    rng = np.random.default_rng(sum(shape))
    values, at = rng.integers(-9, 9, shape), rng.integers(0, 4, shape)
    start = rng.integers(-9, 9, (shape[0], 4))
    expected, found = start.copy(), start.copy()
    np.add.at(expected, (np.arange(shape[0])[:, None], at), values)
    updates, copies = set[bool](), set[int]()

    def watch(op: Op, operands: Any, results: Any) -> None:
        if op.name == "memref.atomic_rmw":
            updates.add(op.attrs["atomic"])
        if op.name == "weft.copies":
            copies.add(results[0])

    made = in_chunks(SLICES, schedule)
    run(made, [values, at, found], races=True, order="random", threads=threads, watch=watch)
    np.testing.assert_array_equal(found, expected)
    if shape[0] >= threads:
        assert updates <= {False}
        assert copies == ({1} if schedule else set())


def test_threads_are_given_whole_rows_or_lines() -> None:
    for total, row, wished in [(0, 5, 9.0), (1, 5, 9.0), (10_000, 7, 3.0), (10_000, 4000, 50.0)]:
        size, count = chunks(total, row, wished)
        assert (count - 1) * size < total <= count * size or total == count == 0
    assert chunks(10_000, 7, 3.0) == (3339, 3)
    assert chunks(10_000, 4000, 2.0) == (8000, 2)
    assert chunks(10_000, 1 << 62, 3.0) == (3392, 3)
    assert chunks(1000, 1 << 62, 1.9) == (1000, 1)


def test_compiled_loops_are_cut_as_the_interpreter_says() -> None:
    function = parse_function("""
func.func @f(%n: index, %row: index, %wished: f64, %s: memref<?xi64>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %size, %count = "weft.chunks"(%n, %row, %wished) : (index, index, f64) -> (index, index)
  %a = arith.index_cast %size : index to i64
  %b = arith.index_cast %count : index to i64
  memref.store %a, %s[%c0] : memref<?xi64>
  memref.store %b, %s[%c1] : memref<?xi64>
  func.return
}
""")
    compiled, rng = Compiled(function), np.random.default_rng(3)
    for _ in range(400):
        total, row = (int(10 ** rng.uniform(0, 7)) - 1 for _ in range(2))
        wished = 10 ** rng.uniform(-1, 4)
        s = np.full(2, 77, np.int64)
        compiled(total, row, wished, s)
        assert tuple(s) == chunks(total, row, wished)
        assert s[1] <= MOST


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("{chunks = true}", "{chunks = 2}", "`chunks` = 2 does not belong here"),
        ("%row, %wished) : (index, index, f64)", "%row, %each_f) : (index, index, f32)", "f64"),
    ],
)
def test_the_verifier_refuses_others(before: str, after: str, message: str) -> None:
    text = IN_CHUNKS.replace(before, after)
    text = text.replace("  %row =", "  %each_f = arith.constant 1.0 : f32\n  %row =")
    with pytest.raises(Exception, match=message):
        verify(parse_function(text))

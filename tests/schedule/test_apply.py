"""What the threads of a grid run, as text: before a schedule's steps, and after."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.blocks import launch
from weft.codegen import cuda, ptx
from weft.errors import RaceError
from weft.ir.interp import run
from weft.ir.text import parse_function, print_function
from weft.ir.verify import verify
from weft.schedule.apply_cuda import apply
from weft.schedule.bind import Bound
from weft.schedule.language import parse

SUMS = """func.func @sums(%x: memref<?x?xf32>, %out: memref<?xf32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = "weft.dim"(%x) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%x) {axis = 1} : (memref<?x?xf32>) -> index
  %cst = arith.constant 0.0 : f32
  scf.parallel (%i) = (%c0) to (%rows) step (%c1) {
    %s = scf.for %j = %c0 to %n step %c1 iter_args(%t = %cst) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %u = arith.addf %t, %v : f32
      scf.yield %u : f32
    } {ordered = false, team = ["addf"]}
    memref.store %s, %out[%i] {ordered = false, team = []} : memref<?xf32>
    scf.reduce
  }
  func.return
}
"""

SUMS_AFTER = """func.func @sums(%x: memref<?x?xf32>, %out: memref<?xf32>) attributes {group = 8} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %rows = "weft.dim"(%x) {axis = 0} : (memref<?x?xf32>) -> index
  %n = "weft.dim"(%x) {axis = 1} : (memref<?x?xf32>) -> index
  %cst = arith.constant 0.0 : f32
  %c0_1 = arith.constant 0 : index
  %0 = arith.maxsi %rows, %c0_1 : index
  %1 = "weft.thread_id"() {dimension = "x"} : () -> i32
  %2 = "weft.block_id"() {dimension = "x"} : () -> i32
  %3 = arith.extui %2 : i32 to i64
  %4 = arith.index_cast %3 : i64 to index
  %5 = "weft.thread_id"() {dimension = "y"} : () -> i32
  %6 = arith.extui %5 : i32 to i64
  %7 = arith.index_cast %6 : i64 to index
  %8 = "weft.block_dim"() {dimension = "y"} : () -> i32
  %9 = arith.extui %8 : i32 to i64
  %10 = arith.index_cast %9 : i64 to index
  %11 = arith.muli %4, %10 {overflow = "nuw nsw"} : index
  %i = arith.addi %11, %7 {overflow = "nuw nsw"} : index
  %12 = arith.cmpi slt, %i, %0 : index
  scf.if %12 {
    %13 = arith.extui %1 : i32 to i64
    %14 = arith.index_cast %13 : i64 to index
    %15 = arith.addi %c0, %14 {overflow = "nsw"} : index
    %c8 = arith.constant 8 : index
    %cst_1 = arith.constant -0.0 : f32
    %16 = scf.for %j = %15 to %n step %c8 iter_args(%t = %cst_1) -> (f32) {
      %v = memref.load %x[%i, %j] : memref<?x?xf32>
      %u = arith.addf %t, %v : f32
      scf.yield %u : f32
    }
    %c4_i32 = arith.constant 4 : i32
    %17 = "weft.shuffle"(%16, %c4_i32) {mode = "xor", width = 8} : (f32, i32) -> f32
    %18 = arith.addf %16, %17 {reassociate = true} : f32
    %c2_i32 = arith.constant 2 : i32
    %19 = "weft.shuffle"(%18, %c2_i32) {mode = "xor", width = 8} : (f32, i32) -> f32
    %20 = arith.addf %18, %19 {reassociate = true} : f32
    %c1_i32 = arith.constant 1 : i32
    %21 = "weft.shuffle"(%20, %c1_i32) {mode = "xor", width = 8} : (f32, i32) -> f32
    %22 = arith.addf %20, %21 {reassociate = true} : f32
    %s = arith.addf %cst, %22 {reassociate = true} : f32
    %c0_i32 = arith.constant 0 : i32
    %23 = arith.cmpi eq, %1, %c0_i32 : i32
    scf.if %23 {
      memref.store %s, %out[%i] : memref<?xf32>
      scf.yield
    }
    scf.yield
  }
  func.return
}
"""

COUNTS = """func.func @count(%x: memref<?xi32>, %out: memref<?xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1 : i32
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xi32>
    %k = arith.index_cast %v : i32 to index
    %w = memref.atomic_rmw addi %one, %out[%k] : (i32, memref<?xi32>) -> i32
    scf.reduce
  }
  func.return
}
"""

COUNTS_AFTER = """func.func @count(%x: memref<?xi32>, %out: memref<?xi32>) attributes {group = 0} {
  %0 = "weft.dim"(%out) {axis = 0} : (memref<?xi32>) -> index
  %1 = memref.alloca(%0) : memref<?xi32, "shared">
  %c1 = arith.constant 1 : index
  %2 = arith.muli %c1, %0 {overflow = "nsw"} : index
  %c0_i32 = arith.constant 0 : i32
  %3 = "weft.thread_id"() {dimension = "linear"} : () -> i32
  %4 = arith.extui %3 : i32 to i64
  %5 = arith.index_cast %4 : i64 to index
  %6 = "weft.block_dim"() {dimension = "linear"} : () -> i32
  %7 = arith.extui %6 : i32 to i64
  %8 = arith.index_cast %7 : i64 to index
  scf.for %9 = %5 to %2 step %8 {
    memref.store %c0_i32, %1[%9] : memref<?xi32, "shared">
    scf.yield
  } {unroll = 1}
  "weft.barrier"() {width = 0} : () -> ()
  %c0 = arith.constant 0 : index
  %c1_1 = arith.constant 1 : index
  %one = arith.constant 1 : i32
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi32>) -> index
  %c0_1 = arith.constant 0 : index
  %10 = arith.maxsi %n, %c0_1 : index
  %11 = "weft.thread_id"() {dimension = "x"} : () -> i32
  %12 = arith.extui %11 : i32 to i64
  %13 = arith.index_cast %12 : i64 to index
  %14 = "weft.block_id"() {dimension = "x"} : () -> i32
  %15 = arith.extui %14 : i32 to i64
  %16 = arith.index_cast %15 : i64 to index
  %17 = "weft.block_dim"() {dimension = "x"} : () -> i32
  %18 = arith.extui %17 : i32 to i64
  %19 = arith.index_cast %18 : i64 to index
  %20 = "weft.grid_dim"() {dimension = "x"} : () -> i32
  %21 = arith.extui %20 : i32 to i64
  %22 = arith.index_cast %21 : i64 to index
  %23 = arith.muli %16, %19 {overflow = "nuw nsw"} : index
  %24 = arith.addi %23, %13 {overflow = "nuw nsw"} : index
  %25 = arith.muli %22, %19 {overflow = "nuw nsw"} : index
  scf.for %i = %24 to %10 step %25 {
    %v = memref.load %x[%i] : memref<?xi32>
    %k = arith.index_cast %v : i32 to index
    %w = memref.atomic_rmw addi %one, %1[%k] : (i32, memref<?xi32, "shared">) -> i32
    scf.yield
  }
  "weft.barrier"() {width = 0} : () -> ()
  %26 = "weft.thread_id"() {dimension = "linear"} : () -> i32
  %27 = arith.extui %26 : i32 to i64
  %28 = arith.index_cast %27 : i64 to index
  %29 = "weft.block_dim"() {dimension = "linear"} : () -> i32
  %30 = arith.extui %29 : i32 to i64
  %31 = arith.index_cast %30 : i64 to index
  scf.for %32 = %28 to %2 step %31 {
    %33 = memref.load %1[%32] : memref<?xi32, "shared">
    %34 = arith.cmpi ne, %33, %c0_i32 : i32
    scf.if %34 {
      %35 = memref.atomic_rmw addi %33, %out[%32] : (i32, memref<?xi32>) -> i32
      scf.yield
    }
    scf.yield
  } {unroll = 1}
  func.return
}
"""

PLUS = """func.func @plus(%x: memref<?xi32>, %out: memref<?xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1 : i32
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi32>) -> index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xi32>
    %w = arith.addi %v, %one : i32
    memref.store %w, %out[%i] : memref<?xi32>
    scf.reduce
  }
  func.return
}
"""

PLUS_AFTER = """func.func @plus(%x: memref<?xi32>, %out: memref<?xi32>) attributes {group = 0} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %one = arith.constant 1 : i32
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xi32>) -> index
  %c0_1 = arith.constant 0 : index
  %0 = arith.maxsi %n, %c0_1 : index
  %1 = "weft.thread_id"() {dimension = "x"} : () -> i32
  %2 = arith.extui %1 : i32 to i64
  %3 = arith.index_cast %2 : i64 to index
  %4 = "weft.block_id"() {dimension = "x"} : () -> i32
  %5 = arith.extui %4 : i32 to i64
  %6 = arith.index_cast %5 : i64 to index
  %7 = "weft.block_dim"() {dimension = "x"} : () -> i32
  %8 = arith.extui %7 : i32 to i64
  %9 = arith.index_cast %8 : i64 to index
  %10 = "weft.grid_dim"() {dimension = "x"} : () -> i32
  %11 = arith.extui %10 : i32 to i64
  %12 = arith.index_cast %11 : i64 to index
  %13 = arith.muli %6, %9 {overflow = "nuw nsw"} : index
  %14 = arith.addi %13, %3 {overflow = "nuw nsw"} : index
  %15 = arith.muli %12, %9 {overflow = "nuw nsw"} : index
  %c2 = arith.constant 2 : index
  %16 = arith.muli %14, %c2 {overflow = "nsw"} : index
  %c0_2 = arith.constant 0 : index
  %c1_1 = arith.constant 1 : index
  %c2_1 = arith.constant 2 : index
  %17 = arith.addi %16, %c2_1 {overflow = "nsw"} : index
  %18 = arith.cmpi sge, %16, %c0_2 : index
  %19 = arith.cmpi sle, %17, %0 : index
  %20 = arith.andi %18, %19 : i1
  scf.if %20 {
    %c0_3 = arith.constant 0 : index
    %c1_2 = arith.constant 1 : index
    %21 = arith.addi %16, %c1_2 {overflow = "nsw"} : index
    %v = memref.load %x[%16] {align = 8} : memref<?xi32>
    %v_1 = memref.load %x[%21] : memref<?xi32>
    %w = arith.addi %v, %one : i32
    %w_1 = arith.addi %v_1, %one : i32
    memref.store %w, %out[%16] : memref<?xi32>
    memref.store %w_1, %out[%21] : memref<?xi32>
    scf.yield
  } else {
    %22 = arith.maxsi %16, %c0_2 : index
    %23 = arith.minsi %17, %0 : index
    scf.for %i = %22 to %23 step %c1_1 {
      %v_2 = memref.load %x[%i] : memref<?xi32>
      %w_2 = arith.addi %v_2, %one : i32
      memref.store %w_2, %out[%i] : memref<?xi32>
      scf.yield
    } {unroll = 1}
    scf.yield
  }
  func.return
}
"""

COOPERATING = "cooperate((j), 8); bind(i, x); block(256, 1)"
CASES = {
    COOPERATING: (SUMS, SUMS_AFTER),
    "privatize(out); bind(i, x); block(256, 1)": (COUNTS, COUNTS_AFTER),
    "cover(); vectorize(i, 2, 2); align(x, 8); bind(i, x); block(256, 1)": (PLUS, PLUS_AFTER),
}


def applied(text: str, schedule: str) -> Bound:
    function = parse_function(text)
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    return apply(function, parallel, (0,), parse(schedule))


@pytest.mark.parametrize("schedule", CASES)
def test_the_text_before_and_after(schedule: str) -> None:
    before, after = CASES[schedule]
    made = applied(before, schedule).function
    verify(made)
    assert print_function(made) == after


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 30])
def test_rows_summed_by_groups(rows: int, length: int) -> None:
    made = applied(SUMS, COOPERATING).function
    x = np.random.default_rng(length).integers(-9, 9, (rows, length)).astype(np.float32)
    out = np.full(rows, np.nan, np.float32)
    launch(made, (x, out), (2, 1, 1), (8, 4, 1), races=True, order="random", seed=rows)
    assert out.tolist() == x.sum(1).tolist()


@pytest.mark.parametrize("count", [0, 1, 100])
def test_counts_by_blocks(count: int) -> None:
    made = applied(COUNTS, "privatize(out); bind(i, x); block(256, 1)").function
    x = np.random.default_rng(count).integers(0, 5, count).astype(np.int32)
    out, expected = np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int32)
    launch(made, (x, out), (2, 1, 1), (3, 1, 1), races=True)
    run(parse_function(COUNTS), (x, expected), races=True)
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8])
def test_vectors_that_are_whole_and_not(count: int) -> None:
    made = applied(PLUS, next(reversed(CASES))).function
    x, out = np.arange(count, dtype=np.int32), np.full(count, -1, np.int32)
    launch(made, (x, out), (2, 1, 1), (2, 1, 1), races=True)
    assert out.tolist() == [k + 1 for k in range(count)]


def test_a_store_that_all_members_do_races() -> None:
    text = SUMS.replace(" {ordered = false, team = []}", "")
    x, out = np.ones((1, 8), np.float32), np.zeros(1, np.float32)
    with pytest.raises(RaceError, match="touch the same element"):
        launch(applied(text, COOPERATING).function, (x, out), (1, 1, 1), (8, 1, 1), races=True)


@pytest.mark.parametrize("mode", ["xor", "down", "idx"])
@pytest.mark.parametrize("width", [4, 32])
def test_shuffles_become_one_instruction(mode: str, width: int) -> None:
    function = parse_function(f"""func.func @f(%x: memref<?xf32>) attributes {{group = 0}} {{
  %n = arith.constant 1 : i32
  %t = "weft.thread_id"() {{dimension = "linear"}} : () -> i32
  %i = arith.index_cast %t : i32 to index
  %v = memref.load %x[%i] : memref<?xf32>
  %w = "weft.shuffle"(%v, %n) {{mode = "{mode}", width = {width}}} : (f32, i32) -> f32
  memref.store %w, %x[%i] : memref<?xf32>
  func.return
}}
""")
    verify(function)
    text = cuda.scheduled(function, ()).emit()
    code = ptx.assemble(ptx.optimized(text, "sm_90", ()), "sm_90")
    # Lanes of other neighbours are not asked: the last lane, and the bits that neighbours share.
    clamp = 31 if mode == "xor" else (32 - width) * 256 + 31
    name = {"xor": "bfly"}.get(mode, mode)
    (line,) = (line for line in code.splitlines() if "shfl" in line)
    assert f"shfl.sync.{name}.b32" in line
    assert f", 1, {clamp}, " in line


def test_loops_of_a_block_hand_over_through_the_same_memory() -> None:
    """A multiprocessor gives a block 48 kB; groups that stand side by side have 1024 words for each
    value."""
    one = SUMS.replace("false", "true")
    loop = one[one.index("    %s =") : one.index("    memref.store")]
    wide = (
        loop.replace("%s = ", "%p = arith.extf %cst : f32 to f64\n    %s2 = ", 1)
        .replace("%t = %cst) -> (f32)", "%t2 = %p) -> (f64)").replace("%j", "%j2")
        .replace("%v = ", "%v2 = ").replace("%u = arith.addf %t, %v : f32", (
            "%w2 = arith.extf %v2 : f32 to f64\n      %u2 = arith.addf %t2, %w2 : f64"))
        .replace("scf.yield %u : f32", "scf.yield %u2 : f64")
    )  # fmt: skip
    both = one.replace(loop, loop + wide + "    %r2 = arith.truncf %s2 : f64 to f32\n").replace(
        "memref.store %s,", "memref.store %r2,"
    )
    made = applied(both, "cooperate((j, j2), 1024, columns=32); bind(i, x); block(256, 1)").function
    verify(made)
    assert print_function(made).count("memref.alloca") == 1
    x = np.arange(320, dtype=np.float32).reshape(5, 64)
    out = np.zeros(5, np.float32)
    launch(made, (x, out), (1, 1, 1), (32, 2, 1), races=True)
    assert out.tolist() == x.sum(1).tolist()

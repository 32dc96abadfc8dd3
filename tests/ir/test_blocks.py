"""Functions that a grid of threads runs: where threads may wait, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ir.blocks import launch
from weft.errors import InternalError, RaceError
from weft.ir.interp import run
from weft.ir.text import parse_function, print_function, same
from weft.ir.verify import verify

HEAD = """func.func @f(%x: memref<?xf32>, %y: memref<?xf32>) attributes {group = GROUP} {
  %c0 = arith.constant 0 : i32
  %c1 = arith.constant 1 : i32
  %t = "weft.thread_id"() {dimension = "linear"} : () -> i32
"""


def function(body: str, group: int = 0) -> Any:
    made = parse_function(HEAD.replace("GROUP", str(group)) + body + "  func.return\n}\n")
    assert same(parse_function(print_function(made)), made)
    return made


WARP_SUM = "  %v0 = memref.load %x[%t] : memref<?xf32>\n" + "".join(
    f"""  %o{k} = arith.constant {bit} : i32
  %s{k} = "weft.shuffle"(%v{k}, %o{k}) {{mode = "xor", width = 32}} : (f32, i32) -> f32
  %v{k + 1} = arith.addf %v{k}, %s{k} : f32
"""
    for k, bit in enumerate((16, 8, 4, 2, 1))
)
STORE = "  memref.store %v5, %y[%t] : memref<?xf32>\n"
# Turns a row around, through memory that the threads share.
REVERSE = """  %n = "weft.block_dim"() {dimension = "x"} : () -> i32
  %own = memref.alloca(%n) : memref<?xf32, "shared">
  %v = memref.load %x[%t] : memref<?xf32>
  memref.store %v, %own[%t] : memref<?xf32, "shared">
WAIT
  %last = arith.subi %n, %c1 : i32
  %other = arith.subi %last, %t : i32
  %w = memref.load %own[%other] : memref<?xf32, "shared">
  memref.store %w, %y[%t] : memref<?xf32>
"""
BARRIER = '  "weft.barrier"() {width = 0} : () -> ()\n'


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_warp_sums_by_shuffles(order: str) -> None:
    made = function(WARP_SUM + STORE)
    verify(made)
    x, y = np.arange(32, dtype=np.float32), np.full(32, np.nan, np.float32)
    launch(made, (x, y), (1, 1, 1), (32, 1, 1), order=order, races=True)
    assert (y == x.sum()).all()


@pytest.mark.parametrize(
    ("mode", "n", "expected"),
    [
        ("xor", 2, [2, 3, 0, 1, 6, 7, 4, 5]),
        ("down", 1, [1, 2, 3, 3, 5, 6, 7, 7]),
        ("idx", 1, [1, 1, 1, 1, 5, 5, 5, 5]),
    ],
)
def test_lanes_exchange_among_neighbours(mode: str, n: int, expected: list[int]) -> None:
    made = function(f"""  %v = memref.load %x[%t] : memref<?xf32>
  %n = arith.constant {n} : i32
  %w = "weft.shuffle"(%v, %n) {{mode = "{mode}", width = 4}} : (f32, i32) -> f32
  memref.store %w, %y[%t] : memref<?xf32>
""")
    verify(made)
    y = np.zeros(8, np.float32)
    launch(made, (np.arange(8, dtype=np.float32), y), (1, 1, 1), (8, 1, 1))
    assert y.tolist() == expected


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_threads_share_memory_behind_a_barrier(order: str) -> None:
    made = function(REVERSE.replace("WAIT\n", BARRIER))
    verify(made)
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    launch(made, (x, y), (1, 1, 1), (5, 1, 1), order=order, races=True)
    assert y.tolist() == [4, 3, 2, 1, 0]


def test_threads_that_do_not_wait_race() -> None:
    made = function(REVERSE.replace("WAIT\n", ""))
    verify(made)
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with pytest.raises(RaceError, match="did not wait for each other"):
        launch(made, (x, y), (1, 1, 1), (4, 1, 1), races=True)


def test_blocks_never_wait_for_each_other() -> None:
    made = function("""  %v = memref.load %x[%t] : memref<?xf32>
  %b = arith.cmpi eq, %t, %c1 : i32
  scf.if %b {
    memref.store %v, %y[%c0] : memref<?xf32>
    scf.yield
  }
""")
    x, y = np.arange(2, dtype=np.float32), np.zeros(2, np.float32)
    launch(made, (x, y), (1, 1, 1), (2, 1, 1), races=True)
    with pytest.raises(RaceError, match=r"threads \(0, 1\) and \(1, 1\) \(block, number\)"):
        launch(made, (x, y), (2, 1, 1), (2, 1, 1), races=True)


def test_blocks_have_memory_and_numbers_of_their_own() -> None:
    made = function("""  %b = "weft.block_id"() {dimension = "linear"} : () -> i32
  %g = "weft.grid_dim"() {dimension = "y"} : () -> i32
  %own = memref.alloca() : memref<1xi32, "shared">
  %first = arith.cmpi eq, %t, %c0 : i32
  scf.if %first {
    memref.store %b, %own[%c0] : memref<1xi32, "shared">
    scf.yield
  }
""" + BARRIER + """  %w = memref.load %own[%c0] : memref<1xi32, "shared">
  %sum = arith.addi %w, %g : i32
  %f = arith.sitofp %sum : i32 to f32
  %two = arith.constant 2 : i32
  %row = arith.muli %b, %two : i32
  %at = arith.addi %row, %t : i32
  memref.store %f, %y[%at] : memref<?xf32>
""")  # fmt: skip
    verify(made)
    y = np.zeros(12, np.float32)
    launch(made, (y.copy(), y), (2, 3, 1), (2, 1, 1), races=True)
    assert y.tolist() == [b + 3 for b in range(6) for _ in range(2)]


PARTED = """  %n = memref.load %x[INDEX] : memref<?xf32>
  %zero = arith.constant 0.0 : f32
  %more = arith.cmpf ogt, %n, %zero : f32
  scf.if %more {
  "weft.barrier"() {width = WIDTH} : () -> ()
    scf.yield
  }
"""


def parted(at: str, width: int, group: int) -> Any:
    row = '  %r = "weft.thread_id"() {dimension = "y"} : () -> i32\n'
    return function(row + PARTED.replace("INDEX", at).replace("WIDTH", str(width)), group)


def test_threads_wait_where_all_of_them_come_by() -> None:
    verify(parted("%c0", 0, 0))
    verify(parted("%r", 8, 8))  # a row's threads are neighbours
    for made in (parted("%t", 0, 0), parted("%r", 0, 8), parted("%r", 16, 8), parted("%t", 8, 8)):
        with pytest.raises(InternalError) as error:
            verify(made)
        assert str(error.value) == (
            "IR of f: gpu.barrier: threads may part before they wait for each other here"
        )


def test_what_a_warp_summed_is_the_same_in_its_lanes() -> None:
    branch = """  %zero = arith.constant 0.0 : f32
  %more = arith.cmpf ogt, %v5, %zero : f32
  scf.if %more {
  "weft.barrier"() {width = 32} : () -> ()
    scf.yield
  }
"""
    verify(function(WARP_SUM + branch))
    for text in (branch.replace("32}", "0}"), branch.replace("%v5", "%v4")):
        with pytest.raises(InternalError, match="threads may part"):
            verify(function(WARP_SUM + text))


def test_loops_turn_equally_often_where_threads_wait() -> None:
    loop = """  scf.for %j = %c0 to END step %c1 : i32 {
  "weft.barrier"() {width = 0} : () -> ()
    scf.yield
  }
"""
    verify(function(loop.replace("END", "%c1")))
    with pytest.raises(InternalError, match="threads may part"):
        verify(function(loop.replace("END", "%t")))
    x = np.zeros(4, np.float32)
    with pytest.raises(InternalError, match="threads wait for others that never come"):
        launch(function(loop.replace("END", "%t")), (x, x), (1, 1, 1), (4, 1, 1))


def test_what_stands_in_no_grid_is_refused() -> None:
    text = print_function(function(BARRIER)).replace(" attributes {group = 0}", "")
    with pytest.raises(InternalError) as error:
        verify(parse_function(text))
    assert "in a function that a grid runs: with the attribute `group`" in str(error.value)
    wait = '"weft.barrier"() {width = 0} : () -> ()'
    alone = parse_function(f"func.func @f() {{\n  {wait}\n  func.return\n}}\n")
    with pytest.raises(InternalError, match="there is one thread here"):
        run(alone, ())
    shared = function(REVERSE.replace("WAIT\n", ""), 8)
    with pytest.raises(InternalError, match=r"blocks of \(4, 1, 1\) threads, not 8 along x"):
        launch(shared, (np.zeros(4, np.float32),) * 2, (1, 1, 1), (4, 1, 1))

"""Which numbers that a loop carries are what sums start from, and so none that LLVM may factor."""

from __future__ import annotations

import pytest

from weft.codegen import starts
from weft.ir.core import walk
from weft.ir.parse import parse_function

# It carries %a and %b, which begin as an element each, and %c, which begins as 0.
LOOP = """
func.func @f(%x: memref<?xELEMENT>, %y: memref<?xELEMENT>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = "weft.dim"(%x) {axis = 0} : (memref<?xELEMENT>) -> index
  %cst = arith.constant 0.0 : ELEMENT
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {
    %v = memref.load %x[%i] : memref<?xELEMENT>
    %w = memref.load %y[%i] : memref<?xELEMENT>
    %r, %r1, %r2 = scf.for %j = %c0 to %n step %c1 iter_args(%a = %v, %b = %w, %c = %cst) \
-> (ELEMENT, ELEMENT, ELEMENT) {
      %m = arith.mulf %b, %w : ELEMENT
BODY
    }
    memref.store %r, %y[%i] : memref<?xELEMENT>
    scf.reduce
  }
  func.return
}
"""
ADDED = "%s = arith.addf %a, %m {reassociate = true} : ELEMENT"
BODIES = {
    # A factor that is kept from turn to turn, as rows of a window are, is none.
    "sum and factor": ([ADDED, "scf.yield %s, %w, %c"], [True, False, False]),
    "not reassociated": (["%s = arith.addf %a, %m : ELEMENT", "scf.yield %s, %b, %c"], [False] * 3),
    "in the next turn": ([ADDED, "scf.yield %b, %s, %c"], [True, True, False]),
    "in the turn after": ([ADDED, "scf.yield %c, %w, %b"], [True, True, False]),
    "in a branch": (
        ["%l = arith.cmpi slt, %j, %c1 : index", "%s = scf.if %l -> (ELEMENT) {",
         "%t = arith.addf %b, %m {reassociate = true} : ELEMENT", "scf.yield %t : ELEMENT",
         "} else {", "scf.yield %b : ELEMENT", "}", "scf.yield %a, %s, %c"],
        [False, True, False],
    ),
    "in a loop inside": (
        ["%s = scf.for %k = %c0 to %n step %c1 iter_args(%d = %a) -> (ELEMENT) {",
         "%t = arith.addf %d, %m {reassociate = true} : ELEMENT", "scf.yield %t : ELEMENT", "}",
         "%u = arith.addf %s, %s : ELEMENT", "scf.yield %u, %b, %c"],
        [True, False, False],
    ),
    "behind a loop inside": (
        ["%s = scf.for %k = %c0 to %n step %c1 iter_args(%d = %a) -> (ELEMENT) {",
         "%t = arith.negf %d : ELEMENT", "scf.yield %t : ELEMENT", "}",
         "%u = arith.subf %s, %m {reassociate = true} : ELEMENT", "scf.yield %u, %b, %c"],
        [True, False, False],
    ),
}  # fmt: skip


def fences(body: list[str], element: str) -> list[bool]:
    *lines, last = body
    types = ", ".join(["ELEMENT"] * 3)
    text = LOOP.replace("BODY", "\n".join([*lines, f"{last} : {types}"]))
    function = parse_function(text.replace("ELEMENT", element))
    outer, *inner = (op for op in walk(function.body) if op.name == "scf.for")
    assert not any(fence for op in inner for fence in starts.fenced(op))  # it hands %a on
    return starts.fenced(outer)


@pytest.mark.parametrize("case", BODIES)
def test_what_sums_start_from_is_fenced(case: str) -> None:
    body, expected = BODIES[case]
    assert fences(body, "f32") == fences(body, "f64") == expected


@pytest.mark.parametrize("element", ["bf16", "f8e4m3"])
def test_what_is_carried_as_bits_is_not_fenced(element: str) -> None:
    body, _ = BODIES["sum and factor"]
    assert fences(body, element) == [False] * 3

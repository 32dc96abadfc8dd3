"""What an integer is at least, by loops, conditions, carried values and arrays."""

from __future__ import annotations

import pytest

from weft.index.least import UNKNOWN, Least
from weft.ir.core import walk
from weft.ir.parse import parse_function

FORM = """
func.func @f(%x: memref<?xf32>, %n: index, %m: index, %idx: memref<?xi64>) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %c-1 = arith.constant -1 : index
  scf.parallel (%i) = (%c0) to (%n) step (%c1) {{
{body}
    scf.reduce
  }}
  func.return
}}
"""
USE = "%v = memref.load %x[{}] : memref<?xf32>"


def of(body: str, value: str) -> float:
    """What ``%value``, the subscript of the load in ``body``, is at least there."""
    function = parse_function(FORM.format(body=body.replace("USE", USE.format("%" + value))))
    (load,) = [op for op in walk(function.body) if op.name == "memref.load"
               and op.result.type.name == "f32"]  # fmt: skip
    return Least(function).at(load.operands[1], load)


@pytest.mark.parametrize(("body", "value", "expected"), [
    ("USE", "i", 0),
    ("USE", "m", UNKNOWN), ("USE", "n", 1),
    ("%j = arith.subi %i, %c1 : index\nUSE", "j", -1),
    ("%c = arith.cmpi sgt, %i, %c0 : index\n%j = arith.subi %i, %c1 : index\n"
     "scf.if %c {\nUSE\nscf.yield\n}", "j", 0),
    ("%c = arith.cmpi ne, %i, %c0 : index\n%j = arith.subi %i, %c1 : index\n"
     "scf.if %c {\nUSE\nscf.yield\n}", "j", 0),
    ("%c = arith.cmpi sgt, %i, %c0 : index\n%j = arith.subi %i, %c1 : index\n"
     "scf.if %c {\nscf.yield\n} else {\nUSE\nscf.yield\n}", "j", -1),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%a = arith.muli %k, %c-1 : index\n"
     "%j = arith.addi %c3, %a : index\nUSE\nscf.yield\n}", "j", 0),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%a = arith.muli %k, %c-1 : index\n"
     "%j = arith.addi %c2, %a : index\nUSE\nscf.yield\n}", "j", -1),
    ("scf.for %k = %n to %m step %c1 {\n%j = arith.subi %k, %n : index\nUSE\nscf.yield\n}", "j", 0),
    ("%q = arith.floordivsi %n, %c4 : index\n%p = arith.muli %q, %c4 : index\n"
     "%j = arith.subi %n, %p : index\nUSE", "j", 0),
    ("%q = arith.floordivsi %n, %m : index\n%p = arith.muli %q, %m : index\n"
     "%j = arith.subi %n, %p : index\nUSE", "j", UNKNOWN),
    # Quotients, rounded down, by what they are at least and at most.
    ("%j = arith.shrsi %i, %c1 : index\nUSE", "j", 0),
    ("%l = arith.subi %i, %c3 : index\n%j = arith.shrsi %l, %c1 : index\nUSE", "j", -2),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%q = arith.floordivsi %k, %c2 : index\n"
     "%j = arith.subi %c1, %q : index\nUSE\nscf.yield\n}", "j", 0),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%q = arith.shrsi %k, %c2 : index\n"
     "%j = arith.subi %c0, %q : index\nUSE\nscf.yield\n}", "j", 0),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%q = arith.floordivsi %k, %c3 : index\n"
     "%j = arith.subi %c0, %q : index\nUSE\nscf.yield\n}", "j", -1),
    ("scf.for %k = %c0 to %c4 step %c1 {\n%q = arith.floordivsi %k, %c-1 : index\n"
     "%j = arith.subi %c0, %q : index\nUSE\nscf.yield\n}", "j", UNKNOWN),
    ("%q = arith.floordivsi %i, %c4 : index\n%l = arith.subi %n, %c1 : index\n"
     "%p = arith.floordivsi %l, %c4 : index\n%j = arith.subi %p, %q : index\nUSE", "j", 0),
    ("%q = arith.floordivsi %i, %c4 : index\n%p = arith.floordivsi %n, %c4 : index\n"
     "%l = arith.subi %p, %c1 : index\n%j = arith.subi %l, %q : index\nUSE", "j", -1),
    ("%q = arith.floordivsi %i, %c3 : index\n%p = arith.floordivsi %n, %c4 : index\n"
     "%j = arith.subi %p, %q : index\nUSE", "j", UNKNOWN),
    # A counter that a `while` loop counts down, in its condition, in its body and behind it.
    ("%e = scf.while (%j = %c3) : (index) -> (index) {\n%c = arith.cmpi sgt, %j, %c0 : index\n"
     "scf.condition(%c) %j : index\n} do {\n^bb0(%k: index):\n%l = arith.subi %k, %c1 : index\n"
     "USE\nscf.yield %l : index\n}", "l", 0),
    ("%e = scf.while (%j = %c3) : (index) -> (index) {\nUSE\n%c = arith.cmpi sge, %j, %c0 : index\n"
     "scf.condition(%c) %j : index\n} do {\n^bb0(%k: index):\n%l = arith.subi %k, %c1 : index\n"
     "scf.yield %l : index\n}", "j", -1),
    ("%e = scf.while (%j = %c3) : (index) -> (index) {\n%c = arith.cmpi sgt, %j, %c0 : index\n"
     "scf.condition(%c) %j : index\n} do {\n^bb0(%k: index):\n%l = arith.subi %k, %c2 : index\n"
     "scf.yield %l : index\n}\nUSE", "e", -1),
    # What a loop carries: the place of the largest so far, and one that may be any.
    ("%p = scf.for %k = %c0 to %n step %c1 iter_args(%q = %c0) -> (index) {\n"
     "%c = arith.cmpi eq, %k, %m : index\n%r = arith.select %c, %k, %q : index\n"
     "scf.yield %r : index\n}\nUSE", "p", 0),
    ("%p = scf.for %k = %c0 to %n step %c1 iter_args(%q = %c0) -> (index) {\n"
     "%r = arith.subi %q, %c1 : index\nscf.yield %r : index\n}\nUSE", "p", UNKNOWN),
    # Integers in arrays of the iteration, and in a tensor.
    ("%a = memref.alloca() : memref<4xindex>\nmemref.store %i, %a[%c0] : memref<4xindex>\n"
     "%j = memref.load %a[%c0] : memref<4xindex>\nmemref.store %j, %a[%c1] : memref<4xindex>\nUSE",
     "j", 0),
    ("%a = memref.alloca() : memref<4xindex>\nmemref.store %m, %a[%c0] : memref<4xindex>\n"
     "%j = memref.load %a[%c0] : memref<4xindex>\nUSE", "j", UNKNOWN),
    ("%a = memref.load %idx[%i] : memref<?xi64>\n%j = arith.index_cast %a : i64 to index\nUSE",
     "j", UNKNOWN),
])  # fmt: skip
def test_what_an_integer_is_at_least(body: str, value: str, expected: float) -> None:
    assert of(body, value) == expected

"""simplify: each rule as text before and text after."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch

import weft
from tests.fuzz.check import function as function_of
from tests.passes.texts import normal, result_of
from weft.ir.builder import Builder
from weft.ir.core import Function, walk
from weft.ir.interp import run
from weft.ir.text import parse_function, print_function, same
from weft.ir.types import f32, index
from weft.ir.verify import verify
from weft.passes.dce import dce
from weft.passes.simplify import simplify

_ARGS = {"x": "index", "y": "index", "i": "i32", "j": "i32", "b": "i8", "l": "i64", "f": "f32",
         "g": "f32", "d": "f64", "h": "f16", "c": "i1", "e": "i1"}  # fmt: skip
_LITERAL = re.compile(r"(?<=[ ,])(-?\d[\w.+-]*|-?inf|true|false)(?=,| :|$)")


def written_out(short: str, type: str) -> str:
    """A function that stores the value of ``short`` into a memref<type>.

    ``short`` is operations separated by semicolons, the last without a name, or a lone operand.
    Operations are written without their dialect where that is arith; literals stand for constants.
    """
    constants: list[str] = []

    def constant(literal: str, of: str) -> str:
        typed = literal if of == "i1" else f"{literal} : {of}"
        constants.append(f"%k{len(constants)} = arith.constant {typed}")
        return f"%k{len(constants) - 1}"

    lines = []
    for number, statement in enumerate(short.split("; ")):
        name, _, right = statement.rpartition(" = ")
        if " " not in right:
            operand = right if right.startswith("%") else constant(right, type)
            lines.append(f"memref.store {operand}, %out[] : memref<{type}>")
            break
        of = right.split(" : ")[1].split(" to ")[0]
        if "." not in right.split()[0]:
            right = "arith." + right
        left, _, types = right.partition(" : ")
        left = _LITERAL.sub(lambda m, of=of: constant(m[0], of), left)
        lines.append(f"{name or f'%last{number}'} = {left} : {types}")
        if not name:
            lines.append(f"memref.store %last{number}, %out[] : memref<{type}>")
    args = ", ".join(f"%{a}: {t}" for a, t in _ARGS.items())
    body = "\n  ".join([*constants, *lines, "func.return"])
    return f"func.func @rule({args}, %out: memref<{type}>) {{\n  {body}\n}}\n"


def check(before: str, after: str, type: str) -> None:
    function = parse_function(written_out(before, type))
    verify(function)
    got = dce(simplify(function))
    verify(got)
    wanted = parse_function(written_out(after, type))
    assert same(got, wanted), f"got\n{print_function(got)}\nwanted\n{print_function(wanted)}"


RULES = """
index: addi %x, 0 : index                                    -> %x
index: addi 0, %x : index                                    -> %x
index: subi %x, 0 : index                                    -> %x
index: subi %x, %x : index                                   -> 0
index: subi %x, 2 : index                                    -> addi %x, -2 : index
index: %t = addi %x, 5 : index; addi %t, -5 : index          -> %x
index: %t = addi %x, 5 : index; subi %t, 2 : index           -> addi %x, 3 : index
index: %t = addi %x, %y : index; subi %t, %y : index         -> %x
index: %t = addi %x, %y : index; subi %t, %x : index         -> %y
index: muli %x, 1 : index                                    -> %x
index: muli %x, 0 : index                                    -> 0
index: muli 3, %x : index                                    -> muli %x, 3 : index
i32: %t = muli %i, 65536 : i32; muli %t, 65536 : i32         -> 0
index: floordivsi %x, 1 : index                              -> %x
index: floordivsi %x, 8 : index                              -> floordivsi %x, 8 : index
i32: andi %i, 0 : i32                                        -> 0
i32: andi %i, -1 : i32                                       -> %i
i32: andi %i, %i : i32                                       -> %i
i32: ori %i, 0 : i32                                         -> %i
i32: ori %i, -1 : i32                                        -> -1
i32: xori %i, %i : i32                                       -> 0
i32: xori %i, 1 : i32                                        -> xori %i, 1 : i32
i1: andi %c, true : i1                                       -> %c
i1: andi %c, false : i1                                      -> false
i1: ori %c, true : i1                                        -> true
i32: shli %i, 0 : i32                                        -> %i
i32: minsi %i, %i : i32                                      -> %i
i1: %t = xori %c, true : i1; xori %t, true : i1              -> %c
i1: %t = cmpi slt, %x, %y : index; xori %t, true : i1        -> cmpi sge, %x, %y : index
i1: %t = cmpi eq, %x, %y : index; xori %t, true : i1         -> cmpi ne, %x, %y : index
i1: %t = cmpf olt, %f, %g : f32; xori %t, true : i1          -> cmpf uge, %f, %g : f32
i1: %t = cmpf uno, %f, %g : f32; xori %t, true : i1          -> cmpf ord, %f, %g : f32
i1: cmpi sle, %x, %x : index                                 -> true
i1: cmpi ult, %x, %x : index                                 -> false
i1: cmpf oeq, %f, %f : f32                                   -> cmpf oeq, %f, %f : f32
i1: cmpi slt, 2, %x : index                                  -> cmpi sgt, %x, 2 : index
i1: %t = extui %c : i1 to i32; cmpi ne, %t, 0 : i32          -> %c
i1: %t = extui %c : i1 to i32; cmpi eq, %t, 0 : i32          -> xori %c, true : i1
f32: select %c, %f, %f : f32                                 -> %f
i1: select %c, true, false : i1                              -> %c
i1: select %c, false, true : i1                              -> xori %c, true : i1
f32: %t = xori %c, true : i1; select %t, %f, %g : f32        -> select %c, %g, %f : f32
f32: addf %f, 0.0 : f32                                      -> addf %f, 0.0 : f32
f32: addf 0.0, %f : f32                                      -> addf %f, 0.0 : f32
f32: addf %f, -0.0 : f32                                     -> %f
f32: subf %f, 0.0 : f32                                      -> %f
f32: subf %f, -0.0 : f32                                     -> subf %f, -0.0 : f32
f32: subf %f, %f : f32                                       -> subf %f, %f : f32
f32: mulf %f, 0.0 : f32                                      -> mulf %f, 0.0 : f32
f32: mulf %f, 1.0 : f32                                      -> %f
f32: mulf %f, -1.0 : f32                                     -> negf %f : f32
f32: divf %f, 1.0 : f32                                      -> %f
f32: divf %f, 8.0 : f32                                      -> mulf %f, 0.125 : f32
f32: divf %f, -0.25 : f32                                    -> mulf %f, -4.0 : f32
f32: divf %f, 3.0 : f32                                      -> divf %f, 3.0 : f32
f32: divf %f, 0.0 : f32                                      -> divf %f, 0.0 : f32
f64: divf %d, 2.0 : f64                                      -> mulf %d, 0.5 : f64
f32: maximumf %f, %f : f32                                   -> %f
f32: %t = negf %f : f32; negf %t : f32                       -> %f
f32: %t = negf %f : f32; math.absf %t : f32                  -> math.absf %f : f32
f32: math.powf %f, 2.0 : f32                                 -> mulf %f, %f : f32
f32: math.powf %f, 1.0 : f32                                 -> %f
f32: math.powf %f, 0.0 : f32                                 -> 1.0
f32: math.powf %f, -1.0 : f32                                -> divf 1.0, %f : f32
f32: math.powf %f, 0.5 : f32                                 -> math.powf %f, 0.5 : f32
i8: %t = extsi %b : i8 to i32; trunci %t : i32 to i8         -> %b
i32: %t = index_cast %i : i32 to index; index_cast %t : index to i32   -> %i
i64: %t = index_cast %i : i32 to index; index_cast %t : index to i64   -> extsi %i : i32 to i64
index: %t = index_cast %x : index to i64; index_cast %t : i64 to index -> %x
index: %t = extsi %b : i8 to i32; index_cast %t : i32 to index -> index_cast %b : i8 to index
i64: %t = extsi %b : i8 to i32; extsi %t : i32 to i64        -> extsi %b : i8 to i64
i64: %t = extui %b : i8 to i32; extsi %t : i32 to i64        -> extui %b : i8 to i64
f32: %t = extsi %b : i8 to i32; sitofp %t : i32 to f32       -> sitofp %b : i8 to f32
f32: %t = extui %b : i8 to i32; sitofp %t : i32 to f32       -> uitofp %b : i8 to f32
f32: %t = extf %f : f32 to f64; truncf %t : f64 to f32       -> %f
f16: %t = extf %h : f16 to f32; truncf %t : f32 to f16       -> %h
i32: %t = bitcast %i : i32 to f32; bitcast %t : f32 to i32   -> %i
i32: %t = addi 3, 4 : i32; muli %t, -2 : i32                 -> -14
i32: addi 2147483647, 1 : i32                                -> -2147483648
index: floordivsi -7, 2 : index                              -> -4
i32: remsi -7, 2 : i32                                       -> -1
i8: divui -1, 2 : i8                                         -> 127
f32: subf 0.0, 0.0 : f32                                     -> 0.0
f32: mulf -1.0, 0.0 : f32                                    -> -0.0
f32: math.sqrt 2.0 : f32                                     -> 1.4142135381698608
i1: cmpf olt, 1.0, 2.0 : f32                                 -> true
i32: fptosi 3.0e9 : f32 to i32                                 -> 2147483647
""".strip().splitlines()


@pytest.mark.parametrize("rule", [re.sub(" +", " ", r) for r in RULES])
def test_rule(rule):
    type, _, rest = rule.partition(": ")
    before, _, after = rest.partition(" -> ")
    check(before, after, type)


@pytest.mark.parametrize("kept", [
    "i32: floordivsi %i, 0 : i32",
    "i32: floordivsi 1, 0 : i32",
    "i32: remui 1, 0 : i32",
    "index: %t = index_cast %x : index to i32; index_cast %t : i32 to index",
    "f32: %t = truncf %d : f64 to f32; addf %t, 0.0 : f32",
    "f64: %t = truncf %d : f64 to f32; extf %t : f32 to f64",
    "f32: subf 0.0, %f : f32",
    "f32: math.sqrt -1.0 : f32",
    "f32: %t = addf %f, 1.0 : f32; addf %t, 2.0 : f32",
])  # fmt: skip
def test_what_is_not_exact_or_may_trap_stays(kept):
    type, _, text = kept.partition(": ")
    check(text, text, type)


def test_constants_are_folded_in_f32():
    """In double, 2**24 + 1 - 2**24 is 1; the f32 sum is rounded to 2**24."""
    text = "%t = addf 16777216.0, 1.0 : f32; subf %t, 16777216.0 : f32"
    check(text, "0.0", "f32")
    check(text.replace("f32", "f64"), "1.0", "f64")


def test_constants_of_the_same_bits_are_one_and_others_are_not():
    function = Function("f", [f32], ["a"])
    b = Builder(function.body)
    for number in [0.0, -0.0, math.nan, 0.0, -0.0, math.nan, 0.1, float(np.float32(0.1))]:
        value = b.op("arith.addf", function.args[0], b.constant(number, f32))
        b.do("weft.print", value, parts=(None,))
    b.do("func.return")
    constants = [op for op in walk(simplify(function).body) if op.name == "arith.constant"]
    values = [op.attrs["value"] for op in constants]
    assert list(map(repr, values)) == ["0.0", "-0.0", "nan", repr(float(np.float32(0.1)))]


def test_minus_zero_survives():
    function = parse_function(written_out("addf %f, 0.0 : f32", "f32"))
    out = np.full((), 7, np.float32)
    numbers = [1, 1, 1, 1, 1, 1, np.float32(-0.0), np.float32(1), np.float64(1), np.float16(1)]
    run(simplify(function), [*numbers, True, True, out])
    assert not np.signbit(out)


def test_if_with_a_known_condition_is_its_branch():
    assert result_of(
        (simplify, dce),
        """
        func.func @f(%m: memref<?xf32>, %a: f32, %i: index) {
          %t = arith.constant true
          %r = scf.if %t -> (f32) {
            memref.store %a, %m[%i] : memref<?xf32>
            scf.yield %a : f32
          } else {
            %n = arith.negf %a : f32
            scf.yield %n : f32
          }
          memref.store %r, %m[%i] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32, %i: index) {
          memref.store %a, %m[%i] : memref<?xf32>
          memref.store %a, %m[%i] : memref<?xf32>
          func.return
        }""")


def test_if_without_operations_becomes_selects():
    assert result_of(
        (simplify, dce),
        """
        func.func @f(%m: memref<?xf32>, %a: f32, %b: f32, %c: i1, %i: index) {
          %r, %s = scf.if %c -> (f32, f32) {
            scf.yield %a, %b : f32, f32
          } else {
            scf.yield %b, %b : f32, f32
          }
          memref.store %r, %m[%i] : memref<?xf32>
          memref.store %s, %m[%i] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32, %b: f32, %c: i1, %i: index) {
          %r = arith.select %c, %a, %b : f32
          memref.store %r, %m[%i] : memref<?xf32>
          memref.store %b, %m[%i] : memref<?xf32>
          func.return
        }""")


def test_what_both_branches_hand_on_is_no_result_of_the_if():
    assert result_of(
        (simplify, dce),
        """
        func.func @f(%m: memref<?xf32>, %a: f32, %b: f32, %c: i1, %i: index) {
          %r, %s = scf.if %c -> (f32, f32) {
            memref.store %a, %m[%i] : memref<?xf32>
            scf.yield %a, %b : f32, f32
          } else {
            scf.yield %b, %b : f32, f32
          }
          memref.store %r, %m[%i] : memref<?xf32>
          memref.store %s, %m[%i] : memref<?xf32>
          func.return
        }""",
    ) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32, %b: f32, %c: i1, %i: index) {
          %r = scf.if %c -> (f32) {
            memref.store %a, %m[%i] : memref<?xf32>
            scf.yield %a : f32
          } else {
            scf.yield %b : f32
          }
          memref.store %r, %m[%i] : memref<?xf32>
          memref.store %b, %m[%i] : memref<?xf32>
          func.return
        }""")


def loop(lower: int, upper: int) -> str:
    return f"""
        func.func @f(%m: memref<?xf32>, %a: f32) {{
          %lower = arith.constant {lower} : index
          %upper = arith.constant {upper} : index
          %two = arith.constant 2 : index
          %r, %s = scf.for %k = %lower to %upper step %two
              iter_args(%t = %a, %u = %a) -> (f32, f32) {{
            %v = arith.mulf %t, %t : f32
            memref.store %v, %m[%k] : memref<?xf32>
            scf.yield %v, %u : f32, f32
          }}
          memref.store %r, %m[%lower] : memref<?xf32>
          memref.store %s, %m[%lower] : memref<?xf32>
          func.return
        }}"""


def test_for_without_iterations_is_its_initial_values():
    assert result_of((simplify, dce), loop(3, 3)) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32) {
          %lower = arith.constant 3 : index
          memref.store %a, %m[%lower] : memref<?xf32>
          memref.store %a, %m[%lower] : memref<?xf32>
          func.return
        }""")


def test_for_with_one_iteration_is_its_body():
    assert result_of((simplify, dce), loop(3, 5)) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32) {
          %lower = arith.constant 3 : index
          %v = arith.mulf %a, %a : f32
          memref.store %v, %m[%lower] : memref<?xf32>
          memref.store %v, %m[%lower] : memref<?xf32>
          memref.store %a, %m[%lower] : memref<?xf32>
          func.return
        }""")


def test_for_does_not_carry_what_no_iteration_changes():
    assert result_of((simplify, dce), loop(3, 6)) == normal("""
        func.func @f(%m: memref<?xf32>, %a: f32) {
          %lower = arith.constant 3 : index
          %upper = arith.constant 6 : index
          %two = arith.constant 2 : index
          %r = scf.for %k = %lower to %upper step %two iter_args(%t = %a) -> (f32) {
            %v = arith.mulf %t, %t : f32
            memref.store %v, %m[%k] : memref<?xf32>
            scf.yield %v : f32
          }
          memref.store %r, %m[%lower] : memref<?xf32>
          memref.store %a, %m[%lower] : memref<?xf32>
          func.return
        }""")


def test_checks_that_hold_are_dropped_and_others_stay():
    function = Function("f", [])
    b = Builder(function.body)
    from_five = [b.constant(k, index) for k in range(5)]
    b.do("weft.bounds", from_five[2], from_five[4], tensor="x", axis=0)
    b.do("weft.bounds", from_five[4], from_five[4], tensor="y", axis=0)
    b.do("weft.assert", b.op("arith.cmpi", *from_five[:2], predicate="slt"), message="fine")
    b.do("weft.assert", b.op("arith.cmpi", *from_five[:2], predicate="sgt"), message="wrong")
    b.do("func.return")
    checks = [op for op in walk(simplify(function).body) if op.name.startswith("weft.")]
    assert [op.attrs.get("tensor") or op.attrs["message"] for op in checks] == ["y", "wrong"]


def test_the_extent_of_a_local_array_is_a_constant():
    assert "weft.dim" not in result_of(
        (simplify, dce),
        """
        func.func @f(%m: memref<?xf32>, %a: f32) {
          %l = memref.alloca() : memref<4xf32>
          %n = "weft.dim"(%l) {axis = 0} : (memref<4xf32>) -> index
          memref.store %a, %m[%n] : memref<?xf32>
          func.return
        }""",
    )


@pytest.mark.parametrize(("one", "two"), [*itertools.product(("<", "<=", ">", ">="), repeat=2)])
def test_what_is_chosen_twice_where_it_is_nan(one: str, two: str) -> None:
    """LLVM 22 takes ``min(0.5, min(x, 0.5))``, 0.5 where x is NaN, for ``min(x, 0.5)``."""
    text = f"""
def kernel(x, out):
    for i in range(x.shape[0]):
        out[i, 0] = min(0.5, min(x[i], 0.5))
        out[i, 1] = max(0.0, max(x[i], 0.0))
        b = x[i]
        if 0.5 {one} x[i]:
            b = 0.5
        c = 0.5
        if b {two} 0.5:
            c = b
        out[i, 2] = c
        out[i, 3] = (-0.5 if -0.5 {one} x[i] else x[i]) if b {two} -0.5 else -0.5
"""
    plain = function_of(text)
    x = torch.tensor([math.nan, 0.0, -0.0, 0.5, -0.5, 1.0, -1.0, math.inf, -math.inf] * 5)
    expected, found = torch.zeros(45, 4), torch.full((45, 4), -99.0)
    plain(x, expected)
    weft.kernel(plain)(x, found)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())

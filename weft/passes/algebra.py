"""Algebraic identities that hold bit by bit, as a table: operation -> rules.

A rule ``(op, right, rewriter)`` gives a value equal to the result of ``op``, or None.
``right`` is the number that the last operand is a constant of, or None. Constants have already been
moved to the right of commutative operations, and operations on constants alone have been folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.ir.builder import Rewriter
from weft.ir.core import Op, Value
from weft.ir.types import ScalarType, i1, index
from weft.ir.views import Number, Select, constant_of, made_by

Rule = Callable[[Op, Number | None, Rewriter], Value | None]


def _is_ones(number: Number | None, type: ScalarType) -> bool:
    """True for the number whose bits are all one."""
    return number is not None and (number is True if type.bits == 1 else number == -1)


# ---- integers -----------------------------------------------------------------------------------


def right_identity(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x + 0, x - 0, x | 0, x ^ 0, x << 0, x >> 0 are x."""
    return op.left if right is not None and right == 0 else None


def right_one(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x * 1, x // 1 are x; of floats, x * 1.0 and x / 1.0 too."""
    return op.left if right is not None and right == 1 else None


def zero_absorbs(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x * 0, x & 0 are 0 (of integers)."""
    return op.right if right is not None and right == 0 else None


def same_gives_zero(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x - x, x ^ x are 0 (of integers)."""
    return rw.constant(0, op.left.scalar) if op.left is op.right else None


def same_gives_same(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x & x, x | x, min(x, x), max(x, x) are x (min and max of floats too)."""
    return op.left if op.left is op.right else None


def ones_keep(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x & -1 is x; of i1, x & true is x."""
    return op.left if _is_ones(right, op.left.scalar) else None


def ones_absorb(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x | -1 is -1; of i1, x | true is true."""
    return op.right if _is_ones(right, op.left.scalar) else None


def gather_constants(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """(x + 1) + 2 is x + 3; likewise of * (wrapping arithmetic is associative)."""
    inner = made_by(op.left, op.name) if right is not None else None
    if inner is None:
        return None
    left = constant_of(inner.right)
    if left is None:
        return None
    type = op.left.scalar
    number = left + right if op.name == "arith.addi" else left * right  # type: ignore[operator]
    return rw.op(op.name, inner.left, rw.constant(number, type))


def subtract_constant(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x - 2 is x + -2: one spelling of an offset."""
    type = op.left.scalar
    if right is None or type.bits == 1:
        return None
    return rw.op("arith.addi", op.left, rw.constant(-right, type))


def subtract_added(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """(x + y) - y is x, and (x + y) - x is y."""
    inner = made_by(op.left, "arith.addi")
    if inner is not None and op.right in inner.operands:
        return inner.left if inner.right is op.right else inner.right
    return None


_SWAPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_INVERSE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _integer_predicate(predicate: str, table: dict[str, str]) -> str:
    """``table`` of a predicate: slt -> sgt."""
    if predicate in table:
        return table[predicate]
    return predicate[0] + table[predicate[1:]]


def _inverse_float_predicate(predicate: str) -> str:
    """The predicate that is true exactly where the given one is false: olt -> uge."""
    if predicate in ("ord", "uno"):
        return "uno" if predicate == "ord" else "ord"
    return ("u" if predicate[0] == "o" else "o") + _INVERSE[predicate[1:]]


def inverse(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """not not x is x; not of a comparison is the inverse comparison (NaN included)."""
    if right is not True:  # `not` is exclusive or with true
        return None
    inner = op.left.op
    if inner is None:
        return None
    if inner.name == "arith.xori" and constant_of(inner.right) is True:
        return inner.left
    if inner.name == "arith.cmpi":
        predicate = _integer_predicate(inner.attrs["predicate"], _INVERSE)
        return rw.op("arith.cmpi", *inner.operands, predicate=predicate)
    if inner.name == "arith.cmpf":
        predicate = _inverse_float_predicate(inner.attrs["predicate"])
        return rw.op("arith.cmpf", *inner.operands, predicate=predicate)
    return None


def compare_same(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x == x, x <= x are true; x != x, x < x are false (of integers)."""
    if op.left is not op.right:
        return None
    return rw.constant(op.attrs["predicate"][-2:] in ("eq", "le", "ge"), i1)


def compare_constant_left(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """2 < x is x > 2: one spelling of a comparison with a constant."""
    if right is not None or constant_of(op.left) is None:
        return None
    predicate = _integer_predicate(op.attrs["predicate"], _SWAPPED)
    return rw.op("arith.cmpi", op.right, op.left, predicate=predicate)


def compare_truth(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """Of c widened from i1: c != 0 is c, c == 0 is not c. (Also of an i1 itself.)"""
    predicate = op.attrs["predicate"]
    if right is None or right != 0 or predicate not in ("eq", "ne"):
        return None
    inner = made_by(op.left, "arith.extui")
    truth = inner.operand if inner is not None else op.left
    if truth.type is not i1:
        return None
    return truth if predicate == "ne" else rw.op("arith.xori", truth, rw.constant(True, i1))


def select_known(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """A select of equal values, by a constant, or of true and false."""
    condition, yes, no = op.operands
    if yes is no:
        return yes
    known = constant_of(condition)
    if known is not None:
        return yes if known else no
    if yes.type is i1 and right is not None:
        left = constant_of(yes)
        if left is not None:  # not equal, or they would be the same value
            return condition if left else rw.op("arith.xori", condition, rw.constant(True, i1))
    return None


def select_not(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """select(not c, a, b) is select(c, b, a)."""
    condition, yes, no = op.operands
    inner = made_by(condition, "arith.xori")
    if inner is None or constant_of(inner.right) is not True:
        return None
    return rw.op("arith.select", inner.left, no, yes, **op.attrs)


def select_again(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """Of y, the smaller of c and y (y if that is NaN), and c, the smaller (c if that is NaN) is the
    smaller of y and c, c if y is NaN; likewise the larger. LLVM 22 says y for a constant c."""
    outer = _chosen(op)
    chosen = None if outer is None else made_by(outer[1], "arith.select")
    inner = _chosen(chosen)
    if outer is None or chosen is None or inner is None:
        return None
    predicate, _, c = outer
    before, first, y = inner
    if first is not c or predicate[:2] != before[:2]:
        return None
    if before[2:] == "e":  # an equal y was not chosen
        predicate = before[:2] + "t"
    compare = rw.op("arith.cmpf", y, c, predicate=predicate)
    attrs = op.attrs or chosen.attrs  # a derivative is shared where both would share it
    return rw.op("arith.select", compare, y, c, **attrs)


def _chosen(op: Op | None) -> tuple[str, Value, Value] | None:
    """(ordered predicate, a, b) of a select that is a where a and b satisfy it, else b."""
    if op is None:
        return None
    select = Select(op)
    test = made_by(select.condition, "arith.cmpf")
    if test is None:
        return None
    predicate, yes, no = test.attrs["predicate"], select.yes, select.no
    if predicate[0] == "u":
        predicate, yes, no = _inverse_float_predicate(predicate), no, yes
    if predicate[1:] not in ("lt", "le", "gt", "ge") or {yes, no} != {test.left, test.right}:
        return None
    return predicate if yes is test.left else "o" + _SWAPPED[predicate[1:]], yes, no


# ---- floats -------------------------------------------------------------------------------------


def add_minus_zero(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x + -0.0 is x. (x + 0.0 is not: it turns -0.0 into 0.0.)"""
    return op.left if right is not None and _is_zero(right, -1.0) else None


def subtract_zero(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x - 0.0 is x, for x = -0.0 too. (x - -0.0 is not.)"""
    return op.left if right is not None and _is_zero(right, 1.0) else None


def _is_zero(number: Number, sign: float) -> bool:
    return number == 0.0 and math.copysign(1.0, number) == sign


def minus_one(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x * -1.0 and x / -1.0 are -x."""
    return rw.op("arith.negf", op.left) if right is not None and right == -1.0 else None


def divide_by_power_of_two(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x / 8.0 is x * 0.125: both round the same real number, the reciprocal being exact."""
    if right is None or right == 0.0 or not math.isfinite(right):
        return None
    mantissa, exponent = math.frexp(right)
    # Up to here reciprocals are normal numbers, which no flush-to-zero mode touches.
    limit = 125 if op.left.scalar.bits == 32 else 1021
    if abs(mantissa) != 0.5 or abs(exponent) > limit:
        return None
    return rw.op("arith.mulf", op.left, rw.constant(1.0 / right, op.left.scalar))


def negated(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """-(-x) is x."""
    inner = made_by(op.operand, "arith.negf")
    return inner.operand if inner is not None else None


def absolute(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """|-x| is |x|, ||x|| is |x|."""
    inner = made_by(op.operand, "arith.negf")
    if inner is not None:
        return rw.op("math.absf", inner.operand)
    return op.operand if made_by(op.operand, "math.absf") is not None else None


def power(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """x ** 2.0 is x * x, x ** 1.0 is x, x ** 0.0 is 1 (NaN included), x ** -1.0 is 1 / x.

    x ** 0.5 is not sqrt(x): they differ for -0.0 and -inf.
    """
    if right is None:
        return None
    x = op.left
    if right == 2.0:
        return rw.op("arith.mulf", x, x)
    if right == 1.0:
        return x
    if right == 0.0:
        return rw.constant(1.0, x.scalar)
    if right == -1.0:
        return rw.op("arith.divf", rw.constant(1.0, x.scalar), x)
    return None


# ---- casts --------------------------------------------------------------------------------------


def cast_to_own_type(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """A cast to the type that the value has."""
    return op.operand if op.operand.type is op.result.type else None


def cast_back(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """Narrowing what was widened, back to its first type: nothing was lost."""
    inner = op.operand.op
    if inner is None or inner.name not in _WIDENING[op.name]:
        return None
    source = inner.operand
    return source if source.type is op.result.type else None


_WIDENING = {
    "arith.trunci": ("arith.extsi", "arith.extui", "arith.index_cast"),
    "arith.truncf": ("arith.extf",),
    "arith.bitcast": ("arith.bitcast",),
}


def index_cast_twice(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """iN -> index -> iM is one cast, and nothing if N = M."""
    inner = made_by(op.operand, "arith.index_cast")
    if inner is None:
        return None
    source, target = inner.operand, op.result.scalar
    first = source.scalar
    if first is target:
        # index -> i32 -> index loses the high bits; iN -> index -> iN does not.
        return source if op.operand.scalar.bits >= first.bits else None
    if first.kind == "int" and target.kind == "int" and first.bits != target.bits:
        name = "arith.extsi" if target.bits > first.bits else "arith.trunci"
        return rw.op(name, source, type=target)
    return None


def index_cast_of_extension(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """i8 -> i32 -> index, sign-extended twice, is i8 -> index."""
    inner = made_by(op.operand, "arith.extsi")
    target = op.result.scalar
    if inner is None or target.kind != "index" or inner.operand.type is i1:
        return None
    return rw.op("arith.index_cast", inner.operand, type=target)


def extend_twice(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """extsi(extsi x) and extui(extui x) are one; extsi(extui x) is extui x (its sign bit is 0)."""
    inner = op.operand.op
    if inner is not None and inner.name in (op.name, "arith.extui"):
        return rw.op(inner.name, inner.operand, type=op.result.type)
    return None


def convert_extended(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """To float of a widened integer: of the integer itself."""
    inner = op.operand.op
    if inner is None:
        return None
    signed = op.name == "arith.sitofp" and inner.name == "arith.extsi"
    if signed and inner.operand.type is not i1:
        return rw.op("arith.sitofp", inner.operand, type=op.result.type)
    if inner.name == "arith.extui":
        return rw.op("arith.uitofp", inner.operand, type=op.result.type)
    return None


# ---- memrefs ------------------------------------------------------------------------------------


def local_extent(op: Op, right: Number | None, rw: Rewriter) -> Value | None:
    """The extent of a local array."""
    shape = op.operand.memref.shape
    return None if shape is None else rw.constant(shape[op.attrs["axis"]], index)


RULES: dict[str, tuple[Rule, ...]] = {
    "arith.addi": (right_identity, gather_constants),
    "arith.subi": (right_identity, same_gives_zero, subtract_constant, subtract_added),
    "arith.muli": (right_one, zero_absorbs, gather_constants),
    "arith.floordivsi": (right_one,),
    "arith.divui": (right_one,),
    "arith.andi": (zero_absorbs, ones_keep, same_gives_same),
    "arith.ori": (right_identity, ones_absorb, same_gives_same),
    "arith.xori": (right_identity, same_gives_zero, inverse),
    "arith.shli": (right_identity,),
    "arith.shrsi": (right_identity,),
    "arith.shrui": (right_identity,),
    "arith.minsi": (same_gives_same,),
    "arith.maxsi": (same_gives_same,),
    "arith.minui": (same_gives_same,),
    "arith.maxui": (same_gives_same,),
    "arith.cmpi": (compare_same, compare_constant_left, compare_truth),
    "arith.select": (select_known, select_not, select_again),
    "arith.addf": (add_minus_zero,),
    "arith.subf": (subtract_zero,),
    "arith.mulf": (right_one, minus_one),
    "arith.divf": (right_one, minus_one, divide_by_power_of_two),
    "arith.maximumf": (same_gives_same,),
    "arith.minimumf": (same_gives_same,),
    "arith.negf": (negated,),
    "math.absf": (absolute,),
    "math.powf": (power,),
    "arith.extsi": (cast_to_own_type, extend_twice),
    "arith.extui": (cast_to_own_type, extend_twice),
    "arith.trunci": (cast_to_own_type, cast_back),
    "arith.index_cast": (cast_to_own_type, index_cast_twice, index_cast_of_extension),
    "arith.extf": (cast_to_own_type,),
    "arith.truncf": (cast_to_own_type, cast_back),
    "arith.bitcast": (cast_to_own_type, cast_back),
    "arith.sitofp": (convert_extended,),
    "arith.uitofp": (convert_extended,),
    "memref.dim": (local_extent,),
}

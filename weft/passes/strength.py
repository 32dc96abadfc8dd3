"""Strength reduction."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import ScalarType
from weft.passes.constants import canonical, constant_of


def strength(function: Function) -> Function:
    """Replaces integer division by a power of two with shifts and masks.

    Precondition: a verified function, best after simplify (constants are on the right).
    ``x // 8`` is ``x >> 3``: an arithmetic shift rounds down, as Python's division does. Python's
    ``x % 8``, which the frontend spells ``x - 8 * (x // 8)``, is ``x & 7``. Likewise divui
    and remui.
    Non-goals: remsi (it rounds towards zero); multiplications; division by other constants (LLVM
    multiplies). Kept apart from simplify since index analysis reads divisions. Gives ``function``
    itself if it has none.
    """
    if not any(op.name in _DIVISIONS for op in walk(function.body)):
        return function
    return Rewriter(_visit).function(function)


_DIVISIONS = ("arith.floordivsi", "arith.divui", "arith.remui")


def _visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    rule = _RULES.get(op.name)
    value = rule(op, rewriter) if rule is not None else None
    return None if value is None else (value,)


def _exponent(value: Value) -> int | None:
    """k if ``value`` is the positive constant 2**k."""
    number = constant_of(value)
    if number is None or number.__class__ is bool or number <= 0 or int(number) & int(number) - 1:
        return None
    return int(number).bit_length() - 1


def _divide(op: Op, rewriter: Rewriter) -> Value | None:
    k = _exponent(op.operands[1])
    if k is None:
        return None
    shift = "arith.shrsi" if op.name == "arith.floordivsi" else "arith.shrui"
    return rewriter.op(shift, op.operands[0], _constant(k, op, rewriter))


def _remainder(op: Op, rewriter: Rewriter) -> Value | None:
    k = _exponent(op.operands[1])
    return None if k is None else _mask(op.operands[0], k, op, rewriter)


def _modulo(op: Op, rewriter: Rewriter) -> Value | None:
    """x - 2**k * (x // 2**k), after the division has become a shift."""
    x, product = op.operands
    if not isinstance(product.owner, Op) or product.owner.name != "arith.muli":
        return None
    quotient, factor = product.owner.operands
    k = _exponent(factor)
    shift = quotient.owner
    if k is None or not isinstance(shift, Op) or shift.name not in ("arith.shrsi", "arith.shrui"):
        return None
    if shift.operands[0] is not x or constant_of(shift.operands[1]) != k:
        return None
    return _mask(x, k, op, rewriter)


def _mask(x: Value, k: int, op: Op, rewriter: Rewriter) -> Value:
    return rewriter.op("arith.andi", x, _constant((1 << k) - 1, op, rewriter))


def _constant(number: int, op: Op, rewriter: Rewriter) -> Value:
    type = op.results[0].type
    assert isinstance(type, ScalarType)
    return rewriter.constant(canonical(number, type), type)


_RULES = {
    "arith.floordivsi": _divide,
    "arith.divui": _divide,
    "arith.remui": _remainder,
    "arith.subi": _modulo,
}

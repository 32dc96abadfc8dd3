"""Strength reduction."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import constant_of, is_constant
from weft.passes.constants import canonical


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
    k = _exponent(op.right)
    if k is None:
        return None
    shift = "arith.shrsi" if op.name == "arith.floordivsi" else "arith.shrui"
    return rewriter.op(shift, op.left, _constant(k, op, rewriter))


def _remainder(op: Op, rewriter: Rewriter) -> Value | None:
    k = _exponent(op.right)
    return None if k is None else _mask(op.left, k, op, rewriter)


def _modulo(op: Op, rewriter: Rewriter) -> Value | None:
    """x - 2**k * (x // 2**k), after the division has become a shift."""
    product = op.right.op
    if product is None or product.name != "arith.muli":
        return None
    k = _exponent(product.right)
    shift = product.left.op
    if k is None or shift is None or shift.name not in ("arith.shrsi", "arith.shrui"):
        return None
    if shift.left is not op.left or not is_constant(shift.right, k):
        return None
    return _mask(op.left, k, op, rewriter)


def _mask(x: Value, k: int, op: Op, rewriter: Rewriter) -> Value:
    return rewriter.op("arith.andi", x, _constant((1 << k) - 1, op, rewriter))


def _constant(number: int, op: Op, rewriter: Rewriter) -> Value:
    type = op.result.scalar
    return rewriter.constant(canonical(number, type), type)


_RULES = {
    "arith.floordivsi": _divide,
    "arith.divui": _divide,
    "arith.remui": _remainder,
    "arith.subi": _modulo,
}

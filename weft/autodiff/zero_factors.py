"""Products of many factors, some of which may be zero: what the others multiply to, and tangents.

The product of all factors but one is the whole divided by it, unless that is 0. So zeros are
counted and left out of the product. What derivatives ask of zeros is kept beside it: the sums p1,
p2, ... of their powers, and t0, t1, ... of their tangents times these. Each p is 0, and has a
derivative that is not. Of m zeros the product is their elementary symmetric polynomial e[m], and by
Newton

    k e[k] = e[k-1] p1 - e[k-2] p2 + ...

The sum over zeros of the tangent times the product of k others is e[k] t0 - e[k-1] t1 + ... All of
that is exact up to the derivative number ``MOST`` of a product. Further ones have terms of more
zeros than that, and are refused.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from weft.errors import GradientError
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.source import Span

MOST = 4
# Combiners of what ``parts`` gives, and of what ``parts_of_tangent`` gives.
COMBINERS = ("addf", "mulf", *["addf"] * (MOST - 1))
OF_TANGENT = ("addf", *["addf"] * MOST)


def mark(new: Function, function: Function, span: Span | None) -> None:
    """Marks ``new``, which has the totals of ``parts`` of a product of ``function``, as one
    derivative further. Raises ``GradientError`` where that is one too many."""
    new.attrs["products"] = function.attrs.get("products", 0) + 1
    if new.attrs["products"] > MOST:
        raise GradientError(
            "a product that a parallel loop reduces into has no fifth derivative", span,
            help="multiply in a loop inside: for k in range(1): for i in range(n): p *= x[i]",
        )  # fmt: skip


def parts(b: Builder, value: Value) -> list[Value]:
    """What a factor contributes to: number of zeros, product of all others, sums of powers of
    zeros."""
    zero, one = b.constant(0.0, value.scalar), b.constant(1.0, value.scalar)
    made = [b.if_equal(value, zero, one, zero), b.if_equal(value, zero, one, value)]
    power = value
    for k in range(MOST - 1):
        power = b.op("arith.mulf", power, value) if k else value
        made.append(b.if_equal(value, zero, power, zero))
    return made


def parts_of_tangent(b: Builder, value: Value, tangent: Value) -> list[Value]:
    """What a factor contributes to: sum of tangent over value of all that are not zero, sums of
    tangents times powers of zeros."""
    zero = b.constant(0.0, value.scalar)
    made = [b.if_equal(value, zero, zero, _quotient(b, tangent, value))]
    for k in range(MOST):
        tangent = b.op("arith.mulf", tangent, value) if k else tangent
        made.append(b.if_equal(value, zero, tangent, zero))
    return made


def others(b: Builder, totals: Sequence[Value], mine: Value) -> Value:
    """The product of all factors but ``mine``, from the totals of ``parts``."""
    count, rest, *powers = totals
    zero = b.constant(0.0, mine.scalar)
    own = parts(b, mine)
    count = b.op("arith.subf", count, own[0])
    powers = [b.op("arith.subf", p, q) for p, q in zip(powers, own[2:], strict=True)]
    without = _quotient(b, rest, mine)
    zeros = b.op("arith.mulf", _finite(b, without), _by_count(b, count, _symmetric(b, powers)))
    return b.if_equal(count, zero, without, zeros)


def tangent(b: Builder, totals: Sequence[Value]) -> Value:
    """The tangent of a product, from the totals of ``parts`` and of ``parts_of_tangent``."""
    (count, rest, *powers), (ratios, *moments) = totals[: MOST + 1], totals[MOST + 1 :]
    zero = b.constant(0.0, rest.scalar)
    e = _symmetric(b, powers)
    moved = [zero, zero, *(_alternating(b, e[: k + 1], moments) for k in range(1, MOST))]
    kept = b.op("arith.mulf", _finite(b, ratios), _by_count(b, count, e))
    zeros = b.op("arith.addf", _by_count(b, count, moved), kept)
    zeros = b.op("arith.mulf", _finite(b, rest), zeros)
    one = b.op("arith.mulf", rest, _by_count(b, count, [ratios, moments[0]]))
    return b.op("arith.addf", one, b.if_equal(count, zero, zero, zeros))


def _quotient(b: Builder, x: Value, y: Value) -> Value:
    """x / y, or x where y is 0: what is infinite there would have derivatives that are NaN."""
    zero, one = b.constant(0.0, y.scalar), b.constant(1.0, y.scalar)
    return b.op("arith.divf", x, b.if_equal(y, zero, one, y))


def _finite(b: Builder, value: Value) -> Value:
    """A value by which what is 0 is multiplied: 0 if it is not finite."""
    zero = b.constant(0.0, value.scalar)
    return b.if_equal(b.op("arith.subf", value, value), zero, value, zero)


def _symmetric(b: Builder, powers: Sequence[Value]) -> list[Value]:
    """The elementary symmetric polynomials of degrees 0, 1, ..., from sums of powers."""
    e = [b.constant(1.0, powers[0].scalar)]
    for k in range(1, len(powers) + 1):
        total = _alternating(b, e, powers)
        part = b.constant(1.0 / k, total.scalar)
        e.append(b.op("arith.mulf", total, part) if k > 1 else total)
    return e


def _alternating(b: Builder, e: Sequence[Value], sums: Sequence[Value]) -> Value:
    """e[k] sums[0] - e[k-1] sums[1] + ..., where e[k] is the last."""
    terms = [b.op("arith.mulf", x, y) if k < len(e) - 1 else y
             for k, (x, y) in enumerate(zip(reversed(e), sums, strict=False))]  # fmt: skip
    signed = [term if k % 2 == 0 else b.op("arith.negf", term) for k, term in enumerate(terms)]
    return functools.reduce(lambda x, y: b.op("arith.addf", x, y), signed)


def _by_count(b: Builder, count: Value, values: Sequence[Value]) -> Value:
    """The value number ``count``, 0 beyond the last."""
    chosen = b.constant(0.0, count.scalar)
    for k, value in reversed(list(enumerate(values))):
        chosen = b.if_equal(count, b.constant(float(k), count.scalar), value, chosen)
    return chosen

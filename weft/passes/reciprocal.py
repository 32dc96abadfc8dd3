"""Division by what a loop does not change, without a division in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.ir.bounded import LOOPS
from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import f32
from weft.schedule.recurrences import divisions

# Beyond these powers of two, a divisor is scaled: neither its reciprocal nor the quotient then
# leaves the range of normal numbers where the true quotient does not.
_LIMITS = {"f32": 100, "f64": 900}


def reciprocal(function: Function, *, carried: bool | None = None) -> Function:
    """``x / y`` in a ``scf.for`` in which y does not change is x times the reciprocal of y, and one
    step that corrects it.

    ``carried``: only what divides a value that turns carry and compose (``divisions``), or all but
    that, which a scan has to see.

    A turn with loops inside keeps its divisions: it has few for what it does, and what comes next
    waits for each of them, half as long as for these steps. (On a GPU a division is steps anyway.)

    Precondition: a verified function, invariants hoisted. Not used with ``strict_math``: a quotient
    that is a number of the type is exact, and others are correctly rounded but for those next to
    the middle of two numbers (within 2**-22 of their distance), or next to what overflows or is
    subnormal. Zeros, infinities and NaN are as they were.
    Source: P. Markstein, "Computation of elementary functions on the IBM RISC System/6000
    processor", 1990 (the remainder, exact by fma, corrects the quotient).
    Non-goals: the parallel loop itself, whose time is that of memory; integers.
    """
    if not any(_divided(op, carried) for op in walk(function.body)):
        return function
    return Rewriter(around=partial(_around, carried=carried)).function(function)


def _divided(op: Op, carried: bool | None) -> list[Op]:
    """The divisions directly in the loop ``op`` by what it does not change."""
    body = op.body if op.name == "scf.for" else None
    if body is None or not any(o.name == "arith.divf" for o in body.ops):
        return []
    if carried is None and any(o.name in LOOPS for o in body.ops):
        return []
    inside = {*body.args, *(v for o in body.ops if o.name != "arith.constant" for v in o.results)}
    found = [o for o in body.ops if o.name == "arith.divf"
             and o.left in inside and o.right not in inside]  # fmt: skip
    if found and carried is not None:
        composed = divisions(op)
        found = [o for o in found if (o in composed) is carried]
    return found


def _around(op: Op, rewriter: Rewriter, *, carried: bool | None) -> Sequence[Value] | None:
    found = _divided(op, carried)
    if not found:
        return None
    body = op.body
    rewriter.span = op.span
    divisors = dict.fromkeys(o.right for o in found)
    made = {v for o in body.ops for v in o.results}  # of a constant in the loop: one in front of it
    by = {y: _inverse(rewriter, rewriter.in_front(y, made, {})) for y in divisors}
    copy = rewriter.copy(op)
    old, new = op.body, copy.body
    rewriter.stand_for(old.args, new.args)
    with rewriter.at(new):
        for inner in old.ops:
            if inner in found:
                rewriter.span = inner.span
                x, y = inner.operands
                value = _quotient(rewriter, rewriter.lookup(x), *by[y])
                value.name = inner.result.name
                rewriter.replacement[inner.result] = value
            else:
                rewriter.rewrite(inner)
    return rewriter.append(copy).results


def _inverse(b: Builder, y: Value) -> tuple[Value, Value, Value]:
    """A power of two, y times that, and the reciprocal of the product."""
    type = y.scalar
    limit = _LIMITS["f32" if type is f32 else "f64"]

    def number(value: float) -> Value:
        return b.constant(value, type)

    size = b.op("math.absf", y)
    small = b.op("arith.cmpf", size, number(2.0**-limit), predicate="olt")
    large = b.op("arith.cmpf", size, number(2.0**limit), predicate="ogt")
    scale = b.op("arith.select", large, number(2.0**-limit), number(1.0))
    scale = b.op("arith.select", small, number(2.0**limit), scale)
    scaled = b.op("arith.mulf", y, scale)
    return scale, scaled, b.op("arith.divf", number(1.0), scaled)


def _quotient(b: Builder, x: Value, scale: Value, y: Value, inverse: Value) -> Value:
    x = b.op("arith.mulf", x, scale)
    first = b.op("arith.mulf", x, inverse)
    rest = b.op("math.fma", b.op("arith.negf", first), y, x)
    better = b.op("math.fma", rest, inverse, first)
    # A zero keeps its sign. NaN: x or y is not finite, or the quotient is not.
    corrected = b.op("arith.cmpf", better, b.constant(0.0, x.scalar), predicate="one")
    return b.op("arith.select", corrected, better, first)

"""Integers raised to integers that are known at run time only."""

from __future__ import annotations

from weft.ir.builder import Builder
from weft.ir.core import Value
from weft.ir.views import While

NEGATIVE = "an integer is raised to a negative power: write float(x) ** n"


def integer_power(b: Builder, x: Value, n: Value, *, may_be_negative: bool) -> Value:
    """``x ** n`` by repeated squaring, which wraps; ``n`` has the type of ``x``, or is an index.
    A negative ``n``, for which Python gives a float and torch an error, is an error."""
    zero, one = b.constant(0, n.scalar), b.constant(1, n.scalar)
    if may_be_negative:
        b.do("weft.assert", b.op("arith.cmpi", n, zero, predicate="sge"), message=NEGATIVE)
    op = b.while_([n, x, b.constant(1, x.scalar)], [n.type, x.type, x.type])
    with b.at(While(op).before) as block:
        left, square, result = block.args
        more = b.op("arith.cmpi", left, zero, predicate="ugt")
        b.do("scf.condition", more, left, square, result)
    with b.at(While(op).after) as block:
        left, square, result = block.args
        odd = b.op("arith.cmpi", b.op("arith.andi", left, one), one, predicate="eq")
        times = b.op("arith.muli", result, square)
        b.do(
            "scf.yield", b.op("arith.shrui", left, one), b.op("arith.muli", square, square),
            b.op("arith.select", odd, times, result),
        )  # fmt: skip
    return op.results[2]

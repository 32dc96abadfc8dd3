"""Subscripts of lists, local arrays, vectors and tuples that may be negative: Python counts these
from the end. (Of a tensor's dimensions, literals alone do.)

Which may be negative is known when the whole loop is lowered: what was emitted for the others is
taken out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.errors import Span
from weft.frontend.context import Lowering
from weft.frontend.kinds import SIGNED, Operand, Scalar
from weft.index.least import Least
from weft.ir.core import Function, Op, Value, walk
from weft.values import frozen


@frozen
class FromEnd:
    """What was emitted for a subscript: ``ops``, the last of which gives what it became."""

    given: Value
    ops: Sequence[Op]


def position(cx: Lowering, given: Operand, extent: int, span: Span) -> Operand:
    """The subscript ``given`` of ``extent`` items; a run-time one counts from the front."""
    if not isinstance(given, Scalar) or given.dtype not in ("int", *SIGNED):
        return given
    if given.value.scalar.bits < 32 and extent >= 1 << (given.value.scalar.bits - 1):
        given = cx.scalars.cast(given, "int", span)
    made = _counted(cx, given.value, lambda: cx.builder.number(extent, given.value))
    return replace(given, value=made)


def index(cx: Lowering, given: Value, extent: Callable[[], Value]) -> Value:
    """The same of an index, of as many items as ``extent`` gives."""
    return _counted(cx, given, extent)


def _counted(cx: Lowering, given: Value, extent: Callable[[], Value]) -> Value:
    if cx.frame.called_at:  # a function of weft's own, which has no such subscripts
        return given
    b, first = cx.builder, len(cx.builder.block.ops)
    zero = b.number(0, given)
    negative = b.op("arith.cmpi", given, zero, predicate="slt")
    moved = b.op("arith.addi", given, extent())
    if cx.debug:  # what is out of range stays what it is, for the error
        within = b.op("arith.cmpi", moved, zero, predicate="sge")
        negative = b.op("arith.andi", negative, within)
    found = b.op("arith.select", negative, moved, given)
    cx.from_end.append(FromEnd(given, b.block.ops[first:]))
    return found


def settle(cx: Lowering, function: Function) -> None:
    """Takes out what was emitted for subscripts that are not negative. ``function`` is changed in
    place."""
    if not cx.from_end:
        return
    there = set(walk(function.body))
    least = Least(function)
    needless = [
        each for each in cx.from_end
        if each.ops[-1] in there and least.at(each.given, each.ops[0]) >= 0
    ]  # fmt: skip
    if not needless:
        return
    instead = {each.ops[-1].result: each.given for each in needless}
    out = {op for each in needless for op in each.ops}

    def of(value: Value) -> Value:
        while value in instead:
            value = instead[value]
        return value

    for block in (function.body, *(region for op in there for region in op.regions)):
        block.ops = [op for op in block.ops if op not in out]
        for op in block.ops:
            op.operands = [of(v) for v in op.operands]

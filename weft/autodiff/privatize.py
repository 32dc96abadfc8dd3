"""Gradients accumulated in copies of their own: no atomics, and an order that does not vary.

The iterations of the parallel loop are cut into as many chunks as there are copies. A chunk sets
its copy to zero, and adds to it without being in anybody's way. A second loop adds the copies up,
in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.trips import unravel
from weft.ir.types import MemRefType, Type, index
from weft.ir.views import Parallel, memory


def privatize(function: Function, copies: Mapping[str, str]) -> Function:
    """``function`` with its arguments that are keys of ``copies`` replaced by workspaces of the
    names that are the values, of one more dimension, in front: the number of the copy.

    Precondition: one parallel loop, without reductions; it only accumulates into these arguments.
    What its iterations add to other arguments is atomic only where they may meet
    (``relax_atomics``): the loop over chunks hides that they do not.
    """
    types = [_with_copies(a, copies) for a in function.args]
    names = [copies.get(a.name, a.name) for a in function.args]
    new = Function(function.name, types, names, dict(function.attrs), function.span)
    parts = {old: made for old, made in zip(function.args, new.args, strict=True)
             if old.name in copies}  # fmt: skip
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    chunk: list[Value] = []

    def visit(op: Op, r: Rewriter) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw":
            memref, subscripts, (value,) = memory(op)
            if memref in parts.values():
                op.operands = [value, memref, chunk[0], *subscripts]
        elif op.name == "memref.dim" and op.operand in parts.values():
            op.attrs["axis"] += 1
        return None

    def around(op: Op, r: Rewriter) -> Sequence[Value] | None:
        if op is not parallel:
            return None
        r.span = op.span
        zero, one = r.constant(0, index), r.constant(1, index)
        count = r.op("memref.dim", next(iter(parts.values())), axis=0)
        loop = r.parallel([zero], [count], [one])
        with r.at(loop.body) as block:
            chunk.append(block.args[0])
            for part in parts.values():
                _clear(r, part, chunk[0])
            _iterations(r, op, chunk[0], count)
            r.do("scf.reduce")
        return ()

    return Rewriter(visit, around=around).into(function, new)


def _with_copies(argument: Value, copies: Mapping[str, str]) -> Type:
    if argument.name in copies:
        return MemRefType(argument.memref.element, argument.memref.rank + 1)
    return argument.type


def _clear(b: Builder, part: Value, chunk: Value) -> None:
    type = part.memref
    nothing = b.constant(0.0, type.element)
    extents = [partial(b.op, "memref.dim", part, axis=k) for k in range(1, type.rank)]
    b.nest(extents, lambda at: b.store(nothing, part, at), [chunk])


def _iterations(r: Rewriter, parallel: Op, chunk: Value, count: Value) -> None:
    """The iterations of ``parallel`` that belong to ``chunk`` of ``count``: a range of them all,
    counted row by row. Rows are what the last index runs along."""
    lowers, uppers, steps = ([r.lookup(v) for v in vs] for vs in Parallel(parallel).ranges)
    zero, one = r.constant(0, index), r.constant(1, index)

    def over(a: Value, b: Value) -> Value:
        """a / b, rounded up."""
        return r.op("arith.floordivsi", r.addi(a, r.subi(b, one)), b)

    def divide(number: Value, trip: Value) -> tuple[Value, Value]:
        rest = r.op("arith.remsi", number, r.op("arith.maxsi", trip, one))
        return r.op("arith.floordivsi", number, r.op("arith.maxsi", trip, one)), rest

    trips = [r.trip_count(*bounds) for bounds in zip(lowers, uppers, steps, strict=True)]
    total = trips[0]
    for trip in trips[1:]:
        total = r.muli(total, trip)
    size = over(total, count)
    first = r.op("arith.minsi", r.muli(chunk, size), total)
    end = r.op("arith.minsi", r.addi(first, size), total)

    def inside(counts: Sequence[Value]) -> None:
        for iv, lower, step, number in zip(parallel.body.args, lowers, steps, counts, strict=True):
            value = r.addi(lower, r.muli(number, step))
            value.name = iv.name
            r.replacement[iv] = value
        for op in parallel.body.ops[:-1]:
            r.rewrite(op)
        r.do("scf.yield")

    if len(trips) == 1:
        with r.at(r.for_(first, end, one).body) as block:
            inside(block.args)
        return
    length = r.op("arith.maxsi", trips[-1], one)
    rows = r.for_(r.op("arith.floordivsi", first, length), over(end, length), one)
    with r.at(rows.body) as block:
        (row,) = block.args
        passed = r.muli(row, length)
        outer = list(unravel(row, reversed(trips[1:-1]), divide))
        low = r.op("arith.maxsi", r.subi(first, passed), zero)
        high = r.op("arith.minsi", r.subi(end, passed), trips[-1])
        with r.at(r.for_(low, high, one).body) as block:
            inside([*reversed(outer), block.args[0]])
        r.do("scf.yield")

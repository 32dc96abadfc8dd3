"""Gradients accumulated in copies of their own: no atomics, and an order that does not vary.

The iterations of the parallel loop are cut into as many chunks as there are copies. A chunk sets
its copy to zero, and adds to it without being in anybody's way. A second loop adds the copies up,
in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.types import MemRefType, Type, index


def private(function: Function, copies: Mapping[str, str]) -> Function:
    """``function`` with its arguments that are keys of ``copies`` replaced by workspaces of the
    names that are the values, of one more dimension, in front: the number of the copy.

    Precondition: one parallel loop, without reductions; it only accumulates into these arguments.
    What its iterations add to other arguments is atomic only where they may meet (``demote``): the
    loop over chunks hides that they do not.
    """
    types = [_with_copies(a, copies) for a in function.args]
    names = [copies.get(a.name, a.name) for a in function.args]
    new = Function(function.name, types, names, dict(function.attrs), function.span)
    parts = {old: made for old, made in zip(function.args, new.args, strict=True)
             if old.name in copies}  # fmt: skip
    (parallel,) = (op for op in function.body.ops if op.name == "scf.parallel")
    chunk: list[Value] = []

    def visit(op: Op, r: Rewriter) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw" and op.operands[1] in parts.values():
            op.operands.insert(2, chunk[0])
        elif op.name == "memref.dim" and op.operands[0] in parts.values():
            op.attrs["axis"] += 1
        return None

    def around(op: Op, r: Rewriter) -> Sequence[Value] | None:
        if op is not parallel:
            return None
        r.span = op.span
        zero, one = r.constant(0, index), r.constant(1, index)
        count = r.op("memref.dim", next(iter(parts.values())), axis=0)
        loop = r.parallel([zero], [count], [one])
        with r.at(loop.regions[0]) as block:
            chunk.append(block.args[0])
            for part in parts.values():
                _clear(r, part, chunk[0])
            _iterations(r, op, chunk[0], count)
            r.do("scf.reduce")
        return ()

    rewriter = Rewriter(visit, around=around)
    rewriter.replacement.update(zip(function.args, new.args, strict=True))
    rewriter.block = new.body
    for op in function.body.ops:
        rewriter.rewrite(op)
    return new


def _with_copies(argument: Value, copies: Mapping[str, str]) -> Type:
    type = argument.type
    if argument.name in copies:
        assert isinstance(type, MemRefType)
        return MemRefType(type.element, type.rank + 1)
    return type


def _clear(b: Builder, part: Value, chunk: Value) -> None:
    type = part.type
    assert isinstance(type, MemRefType)
    nothing = b.constant(0.0, type.element)

    def nest(at: list[Value]) -> None:
        if len(at) == type.rank:
            b.store(nothing, part, at)
            return
        ends = b.constant(0, index), b.op("memref.dim", part, axis=len(at)), b.constant(1, index)
        with b.at(b.for_(*ends).regions[0]) as block:
            nest([*at, block.args[0]])
            b.do("scf.yield")

    nest([chunk])


def _iterations(r: Rewriter, parallel: Op, chunk: Value, count: Value) -> None:
    """The iterations of ``parallel`` that belong to ``chunk`` of ``count``: a range of them all,
    counted row by row. Rows are what the last index runs along."""
    dims = parallel.attrs["dims"]
    lowers, uppers, steps = (
        [r.lookup(v) for v in parallel.operands[k * dims : (k + 1) * dims]] for k in range(3)
    )
    zero, one = r.constant(0, index), r.constant(1, index)

    def add(a: Value, b: Value) -> Value:
        return r.op("arith.addi", a, b)

    def minus(a: Value, b: Value) -> Value:
        return r.op("arith.subi", a, b)

    def over(a: Value, b: Value) -> Value:
        """a / b, rounded up."""
        return r.op("arith.floordivsi", add(a, minus(b, one)), b)

    trips = [r.trip_count(*bounds) for bounds in zip(lowers, uppers, steps, strict=True)]
    total = trips[0]
    for trip in trips[1:]:
        total = r.op("arith.muli", total, trip)
    size = over(total, count)
    first = r.op("arith.minsi", r.op("arith.muli", chunk, size), total)
    end = r.op("arith.minsi", add(first, size), total)

    def inside(counts: Sequence[Value]) -> None:
        for iv, lower, step, number in zip(
            parallel.regions[0].args, lowers, steps, counts, strict=True
        ):
            value = add(lower, r.op("arith.muli", number, step))
            value.name = iv.name
            r.replacement[iv] = value
        for op in parallel.regions[0].ops[:-1]:
            r.rewrite(op)
        r.do("scf.yield")

    if dims == 1:
        with r.at(r.for_(first, end, one).regions[0]) as block:
            inside(block.args)
        return
    length = r.op("arith.maxsi", trips[-1], one)
    rows = r.for_(r.op("arith.floordivsi", first, length), over(end, length), one)
    with r.at(rows.regions[0]) as block:
        (row,) = block.args
        passed = r.op("arith.muli", row, length)
        outer: list[Value] = []
        rest = row
        for trip in reversed(trips[1:-1]):
            outer.insert(0, r.op("arith.remsi", rest, r.op("arith.maxsi", trip, one)))
            rest = r.op("arith.floordivsi", rest, r.op("arith.maxsi", trip, one))
        outer.insert(0, rest)
        low = r.op("arith.maxsi", minus(first, passed), zero)
        high = r.op("arith.minsi", minus(end, passed), trips[-1])
        with r.at(r.for_(low, high, one).regions[0]) as block:
            inside([*outer, block.args[0]])
        r.do("scf.yield")

"""Sums over the iterations that data picks for an element, sorted by what it says.

``gx[at(i), j] += v(i, j)``, where ``j`` is an index of the parallel loop by itself: ``at(i)`` is
the **key** of ``i``, the row of the element. One loop writes the keys of all ``i``; whoever
launches it sorts these (``Sorted``); of each element, the sum is over the ``i`` of its row, in
their order.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.autodiff.adjoint import Buffer, Sorted
from weft.autodiff.fibre import same_sizes
from weft.autodiff.slices import Slicer, accumulated
from weft.autodiff.write import Writer
from weft.index.access import Access
from weft.index.expression import ZERO, Dim, atom
from weft.ir.builder import Builder
from weft.ir.core import Function, Op, Value
from weft.ir.types import MemRefType, i64, index
from weft.ir.views import If, Parallel, is_constant, memory
from weft.values import frozen


@frozen
class Segments:
    """The sums of ``access``. ``plain``: of the gradient's axes, those whose subscripts are indices
    of the parallel loop, with these; ``keyed`` are the others. ``part``: those of ``plain`` along
    which the loop has some elements only. ``dims``: those indices of the loop, by place, that are
    not in ``plain``."""

    access: Access
    plain: dict[int, Value]
    keyed: tuple[int, ...]
    part: frozenset[int]
    dims: tuple[int, ...]
    names: Sorted

    def buffer(self, parallel: Op) -> Buffer:
        return Buffer(self.names.keys, "i64", parallel, dims=self.dims)


def segments(access: Access, slicer: Slicer, name: str) -> Segments | None:
    """The segments of an accumulation, whose workspaces have ``name``; None where its key is not
    known without what the loop computes, or it has no row. Raises ``Unavailable``."""
    loop = Parallel(slicer.parallel)
    guards = [op for op in slicer.enclosing(access.op) if op.name == "scf.if"]
    memref, subscripts, _ = memory(access.op)
    by_itself = {
        axis: iv for axis, poly in enumerate(access.subscripts)
        for iv, (_, _, step) in zip(loop.indices, loop.axes, strict=True)
        if poly == atom(iv) and is_constant(step, 1)
    }  # fmt: skip
    others = [v for axis, v in enumerate(subscripts) if axis not in by_itself]
    asked = slicer.repeated([*others, *(If(op).condition for op in guards)])
    if access.serial or asked is None:
        return None
    plain: dict[int, Value] = {}
    for axis, iv in by_itself.items():
        if iv not in asked and iv not in plain.values():
            plain[axis] = iv
    dims = tuple(k for k, iv in enumerate(loop.indices) if iv not in plain.values())
    slicer.check(access)
    slicer.check_symbols([v for axis in loop.axes for v in axis])
    if not plain or not dims:
        return None
    keyed = tuple(axis for axis in range(memref.memref.rank) if axis not in plain)
    ranges, same = {iv: ends for iv, *ends in access.ranges()}, same_sizes(access)
    part = frozenset(
        axis
        for axis, iv in plain.items()
        for low, high in [ranges[iv]]
        if low != ZERO or high is None or high.substitute(same) != atom(Dim(memref, axis))
    )
    return Segments(access, plain, keyed, part, dims, Sorted(memref.name, name, keyed))


def keys_loop(
    new: Function, outside: dict[Value, Value], found: Segments, slicer: Slicer
) -> Function:
    """Fills ``new``, a function without its body, whose values ``outside`` stand for those in front
    of the parallel loop: it writes the key of each iteration, -1 for one that adds nothing."""
    keys = Value(MemRefType(i64, len(found.dims)), found.names.keys, new.body)
    new.body.args.append(keys)
    parallel, w = Parallel(slicer.parallel), Writer(Builder(new.body), outside)
    axes = [[outside.get(v, v) for v in parallel.axes[k]] for k in found.dims]
    lows, ends, steps = (list(each) for each in zip(*axes, strict=True))
    loop = w.b.parallel(lows, ends, steps)
    with w.b.at(loop.body) as block:
        for k, iv in zip(found.dims, block.args, strict=True):
            iv.name = parallel.indices[k].name
            w.values[parallel.indices[k]] = iv
        subscripts = memory(found.access.op)[1]

        def key() -> Value:
            at = [slicer.copied(subscripts[axis], w, []) for axis in found.keyed]
            return _row(w, found, at)

        value = slicer.under(found.access, w, [], key, w.b.constant(-1, index))
        places = [w.b.steps(iv, low, step)
                  for iv, low, step in zip(block.args, lows, steps, strict=True)]  # fmt: skip
        w.b.store(w.b.op("arith.index_cast", value, type=i64), keys, places)
        w.b.do("scf.reduce")
    w.b.do("func.return")
    return new


def segment_sum(
    w: Writer, found: Segments, element: Sequence[Value], total: Value, slicer: Slicer,
    kept: Sequence[Value], order: Value, starts: Value,
) -> Value:  # fmt: skip
    """``total`` plus the sum of all that is accumulated into ``element``."""
    b, parallel = w.b, Parallel(slicer.parallel)
    one = b.constant(1, index)
    row = _row(w, found, [element[axis] for axis in found.keyed])
    begin, end = (_loaded(b, starts, at) for at in (row, b.addi(row, one)))
    for axis, iv in found.plain.items():
        low, high, _ = (w.values.get(v, v) for v in parallel.axes[parallel.indices.index(iv)])
        for bound, predicate in ((low, "sge"), (high, "slt")) if axis in found.part else ():
            if not is_constant(bound, 0):
                there = b.op("arith.cmpi", element[axis], bound, predicate=predicate)
                end = b.op("arith.select", there, end, begin, type=index)
        w.values[iv] = element[axis]
    loop = b.for_(begin, end, one, [total])
    with b.at(loop.body) as block:
        number = _loaded(b, order, block.args[0])
        for k in reversed(found.dims):
            low, high, step = (w.values.get(v, v) for v in parallel.axes[k])
            place = number
            if k != found.dims[0]:
                count = b.steps(b.addi(high, b.subi(step, one)), low, step)
                number = b.op("arith.floordivsi", place, count)
                place = b.subi(place, b.muli(number, count))
            w.values[parallel.indices[k]] = b.addi(low, b.muli(place, step))
        added = slicer.copied(accumulated(found.access), w, kept)
        b.do("scf.yield", b.op("arith.addf", block.args[1], added))
    return loop.result


def _row(w: Writer, found: Segments, at: Sequence[Value]) -> Value:
    """The number of the row of the gradient that has the subscripts ``at`` along its keyed axes."""
    place = w.b.constant(0, index)
    for axis, subscript in zip(found.keyed, at, strict=True):
        extent = w.b.op("memref.dim", w.values[found.access.memref], axis=axis)
        place = w.b.addi(w.b.muli(place, extent), subscript)
    return place


def _loaded(b: Builder, array: Value, at: Value) -> Value:
    return b.op("arith.index_cast", b.load(array, [at]), type=index)

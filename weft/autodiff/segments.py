"""Sums over the iterations that data picks for an element, sorted by what it says.

``gx[at(i), j] += v(i, j)``, where ``j`` is an index of the parallel loop by itself: ``at(i)`` is
the **key** of ``i``, the row of the element. One loop writes the keys of all ``i``; whoever
launches it sorts these (``Sorted``); of each element, the sum is over the ``i`` of its row, in
their order. What many have in common would make one sum long: a loop before sums each ``RUN`` of
the sorted ``i`` that are of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.autodiff.adjoint import RUN, Buffer, Sorted
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

    def buffers(self, parallel: Op) -> list[Buffer]:
        element, names = self.access.memref.memref.element.name, self.names
        return [
            Buffer(names.keys, "i64", parallel, dims=self.dims),
            Buffer(names.parts, element, parallel, partial=names.gradient, dims=self.dims,
                   axes=tuple(self.plain)),
        ]  # fmt: skip


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

        def asked(value: Value) -> Value:
            return slicer.copied(value, w, [])

        nothing = w.b.constant(-1, index)
        value = slicer.under(found.access, w, key, nothing, lambda _: False, asked)
        places = [w.b.steps(iv, low, step)
                  for iv, low, step in zip(block.args, lows, steps, strict=True)]  # fmt: skip
        w.b.store(w.b.op("arith.index_cast", value, type=i64), keys, places)
        w.b.do("scf.reduce")
    w.b.do("func.return")
    return new


def runs_loop(
    new: Function, outside: dict[Value, Value], found: Segments, slicer: Slicer,
    kept: Sequence[Value], target: MemRefType,
) -> None:  # fmt: skip
    """Fills ``new`` likewise: for each ``RUN`` iterations in their order and each element of a row
    it writes the sum of what they accumulate, if all of them do so into one row. ``target``: the
    gradient's type."""
    types = MemRefType(i64, len(found.dims)), MemRefType(i64, 1)
    keys = Value(types[0], found.names.keys, new.body)
    order = Value(types[1], found.names.order, new.body)
    parts = Value(MemRefType(target.element, 1 + len(found.plain)), found.names.parts, new.body)
    new.body.args += [keys, order, parts]
    w = Writer(Builder(new.body), outside)
    b, zero, one = w.b, w.b.constant(0, index), w.b.constant(1, index)
    ends = [b.op("memref.dim", parts, axis=k) for k in range(parts.memref.rank)]
    loop = b.parallel([zero] * len(ends), ends, [one] * len(ends))
    with b.at(loop.body) as block:
        chunk, *elements = block.args
        run = b.constant(RUN, index)
        begin = b.muli(chunk, run)
        end = b.addi(begin, run)
        first, last = (
            _loaded(b, keys, *_places(w, found, slicer, _loaded(b, order, k)))
            for k in (begin, b.subi(end, one))
        )
        alike = b.op("arith.cmpi", first, last, predicate="eq")
        some = b.op("arith.cmpi", first, zero, predicate="sge")
        end = b.op("arith.select", b.op("arith.andi", alike, some), end, begin, type=index)
        end = _within(w, found, dict(zip(found.plain, elements, strict=True)), begin, end, slicer)
        nothing = b.constant(0.0, target.element)
        total = _summed(w, found, begin, end, nothing, slicer, kept, lambda k: _loaded(b, order, k))
        b.store(total, parts, block.args)
        b.do("scf.reduce")
    b.do("func.return")


def segment_sum(
    w: Writer, found: Segments, element: Sequence[Value], total: Value, slicer: Slicer,
    kept: Sequence[Value], order: Value, starts: Value, parts: Value,
) -> Value:  # fmt: skip
    """``total`` plus the sum of all that is accumulated into ``element``: of iterations one by one,
    then of whole runs."""
    b = w.b
    zero, one, run = (b.constant(n, index) for n in (0, 1, RUN))
    row = _row(w, found, [element[axis] for axis in found.keyed])
    begin, end = (_loaded(b, starts, at) for at in (row, b.addi(row, one)))
    elements = {axis: element[axis] for axis in found.plain}
    end = _within(w, found, elements, begin, end, slicer)
    first = b.op("arith.floordivsi", b.addi(begin, b.constant(RUN - 1, index)), run)
    last = b.op("arith.maxsi", b.op("arith.floordivsi", end, run), first)
    head, whole = b.muli(first, run), b.muli(b.subi(last, first), run)

    def number(k: Value) -> Value:
        behind = b.op("arith.cmpi", k, head, predicate="sge")
        return _loaded(b, order, b.addi(k, b.op("arith.select", behind, whole, zero, type=index)))

    total = _summed(w, found, begin, b.subi(end, whole), total, slicer, kept, number)
    loop = b.for_(first, last, one, [total])
    loop.attrs["skipped"] = True  # by most elements: how they go on a grid is no matter of this one
    with b.at(loop.body) as block:
        part = b.load(parts, [block.args[0], *elements.values()])
        b.do("scf.yield", b.op("arith.addf", block.args[1], part))
    return loop.result


def _within(
    w: Writer, found: Segments, elements: Mapping[int, Value], begin: Value, end: Value,
    slicer: Slicer,
) -> Value:  # fmt: skip
    """``end``, or ``begin`` where the loop does not have ``elements``, which are given by axis and
    become its indices."""
    b, parallel = w.b, Parallel(slicer.parallel)
    for axis, iv in found.plain.items():
        low, high, _ = (w.values.get(v, v) for v in parallel.axes[parallel.indices.index(iv)])
        for bound, predicate in ((low, "sge"), (high, "slt")) if axis in found.part else ():
            if not is_constant(bound, 0):
                there = b.op("arith.cmpi", elements[axis], bound, predicate=predicate)
                end = b.op("arith.select", there, end, begin, type=index)
        w.values[iv] = elements[axis]
    return end


def _summed(
    w: Writer, found: Segments, begin: Value, end: Value, total: Value, slicer: Slicer,
    kept: Sequence[Value], number: Callable[[Value], Value],
) -> Value:  # fmt: skip
    """``total`` plus what the iterations accumulate whose ``number`` is that of ``begin`` to
    ``end``."""
    b, parallel = w.b, Parallel(slicer.parallel)
    loop = b.for_(begin, end, b.constant(1, index), [total])
    with b.at(loop.body) as block:
        for k, place in zip(
            found.dims, _places(w, found, slicer, number(block.args[0])), strict=True
        ):
            low, _, step = (w.values.get(v, v) for v in parallel.axes[k])
            w.values[parallel.indices[k]] = b.addi(low, b.muli(place, step))
        added = slicer.copied(accumulated(found.access), w, kept)
        b.do("scf.yield", b.op("arith.addf", block.args[1], added))
    return loop.result


def _places(w: Writer, found: Segments, slicer: Slicer, number: Value) -> list[Value]:
    """Where iteration ``number`` is along each index of the loop that has keys."""
    b, parallel, places = w.b, Parallel(slicer.parallel), list[Value]()
    for k in reversed(found.dims):
        place = number
        if k != found.dims[0]:
            low, high, step = (w.values.get(v, v) for v in parallel.axes[k])
            count = b.steps(b.addi(high, b.subi(step, b.constant(1, index))), low, step)
            number = b.op("arith.floordivsi", place, count)
            place = b.subi(place, b.muli(number, count))
        places.append(place)
    return places[::-1]


def _row(w: Writer, found: Segments, at: Sequence[Value]) -> Value:
    """The number of the row of the gradient that has the subscripts ``at`` along its keyed axes."""
    place = w.b.constant(0, index)
    for axis, subscript in zip(found.keyed, at, strict=True):
        extent = w.b.op("memref.dim", w.values[found.access.memref], axis=axis)
        place = w.b.addi(w.b.muli(place, extent), subscript)
    return place


def _loaded(b: Builder, array: Value, *at: Value) -> Value:
    return b.op("arith.index_cast", b.load(array, at), type=index)

"""The loop over the elements of a gradient, whole or in chunks of its sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from weft.autodiff.adjoint import Terms
from weft.autodiff.fibre import Fibre, in_bounds
from weft.autodiff.reroll import Rolled
from weft.autodiff.segments import Segments, keys_loop, runs_loop, segment_sum
from weft.autodiff.slices import Slicer, accumulated
from weft.autodiff.write import Writer
from weft.index.access import Access
from weft.index.expression import ONE, ZERO, Dim, Poly, atom, extreme
from weft.ir.builder import Builder
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, Type, i64, index

Found = Sequence[tuple[Access, Fibre | Segments]]
Bounds = Callable[[Value, Value], tuple[Value, Value]]


def element_loops(function: Function, name: str, found: Found, slicer: Slicer) -> list[Function]:
    """For each element of the gradient ``name`` the sum over what ``found`` says; before it, those
    of the runs of segments."""
    made: list[Function] = []
    for each in [each for _, each in found if isinstance(each, Segments)]:
        new, outside, kept = _function(function, each.names.parts, slicer)
        runs_loop(new, outside, each, slicer, kept, each.access.memref.memref)
        made.append(new)
    new, outside, kept = _function(function, name, slicer)
    b, target = Builder(new.body, function.span), _argument(new, name)
    loop, rank = _over(b, target), len(_extents(target))
    with b.at(loop.body) as block:
        total = b.constant(0.0, _element(target))
        for access, fibre in found:
            writer = Writer(b, dict(outside))
            if isinstance(fibre, Segments):
                types = MemRefType(i64, 1), MemRefType(_element(target), 1 + len(fibre.plain))
                names = fibre.names.order, fibre.names.starts, fibre.names.parts
                tables = [Value(types[k == 2], names[k], new.body) for k in range(3)]
                new.body.args += tables
                total = segment_sum(writer, fibre, block.args, total, slicer, kept, *tables)
                continue
            writer.values.update(zip(fibre.element, block.args, strict=True))
            total = _sum(writer, access, fibre, total, slicer, kept, lambda low, end: (low, end))
        b.store(total, target, block.args[:rank])
        b.do("scf.reduce")
    b.do("func.return")
    return [*made, new]


def keys_of(function: Function, found: Segments, slicer: Slicer) -> Function:
    """The function that writes the keys of ``found``."""
    new, outside, _ = _function(function, found.names.name, slicer)
    return keys_loop(new, outside, found, slicer)


def split_loops(
    function: Function, name: str, found: Found, slicer: Slicer, workspace: str
) -> list[Function]:
    """The same in two loops. The first computes, for each chunk of the outermost loop of each sum
    and for each element, a part, into ``workspace``, whose first extent is the number of chunks;
    the second adds the parts up, in their order."""
    new, outside, kept = _function(function, name, slicer)
    target = _argument(new, name)
    element, rank = _element(target), len(_extents(target))
    parts = Value(MemRefType(element, rank + 1), workspace, new.body)
    new.body.args.append(parts)
    b = Builder(new.body, function.span)
    loop = _over(b, parts)
    with b.at(loop.body) as block:
        chunk, *place = block.args
        count = b.op("memref.dim", parts, axis=0)
        total = b.constant(0.0, element)

        def bounds(low: Value, end: Value) -> tuple[Value, Value]:
            one = b.constant(1, index)
            padded = b.addi(b.subi(end, low), b.subi(count, one))
            size = b.op("arith.floordivsi", padded, count)
            first = b.addi(low, b.muli(chunk, size))
            return first, b.op("arith.minsi", b.addi(first, size), end)

        for access, fibre in found:
            assert isinstance(fibre, Fibre)  # as `terms` knows
            writer = Writer(b, dict(outside))
            writer.values.update(zip(fibre.element, place, strict=True))
            total = _sum(writer, access, fibre, total, slicer, kept, bounds)
        b.store(total, parts, block.args)
        b.do("scf.reduce")
    b.do("func.return")
    for op in walk(new.body):  # the gradient itself is the other loop's
        if op.name == "memref.dim" and op.operand is target:
            op.operands, op.attrs = [parts], {"axis": op.attrs["axis"] + 1}
    return [new, added_up(function, [name], element, rank, [workspace])]


def added_up(
    function: Function, names: Sequence[str], element: ScalarType, rank: int,
    workspaces: Sequence[str],
) -> Function:  # fmt: skip
    """The gradients ``names``, of one shape, as the sums of the parts in ``workspaces``, in their
    order."""
    count = len(names)
    types: list[Type] = [MemRefType(element, rank)] * count
    types += [MemRefType(element, rank + 1)] * count
    name = "_".join(names).replace(".", "_")
    new = Function(f"{function.name}_{name}_total", types, [*names, *workspaces],
                   dict(function.attrs), function.span)  # fmt: skip
    targets, parts = new.args[:count], new.args[count:]
    b = Builder(new.body, function.span)
    loop = _over(b, targets[0])
    with b.at(loop.body) as block:
        zero, one = b.constant(0, index), b.constant(1, index)
        chunks = b.op("memref.dim", parts[0], axis=0)
        adding = b.for_(zero, chunks, one, [b.constant(0.0, element)] * count)
        adding.attrs["short"] = True  # parts are few: code for long sums is not worth compiling
        with b.at(adding.body) as inner:
            chunk, *totals = inner.args
            each = [b.load(part, [chunk, *block.args]) for part in parts]
            b.do("scf.yield", *(b.op("arith.addf", *two) for two in zip(totals, each, strict=True)))
        for total, target in zip(adding.results, targets, strict=True):
            b.store(total, target, block.args)
        b.do("scf.reduce")
    b.do("func.return")
    return new


def terms(found: Found) -> Terms | None:
    """How long the sums are; None where one has no loop, or that is not known of its outermost."""
    most: Poly | None = None
    each: Poly | None = ZERO
    for access, fibre in found:
        if isinstance(fibre, Segments) or not fibre.loops:
            return None
        lengths = _lengths(access, fibre)
        if lengths[0] is None:
            return None
        most = lengths[0] if most is None else most
        product: Poly | None = ONE
        for length in lengths:
            product = None if product is None or length is None else product * length
        each = None if each is None or product is None else each + product
    return None if most is None else Terms(most, each)


def _lengths(access: Access, fibre: Fibre) -> list[Poly | None]:
    """The most iterations that each loop of a sum has, in arguments and extents of the function;
    None where that is not known."""
    arguments = access.memref.owner
    extents = [Dim(access.memref, axis) for axis in range(len(fibre.element))]
    ranges: list[tuple[Value, Poly | None, Poly | None]] = [
        (e, ZERO, atom(d)) for e, d in zip(fibre.element, extents, strict=True)
    ]

    def within(poly: Poly) -> bool:
        return all(isinstance(leaf, Dim) or leaf.owner is arguments for leaf in poly.leaves())

    def known(polys: Iterable[Poly], *, upwards: bool) -> Poly | None:
        bounds = (extreme(p, ranges, upwards=upwards) for p in polys)
        return next((p for p in bounds if p is not None and within(p)), None)

    lengths: list[Poly | None] = []
    for iv, lowers, uppers in fibre.loops:
        spans = (high - low + ONE for low in lowers for high in uppers)
        lengths.append(known(spans, upwards=True))
        last = known(uppers, upwards=True)
        end = None if last is None else last + ONE
        ranges.insert(0, (iv, known(lowers, upwards=False), end))
    return lengths


def _function(
    function: Function, name: str, slicer: Slicer
) -> tuple[Function, dict[Value, Value], Sequence[Value]]:
    """A function with the arguments of ``function`` and of its workspaces, and with nothing in it
    but what is computed in front of the parallel loop."""
    args = function.args
    types = [a.type for a in args] + [slicer.type(v) for v in slicer.spilled]
    names = [a.name for a in args] + [slicer.name(k) for k in range(len(slicer.spilled))]
    new = Function(f"{function.name}_{name.replace('.', '_')}", types, names,
                   dict(function.attrs), function.span)  # fmt: skip
    outside = dict(zip(args, new.args, strict=False))
    slicer.copy_outside(Builder(new.body, function.span), outside)
    return new, outside, new.args[len(args) :]


def _argument(function: Function, name: str) -> Value:
    return next(v for v in function.args if v.name == name)


def _element(memref: Value) -> ScalarType:
    return memref.memref.element


def _extents(memref: Value) -> range:
    return range(memref.memref.rank)


def _over(b: Builder, memref: Value) -> Op:
    zero, one = b.constant(0, index), b.constant(1, index)
    ends = [b.op("memref.dim", memref, axis=k) for k in _extents(memref)]
    return b.parallel([zero] * len(ends), ends, [one] * len(ends))


def _sum(
    w: Writer, access: Access, found: Fibre, total: Value, slicer: Slicer, kept: Sequence[Value],
    bounds: Bounds,
) -> Value:  # fmt: skip
    """``total`` plus the sum of the values of ``access`` over the fibre, the outermost loop between
    ``bounds`` of its ends."""

    def value(total: Value) -> Value:
        for iv, poly in found.solved.items():
            w.values[iv] = w.poly(poly)

        def copied(value: Value) -> Value:
            if isinstance(access, Rolled):
                return access.copied(value, w, kept, slicer)
            return slicer.copied(value, w, kept)

        def added() -> Value:
            return w.b.op("arith.addf", total, copied(accumulated(access)))

        return slicer.under(access, w, added, total, in_bounds, copied)

    def nest(k: int, total: Value) -> Value:
        if k == len(found.loops):
            return guarded(found.inner, total, value)
        iv, lowers, uppers = found.loops[k]
        low, high = w.extreme("arith.maxsi", lowers), w.extreme("arith.minsi", uppers)
        one = w.b.constant(1, index)
        end = w.b.op("arith.addi", high, one)
        if k == 0:
            low, end = bounds(low, end)
        loop = w.b.for_(low, end, one, [total])
        with w.b.at(loop.body) as block:
            block.args[0].name = iv.name
            w.values[iv] = block.args[0]
            w.b.do("scf.yield", nest(k + 1, block.args[1]))
        return loop.result

    def guarded(
        conditions: Sequence[object], total: Value, inside: Callable[[Value], Value]
    ) -> Value:
        if not conditions:
            return inside(total)
        test = w.all(conditions)  # type: ignore[arg-type]
        return w.b.either(test, lambda: [inside(total)], lambda: [total], [total.type])[0]

    return guarded(found.outer, total, lambda t: nest(0, t))

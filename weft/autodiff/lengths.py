"""How long tapes are: from sizes where they say it, else by a loop that counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.autodiff.clean import clean
from weft.autodiff.memory import Contents
from weft.autodiff.names import before_name, unique_names, work_name
from weft.errors import GradientError
from weft.index.access import Extraction
from weft.index.expression import POLYNOMIALS, Dim, Poly, extreme, number
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.trips import trip_count
from weft.ir.types import MemRefType, i64, index
from weft.ir.views import For, Parallel, accessed_by, redirected

Range = tuple[Value, Poly | None, Poly | None]


@dataclass(frozen=True, slots=True)
class Lengths:
    """``space``: the extents of the parallel loop; ``trips``: of each of ``loops``, None
    where ``measure`` computes it: a function of the primal's arguments, of ``before`` them and of
    copies of these to ``work`` on, that raises element k of its last one, ``trips`` (i64, starting
    from 0), to the most trips of loop k. All expressions are in
    the primal's scalar arguments and extents."""

    space: tuple[Poly, ...]
    loops: tuple[Op, ...]
    trips: tuple[Poly | None, ...]
    measure: Function | None


def lengths(function: Function, loops: Sequence[Op], seen: Mapping[Op, Contents]) -> Lengths:
    """The lengths of tapes of ``loops``, each a ``scf.for`` or ``scf.while`` of ``function``.
    ``seen``: its ``memory.contents``."""
    extraction = Extraction(function)
    known = set(function.args)
    bounds: dict[Op, Poly | None] = {}
    space: list[Poly] = []

    def only_arguments(poly: Poly | None) -> Poly | None:
        if poly is None:
            return None
        leaves = (x.memref if isinstance(x, Dim) else x for x in poly.leaves())
        return poly if all(leaf in known for leaf in leaves) else None

    def visit(block: Block, ranges: list[Range]) -> None:
        for op in block.ops:
            if op.name == "scf.parallel":
                inner = list(ranges)
                for iv, axis in zip(Parallel(op).indices, Parallel(op).axes, strict=True):
                    low, high, step = map(extraction.poly, axis)
                    extent = only_arguments(_trips(low, high, step))
                    if extent is None:
                        raise GradientError(
                            "how many iterations this loop has is known only while it runs, so no "
                            "tape can be made for it", op.span,
                            help="pass the number of iterations as an argument",
                        )  # fmt: skip
                    space.append(extent)
                    inner.insert(0, (iv, low, high))
                visit(op.body, inner)
            elif op.name == "scf.for":
                low, high, step = map(extraction.poly, For(op).bounds)
                if op in loops:
                    apart = None if low is None or high is None else high - low
                    most = None if apart is None else extreme(apart, ranges, upwards=True)
                    bounds[op] = only_arguments(_trips(number(0), most, step))
                visit(op.body, [(For(op).index, low, high), *ranges])
            else:
                for region in op.regions:
                    visit(region, ranges)

    visit(function.body, [])
    trips = tuple(bounds.get(op) for op in loops)
    missing = [op for op, length in zip(loops, trips, strict=True) if length is None]
    measure = _measure(function, list(loops), missing, seen) if missing else None
    return Lengths(tuple(space), tuple(loops), trips, measure)


def _trips(low: Poly | None, high: Poly | None, step: Poly | None) -> Poly | None:
    if low is None or high is None or step is None:
        return None
    by = step.constant
    if by is None or by < 1:
        return None
    return trip_count(POLYNOMIALS, low, high, step)


def _measure(
    function: Function, loops: list[Op], missing: list[Op], seen: Mapping[Op, Contents]
) -> Function:
    """``function`` counting the trips of ``missing``, with no other effects than on arguments of
    its own: copies of what it overwrites and reads in between."""
    counting = {op: loops.index(op) for op in missing}
    trips = Value(MemRefType(i64, 1), "trips")
    names = dict(zip(function.args, unique_names(function), strict=True))
    before, work = (
        {m: Value(m.type, name(names[m])) for m in names
         if any(w == which and accessed_by(op) is m for op, w in seen.items())}
        for which, name in (("before", before_name), ("tape", work_name))
    )  # fmt: skip
    accesses = iter([op for op in walk(function.body) if accessed_by(op) is not None])

    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op.name in ("weft.assert", "weft.bounds", "weft.print"):
            return []
        if accessed_by(op) is None:
            return None
        old = next(accesses)
        memref = accessed_by(old)
        assert memref is not None
        if op.name == "memref.load":
            other = {"before": before, "tape": work}.get(seen.get(old, "after"), {}).get(memref)
        elif memref.op is not None:  # a local array
            other = None
        elif (other := work.get(memref)) is None:  # the results of writes to arguments are not used
            return [rewriter.constant(0, r.type) for r in op.results]  # type: ignore[arg-type]
        if other is not None:
            redirected(op, other)
        return None

    def count(rewriter: Rewriter, k: int, number: Value) -> None:
        at = rewriter.constant(k, index)
        wide = rewriter.op("arith.index_cast", number, type=i64)
        rewriter.atomic_rmw("maxsi", wide, trips, [at])

    def around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op not in counting:
            return None
        if op.name == "scf.for":
            bounds = map(rewriter.lookup, For(op).bounds)
            count(rewriter, counting[op], rewriter.trip_count(*bounds))
            return None
        zero, one = rewriter.constant(0, index), rewriter.constant(1, index)
        inits = [rewriter.lookup(v) for v in op.operands]
        loop = rewriter.while_([*inits, zero], [*(r.type for r in op.results), index])
        for k, (old, new) in enumerate(zip(op.regions, loop.regions, strict=True)):
            with rewriter.at(new):
                given = rewriter.inline(old, new.args[:-1])
                number = new.args[-1]
                if k:
                    number = rewriter.op("arith.addi", number, one)
                rewriter.do("scf.yield" if k else "scf.condition", *given, number)
        count(rewriter, counting[op], rewriter.op("arith.addi", loop.results[-1], one))
        return loop.results[:-1]

    new = Rewriter(visit, around=around).function(function)
    for value, name in zip(new.args, names.values(), strict=True):
        value.name = name
    for value in (*before.values(), *work.values(), trips):
        value.owner = new.body
        new.body.args.append(value)
    new.name = f"{function.name}_trips"
    return clean(new)

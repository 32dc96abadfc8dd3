"""How long tapes are: from sizes where they say it, else by a loop that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.autodiff.clean import without_unused
from weft.autodiff.names import unique_names
from weft.errors import GradientError
from weft.index.access import Extraction
from weft.index.expression import POLYNOMIALS, Dim, Poly, extreme, number
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.trips import trip_count
from weft.ir.types import MemRefType, i64, index
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify

Range = tuple[Value, Poly | None, Poly | None]


@dataclass(frozen=True, slots=True)
class Lengths:
    """``space``: the extents of the parallel loop; ``trips``: of each of ``loops``, None
    where ``measure`` computes it: a function of the primal's arguments that raises element k of its
    last one, ``trips`` (i64, starting from 0), to the most trips of loop k. All expressions are in
    the primal's scalar arguments and extents."""

    space: tuple[Poly, ...]
    loops: tuple[Op, ...]
    trips: tuple[Poly | None, ...]
    measure: Function | None


def lengths(function: Function, loops: Sequence[Op]) -> Lengths:
    """The lengths of tapes of ``loops``, each a ``scf.for`` or ``scf.while`` of ``function``."""
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
                n = op.attrs["dims"]
                inner = list(ranges)
                for k in range(n):
                    low, high, step = (extraction.poly(op.operands[i * n + k]) for i in range(3))
                    extent = only_arguments(_trips(low, high, step))
                    if extent is None:
                        raise GradientError(
                            "how many iterations this loop has is known only while it runs, so no "
                            "tape can be made for it", op.span,
                            help="pass the number of iterations as an argument",
                        )  # fmt: skip
                    space.append(extent)
                    inner.insert(0, (op.regions[0].args[k], low, high))
                visit(op.regions[0], inner)
            elif op.name == "scf.for":
                low, high, step = (extraction.poly(v) for v in op.operands[:3])
                if op in loops:
                    apart = None if low is None or high is None else high - low
                    most = None if apart is None else extreme(apart, ranges, upwards=True)
                    bounds[op] = only_arguments(_trips(number(0), most, step))
                visit(op.regions[0], [(op.regions[0].args[0], low, high), *ranges])
            else:
                for region in op.regions:
                    visit(region, ranges)

    visit(function.body, [])
    trips = tuple(bounds.get(op) for op in loops)
    missing = [op for op, length in zip(loops, trips, strict=True) if length is None]
    measure = _measure(function, list(loops), missing) if missing else None
    return Lengths(tuple(space), tuple(loops), trips, measure)


def _trips(low: Poly | None, high: Poly | None, step: Poly | None) -> Poly | None:
    if low is None or high is None or step is None:
        return None
    by = step.constant
    if by is None or by < 1:
        return None
    return trip_count(POLYNOMIALS, low, high, step)


def _measure(function: Function, loops: list[Op], missing: list[Op]) -> Function:
    """``function`` without its effects, counting the trips of ``missing``."""
    counting = {op: loops.index(op) for op in missing}
    made: list[Value] = []

    def count(rewriter: Rewriter, k: int, trips: Value) -> None:
        at = rewriter.constant(k, index)
        wide = rewriter.op("arith.index_cast", trips, type=i64)
        rewriter.atomic_rmw("maxsi", wide, made[0], [at])

    def around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op not in counting:
            return None
        if op.name == "scf.for":
            low, high, step = (rewriter.lookup(v) for v in op.operands[:3])
            count(rewriter, counting[op], rewriter.trip_count(low, high, step))
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

    rewriter = Rewriter(_without_effects, around=around)
    trips = Value(MemRefType(i64, 1), "trips")
    made.append(trips)
    new = rewriter.function(function)
    for value, name in zip(new.args, unique_names(function), strict=True):
        value.name = name
    trips.owner = new.body
    new.body.args.append(trips)
    new.name = f"{function.name}_trips"
    return without_unused(dce(cse(simplify(new))))


def _without_effects(op: Op, rewriter: Rewriter) -> list[Value] | None:
    """Drops writes to arguments (their results are not used: see ``reverse``) and checks."""
    if op.name in ("weft.assert", "weft.bounds", "weft.print"):
        return []
    place = {"memref.store": 1, "memref.atomic_rmw": 1, "memref.atomic_cas": 2}.get(op.name)
    if place is None or op.operands[place].name == "trips":
        return None
    if isinstance(op.operands[place].owner, Op):  # a local array
        return None
    return [] if not op.results else [rewriter.constant(0, op.results[0].type)]  # type: ignore[arg-type]

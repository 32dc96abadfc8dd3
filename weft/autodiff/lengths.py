"""How long tapes are: from sizes where they say it, else by a loop that counts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.autodiff.adjoint import Lengths
from weft.autodiff.names import TRIPS
from weft.autodiff.primal import Primal, array_of
from weft.autodiff.recompute import Recomputation
from weft.errors import GradientError
from weft.index.access import Extraction, Loop
from weft.index.expression import POLYNOMIALS, Dim, Poly, extreme, number
from weft.ir.core import Function, Op, Value
from weft.ir.trips import trip_count
from weft.ir.types import MemRefType, i64


def lengths(primal: Primal, loops: Sequence[Op]) -> Lengths:
    """The lengths of tapes of ``loops``, each a ``scf.for`` or ``scf.while`` of the primal."""
    extraction = Extraction(primal.function)
    trips = tuple(_trips(primal.function, extraction.loops.get(op)) for op in loops)
    missing = [k for k, length in enumerate(trips) if length is None]
    measure = _measure(primal, {loops[k]: k for k in missing}) if missing else None
    return Lengths(_space(primal.function, extraction), tuple(loops), trips, measure)


def space(function: Function) -> tuple[Poly, ...]:
    """The extents of the parallel loop, in the arguments of ``function``."""
    return _space(function, Extraction(function))


def _space(function: Function, extraction: Extraction) -> tuple[Poly, ...]:
    parallel = next(op for op in function.body.ops if op.name == "scf.parallel")
    extents = [_trips(function, [loop]) for loop in extraction.loops[parallel]]
    known = tuple(extent for extent in extents if extent is not None)
    if len(known) < len(extents):
        raise GradientError(
            "how many iterations this loop has is known only while it runs, so no tape can be made "
            "for it", parallel.span, help="pass the number of iterations as an argument",
        )  # fmt: skip
    return known


def _trips(function: Function, loops: Sequence[Loop] | None) -> Poly | None:
    """The most iterations of the last one of ``loops``, which are around each other, in arguments
    and extents; None where that is not known."""
    if not loops:
        return None
    *around, loop = loops
    if loop.lower is None or loop.upper is None or loop.step is None or not loop.step.constant:
        return None
    ranges = [(outer.iv, outer.lower, outer.upper) for outer in reversed(around)]
    most = extreme(loop.upper - loop.lower, ranges, upwards=True)
    if most is None or loop.step.constant < 1:
        return None
    count = trip_count(POLYNOMIALS, number(0), most, loop.step)
    leaves = (x.memref if isinstance(x, Dim) else x for x in count.leaves())
    return count if set(leaves) <= set(function.args) else None


def _measure(primal: Primal, counted: dict[Op, int]) -> Function:
    """The primal counting the trips of loops, with no other effects than on arguments of its own:
    copies of what it overwrites and reads in between."""
    new = Recomputation(primal, "trips")
    for op, which in primal.contents.items():
        if which == "before":
            new.argument(primal.before(array_of(op)), array_of(op).type)
    new.on_copies()
    trips = new.argument(TRIPS, MemRefType(i64, 1))

    def count(k: int, number: Value) -> None:
        wide = new.b.op("arith.index_cast", number, type=i64)
        new.b.atomic_rmw("maxsi", wide, trips, [new.b.index(k)])

    new.counted = {op: partial(count, k) for op, k in counted.items()}
    new.ops(primal.head)
    return new.carry_out()

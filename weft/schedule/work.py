"""How much work a loop is, for those who share it: a guess of its operations.

Bounds of loops inside are those of the iteration in the middle. The guess is computed in front of
the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import f64, i64, index
from weft.ir.views import If, Parallel, Select, loop_of
from weft.schedule.cost import UNKNOWN_TRIPS

_DEAR = 8.0  # operations that one of these is


def work(build: Rewriter, parallel: Op, trips: Sequence[Value]) -> Value:
    """The operations, an f64, of the loop ``parallel``, which ``build`` is about to rebuild: it has
    ``trips`` iterations along its axes."""
    one = build.constant(1, index)
    middle = (build.op("arith.shrsi", trip, one) for trip in trips)
    build.replacement.update(zip(Parallel(parallel).indices, middle, strict=True))
    guess = _Guess(build)
    return build.op("arith.mulf", guess.product(trips), guess.block(parallel.body))


class _Guess:
    """Values of the loop are replaced by those in the middle until it is rebuilt itself."""

    def __init__(self, build: Rewriter) -> None:
        self.build = build

    def block(self, block: Block) -> Value:
        """The operations of a block."""
        build, own, parts = self.build, 0.0, list[Value]()
        for op in block.ops:
            if op.attrs.get("edge") and op.name == "scf.if":
                if len(If(op).otherwise.ops) > 1:  # a tile, which has nothing else; ends are said
                    return self.block(If(op).otherwise)  # at its edge
                continue  # a strip of tiles
            for region in op.regions:
                if op.name == "scf.parallel":
                    rows = zip(region.args, Parallel(op).lowers, strict=True)
                    build.replacement.update(
                        {iv: build.lookup(v) for iv, v in rows if self.known(v)}
                    )
                parts.append(self.times(op, self.block(region)))
            if op.name.startswith("math.") or op.name in ("memref.atomic_rmw", "arith.divf"):
                own += _DEAR
            elif op.name not in ("arith.constant", "memref.dim") and not OPS[op.name].terminator:
                own += 1.0
        return reduce(lambda a, b: build.op("arith.addf", a, b), parts, build.constant(own, f64))

    def times(self, op: Op, inside: Value) -> Value:
        """``inside`` as often as the regions of ``op`` run."""
        if op.name == "scf.if":
            return inside
        build, axes = self.build, [] if op.name == "scf.while" else loop_of(op).axes
        if axes and all(self.known(v) for bounds in axes for v in bounds):
            count = self.product([build.trip_count(*map(build.lookup, bounds)) for bounds in axes])
        else:
            count = build.constant(UNKNOWN_TRIPS, f64)
        return build.op("arith.mulf", inside, count)

    def product(self, trips: Sequence[Value]) -> Value:
        build = self.build
        total = reduce(lambda a, b: build.op("arith.muli", a, b, overflow="nsw"), trips)
        return build.op("arith.sitofp", build.op("arith.index_cast", total, type=i64), type=f64)

    def known(self, value: Value) -> bool:
        """Whether ``value`` is there in front of the loop; makes it so if it follows from what is
        by arithmetic of indices."""
        build, op = self.build, value.op
        if value in build.replacement:
            return True
        if op is None or value.type is not index or not OPS[op.name].pure:
            return False
        if op.attrs.get("edge"):  # the first tile of all
            first = Select(op).no
            if self.known(first):
                build.replacement[value] = build.lookup(first)
            return first in build.replacement
        if not all(map(self.known, op.operands)):
            return False
        copy = build.copied(op, build.lookup)
        for said in ("positive", "nonzero"):  # of a divisor, where the loop has asked
            copy.attrs.pop(said, None)
        build.stand_for(op.results, copy.results)
        return True

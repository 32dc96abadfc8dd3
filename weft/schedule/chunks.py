"""Chunks: threads take the iterations of the outermost loop many at a time.

What comes out is a parallel loop over chunks, marked ``chunks``. Each is a range of the flattened
iteration space, run as a nest of serial loops: only its two ends are taken apart by division. What
a chunk reduces it stores into an array of partial results, which a serial loop combines in the
order of the chunks. How many there are depends on the sizes alone, and so do the bits of a
reduction, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.builder import Integers, Rewriter, identity
from weft.ir.chunks import MOST
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.trips import trip_count
from weft.ir.types import f64, index
from weft.ir.views import If, Parallel, is_constant
from weft.schedule.collapse import counted_as_one
from weft.schedule.work import work

COST = 32_768  # operations: about a microsecond or more, below which sharing is not worth it
ONE_ROW = (1 << 63) - 1  # iterations of a row, where there is one


def chunks(function: Function, parallel: Op) -> Function:
    """``function``, in which threads share ``parallel``, its outermost loop."""
    return Chunks(parallel).function(function)


class Chunks(Rewriter):
    """The function that has the loop ``parallel``."""

    def __init__(self, parallel: Op) -> None:
        super().__init__(self._visited, self._around)
        self.old, self.loop = parallel, Parallel(parallel)
        self.trips: list[Value] = []
        self.total = self.work = self.wished = self.loop.lowers[0]  # until the loop is met
        self.alone = any(op.name == "weft.print" for op in walk(parallel.body))
        self.choice, self.chosen = _choice(parallel), parallel.body
        self.rare = False  # whether the next loop over chunks is one that few calls take

    def _visited(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        return self.visited(op)

    def visited(self, op: Op) -> Sequence[Value] | None:
        """What stands for ``op``, an operation that was rebuilt; None where it stays."""

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op is self.choice:
            return self.inline(self.chosen, [])
        if op is not self.old:
            return None
        counts = Counts(self, index)
        trips = [trip_count(counts, *map(self.lookup, bounds)) for bounds in self.loop.axes]
        self.work = self.estimated(trips)
        self.wished = self.op("arith.mulf", self.work, self.constant(1 / COST, f64))
        self.trips = counted_as_one(self, op, trips)
        self.total = self.product(self.trips)
        return self.shared()

    def estimated(self, trips: Sequence[Value]) -> Value:
        """The operations of the loop, which has ``trips`` iterations along its axes."""
        return work(self, self.old, trips)

    def shared(self) -> list[Value]:
        """What stands for the results of the loop."""
        size, count = self.cut(self.wished)
        partial = self.partial()
        self.share(count, lambda number: self.reduce(number, size, partial))
        return self.combined(count, partial)

    # -- what chunks reduce

    def partial(self) -> list[Value]:
        """An array for each reduction, with an element for each chunk."""
        return [self.alloca(value.scalar, (MOST,)) for value in self.old.results]

    def reduce(self, number: Value, size: Value, partial: Sequence[Value]) -> None:
        """The iterations of chunk ``number``, whose results go into ``partial``."""
        for value, array in zip(self.range(number, size), partial, strict=True):
            self.store(value, array, [number])

    def combined(self, count: Value, partial: Sequence[Value]) -> list[Value]:
        """The results of ``count`` chunks, in their order."""
        if not partial:
            return []
        inits = list(map(self.lookup, self.loop.inits))
        loop = self.for_(self.index(0), count, self.index(1), inits, unroll=1)
        number, *before = loop.body.args
        self.fill(loop.body, lambda: [
            self.op(f"arith.{kind}", a, self.load(array, [number]))
            for kind, a, array in zip(self.loop.kinds, before, partial, strict=True)
        ])  # fmt: skip
        return loop.results

    # -- how the iterations are cut

    def cut(self, wished: Value) -> tuple[Value, Value]:
        """The iterations of a chunk, and the number of chunks, where there should be ``wished``."""
        row = self.trips[-1] if len(self.trips) > 1 else self.index(ONE_ROW)
        made = self.append(Op("weft.chunks", [self.total, row, wished], [index, index]))
        size, count = made.results
        return size, count

    def product(self, factors: Sequence[Value]) -> Value:
        first, *rest = factors
        for factor in rest:
            first = self.op("arith.muli", first, factor, overflow="nsw")
        return first

    # -- chunks

    def share(self, count: Value, chunk: Callable[[Value], None]) -> None:
        """``chunk`` for every number below ``count``, by threads."""
        made = self.parallel([self.index(0)], [count], [self.index(1)])
        made.attrs |= {"chunks": True, **({"alone": True} if self.alone else {})}
        made.attrs |= {"rare": True} if self.rare else {}
        with self.at(made.body):
            chunk(made.body.args[0])
            self.do("scf.reduce")

    def range(self, number: Value, size: Value) -> list[Value]:
        """The iterations of chunk ``number``, and what they reduce."""
        return self.carried_out(*self.ends(number, size))

    def ends(self, number: Value, size: Value) -> tuple[Value, Value]:
        """The first iteration of chunk ``number``, and that behind its last one."""
        begin = self.op("arith.muli", number, size, overflow="nsw")
        return begin, self.op("arith.minsi", self._plus(begin, size), self.total)

    def carried_out(self, begin: Value, end: Value) -> list[Value]:
        """Those from ``begin`` to ``end``, and what they reduce."""
        last = self.op("arith.subi", end, self.index(1), overflow="nsw")
        ends = list(zip(self._rows(begin), self._rows(last), strict=True))
        rows = zip(self.loop.kinds, self.old.results, strict=True)
        neutral = [self.constant(identity(kind, v.scalar), v.scalar) for kind, v in rows]
        if self.choice is None:
            return self._nest(ends, None, [], neutral)

        def side(chosen: Block) -> None:
            self.chosen = chosen
            self._nest(ends, None, [], neutral)

        choice = If(self.choice)
        condition = self.lookup(choice.condition)
        return self.either(condition, lambda: side(choice.then), lambda: side(choice.otherwise))

    def _plus(self, a: Value, b: Value) -> Value:
        return self.op("arith.addi", a, b, overflow="nsw")

    def _rows(self, flat: Value) -> list[Value]:
        """For each axis: which row of it has iteration ``flat``, counting those of all."""
        found = [flat]
        for trips in reversed(self.trips[1:]):  # not 0, where there is an iteration
            found.insert(0, self.op("arith.divui", found[0], trips, nonzero=True))
        return found

    def _nest(
        self, ends: list[tuple[Value, Value]], row: Value | None, indices: list[Value],
        carried: list[Value],
    ) -> list[Value]:  # fmt: skip
        """The loops inside of those over ``indices``, in ``row`` of all rows."""
        axis = len(indices)
        first, last = ends[axis]
        trips, begin, end = self.trips[axis], first, self._plus(last, self.index(1))
        passed: Value | None = None  # iterations of this axis in rows that come before
        if row is not None:  # no branches on "first row?": LLVM would write the loops twice
            passed = self.op("arith.muli", row, trips, overflow="nsw")
            begin = self.op("arith.subi", begin, passed, overflow="nsw")
            begin = self.op("arith.maxsi", self.index(0), begin)
            end = self.op("arith.subi", end, passed, overflow="nsw")
            end = self.op("arith.minsi", trips, end)
        made = self.for_(begin, end, self.index(1), carried, counts=True)
        count, *values = made.body.args

        def inside() -> list[Value]:
            at = [*indices, self._index(axis, count)]
            if axis + 1 < len(ends):
                inner = count if passed is None else self._plus(passed, count)
                return self._nest(ends, inner, at, values)
            parts = self.inline(self.old.body, at)
            return [self._combined(*r) for r in zip(self.loop.kinds, values, parts, strict=True)]

        if axis + 1 == len(ends) and self._plain:
            made.attrs["independent"] = True
        self.fill(made.body, inside)
        return made.results

    @property
    def _plain(self) -> bool:
        """Whether LLVM may vectorise the loop over iterations: it is the innermost one."""
        return not any(op.regions and op.name != "scf.if" for op in walk(self.old.body))

    def _index(self, axis: int, count: Value) -> Value:
        """The index of an iteration: lower + count * step."""
        lower, _, step = self.loop.axes[axis]
        value, old = count, self.loop.indices[axis]
        count.name = old.name
        if not is_constant(step, 1):
            value = self.op("arith.muli", value, self.lookup(step), overflow="nsw")
        if not is_constant(lower, 0):
            value = self._plus(value, self.lookup(lower))
        return value

    def _combined(self, kind: str, a: Value, b: Value) -> Value:
        value = self.op(f"arith.{kind}", a, b)
        if value.op is not None and kind == "addf":
            value.op.attrs["reassociate"] = True
        return value


def _choice(parallel: Op) -> Op | None:
    """The branch between loops that is all of what iterations of ``parallel`` do, if it is known
    before them: a chunk asks once, and its loops hold one side each, in registers."""
    body = parallel.body
    branches = [op for op in body.ops if op.regions]
    rest = [op for op in body.ops[:-1] if not op.regions]
    if len(branches) != 1 or branches[0].name != "scf.if" or branches[0].results:
        return None
    known = If(branches[0]).condition
    inside = known.owner is body or known.op in body.ops
    loops = any(op.name == "scf.for" for op in walk(parallel.body))
    plain = not parallel.results and all(OPS[op.name].pure for op in rest)
    return branches[0] if loops and plain and not inside else None


class Counts(Integers):
    """Numbers of iterations: they are not negative, and those that divide are not 0."""

    def op(self, name: str, a: Value, b: Value) -> Value:
        if name == "floordivsi":
            return self.builder.op("arith.divui", a, b, nonzero=True)
        return super().op(name, a, b)

"""Bind, Cover: the iterations of the outermost parallel loop go to the threads of a grid.

A thread finds its iterations from its place in the grid, along the dimensions that its schedule
puts on it. Where the grid covers the iterations there are no loops over them, and no division but
one for each block of a fourth dimension. A reduction ends in each block with shuffles and shared
memory; what blocks leave is combined by a second function of one block, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.builder import identity
from weft.ir.core import Function, Op, Value
from weft.ir.trips import unravel
from weft.ir.types import MemRefType, Type, i1, i32, index
from weft.ir.views import Parallel, constant_of, memory
from weft.ir.writes import written
from weft.schedule.language import (
    Align,
    Cover,
    LongestFirst,
    Schedule,
    Stage,
    Vectorize,
    only,
    several,
    tiled,
)
from weft.schedule.nest import arrays_of
from weft.schedule.spmd import Threads, from_word, to_word
from weft.schedule.vectorize import Neighbours
from weft.values import frozen


def limits_of(function: Function, schedule: Schedule) -> dict[Value, int]:
    """The bytes of vectors that the rows of arguments are made of."""
    args = dict(zip(arrays_of(function), function.args, strict=True))
    return {args[step.array]: step.bytes for step in several(schedule, Align)}


@frozen
class Bound:
    """``stages`` run one after the other, each in every thread of a grid. Where there are several,
    they have two arguments more: memory for what blocks leave (of a reduction, a word of each block
    and reduction, which the second combines in one block), and how many of them do."""

    stages: tuple[Function, ...]

    @property
    def function(self) -> Function:
        """The first stage."""
        return self.stages[0]


def bind(function: Function, parallel: Op, order: Sequence[int], schedule: Schedule) -> Bound:
    """``function`` with the iterations of ``parallel`` on threads. ``order``: its dimensions, that
    along x first."""
    nest = Grid(function, parallel, order, schedule)
    made = nest.rebuilt()
    if not nest.kinds:
        return Bound((made,))
    last = Grid(function, parallel, order, schedule)
    return Bound((made, last.finish()))


class Grid(Threads):
    """Rebuilds ``function`` for one of its stages."""

    def __init__(
        self, function: Function, parallel: Op, order: Sequence[int], schedule: Schedule
    ) -> None:
        super().__init__(function)
        self.outer = parallel
        self.order = order
        self.covers = only(schedule, Cover) is not None
        self.vector = only(schedule, Vectorize)
        self.staged = only(schedule, Stage)
        self.tiled = tiled(schedule)
        self.longest_first = only(schedule, LongestFirst) is not None
        self.there: Value | None = None  # whether a thread of those has an iteration of its own
        self.kinds = Parallel(parallel).kinds
        self.place = function.body.ops.index(parallel)
        self.limits = limits_of(function, schedule)

    def begin(self) -> Function:
        words = [("partials", MemRefType(self.left_word, 1)), ("blocks", self.tally)]
        group = self.staged.threads if self.staged is not None else 0
        made = self.start(group, words if self.kinds else ())
        self.changed = {*map(self.lookup, written(self.old))}
        for op in self.old.body.ops[: self.place]:
            self.rewrite(op)
        return made

    def rebuilt(self) -> Function:
        made = self.begin()
        values = self.iterations()
        if self.kinds:
            self.reduce(made, values)
        else:
            self.rest()
        self.do("func.return")
        return made

    def rest(self) -> None:
        """What follows the loop."""
        for op in self.old.body.ops[self.place + 1 : -1]:
            self.rewrite(op)

    # -- the thread's iterations

    def iterations(self) -> list[Value]:
        """Along z (all dimensions but two), y and x. Gives what the thread reduced."""
        self.bounds, self.counts = self.ranges(self.outer)
        types = [v.scalar for v in self.outer.results]
        return self.along_z(self.neutral(self.kinds, types))

    def bind(self, axis: int, count: Value) -> None:
        """Names the index that the loop has along ``axis`` at this iteration."""
        self.replacement[self.outer.body.args[axis]] = self.index_of(count, self.bounds[axis])

    def along_z(self, carried: list[Value]) -> list[Value]:
        rest = self.order[2:]
        if not rest:
            return self.along_y(carried)
        types = {self.counts[k].type for k in rest}
        type: Type = i32 if types == {i32} and len(rest) == 1 else index
        wide = {k: self.to(self.counts[k], type) for k in rest}
        total = wide[rest[0]]
        for k in rest[1:]:
            total = self.mul(total, wide[k], "nsw")

        def inside(count: Value, values: list[Value]) -> list[Value]:
            parts = unravel(count, (wide[k] for k in rest[:-1]), self.divide)
            for k, part in zip(rest, parts, strict=True):
                self.bind(k, self.to(part, self.counts[k].type))
            return self.along_y(values)

        return self.along("z", total, carried, inside)

    def along_y(self, carried: list[Value]) -> list[Value]:
        if len(self.order) == 1:
            return self.along_x(carried)
        axis = self.order[1]

        def inside(count: Value, values: list[Value]) -> list[Value]:
            self.bind(axis, count)
            return self.along_x(values)

        return self.along("y", self.counts[axis], carried, inside)

    def position(self, side: str, type: Type) -> tuple[Value, Value]:
        """Threads that stage wait for each other: a block is along x, and of one size."""
        if self.staged is None and not (self.tiled and side == "z"):
            return super().position(side, type)
        where = "y" if self.longest_first else side
        block, blocks = (self.register(n, where, type) for n in ("block_id", "grid_dim"))
        if side != "x" or self.staged is None:
            return block, blocks
        threads = self.constant(self.staged.threads, block.scalar)
        first = self.add(self.mul(block, threads), self.register("thread_id", "x", type))
        return first, self.mul(blocks, threads)

    def visited(self, op: Op) -> Sequence[Value] | None:
        """A thread beyond the last iteration stores and adds nothing that others see, and reads
        nothing that they store."""
        accesses = ("memref.load", "memref.store", "memref.atomic_rmw")
        if self.there is None or op.name not in accesses or memory(op)[0].op is not None:
            return None
        if op.name == "memref.load":
            if self.lookup(memory(op)[0]) not in self.changed:
                return None
            type = op.result.scalar
            return self.either(
                self.there, lambda: [self.append(op).result],
                lambda: [self.constant(0.0 if type.is_float else 0, type)], [type],
            )  # fmt: skip
        if op.name == "memref.atomic_rmw":
            (value,) = memory(op)[2]
            none = self.constant(identity(op.attrs["kind"], value.scalar), value.scalar)
            given = self.op("arith.select", self.there, value, none, type=value.type)
            op.operands = [given if v is value else v for v in op.operands]
            return None
        self.branch(self.there, lambda: self.block.ops.append(op))
        return []

    def together(self, axis: int, first: Value, trip: Value) -> list[Value]:
        """An iteration for each thread of a block: beyond the last one, that once more."""
        assert self.staged is not None
        count = constant_of(trip)
        if count is None or int(count) % self.staged.threads:
            self.there = self.compare("slt", first, trip)
            last = self.op("arith.subi", trip, self.number(1, trip))
            first = self.op("arith.minsi", first, last)
        return self.one(axis, first, [])

    def along(
        self, side: str, trip: Value, carried: list[Value],
        body: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:  # fmt: skip
        """Runs ``body`` for the thread's iterations along y or z."""
        first, stride = self.position(side, trip.type)
        if self.tiled and side == "y":  # of which there are whole blocks
            return body(first, [])
        if self.covers:
            self.branch(self.compare("slt", first, trip), lambda: body(first, []))
            return []
        return self.loop(first, trip, stride, carried, body, unroll=1)

    def along_x(self, carried: list[Value]) -> list[Value]:
        """Neighbours are neighbouring threads."""
        axis = self.order[0]
        trip = self.counts[axis]
        first, stride = self.position("x", trip.type)
        if self.staged is not None:
            return self.together(axis, first, trip)
        if self.tiled:
            return self.one(axis, first, [])
        if self.vector is not None:
            near = Neighbours(self, self.outer, axis, self.vector, self.limits, self.bind, self.one)
            return near.run(first, stride, trip, carried, covers=self.covers)
        if self.covers:
            self.branch(self.compare("slt", first, trip), lambda: self.one(axis, first, []))
            return []
        return self.loop(first, trip, stride, carried, lambda k, sums: self.one(axis, k, sums))

    def one(self, axis: int, count: Value, carried: list[Value]) -> list[Value]:
        """One iteration. A check that fails in it ends it: then it contributes nothing."""

        def body() -> list[Value]:
            self.bind(axis, count)
            body = self.outer.body
            parts = self.inline(body, [self.lookup(v) for v in body.args])
            return self.pairs(self.kinds, carried, parts) if carried else []

        if not self.checked or (self.covers and not carried):
            return body()
        types = [v.type for v in carried]
        return self.either(self.constant(True, i1), body, lambda: carried, types, leave=True)

    # -- reductions

    def reduce(self, made: Function, values: list[Value]) -> None:
        """Combines the block's values; its first thread finishes, or hands over what they are."""
        partials, blocks = made.args[-2:]
        thread, _ = self.thread()
        values = self.in_block(self.kinds, values)

        def leave() -> list[Value]:
            number = self.register("block_id", "linear", self.tally)
            for place, value in zip(self.row(number), values, strict=True):
                self.store(to_word(self, value, self.left_word), partials, [place])
            return []

        def first() -> None:
            alone = self.compare("eq", blocks, self.constant(1, self.tally))
            self.either(alone, lambda: self.conclude(values), leave, [])

        self.branch(self.compare("eq", thread, self.constant(0, i32)), first)

    def row(self, block: Value) -> list[Value]:
        """Where in memory the words of a block are."""
        count = len(self.kinds)
        row = self.mul(block, self.constant(count, self.tally))
        return [self.add(row, self.constant(k, self.tally)) for k in range(count)]

    def conclude(self, values: list[Value]) -> list[Value]:
        """The initial values join, and the rest of the function runs: in one thread of all."""
        inits = [self.lookup(v) for v in Parallel(self.outer).inits]
        self.stand_for(self.outer.results, self.pairs(self.kinds, inits, values))
        self.rest()
        return []

    def finish(self) -> Function:
        """The second stage: one block combines what the blocks left, in their order."""
        made = self.begin()
        partials, blocks = made.args[-2:]
        types = [v.scalar for v in self.outer.results]
        thread, _ = self.thread()
        first, threads = self.thread(self.tally)

        def body(block: Value, carried: list[Value]) -> list[Value]:
            words = [self.load(partials, [place]) for place in self.row(block)]
            parts = [from_word(self, w, t) for w, t in zip(words, types, strict=True)]
            return self.pairs(self.kinds, carried, parts)

        values = self.loop(first, blocks, threads, self.neutral(self.kinds, types), body)
        values = self.in_block(self.kinds, values)
        alone = self.compare("eq", thread, self.constant(0, i32))
        self.branch(alone, lambda: self.conclude(values))
        self.do("func.return")
        return made

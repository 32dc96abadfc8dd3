"""Cooperate: a group of threads has an iteration together and shares its loops.

The members do the same, except in the loops that may go in any order: of these each member has
every n-th iteration, and what they carry is combined at the end. Stores outside of such loops are
done by one member. A group is part of a warp, a warp, or a block of several warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.trips import unravel
from weft.ir.types import ScalarType
from weft.ir.uniform import WARP
from weft.ir.views import For
from weft.schedule.bind import Bound
from weft.schedule.expose import expose
from weft.schedule.language import Cooperate
from weft.schedule.spmd import Bounds, Threads


def cooperate(function: Function, parallel: Op, first: int, step: Cooperate) -> Bound:
    """``function`` with an iteration of ``parallel`` for each group of threads. Its operations have
    these attributes: "team", the combiners of what a shared loop carries, () for a store of one
    member; "ordered" where others wait for it. ``first``: the index along which groups stand side
    by side, where they do."""
    if step.columns:
        function, parallel = expose(function, parallel)
    members = Members(function, parallel, step)
    made = members.start(0 if step.columns else step.threads)
    members.all(first)
    return Bound((made,))


class Members(Threads):
    """``member``: the thread's number in its group. ``counts``: of iterations, along each index, of
    groups that stand side by side. ``there``: whether the group has an iteration,
    None where it always does."""

    member: Value
    counts: list[Value]

    def __init__(self, function: Function, parallel: Op, step: Cooperate) -> None:
        super().__init__(function)
        self.outer = parallel
        self.count = step.threads
        self.columns = step.columns
        self.several = step.threads > WARP or self.workgroup is not None
        self.width = min(step.threads, WARP)
        self.side = "y" if step.columns else "x"
        self.there: Value | None = None

    def all(self, first: int) -> None:
        """What the function does: ``first`` as for ``cooperate``."""
        place = self.old.body.ops.index(self.outer)
        for op in self.old.body.ops[:place]:
            self.rewrite(op)
        if self.columns:
            self.column(first)
        else:
            self.row()
        for op in self.old.body.ops[place + 1 :]:
            self.rewrite(op)

    # -- the group's iteration

    def body(self, bounds: Sequence[Bounds], parts: dict[int, Value]) -> None:
        """``parts``: of each index, which it is."""
        indices = [self.index_of(self.to(parts[k], b[0].type), b) for k, b in enumerate(bounds)]
        self.inline(self.outer.body, indices)

    def row(self) -> None:
        """Blocks count along x, groups of a block along y."""
        bounds, counts = self.ranges(self.outer)
        self.member = self.register("thread_id", self.side)
        block = self.register("block_id", "x", self.tally)
        place, size = (self.register(name, "y", self.tally) for name in ("thread_id", "block_dim"))
        number = self.add(self.mul(block, size), place)
        wide = [self.to(count, self.tally) for count in counts]
        total = wide[0]
        for count in wide[1:]:
            total = self.mul(total, count, "nsw")

        def mine() -> None:
            axes = list(reversed(range(len(wide))))
            parts = unravel(number, (wide[k] for k in axes[:-1]), self.divide)
            self.body(bounds, dict(zip(axes, parts, strict=True)))

        self.branch(self.compare("slt", number, total), mine)

    def column(self, first: int) -> None:
        """Blocks count along x: those of the other indices, and neighbours along ``first``. A group
        beyond the last iteration takes that, and does nothing in it."""
        bounds, self.counts = self.ranges(self.outer)
        self.member = self.register("thread_id", self.side)
        block, lane = (self.register(name, "x", self.tally) for name in ("block_id", "thread_id"))
        wide = [self.to(count, self.tally) for count in self.counts]
        width = self.constant(self.columns, self.tally)
        raised = self.add(wide[first], self.constant(self.columns - 1, self.tally))
        groups, _ = self.divide(raised, width)
        left, group = self.divide(block, groups)
        place = self.add(self.mul(group, width), lane)
        self.there = self.compare("slt", place, wide[first])
        last = self.op("arith.subi", wide[first], self.constant(1, self.tally))
        parts = {first: self.op("arith.minsi", place, last)}
        others = [k for k in reversed(range(len(wide))) if k != first]
        found = unravel(left, (wide[k] for k in others), self.divide)
        self.body(bounds, parts | dict(zip(others, found, strict=False)))

    # -- what members do

    def entered(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if "turns" in op.attrs:
            return self.inner_loop(op)
        return self.shared_loop(op) if op.name == "scf.for" and "team" in op.attrs else None

    def shared_loop(self, op: Op) -> list[Value]:
        """Each member's iterations of a loop, and what all of them carried."""
        kinds, ordered = op.attrs["team"], self.waits(op)
        run = self.prepared(op)
        if ordered:
            self.wait()
        parts = run()
        if ordered:
            self.wait()
        if not parts:
            return []
        parts = self.together(kinds, parts)
        return self.pairs(kinds, [self.lookup(v) for v in For(op).inits], parts)

    def waits(self, op: Op) -> bool:
        """Whether members wait in front of a shared loop, and behind."""
        return op.attrs["ordered"]

    def prepared(self, op: Op) -> Callable[[], list[Value]]:
        """What carries out the member's iterations of a shared loop, and gives what they carry."""
        lower, upper = self.lookup(For(op).lower), self.lookup(For(op).upper)
        if self.there is not None:
            upper = self.op("arith.select", self.there, upper, lower, type=lower.type)
        if inner_turns(op) is None:
            begin, size = self.turns(lower)
        else:
            begin, size = lower, self.constant(1, lower.scalar)
        neutral = self.none(op)
        return lambda: self.loop(
            begin, upper, size, neutral, lambda iv, sums: self.inline(op.body, [iv, *sums])
        )

    def none(self, op: Op) -> list[Value]:
        """What a member's iterations of a shared loop begin with."""
        return self.neutral(op.attrs["team"], [v.scalar for v in op.results])

    def together(self, kinds: Sequence[str], parts: list[Value]) -> list[Value]:
        """What all members carried, in each of them."""
        if self.several or self.columns:
            return self.in_block(kinds, parts, self.columns)
        return self.in_warp(kinds, parts, self.width)

    def turns(self, lower: Value) -> tuple[Value, Value]:
        """The member's first turn of a loop, and from each to the next."""
        place = self.to(self.member, lower.type, unsigned=True)
        return self.add(lower, place, "nsw"), self.members(lower.scalar)

    def inner_loop(self, op: Op) -> list[Value]:
        """Each member's iterations of a loop, whose parts are combined behind another one."""
        lower, upper = self.lookup(For(op).lower), self.lookup(For(op).upper)
        begin, size = self.turns(lower)
        carried = [self.lookup(v) for v in For(op).inits]
        return self.loop(begin, upper, size, carried, lambda iv, v: self.inline(op.body, [iv, *v]))

    def members(self, type: ScalarType) -> Value:
        """How many there are."""
        if self.several:
            return self.register("block_dim", self.side, type)
        return self.constant(self.width, type)

    def visited(self, op: Op) -> Sequence[Value] | None:
        """What the first member does for all."""
        if "team" not in op.attrs:
            return None
        del op.attrs["team"]
        ordered = op.attrs.pop("ordered")
        if ordered:
            self.wait()
        self.branch(self.alone(), lambda: self.block.ops.append(op))
        if ordered:
            self.wait()
        return [op.left for _ in op.results]  # of an accumulation, which nobody asks for

    def alone(self) -> Value:
        """Whether this thread does what one does for all."""
        chosen = self.compare("eq", self.member, self.number(0, self.member))
        return chosen if self.there is None else self.op("arith.andi", chosen, self.there)

    def wait(self) -> None:
        """Until all members are here, and see what each has written."""
        self.barrier(0 if self.several else self.width)


def inner_turns(op: Op) -> Op | None:
    """The loop in ``op`` of which members have turns, where it is not that itself."""
    return next((inner for inner in walk(op.body) if "turns" in inner.attrs), None)

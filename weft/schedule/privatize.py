"""Privatize: each block accumulates into its own copy of an array, in shared memory.

The block adds its copy to the array at the end. Where a loop accumulates into a few elements only,
which it names by numbers (``s[0] += x[i]``), each thread has its own copy of these, in registers,
and adds it to that of the block.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import identity
from weft.ir.core import Op, Value, walk
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import constant_of, memory, redirected, written_by
from weft.schedule.bind import Bound
from weft.schedule.spmd import Threads

MOST = 8  # elements of which each thread has a copy


def privatize(bound: Bound, position: int, width: ScalarType) -> Bound:
    """``bound`` with a copy of its argument ``position``, into which it accumulates by one combiner
    and which it does nothing else with. ``width``: of subscripts."""
    threads = _Private(bound, position)
    made = threads.start(bound.function.attrs["group"])
    threads.begin(width)
    for op in bound.function.body.ops[:-1]:
        threads.rewrite(op)
    threads.flush()
    threads.do("func.return")
    return Bound((made,))


class _Private(Threads):
    def __init__(self, bound: Bound, position: int) -> None:
        super().__init__(bound.function)
        self.array = bound.function.args[position]
        updates = [op for op in walk(bound.function.body) if written_by(op) is self.array]
        self.kind: str = updates[0].attrs["kind"]
        self.places = list(dict.fromkeys(_place(op) for op in updates))
        self.threads: dict[tuple[int, ...], Value] = {}
        self.lanes = {k: v for k, v in updates[0].attrs.items() if k == "warp_aggregate"}

    def visited(self, op: Op) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw" and memory(op)[0] is self.public:
            place = _place(op)
            if place not in self.threads:
                redirected(op, self.own)
                return None
            (value,) = memory(op)[2]
            return [self.accumulated(value, self.threads[place])]
        return None

    def accumulated(self, value: Value, memref: Value) -> Value:
        """Has the thread accumulate ``value`` into its own ``memref`` of one element."""
        added = self.atomic_rmw(self.kind, value, memref, [self.index(0)])
        assert added.op is not None
        added.op.attrs["atomic"] = False
        return added

    def begin(self, width: ScalarType) -> None:
        """The block's copy, which starts at the identity."""
        self.public = self.lookup(self.array)
        type = self.public.memref
        sizes = [self.op("memref.dim", self.public, type=width, axis=k) for k in range(type.rank)]
        copy = MemRefType(type.element, type.rank, space="shared")
        self.own = self.append(Op("memref.alloca", sizes, [copy])).result
        self.count = self.constant(1, width)
        for size in sizes:
            self.count = self.mul(self.count, size, "nsw")
        self.none = self.constant(identity(self.kind, type.element), type.element)
        flat = self.flat(self.own)
        self.share(self.count, lambda k: self.store(self.none, flat, [k]))
        self.barrier()
        if None in self.places or len(self.places) > MOST:
            return
        for place in self.places:
            assert place is not None
            self.threads[place] = self.alloca(type.element, (1,))
            self.store(self.none, self.threads[place], [self.index(0)])

    def flat(self, memref: Value) -> Value:
        """All of its elements in a row."""
        type = memref.memref
        if type.rank == 1:
            return memref
        row = MemRefType(type.element, 1, space=type.space)
        return self.op("memref.flatten", memref, type=row)

    def flush(self) -> None:
        """Adds the threads' copies to the block's, and that to the argument, element by element:
        only what was accumulated into, since other elements need not be there."""
        for place, copy in self.threads.items():
            self.added(self.load(copy, [self.index(0)]), self.own, [self.index(k) for k in place])
            self.block.ops[-1].body.ops[-2].attrs |= self.lanes
        self.barrier()
        own, public = self.flat(self.own), self.flat(self.public)
        self.share(self.count, lambda k: self.added(self.load(own, [k]), public, [k]))

    def added(self, part: Value, memref: Value, indices: Sequence[Value]) -> None:
        """Accumulates ``part`` there, unless it changes nothing."""
        name, unequal = ("cmpf", "une") if part.scalar.is_float else ("cmpi", "ne")
        differs = self.op(f"arith.{name}", part, self.none, predicate=unequal)
        self.branch(differs, lambda: self.atomic_rmw(self.kind, part, memref, indices))


def _place(op: Op) -> tuple[int, ...] | None:
    """The element that ``op`` accumulates into, where numbers name it."""
    numbers = tuple(constant_of(subscript) for subscript in memory(op)[1])
    return None if None in numbers else tuple(int(k) for k in numbers if k is not None)

"""Privatize: each block accumulates into its own copy of an array, in shared memory.

The block adds its copy to the array at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import identity
from weft.ir.core import Op, Value, walk
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import memory, redirected, written_by
from weft.schedule.bind import Bound
from weft.schedule.spmd import Threads


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

    def visited(self, op: Op) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw" and memory(op)[0] is self.public:
            redirected(op, self.own)
        return None

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

    def flat(self, memref: Value) -> Value:
        """All of its elements in a row."""
        type = memref.memref
        if type.rank == 1:
            return memref
        row = MemRefType(type.element, 1, space=type.space)
        return self.op("memref.flatten", memref, type=row)

    def flush(self) -> None:
        """Adds the block's copy to the argument, element by element."""
        self.barrier()
        own, public = self.flat(self.own), self.flat(self.public)

        def add(k: Value) -> None:
            part = self.load(own, [k])
            name, unequal = ("cmpf", "une") if part.scalar.is_float else ("cmpi", "ne")
            differs = self.op(f"arith.{name}", part, self.none, predicate=unequal)
            self.branch(differs, lambda: self.atomic_rmw(self.kind, part, public, [k]))

        self.share(self.count, add)

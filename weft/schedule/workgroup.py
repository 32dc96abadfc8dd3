"""Grids for machines whose threads cannot hand each other values but through shared memory.

Shaders have workgroups (blocks) of a size that is written in them, and no lanes of a known number.
So a thread finds its iterations as elsewhere (``bind``), and a block's values are combined in a
tree of pairs in shared memory: the same bits for any device.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.core import Function, Op, Value
from weft.ir.types import MemRefType, ScalarType, i32, i64
from weft.schedule.bind import Bound, Grid
from weft.schedule.spmd import from_word, to_word

THREADS = 256  # of a block: what every WebGPU device has, at least
MOST_BLOCKS = 256  # that leave something for the second stage


def on_workgroups(function: Function, parallel: Op | None, order: Sequence[int]) -> Bound:
    """``function`` as each thread of workgroups of ``THREADS`` runs it; without ``parallel``, one
    thread runs all. ``order``: the dimensions of ``parallel``, that along x first. Partial results
    and the number of blocks are counted in 32 bits."""
    if parallel is None:
        return Bound((function,))
    nest = Workgroups(function, parallel, order, ())
    made = nest.rebuilt()
    if not nest.kinds:
        return Bound((made,))
    return Bound((made, Workgroups(function, parallel, order, ()).finish()))


class Workgroups(Grid):
    def __init__(
        self, function: Function, parallel: Op, order: Sequence[int], schedule: tuple[()]
    ) -> None:
        super().__init__(function, parallel, order, schedule)
        self.left, self.count = self.word, i32

    def to(self, value: Value, type: ScalarType, *, unsigned: bool = False) -> Value:  # type: ignore[override]
        """Places are small: they need no more than 31 bits on the way to 64."""
        if value.type is type:
            return value
        return self.op("arith.index_cast", value, type=type)

    def in_block(
        self, kinds: Sequence[str], values: list[Value], columns: int = 0, warps: int = 0,
        place: int = 0,
    ) -> list[Value]:  # fmt: skip
        """What the threads of a block hold, combined, in each of them: half of them take what the
        other half has, until one is left."""
        assert columns == warps == place == 0
        types = [v.scalar for v in values]
        words = self.shared(self.word, THREADS * len(values))
        thread, _ = self.thread()

        def at(k: int, number: Value) -> list[Value]:
            return [self.add(number, self.constant(THREADS * k, i32))]

        def put(parts: Sequence[Value]) -> None:
            for k, part in enumerate(parts):
                self.store(to_word(self, part, self.word), words, at(k, thread))

        def of(number: Value) -> list[Value]:
            loaded = [self.load(words, at(k, number)) for k in range(len(values))]
            return [from_word(self, v, t) for v, t in zip(loaded, types, strict=True)]

        put(values)
        half = THREADS // 2
        while half:
            self.barrier()
            other = self.add(thread, self.constant(half, i32))
            self.branch(
                self.compare("ult", thread, self.constant(half, i32)),
                lambda other=other: put(self.pairs(kinds, of(thread), of(other))),
            )
            half //= 2
        self.barrier()
        totals = of(self.constant(0, i32))
        self.barrier()
        return totals


def partials_of(bound: Bound) -> ScalarType | None:
    """The words that blocks leave; None where there is one stage."""
    if len(bound.stages) == 1:
        return None
    type = bound.function.args[-2].type
    assert isinstance(type, MemRefType)
    return i64 if type.element is i64 else i32

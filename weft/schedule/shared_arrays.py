"""Shared arrays: local arrays that registers cannot hold are in shared memory.

An array whose subscripts are computed is in memory. As a thread's own it is in the caches, where
what streams past in between drives it out, and what all threads of a multiprocessor have does not
fit. Here each element has a place for each thread of the block, neighbours side by side, in shared
memory. No thread waits for another: each reads what it has written.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, i32, i64, index
from weft.ir.views import memory
from weft.schedule.unroll import leaves

_TURNS = 8  # of a loop, where its bounds do not matter
_ACCESSES = ("memref.load", "memref.store", "memref.atomic_rmw")


def shared_arrays(function: Function, parallel: Op, threads: int, room: int) -> tuple[Function, Op]:
    """``function``, whose blocks have so many ``threads`` along x, with the arrays of ``parallel``
    in shared memory that ``room`` bytes hold, and its loop that was ``parallel``."""
    place = function.body.ops.index(parallel)
    taken = sum(math.prod(op.result.memref.shape or ()) * op.result.memref.element.bytes
                for op in walk(function.body)
                if op.name == "memref.alloca" and op.result.memref.space)  # fmt: skip
    chosen = fitting(parallel, threads, room - taken)
    work = _Sharing(chosen, threads)
    made = work.function(function)
    made.body.ops[:0] = work.front.ops
    return made, made.body.ops[place + len(work.front.ops)]


def fitting(
    parallel: Op, threads: int, room: int, fixed: Collection[Value] = ()
) -> list[Value]:  # fmt: skip
    """The local arrays that are in memory, those first that are accessed most often, as far as
    ``room`` bytes of shared memory reach. ``fixed``: indices of loops that are written out."""
    often: dict[Value, float] = {
        op.result: 0.0 for op in walk(parallel.body)
        if op.name == "memref.alloca" and op.result.memref.shape and not op.result.memref.space
    }  # fmt: skip
    computed: set[Value] = set()

    def count(block: Block, times: float) -> None:
        for op in block.ops:
            for array in {*op.operands} & often.keys():
                if op.name not in _ACCESSES or memory(op)[0] is not array:
                    del often[array]
                    continue
                often[array] += times
                if any(v not in fixed for v in leaves(op, array, fixed)):
                    computed.add(array)
            loop = op.name in ("scf.for", "scf.while")
            for region in op.regions:
                count(region, 0.0 if "rare" in op.attrs else times * _TURNS if loop else times)

    count(parallel.body, 1.0)
    found: list[Value] = []
    for array in sorted((a for a in often if a in computed), key=lambda array: -often[array]):
        bytes = bytes_in([array], threads)
        if bytes <= room and often[array] > 1.0:
            found.append(array)
            room -= bytes
    return found


def bytes_in(arrays: Iterable[Value], threads: int) -> int:
    """Of shared memory that ``arrays`` take in blocks of so many threads."""
    sizes = ((math.prod(m.shape or ()), m.element.bytes) for m in (a.memref for a in arrays))
    return threads * sum(count * size for count, size in sizes)


class _Sharing(Rewriter):
    """``front``: what stands before the loop over iterations."""

    def __init__(self, arrays: Sequence[Value], threads: int) -> None:
        super().__init__()
        self.threads, self.front = threads, Block()
        self.shared: dict[Value, Value] = {}
        with self.at(self.front):
            for array in arrays:
                m = array.memref
                size = math.prod(m.shape or ()) * threads
                type = MemRefType(m.element, 1, "contiguous", (size,), "shared")
                self.shared[array] = self.op("memref.alloca", type=type)

    def rewrite(self, op: Op) -> None:
        if any(result in self.shared for result in op.results):
            return
        super().rewrite(op)

    def copy(self, op: Op) -> Op:
        array = memory(op)[0] if op.name in _ACCESSES else None
        if array not in self.shared:
            return super().copy(op)
        _, subscripts, values = memory(op)
        place = self.lookup(subscripts[0])
        for size, subscript in zip((array.memref.shape or ())[1:], subscripts[1:], strict=True):
            place = self.addi(self.muli(place, self.number(size, place)), self.lookup(subscript))
        thread = self.op("gpu.thread_id", type=i32, dimension="x")
        if place.scalar is index:
            wide = self.op("arith.extui", thread, type=i64)
            thread = self.op("arith.index_cast", wide, type=index)
        at = self.addi(self.muli(place, self.number(self.threads, place)), thread)
        operands = [*map(self.lookup, values), self.shared[array], at]
        return Op(op.name, operands, [r.type for r in op.results], dict(op.attrs), span=op.span)

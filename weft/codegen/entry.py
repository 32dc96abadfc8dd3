"""The entry of a kernel on a CPU: hands the iterations of its loop to threads.

It computes how many iterations and how much work there are, has ``pool`` run the chunks, and
combines what they reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import ClassVar

from weft.codegen import pool, private
from weft.codegen.arith import combine, from_word, word
from weft.codegen.cpu_target import CpuTarget
from weft.codegen.emit import Emitter, llvm_type
from weft.codegen.interrupt import asks
from weft.codegen.llvm import loop, rows_follow
from weft.ir import trips
from weft.ir.core import Op, Value
from weft.ir.types import MemRefType
from weft.ir.views import Parallel
from weft.schedule.collapse import accessed


class Launch:
    """The parallel loop ``op`` in the entry that ``e`` writes. ``shared``: values from before it
    that its iterations use; ``private``: arrays that chunks have copies of, with their combiners.
    ``work``: how much there is."""

    def __init__(
        self, e: Emitter, op: Op, cpu: CpuTarget, shared: Sequence[Value],
        private: Mapping[Value, str], work: Value,
    ) -> None:  # fmt: skip
        self.e, self.op, self.cpu, self.work = e, op, cpu, work
        self.shared, self.private = shared, private

    def emit(self) -> None:
        e, op = self.e, self.op
        trips = [trip_count(e, *bounds) for bounds in Parallel(op).axes]
        total = _product(e, trips)
        work = e.name(self.work)
        self._flatten(trips)
        kinds: tuple[str, ...] = op.attrs["kinds"]
        partials, body, own = "null", "@body", str(len(kinds))
        alone = "true" if self.cpu.prints else "false"
        way = None
        if self.private:
            way = private.way(e, list(self.private), work)
            partials, body, own, work = way.memory, way.body, way.words, way.work
            alone = e.inst(f"or i1 {alone}, {way.alone}")
        if kinds:
            partials = e.fresh("partials")
            words = pool.MAX_CHUNKS * len(kinds)
            e.allocas.append(f"{partials} = alloca [{words} x i64], align 64")
        frame = self._frame(total, partials, (body, own), trips)
        row = str((1 << 63) - 1)
        if len(trips) > 1:
            row = e.extreme("smax", trips[-1], "1")
        e.declare(pool.DECLARATION)
        chunks = e.inst(f"call i64 @{pool.RUN}(ptr {frame}, i64 {row}, double {work}, i1 {alone})")
        if kinds:
            self._combine(partials, chunks)
        if way is not None:
            ends = [
                e.load_word(e.load_word(frame, pool.RECORD, "ptr"), 0),
                e.load_word(frame, pool.STOP),
            ]
            failed = e.inst(f"icmp ne i64 {e.inst(f'or i64 {ends[0]}, {ends[1]}')}, 0")
            private.added(e, self.private, way, chunks, failed)

    def _frame(self, total: str, partials: str, chunk: tuple[str, str], own: list[str]) -> str:
        """What the pool and the chunks are told: a block of words. ``chunk``: the function that
        runs one, and the words of its own among the ``partials``."""
        e = self.e
        frame = e.fresh("frame")
        size = pool.FIRST + len(own) + len(self.shared)
        e.allocas.append(f"{frame} = alloca [{size} x i64], align 64")
        record = self.cpu.record if self.cpu.checks else e.place(frame, pool.STOP)
        words = {
            pool.SLOTS: ("ptr", "%slots"), pool.TOTAL: ("i64", total),
            pool.PARTIALS: ("ptr", partials), pool.STOP: ("i64", "0"),
            pool.CHUNK: ("ptr", chunk[0]), pool.KINDS: ("i64", chunk[1]),
            pool.RECORD: ("ptr", record), pool.WAITS: ("i64", str(int(asks(self.op)))),
        }  # fmt: skip
        words |= {k: ("i64", count) for k, count in enumerate(own, pool.FIRST)}
        for k, value in enumerate(self.shared, pool.FIRST + len(own)):
            if isinstance(value.type, MemRefType):
                words[k] = ("ptr", e.name(value))
            else:
                words[k] = ("i64", word(e, e.name(value), value.scalar))
        for k, (ty, value) in words.items():
            e.line(f"store {ty} {value}, ptr {e.place(frame, k)}")
        return frame

    def _flatten(self, trips: list[str]) -> None:
        """Makes ``trips`` count neighbouring indices as one, where these may be collapsed."""
        e, body = self.e, self.op.body
        allowed, deeper = "true", trips[-1]
        for behind in range(self.op.attrs.get("collapse", 0)):
            axis = len(trips) - 2 - behind
            memrefs = accessed(body, body.args[axis + 1])
            same = rows_follow(e, memrefs, behind, trips[axis + 1], deeper)
            allowed = e.inst(f"and i1 {allowed}, {same}")
            deeper = e.inst(f"mul nsw i64 {deeper}, {trips[axis]}")
            one = e.inst(f"select i1 {allowed}, i64 1, i64 {trips[axis]}")
            trips[-1] = e.inst(f"select i1 {allowed}, i64 {deeper}, i64 {trips[-1]}")
            trips[axis] = one

    def _combine(self, partials: str, chunks: str) -> None:
        """The initial values with what each chunk reduced, in the order of the chunks."""
        e, op, kinds = self.e, self.op, self.op.attrs["kinds"]
        types = [v.scalar for v in op.results]
        inits = [e.name(v) for v in Parallel(op).inits]

        def body(chunk: str, carried: list[str]) -> list[str]:
            first = e.inst(f"mul nsw i64 {chunk}, {len(kinds)}")
            row = e.inst(f"getelementptr i64, ptr {partials}, i64 {first}")
            parts = [from_word(e, e.load_word(row, k), t) for k, t in enumerate(types)]
            return combine_all(e, op, carried, parts)

        # Short, and LLVM would take as long to make vectors of it as of the loop.
        plain = e.module.node('!{!"llvm.loop.disable_nonforced"}')
        metadata = e.module.node(f"!{{{{self}}, {plain}}}")
        names = [llvm_type(t) for t in types]
        results = loop(e, "0", chunks, "1", inits, names, body, metadata=metadata)
        e.names.update(zip(op.results, results, strict=True))


def combine_all(e: Emitter, op: Op, left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Combines the values of a loop's reductions, pair by pair."""
    rows = zip(op.attrs["kinds"], op.results, left, right, strict=True)
    return [combine(e, kind, value.scalar, a, b) for kind, value, a, b in rows]


def _product(e: Emitter, factors: Sequence[str]) -> str:
    return functools.reduce(lambda a, b: e.inst(f"mul nsw i64 {a}, {b}"), factors)


class Instructions:
    """Integers of LLVM's type ``ty``, by their names."""

    # The dividend of a trip count is never negative, and may need all bits.
    _OPS: ClassVar = {"addi": "add", "subi": "sub nsw", "floordivsi": "udiv"}

    def __init__(self, e: Emitter, ty: str) -> None:
        self.e = e
        self.ty = ty

    def constant(self, value: str) -> int | None:
        return None if value.startswith("%") else int(value)

    def number(self, value: int) -> str:
        return str(value)

    def op(self, name: str, a: str, b: str) -> str:
        if name == "maxsi":
            return self.e.extreme("smax", a, b, self.ty)
        return self.e.inst(f"{self._OPS[name]} {self.ty} {a}, {b}")


def trip_count(e: Emitter, lower: Value, upper: Value, step: Value, ty: str = "i64") -> str:
    """How many iterations a loop with these bounds has."""
    return trips.trip_count(Instructions(e, ty), e.name(lower), e.name(upper), e.name(step))

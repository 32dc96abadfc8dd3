"""Privatisation on a CPU: each chunk accumulates into its own copy of an array, without atomics.

What comes out decides how a call accumulates: in copies, which are added to the array in the order
of the chunks; plainly, in chunks one after the other, where one thread runs the loop; or by atomic
operations. Where chunks begin depends on the sizes alone, and so do the bits of sums in copies.
The loop with atomic operations may be "rare": compiled when a call takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.ir.builder import identity
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, f64, i64, index
from weft.ir.views import For, memory, redirected
from weft.schedule.chunks import Chunks
from weft.schedule.variation import Variation

MOST = 64  # copies
BYTES = 16 << 20  # of all copies
COST = 16  # operations of a chunk that pay for an element of a copy: cleared, and added
LANES = 4  # times as many of chunks that accumulate rows, by vectors as copies are


def copies(function: Function, parallel: Op, arrays: Mapping[int, str]) -> Function:
    """``function``, in which threads share ``parallel``, its outermost loop, and chunks may have
    copies of ``arrays``: which arguments, and the combiners of their elements."""
    return _Copies(function, parallel, arrays).function(function)


class _Copies(Chunks):
    def __init__(self, function: Function, parallel: Op, arrays: Mapping[int, str]) -> None:
        super().__init__(parallel)
        self.arrays = {function.args[k]: kind for k, kind in arrays.items()}
        self.own: dict[Value, Value] = {}  # what a chunk accumulates into in place of an array
        # Few calls, and none of one thread, accumulate by atomic operations: the most elements for
        # the least work. Their loop takes as long to compile as that of all others.
        self.leaves_out = function.attrs.get("columns") == "many"

    def visited(self, op: Op) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw" and (own := self.own.get(memory(op)[0])) is not None:
            redirected(op, own)
            op.attrs["atomic"] = False
        return None

    def shared(self) -> list[Value]:
        none, one = self.index(0), self.index(1)
        arrays = {self.lookup(array): kind for array, kind in self.arrays.items()}
        sizes = [self._elements(array) for array in arrays]
        types = [MemRefType(a.memref.element, a.memref.rank + 1, "strided") for a in arrays]
        wanted = self._wanted([a.memref.element.bytes for a in arrays], sizes)
        made = self.append(Op("weft.copies", [wanted, *arrays], [index, *types]))
        count, *every = made.results
        if self.leaves_out:
            count = self._or_alone(count)
        several, partial = self.more(count, one), self.partial()

        def each(number: Value, do: Callable[[Value, str, Value, Value], None]) -> None:
            """``do`` (array, combiner, the chunk's copy, number of elements)."""
            for (array, kind), all_of_it, size in zip(arrays.items(), every, sizes, strict=True):
                type = array.memref
                own = self.op("weft.copy_of", all_of_it, number, array, type=type)
                do(array, kind, own, size)

        def clear(array: Value, kind: str, own: Value, size: Value) -> None:
            self.own[array] = own
            nothing = self.constant(identity(kind, own.memref.element), own.memref.element)
            row = self._flat(own)
            with self.when(several):
                self._elementwise(size, lambda k: self.store(nothing, row, [k]))

        def add(array: Value, kind: str, own: Value, size: Value) -> None:
            into, part = self._flat(array), self._flat(own)

            def one_element(k: Value) -> None:
                a, b = self.load(into, [k]), self.load(part, [k])
                self.store(self.op(f"arith.{kind}", a, b), into, [k])

            self._elementwise(size, one_element)

        def plainly() -> list[Value]:
            wished = self.op("arith.sitofp", self._word(count), type=f64)
            size, chunks = self.cut(self.op("arith.select", several, wished, self.wished))
            turns = self.op("arith.select", several, one, chunks)
            beside = self.op("arith.select", several, chunks, one)
            loop = self.for_(none, turns, one, poll=1)
            turn = loop.body.args[0]

            def chunk(number: Value) -> None:
                number = self.op("arith.addi", turn, number, overflow="nsw")
                each(number, clear)
                self.reduce(number, size, partial)

            self.fill(loop.body, lambda: self.share(beside, chunk))
            self.own.clear()
            with self.when(several):
                self._elementwise(chunks, lambda number: each(number, add))
            return self.combined(chunks, partial)

        def atomically() -> list[Value]:
            self.rare = self.leaves_out
            return super(_Copies, self).shared()

        types = [value.type for value in self.old.results]
        return self.either(self.more(count, none), plainly, atomically, types)

    def _or_alone(self, count: Value) -> Value:
        """One thread where there should be atomic operations, also for want of memory for copies,
        and the loop with them cannot be had."""
        none, one = self.index(0), self.index(1)
        atomic = self.op("arith.cmpi", count, none, predicate="eq")

        def asked() -> list[Value]:
            return [self.op("arith.select", self.op("weft.rare"), none, one)]

        (found,) = self.either(atomic, asked, lambda: [count], [index])
        return found

    def _wanted(self, widths: Sequence[int], sizes: Sequence[Value]) -> Value:
        """How many copies pay. 0: atomic operations do; 1: one thread accumulates plainly. Where
        the loop reduces, too, chunks are as many as copies would pay for, with any number of
        threads: bits of reductions depend on that."""
        none, one, most = self.index(0), self.index(1), self.constant(float(MOST), f64)
        reduces = bool(self.loop.kinds)
        chunks = self.whole(self.op("arith.minimumf", self.wished, most))

        def number(value: Value) -> Value:
            return self.op("arith.sitofp", self._word(value), type=f64)

        def enough() -> list[Value]:
            elements = bytes = none
            for width, size in zip(widths, sizes, strict=True):
                elements = self.addi(elements, size)
                bytes = self.addi(bytes, self.muli(size, self.index(width)))
            fit = self.op("arith.maxsi", bytes, one)
            fit = self.op("arith.divui", self.index(BYTES), fit, nonzero=True)
            cost = float(COST * LANES if self._in_rows() else COST)
            paid = self.op("arith.mulf", number(elements), self.constant(cost, f64))
            paid = self.op("arith.divf", self.work, paid)
            paid = self.whole(self.op("arith.minimumf", paid, most))
            count = self.op("arith.minsi", self.op("arith.minsi", fit, paid), chunks)
            threads = self.op("weft.threads")
            busy = self.op("arith.minsi", threads, chunks)
            least = self.op("arith.maxsi", busy, self.index(2))
            other = self.op("arith.select", self.more(threads, one), none, one)
            enough = self.op("arith.cmpi", count, least, predicate="sge")
            found = [self.op("arith.select", enough, count, other)]
            if reduces:
                paid = self.more(count, one)
                found.append(self.op("arith.select", paid, number(count), self.wished))
            return found

        alone, types = [one, self.wished][: 1 + reduces], [index, f64][: 1 + reduces]
        found, *cut = self.either(self.more(chunks, one), enough, lambda: alone, types)
        self.wished = next(iter(cut), self.wished)
        return found

    def _in_rows(self) -> bool:
        """Whether every accumulation goes along rows in a loop without loops."""
        body = self.old.body
        updates = {op for op in walk(body) if op.name == "memref.atomic_rmw"
                   and memory(op)[0] in self.arrays}  # fmt: skip
        loops = [op for op in walk(body) if op.name == "scf.for"]
        for block, at in [(loop.body, For(loop).index) for loop in loops] + [(body, body.args[-1])]:
            if not any(op.name == "scf.for" for op in walk(block)):
                along = Variation(block, {at: 1})
                updates -= {op for op in walk(block) if op in updates and along.stride(op) == 1}
        return not updates

    def whole(self, number: Value) -> Value:
        """A float, cut to an index."""
        return self.op("arith.index_cast", self.op("arith.fptosi", number, type=i64), type=index)

    def more(self, a: Value, b: Value) -> Value:
        return self.op("arith.cmpi", a, b, predicate="sgt")

    def _word(self, value: Value) -> Value:
        return self.op("arith.index_cast", value, type=i64)

    def _elements(self, array: Value) -> Value:
        count = self.index(1)
        for axis in range(array.memref.rank):
            size = self.op("memref.dim", array, axis=axis)
            count = self.op("arith.muli", count, size, overflow="nsw")
        return count

    def _flat(self, array: Value) -> Value:
        """All elements in a row."""
        return self.op("memref.flatten", array, type=MemRefType(array.memref.element, 1))

    def _elementwise(self, count: Value, body: Callable[[Value], object]) -> None:
        """``body`` for every number below ``count``."""
        self.nest([lambda: count], lambda at: body(at[0]))

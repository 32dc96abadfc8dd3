"""Privatisation on a CPU: each chunk accumulates into its own copy of an array, without atomics.

What comes out decides how a call accumulates: in copies, which are added to the array in the order
of the chunks; plainly, in chunks one after the other, where one thread runs the loop; or by atomic
operations. Where chunks begin depends on the sizes alone, and so do the bits of sums in copies.
The loop with atomic operations may be "rare": compiled when a call takes it.

Where only iterations of one *slice* meet, those with the same first parallel indices
(``index.leading``), and there are as many slices as threads, chunks are whole slices and accumulate
plainly, into no copies: what an element accumulates is in the order of the iterations, with any
such number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from weft.index.access import accesses
from weft.index.leading import leading
from weft.ir.builder import identity
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, f64, i1, i64, index
from weft.ir.views import For, memory, redirected
from weft.schedule.chunks import ONE_ROW, Chunks
from weft.schedule.variation import Variation
from weft.values import frozen

MOST = 64  # copies
BYTES = 16 << 20  # of all copies
COST = 16  # operations of a chunk that pay for an element of a copy: cleared, and added
LANES = 4  # times as many of chunks that accumulate rows, by vectors as copies are


def copies(function: Function, parallel: Op, arrays: Mapping[int, str], leading: int) -> Function:
    """``function``, in which threads share ``parallel``, its outermost loop, and chunks may have
    copies of ``arrays``: which arguments, and the combiners of their elements. ``leading``: how
    many parallel indices keep apart what iterations accumulate; ``arrays`` may be none then."""
    return _Copies(function, parallel, arrays, leading).function(function)


def by_slices(function: Function, parallel: Op, arrays: Collection[int]) -> int:
    """The number of parallel indices, 0 if it is none, that keep apart what iterations of
    ``parallel`` accumulate by atomic operations: into ``arrays``, or wherever there are none."""
    updates = [op for op in walk(parallel.body) if op.name == "memref.atomic_rmw"]
    into = {memory(op)[0] for op in updates if op.attrs["atomic"]}
    fits = into and len(parallel.body.args) > 1 and function.attrs.get("noalias")
    if not fits or (arrays and into != {function.args[k] for k in arrays}):
        return 0
    return leading(accesses(function), into)


@frozen
class _Slices:
    """The iterations with the same leading indices, of which there are ``count``, and ``length``
    have one of these. ``enough``: whether they need no copies; ``whole``: whether chunks are whole
    slices then."""

    count: Value
    length: Value
    enough: Value
    whole: Value


class _Copies(Chunks):
    def __init__(
        self, function: Function, parallel: Op, arrays: Mapping[int, str], leading: int
    ) -> None:
        super().__init__(parallel)
        self.leading = leading
        self.slices: _Slices | None = None  # known in front of the loop, if it has some
        self.in_order = False  # whether what is built accumulates plainly, into no copies
        self.arrays = {function.args[k]: kind for k, kind in arrays.items()}
        self.own: dict[Value, Value] = {}  # what a chunk accumulates into in place of an array
        # Few calls, and none of one thread, accumulate by atomic operations: the most elements for
        # the least work. Their loop takes as long to compile as that of all others.
        self.leaves_out = function.attrs.get("columns") == "many"

    def visited(self, op: Op) -> Sequence[Value] | None:
        if op.name == "memref.atomic_rmw" and (own := self.own.get(memory(op)[0])) is not None:
            redirected(op, own)
            op.attrs["atomic"] = False
        elif op.name == "memref.atomic_rmw" and self.in_order:
            op.attrs["atomic"] = False
        return None

    @property
    def _plain(self) -> bool:
        return super()._plain and not self.in_order

    def shared(self) -> list[Value]:
        none, one = self.index(0), self.index(1)
        if self.leading:
            self.slices = self._in_slices()
        arrays = {self.lookup(array): kind for array, kind in self.arrays.items()}
        sizes = [self._elements(array) for array in arrays]
        types = [MemRefType(a.memref.element, a.memref.rank + 1, "strided") for a in arrays]
        if arrays:
            wanted = self._wanted([a.memref.element.bytes for a in arrays], sizes)
            made = self.append(Op("weft.copies", [wanted, *arrays], [index, *types]))
            count, *every = made.results
        else:
            count, every = self._alone(), list[Value]()
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
            together, usual = several, size
            if self.slices is not None:
                together = self.op("arith.ori", several, self.slices.whole)
                usual, _ = super(_Copies, self).cut(self.wished)
            turns = self.op("arith.select", together, one, chunks)
            beside = self.op("arith.select", together, chunks, one)
            self.in_order = not arrays
            loop = self.for_(none, turns, one, poll=1)
            turn = loop.body.args[0]

            def chunk(number: Value) -> None:
                number = self.op("arith.addi", turn, number, overflow="nsw")
                each(number, clear)
                if self.slices is None or partial:
                    self.reduce(number, size, partial)
                else:
                    self._in_parts(number, size, usual)

            self.fill(loop.body, lambda: self.share(beside, chunk))
            self.own.clear()
            self.in_order = False
            if arrays:
                with self.when(several):
                    self._elementwise(chunks, lambda number: each(number, add))
            return self.combined(chunks, partial)

        def atomically() -> list[Value]:
            self.rare, self.slices = self.leaves_out, None
            return super(_Copies, self).shared()

        types = [value.type for value in self.old.results]
        return self.either(self.more(count, none), plainly, atomically, types)

    def cut(self, wished: Value) -> tuple[Value, Value]:
        if self.slices is None:
            return super().cut(wished)
        slices = self.slices

        def whole() -> list[Value]:
            row = self.index(ONE_ROW)
            made = self.append(Op("weft.chunks", [slices.count, row, wished], [index, index]))
            size, chunks = made.results
            return [self.op("arith.muli", size, slices.length, overflow="nsw"), chunks]

        def anywhere() -> list[Value]:
            return list(super(_Copies, self).cut(wished))

        size, chunks = self.either(slices.whole, whole, anywhere, [index, index])
        return size, chunks

    def _in_parts(self, number: Value, size: Value, usual: Value) -> None:
        """Chunk ``number``, which may take long, in as many iterations at a time as chunks that are
        no whole slices have: whether it has to end is asked between them."""
        begin, end = self.ends(number, size)
        loop = self.for_(begin, end, usual, poll=1)
        at = loop.body.args[0]

        def part() -> None:
            behind = self.op("arith.addi", at, usual, overflow="nsw")
            self.carried_out(at, self.op("arith.minsi", behind, end))

        self.fill(loop.body, part)

    def _in_slices(self) -> _Slices:
        """They are enough where all threads have some. Where the loop reduces, too, its bits are
        not to depend on the number of threads: many are enough then."""
        outer, inner = self.trips[: self.leading], self.trips[self.leading :]
        count, length = self.product(outer), self.product(inner)
        count = self.op("arith.minsi", count, self.total)  # none, where nothing is in them
        if self.loop.kinds:
            enough = whole = self.more(count, self.index(MOST - 1))
        else:
            threads = self.op("weft.threads")
            enough = self.op("arith.cmpi", count, threads, predicate="sge")
            several = self.more(threads, self.index(1))
            whole = self.op("arith.andi", enough, several)
        return _Slices(count, length, enough, whole)

    def _alone(self) -> Value:
        """One where threads are not in each other's way, else none: atomic operations."""
        none, one = self.index(0), self.index(1)
        plain = self.op("arith.cmpi", self.op("weft.threads"), one, predicate="sle")
        if self.slices is not None:
            plain = self.op("arith.ori", plain, self.slices.enough)
        return self.op("arith.select", plain, one, none)

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
        shared = self.more(chunks, one)
        if self.slices is not None:  # these need no copies
            shared = self.op("arith.select", self.slices.enough, self.constant(False, i1), shared)
        found, *cut = self.either(shared, enough, lambda: alone, types)
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

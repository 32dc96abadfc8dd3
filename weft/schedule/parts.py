"""Parts: threads share the serial loops of iterations that are too few for them.

``for j: s = sum over i`` of few ``j`` gives one thread all of the work. Such a serial loop is cut
into parts; what a part comes to goes into a copy of the array that iterations store to, and a
serial loop combines the copies in the order of the parts. How many there are depends on the sizes
alone, and so do the bits of sums.

``in_parts`` comes before the steps of a schedule. It gives the serial loop bounds of its own and
adds the loop that combines: IR that means what it meant, in which operations marked ``part`` say
what a part has otherwise ("begin", "end", "first"), how much there is to do ("work"), and what
happens where there are several ("combine"). ``Parts`` cuts it into chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter, identity
from weft.ir.core import Block, Function, Op, Value, defined, walk
from weft.ir.made import pure_parts
from weft.ir.ops import OPS
from weft.ir.trips import trip_count
from weft.ir.types import MemRefType, f64, i1, i64, index
from weft.ir.views import For, If, Parallel, constant_of, is_constant, memory, redirected
from weft.schedule.chunks import Chunks, Counts
from weft.schedule.combiners import INEXACT, combiners
from weft.schedule.variation import Variation
from weft.schedule.work import work
from weft.values import frozen

MOST = 64  # parts
FEW = 4096  # iterations of all parts together, beyond which there are no more parts
LEAST = 64  # turns of a part
BYTES = 1 << 20  # of all copies
COLUMNS = 64  # iterations of a chunk without parts, where vectors go across iterations


@frozen
class _Reduction:
    """The serial loop of an iteration, and of each value that it carries: the combiner, and the
    store of it."""

    loop: Op
    kinds: list[str]
    stores: list[Op]

    def along_rows(self, iteration: Block) -> bool:
        """Whether the loop goes along rows, of which iterations have different ones: then one of
        them has work for vectors."""
        turns = Variation(self.loop.body, {For(self.loop).index: 1})
        columns = Variation(iteration, {iteration.args[-1]: 1})
        loads = [op for op in walk(self.loop.body) if op.name == "memref.load"]
        return any(turns.stride(op) in (1, -1) and columns.stride(op) != 0 for op in loads)


def in_parts(function: Function, parallel: Op) -> tuple[Function, Op]:
    """``function`` with marks, and its loop that was ``parallel``; both as they are where
    iterations have more than one serial loop, or do more with what it comes to than store it."""
    found = _reduction(function, parallel)
    if found is None:
        return function, parallel
    made = _Marks(parallel, found)
    return made.function(function), made.loop


def has_parts(function: Function) -> bool:
    """Whether ``function`` has such marks."""
    return any("part" in op.attrs for op in function.body.ops)


def _reduction(function: Function, parallel: Op) -> _Reduction | None:
    body = parallel.body
    loops = [op for op in body.ops if op.regions]
    if not function.attrs.get("noalias") or parallel.attrs["kinds"] or len(loops) != 1:
        return None
    (loop,) = loops
    if loop.name != "scf.for" or "short" in loop.attrs or not loop.results:
        return None
    inside, bounds = defined([body]), For(loop).bounds
    if bounds[0].type is not index or not is_constant(bounds[2], 1):
        return None
    first, last = constant_of(bounds[0]), constant_of(bounds[1])
    if first is not None and last is not None and last - first < 2 * LEAST:
        return None  # a part of all, whatever the sizes are
    stores = [op for op in body.ops if op.name == "memref.store"]
    arrays = [memory(op)[0] for op in stores]
    users = [op for op in walk(body) for v in op.operands if v in loop.results]
    if not inside.isdisjoint(bounds) or len({*arrays}) < len(stores) or len(users) != len(stores):
        return None
    kinds, own = combiners(loop).kinds, list[Op]()
    for result, kind in zip(loop.results, kinds, strict=True):
        store = next((op for op in stores if memory(op)[2] == [result]), None)
        if store is None or kind is None or kind not in _KINDS or result.scalar is i1:
            return None
        if kind in INEXACT and function.strict:
            return None
        memref, at, _ = memory(store)
        fits = memref in function.args and memref.memref.layout == "contiguous"
        made = pure_parts(at, inside.difference(body.args))
        if not fits or memref.memref.element is not result.type or made is None:
            return None
        own.append(store)
    for op in walk(body):
        plain = OPS[op.name].pure or OPS[op.name].terminator or op in stores
        reads = op.name == "memref.load" and not (
            memory(op)[0] in arrays and op not in body.ops[: body.ops.index(loop)]
        )
        if not plain and not reads and op.name not in ("scf.for", "scf.if", "scf.while"):
            return None
    return _Reduction(loop, [kind for kind in kinds if kind], own)


# Products have parts where iterations accumulate into memory only: 1e30 * 1e30 * 1e-30 * 1e-30.
_KINDS = {
    "addf", "maximumf", "minimumf", "maxnumf", "minnumf", "addi", "muli", "maxsi", "minsi",
    "maxui", "minui", "andi", "ori", "xori",
}  # fmt: skip


class _Marks(Rewriter):
    def __init__(self, parallel: Op, found: _Reduction) -> None:
        super().__init__(None, self._around)
        self.old, self.found, self.rows = parallel, found, found.along_rows(parallel.body)
        self.loop = parallel  # until it is met
        self.begin = self.end = self.first = For(found.loop).lower  # likewise

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op is self.found.loop:
            return self._serial(op)
        if op is not self.old:
            return None
        lower, upper, _step = map(self.lookup, For(self.found.loop).bounds)
        none = self.index(0)
        self.begin = self.op("arith.addi", lower, none, part="begin")
        self.end = self.op("arith.addi", upper, none, part="end")
        self.first = self.op("arith.constant", type=i1, value=True, part="first")
        axes = Parallel(op).axes
        trips = [trip_count(Counts(self, index), *map(self.lookup, axis)) for axis in axes]
        self._named("work", work(self, op, trips))
        self.loop = self.copy(op)
        self.region(op.body, self.loop.body)
        self.append(self.loop)
        self._combine()
        return []

    def _named(self, part: str, value: Value) -> None:
        assert value.op is not None
        value.op.attrs["part"] = part

    def _serial(self, op: Op) -> list[Value]:
        """The serial loop, in which parts but the first begin at what changes nothing."""
        inits = list[Value]()
        for kind, init in zip(self.found.kinds, map(self.lookup, For(op).inits), strict=True):
            begin = identity(kind, init.scalar)
            same = constant_of(init) == begin or kind.startswith(("max", "min", "and", "or"))
            if not same:
                nothing = self.constant(begin, init.scalar)
                init = self.op("arith.select", self.first, init, nothing)
            inits.append(init)
        step = self.lookup(For(op).step)
        made = self.for_(self.begin, self.end, step, inits, **op.attrs)
        self.region(op.body, made.body)
        return made.results

    def _combine(self) -> None:
        """``s[j] = s[j]`` for every iteration, where there are several parts."""
        several = self.constant(False, i1)
        made = self.if_(several)
        made.attrs |= {"part": "combine", "alone": 1 if self.rows else COLUMNS}
        inside, old = defined([self.old.body]), self.old.body
        axes = [list(map(self.lookup, axis)) for axis in Parallel(self.old).axes]

        def element(at: Sequence[Value]) -> None:
            known = dict(zip(old.args, at, strict=True))
            for kind, store in zip(self.found.kinds, self.found.stores, strict=True):
                array, subscripts, _ = memory(store)
                here = [self.in_front(v, inside, known) for v in subscripts]
                value = self.load(self.lookup(array), here)
                assert value.op is not None
                value.op.attrs["combiner"] = kind
                self.store(value, self.lookup(array), here)

        def nest(at: list[Value]) -> None:
            if len(at) == len(axes):
                element(at)
                return
            lower, upper, step = axes[len(at)]
            loop = self.for_(lower, upper, step, short=True)
            self.fill(loop.body, lambda: nest([*at, loop.body.args[0]]))

        self.fill(If(made).then, lambda: nest([]))
        self.fill(If(made).otherwise, lambda: None)


class Parts(Chunks):
    """A function with marks, whose loop is ``parallel``."""

    def __init__(self, function: Function, parallel: Op) -> None:
        super().__init__(parallel)
        self.marks: dict[str, Op] = {
            op.attrs["part"]: op for op in function.body.ops if "part" in op.attrs
        }
        region = If(self.marks["combine"]).then
        loads = [op for op in walk(region) if op.name == "memref.load"]
        self.arrays = {memory(op)[0]: op.attrs["combiner"] for op in loads}
        self.iterations = self._iterations(region.ops[0])
        self.parts = self.several = self.loop.lowers[0]  # until the loop is met
        self.copies: dict[Value, Value] = {}  # of each array
        self.own: dict[Value, Value] = {}  # where a part stores in place of an array

    def _iterations(self, op: Op) -> list[tuple[Value, Value, Value]]:
        """The axes of the loop in which iterations are as the source has them."""
        inner = next((o for o in op.body.ops if o.name == "scf.for"), None)
        return [For(op).bounds, *(self._iterations(inner) if inner is not None else ())]

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op is self.marks["combine"]:
            return self._combined_copies(op)
        return super()._around(op, _)

    def estimated(self, trips: Sequence[Value]) -> Value:
        """The operations before any step: the size of strips depends on threads, and parts must
        not."""
        return self.lookup(self.marks["work"].result)

    def visited(self, op: Op) -> Sequence[Value] | None:
        """What an iteration begins with it loads from the array itself."""
        if op.name == "memref.store" and (own := self.own.get(memory(op)[0])) is not None:
            redirected(op, own)
        return None

    def shared(self) -> list[Value]:
        one = self.index(1)
        begin, end = (self.lookup(self.marks[part].result) for part in ("begin", "end"))
        turns = self.op("arith.subi", end, begin, overflow="nsw")
        arrays = list(map(self.lookup, self.arrays))
        made = self.append(Op("weft.copies", [self._wanted(arrays, turns), *arrays], [
            index, *(MemRefType(a.memref.element, a.memref.rank + 1, "strided") for a in arrays),
        ]))  # fmt: skip
        given, *every = made.results
        self.copies = dict(zip(arrays, every, strict=True))
        self.parts = self.op("arith.maxsi", given, one)
        self.several = self.op("arith.cmpi", given, one, predicate="sgt")
        length = self.trip_count(begin, end, self.parts)
        number = self.op("arith.sitofp", self._word(self.parts), type=f64)
        size, count = self.cut(self.op("arith.divf", self.wished, number))

        def chunk(number: Value) -> None:
            part = self.op("arith.floordivsi", number, count)
            before = self.op("arith.muli", part, count, overflow="nsw")
            number = self.op("arith.subi", number, before, overflow="nsw")
            first = self.op("arith.muli", part, length, overflow="nsw")
            first = self.op("arith.minsi", self.op("arith.addi", begin, first), end)
            last = self.op("arith.minsi", self.op("arith.addi", first, length), end)
            is_first = self.op("arith.cmpi", part, self.index(0), predicate="eq")
            self.own = {array: self._copy(array, part) for array in arrays}
            outside = dict(self.replacement)
            for name, value in (("begin", first), ("end", last), ("first", is_first)):
                self.replacement[self.marks[name].result] = value
            self.range(number, size)
            self.replacement = outside
            self.own.clear()

        self.share(self.op("arith.muli", self.parts, count), chunk)
        return []

    def _copy(self, array: Value, part: Value) -> Value:
        return self.op("weft.copy_of", self.copies[array], part, array, type=array.memref)

    def _wanted(self, arrays: Sequence[Value], turns: Value) -> Value:
        """How many parts pay: with chunks of iterations, as many chunks as there should be."""
        trips = [self.trip_count(*map(self.lookup, axis)) for axis in self.iterations]
        one = self.index(1)
        every = self.op("arith.maxsi", self.product(trips), one)
        bytes = self.index(0)
        for array in arrays:
            sizes = [self.op("memref.dim", array, axis=k) for k in range(array.memref.rank)]
            bytes = self.addi(bytes, self.product([*sizes, self.index(array.memref.element.bytes)]))
        bytes = self.op("arith.maxsi", bytes, one)
        found = self.index(MOST)
        for most, each in ((FEW, every), (BYTES, bytes)):
            quotient = self.op("arith.divui", self.index(most), each, nonzero=True)
            found = self.op("arith.minsi", found, quotient)
        found = self.op("arith.minsi", found, self.op("arith.floordivsi", turns, self.index(LEAST)))
        wished = self.op("arith.minimumf", self.wished, self.constant(float(MOST), f64))
        wished = self.op("arith.index_cast", self.op("arith.fptosi", wished, type=i64), type=index)
        alone = self.index(self.marks["combine"].attrs["alone"])
        without = self.op("arith.maxsi", self.op("arith.divui", every, alone, nonzero=True), one)
        return self.op("arith.minsi", found, self.op("arith.divui", wished, without, nonzero=True))

    def _word(self, value: Value) -> Value:
        return self.op("arith.index_cast", value, type=i64)

    def _combined_copies(self, op: Op) -> list[Value]:
        """The loop that combines what parts came to."""
        with self.when(self.several):
            for inner in If(op).then.ops[:-1]:
                self._rebuilt(inner)
        return []

    def _rebuilt(self, op: Op) -> None:
        if op.name == "scf.for":
            made = self.copy(op)
            self.stand_for(op.body.args, made.body.args)
            with self.at(made.body):
                for inner in op.body.ops[:-1]:
                    self._rebuilt(inner)
                self.do("scf.yield")
            self.append(made)
        elif op.name == "memref.load":
            array, at, _ = memory(op)
            array, at = self.lookup(array), list(map(self.lookup, at))
            first = self.load(self._copy(array, self.index(0)), at)
            loop = self.for_(self.index(1), self.parts, self.index(1), [first], short=True)
            part, before = loop.body.args
            self.fill(loop.body, lambda: [self._combined(
                op.attrs["combiner"], before, self.load(self._copy(array, part), at)
            )])  # fmt: skip
            self.stand_for(op.results, loop.results)
        else:
            self.rewrite(op)

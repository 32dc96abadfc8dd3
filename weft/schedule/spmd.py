"""What each thread of a grid runs, as IR: the places of threads, and what those of a block combine.

``Places`` rebuilds a function as one that a grid runs. Its arithmetic promises what LLVM cannot
see: places are small numbers that are not negative, so sums and products of them do not wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from weft.ir import trips
from weft.ir.builder import Integers, Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, Type, i32, i64, index
from weft.ir.uniform import GROUP, WARP
from weft.ir.views import Parallel, constant_of
from weft.schedule.combiners import is_joint, merged, neutral

Bounds = tuple[Value, Value, Value]  # lower, upper, step
_CHECKS = ("weft.assert", "weft.bounds")

# The attribute of a function whose threads have no lanes, and hand each other values in the memory
# of a block (a workgroup): the threads of one along x, y and z. Places have 32 bits there, and so
# have the words that blocks leave, but for values of 64.
WORKGROUP = "workgroup"


class Places(Rewriter):
    """Rebuilds ``function``."""

    def __init__(self, function: Function) -> None:
        super().__init__(lambda op, rewriter: self.visited(op), self.entered)
        self.old = function
        self.checked = any(op.name in _CHECKS for op in walk(function.body))
        # What threads of a block hand over is in words of one kind, whose memory is used again.
        handed = (
            v for op in walk(function.body) if op.name == "scf.parallel" or "team" in op.attrs
            for v in op.results
        )  # fmt: skip
        self.word = i64 if any(v.scalar.bits == 64 for v in handed) else i32
        self.workgroup: tuple[int, int, int] | None = function.attrs.get(WORKGROUP)
        self.left_word, self.tally = (i64, index) if self.workgroup is None else (self.word, i32)

    def visited(self, op: Op) -> Sequence[Value] | None:
        """See ``Rewriter.visit``."""
        return None

    def entered(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        """See ``Rewriter.around``."""
        return None

    def inline(self, old: Block, args: Sequence[Value]) -> list[Value]:
        for before, after in zip(old.args, args, strict=True):
            after.name = after.name or before.name
        return super().inline(old, args)

    def start(self, group: int, more: Sequence[tuple[str, Type]] = ()) -> Function:
        """The new function, without its body: with the arguments of the old one, and ``more``."""
        args = [(a.name, a.type) for a in self.old.args] + [*more]
        attrs = {**self.old.attrs, GROUP: group}
        new = Function(self.old.name, [t for _, t in args], [n for n, _ in args], attrs)
        self.block = self.top = new.body
        self.buffers: dict[ScalarType, Value] = {}
        for old, made in zip(self.old.args, new.args, strict=False):
            self.replacement[old] = made
        return new

    # -- numbers

    def add(self, a: Value, b: Value, overflow: str = "nuw nsw") -> Value:
        return self.op("arith.addi", a, b, overflow=overflow)

    def mul(self, a: Value, b: Value, overflow: str = "nuw nsw") -> Value:
        return self.op("arith.muli", a, b, overflow=overflow)

    def to(self, value: Value, type: Type, *, unsigned: bool = False) -> Value:
        """An integer in another width: an ``index``, or an i32."""
        if value.type is type:
            return value
        if unsigned and type is index and self.workgroup is None:
            value = self.op("arith.extui", value, type=i64)
        return self.op("arith.index_cast", value, type=type)

    def compare(self, predicate: str, a: Value, b: Value) -> Value:
        return self.op("arith.cmpi", a, b, predicate=predicate)

    def trips(self, lower: Value, upper: Value, step: Value) -> Value:
        """How many iterations a loop with these bounds has."""
        return trips.trip_count(_Counted(self, lower.scalar), lower, upper, step)

    def ranges(self, parallel: Op) -> tuple[list[Bounds], list[Value]]:
        """The bounds of each index of a loop, and how many there are."""
        bounds = [
            (self.lookup(lower), self.lookup(upper), self.lookup(step))
            for lower, upper, step in Parallel(parallel).axes
        ]
        return bounds, [self.trips(*three) for three in bounds]

    def divide(self, number: Value, extent: Value) -> tuple[Value, Value]:
        """Quotient and remainder, for ``trips.unravel``."""
        quotient = self.op("arith.divui", number, extent, nonzero=True)
        return quotient, self.op("arith.subi", number, self.op("arith.muli", quotient, extent))

    def index_of(self, count: Value, bounds: Bounds) -> Value:
        """The parallel index at an iteration: lower + count * step."""
        lower, _, step = bounds
        if constant_of(step) != 1:
            count = self.mul(count, step, "nsw")
        if constant_of(lower) != 0:
            count = self.add(count, lower, "nsw")
        return count

    # -- places

    def register(self, name: str, dimension: str, type: Type = i32) -> Value:
        value = self.fixed(name, dimension)
        if value is None:
            value = self.op(f"gpu.{name}", type=i32, dimension=dimension)
        return self.to(value, type, unsigned=True)

    def fixed(self, name: str, dimension: str) -> Value | None:
        """A register that the size of a workgroup decides."""
        if self.workgroup is None or name not in ("thread_id", "block_dim"):
            return None
        sides = dict(zip("xyz", self.workgroup, strict=True))
        size = sides.get(dimension, math.prod(self.workgroup))
        if name == "block_dim":
            return self.constant(size, i32)
        return self.constant(0, i32) if size == 1 else None

    def thread(self, type: Type = i32) -> tuple[Value, Value]:
        """The number of the thread in its block, and how many there are."""
        first = self.register("thread_id", "linear", type)
        return first, self.register("block_dim", "linear", type)

    def position(self, side: str, type: Type) -> tuple[Value, Value]:
        """The thread's first position along a side of the grid, and the length of that side."""
        thread, block, size, blocks = (
            self.register(name, side, type)
            for name in ("thread_id", "block_id", "block_dim", "grid_dim")
        )
        return self.add(self.mul(block, size), thread), self.mul(blocks, size)

    # -- control

    def where(
        self, condition: Value | None, yes: Callable[[], Sequence[Value]],
        no: Callable[[], Sequence[Value]], types: Sequence[Type],
    ) -> Sequence[Value]:  # fmt: skip
        """``either``, or what ``yes`` makes if there is no condition."""
        return yes() if condition is None else self.either(condition, yes, no, types)

    def branch(self, condition: Value | None, body: Callable[[], object]) -> None:
        """A branch, if there is a condition. A check that fails in it goes on behind it."""
        if condition is None:
            body()
            return
        leave = {"leave": True} if self.checked else {}
        self.either(condition, lambda: (body(), [])[1], list, (), **leave)

    def loop(
        self, lower: Value, upper: Value, step: Value, inits: Sequence[Value],
        body: Callable[[Value, list[Value]], list[Value]], **attrs: int,
    ) -> list[Value]:  # fmt: skip
        """``scf.for``; ``unroll=1`` for one that mostly turns once: it is not unrolled."""
        op = self.for_(lower, upper, step, inits, **attrs)
        iv, *carried = op.body.args
        self.fill(op.body, lambda: body(iv, carried))
        return op.results

    def share(self, count: Value, body: Callable[[Value], object]) -> None:
        """Shares so many numbers among the block's threads."""
        thread, threads = self.thread(count.type)
        self.loop(thread, count, threads, [], lambda k, _: (body(k), [])[1], unroll=1)

    def barrier(self, width: int = 0) -> None:
        self.do("gpu.barrier", width=width if self.workgroup is None else 0)


class Threads(Places):
    """What threads of a block combine."""

    def neutral(self, kinds: Sequence[str], types: Sequence[ScalarType]) -> list[Value]:
        return [self.constant(neutral(k, t), t) for k, t in zip(kinds, types, strict=True)]

    def pairs(self, kinds: Sequence[str], a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        """Each of ``a`` combined with the one of ``b``; sums in any order."""
        return merged(self, kinds, a, b)

    def in_warp(
        self, kinds: Sequence[str], values: list[Value], width: int, least: int = 1
    ) -> list[Value]:
        """What ``width`` neighbouring lanes hold, combined, each with those that are a multiple of
        ``least`` away: the same bits in each."""
        if self.workgroup is not None:
            return self.by_halves(kinds, values, least)
        offset = width // 2
        while offset >= least:
            place = self.constant(offset, i32)
            others = [self.op("gpu.shuffle", v, place, mode="xor", width=width) for v in values]
            values = self.pairs(kinds, values, others)
            offset //= 2
        return self.of_first(values, width) if least == 1 and any(map(is_joint, kinds)) else values

    def of_first(self, values: list[Value], width: int) -> list[Value]:
        """What the first of ``width`` neighbouring lanes holds, in each of them: pairs of what
        belongs together are not the same bits the other way round."""
        thread, _ = self.thread()
        lane = self.op("arith.andi", thread, self.constant(width - 1, i32))
        first = self.compare("eq", lane, self.constant(0, i32))
        words = [to_word(self, v, self.word) for v in values]
        none = self.constant(0, self.word)
        words = [self.op("arith.select", first, w, none, type=self.word) for w in words]
        words = self.in_warp(["ori"] * len(words), words, width)
        return [from_word(self, w, v.scalar) for w, v in zip(words, values, strict=True)]

    def in_block(
        self, kinds: Sequence[str], values: list[Value], columns: int = 0, warps: int = 0,
        place: int = 0,
    ) -> list[Value]:  # fmt: skip
        """What the threads of a block of whole warps hold, combined, in each of them: by shuffles
        in the warps, then through shared memory. ``columns``: that many neighbours are combined
        each for itself, with those of other rows. ``warps``: how many there are, a power of two,
        where that is known; they then meet once, and the words in shared memory from ``place`` on
        are not for what is combined next."""
        least = max(columns, 1)  # how far those that are combined are from each other in a warp
        if self.workgroup is not None:
            return self.by_halves(kinds, values, least)
        types, most = [v.scalar for v in values], WARP * least
        words = self.shared(self.word, place + most * len(values))
        values = self.in_warp(kinds, values, WARP, least)
        thread, threads = self.thread()
        lane = self.op("arith.andi", thread, self.constant(WARP - 1, i32))
        five = self.constant(5, i32)
        row = self.mul(self.op("arith.shrui", thread, five), self.constant(least, i32))
        own = self.add(row, lane)

        first = place

        def row_of(k: int, place: Value) -> Value:
            return self.add(place, self.constant(first + most * k, i32))

        def hand() -> None:
            for k, value in enumerate(values):
                self.store(to_word(self, value, self.word), words, [row_of(k, own)])

        def taken(place: Value) -> list[Value]:
            loaded = [self.load(words, [row_of(k, place)]) for k in range(len(values))]
            return [from_word(self, v, t) for v, t in zip(loaded, types, strict=True)]

        self.branch(self.compare("ult", lane, self.constant(least, i32)), hand)
        self.barrier()
        if warps:
            mine = self.op("arith.andi", thread, self.constant(warps - 1, i32))
            return self.in_warp(kinds, taken(mine), warps)
        none = self.neutral(kinds, types)
        count = self.op("arith.shrui", threads, five)
        if columns:
            end, step = self.mul(count, self.constant(least, i32)), self.constant(least, i32)
            totals = self.loop(
                self.register("thread_id", "x"), end, step, none,
                lambda k, sums: self.pairs(kinds, sums, taken(k)),
            )  # fmt: skip
            self.barrier()
            return totals
        there = self.compare("ult", lane, count)
        parts = [
            self.op("arith.select", there, value, other, type=value.type)
            for value, other in zip(taken(lane), none, strict=True)
        ]
        self.barrier()
        return self.in_warp(kinds, parts, WARP)

    def in_cluster(
        self, kinds: Sequence[str], values: list[Value], threads: int, blocks: int, place: int, *,
        handed: bool,
    ) -> list[Value]:  # fmt: skip
        """What so many threads of several blocks hold, combined, in each of them: in the warps, in
        the blocks, and of these. ``place``: of words in each block's shared memory, as for
        ``in_block``. ``handed``: each block writes what it has into the memory of all others, which
        must be there; otherwise it reads what all have, and these must stay."""
        each = threads // blocks
        warps, types, zero = each // WARP, [v.scalar for v in values], self.constant(0, i32)
        most = warps + blocks
        words = self.shared(self.word, place + most * len(values), blocks)
        thread, _ = self.thread()
        block = self.op("arith.shrui", thread, self.constant(each.bit_length() - 1, i32))
        inside = self.op("arith.andi", thread, self.constant(each - 1, i32))
        lane = self.op("arith.andi", thread, self.constant(WARP - 1, i32))

        def near(op: Op, row: Value) -> None:
            if row is block:
                op.attrs["near"] = True

        def put(values: Sequence[Value], row: Value, at: Value, first: int) -> None:
            for k, value in enumerate(values):
                there = self.add(at, self.constant(place + most * k + first, i32))
                op = self.store(to_word(self, value, self.word), words, [row, there])
                near(op, row)

        def taken(row: Value, at: Value, first: int) -> list[Value]:
            found: list[Value] = []
            for k, type in enumerate(types):
                there = self.add(at, self.constant(place + most * k + first, i32))
                word = self.load(words, [row, there])
                assert word.op is not None
                near(word.op, row)
                found.append(from_word(self, word, type))
            return found

        values = self.in_warp(kinds, values, WARP)
        warp = self.op("arith.shrui", inside, self.constant(5, i32))
        self.branch(self.compare("eq", lane, zero), lambda: put(values, block, warp, 0))
        self.barrier(each)
        mine = self.op("arith.andi", lane, self.constant(warps - 1, i32))
        values = self.in_warp(kinds, taken(block, mine, 0), warps)
        if handed:
            to_all = self.compare("ult", inside, self.constant(blocks, i32))
            self.branch(to_all, lambda: put(values, inside, block, warps))
        else:
            first = self.compare("eq", inside, zero)
            self.branch(first, lambda: put(values, block, block, warps))
        self.barrier()
        mine = self.op("arith.andi", lane, self.constant(blocks - 1, i32))
        return self.in_warp(kinds, taken(block if handed else mine, mine, warps), blocks)

    def by_halves(self, kinds: Sequence[str], values: list[Value], least: int) -> list[Value]:
        """``in_block`` in shared memory alone: half of the threads take what the other half has,
        until one of every ``least`` neighbours is left. The same bits for any device."""
        assert self.workgroup is not None
        threads = math.prod(self.workgroup)
        types = [v.scalar for v in values]
        words = self.shared(self.word, threads * len(values))
        thread, _ = self.thread()

        def at(k: int, number: Value) -> list[Value]:
            return [self.add(number, self.constant(threads * k, i32)) if k else number]

        def put(parts: Sequence[Value]) -> None:
            for k, part in enumerate(parts):
                self.store(to_word(self, part, self.word), words, at(k, thread))

        def of(number: Value) -> list[Value]:
            loaded = [self.load(words, at(k, number)) for k in range(len(values))]
            return [from_word(self, v, t) for v, t in zip(loaded, types, strict=True)]

        put(values)
        groups = threads // least
        while groups > 1:
            self.barrier()
            half = -(-groups // 2)
            own = values

            def take(away: int = half * least, own: list[Value] = own) -> list[Value]:
                other = self.add(thread, self.constant(away, i32))
                made = self.pairs(kinds, own, of(other))
                put(made)
                return made

            with_other = self.constant((groups - half) * least, i32)
            below = self.compare("ult", thread, with_other)
            values = self.either(below, take, lambda own=own: own, types)
            groups = half
        self.barrier()
        if least > 1:
            first = self.op("arith.remui", thread, self.constant(least, i32))
        else:
            first = self.constant(0, i32)
        totals = of(first)
        self.barrier()
        return totals

    def shared(self, element: ScalarType, count: int, blocks: int = 0) -> Value:
        """Memory of so many elements, or more, that the block's threads share: the same for all who
        ask for such elements. ``blocks``: so many, of each of several blocks."""
        shape, space = ((blocks, count), "cluster") if blocks else ((count,), "shared")
        type = MemRefType(element, len(shape), "contiguous", shape, space)
        if element not in self.buffers:
            op = Op("memref.alloca", [], [type])
            self.top.ops.insert(0, op)
            self.buffers[element] = op.result
        found = self.buffers[element]
        if (found.memref.shape or (0,))[-1] < count:
            found.type = type
        return found


class _Counted(Integers):
    """Numbers for trip counts: what is divided is never negative."""

    _PROMISES: ClassVar[dict[str, dict[str, Any]]] = {
        "subi": {"overflow": "nsw"}, "divui": {"nonzero": True},
    }  # fmt: skip

    def op(self, name: str, a: Value, b: Value) -> Value:
        name = "divui" if name == "floordivsi" else name
        return self.builder.op(f"arith.{name}", a, b, **self._PROMISES.get(name, {}))


def to_word(b: Rewriter, value: Value, word: ScalarType) -> Value:
    """The bits of a scalar in an i32 or i64; those above are of no account."""
    type = value.scalar
    if type.is_float:
        value = b.op("arith.bitcast", value, type=i64 if type.bits == 64 else i32)
    elif type is index:
        value = b.op("arith.index_cast", value, type=i64)
    if value.scalar.bits == word.bits:
        return value
    return b.op("arith.extui", value, type=word)


def from_word(b: Rewriter, word: Value, type: ScalarType) -> Value:
    """The inverse of ``to_word``."""
    if type is index:
        return b.op("arith.index_cast", word, type=index)
    if type.bits < word.scalar.bits:
        narrow = i32 if type.is_float else type
        word = b.op("arith.trunci", word, type=narrow)
    return b.op("arith.bitcast", word, type=type) if type.is_float else word

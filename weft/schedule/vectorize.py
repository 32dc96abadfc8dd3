"""Vectorize: a thread computes several neighbouring iterations, operation by operation.

So their loads and stores lie side by side, and LLVM makes them one. (Iterations of a parallel loop
do not depend on each other.)
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping

from weft.ir.core import Block, Op, Value
from weft.ir.types import Type, i64, index
from weft.ir.uniform import WARP
from weft.ir.views import Parallel, constant_of, is_constant, memory
from weft.schedule.language import Vectorize
from weft.schedule.spmd import Threads
from weft.schedule.variation import Variation
from weft.values import mutable


@mutable
class Neighbours:
    """The iterations of ``parallel`` that a thread takes along ``axis``, as ``how`` says.

    ``limits``: of each memref whose rows are whole vectors, their bytes. ``bind`` names the index
    at an iteration, ``one`` runs one.

    Where subscripts are divisible, operations of the body say by the attribute ``even`` that their
    result is "shared" by the neighbours that are next to each other, or that these access "whole"
    vectors.
    """

    threads: Threads
    parallel: Op
    axis: int
    how: Vectorize
    limits: Mapping[Value, int]
    bind: Callable[[int, Value], None]
    one: Callable[[int, Value, list[Value]], list[Value]]

    def __post_init__(self) -> None:
        lower, _, step = Parallel(self.parallel).axes[self.axis]
        if not self.how.divisible and (constant_of(lower) is None or not is_constant(step, 1)):
            self.limits = {}

    @property
    def apart(self) -> int:
        return self.how.width * self.how.stride

    @property
    def scattered(self) -> bool:
        """Whether a warp's threads lie between the neighbours of a thread."""
        return self.apart >= WARP

    def distance(self, k: int) -> int:
        """How far neighbour ``k`` is from the first."""
        return k // self.how.width * self.apart + k % self.how.width

    def run(
        self, first: Value, stride: Value, trip: Value, carried: list[Value], *, covers: bool
    ) -> list[Value]:
        """The iterations of the thread at ``first``, of ``trip`` in all; ``stride``: how many
        threads there are. Gives what the thread reduced."""
        t, copies = self.threads, self.how.copies
        if self.scattered:
            base = self.between(first)
        else:
            base = t.mul(first, t.number(copies, first), "nsw")
        if self.how.peel:  # vectors begin at multiples of their length in memory, not in the loop
            base = t.op("arith.subi", base, t.number(self.how.peel, base), overflow="nsw")
        if covers:
            return self.at(base, trip, [])
        stride = t.mul(stride, t.number(copies, stride), "nsw")
        return t.loop(base, trip, stride, carried, lambda k, sums: self.at(k, trip, sums))

    def between(self, place: Value) -> Value:
        """The first iteration of the thread at ``place``, where the threads of a warp lie between a
        thread's neighbours, but for those that are next to each other."""
        t = self.threads
        warp = t.op("arith.shrui", place, t.number(WARP.bit_length() - 1, place))
        begin = t.mul(warp, t.number(WARP * self.how.copies, place))
        lane = t.op("arith.andi", place, t.number(WARP - 1, place))
        if self.how.width > 1:
            lane = t.mul(lane, t.number(self.how.width, place))
        return t.add(begin, lane)

    def at(self, first: Value, trip: Value, carried: list[Value]) -> list[Value]:
        """The neighbours from ``first`` on: without branches if all of them exist."""
        t = self.threads
        length = self.distance(self.how.copies - 1) + 1
        zero, one = t.number(0, first), t.number(1, first)
        end = t.add(first, t.number(length, first), "nsw")
        inside = t.op("arith.andi", t.compare("sge", first, zero), t.compare("sle", end, trip))
        body = self.parallel.body
        found = quotients(body, body.args[self.axis])
        steps = {q for q in found if "divisor" not in q.attrs}
        for divisor in dict.fromkeys(q.right for q in body.ops if q in steps):
            by = t.lookup(divisor)
            inside = t.op("arith.andi", inside, t.compare("sge", by, t.number(length, by)))
        kinds = Parallel(self.parallel).kinds

        def full() -> list[Value]:
            parts = self.copied(first, steps)
            while len(parts) > 1:
                parts = [t.pairs(kinds, a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            return t.pairs(kinds, carried, parts[0]) if carried else []

        def part() -> list[Value]:
            low, high = t.op("arith.maxsi", first, zero), t.op("arith.minsi", end, trip)

            def alone(count: Value, values: list[Value]) -> list[Value]:
                return self.one(self.axis, count, values)

            def next_to(count: Value, values: list[Value]) -> list[Value]:
                behind = t.add(count, t.number(self.how.width, count), "nsw")
                last = t.op("arith.minsi", behind, high)
                return t.loop(count, last, one, values, alone, unroll=1)

            nested = self.scattered and self.how.width > 1
            by = t.number(self.apart, first) if self.scattered else one
            return t.loop(low, high, by, carried, next_to if nested else alone, unroll=1)

        return t.either(inside, full, part, [v.type for v in carried])

    def copied(self, first: Value, steps: set[Op]) -> list[list[Value]]:
        """The neighbours' iterations in step. Gives what each of them reduces. ``steps``: divisions
        whose quotients follow from those of the first neighbour."""
        t, body = self.threads, self.parallel.body
        before = t.replacement
        own = [ChainMap(dict[Value, Value](), before) for _ in range(self.how.copies)]
        for k, values in enumerate(own):
            t.replacement = values
            away = t.number(self.distance(k), first)
            self.bind(self.axis, t.add(first, away, "nsw") if k else first)
        aligned = [self.aligned(k) for k in range(self.how.copies)]
        for op in body.ops[:-1]:
            for k, values in enumerate(own):
                t.replacement = values
                place = k % self.how.width if op.attrs.get("even") else 0
                if place and op.attrs["even"] == "shared" and op.results:
                    values[op.result] = own[k - place][op.result]
                elif k and op in steps:
                    values[op.result] = self.next_quotient(op, own[0], self.distance(k))
                else:
                    self.access(op, own[k - place], place, aligned[k].get(op))
        t.replacement = before
        return [[values.get(v, v) for v in body.terminator.operands] for values in own]

    def access(self, op: Op, begin: Mapping[Value, Value], offset: int, align: int | None) -> None:
        """A copy of ``op``. With an ``offset``, what it accesses is so many elements behind what it
        does with the values of ``begin``."""
        t = self.threads
        t.rewrite(op)
        new = t.block.ops[-1]
        if align is not None:
            new.attrs["align"] = align
        if offset:
            memref, subscripts, values = memory(op)
            at = [begin.get(v, v) for v in (memref, *subscripts)]
            new.operands = [*map(t.lookup, values), *at]
            new.attrs["offset"] = offset

    def aligned(self, k: int) -> dict[Op, int]:
        """Loads and stores of neighbour ``k`` at multiples of more bytes than an element has."""
        body = self.parallel.body
        if not self.how.divisible:
            return whole_vectors(body, body.args[self.axis], k, self.limits)
        found: dict[Op, int] = {}
        for op in body.ops:
            if op.attrs.get("even") == "whole":
                memref, _, _ = memory(op)
                behind = k % self.how.width * memref.memref.element.bytes
                limit = self.limits[memref]
                found[op] = min(behind & -behind, limit) if behind else limit
        return found

    def next_quotient(self, op: Op, first: MutableMapping[Value, Value], k: int) -> Value:
        """(a + k) // b from a // b, for 0 < k < b: one more where the remainder gets to b."""
        t = self.threads
        quotient, divisor = first[op.result], t.lookup(op.right)
        product = t.op("arith.muli", quotient, divisor)
        rest = t.op("arith.subi", first[op.left], product)
        rest = t.op("arith.addi", rest, t.number(k, rest))
        type: Type = i64 if quotient.type is index else quotient.type
        over = t.op("arith.extui", t.compare("sge", rest, divisor), type=type)
        return t.op("arith.addi", quotient, t.to(over, quotient.type))


def quotients(body: Block, iv: Value) -> set[Op]:
    """Divisions ``a // b`` whose dividend grows by one with ``iv`` and whose divisor is a number
    that is not known before the call."""
    along = Variation(body, {iv: 1})
    return {
        op for op in body.ops
        if op.name == "arith.floordivsi" and along.slope(op.left) == 1
        and op.right.op not in body.ops and constant_of(op.right) is None
    }  # fmt: skip


def _distance(value: Value, iv: Value) -> int | None:
    """``value - iv`` where that is a number that can be read off."""
    if value is iv:
        return 0
    op = value.op
    if op is None or op.name not in ("arith.addi", "arith.subi"):
        return None
    for a, b in ((op.left, op.right), (op.right, op.left))[: 2 if op.name == "arith.addi" else 1]:
        number = constant_of(b)
        if a is iv and number is not None:
            return int(number) if op.name == "arith.addi" else -int(number)
    return None


def whole_vectors(body: Block, iv: Value, k: int, limits: Mapping[Value, int]) -> dict[Op, int]:
    """Loads and stores of ``body`` that are at multiples of the bytes in ``limits`` (by memref) at
    iteration ``iv + k``, if rows begin at such multiples and ``iv`` counts whole vectors."""
    found = {}
    for op in body.ops:
        if op.name not in ("memref.load", "memref.store"):
            continue
        memref, subscripts, _ = memory(op)
        limit = limits.get(memref)
        if limit is None:
            continue
        distance = _distance(subscripts[-1], iv) if subscripts else None
        if distance is not None and (distance + k) * memref.memref.element.bytes % limit == 0:
            found[op] = limit
    return found

"""Scans by several blocks: each has a part of a loop's turns.

A loop takes three launches. Blocks compose the maps of their parts; one block of an iteration scans
these, and leaves what is carried up to each part, and behind the loop; blocks scan their parts. How
maps are composed depends on the sizes only. Where a map is not finite, the one block goes
through the turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from weft.ir.core import Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, i32, i64, index
from weft.ir.views import For
from weft.schedule.bind import Bound
from weft.schedule.grid import MOST_PARTS, SCAN_WORDS
from weft.schedule.language import Scan
from weft.schedule.scan import Scanning
from weft.schedule.spmd import Bounds, from_word, to_word

_LAUNCHES = 3
_UP_TO, _BEHIND = SCAN_WORDS - 2, SCAN_WORDS - 1  # of the words of a value, behind its map's


def split_scan(
    function: Function, parallel: Op, step: Scan, limits: Mapping[Value, int]
) -> Bound:  # fmt: skip
    """As ``scan``, in stages."""
    made: list[Function] = []
    loops = [op for op in parallel.body.ops if "scan" in op.attrs]
    for number in range(_LAUNCHES * len(loops)):
        work = _Stage(function, parallel, step, limits)
        made.append(work.staged(loops, number))
    return Bound(tuple(made))


class _Stage(Scanning):
    """What a launch does: ``launch`` of those of the loop ``now``; ``last``: nothing comes behind
    it. ``partials``: words, of each value, part and iteration; ``words``: where those of a loop
    begin. ``parts``: how many there are."""

    def staged(self, loops: Sequence[Op], number: int) -> Function:
        place, self.launch = divmod(number, _LAUNCHES)
        self.now, self.last = loops[place], number == _LAUNCHES * len(loops) - 1
        self.words: dict[Op, int] = {}
        words = 0
        for loop in loops[: place + 1]:
            self.words[loop] = words
            words += SCAN_WORDS * len(loop.results)
        made = self.start(self.step.threads, [("partials", MemRefType(i64, 1)), ("parts", index)])
        self.partials, self.parts = made.args[-2:]
        self.all(0)
        return made

    def body(self, bounds: Sequence[Bounds], parts: dict[int, Value]) -> None:
        block = self.outer.body
        for k, three in enumerate(bounds):
            place = self.to(parts[k], three[0].type)
            self.replacement[block.args[k]] = self.index_of(place, three)
        for op in block.ops[:-1]:
            if op in self.words and op is not self.now:
                self.stand_for(op.results, self.behind(op))
            elif op is self.now or self.last or "team" not in op.attrs:
                self.rewrite(op)
            if op is self.now and not self.last:
                return

    def scanned(self) -> list[Value]:
        """What the loop carries in the end; what it began with in launches behind which nobody
        asks for that."""
        loop = For(self.serial)
        inits = [self.lookup(v) for v in loop.inits]
        [self.compose, lambda _: self.branch(self.first(self.part), lambda: self.carry(inits)),
         self.apply][self.launch](inits)  # fmt: skip
        return self.behind(self.serial) if self.last else inits

    def portion(self, part: Value) -> tuple[Value, Value]:
        """The first turn of a part, and its end: parts are whole chunks."""
        lower, upper = (self.lookup(v) for v in (For(self.serial).lower, For(self.serial).upper))
        first, end = self.to(lower, index), self.to(upper, index)
        size = self.constant(self.count * self.turns_of, index)
        raised = self.add(self.trips(first, end, size), self.parts)
        each = self.divide(self.op("arith.subi", raised, self.constant(1, index)), self.parts)[0]
        begin = self.add(first, self.mul(part, self.mul(each, size)), "nsw")
        after = self.add(begin, self.mul(each, size), "nsw")
        bounds = [self.op("arith.minsi", v, end) for v in (begin, after)]
        return self.to(bounds[0], lower.type), self.to(bounds[1], lower.type)

    def alone(self) -> Value:
        """Whether this thread does what is done once for the iteration."""
        return self.op("arith.andi", super().alone(), self.first(self.part))

    # -- words

    @property
    def part(self) -> Value:
        return self.register("block_id", "y", index)

    def first(self, number: Value) -> Value:
        return self.compare("eq", number, self.number(0, number))

    def places_of(self, loop: Op, number: int, count: int, part: Value) -> list[Value]:
        """Where a loop has ``count`` values of a part, its ``number``-th and those that follow."""
        iteration, total = (self.register(n, "x", index) for n in ("block_id", "grid_dim"))
        found: list[Value] = []
        for k in range(count):
            row = self.constant(self.words[loop] + number + k, index)
            row = self.add(self.mul(row, self.parts), part)
            found.append(self.add(self.mul(row, total), iteration))
        return found

    def leave(self, number: int, part: Value, values: Sequence[Value]) -> None:
        places = self.places_of(self.serial, number, len(values), part)
        for place, value in zip(places, values, strict=True):
            self.store(to_word(self, value, i64), self.partials, [place])

    def leave_values(self, number: int, part: Value, values: Sequence[Value]) -> None:
        """Likewise, a word of each value."""
        self.leave(number * len(values), part, values)

    def left(self, loop: Op, number: int, part: Value, like: Sequence[Value]) -> list[Value]:
        places = self.places_of(loop, number, len(like), part)
        return [
            from_word(self, self.load(self.partials, [place]), v.scalar)
            for place, v in zip(places, like, strict=True)
        ]

    def behind(self, loop: Op) -> list[Value]:
        """What a loop carried in the end."""
        count = len(loop.results)
        return self.left(loop, _BEHIND * count, self.constant(0, index), loop.results)

    # -- the launches

    def compose(self, inits: list[Value]) -> None:
        """The map of all turns of the block's part."""
        maps = self.split(self.run(*self.portion(self.part), self.unchanged()))
        if self.commutes:
            maps = self.through(maps, self.constant(0, i32), None)
        thread, _ = self.thread()
        self.branch(
            self.first(thread), lambda: self.leave(0, self.part, [v for m in maps for v in m])
        )

    @property
    def commutes(self) -> bool:
        """Whether maps may be composed in any order: each thread then composes those of all of its
        turns first."""
        kinds = self.found.families.values()
        return all(kind == "sum" or f"arith.{kind}" in OPS for kind in kinds)

    def unchanged(self) -> list[Value]:
        return [v for group in self.found.families for v in self.identity(group)]

    def split(self, numbers: Sequence[Value]) -> list[list[Value]]:
        """The numbers of each map."""
        left = iter(numbers)
        count = self.found.numbers
        return [[next(left) for _ in range(count(group))] for group in self.found.families]

    def through(
        self, maps: list[list[Value]], phase: Value, carried: list[list[Value]] | None
    ) -> list[list[Value]]:
        """The maps ``carried``, and then those of all threads, ``maps``."""
        for parts in self.of_warps(self.in_order([*self.found.families], maps), phase):
            carried = parts if carried is None else self.each(carried, parts)
        assert carried is not None
        return carried

    def each(self, one: list[list[Value]], other: list[list[Value]]) -> list[list[Value]]:
        return [self.both(*three) for three in zip(self.found.families, one, other, strict=True)]

    def chunk(self, carried: Sequence[Value], phase: Value) -> list[Value]:
        if self.launch:
            return super().chunk(carried, phase)
        self.level = 0
        ops = [op for op in self.serial.body.ops[:-1] if op not in self.loads]
        self.early([op for op in ops if self.found.stage(op) == 0])
        maps = [self.total(group) for group in self.found.families]
        before = self.split(carried)
        made = (
            self.each(before, maps) if self.commutes
            else self.through(maps, phase, before)
        )  # fmt: skip
        return [v for map in made for v in map]

    def carry(self, inits: list[Value]) -> None:
        """What is carried up to each part, and behind the last. A thread has neighbouring parts."""
        self.level, groups = 0, [*self.found.families]
        thread, none = self.thread(index)[0], self.unchanged()
        each = -(-(self.step.parts or MOST_PARTS) // self.count)
        begin = self.mul(thread, self.constant(each, index))
        parts = [self.add(begin, self.constant(e, index)) for e in range(each)]
        there = [self.compare("slt", part, self.parts) for part in parts]
        maps = [
            self.split(self.either(
                here, lambda part=part: self.left(self.serial, 0, part, none), lambda: none,
                [v.type for v in none],
            ))
            for part, here in zip(parts, there, strict=True)
        ]  # fmt: skip
        totals = maps[0]
        for more in maps[1:]:
            totals = self.each(totals, more)
        totals = self.in_order(groups, totals)
        wholes = self.of_warps(totals, self.constant(0, i32))
        order = [k for group in groups for k in group]
        carry = [inits[k] for k in order]

        def quick() -> None:
            before = self.exclusive(groups, totals)
            state, ends = self.reached(groups, carry, before, wholes)
            for part, here, map in zip(parts, there, maps, strict=True):
                self.branch(here, lambda p=part, s=state: self.leave_values(_UP_TO, p, in_place(s)))
                state = self.after(groups, map, state)
            leave_ends(in_place(ends))

        def in_place(values: list[Value]) -> list[Value]:
            return [v for _, v in sorted(zip(order, values, strict=True), key=itemgetter(0))]

        def leave_ends(ends: list[Value]) -> None:
            zero = self.constant(0, index)
            self.branch(self.first(thread), lambda: self.leave_values(_BEHIND, zero, ends))

        def slow() -> None:
            def part_by_part(part: Value, state: list[Value]) -> list[Value]:
                self.branch(self.first(thread), lambda: self.leave_values(_UP_TO, part, state))
                return self.run(*self.portion(part), state)

            self.wait()
            zero, one = (self.constant(n, index) for n in (0, 1))
            leave_ends(self.loop(zero, self.parts, one, inits, part_by_part, unroll=1))

        exact = self.exact(groups, carry, wholes)
        if exact:
            self.either(self.finite(exact), _nothing(quick), _nothing(slow), ())
        else:
            quick()

    def apply(self, inits: list[Value]) -> None:
        """The turns of the block's part."""
        part = self.part
        starts = self.left(self.serial, _UP_TO * len(inits), part, inits)
        self.run(*self.portion(part), starts)

    def late(self, ops: Sequence[Op], places: Sequence[int], state: list[Value]) -> list[Value]:
        return state if self.launch == 1 else super().late(ops, places, state)


def _nothing(body: Callable[[], None]) -> Callable[[], list[Value]]:
    return lambda: (body(), [])[1]

"""What threads carry through their turns of a serial loop, scanned over a group of them.

Lanes of a warp scan by shuffles, warps through shared memory: each composes the maps of the warps
in front of it. Where a map is not finite, though its numbers may be, threads go one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import i32
from weft.ir.uniform import WARP
from weft.schedule.entries import Entry
from weft.schedule.language import Scan
from weft.schedule.recurrences import Group, Recurrences
from weft.schedule.rows import VECTOR_BYTES
from weft.schedule.spmd import from_word, to_word
from weft.schedule.turn_maps import TurnMaps


class AcrossThreads(TurnMaps):
    """``maps``: of each of the thread's turns what stands for values of the loop. ``within``: of
    each of its vectors of turns, whether they are turns of the loop. ``turn``: the one that is
    being written, or -1. ``places``: of words in shared memory, see ``lay_out``."""

    maps: list[dict[Value, Value]]
    within: list[Value]
    places: list[int]

    def __init__(self, function: Function, parallel: Op, step: Scan) -> None:
        super().__init__(function, parallel, step)
        self.step, self.turns_of, self.wide = step, step.turns, step.width
        self.warps = step.threads // WARP
        shared = (len(op.results) for op in walk(parallel.body) if "team" in op.attrs)
        self.used = WARP * max(shared, default=0)
        self.turn = -1

    @property
    def groups(self) -> list[range]:
        """The thread's turns by vectors."""
        return [range(e, e + self.wide) for e in range(0, self.turns_of, self.wide)]

    def enter(self, turn: int, ops: Sequence[Op] = ()) -> None:
        """Writes ``ops`` for a turn."""
        self.turn = turn
        self.replacement.update(self.maps[turn])
        for op in ops:
            self.rewrite(op)
        self.turn = -1

    def across(
        self, groups: Sequence[Group], carry: list[Value], phase: Value
    ) -> tuple[list[Value], list[Value]]:
        """What is carried up to the thread's turns, and behind the chunk."""
        totals = self.in_order(groups, [self.total(group) for group in groups])
        before, wholes = self.exclusive(groups, totals), self.of_warps(totals, phase)
        starts, behind = self.reached(groups, carry, before, wholes)
        exact = self.exact(groups, carry, wholes)
        if not exact:
            return starts, behind
        both = self.either(
            self.finite(exact), lambda: [*starts, *behind],
            lambda: self.one_by_one(groups, carry), [v.type for v in carry] * 2,
        )  # fmt: skip
        return both[: len(carry)], both[len(carry) :]

    def lane_and_warp(self) -> tuple[Value, Value]:
        thread, _ = self.thread()
        lane = self.op("arith.andi", thread, self.constant(WARP - 1, i32))
        return lane, self.op("arith.shrui", thread, self.constant(5, i32))

    def in_order(self, groups: Sequence[Group], totals: list[list[Value]]) -> list[list[Value]]:
        """Of each lane, the maps ``totals`` of all lanes of its warp up to itself, composed."""
        lane, _ = self.lane_and_warp()
        away = 1
        while away < WARP:
            reached = self.compare("sge", lane, self.constant(away, i32))
            others = [self.shuffled("up", self.constant(away, i32), t) for t in totals]
            totals = [
                self.chosen(reached, self.both(group, other, t), t)
                for group, other, t in zip(groups, others, totals, strict=True)
            ]
            away *= 2
        return totals

    def both(self, group: Group, one: list[Value], other: list[Value]) -> list[Value]:
        """As ``composed``, of numbers that are all written."""
        return self.values(self.composed(group, [*one], [*other]), group)

    def exclusive(self, groups: Sequence[Group], totals: list[list[Value]]) -> list[list[Value]]:
        """What the lane in front has by ``in_order``."""
        lane, _ = self.lane_and_warp()
        begins = self.compare("eq", lane, self.constant(0, i32))
        return [
            self.chosen(begins, self.identity(group), self.shuffled("up", self.constant(1, i32), t))
            for group, t in zip(groups, totals, strict=True)
        ]

    def reached(
        self, groups: Sequence[Group], carry: Sequence[Value], before: list[list[Value]],
        wholes: list[list[list[Value]]],
    ) -> tuple[list[Value], list[Value]]:  # fmt: skip
        """What ``carry`` is up to the thread's turns, and behind those of all warps: ``before`` are
        the maps of the turns in front of its own in its warp, ``wholes`` those of each warp."""
        _, warp = self.lane_and_warp()
        behind, reach = list(carry), list(carry)
        for w, parts in enumerate(wholes):
            if w:
                here = self.compare("eq", warp, self.constant(w, i32))
                reach = self.chosen(here, behind, reach)
            behind = self.after(groups, parts, behind)
        return self.after(groups, before, reach), behind

    def exact(
        self, groups: Sequence[Group], carry: Sequence[Value], wholes: list[list[list[Value]]]
    ) -> list[Value]:
        """What must be finite for composed maps to do as the turns one by one."""
        left, found = iter(carry), list[Value]()
        for n, group in enumerate(groups):
            values = [next(left) for _ in group]
            product = self.found.families[group] in ("affine", "mulf")
            if product and values[0].scalar.is_float:
                found += (*values, *(v for parts in wholes for v in parts[n]))
        return found

    def total(self, group: Group) -> list[Value]:
        """The map of all of the thread's turns, one after the other."""
        made: list[Value] = []
        for turns, there in zip(self.groups, self.within, strict=True):
            before = made or self.identity(group)

            def through(turns: range = turns, first: list[Value] = made) -> list[Value]:
                made: list[Entry] = [*first]
                for e in turns:
                    self.enter(e)
                    made = self.composed(group, made, self.map(group)) if made else self.map(group)
                return self.values(made, group)

            if self.anywhere(group):
                made = self.chosen(there, through(), before)
            else:
                types = [v.type for v in before]
                made = self.either(there, through, lambda before=before: before, types)
        return made

    def next(self, group: Group, turn: int, values: list[Value]) -> list[Value]:
        """What a turn makes of ``values``; the same beyond the last turn."""
        there = self.within[turn // self.wide]

        def made() -> list[Value]:
            self.enter(turn)
            return self.evaluated(group, values)

        if self.anywhere(group):
            return self.chosen(there, made(), values)
        return self.either(there, made, lambda: values, [v.type for v in values])

    # -- what threads hand over

    def shuffled(self, mode: str, place: Value, values: Sequence[Value]) -> list[Value]:
        return [self.op("gpu.shuffle", v, place, mode=mode, width=WARP) for v in values]

    def of_warps(self, totals: list[list[Value]], phase: Value) -> list[list[list[Value]]]:
        """Of each warp of the group, the maps of all of its turns. ``phase``: of the two places in
        shared memory the one whose turn it is, so that nobody waits to write the other."""
        if not self.several:
            last = self.constant(WARP - 1, i32)
            return [[self.shuffled("idx", last, t) for t in totals]]
        lane, warp = self.lane_and_warp()
        flat = [v for t in totals for v in t]
        count = len(flat) * self.warps
        words = self.shared(self.word, self.places[-1])
        begin = self.mul(phase, self.constant(count, i32))
        begin = self.add(begin, self.constant(self.places[self.level], i32))

        def place(n: int, w: Value) -> Value:
            return self.add(self.add(begin, w), self.constant(n * self.warps, i32))

        def hand() -> None:
            for n, value in enumerate(flat):
                self.store(to_word(self, value, self.word), words, [place(n, warp)])

        self.branch(self.compare("eq", lane, self.constant(WARP - 1, i32)), hand)
        self.barrier()
        found: list[list[list[Value]]] = []
        for w in range(self.warps):
            at = self.constant(w, i32)
            aligned = min(self.word.bytes * ((w & -w) or self.warps), VECTOR_BYTES)
            taken: list[Value] = []
            for n, value in enumerate(flat):
                word = self.load(words, [place(n, at)])
                assert word.op is not None
                word.op.attrs["align"] = aligned
                taken.append(from_word(self, word, value.scalar))
            parts = iter(taken)
            found.append([[next(parts) for _ in t] for t in totals])
        return found

    def lay_out(self, found: Recurrences) -> None:
        """Words of shared memory, level by level: of each warp's maps, in two places, and of what
        is carried, likewise. Others combine in front."""
        self.places = [self.used]
        for level in range(found.last + 1):
            at = found.at(level)
            numbers = sum(map(found.numbers, at))
            words = 2 * (numbers * self.warps + sum(map(len, at)))
            self.places.append(self.places[-1] + -(-words // 4) * 4)

    def finite(self, values: Sequence[Value]) -> Value:
        """Whether all these are finite numbers."""
        ok: Value | None = None
        for type in dict.fromkeys(v.scalar for v in values):
            zero = total = self.constant(0.0, type)
            for value in values:
                if value.type is type:
                    total = self.op("math.fma", value, zero, total)
            mine = self.op("arith.cmpf", total, zero, predicate="oeq")
            ok = mine if ok is None else self.op("arith.andi", ok, mine)
        assert ok is not None
        return ok

    def one_by_one(self, groups: Sequence[Group], carry: list[Value]) -> list[Value]:
        """As ``across``: what is carried goes from thread to thread, through the turns of each."""
        (lane, warp), one, zero = self.lane_and_warp(), self.constant(1, i32), self.constant(0, i32)
        many = len(carry)
        behind = self.places[self.level + 1] - 2 * many
        words = self.shared(self.word, self.places[-1]) if self.several else None

        def through(number: Value, state: list[Value]) -> list[Value]:
            starts = self.chosen(self.compare("eq", lane, number), state[:many], state[many:])
            ends, left = list[Value](), iter(state)
            for group in groups:
                values = [next(left) for _ in group]
                for e in range(self.turns_of):
                    values = self.next(group, e, values)
                ends += values
            return [*self.shuffled("idx", number, ends), *starts]

        def lanes(state: list[Value]) -> list[Value]:
            return self.loop(zero, self.constant(WARP, i32), one, state, through, unroll=1)

        if not self.several:
            found = lanes([*carry, *carry])
            return [*found[many:], *found[:many]]

        assert words is not None

        def of_warp(number: Value, state: list[Value]) -> list[Value]:
            here = self.compare("eq", warp, number)
            after = self.either(here, lambda: lanes(state), lambda: state, [v.type for v in state])
            begin = self.op("arith.andi", number, one)
            begin = self.add(self.mul(begin, self.constant(many, i32)), self.constant(behind, i32))
            spots = [self.add(begin, self.constant(n, i32)) for n in range(many)]

            def hand() -> None:
                for spot, value in zip(spots, after[:many], strict=True):
                    self.store(to_word(self, value, self.word), words, [spot])

            first = self.compare("eq", lane, zero)
            self.branch(self.op("arith.andi", here, first), hand)
            self.barrier()
            loaded = [
                from_word(self, self.load(words, [spot]), v.scalar)
                for spot, v in zip(spots, carry, strict=True)
            ]
            return [*loaded, *after[many:]]

        count = self.constant(self.warps, i32)
        found = self.loop(zero, count, one, [*carry, *carry], of_warp, unroll=1)
        return [*found[many:], *found[:many]]

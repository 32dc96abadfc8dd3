"""What threads carry through their turns of a serial loop, scanned over a group of them.

Lanes of a warp scan by shuffles, warps through shared memory: each composes the maps of the warps
in front of it. Where a map is not finite, though its numbers may be, threads go one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import i32
from weft.ir.uniform import WARP
from weft.schedule.language import Scan
from weft.schedule.recurrences import Recurrences
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
        super().__init__(function, parallel, step, {})
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
        self, places: Sequence[int], carry: list[Value], phase: Value
    ) -> tuple[list[Value], list[Value]]:
        """What is carried up to the thread's turns, and behind the chunk."""
        totals = self.in_order(places, [self.total(k) for k in places])
        before, wholes = self.exclusive(places, totals), self.of_warps(totals, phase)
        starts, behind = self.reached(places, carry, before, wholes)
        exact = self.exact(places, carry, wholes)
        if not exact:
            return starts, behind
        both = self.either(
            self.finite(exact), lambda: [*starts, *behind],
            lambda: self.one_by_one(places, carry), [v.type for v in carry] * 2,
        )  # fmt: skip
        return both[: len(carry)], both[len(carry) :]

    def lane_and_warp(self) -> tuple[Value, Value]:
        thread, _ = self.thread()
        lane = self.op("arith.andi", thread, self.constant(WARP - 1, i32))
        return lane, self.op("arith.shrui", thread, self.constant(5, i32))

    def in_order(self, places: Sequence[int], totals: list[list[Value]]) -> list[list[Value]]:
        """Of each lane, the maps ``totals`` of all lanes of its warp up to itself, composed."""
        lane, _ = self.lane_and_warp()
        away = 1
        while away < WARP:
            reached = self.compare("sge", lane, self.constant(away, i32))
            others = [self.shuffled("up", self.constant(away, i32), t) for t in totals]
            totals = [
                self.chosen(reached, self.composed(k, other, t), t)
                for k, other, t in zip(places, others, totals, strict=True)
            ]
            away *= 2
        return totals

    def exclusive(self, places: Sequence[int], totals: list[list[Value]]) -> list[list[Value]]:
        """What the lane in front has by ``in_order``."""
        lane, _ = self.lane_and_warp()
        begins = self.compare("eq", lane, self.constant(0, i32))
        return [
            self.chosen(begins, self.identity(k), self.shuffled("up", self.constant(1, i32), t))
            for k, t in zip(places, totals, strict=True)
        ]

    def reached(
        self, places: Sequence[int], carry: Sequence[Value], before: list[list[Value]],
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
            behind = [
                self.applied(k, part, v) for k, part, v in zip(places, parts, behind, strict=True)
            ]
        starts = [self.applied(k, m, v) for k, m, v in zip(places, before, reach, strict=True)]
        return starts, behind

    def exact(
        self, places: Sequence[int], carry: Sequence[Value], wholes: list[list[list[Value]]]
    ) -> list[Value]:
        """What must be finite for composed maps to do as the turns one by one."""
        return [
            v for n, k in enumerate(places) if self.found.families[k] in ("affine", "mulf")
            and carry[n].scalar.is_float
            for v in (carry[n], *(v for parts in wholes for v in parts[n]))
        ]  # fmt: skip

    def total(self, k: int) -> list[Value]:
        """The map of all of the thread's turns, one after the other."""
        made: list[Value] = []
        for group, there in zip(self.groups, self.within, strict=True):
            before = made or self.identity(k)

            def turns(group: range = group, made: list[Value] = made) -> list[Value]:
                for e in group:
                    self.enter(e)
                    made = self.composed(k, made, self.map(k)) if made else self.map(k)
                return made

            if self.anywhere(k):
                made = self.chosen(there, turns(), before)
            else:
                types = [v.type for v in before]
                made = self.either(there, turns, lambda before=before: before, types)
        return made

    def next(self, k: int, turn: int, value: Value) -> Value:
        """What a turn makes of ``value``; the same beyond the last turn."""
        there, (_, end) = self.within[turn // self.wide], self.carried_at(k)

        def made() -> list[Value]:
            self.enter(turn)
            return [self.evaluated(end, k, value)]

        if self.anywhere(k):
            return self.chosen(there, made(), [value])[0]
        return self.either(there, made, lambda: [value], [value.type])[0]

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
            at = [k for k, known in found.levels.items() if known == level]
            numbers = sum(1 + (found.families[k] == "affine") for k in at)
            words = 2 * (numbers * self.warps + len(at))
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

    def one_by_one(self, places: Sequence[int], carry: list[Value]) -> list[Value]:
        """As ``across``: what is carried goes from thread to thread, through the turns of each."""
        (lane, warp), one, zero = self.lane_and_warp(), self.constant(1, i32), self.constant(0, i32)
        many = len(carry)
        behind = self.places[self.level + 1] - 2 * many
        words = self.shared(self.word, self.places[-1]) if self.several else None

        def through(number: Value, state: list[Value]) -> list[Value]:
            starts = self.chosen(self.compare("eq", lane, number), state[:many], state[many:])
            ends: list[Value] = []
            for k, value in zip(places, state[:many], strict=True):
                for e in range(self.turns_of):
                    value = self.next(k, e, value)
                ends.append(value)
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

"""Scan: the threads of a group share loops whose every turn asks for what was carried so far.

A group goes through such a loop by chunks. Of a chunk each thread has a few neighbouring turns: it
composes the maps by which they change what is carried (``recurrences``), the group scans these,
and the thread then carries out its turns, in their order, from what is carried up to them. Values
whose maps depend on others follow these, level by level. What the turns of the next chunk load
ahead is loaded before. How maps are composed depends on the sizes only.

Products of factors may overflow, or meet a zero, where the turns one by one do not: a group that
finds something that is not finite takes what is carried through the turns in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from weft.ir.core import Block, Function, Op, Value, slice_of, walk
from weft.ir.types import ScalarType, i32
from weft.ir.views import For, constant_of, is_constant, memory
from weft.schedule.across_threads import AcrossThreads
from weft.schedule.bind import Bound
from weft.schedule.expose import anywhere
from weft.schedule.grid import SEVERAL
from weft.schedule.guards import Aligned, Guard, MultipleOf, Scanned, ScanSplit
from weft.schedule.language import Align, Scan, Step
from weft.schedule.nest import Nest
from weft.schedule.prefetch import ahead
from weft.schedule.recurrences import Recurrences, recalled
from weft.schedule.rows import VECTOR_BYTES
from weft.schedule.variation import Variation
from weft.values import frozen


def scan(
    function: Function, parallel: Op, step: Scan, limits: Mapping[Value, int]
) -> Bound:  # fmt: skip
    """As ``cooperate``. ``limits``: of arrays that are accessed in whole vectors, their bytes."""
    members = Scanning(function, parallel, step, limits)
    made = members.start(step.threads)
    members.all(0)
    return Bound((made,))


# -- rows

_TURNS, _MOST_OPS = 4, 512  # of a thread at a time, and operations in them
_JOINT_THREADS = 128  # where maps are matrices, as each thread reads those of all warps
Row = tuple[int, Value | None]


@frozen
class Vectors:
    """What vectors of so many turns need: ``arrays`` that are accessed by them, by their places
    among the function's arguments, and numbers that must be ``multiples`` of their width."""

    width: int
    arrays: dict[int, Value]
    multiples: tuple[Value, ...]


def vectors(loops: Iterable[Op]) -> Vectors:
    """How neighbouring turns of ``loops``, which are scanned, access rows."""
    arrays: dict[int, Value] = {}
    multiples: dict[Value, None] = {}
    for loop in loops:
        if is_constant(For(loop).lower, 0):
            multiples[For(loop).upper] = None
        for op, (_, end) in rows(loop).items():
            array, _, _ = memory(op)
            assert isinstance(array.owner, Block)
            arrays[array.owner.args.index(array)] = array
            multiples |= {end: None} if end is not None else {}
    largest = max((array.memref.element.bytes for array in arrays.values()), default=VECTOR_BYTES)
    return Vectors(min(VECTOR_BYTES // largest, 8), arrays, tuple(multiples))


def rows(loop: Op) -> dict[Op, Row]:
    """The loads and stores of every turn that go along rows of arguments from their first element
    on (1), or back to it (-1) from one in front of that which is given."""
    if not is_constant(For(loop).lower, 0):
        return {}
    iv, found = For(loop).index, dict[Op, Row]()
    along = Variation(loop.body, {iv: 1})
    for op in loop.body.ops:
        if op.name not in ("memref.load", "memref.store"):
            continue
        memref, subscripts, _ = memory(op)
        if memref.op is not None or not subscripts or not memref.memref.row_major:
            continue
        *outer, last = subscripts
        if along.uniform(*outer) and (row := _row(_plain(last), iv)) is not None:
            found[op] = row
    return found


def _plain(value: Value) -> Value:
    while value.op is not None and value.op.name == "arith.index_cast":
        value = value.op.operand
    return value


def _row(last: Value, iv: Value) -> Row | None:
    if last is iv:
        return 1, None
    op = last.op
    if op is None or op.name not in ("arith.addi", "arith.subi"):
        return None
    first, other = map(_plain, op.operands)
    negative = other.op is not None and other.op.name == "arith.muli" and op.name == "arith.addi"
    if negative and other.op is not None and any(is_constant(v, -1) for v in other.op.operands):
        other = next(_plain(v) for v in other.op.operands if not is_constant(v, -1))
    elif op.name == "arith.addi":
        return None
    end = first.op
    if other is not iv or end is None or end.name not in ("arith.addi", "arith.subi"):
        return None
    less = constant_of(end.right)
    return (-1, _plain(end.left)) if less == (-1 if end.name == "arith.addi" else 1) else None


def scanned(
    names: tuple[str, ...], loops: Mapping[Op, Recurrences], nest: Nest,
    step_of: Callable[[Value], int], *, pays: bool, parted: bool,
) -> Iterator[tuple[tuple[Guard, ...], tuple[Step, ...]]]:  # fmt: skip
    """Forms in which several threads have an iteration together, and scan what its loops carry: by
    vectors, or not: bits do not depend on which. ``names``: of all loops that threads
    share, of which ``loops`` are scanned. Where maps are matrices, threads have more turns: they
    compose them once for all. ``pays``, ``parted``: as of a team."""
    found = vectors(loops)
    size = max(sum(1 for _ in walk(op.body)) for op in loops)
    joint = max(len(group) for each in loops.values() for group in each.families)
    aligned = [(nest.arrays[k], array.memref.element.bytes) for k, array in found.arrays.items()]
    for parts in (0, 1)[not parted :]:
        threads, turns = SEVERAL, max(found.width, _TURNS)
        if joint > 1:
            threads = _JOINT_THREADS if parts else 2 * _JOINT_THREADS
            turns = turns if parts and joint == 2 else max(turns, 2 * _TURNS)
        while turns > 1 and turns * size > _MOST_OPS:
            turns //= 2
        width, guard = min(found.width, turns), Scanned(turns, pays) if parts else ScanSplit()
        if width > 1:
            bounds = [(name, min(width * bytes, VECTOR_BYTES)) for name, bytes in aligned]
            whole = (*(MultipleOf(step_of(v), width) for v in found.multiples),
                     *(Aligned(*n) for n in bounds))  # fmt: skip
            steps = tuple(Align(*n) for n in bounds)
            yield (*whole, guard), (Scan(names, threads, 0, width, turns, parts), *steps)
        yield (guard,), (Scan(names, threads, 0, 1, turns, parts),)


# -- the rewrite


class Scanning(AcrossThreads):
    """``along``: the rows of the loop at hand. ``loads``: those ahead of their turns."""

    along: dict[Op, Row]
    loads: list[Op]

    def __init__(
        self, function: Function, parallel: Op, step: Scan, limits: Mapping[Value, int]
    ) -> None:
        super().__init__(function, parallel, step)
        self.limits = limits

    def shared_loop(self, op: Op) -> list[Value]:
        if "scan" not in op.attrs:
            return super().shared_loop(op)
        found = recalled(op)
        self.lay_out(found)
        self.wide = self.step.width if is_constant(For(op).lower, 0) else 1
        self.serial, self.found, self.along, self.loads = op, found, rows(op), ahead(self.old, op)
        ordered = self.waits(op)
        if ordered:
            self.wait()
        results = self.scanned()
        if ordered or self.several:
            self.wait()
        return results

    def scanned(self) -> list[Value]:
        """What the loop carries in the end."""
        loop, kinds = For(self.serial), self.found.kinds
        lower, upper = self.lookup(loop.lower), self.lookup(loop.upper)
        inits = [self.lookup(v) for v in loop.inits]
        starts = [
            init if kind is None else self.neutral([kind], [init.scalar])[0]
            for kind, init in zip(kinds, inits, strict=True)
        ]
        ends = [*self.run(lower, upper, starts)]
        sums = [k for k, kind in enumerate(kinds) if kind is not None]
        if sums:
            names = [kind for kind in kinds if kind is not None]
            parts = self.together(names, [ends[k] for k in sums])
            for k, whole in zip(
                sums, self.pairs(names, [inits[k] for k in sums], parts), strict=True
            ):
                ends[k] = whole
        return ends

    def run(self, lower: Value, upper: Value, starts: Sequence[Value]) -> list[Value]:
        """What turns from ``lower`` to ``upper`` make of ``starts``."""
        count = len(starts)
        member = self.to(self.member, lower.type, unsigned=True)
        mine = self.mul(member, self.number(self.turns_of, lower))
        size = self.number(self.count * self.turns_of, lower)
        given = self.loaded(self.add(lower, mine, "nsw"), upper)

        def chunk(base: Value, carried: list[Value]) -> list[Value]:
            first = self.add(base, mine, "nsw")
            after = self.loaded(self.add(first, size, "nsw"), upper)
            self.open(first, upper, carried[count:-1])
            ends = self.chunk(carried[:count], carried[-1])
            return [*ends, *after, self.op("arith.xori", carried[-1], self.constant(1, i32))]

        none = self.constant(0, i32)
        return self.loop(lower, upper, size, [*starts, *given, none], chunk, unroll=1)[:count]

    def turn_at(self, first: Value, turn: int) -> Value:
        return self.add(first, self.number(turn, first), "nsw") if turn else first

    def inside(self, first: Value, upper: Value) -> list[Value]:
        """Whether the turns of each vector are turns of the loop."""
        return [self.compare("slt", self.turn_at(first, g[0]), upper) for g in self.groups]

    # -- loads ahead

    def loaded(self, first: Value, upper: Value) -> list[Value]:
        """What the thread's turns from ``first`` on load ahead, turn by turn; 0 beyond the last."""
        found: list[Value] = []
        for group, there in zip(self.groups, self.inside(first, upper), strict=True):
            none = [self.constant(0, load.result.scalar) for _ in group for load in self.loads]
            if none:
                found += self.either(
                    there, lambda g=group: self.vector(g, first), lambda n=none: n,
                    [v.type for v in none],
                )  # fmt: skip
        return found

    def vector(self, group: range, first: Value) -> list[Value]:
        found: dict[tuple[int, Op], Value] = {}
        for load in self.loads:
            for e in group:
                low = self.lowest(load, group, e)
                self.replacement[For(self.serial).index] = self.turn_at(first, low)
                for v in memory(load)[1]:
                    for inner in slice_of(v, self.serial.body, lambda _: True) or ():
                        self.rewrite(inner)
                found[e, load] = self.access(load, group, e, memory(load)[1]).result
        return [found[e, load] for e in group for load in self.loads]

    def lowest(self, op: Op, group: range, turn: int) -> int:
        """The turn whose element ``op`` has its place from."""
        direction = self.along[op][0] if op in self.along and self.wide > 1 else 0
        return (turn, group[0], group[-1])[direction]

    def access(self, op: Op, group: range, turn: int, subscripts: Sequence[Value]) -> Op:
        """A load or store by the place of the lowest element of the vector."""
        memref, _, values = memory(op)
        new = Op(op.name, [self.lookup(v) for v in (*values, memref, *subscripts)],
                 [v.type for v in op.results], dict(op.attrs), span=op.span)  # fmt: skip
        low = self.lowest(op, group, turn)
        if low != turn or (op in self.along and self.wide > 1):
            offset = abs(turn - low)
            limit = self.limits.get(memref)
            if offset:
                new.attrs["offset"] = offset
            if limit is not None:
                behind = offset * memref.memref.element.bytes
                new.attrs["align"] = min(behind & -behind, limit) if behind else limit
        return self.append(new)

    def rewrite(self, op: Op) -> None:
        if self.turn < 0 or op not in self.along or self.wide == 1:
            super().rewrite(op)
            return
        group = self.groups[self.turn // self.wide]
        *outer, last = memory(op)[1]
        place = self.maps[self.lowest(op, group, self.turn)].get(last, last)
        new = self.access(op, group, self.turn, [*outer, place])
        self.stand_for(op.results, new.results)

    # -- a chunk

    def open(self, first: Value, upper: Value, given: Sequence[Value]) -> None:
        """Begins a chunk, whose first turn of the thread is ``first``."""
        self.within, count = self.inside(first, upper), len(self.loads)
        self.maps = [
            {For(self.serial).index: self.turn_at(first, e)}
            | {load.result: given[e * count + k] for k, load in enumerate(self.loads)}
            for e in range(self.turns_of)
        ]  # fmt: skip

    def chunk(self, carried: Sequence[Value], phase: Value) -> list[Value]:
        """What is carried behind the chunk."""
        found, body = self.found, self.serial.body
        left = [op for op in body.ops[:-1] if op not in self.loads]
        state, ends = list(carried), list(carried)
        for self.level in range(found.last + 1):
            ops = [op for op in left if found.stage(op) <= self.level]
            self.early(ops)
            left = [op for op in left if op not in ops]
            groups = found.at(self.level)
            places = [k for group in groups for k in group]
            starts, wholes = self.across(groups, [state[k] for k in places], phase)
            for k, start, whole in zip(places, starts, wholes, strict=True):
                state[k], ends[k] = start, whole
            for group in groups if self.level < found.last else ():
                now = [state[k] for k in group]
                for e, turn in enumerate(self.maps):
                    turn |= {body.args[1 + k]: v for k, v in zip(group, now, strict=True)}
                    now = self.next(group, e, now)
        last = [k for k in range(len(state)) if found.levels.get(k, found.last) == found.last]
        for k, value in zip(last, self.late(left, last, [state[k] for k in last]), strict=True):
            if k not in found.levels:
                ends[k] = value
        return ends

    def early(self, ops: Sequence[Op]) -> None:
        """What the turns compute before what is carried is known."""
        results = [v for op in ops for v in op.results if isinstance(v.type, ScalarType)]

        def turns(group: range) -> list[Value]:
            made: list[Value] = []
            for e in group:
                self.enter(e, ops)
                made += [self.lookup(v) for v in results]
            return made

        for group, there in zip(self.groups, self.within, strict=True):
            if all(map(anywhere, ops)):
                made = turns(group)
            else:
                none = [self.constant(0, v.scalar) for _ in group for v in results]
                made = self.either(
                    there, lambda g=group: turns(g), lambda n=none: n, [v.type for v in none]
                )
            for k, e in enumerate(group):
                part = made[k * len(results) : (k + 1) * len(results)]
                self.maps[e] |= dict(zip(results, part, strict=True))

    def late(self, ops: Sequence[Op], places: Sequence[int], state: list[Value]) -> list[Value]:
        """What is left of the turns, which carry ``state`` at ``places``."""
        args, ends = self.serial.body.args[1:], self.serial.body.terminator.operands
        free = all(map(anywhere, ops))

        def turns(group: range) -> list[Value]:
            now = state
            for e in group:
                self.maps[e] |= {args[k]: v for k, v in zip(places, now, strict=True)}
                self.enter(e, ops)
                now = [self.lookup(ends[k]) for k in places]
            return now

        for group, there in zip(self.groups, self.within, strict=True):
            before = state
            if free:
                state = [
                    self.op("arith.select", there, new, old, type=old.type)
                    for new, old in zip(turns(group), before, strict=True)
                ]
            else:
                state = self.either(
                    there, lambda g=group: turns(g), lambda b=before: b, [v.type for v in before]
                )
        return state

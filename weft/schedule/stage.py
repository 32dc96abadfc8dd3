"""Stage: what all threads of a block read alike in a serial loop is in shared memory.

The threads of a block are neighbours along one parallel index. What a turn of the loop loads at
places that do not depend on that index, each thread would load, and compute from it, by itself.
Here the block does so once: its threads share the elements of the next ``steps`` turns, load them
while they carry out turns in front of these, and store what follows from them (a decay's
exponential) into one half of a ring, of which the turns read the other half. They wait for each
other once in ``steps`` turns. The order of all that is computed is what it was, and so is every
bit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, i1, i32, i64, index
from weft.ir.views import For, constant_of, memory, written_by
from weft.schedule.language import Stage
from weft.schedule.nest import loops_of
from weft.schedule.prefetch import Serial, ahead
from weft.schedule.unroll import turns
from weft.schedule.variation import Variation
from weft.values import mutable

MOST_BYTES = 48 << 10  # of shared memory that a block has without asking
_VECTOR = 16  # bytes that rows begin at multiples of
_HEAVY = {"arith.divf", "arith.remf", "arith.extf"}  # besides mathematics: computed once a block
_GROUP_OPS = 192  # of the turns between two loads, which hide what these take
_GROUP_WORDS = 16  # that a thread then has in registers


@mutable
class Row:
    """Values that a turn computes at all turns of the loops ``loops`` in it, the outermost first,
    and stages: by ``loads``, for which ``first`` computes subscripts, and ``then``. ``stands_for``:
    the operations whose results these are, with such loops of their own. ``offset``: of the row's
    first element among those of its type that a turn stages."""

    root: Op
    loops: tuple[Op, ...]
    first: list[Op]
    loads: list[Op]
    then: list[Op]
    stands_for: dict[Op, tuple[Op, ...]]
    offset: int = 0

    @property
    def element(self) -> ScalarType:
        return self.root.result.scalar

    @property
    def width(self) -> int:
        return math.prod(map(turns, self.loops))


def rows_of(function: Function, parallel: Op, axis: int, loop: Op) -> list[Row]:
    """What ``loop``, directly in an iteration, may stage where neighbours along ``axis`` are the
    threads of a block."""
    everything = list(walk(function.body))
    written = {memref for op in everything if (memref := written_by(op)) is not None}
    apart = function.attrs.get("noalias", True) or not written
    if not apart or loop not in parallel.body.ops or constant_of(For(loop).step) != 1:
        return []
    if parallel.attrs["kinds"] or done_once(parallel) is not None:
        return []
    own = {op.result for op in everything if op.name == "memref.alloca"}
    along = Variation(parallel.body, {parallel.body.args[axis]: 1}, changing=written | own)
    if not along.uniform(*For(loop).bounds):
        return []
    return _Finder(loop, along, written | own).rows()


def done_once(parallel: Op) -> Op | None:
    """What a thread beyond the last iteration, which carries that out once more, must not do."""
    found = (op for op in walk(parallel.body) if op.name.startswith(("weft.", "memref.atomic")))
    return next(found, None)


def bytes_of(rows: Sequence[Row], steps: int) -> int:
    """Of shared memory for turns of which so many are staged ahead."""
    return 2 * steps * sum(size * element.bytes for element, size in _laid_out(rows).items())


def _laid_out(rows: Sequence[Row]) -> dict[ScalarType, int]:
    """Elements of each type that a turn stages. Rows get their places."""
    sizes: dict[ScalarType, int] = {}
    for row in rows:
        row.offset = sizes.get(row.element, 0)
        aligned = max(_VECTOR // row.element.bytes, 1)
        sizes[row.element] = row.offset + -(-row.width // aligned) * aligned
    return sizes


class _Finder:
    def __init__(self, loop: Op, along: Variation, changing: Collection[Value]) -> None:
        self.loop, self.along, self.changing = loop, along, changing
        self.order = list(walk(loop.body))
        self.inside = set(self.order)
        self.home: dict[Op, tuple[Op, ...]] = dict(_home(loop.body, ()))
        self.indices = {For(loop).index}
        self.indices |= {For(inner).index for around in self.home.values() for inner in around}
        self.carried = {v for op in (loop, *self.order) for r in op.regions for v in r.args}
        self.slices: dict[Op, set[Op] | None] = {}
        self.seen: set[Op] = set()
        self.roots: list[Op] = []

    def rows(self) -> list[Row]:
        used: dict[Value, list[Op]] = {}
        for op in self.order:
            for value in op.operands:
                used.setdefault(value, []).append(op)
        for op in self.home:
            if self.alike(op) and not all(map(self.alike, used.get(op.result, []))):
                self.root(op)
        found: dict[object, Row] = {}
        for op in self.roots:
            row = self.row(op)
            same = found.setdefault(self.key(op, row.loops), row)
            same.stands_for |= row.stands_for
        return list(found.values())

    def alike(self, op: Op) -> bool:
        """Whether all threads compute the same by ``op``."""
        plain = op in self.home and not op.regions and len(op.results) == 1
        known = plain and (OPS[op.name].pure or op.name == "memref.load")
        return known and self.along.uniform(op.result)

    def root(self, op: Op) -> None:
        """Finds what to stage for ``op``: what was loaded, or what takes long to compute from it.
        Sums and products are computed from these by each thread, so that they join others as
        they did."""
        if op in self.seen or op not in self.home:
            return
        self.seen.add(op)
        needed, load = self.needed(op), op.name == "memref.load"
        mathematics = op.name.startswith("math.") and op.name not in ("math.fma", "math.absf")
        loads = needed is not None and any(o.name == "memref.load" for o in needed)
        if loads and (load or mathematics or op.name in _HEAVY) and op.result.type is not i1:
            self.roots.append(op)
        elif not load:
            for value in op.operands:
                if value.op is not None:
                    self.root(value.op)

    def needed(self, op: Op) -> set[Op] | None:
        """The operations of a turn that compute what ``op`` does; None where that is not known
        before the turn."""
        if op not in self.slices:
            self.slices[op] = self._needed(op)
        return self.slices[op]

    def _needed(self, op: Op) -> set[Op] | None:
        load = op.name == "memref.load"
        if not self.alike(op) or (load and memory(op)[0] in self.changing):
            return None
        found = {op}
        for value in op.operands:
            if value in self.carried and value not in self.indices:
                return None
            if value.op in self.inside:
                more = self.needed(value.op)  # type: ignore[arg-type]
                if more is None or (load and any(o.name == "memref.load" for o in more)):
                    return None
                found |= more
        return found

    def row(self, op: Op) -> Row:
        needed = self.needed(op)
        assert needed is not None
        used = {v for o in needed for v in o.operands}
        loops = tuple(inner for inner in self.home[op] if For(inner).index in used)
        loads = [o for o in self.order if o in needed and o.name == "memref.load"]
        first = {o for load in loads for o in self.needed(load) or ()}
        then, waiting = set[Op](), [op]
        while waiting:
            o = waiting.pop()
            if o in needed and o not in loads:
                then.add(o)
                waiting += [v.op for v in o.operands if v.op is not None]
        return Row(
            op, loops, [o for o in self.order if o in first], loads,
            [o for o in self.order if o in then], {op: loops},
        )  # fmt: skip

    def key(self, op: Op, loops: Sequence[Op]) -> object:
        """Equal for what is the same, whatever loops it stands in."""

        def of(value: Value) -> object:
            for k, inner in enumerate(loops):
                if value is For(inner).index:
                    return k, constant_of(For(inner).lower), turns(inner)
            return self.key(value.op, loops) if value.op in self.inside else value  # type: ignore[arg-type]

        attrs = repr(sorted(op.attrs.items()))
        return op.name, attrs, op.result.type, tuple(map(of, op.operands))


def _home(block: Block, around: tuple[Op, ...]) -> Iterator[tuple[Op, tuple[Op, ...]]]:
    """The operations that every turn carries out, with the loops of known turns around each."""
    for op in block.ops:
        yield op, around
        if op.name == "scf.for" and turns(op) > 0:
            yield from _home(op.body, (*around, op))


# -- the rewrite


def stage(
    function: Function, parallel: Op, axis: int, unrolled: Sequence[str], step: Stage
) -> tuple[Function, Op]:
    """``function`` after ``step``, in which the loops ``unrolled`` are written out, for blocks of
    threads along ``axis``; and its loop that was ``parallel``. All of it is legal."""
    work = _Staging(function, parallel, axis, unrolled, step)
    made = work.function(function)
    made.body.ops[:0] = work.front.ops
    return made, next(op for op in made.body.ops if op.name == "scf.parallel")


class _Staging(Serial):
    """``front``: what stands before the loop over iterations. ``group``: turns between two loads
    of elements."""

    def __init__(
        self, function: Function, parallel: Op, axis: int, unrolled: Sequence[str], step: Stage
    ) -> None:
        serial = loops_of(parallel)
        super().__init__(function, {serial[name] for name in unrolled}, {})
        self.loop, self.step = serial[step.loop], step
        self.rows = rows_of(function, parallel, axis, self.loop)
        self.front = Block()
        self.filling = False
        self.stands_for = {op: (row, at) for row in self.rows for op, at in row.stands_for.items()}
        self.dead = _unused(self.loop, self.stands_for)
        self.own = [load for load in ahead(function, self.loop)
                    if load not in self.dead and load not in self.stands_for]  # fmt: skip
        with self.at(self.front):
            self.slots = _laid_out(self.rows)
            self.rings = {
                element: self.op("memref.alloca", type=MemRefType(
                    element, 1, "contiguous", (2 * step.steps * size,), "shared"
                ))
                for element, size in self.slots.items()
            }  # fmt: skip
        self.group = self._group()

    def _group(self) -> int:
        size = sum(math.prod(map(turns, around)) for op, around in _home(self.loop.body, ()))
        group = 1
        while 2 * group <= self.step.steps and group * size < _GROUP_OPS:
            words = sum(
                -(-2 * group * row.width // self.step.threads) * len(row.loads) for row in self.rows
            )
            if words + 2 * group * len(self.own) > _GROUP_WORDS:
                break
            group *= 2
        return group

    # -- the walk

    def rewrite(self, op: Op) -> None:
        if self.filling or op not in self.dead:
            super().rewrite(op)

    def entered(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return self._staged(op) if op is self.loop else super().entered(op, rewriter)

    def copy(self, op: Op) -> Op:
        if self.filling or op not in self.stands_for:
            return super().copy(op)
        return self._read(op)

    def _read(self, op: Op) -> Op:
        """A load of what ``op`` computes."""
        row, loops = self.stands_for[op]
        place, known, stride = self.base[row.element], row.offset, 1
        for inner in reversed(loops):
            number, first = self.lookup(For(inner).index), constant_of(For(inner).lower)
            turn = constant_of(number)
            if turn is not None:
                known += stride * int(turn - (first or 0))
            else:
                known -= stride * int(first or 0)
                far = self.muli(self.cast(number, place.scalar), self.number(stride, place))
                place = self.addi(place, far)
            stride *= turns(inner)
        attrs: dict[str, int] = {"offset": known}
        if place is self.base[row.element]:  # rows begin at whole vectors: so does what is in them
            behind = known * row.element.bytes | _VECTOR
            attrs["align"] = behind & -behind
        ring = self.rings[row.element]
        return Op("memref.load", [ring, place], [row.element], attrs, span=op.span)

    def cast(self, value: Value, type: ScalarType) -> Value:
        return value if value.type is type else self.op("arith.index_cast", value, type=type)

    # -- the loop

    def _staged(self, op: Op) -> list[Value]:
        loop, group, steps = For(op), self.group, self.step.steps
        lower, upper, step = map(self.lookup, loop.bounds)
        self.lower, self.upper = lower, upper
        self.thread = self.op("gpu.thread_id", type=i32, dimension="x")
        if lower.type is index:
            wide = self.op("arith.extui", self.thread, type=i64)
            self.thread = self.op("arith.index_cast", wide, type=index)
        many = self.number(group, lower)
        end = upper
        if group > 1:
            trips = self.trip_count(lower, upper, step)
            end = self.addi(lower, self.muli(self.op("arith.floordivsi", trips, many), many))
        if group < steps:  # all of the first turns but the last ones of them
            begin = self.for_(lower, self._behind(lower, steps - group), many)
            begin.attrs |= {"unroll": 1}
            begin.regions = [block := Block([lower.type])]
            with self.at(block):
                self._fill(self._loaded_elements(block.args[0]), block.args[0])
                self.do("scf.yield")
        ahead = self._loaded_elements(self._behind(lower, steps - group))
        types = [load.result.scalar for _ in range(group) for load in self.own]

        def nothing() -> list[Value]:
            return [self.constant(0.0 if t.is_float else 0, t) for t in types]

        some = self.op("arith.cmpi", lower, end, predicate="slt")
        given = self._either(some, lambda: self._loaded(op, self.own, lower, group), nothing, types)
        inits = list(map(self.lookup, loop.inits))
        main = self.for_(lower, end, many, [*inits, *ahead, *given])
        main.attrs |= {"unroll": 1}
        main.regions = [block := Block([lower.type, *(v.type for v in main.results)])]
        position, *values = block.args
        position.name = loop.index.name
        carried, values = values[: len(inits)], values[len(inits) :]
        waiting, given = values[: len(ahead)], values[len(ahead) :]
        with self.at(block):
            self._fill(waiting, self._behind(position, steps - group))
            turn = self.op("arith.andi", self.subi(position, lower), self.number(steps - 1, lower))
            first = self.op("arith.cmpi", turn, self.number(0, lower), predicate="eq")
            with self.when(first):
                self.do("gpu.barrier", width=0)
            ahead = self._loaded_elements(self._behind(position, steps))
            next_ = self.addi(position, many)
            more = self.op("arith.cmpi", next_, end, predicate="slt")
            later = self._either(
                more, lambda: self._loaded(op, self.own, next_, group), lambda: given, types
            )
            for k in range(group):
                now = self._position(position, k)
                self._at(now)
                mine = given[k * len(self.own) : (k + 1) * len(self.own)]
                carried = self._turn(op, now, carried, self.own, mine)
            self.do("scf.yield", *carried, *ahead, *later)
        left, ahead = main.results[: len(inits)], main.results[len(inits) :][: len(ahead)]
        if group == 1:
            return left
        self._fill(ahead, self._behind(end, steps - group))
        self.do("gpu.barrier", width=0)
        rest = self.for_(end, upper, step, left)
        rest.attrs |= {"unroll": 1, "rare": True}
        rest.regions = [block := Block([lower.type, *(v.type for v in left)])]
        with self.at(block):
            self._at(block.args[0])
            self.do("scf.yield", *self.inline(op.body, block.args))
        return list(rest.results)

    def _behind(self, position: Value, steps: int) -> Value:
        return self.addi(position, self.number(steps, position)) if steps else position

    def _at(self, position: Value) -> None:
        """What is read next is of the turn at ``position``."""
        self.base = {element: self._slot(position, element) for element in self.rings}

    def _slot(self, position: Value, element: ScalarType) -> Value:
        """Where the elements of a turn begin."""
        turn = self.subi(position, self.lower)
        place = self.op("arith.andi", turn, self.number(2 * self.step.steps - 1, turn))
        return self.muli(place, self.number(self.slots[element], turn))

    # -- elements

    def _elements(self) -> Iterator[tuple[list[Row], int, Value, Value, Value | None]]:
        """Rows of one width, and which of their elements the thread has: how often it has one, its
        turn in the group, its place in the row, and whether there is one, where that is a
        question. (Operations are made on the way.)"""
        threads = self.step.threads
        for width in dict.fromkeys(row.width for row in self.rows):
            rows = [row for row in self.rows if row.width == width]
            for k in range(-(-self.group * width // threads)):
                number = self._behind(self.thread, k * threads)
                across = self.number(width, number)
                if width % threads == 0:
                    turn = self.number(k * threads // width, number)
                    place = self._behind(self.thread, k * threads % width)
                elif self.group == 1:
                    turn, place = self.number(0, number), number
                else:
                    turn = self.op("arith.divui", number, across)
                    place = self.op("arith.remui", number, across)
                there = None
                if (k + 1) * threads > self.group * width:
                    most = self.number(self.group * width, number)
                    there = self.op("arith.cmpi", number, most, predicate="slt")
                yield rows, k, turn, place, there

    def _loaded_elements(self, first: Value) -> list[Value]:
        """What the thread loads for the group of turns from the one at ``first``."""
        found: list[Value] = []
        for rows, _, turn, place, there in self._elements():
            types = [load.result.scalar for row in rows for load in row.loads]
            position = self.addi(first, turn)

            def loaded(rows: list[Row] = rows, place: Value = place, t: Value = position):
                return [v for row in rows for v in self._computed(row, row.first, t, place)]

            def nothing(types: list[ScalarType] = types) -> list[Value]:
                return [self.constant(0.0 if t.is_float else 0, t) for t in types]

            found += self._either(self._before_end(position, there), loaded, nothing, types)
        return found

    def _fill(self, loaded: Sequence[Value], first: Value) -> None:
        """Puts what follows from elements that were loaded so into shared memory."""
        left = iter(loaded)
        for rows, _, turn, place, there in self._elements():
            position = self.addi(first, turn)
            given = [[next(left) for _ in row.loads] for row in rows]
            with self.when(self._before_end(position, there)):
                for row, values in zip(rows, given, strict=True):
                    self.replacement.update(zip((o.result for o in row.loads), values, strict=True))
                    self._computed(row, row.then, position, place)
                    value = self.lookup(row.root.result)
                    at = self.addi(self._slot(position, row.element), place)
                    store = self.store(value, self.rings[row.element], [at])
                    store.attrs["offset"] = row.offset

    def _before_end(self, position: Value, there: Value | None) -> Value:
        before = self.op("arith.cmpi", position, self.upper, predicate="slt")
        return before if there is None else self.op("arith.andi", before, there)

    def _computed(self, row: Row, ops: Sequence[Op], position: Value, place: Value) -> list[Value]:
        """Carries out ``ops`` for one element of a row; gives what it loads."""
        self.replacement[For(self.loop).index] = position
        stride = row.width
        for k, inner in enumerate(row.loops):
            stride //= turns(inner)
            number = place
            if stride > 1:
                number = self.op("arith.divui", number, self.number(stride, number))
            if k > 0:
                number = self.op("arith.remui", number, self.number(turns(inner), number))
            number = self.cast(number, For(inner).index.scalar)
            first = int(constant_of(For(inner).lower) or 0)
            self.replacement[For(inner).index] = self._behind(number, first)
        self.filling = True
        for op in ops:
            self.rewrite(op)
        self.filling = False
        return [self.lookup(load.result) for load in row.loads]


def _unused(loop: Op, stands_for: Collection[Op]) -> set[Op]:
    """The operations of a turn that nothing asks for where these are loaded."""
    inside = list(walk(loop.body))
    waiting = [op for op in inside
               if op.regions or not (OPS[op.name].pure or op.name == "memref.load")]  # fmt: skip
    used: set[Op] = set(waiting)
    while waiting:
        op = waiting.pop()
        for value in () if op in stands_for else op.operands:
            if value.op is not None and value.op not in used:
                used.add(value.op)
                waiting.append(value.op)
    return {op for op in inside if op not in used}

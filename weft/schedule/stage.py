"""Stage: what all threads of a block read alike in a serial loop is in shared memory.

The threads of a block are neighbours along one parallel index. What a turn of the loop loads at
places that do not depend on that index, each thread would load, and compute from it, by itself.
Here the block does so once: its threads share the elements of the next ``steps`` turns, and load
them before they carry out the turns in front of these. Behind these they store what follows from
them (a decay's exponential) into one half of a ring, and wait for each other; the turns in front
read the other half. The order of all that is computed is what it was. (Of two products that are
added, one joins the sum in one operation: which, is LLVM's choice, as it is without this step.)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from weft.ir import writes
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, i1, i32, i64, index
from weft.ir.views import For, Parallel, constant_of, is_constant, memory, written_by
from weft.schedule.grid import WARP
from weft.schedule.language import SharedArrays, Stage
from weft.schedule.nest import loops_of
from weft.schedule.prefetch import Serial, ahead
from weft.schedule.shared_arrays import fitting
from weft.schedule.unroll import size_of, turns
from weft.schedule.variation import Variation
from weft.values import mutable

MOST_BYTES = 48 << 10  # of shared memory that a block has without asking
_VECTOR = 16  # bytes that rows begin at multiples of
_HEAVY = {"arith.divf", "arith.remf", "arith.extf"}  # besides mathematics: computed once a block

_MOST_STAGED, _LEAST_STAGED = 40 << 10, 64  # bytes: of shared memory; that a turn stages
_THREADS_STAGED = 128  # of a block that stages, at most
_MOST_TURNS = 8192  # operations in the turns of a loop before which others are staged
_MOST_STEPS, _MOST_WORDS = 16, 32  # turns that are staged, and words of them that a thread loads
_MOST_OF_CHUNKS = 24
_WORDS_STAGED = 96  # the same of chunks of turns: there are too few threads for more registers


@mutable
class Row:
    """Values that a turn computes at all turns of the loops ``loops`` in it, the outermost first,
    and stages: by ``loads``, for which ``first`` computes subscripts, and ``then``. ``stands_for``:
    the operations whose results these are, with such loops of their own. ``offset``: of the row's
    first element among those of its type that a turn stages; ``stride``: to the next one."""

    root: Op
    loops: tuple[Op, ...]
    first: list[Op]
    loads: list[Op]
    then: list[Op]
    stands_for: dict[Op, tuple[Op, ...]]
    offset: int = 0
    stride: int = 1

    @property
    def element(self) -> ScalarType:
        return self.root.result.scalar

    @property
    def width(self) -> int:
        return math.prod(map(turns, self.loops))


def rows_of(function: Function, parallel: Op, axis: int, loop: Op, threads: int) -> list[Row]:
    """What ``loop``, directly in an iteration, may stage where neighbours along ``axis`` are the
    ``threads`` of a block."""
    everything = list(walk(function.body))
    written = writes.written(everything)
    apart = function.attrs.get("noalias", True) or not written
    if not apart or loop not in parallel.body.ops or constant_of(For(loop).step) != 1:
        return []
    if parallel.attrs["kinds"] or done_once(parallel, axis, threads) is not None:
        return []
    own = {op.result for op in everything if op.name == "memref.alloca"}
    if not _exact(parallel, axis, threads) and _leads(parallel, written - own):
        return []  # because of threads that do an iteration once more, and find what others stored
    along = Variation(parallel.body, {parallel.body.args[axis]: 1}, changing=written | own)
    if not along.uniform(*For(loop).bounds):
        return []
    return _Finder(loop, along, written | own).rows()


def done_once(parallel: Op, axis: int, threads: int) -> Op | None:
    """What a thread beyond the last iteration, which carries that out once more, must not do."""
    every, exact = list(walk(parallel.body)), _exact(parallel, axis, threads)
    used = {v for op in every for v in op.operands}
    return next(
        (op for op in every if op.name.startswith("weft.") or (
            not exact and op.name.startswith("memref.atomic")
            and (op.name != "memref.atomic_rmw" or not used.isdisjoint(op.results))
        )), None,
    )  # fmt: skip


def _exact(parallel: Op, axis: int, threads: int) -> bool:
    """Whether no block has threads beyond the last iteration."""
    lower, upper, _ = map(constant_of, Parallel(parallel).axes[axis])
    return lower is not None and upper is not None and int(upper - lower) % threads == 0


def _leads(parallel: Op, memrefs: Collection[Value]) -> bool:
    """Whether what is loaded from ``memrefs`` decides about more than what numbers are."""
    every, found, before = list(walk(parallel.body)), set[Value](), -1
    loops = [For(op) for op in every if op.name == "scf.for"]
    indices, bounds = {loop.index for loop in loops}, {v for loop in loops for v in loop.bounds}
    while len(found) > before:  # until loops and local arrays hand on no more of it
        before = len(found)
        for op in every:
            given = [*op.operands, *(v for r in op.regions for v in r.terminator.operands)]
            loads = op.name == "memref.load" and memory(op)[0] in memrefs
            if loads or not found.isdisjoint(given):
                found.update(op.results)
                found.update(v for r in op.regions for v in r.args if v not in indices)
                if (memref := written_by(op)) is not None and memref.op:
                    found.add(memref)
    return not found.isdisjoint(bounds) or any(
        isinstance(v.type, ScalarType) and not v.type.is_float for v in found
    )


def bytes_of(rows: Sequence[Row], steps: int) -> int:
    """Of shared memory for turns of which so many are staged ahead."""
    return 2 * steps * sum(size * element.bytes for element, size in _laid_out(rows).items())


def _laid_out(rows: Sequence[Row]) -> dict[ScalarType, int]:
    """Elements of each type that a turn stages. Rows get their places: one after the other, or side
    by side where turns of a loop that stays one read all of them: as vectors."""
    sizes: dict[ScalarType, int] = {}
    beside: dict[tuple[ScalarType, int], list[Row]] = {}
    for row in rows:
        aligned = max(_VECTOR // row.element.bytes, 1)
        if any("unroll" in inner.attrs for inner in row.loops):
            beside.setdefault((row.element, row.width), []).append(row)
            continue
        row.offset = sizes.get(row.element, 0)
        sizes[row.element] = row.offset + -(-row.width // aligned) * aligned
    for (element, width), few in beside.items():
        aligned, first = max(_VECTOR // element.bytes, 1), sizes.get(element, 0)
        stride = (-(-len(few) // aligned) | 1) * aligned  # without conflicts where it is filled
        for k, row in enumerate(few):
            row.offset, row.stride = first + k, stride
        sizes[element] = first + width * stride
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


def staged(
    function: Function, parallel: Op, axis: int, unrolled: Sequence[str]
) -> tuple[Stage | SharedArrays, ...]:
    """The loops whose turns read what all threads of a block read: each of them would read these by
    itself, and threads that have arrays in registers are too few to wait for it. What is left of
    shared memory is for arrays that are in none."""
    lower, upper, _ = map(constant_of, Parallel(parallel).axes[axis])
    count = WARP * 2 if lower is None or upper is None else int(upper - lower)
    threads = min(max(1 << (count - 1).bit_length(), WARP), _THREADS_STAGED)
    found: list[Stage | SharedArrays] = []
    loops, left = loops_of(parallel), _MOST_STAGED
    for name, loop in loops.items():
        several = loop.attrs.get("turns", 1)
        if "rare" in loop.attrs or not (unrolled or several > 1):
            continue
        least, most = (2, _MOST_WORDS) if several == 1 else (1, _WORDS_STAGED)
        rows = rows_of(function, parallel, axis, loop, threads)
        steps = _MOST_STEPS if several == 1 else 1
        taken = {op for row in rows for op in (*row.loads, *row.stands_for)}
        words = sum(row.width * len(row.loads) for row in rows) / threads
        words += sum(load not in taken for load in _own_ahead(function, loop))
        size = size_of(loop.body, {loops[name] for name in unrolled})
        while steps >= least and (
            bytes_of(rows, steps) > left or steps * size > _MOST_TURNS
            or steps * words > most
        ):  # fmt: skip
            steps //= 2
        if steps >= least and bytes_of(rows, 1) // 2 >= _LEAST_STAGED:
            found.append(Stage(name, steps, threads))
            left -= bytes_of(rows, steps)
    fixed, room = {For(loops[name]).index for name in unrolled}, MOST_BYTES - _MOST_STAGED + left
    if found and fitting(parallel, threads, room, fixed):
        found.append(SharedArrays())
    return tuple(found)


def _own_ahead(function: Function, loop: Op) -> list[Op]:
    """What each thread loads ahead for itself: of chunks, whose sums need the registers, only where
    that is little."""
    found = ahead(function, loop)
    return found if "turns" not in loop.attrs or len(found) <= _MOST_OF_CHUNKS else []


def stored_rows(function: Function, parallel: Op, unrolled: Sequence[str]) -> list[Value]:
    """The arguments that loops which are written out store element after element of, in whole
    vectors."""
    found: dict[Value, None] = {}
    for name in unrolled:
        loop = loops_of(parallel)[name]
        for memref, subscripts, _ in (memory(o) for o in walk(loop.body)
                                      if o.name == "memref.store"):  # fmt: skip
            if (
                memref in function.args and memref.memref.row_major
                and subscripts[-1] is For(loop).index and is_constant(For(loop).lower, 0)
                and turns(loop) * memref.memref.element.bytes % _VECTOR == 0
            ):  # fmt: skip
                found[memref] = None
    return [*found]


# -- the rewrite


def stage(
    function: Function, parallel: Op, axis: int, unrolled: Sequence[str], steps: Sequence[Stage]
) -> tuple[Function, Op]:
    """``function`` after ``steps``, in which the loops ``unrolled`` are written out, for blocks of
    threads along ``axis``; and its loop that was ``parallel``. All of it is legal."""
    work = _Staging(function, parallel, axis, unrolled, steps)
    made = work.function(function)
    made.body.ops[:0] = work.front.ops
    return made, next(op for op in made.body.ops if op.name == "scf.parallel")


class _Staging(Serial):
    """``front``: what stands before the loop over iterations. ``step``, ``rows``, ``slots``,
    ``rings``, ``own``: of the ``loop`` that is being staged. ``base``: where the elements begin of
    the turn that is written ``turn`` turns later."""

    loop: Op
    step: Stage
    rows: list[Row]
    slots: dict[ScalarType, int]
    rings: dict[ScalarType, Value]
    own: list[Op]

    def __init__(
        self, function: Function, parallel: Op, axis: int, unrolled: Sequence[str],
        steps: Sequence[Stage],
    ) -> None:  # fmt: skip
        serial = loops_of(parallel)
        super().__init__(function, {serial[name] for name in unrolled}, {})
        self.asked = {serial[step.loop]: step for step in steps}
        self.found = {loop: rows_of(function, parallel, axis, loop, step.threads)
                        for loop, step in self.asked.items()}  # fmt: skip
        self.front = Block()
        self.filling, self.turn = False, 0
        self.base: dict[ScalarType, Value] = {}
        self.stands_for = {op: (row, at) for rows in self.found.values() for row in rows
                           for op, at in row.stands_for.items()}  # fmt: skip
        self.dead = set().union(*(_unused(loop, self.stands_for) for loop in self.asked))

    def _enter(self, loop: Op) -> None:
        self.loop, self.step, self.rows = loop, self.asked[loop], self.found[loop]
        self.own = [load for load in _own_ahead(self.old, loop)
                    if load not in self.dead and load not in self.stands_for]  # fmt: skip
        with self.at(self.front):
            self.slots = _laid_out(self.rows)
            self.rings = {
                element: self.op("memref.alloca", type=MemRefType(
                    element, 1, "contiguous", (2 * self.step.steps * size,), "shared"
                ))
                for element, size in self.slots.items()
            }  # fmt: skip

    # -- the walk

    def rewrite(self, op: Op) -> None:
        if self.filling or op not in self.dead:
            super().rewrite(op)

    def entered(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return self._staged(op) if op in self.asked else super().entered(op, rewriter)

    def copy(self, op: Op) -> Op:
        if self.filling or op not in self.stands_for:
            return super().copy(op)
        return self._read(op)

    def _read(self, op: Op) -> Op:
        """A load of what ``op`` computes."""
        row, loops = self.stands_for[op]
        base, stride = self.base[row.element], row.stride
        place, known = base, row.offset + self.turn * self.slots[row.element]
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
        if place is base or row.stride > 1:  # what is in whole vectors begins at some
            behind = known * row.element.bytes | _VECTOR
            attrs["align"] = behind & -behind
        ring = self.rings[row.element]
        return Op("memref.load", [ring, place], [row.element], attrs, span=op.span)

    def cast(self, value: Value, type: ScalarType) -> Value:
        return value if value.type is type else self.op("arith.index_cast", value, type=type)

    # -- the loop

    def _staged(self, op: Op) -> list[Value]:
        self._enter(op)
        loop, steps, own = For(op), self.step.steps, self.own
        lower, upper, step = map(self.lookup, loop.bounds)
        self.lower, self.upper = lower, upper
        self.thread = self.op("gpu.thread_id", type=i32, dimension="x")
        if lower.type is index:
            wide = self.op("arith.extui", self.thread, type=i64)
            self.thread = self.op("arith.index_cast", wide, type=index)
        many = self.number(steps, lower)
        trips = self.trip_count(lower, upper, step)
        end = self.addi(lower, self.muli(self.op("arith.floordivsi", trips, many), many))
        types = [load.result.scalar for _ in range(steps) for load in own]
        waiting = self._loaded_elements(lower)
        some = self.op("arith.cmpi", lower, end, predicate="slt")
        given = self.either(
            some, lambda: self._loaded(op, own, lower, steps), lambda: self.nothing(types), types
        )
        inits = list(map(self.lookup, loop.inits))
        main = self.for_(lower, end, many, [*inits, *waiting, *given], unroll=1)
        position, *values = main.body.args
        position.name = loop.index.name
        carried, values = values[: len(inits)], values[len(inits) :]
        with self.at(main.body):
            self._fill(values[: len(waiting)], position)
            next_ = self.addi(position, many)
            later = self._loaded_elements(next_)
            more = self.op("arith.cmpi", next_, end, predicate="slt")
            given = values[len(waiting) :]
            later += self.either(
                more, lambda: self._loaded(op, own, next_, steps), lambda: given, types
            )
            for self.turn in range(steps):
                mine = given[self.turn * len(own) : (self.turn + 1) * len(own)]
                carried = self._turn(op, self._behind(position, self.turn), carried, own, mine)
            self.do("scf.yield", *carried, *later)
        left, self.turn = main.results[: len(inits)], 0
        if steps == 1:  # all turns are whole
            return left
        self._fill(main.results[len(inits) :][: len(waiting)], end)
        rest = self.for_(end, upper, step, left, unroll=1, rare=True)
        with self.at(rest.body):
            self.base = self._slot(rest.body.args[0])
            self.do("scf.yield", *self.inline(op.body, rest.body.args))
        return list(rest.results)

    def _behind(self, position: Value, steps: int) -> Value:
        return self.addi(position, self.number(steps, position)) if steps else position

    def _slot(self, position: Value) -> dict[ScalarType, Value]:
        """Where the elements of the turn at ``position`` begin."""
        turn = self.subi(position, self.lower)
        place = self.op("arith.andi", turn, self.number(2 * self.step.steps - 1, turn))
        return {element: self.muli(place, self.number(size, place))
                for element, size in self.slots.items()}  # fmt: skip

    # -- elements

    def _elements(self) -> Iterator[tuple[list[Row], Value, Value, Value | None]]:
        """Rows of one width, and of the thread's elements of them one after the other: its turn,
        its place in the row, and whether there is one, where that is a question. (Operations are
        made on the way.)"""
        threads, steps = self.step.threads, self.step.steps
        for width in dict.fromkeys(row.width for row in self.rows):
            rows = [row for row in self.rows if row.width == width]
            for k in range(0, steps * width, threads):
                number = self._behind(self.thread, k)
                across = self.number(width, number)
                if width % threads == 0:
                    turn = self.number(k // width, number)
                    place = self._behind(self.thread, k % width)
                else:
                    turn = self.op("arith.divui", number, across)
                    place = self.op("arith.remui", number, across)
                there = None
                if k + threads > steps * width:
                    most = self.number(steps * width, number)
                    there = self.op("arith.cmpi", number, most, predicate="slt")
                yield rows, turn, place, there

    def _loaded_elements(self, first: Value) -> list[Value]:
        """What the thread loads for the turns from the one at ``first``."""
        found: list[Value] = []
        for rows, turn, place, there in self._elements():
            types = [load.result.scalar for row in rows for load in row.loads]
            position = self.addi(first, turn)

            def loaded(rows: list[Row] = rows, place: Value = place, t: Value = position):
                return [v for row in rows for v in self._computed(row, row.first, t, place)]

            found += self.either(
                self._before_end(position, there), loaded, partial(self.nothing, types), types
            )
        return found

    def _fill(self, loaded: Sequence[Value], first: Value) -> None:
        """Puts what follows from elements that were loaded so into shared memory, from where the
        turn at ``first`` reads them when all threads have done so."""
        left, self.base = iter(loaded), self._slot(first)
        for rows, turn, place, there in self._elements():
            position = self.addi(first, turn)
            given = [[next(left) for _ in row.loads] for row in rows]
            with self.when(self._before_end(position, there)):
                for row, values in zip(rows, given, strict=True):
                    self.replacement.update(zip((o.result for o in row.loads), values, strict=True))
                    self._computed(row, row.then, position, place)
                    value, base = self.lookup(row.root.result), self.base[row.element]
                    behind = self.muli(turn, self.number(self.slots[row.element], turn))
                    far = place
                    if row.stride > 1:
                        far = self.muli(place, self.number(row.stride, place))
                    at = self.addi(self.addi(base, behind), far)
                    self.store(value, self.rings[row.element], [at]).attrs["offset"] = row.offset
        self.do("gpu.barrier", width=0)

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

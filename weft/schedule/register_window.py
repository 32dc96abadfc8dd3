"""Register window: elements that turns of a serial loop read again stay in registers.

Turn u reads ``w[a + u]`` to ``w[a + u + 7]``, the next one the same but for one element: seven of
them are carried over, and one is loaded (scalar replacement: Callahan, Carr, Kennedy 1990). As many
turns become one, so that no element has to move from one register to the next, and so that new
elements are loaded side by side, as whole vectors where a call's addresses allow. What is left of
the turns follows one by one. The order of all that is computed is what it was, and so is every bit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import field

from weft.index.expression import Dim, Poly, atom
from weft.index.integers import Integers
from weft.ir.builder import Rewriter, annotated
from weft.ir.core import Function, Op, Value, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.views import For, Parallel, memory
from weft.ir.writes import written
from weft.schedule.guards import MultipleOf
from weft.schedule.jammed_body import STAGED
from weft.schedule.language import (
    Align,
    RegisterWindow,
    Reverse,
    Schedule,
    UnrollJam,
    several,
    tiled,
)
from weft.schedule.nest import LoopNest
from weft.schedule.rows import VECTOR_BYTES
from weft.schedule.spmd import WORKGROUP
from weft.schedule.unroll_jam import TILE
from weft.values import mutable

# Turns that are written out one after the other where it is known that they are there: of rows that
# are loaded in vectors, and of others, whose addresses need registers.
_WRITTEN_OUT = 16, 8
_MOST_STORED = 128  # bytes of a thread's results that it stores in vectors, if it stages no rows
MARK = "window"  # attribute of a loop: so many turns become one


@mutable
class Window:
    """What a loop loads of one row, element by element along its index: turn ``u`` loads elements
    ``sign * u + d`` behind a place that the loop does not change, for each ``d`` in ``loads``.
    ``behind``: by how many elements that place is behind a multiple of ``width``, the length of a
    vector, in the first turn; ``ahead``: so many elements are loaded before their turn, so that
    vectors are whole. ``values``: the elements that are in registers, by ``d`` of the first of the
    turns that become one."""

    sign: int
    width: int
    behind: int
    loads: dict[Op, int]
    ahead: int = 0
    values: dict[int, Value] = field(default_factory=dict[int, Value])

    @property
    def first(self) -> Op:
        return next(iter(self.loads))

    def carried(self) -> list[int]:
        """The elements that are in registers when the first of the turns begins."""
        low, high = min(self.loads.values()), max(self.loads.values())
        if self.sign > 0:
            return list(range(low, high + self.ahead))
        return list(range(low + 1 - self.ahead, high + 1))

    def align(self, turns: int) -> None:
        """Chooses ``ahead``."""
        if turns % self.width:
            self.width = 1
        edge = max(self.loads.values()) if self.sign > 0 else min(self.loads.values()) + 1
        self.ahead = -self.sign * (edge + self.behind) % self.width

    def vector(self, element: int) -> range:
        """The elements that are loaded together with this one."""
        first = element - (element + self.behind) % self.width
        return range(first, first + self.width)


def marked(function: Function, loops: Mapping[Op, RegisterWindow]) -> Function:
    """A copy of ``function``, in which the loops say how many turns become one."""
    return annotated(function, {
        op: {MARK: step.turns} | ({STAGED: step.staged} if step.staged else {})
        for op, step in loops.items()
    })  # fmt: skip


def windows(
    function: Function, loop: Op, limits: Mapping[Value, int], found: Integers | None = None
) -> list[Window]:
    """What ``loop`` loads in every turn, from the next place of a row each time. ``limits``: of
    arguments that are loaded in whole vectors, their bytes."""
    found = found or Integers(function)
    iv, begin = For(loop).index, found.poly(For(loop).lower)
    changed, numbers = written(function), {*function.args}
    rows: dict[tuple[Value, int, tuple[Poly, ...]], Window] = {}
    for op in loop.body.ops:
        if op.name != "memref.load":
            continue
        memref, subscripts, _ = memory(op)
        polys = [poly for v in subscripts if (poly := found.poly(v)) is not None]
        exempt = memref in changed or (changed and not function.attrs.get("noalias", True))
        known = memref in function.args and not exempt
        if not (known or is_shared(memref)) or not 0 < len(polys) == len(subscripts):
            continue
        *outer, last = polys
        sign = last.slope(iv)
        known = all(slice_of(v, loop.body, _pure) is not None for v in subscripts)
        if sign not in (1, -1) or not known or any(poly.mentions(iv) for poly in outer):
            continue
        place = last - atom(iv).scaled(sign)
        key = memref, sign, (*outer, place - Poly({(): place.offset} if place.offset else {}))
        if key not in rows:
            limit = VECTOR_BYTES if is_shared(memref) else limits.get(memref, 0)
            width = limit // memref.memref.element.bytes
            first = place + begin.scaled(sign) if begin is not None and width > 1 else None
            far = None if first is None else behind(first, width, numbers)
            start = (1, 0) if far is None else (width, (far[0] - place.offset) % width)
            rows[key] = Window(sign, *start, {})
        rows[key].loads[op] = place.offset
    return [part for row in rows.values() for part in _parts(row, loop.attrs.get(MARK, 1))]


def is_shared(memref: Value) -> bool:
    """Whether a block's threads share it: what a loop reads of it they wrote before they waited."""
    return memref.memref.space == "shared"


def behind(place: Poly, width: int, numbers: Set[Value]) -> tuple[int, list[Value | Dim]] | None:
    """How far ``place`` is behind a multiple of ``width`` if sizes and ``numbers`` are multiples,
    and which of these that takes; None where it depends on something else."""
    needed: list[Value | Dim] = []
    for monomial, factor in place.terms.items():
        if monomial and factor % width:
            known = [a for a in monomial if isinstance(a, Dim) or a in numbers]
            if not known:
                return None
            needed.append(known[0])  # type: ignore[arg-type]
    return place.offset % width, needed


def _parts(row: Window, turns: int) -> list[Window]:
    """``row``, cut where elements are so far apart that turns which become one share none."""
    found: list[Window] = []
    for op, place in sorted(row.loads.items(), key=lambda item: item[1]):
        if not found or place - max(found[-1].loads.values()) > turns:
            found.append(Window(row.sign, row.width, row.behind, {}))
        found[-1].loads[op] = place
    for part in found:
        part.align(turns)
    return found


def whole_vectors(
    nest: LoopNest, schedule: Schedule, step_of: Callable[[Value], int]
) -> tuple[list[Align], list[MultipleOf]]:
    """The arrays of which windows load whole vectors, and the sizes and numbers that must be
    multiples of these for that. ``step_of``: of the nest's program."""
    function, parallel = nest.function, nest.parallel
    found, numbers = nest.integers, {*function.args}
    jams = {nest.index(jam.axis): jam.copies for jam in several(schedule, UnrollJam)
            if jam.stride == 1 and (jam.whole or not jam.overlap)}  # fmt: skip
    begins, sizes = nest.once(_begins), nest.once(_sizes)
    arrays: dict[str, Align] = {}
    multiples: dict[MultipleOf, None] = {}
    stored = _stored_in_vectors(parallel, found, begins, jams)
    # A vector takes neighbouring registers: none are left beside many sums and places in memory.
    results = math.prod(jam.copies for jam in several(schedule, UnrollJam))
    if not tiled(schedule):
        stored = {v for v in stored if results * v.memref.element.bytes <= _MOST_STORED}
    for name, memref in zip(nest.arrays, function.args, strict=True):
        if memref in stored:
            arrays[name] = Align(name, VECTOR_BYTES)
    for step in several(schedule, RegisterWindow):
        loop = For(nest.serial[step.loop])
        # Where the first turn is.
        begin = found.poly(loop.upper if Reverse(step.loop) in schedule else loop.lower)
        for row in nest.once(_rows, loop.op):
            memref, subscripts, _ = memory(row.first)
            width = VECTOR_BYTES // memref.memref.element.bytes
            place = found.poly(subscripts[-1])
            whole = width > 1 and step.turns % width == 0 and memref.memref.row_major
            if not whole or place is None or begin is None:
                continue
            at: dict[Value | Dim, Poly | None] = {loop.index: begin}
            # Where the first of a thread's neighbours is.
            first: dict[Value | Dim, Poly | None] = {
                iv: low for iv, low in begins.items() if jams.get(iv, 1) % width == 0
            }
            asked = behind(place.substitute(at.get).substitute(first.get), width, numbers)
            if asked is not None:
                name = nest.arrays[function.args.index(memref)]
                arrays[name] = Align(name, VECTOR_BYTES)
                multiples |= {
                    MultipleOf(step_of(v if isinstance(v, Value) else sizes[v]), width): None
                    for v in asked[1]
                }
    return list(arrays.values()), list(multiples)


def _rows(nest: LoopNest, loop: Op) -> list[Window]:
    return windows(nest.function, loop, {}, nest.integers)


def _begins(nest: LoopNest) -> dict[Value, Poly | None]:
    """Where each parallel index begins."""
    loop = Parallel(nest.parallel)
    return {iv: nest.integers.poly(axis[0])
            for iv, axis in zip(loop.indices, loop.axes, strict=True)}  # fmt: skip


def _sizes(nest: LoopNest) -> dict[Dim, Value]:
    return {Dim(op.operand, op.attrs["axis"]): op.result
            for op in walk(nest.function.body) if op.name == "memref.dim"}  # fmt: skip


def _stored_in_vectors(
    parallel: Op, found: Integers, begins: Mapping[Value, Poly | None], jams: Mapping[Value, int]
) -> set[Value]:
    """The arrays that a thread's neighbours store whole vectors of, side by side."""
    stored: set[Value] = set()
    for op in walk(parallel.body):
        memref, subscripts = memory(op)[:2] if op.name == "memref.store" else (None, ())
        place = found.poly(subscripts[-1]) if subscripts else None
        if memref is None or place is None or not memref.memref.row_major:
            continue
        width = VECTOR_BYTES // memref.memref.element.bytes
        for iv, begin in begins.items():
            if place.slope(iv) == 1 and jams.get(iv, 1) % width == 0 and begin is not None:
                far = behind(place - atom(iv) + begin, width, set())
                if width > 1 and far == (0, []):
                    stored.add(memref)
    return stored


def align_stores(function: Function, parallel: Op, limits: Mapping[Value, int]) -> None:
    """Notes, of stores to arguments whose rows are made of vectors of so many bytes, what their
    addresses are multiples of. (Neighbours that are stored together become vectors.)"""
    atoms = [op.result for op in walk(parallel.body) if TILE in op.attrs]
    found = Integers(function, atoms)
    for op in walk(parallel.body):
        if op.name == "memref.store" and (limit := limits.get(memory(op)[0])):
            memref, subscripts, _ = memory(op)
            size = memref.memref.element.bytes
            place = found.poly(subscripts[-1])
            far = None if place is None else behind(place, limit // size, set())
            if far is not None and not far[1]:
                op.attrs["align"] = far[0] * size & -(far[0] * size) or limit


def register_window(
    function: Function, parallel: Op, limits: Mapping[Value, int]
) -> tuple[Function, Op]:
    """``function``, in which turns of the marked loops of ``parallel`` became one, and its loop
    that was ``parallel``. ``limits``: of arguments that are loaded in whole vectors, their
    bytes."""
    work = _Windows(function, limits)
    place = function.body.ops.index(parallel)
    made = work.function(function)
    return made, made.body.ops[place]


class _Windows(Rewriter):
    def __init__(self, function: Function, limits: Mapping[Value, int]) -> None:
        super().__init__(None, self._around)
        self.old, self.limits = function, limits
        self.found = Integers(function)
        self.is_shader = WORKGROUP in function.attrs  # as short a text as there is, for its driver

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if MARK not in op.attrs:
            return None
        if "unroll" not in op.attrs:
            return self._together(op, op.attrs[MARK])
        made = self.copy(op)  # of those that unroll-and-jam left, one that runs rarely
        del made.attrs[MARK]
        self.region(op.body, made.body)
        return self.append(made).results

    def _together(self, op: Op, turns: int) -> list[Value]:
        loop = For(op)
        rows = windows(self.old, op, self.limits, self.found)
        lower, upper, step = map(self.lookup, loop.bounds)
        many = self.number(turns, lower)
        # Behind a row in shared memory there is something to load.
        later = max([0, *(row.ahead for row in rows if not is_shared(memory(row.first)[0]))])
        if exact := 0 if later else op.attrs.get(STAGED, 0):  # just so many turns
            start, end, some = self.number(0, lower), self.number(exact, lower), None
        else:
            left = self.subi(self.trip_count(lower, upper, step), self.number(later, lower))
            left = self.op("arith.maxsi", left, self.number(0, lower))
            whole = self.muli(self.op("arith.floordivsi", left, many), many)
            start, end = lower, self.addi(lower, whole)
            some = self.op("arith.cmpi", lower, end, predicate="slt")
        kept = [(row, element) for row in rows for element in row.carried()]
        begin = self._first(op, some, lower, kept)
        written_out = max(_WRITTEN_OUT[not self.limits] // turns, 1) if exact else 1
        inits = [*map(self.lookup, loop.inits), *begin]
        main = self.for_(start, end, many, inits, unroll=written_out)
        place, *values = main.body.args
        place.name = loop.index.name
        carried, buffer = values[: len(loop.inits)], values[len(loop.inits) :]
        for (row, element), value in zip(kept, buffer, strict=True):
            row.values[element] = value
        of = {load: row for row in rows for load in row.loads}

        def body() -> list[Value]:
            position = self.addi(lower, place) if exact else place
            places = {row: self._place(row, op, position) for row in rows}
            ends = carried
            for turn in range(turns):
                index = self.addi(position, self.number(turn, lower)) if turn else position
                self.replacement.update(zip(op.body.args, [index, *ends], strict=True))
                for inner in op.body.ops[:-1]:
                    if inner in of:
                        value = self._element(of[inner], inner, turn, places[of[inner]])
                        self.replacement[inner.result] = value
                    else:
                        self.rewrite(inner)
                ends = [self.lookup(v) for v in loop.yielded]
            return [*ends, *(row.values[element + row.sign * turns] for row, element in kept)]

        self.fill(main.body, body)
        main.body.ops[:-1] = by_loads(main.body.ops[:-1], whole=self.is_shader)
        results = main.results[: len(loop.inits)]
        if exact:
            return list(results)
        rest = self.for_(end, upper, step, results, unroll=1, rare=True)
        self.region(op.body, rest.body)
        return list(rest.results)

    def _first(
        self, op: Op, some: Value | None, lower: Value, kept: Sequence[tuple[Window, int]]
    ) -> list[Value]:
        """The elements that are in registers before the first turn."""
        types = [row.first.result.scalar for row, _ in kept]

        def loaded() -> list[Value]:
            places = {row: self._place(row, op, lower) for row, _ in kept}
            return [self._load(row, k, places[row]) for row, k in kept]

        def nothing() -> list[Value]:
            return [self.constant(0, t) for t in types]

        shared = self.is_shader and all(is_shared(memory(row.first)[0]) for row, _ in kept)
        if not types or some is None or shared:  # there is something to load
            return loaded()
        return self.either(some, loaded, nothing, types)

    def _place(self, row: Window, op: Op, position: Value) -> list[Value]:
        """The subscripts of the first load of a row where the turn is at ``position``."""
        _, subscripts, _ = memory(row.first)
        needed = {o for v in subscripts for o in slice_of(v, op.body, _pure) or ()}
        self.replacement[op.body.args[0]] = position
        for inner in op.body.ops:
            if inner in needed:
                self.rewrite(inner)
        return [self.lookup(v) for v in subscripts]

    def _load(self, row: Window, element: int, place: Sequence[Value]) -> Value:
        """Loads an element. ``place``: subscripts of the first load of the row."""
        memref, behind = self.lookup(memory(row.first)[0]), element - row.loads[row.first]
        *outer, last = place
        if not memref.memref.row_major and behind:
            last = self.addi(last, self.number(behind, last))
        made = Op(
            "memref.load", [memref, *outer, last], [row.first.result.type], span=row.first.span
        )
        if memref.memref.row_major and behind:
            made.attrs["offset"] = behind
        if row.width > 1:
            lane = (element + row.behind) % row.width * memref.memref.element.bytes
            made.attrs["align"] = lane & -lane if lane else row.width * memref.memref.element.bytes
        return self.append(made).result

    def _element(self, row: Window, load: Op, turn: int, place: Sequence[Value]) -> Value:
        """What ``load`` gives in a turn."""
        element = row.loads[load] + row.sign * turn
        if element not in row.values:
            for k in row.vector(element):
                row.values[k] = self._load(row, k, place)
        return row.values[element]


def by_loads(ops: Sequence[Op], *, whole: bool) -> list[Op]:
    """``ops``, each load followed by all that only waited for it: what few registers hold for a
    short time leaves room for the loads that follow. What most ask for is loaded first. ``whole``:
    a vector's elements are loaded together wherever it begins."""
    loads = [op for op in ops if op.name == "memref.load"]
    if not all(op.name == "memref.load" or (OPS[op.name].pure and not op.regions) for op in ops):
        return list(ops)
    # Elements of a vector are loaded from the same place.
    groups: dict[object, list[Op]] = {}
    begins: dict[object, int] = {}
    for op in loads if whole else ():
        if op.attrs.get("align") == VECTOR_BYTES:
            begins.setdefault((*op.operands,), op.attrs.get("offset", 0))
    for op in loads:
        far = op.attrs.get("offset", 0) - begins.get((*op.operands,), 0)
        groups.setdefault((*op.operands, far // 4), []).append(op)
    used = Counter(v for op in ops for v in op.operands)
    own, made, found = {v for op in ops for v in op.results}, set[Value](), list[Op]()
    left = [op for op in ops if op not in loads]

    def ready(op: Op) -> bool:
        return all(v in made or v not in own for v in op.operands)

    def follow() -> None:
        nonlocal left
        waiting: list[Op] = []
        for op in left:
            if ready(op):
                found.append(op)
                made.update(op.results)
            else:
                waiting.append(op)
        left = waiting

    follow()
    if not all(map(ready, loads)):
        return list(ops)
    for group in sorted(groups.values(), key=lambda g: -sum(used[op.result] for op in g)):
        found += group
        made.update(op.result for op in group)
        follow()
    return found


def _pure(op: Op) -> bool:
    return OPS[op.name].pure

"""Register tiles: vectors of neighbouring iterations along one parallel index, times some along
another one that shares loads.

What comes out is IR: a parallel loop over tiles, in each of which parallel loops marked ``vector``
hold the iterations. ``vector`` is (iterations along the other index, iterations along the lanes'
index, lanes of a vector): as many as these loops have, or of those ``masked``, at most. ``reverse``
is set where the first lane has the last iteration. What they mean is what such loops mean anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from math import inf

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import For, Parallel, constant_of, is_constant
from weft.schedule.accumulations import accumulations
from weft.schedule.language import Schedule, UnrollJam, Vectorize, only
from weft.schedule.legal_cpu import fits_lanes
from weft.schedule.machine import CpuMachine
from weft.schedule.nest import axes_of
from weft.schedule.partial_sums import only_sums, partial_sums
from weft.schedule.strips import FEWEST, Write, strip, strip_loop, tiles_of_strip
from weft.schedule.tile_guard import holds_at_corners, tile_guard, without_guard
from weft.schedule.variation import Variation

# Iterations, below which lanes are worse than what LLVM makes of the loops inside: where these go
# along rows, and where they go down columns.
FEW_ROWS, FEW_COLUMNS = 4, 2
SMALL = 16  # operations of an iteration
LITTLE = 24  # up to which edges have code of their own for few columns
FEW_TURNS = 32  # of loops, up to which processors carry out several vectors at a time


def register_tile(
    function: Function, parallel: Op, schedule: Schedule, machine: CpuMachine
) -> tuple[Function, Op]:
    """``function`` by the register tile that ``schedule`` asks for, and its loop over tiles, which
    was ``parallel``. The step of both indices is 1, and the loop reduces nothing. Where the
    attribute ``columns`` of the function says that there are ``many`` iterations along the lanes,
    these are not asked how many they are: the attribute says then by what a caller knows that (the
    number of an argument, its axis, the least size)."""
    tiles: list[_Tile] = []
    made: list[Op] = []
    sums = frozenset[Op]() if function.strict else accumulations(function)

    def tiled(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op is parallel:
            tiles.append(tile := _Tile(rewriter, op, schedule, machine, sums))
            if tile.narrow and function.attrs.get("columns") == "many":
                tile.known = _known(function, op, tile.column)
            made.append(tile.loop())
        return made[0].results if op is parallel else None

    after = Rewriter(None, tiled).function(function)
    if (known := tiles[0].known) is not None:
        after.attrs = {**after.attrs, "columns": known}
    return after, made[0]


def all_vectors(function: Function) -> bool:
    """Whether all serial loops of ``function`` are in vector loops, or around some, or short."""
    ops = [op for op in walk(function.body) if "short" not in op.attrs]
    vectors = [op for op in ops if "vector" in op.attrs]
    inside = sum(o.name == "scf.for" and o in ops for op in vectors for o in walk(op.body))
    around = sum(op.name == "scf.for" and any("vector" in o.attrs for o in walk(op.body))
                 for op in ops)  # fmt: skip
    return bool(vectors) and inside + around == sum(op.name == "scf.for" for op in ops)


class _Tile:
    """The loop ``parallel``, which ``build`` rewrites."""

    def __init__(
        self, build: Rewriter, parallel: Op, schedule: Schedule, machine: CpuMachine,
        sums: Collection[Op],
    ) -> None:  # fmt: skip
        vector, rows = only(schedule, Vectorize), only(schedule, UnrollJam)
        assert vector is not None
        self.build, self.parallel, self.machine = build, parallel, machine
        axes = axes_of(parallel)
        self.column, self.lanes, self.columns = axes.index(vector.axis), vector.width, vector.copies
        self.reverse = {"reverse": True} if vector.reverse else {}
        self.sides = {self.column: vector.copies}
        if rows is not None:
            self.sides[axes.index(rows.axis)] = rows.copies
        # Such loops may have few iterations; code for these is written where it is little.
        operations = sum(op.name != "arith.constant" for op in walk(parallel.body))
        few = any("short" in op.attrs for op in walk(parallel.body))
        self.narrow = len(axes) == 1 and not vector.reverse and operations <= SMALL and not few
        loops = [op for op in parallel.body.ops if op.name == "scf.for" and not few]
        self.little = len(axes) > 1 and operations <= LITTLE and not few
        self.little = self.little and _turns_are_alike(parallel.body, self.column)
        self.few_turns = _most_turns(parallel.body) <= FEW_TURNS
        self.sums = {op for op in loops if only_sums(op, sums)}
        self.known: tuple[int, int, int] | None = None  # see ``register_tile``
        self.guard = tile_guard(parallel, [*self.sides])
        self.begins: dict[int, Value] = {}
        self.ends: dict[int, Value] = {}
        self.lowers: list[Value] = []
        self.uppers: list[Value] = []
        self.indices: list[Value] = []

    def loop(self) -> Op:
        """The loop over tiles, or over strips of them."""
        build, old = self.build, Parallel(self.parallel)
        self.lowers, self.uppers, steps = ([build.lookup(v) for v in vs] for vs in old.ranges)
        first, counts = list(self.lowers), list(self.uppers)
        for axis, side in self.sides.items():
            first[axis] = build.index(0)
            counts[axis] = self._count(axis, build.index(side))
        serial, tiles = self._serial(), counts[self.column]
        size = steps[self.column]  # of strips: one tile
        if serial is not None:
            others = [self._count(axis, step) for axis, step in enumerate(steps[:-1])]
            size = tiles_of_strip(build, serial, [*others, tiles])
            counts[self.column] = build.trip_count(first[self.column], tiles, size)
        made = build.parallel(first, counts, steps)
        made.span, self.indices = self.parallel.span, list(made.body.args)
        for index, before in zip(self.indices, old.indices, strict=True):
            index.name = before.name
        with build.at(made.body):
            if serial is None:
                self._tile({axis: self.indices[axis] for axis in self.sides})
            else:
                self._strip(serial, size, tiles)
            build.do("scf.reduce")
        return made

    def _count(self, axis: int, step: Value) -> Value:
        return self.build.trip_count(self.lowers[axis], self.uppers[axis], step)

    def _tile(self, places: dict[int, Value]) -> None:
        """The tile that is, along each of its sides, at ``places``. One in which a condition around
        the loops does not hold everywhere goes as one at an edge."""
        build, fits = self.build, self._place(places)
        if self.guard is not None:
            one = build.index(1)
            corners = {axis: (begin, build.op("arith.subi", self.ends[axis], one, overflow="nsw"))
                       for axis, begin in self.begins.items()}  # fmt: skip
            others = {axis: at for axis, at in enumerate(self.indices) if axis not in corners}
            fits.append(holds_at_corners(build, self.parallel, self.guard, others, corners))
        both = functools.reduce(partial(build.op, "arith.andi"), fits)
        build.either(both, self._whole, self._narrow if self.narrow else self._rest, edge=True)

    def _place(self, places: dict[int, Value]) -> list[Value]:
        """Where the tile at ``places`` begins and ends; whether it is whole along each side."""
        build, fits = self.build, []
        for axis, place in places.items():
            size = build.index(self.sides[axis])
            self.begins[axis] = self._first(axis, place, size)
            self.ends[axis] = build.op("arith.addi", self.begins[axis], size, overflow="nsw")
            fits.append(self._compare("sle", self.ends[axis], self.uppers[axis]))
        return fits

    def _first(self, axis: int, place: Value, size: Value) -> Value:
        """The first iteration along a side of the tile at ``place``."""
        build, lower = self.build, self.lowers[axis]
        offset = build.op("arith.muli", place, size, overflow="nsw")
        if is_constant(lower, 0):
            return offset
        return build.op("arith.addi", lower, offset, overflow="nsw")

    # -- strips

    def _serial(self) -> Op | None:
        """The serial loop of the tiles, if they are taken in strips."""
        last = self.column == len(self.parallel.body.args) - 1
        alone = len(self.sides) == 1 and not self.reverse
        return strip_loop(self.parallel) if last and alone else None

    def _strip(self, serial: Op, size: Value, tiles: Value) -> None:
        """``size`` of all ``tiles``: the whole ones together, if these are not few. The others are
        as they are without strips, and so are their bits: how many threads there are decides about
        strips."""
        build, column = self.build, self.column
        columns = build.index(self.columns)
        begin = build.op("arith.muli", self.indices[column], size, overflow="nsw")
        end = build.op("arith.minsi", build.op("arith.addi", begin, size, overflow="nsw"), tiles)
        left = build.op("arith.subi", self.uppers[column], self.lowers[column], overflow="nsw")
        whole = build.op("arith.floordivsi", left, columns)
        whole = build.op("arith.minsi", end, whole)

        def vectors(place: Value, write: Write) -> None:
            self._place({column: place})
            self._vectors(self.ends, self.columns, self.lanes, write=write)

        def together() -> None:
            first = self._first(column, begin, columns)
            strip(build, self.parallel, serial, (begin, whole), first, self.columns, vectors)

        several = build.op("arith.subi", whole, begin, overflow="nsw")
        several = self._compare("sge", several, build.index(FEWEST))
        build.either(several, together, lambda: None, edge=True)
        first = build.op("arith.select", several, whole, begin, edge=True)
        loop = build.parallel([first], [end], [build.index(1)])
        with build.at(loop.body):
            self._tile({column: loop.body.args[0]})
            build.do("scf.reduce")

    # -- tiles

    def _compare(self, predicate: str, a: Value, b: Value) -> Value:
        return self.build.op("arith.cmpi", a, b, predicate=predicate)

    def _whole(self) -> None:
        write = self.guard and without_guard(self.build, self.parallel, self.guard)
        self._vectors(self.ends, self.columns, self.lanes, write=write)

    def _rest(self) -> None:
        """What there is of a tile at an edge, with masks."""
        build, ends = self.build, dict(self.ends)
        for axis, end in ends.items():
            ends[axis] = build.op("arith.minsi", end, self.uppers[axis])
        row = next((axis for axis in self.sides if axis != self.column), None)
        if row is None:
            self._columns(ends, apart=False)
            return

        def apart() -> None:
            rows = build.parallel([self.begins[row]], [ends[row]], [build.index(1)])
            self.indices[row] = rows.body.args[0]
            self.indices[row].name = self.parallel.body.args[row].name
            with build.at(rows.body):
                self._masked({self.column: ends[self.column]}, self.columns)
                build.do("scf.reduce")

        if not self.little:
            apart()
            return
        fits = self._compare("sle", self.ends[row], self.uppers[row])
        build.either(fits, partial(self._columns, ends, True), apart, edge=True)

    def _columns(self, ends: dict[int, Value], apart: bool) -> None:
        """The columns up to ``ends``, where these may be few: vector by vector if these are to be
        ``apart``, or all at once if they are more than one (two, where turns are few)."""
        build, column, lanes = self.build, self.column, self.lanes
        if not self.little or self.columns == lanes:
            self._masked(ends, self.columns)
            return
        begin, end = self.begins[column], ends[column]

        def vectors() -> None:
            loop = build.parallel([begin], [end], [build.index(lanes)])
            with build.at(loop.body):
                (self.begins[column],) = loop.body.args
                last = build.addi(self.begins[column], build.index(lanes))
                self._masked({**ends, column: build.op("arith.minsi", last, end)}, lanes)
                build.do("scf.reduce")
            self.begins[column] = begin

        if apart:
            vectors()
            return
        left = build.op("arith.subi", end, begin, overflow="nsw")
        few = [count for count in (lanes, 2 * lanes)[: 1 + self.few_turns] if count < self.columns]
        _where_enough(build, left, [*few, self.columns], partial(self._masked, ends))

    def _masked(self, ends: dict[int, Value], columns: int) -> None:
        self._vectors(ends, columns, self.lanes, masked=True)

    def _narrow(self) -> None:
        """The columns that are left where these are one vector at most: of a sum of few columns
        each vector that is loaded counts."""
        build, column = self.build, self.column
        begin, upper = self.begins[column], self.uppers[column]
        widths = _widths(self.parallel, self.lanes, self.machine)

        def single() -> None:
            rest = build.parallel([begin], [upper], [build.index(1)])
            self._fill(rest, {column: rest.body.args[0]})
            for op in walk(rest.body):  # LLVM's vectors, four in each turn, and no more code
                op.attrs |= {"unroll": 1, "vectors": 4} if op.name == "scf.for" else {}

        def masked(widths: list[int]) -> None:
            if not widths:
                self._rest()
                return
            width, *others = widths
            fits = self._compare("sle", left, build.index(width))
            write = partial(_one_vector, build, self.parallel.body, self.sums)
            vector = partial(self._vectors, {column: upper}, width, width, masked=True, write=write)
            build.either(fits, vector, partial(masked, others), edge=True)

        left = build.op("arith.subi", upper, begin, overflow="nsw")
        if self.known is not None:
            masked(widths)
            return
        # Of all columns, not of those that are left: a loop behind whole vectors is not worth it.
        every = build.op("arith.subi", upper, build.lookup(Parallel(self.parallel).lowers[column]))
        asked = self._compare("slt", every, build.index(_few(self.parallel, column)))
        build.either(asked, single, partial(masked, widths), edge=True)

    def _vectors(
        self, ends: dict[int, Value], copies: int, lanes: int, *, masked: bool = False,
        write: Write | None = None,
    ) -> None:  # fmt: skip
        """The iterations from the beginning of the tile to ``ends``, by vectors: each is what
        ``write`` makes of its indices, or as it was."""
        build, axes = self.build, sorted(ends, key=lambda axis: axis == self.column)
        bounds = [self.begins[axis] for axis in axes], [ends[axis] for axis in axes]
        made = build.parallel(*bounds, [build.index(1)] * len(axes))
        rows = self.sides[axes[0]] if len(axes) > 1 else 1
        made.attrs |= {"vector": (rows, copies, lanes), **self.reverse}
        made.attrs |= {"masked": True} if masked else {}
        self._fill(made, dict(zip(axes, made.body.args, strict=True)), write)

    def _fill(self, loop: Op, own: dict[int, Value], write: Write | None = None) -> None:
        """The iteration, or what ``write`` makes of it, as the body of a loop, whose indices are
        its ``own``."""
        build, old = self.build, self.parallel.body
        for axis, index in own.items():
            index.name = old.args[axis].name
        indices = [own.get(axis, index) for axis, index in enumerate(self.indices)]
        with build.at(loop.body):
            (write or partial(build.inline, old))(indices)
            build.do("scf.reduce")


def _known(function: Function, parallel: Op, column: int) -> tuple[int, int, int] | None:
    """By what a caller knows that there are not few columns; None where code has to ask."""
    old = Parallel(parallel)
    size = old.uppers[column].op
    if size is None or size.name != "memref.dim" or not is_constant(old.lowers[column], 0):
        return None
    if size.operand not in function.args:
        return None
    return function.args.index(size.operand), size.attrs["axis"], _few(parallel, column)


def _few(parallel: Op, column: int) -> int:
    """Of how many columns each is worse as a lane than as LLVM makes it."""
    return FEW_ROWS if _along_rows(parallel.body, column) else FEW_COLUMNS


def _where_enough(
    build: Rewriter, left: Value, counts: Sequence[int], made: Callable[[int], None]
) -> None:
    """``made`` of the first of the ``counts`` that is not less than ``left``, else of the last."""
    count, *more = counts
    if not more:
        made(count)
        return
    fits = build.op("arith.cmpi", left, build.index(count), predicate="sle")
    others = partial(_where_enough, build, left, more, made)
    build.either(fits, partial(made, count), others, edge=True)


def _widths(parallel: Op, lanes: int, machine: CpuMachine) -> list[int]:
    """Of vectors for what is less than ``lanes`` columns."""
    body = [*walk(parallel.body)]
    return [width for width in (lanes // 4, lanes // 2, lanes)
            if width > 1 and all(fits_lanes(op, width, machine) for op in body)]  # fmt: skip


def _one_vector(
    build: Rewriter, body: Block, sums: Collection[Op], indices: Sequence[Value]
) -> None:
    """The iteration ``body`` of a tile that is one vector."""
    build.replacement.update(zip(body.args, indices, strict=True))
    for op in body.ops[:-1]:
        if op in sums:
            partial_sums(build, op)
        else:
            build.rewrite(op)


def _turns_are_alike(body: Block, column: int) -> bool:
    """Whether all lanes run the same turns of loops."""
    along = Variation(body, {body.args[column]: 1})
    return all(along.uniform(*For(op).bounds[:2]) for op in walk(body) if op.name == "scf.for")


def _most_turns(body: Block) -> float:
    """The turns of the loops in ``body``, all in all; infinite where only a call says how many."""
    turns = 0.0
    for op in body.ops:
        if op.name == "scf.for":
            low, high = map(constant_of, For(op).bounds[:2])
            if low is None or high is None:
                return inf
            turns += max(high - low, 0) * max(1.0, _most_turns(op.body))
        else:
            turns += sum(map(_most_turns, op.regions))
    return turns


def _along_rows(body: Block, column: int) -> bool:
    """Whether a loop in ``body`` goes along rows, of which iterations have different ones."""
    columns = Variation(body, {body.args[column]: 1})
    for loop in (op for op in walk(body) if op.name == "scf.for"):
        turns = Variation(loop.body, {For(loop).index: 1})
        loads = (op for op in walk(loop.body) if op.name == "memref.load")
        if any(turns.stride(op) in (1, -1) and columns.stride(op) != 0 for op in loads):
            return True
    return False

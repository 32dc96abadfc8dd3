"""Stage rows: what a block's threads load of rows in a serial loop is in shared memory.

The threads of a block have tiles of neighbouring iterations (``unroll_jam`` with ``overlap``, along
x and y). Of a row that neighbours along x read alike, or of which each reads what lies a little
further on, the block loads what its threads read in the next turns, each element once, whatever
addresses are multiples of; rows in shared memory begin at whole vectors. All wait for each other
before and after that. The order of all that is computed is what it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from weft.index.expression import Poly, number
from weft.index.integers import Integers
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, i32
from weft.ir.views import For, If, memory
from weft.schedule.jammed_body import STAGED, loads_of
from weft.schedule.language import (
    Bind,
    BlockDim,
    LongestFirst,
    RegisterWindow,
    Reverse,
    Schedule,
    UnrollJam,
    only,
    several,
)
from weft.schedule.nest import LoopNest, Refusal
from weft.schedule.register_window import MARK, behind
from weft.schedule.rows import VECTOR_BYTES
from weft.schedule.shared_rows import Row, Tile, laid_out, rows_of
from weft.schedule.spmd import WORKGROUP
from weft.schedule.stage import MOST_BYTES
from weft.schedule.unroll_jam import TILE
from weft.schedule.variation import Variation

_MOST_STAGED = 512  # turns
_LONG = 8  # turns that become one
# Elements that a thread has loaded and not stored yet: of vectors, and one by one.
_MOST_HELD = 32, 16


def stage_rows(
    function: Function, parallel: Op, order: Sequence[int], schedule: Schedule,
    limits: dict[Value, int],
) -> tuple[Function, Op]:  # fmt: skip
    """``function``, in which the marked loops of ``parallel`` read rows from shared memory, and its
    loop that was ``parallel``. ``order``: its dimensions, that along x first; ``limits``: of
    arguments that are loaded in whole vectors, their bytes."""
    work = _Staging(function, parallel, order, schedule, limits)
    made = work.function(function)
    made.body.ops[:0] = work.front.ops
    return made, next(op for op in made.body.ops if op.name == "scf.parallel")


def groups_of(parallel: Op) -> Iterator[tuple[Block, list[Op]]]:
    """The loops whose rows are staged, those of one block together."""
    blocks = [parallel.body, *(r for op in walk(parallel.body) for r in op.regions)]
    for block in blocks:
        if group := [op for op in block.ops if STAGED in op.attrs]:
            yield block, group


def together(nest: LoopNest, loop: Op, tile: Tile, *, backwards: bool) -> bool:
    """Whether the threads of a block come to ``loop`` together, and begin it at the same turn.
    ``backwards``: it goes from its last turn to the first."""
    body = nest.parallel.body
    along = [nest.along(thread) for thread in tile.threads.values()]
    lower, upper, _ = For(loop).bounds
    begin, end = (upper, lower) if backwards else (lower, upper)
    if not all(a.uniform(begin) and (a.uniform(end) or a.direction(end)) for a in along):
        return False
    for around in walk(body):
        if around is loop or not any(inner is loop for inner in below(around)):
            continue
        if around.name == "scf.if":
            inside = any(inner is loop for inner in walk(If(around).then))
            condition = If(around).condition
            early = around in body.ops and slice_of(condition, body, lambda op: OPS[op.name].pure)
            uniform = all(a.uniform(condition) for a in along)
            if not inside or not (uniform or (early and is_convex(condition, along))):
                return False
        elif around.name != "scf.for" or not all(a.uniform(*For(around).bounds) for a in along):
            return False
    return True


def is_convex(condition: Value, along: Sequence[Variation]) -> bool:
    """Whether ``condition`` holds between threads of a block for which it holds. ``along``: what
    varies from thread to thread."""
    op = condition.op
    if op is None or op.name == "arith.constant":
        return True
    if op.name == "arith.andi":
        return all(is_convex(v, along) for v in op.operands)
    affine = all(a.slope(v) is not None for a in along for v in op.operands)
    return op.name == "arith.cmpi" and op.attrs["predicate"] != "ne" and affine


class _Tiles(Rewriter):
    """Places of threads and blocks. ``front``: what stands before the loop over iterations."""

    def __init__(
        self, function: Function, parallel: Op, order: Sequence[int], schedule: Schedule,
        limits: dict[Value, int],
    ) -> None:  # fmt: skip
        super().__init__(None, self._around)
        self.old, self.outer, self.limits = function, parallel, limits
        self.sides = {axis: side for side, axis in enumerate(order[:2])}
        asked, self.longest_first = only(schedule, BlockDim), LongestFirst() in schedule
        assert asked is not None
        self.backwards = bool(several(schedule, Reverse))
        self.tile = Tile(((*asked.sides, 1)[0], (*asked.sides, 1)[1]), {}, {})
        self.inside = {v for op in walk(parallel.body) for v in op.results}
        for op in walk(parallel.body):
            if TILE in op.attrs:
                which = self.tile.blocks if op.name == "arith.floordivsi" else self.tile.threads
                which.setdefault(self.sides[op.attrs[TILE]], op.result)
        self.along = {side: Variation(parallel.body, {thread: 1})
                      for side, thread in self.tile.threads.items()}  # fmt: skip
        self.found = Integers(function, [*self.tile.blocks.values(), *self.tile.threads.values()])
        groups = list(groups_of(parallel))
        self.firsts = {group[0]: (block, group) for block, group in groups}
        self.loop_of = {op: loop for _, group in groups for loop in group for op in loads_of(loop)}
        self.done: set[Op] = set()
        self.of: dict[Op, Row] = {}
        self.chunk: Value | None = None
        self.shared: dict[ScalarType, Value] = {}
        self.starts: dict[Row, Value] = {}
        self.front = Block()

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return None

    def rewrite(self, op: Op) -> None:
        if op in self.done:
            return
        if TILE in op.attrs:
            self.replacement[op.result] = self._place(op)
            return
        super().rewrite(op)

    def _place(self, op: Op) -> Value:
        """The number of the block or of the thread along a side."""
        side, block = self.sides[op.attrs[TILE]], op.name == "arith.floordivsi"
        where = "z" if block and side == 1 and self.longest_first else "xy"[side]
        name = "gpu.block_id" if block else "gpu.thread_id"
        value = self.op(name, type=i32, dimension=where)
        if where == "z" and self._rises(self.along[1]):
            last = self.op("gpu.grid_dim", type=i32, dimension=where)
            value = self.subi(self.subi(last, self.number(1, last)), value)
        return self._cast(value, op.result.scalar)

    def _rises(self, along: Variation) -> bool:
        """Whether threads further on have more turns."""
        loops = {*self.loop_of.values()}
        return any(along.direction(For(loop).upper) > 0 for loop in loops)

    def _cast(self, value: Value, type: ScalarType) -> Value:
        return value if value.type is type else self.op("arith.index_cast", value, type=type)

    def _thread(self, side: int) -> Value:
        return self.lookup(self.tile.threads[side])

    def _corner(self, corner: Sequence[int]) -> dict[Value, Value]:
        """What is known of the thread at such places of the block, by the sides that have tiles."""
        known = {v: self.lookup(v) for v in self.tile.blocks.values()}
        for thread, place in zip(self.tile.threads.values(), corner, strict=True):
            known[thread] = self.number(place, self.lookup(thread))
        return known

    def _linear(self, sides: Sequence[int]) -> tuple[Value | None, Value]:
        """The number of the thread among those that are apart along ``sides``, and a value of its
        type."""
        like = self._thread(min(self.tile.threads))
        found = None
        for side in sorted(sides, reverse=True):
            thread = self._cast(self._thread(side), like.scalar)
            if found is not None:
                found = self.muli(found, self.number(self.tile.sides[side], like))
                thread = self.addi(found, thread)
            found = thread
        return found, like


class _Elements(_Tiles):
    """What is loaded of rows, and where it is."""

    def _start(self, row: Row) -> Value:
        """Where the thread's elements begin in shared memory."""
        found = self._copy_of(row)
        for side, slope in row.across.items():
            thread = self._thread(side)
            if slope < 0:
                thread = self.subi(self.number(self.tile.sides[side] - 1, thread), thread)
            far = self.muli(thread, self.number(abs(slope), thread))
            found = self.addi(found, self._cast(far, found.scalar))
        return found

    def _copy_of(self, row: Row) -> Value:
        """Where the thread's row begins in shared memory."""
        number, like = self._linear(row.own)
        base = self.number(row.base, like)
        if number is None:
            return base
        return self.addi(base, self.muli(number, self.number(row.pitch, like)))

    def _read(self, row: Row, op: Op) -> Op:
        """A load of what ``op`` loads, from shared memory."""
        assert self.chunk is not None
        loop = self.loop_of[op]
        turn = self.subi(self.lookup(For(loop).index), self.chunk)
        if row.sign < 0:
            turn = self.subi(self.number(loop.attrs[STAGED] - 1, turn), turn)
        start = self.starts[row]
        place = self.addi(start, self._cast(turn, start.scalar))
        place = self.addi(place, self.number(row.loads[op] - row.low, place))
        return Op("memref.load", [self.shared[row.element], place], [row.element], span=op.span)

    def _fill(self, rows: Sequence[Row], chunk: Value, group: Sequence[Op]) -> None:
        """The block loads what its threads read in the turns from ``chunk`` on."""
        held: list[tuple[Row, Value, list[Value], Value | None]] = []
        ready = False  # all have read what was there before

        def store() -> None:
            nonlocal ready
            if not ready:
                self.do("gpu.barrier", width=0)
            ready = True
            for row, at, values, there in held:
                self._kept(row, at, values, there)
            held.clear()

        for row in rows:
            for part in self._loaded(row, chunk, group):
                held.append(part)
                if sum(len(values) for _, _, values, _ in held) >= _MOST_HELD[not self.limits]:
                    store()
        store()
        self.do("gpu.barrier", width=0)

    def _kept(self, row: Row, at: Value, values: Sequence[Value], there: Value | None) -> None:
        """Stores what was loaded of a row."""

        def stored() -> list[Value]:
            for k, value in enumerate(values):
                made = self.store(value, self.shared[row.element], [at])
                made.attrs |= {"offset": k} if k else {}
                if len(values) > 1:
                    bytes = k * row.element.bytes
                    made.attrs["align"] = bytes & -bytes or VECTOR_BYTES
            return []

        if there is None:
            stored()
        else:
            self.either(there, stored, list, ())

    def _loaded(
        self, row: Row, chunk: Value, group: Sequence[Op]
    ) -> Iterator[tuple[Row, Value, list[Value], Value | None]]:
        """What the thread loads of a row: where that goes, and whether it does."""
        turns, memref = group[0].attrs[STAGED], memory(row.first)[0]
        low, outer = self._lowest(row, chunk, turns)
        free = [side for side in self.tile.threads if side not in row.own]
        threads = math.prod(self.tile.sides[side] for side in free)
        begin, thread = self._copy_of(row), self._linear(free)[0]
        assert thread is not None
        width = self._width(row, group)
        if width > 1:
            thread = self.muli(thread, self.number(width, thread))
        axis = memref.memref.rank - 1
        extent = self.op("memref.dim", self.lookup(memref), type=low.scalar, axis=axis)
        length = -(-row.length // width) * width
        for k in range(0, length, threads * width):
            place = self.addi(thread, self.number(k, thread)) if k else thread
            at = self.addi(low, self._cast(place, low.scalar))
            there = self.op("arith.cmpi", at, extent, predicate="ult")
            own = None
            if k + threads * width > length:
                own = self.op("arith.cmpi", place, self.number(length, place), predicate="slt")
                there = self.op("arith.andi", there, own)

            def elements(at: Value = at) -> Iterator[Value]:
                for j in range(width):
                    made = Op("memref.load", [self.lookup(memref), *outer, at], [row.element],
                              span=row.first.span)  # fmt: skip
                    bytes = j * row.element.bytes
                    made.attrs |= {"offset": j} if j else {}
                    if width > 1:
                        made.attrs["align"] = bytes & -bytes or VECTOR_BYTES
                    yield self.append(made).result

            nothing = self._nothing(row, width)
            values = self.either(there, lambda: list(elements()), nothing, [row.element] * width)
            yield row, self.addi(begin, place), values, own

    def _nothing(self, row: Row, width: int) -> Callable[[], list[Value]]:
        zero = 0.0 if row.element.is_float else 0
        return lambda: [self.constant(zero, row.element) for _ in range(width)]

    def _lowest(self, row: Row, chunk: Value, turns: int) -> tuple[Value, list[Value]]:
        """The first element of a row that the block's threads read in the turns from ``chunk`` on,
        and the subscripts in front of it."""
        _, subscripts, _ = memory(row.first)
        turn = chunk if row.sign > 0 else self.addi(chunk, self.number(turns - 1, chunk))
        known = {v: self.lookup(v) for v in (*self.tile.blocks.values(),
                                             *self.tile.threads.values())}  # fmt: skip
        for side, slope in row.across.items():
            first = 0 if slope > 0 else self.tile.sides[side] - 1
            known[self.tile.threads[side]] = self.number(first, self._thread(side))
        known[For(self.loop_of[row.first]).index] = turn
        *outer, last = (self.in_front(v, self.inside, known) for v in subscripts)
        far = row.low - row.loads[row.first]
        return (self.addi(last, self.number(far, last)) if far else last), outer

    def _width(self, row: Row, group: Sequence[Op]) -> int:
        """How many elements are loaded as a vector."""
        width, behind = self._behind(row, group)
        return width if behind == 0 else 1

    def _behind(self, row: Row, group: Sequence[Op]) -> tuple[int, int]:
        """How many elements may be loaded as a vector, and by how many the first of the row is
        behind one."""
        memref, turns = memory(row.first)[0], group[0].attrs[STAGED]
        width = self.limits.get(memref, 0) // row.element.bytes
        begin = self.found.poly(For(group[0]).lower)
        # Rows that begin at whole vectors end at them, too, where one follows the other.
        whole = memref.memref.layout == "contiguous" and memref.memref.rank > 1
        if width < 2 or turns % width or begin is None or not whole:
            return 1, 0
        first: dict[object, Poly] = {
            self.tile.threads[side]: number(0 if slope > 0 else self.tile.sides[side] - 1)
            for side, slope in row.across.items()
        }
        place = row.place.substitute(first.get) + begin.scaled(row.sign) + number(row.low)
        if row.sign < 0:
            place = place - number(turns - 1)
        asked = behind(place, width, {*self.old.args})
        return (1, 0) if asked is None else (width, asked[0])


class _Staging(_Elements):
    """The loops, and branches around them."""

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op in self.firsts:
            return self._staged(*self.firsts[op])
        if op.name == "scf.if" and op.attrs.get("whole"):
            return self._whole(op)
        return None

    def _whole(self, op: Op) -> list[Value]:
        """A branch that all threads of the block take together: whose condition holds for those at
        the block's corners, and so for all between them."""
        condition = If(op).condition
        assert is_convex(condition, [*self.along.values()])
        whole: Value | None = None
        for corner in itertools.product(*(self._deciding(condition, k) for k in self.tile.threads)):
            holds = self.in_front(condition, self.inside, self._corner(corner))
            whole = holds if whole is None else self.op("arith.andi", whole, holds)
        assert whole is not None
        made = self.if_(whole)
        made.attrs |= op.attrs
        for old, new in zip(op.regions, made.regions, strict=True):
            self.region(old, new)
        return []

    def _deciding(self, condition: Value, side: int) -> list[int]:
        """The threads along ``side`` for which ``condition`` has to hold so that it does for all
        between them."""
        ends = self.along[side].ends(condition)
        last = self.tile.sides[side] - 1
        return sorted({k % (last + 1) for k in ((0, last) if ends is None else ends or (0,))})

    def copy(self, op: Op) -> Op:
        row = self.of.get(op)
        return super().copy(op) if row is None else self._read(row, op)

    def _staged(self, block: Block, group: list[Op]) -> list[Value]:
        turns = group[0].attrs[STAGED]
        rows = self._rows(group, turns)
        for op in block.ops[block.ops.index(group[0]) + 1 : block.ops.index(group[-1])]:
            if op not in group:  # bounds of the loops that follow
                assert OPS[op.name].pure
                self.rewrite(op)
                self.done.add(op)
        lower = self.lookup(For(group[0]).lower)
        end = self._at_most([For(loop).upper for loop in group])
        many = self.number(turns, lower)
        # What is carried from loop to loop, by its place among what all of them carry.
        inits: list[Value] = []
        places: dict[Value, int] = {}
        carried: list[list[int]] = []
        for loop in group:
            mine: list[int] = []
            for init, result in zip(For(loop).inits, loop.results, strict=True):
                if init not in places:  # what none of these loops carried before
                    inits.append(init)
                mine.append(places.get(init, len(inits) - 1))
                places[result] = mine[-1]
            carried.append(mine)
        self.starts = {row: self._start(row) for row in rows}
        main = self.for_(lower, end, many, [self.lookup(v) for v in inits], unroll=1)
        chunk, *values = main.body.args

        def body() -> list[Value]:
            self._fill(rows, chunk, group)
            stop = self.addi(chunk, many)
            self.chunk = chunk
            self.of = {load: row for row in rows for load in row.loads}

            def through(loop: Op, low: Value, high: Value, ends: list[Value]) -> Op:
                made, mine = self.copy(loop), carried[group.index(loop)]
                made.operands = [low, high, self.lookup(For(loop).step), *(ends[k] for k in mine)]
                self.region(loop.body, made.body)
                self.append(made)
                for k, result in zip(mine, made.results, strict=True):
                    ends[k] = result
                return made

            def all_turns() -> list[Value]:
                through(group[0], chunk, stop, ends := [*values])
                return ends

            def some_turns() -> list[Value]:
                ends = [*values]
                for loop in group:
                    low, high = (self.lookup(v) for v in For(loop).bounds[:2])
                    low = chunk if loop is group[0] else self.op("arith.maxsi", low, chunk)
                    del through(loop, low, self.op("arith.minsi", high, stop), ends).attrs[STAGED]
                return ends

            if self._apart(group[0]):
                # Loops that follow the first one have no turns before it ends.
                end = self.lookup(For(group[0]).upper)
                whole = self.op("arith.cmpi", end, stop, predicate="sge")
                ends = self.either(whole, all_turns, some_turns, [v.type for v in values])
            else:
                ends = some_turns()
            self.of = {}
            return ends

        self.fill(main.body, body)
        for loop, mine in zip(group, carried, strict=True):
            self.replacement.update(zip(loop.results, (main.results[k] for k in mine), strict=True))
        self.done.update(group)
        return [main.results[k] for k in carried[0]]

    def _rows(self, group: Sequence[Op], turns: int) -> list[Row]:
        """What is staged of ``group``, with shared memory for it."""
        rows = rows_of(self.old, group, self.tile, turns, self.found)
        for row in rows if WORKGROUP in self.old.attrs else ():
            if before := self._behind(row, group)[1]:  # from a whole vector on
                row.before = before
                row.reaches(row.length + before)
        with self.at(self.front):
            self.shared = {
                element: self.op("memref.alloca", type=MemRefType(
                    element, 1, "contiguous", (size,), "shared"
                ))
                for element, size in laid_out(rows, self.tile).items()
            }  # fmt: skip
        return rows

    def _apart(self, loop: Op) -> bool:
        """Whether chunks whose turns are all there have code of their own. Not where loops go
        forwards, over vectors, few turns at a time: 4 % slower, as ptxas reads operands again; nor
        in shaders, which drivers compile at the first call."""
        usual = self.backwards or not self.limits or loop.attrs[MARK] >= _LONG
        return usual and WORKGROUP not in self.old.attrs

    def _at_most(self, uppers: Sequence[Value]) -> Value:
        """What any of ``uppers`` is at most for the threads of the block."""
        known: dict[tuple[int, ...], dict[Value, Value]] = {}
        found: Value | None = None
        for upper in uppers:
            corner = tuple(self.tile.sides[side] - 1 if along.direction(upper) > 0 else 0
                           for side, along in self.along.items())  # fmt: skip
            if corner not in known:
                known[corner] = self._corner(corner)
            value = self.in_front(upper, self.inside, known[corner])
            found = value if found is None else self.op("arith.maxsi", found, value)
        assert found is not None
        return found


def tile_of(nest: LoopNest, schedule: Schedule) -> Tile | None:
    """The iterations of a block, as if each had a thread; None where blocks have no whole tiles:
    an index along x or y is not jammed in groups of as many threads as a block has."""
    asked = only(schedule, BlockDim)
    jams = {jam.axis: jam for jam in several(schedule, UnrollJam)}
    bound = [bind.axis for bind in several(schedule, Bind) if bind.side != "z"]
    given = tuple(jams[axis].overlap if axis in jams else 0 for axis in bound)
    if asked is None or asked.sides != given or any(jam.stride > 1 for jam in jams.values()):
        return None
    sides = [jams[axis].overlap * jams[axis].copies for axis in bound]
    return Tile((sides[0], (*sides, 1)[1]), {}, dict(enumerate(map(nest.index, bound))))


def why_not_staged(nest: LoopNest, step: RegisterWindow, schedule: Schedule) -> Refusal | None:
    """Why the rows of a loop are not staged; None where they may be."""
    loop, tile = nest.serial[step.loop], tile_of(nest, schedule)
    if not step.turns <= step.staged <= _MOST_STAGED or step.staged % step.turns:
        return Refusal(f"a multiple of {step.turns} turns is staged, {_MOST_STAGED} at most")
    if len(several(schedule, RegisterWindow)) > 1:
        return Refusal("rows of one loop are staged", loop.span, "leave the others out")
    if tile is None:
        return Refusal(
            "a block that stages rows has a whole tile", None,
            "unroll_jam(t, 8, overlap=8) of each index along x and y, and block_dim(...) of just "
            "these threads",
        )  # fmt: skip
    if not together(nest, loop, tile, backwards=Reverse(step.loop) in schedule):
        return Refusal(f"threads of a block do not come to `{step.loop}` together", loop.span)
    rows = rows_of(nest.function, [loop], tile, step.staged, nest.integers)
    if not rows or not nest.function.attrs.get("noalias", True):
        return Refusal(f"`{step.loop}` loads no rows that threads of a block share", loop.span)
    size = sum(n * element.bytes for element, n in laid_out(rows, tile).items())
    if size > MOST_BYTES:
        return Refusal(f"it takes {size} bytes of shared memory, {MOST_BYTES} are there", loop.span)
    return None

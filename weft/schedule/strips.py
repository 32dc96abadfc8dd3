"""Strips: neighbouring register tiles whose serial loop goes down the rows of an array.

One tile reads some lines of the cache from each row, far from each other: processors do not load
ahead from one page to the next. The tiles of a strip take some turns each, one tile after the
other, so that they read whole stretches of a row; in between, what they carry is in local arrays,
which the nearest cache holds. Every tile takes its turns in their order: bits are those without
strips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

from weft.ir.builder import Rewriter
from weft.ir.core import Op, Value, below, defined, walk
from weft.ir.types import i1
from weft.ir.views import For, constant_of, is_constant, memory
from weft.schedule.partial_sums import reads_only
from weft.schedule.variation import Variation

TILES = 16  # of a strip, at most: of 4 vectors of 16 float32, a page of each row
FEWEST = 4
TURNS = 8  # that a tile takes at a time
LEAST = 64  # turns of a loop, for which that pays
MOST = 16  # operations that are written for several parts of a strip

Write = Callable[[Sequence[Value]], None]  # what is done, given an iteration's indices


def strip_loop(parallel: Op) -> Op | None:
    """The serial loop that goes down rows, if the body of ``parallel``, whose last index has the
    lanes, is one with little in it."""
    body, ops = parallel.body, parallel.body.ops
    loops = [op for op in ops if op.regions]
    if len(loops) != 1 or loops[0].name != "scf.for" or "short" in loops[0].attrs:
        return None
    (serial,), view = loops, For(loops[0])
    before, inner = ops[: ops.index(serial)], serial.body.ops
    again = [*before, *inner[:-1]]
    if not all(map(reads_only, again)):
        return None
    if sum(op.name != "arith.constant" for each in again for op in below(each)) > MOST:
        return None
    if not defined([body]).isdisjoint(view.bounds[:2]) or not is_constant(view.step, 1):
        return None
    low, high = map(constant_of, view.bounds[:2])
    if low is not None and high is not None and high - low < LEAST:
        return None
    along, turns = Variation(body, {body.args[-1]: 1}), Variation(serial.body, {view.index: 1})
    carried = view.carried
    if not carried or any(along.slope(v) is not None or v.scalar is i1 for v in carried):
        return None

    def down(op: Op) -> bool:
        *rows, last = memory(op)[1]
        return along.stride(op) == 1 and turns.uniform(last) and not turns.uniform(*rows)

    loads = [op for op in walk(serial.body) if op.name == "memref.load"]
    return serial if any(map(down, loads)) else None


def tiles_of_strip(build: Rewriter, serial: Op, counts: Sequence[Value]) -> Value:
    """How many tiles a strip has where the parallel indices have ``counts``, the last one of tiles:
    1 where the loop ``serial`` is short, and as few as give every thread something."""
    none, one = build.index(0), build.index(1)
    fair = build.trip_count(none, reduce(build.muli, counts), build.op("weft.threads"))
    strips = build.op("arith.maxsi", one, build.trip_count(none, fair, build.index(TILES)))
    even = build.trip_count(none, fair, strips)
    lower, upper, _ = (build.lookup(v) for v in For(serial).bounds)
    turns = build.op("arith.subi", upper, lower, overflow="nsw")
    long = build.op("arith.cmpi", turns, build.index(LEAST), predicate="sge")
    some = build.op("arith.cmpi", even, build.index(FEWEST), predicate="sge")
    return build.op("arith.select", build.op("arith.andi", long, some), even, one)


def strip(
    build: Rewriter, parallel: Op, serial: Op, tiles: tuple[Value, Value], begin: Value,
    columns: int, vectors: Callable[[Value, Write], None],
) -> None:  # fmt: skip
    """Whole ``tiles`` of ``columns`` each, from one to before another, the first iteration of which
    is ``begin``. ``vectors(tile, write)``: ``write`` for all iterations of a tile, at once."""
    view, ops = For(serial), parallel.body.ops
    place = ops.index(serial)
    kept = [build.alloca(arg.scalar, (TILES * columns,)) for arg in view.carried]
    lower, upper = (build.lookup(bound) for bound in view.bounds[:2])

    def front(indices: Sequence[Value]) -> Value:
        """What stands in front of the loop, and where an iteration keeps what it carries."""
        build.replacement.update(zip(parallel.body.args, indices, strict=True))
        for op in ops[:place]:
            build.rewrite(op)
        return build.op("arith.subi", indices[-1], begin, overflow="nsw")

    def store(values: Sequence[Value], at: Value) -> None:
        for array, value in zip(kept, values, strict=True):
            build.store(value, array, [at])

    def begun(indices: Sequence[Value]) -> None:
        at = front(indices)
        store([build.lookup(v) for v in view.inits], at)

    def taken(turn: Value, until: Value, indices: Sequence[Value]) -> None:
        at = front(indices)
        state = [build.load(array, [at]) for array in kept]
        part = build.for_(turn, until, build.index(1), state, **serial.attrs)
        part.span = serial.span
        build.region(serial.body, part.body)
        store(part.results, at)

    def ended(indices: Sequence[Value]) -> None:
        at = front(indices)
        results = [build.load(array, [at]) for array in kept]
        build.replacement.update(zip(serial.results, results, strict=True))
        for op in ops[place + 1 : -1]:
            build.rewrite(op)

    def each(write: Write) -> None:
        loop = build.parallel([tiles[0]], [tiles[1]], [build.index(1)])
        with build.at(loop.body):
            vectors(loop.body.args[0], write)
            build.do("scf.reduce")

    each(begun)
    blocks = build.for_(lower, upper, build.index(TURNS))
    with build.at(blocks.body):
        (turn,) = blocks.body.args
        until = build.op("arith.addi", turn, build.index(TURNS), overflow="nsw")
        each(partial(taken, turn, build.op("arith.minsi", until, upper)))
        build.do("scf.yield")
    each(ended)

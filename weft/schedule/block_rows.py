"""What the threads of a block load of rows in a serial loop, and whether they may share it in
shared memory: ``stage_rows`` writes that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from weft.index.access import Extraction
from weft.index.expression import Poly, atom, number
from weft.ir.core import Function, Op, Value, below, slice_of, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType
from weft.ir.views import For, If, memory
from weft.ir.writes import written
from weft.schedule.language import (
    Bind,
    BlockDim,
    RegisterWindow,
    Reverse,
    Schedule,
    UnrollJam,
    only,
    several,
)
from weft.schedule.nest import LoopNest, Refusal
from weft.schedule.stage import MOST_BYTES
from weft.schedule.variation import Variation
from weft.values import mutable

_MOST_STAGED = 512  # turns
_PAD = 4  # elements that a window may load behind a row, or in front of one that goes downwards


@mutable
class Row:
    """Elements that loops load of a row: turn ``u`` those ``sign * u + d`` behind a place, for each
    ``d`` in ``loads``, and ``across`` further on for the next thread, by the side along which it
    is the next. ``own``: the sides along which threads have rows of their own. In shared memory
    the first of them begins at ``base``, and the next one ``pitch`` later. ``width``: so many are
    loaded as a vector."""

    sign: int
    across: dict[int, int]
    own: list[int]
    place: Poly
    loads: dict[Op, int] = field(default_factory=dict[Op, int])
    length: int = 0
    base: int = 0
    width: int = 1

    @property
    def first(self) -> Op:
        return next(iter(self.loads))

    @property
    def element(self) -> ScalarType:
        return self.first.result.scalar

    @property
    def low(self) -> int:
        return min(self.loads.values())

    @property
    def pitch(self) -> int:
        # An odd number of vectors: neighbours along y read in other banks.
        return 4 * (-(-self.length // 4) | 1)


@mutable
class Tile:
    """A block's threads along x and y. ``blocks``, ``threads``: the values of an iteration that say
    which block along a side it belongs to, and which thread, by the place of the side."""

    sides: tuple[int, int]
    blocks: dict[int, Value]
    threads: dict[int, Value]


def rows_of(
    function: Function, group: Sequence[Op], tile: Tile, turns: int, found: Extraction | None = None
) -> list[Row]:
    """What the threads of a block load of rows in ``group``, loops of which one follows the other,
    in so many turns."""
    found = found or Extraction(function)
    changed, rows = written(function), dict[object, Row]()
    for loop in group:
        iv = For(loop).index
        for op in loop.body.ops:
            if op.name != "memref.load" or memory(op)[0] not in function.args:
                continue
            memref, subscripts, _ = memory(op)
            polys = [poly for v in subscripts if (poly := found.poly(v)) is not None]
            if memref in changed or not 0 < len(polys) == len(subscripts):
                continue
            *outer, last = polys
            sign = last.slope(iv)
            if sign not in (1, -1) or any(poly.mentions(iv) for poly in outer):
                continue
            place = last - atom(iv).scaled(sign)
            own = [side for side, thread in tile.threads.items()
                   if any(poly.mentions(thread) for poly in outer)]  # fmt: skip
            across = {side: slope for side, thread in tile.threads.items()
                      if side not in own and (slope := place.slope(thread)) != 0}  # fmt: skip
            if None in across.values() or len(own) == len(tile.threads):
                continue
            plain = place - number(place.offset)
            key = memref, sign, (*outer, plain)
            row = rows.setdefault(key, Row(sign, across, own, plain))  # type: ignore[arg-type]
            row.loads[op] = place.offset
    for row in rows.values():
        spread = max(row.loads.values()) - row.low
        far = sum((tile.sides[side] - 1) * abs(n) for side, n in row.across.items())
        row.length = turns + spread + far
    return list(rows.values())


def laid_out(rows: Sequence[Row], tile: Tile) -> dict[ScalarType, int]:
    """Elements of each type in shared memory. Rows get their places."""
    sizes: dict[ScalarType, int] = {}
    for row in rows:
        row.base = sizes.get(row.element, _PAD)
        copies = math.prod(tile.sides[side] for side in row.own)
        sizes[row.element] = row.base + row.pitch * copies
    return {element: size + _PAD for element, size in sizes.items()}


def together(nest: LoopNest, loop: Op, tile: Tile, *, backwards: bool) -> bool:
    """Whether the threads of a block come to ``loop`` together, and begin it at the same turn.
    ``backwards``: it goes from its last turn to the first."""
    body = nest.parallel.body
    along = [Variation(body, {thread: 1}) for thread in tile.threads.values()]
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
    rows = rows_of(nest.function, [loop], tile, step.staged)
    if not rows or not nest.function.attrs.get("noalias", True):
        return Refusal(f"`{step.loop}` loads no rows that threads of a block share", loop.span)
    size = sum(n * element.bytes for element, n in laid_out(rows, tile).items())
    if size > MOST_BYTES:
        return Refusal(f"it takes {size} bytes of shared memory, {MOST_BYTES} are there", loop.span)
    return None

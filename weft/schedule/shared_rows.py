"""Rows that threads of a block share: which elements loops load of them, and where those are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from weft.index.expression import Poly, atom, number
from weft.index.integers import Integers
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import For, memory
from weft.ir.writes import written
from weft.schedule.jammed_body import loads_of
from weft.values import mutable

_PAD = 4  # elements that a window may load behind a row, or in front of one that goes downwards


@mutable
class Row:
    """Elements that loops load of a row: turn ``u`` those ``sign * u + d`` behind a place, for each
    ``d`` in ``loads``, and ``across`` further on for the next thread, by the side along which it
    is the next. ``own``: the sides along which threads have rows of their own. In shared memory
    the first of them begins at ``base``, and the next one ``pitch`` later. ``before``: elements in
    front of those that are loaded, so that the first of all begins a vector."""

    sign: int
    across: dict[int, int]
    own: list[int]
    place: Poly
    loads: dict[Op, int] = field(default_factory=dict[Op, int])
    length: int = 0
    pitch: int = 0
    base: int = 0
    before: int = 0

    @property
    def first(self) -> Op:
        return next(iter(self.loads))

    @property
    def element(self) -> ScalarType:
        return self.first.result.scalar

    @property
    def low(self) -> int:
        return min(self.loads.values()) - self.before

    def reaches(self, length: int) -> None:
        self.length = length
        # An odd number of vectors: neighbours along y read in other banks.
        self.pitch = 4 * (-(-length // 4) | 1)


@mutable
class Tile:
    """A block's threads along x and y. ``blocks``, ``threads``: the values of an iteration that say
    which block along a side it belongs to, and which thread, by the place of the side."""

    sides: tuple[int, int]
    blocks: dict[int, Value]
    threads: dict[int, Value]


def rows_of(
    function: Function, group: Sequence[Op], tile: Tile, turns: int, found: Integers | None = None
) -> list[Row]:
    """What the threads of a block load of rows in ``group``, loops of which one follows the other,
    in so many turns."""
    found = found or Integers(function)
    changed, rows = written(function), dict[object, Row]()
    for loop in group:
        iv = For(loop).index
        for op in loads_of(loop):
            if memory(op)[0] not in function.args:
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
        row.reaches(turns + spread + far)
    return list(rows.values())


def laid_out(rows: Sequence[Row], tile: Tile) -> dict[ScalarType, int]:
    """Elements of each type in shared memory. Rows get their places."""
    sizes: dict[ScalarType, int] = {}
    for row in rows:
        row.base = sizes.get(row.element, _PAD)
        copies = math.prod(tile.sides[side] for side in row.own)
        sizes[row.element] = row.base + row.pitch * copies
    return {element: size + _PAD for element, size in sizes.items()}

"""A register tile, whole or at an edge: which instances of iterations ``lanes`` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.emit import Emitter
from weft.codegen.lane_values import pick
from weft.codegen.lanes import Tile, VectorEmitter
from weft.codegen.llvm import emit_block, loop
from weft.ir.core import Value, walk
from weft.schedule.legal_cpu import fits_lanes
from weft.schedule.machine import CpuMachine


def emit_tile(
    e: Emitter,
    tile: Tile,
    machine: CpuMachine,
    lengths: Sequence[str],
    counts: Sequence[str],
    index: Callable[[Value, str], str],
) -> None:
    """Writes the code of one tile, whole or at an edge.

    ``counts``: the tile's number along each index; ``lengths``: the numbers of iterations along its
    rows' and its columns' index; ``index(value, count)`` gives the parallel index ``value`` at
    iteration ``count``.
    """
    column = e.inst(f"mul nsw i64 {counts[tile.column]}, {tile.columns}")
    row = "0" if tile.row is None else e.inst(f"mul nsw i64 {counts[tile.row]}, {tile.rows}")
    origins, (rows, columns) = (row, column), lengths
    full, edge, out = e.label("full"), e.label("edge"), e.label("tiled")
    end = e.inst(f"add nsw i64 {column}, {tile.columns}")
    fits = e.inst(f"icmp sle i64 {end}, {columns}")
    whole = fits
    if tile.rows > 1:
        last_row = e.inst(f"add nsw i64 {row}, {tile.rows}")
        whole = e.inst(f"and i1 {fits}, {e.inst(f'icmp sle i64 {last_row}, {rows}')}")
    e.branch(whole, full, edge)
    e.start(full)
    _fill(e, tile, tile.rows, origins, index, "")
    e.jump(out)
    e.start(edge)
    row_end = pick(e, "smin", e.inst(f"add nsw i64 {row}, {tile.rows}"), rows)
    stop = pick(e, "smin", end, columns)
    if tile.alone:
        _narrow(e, tile, machine, origins, columns, index, out)

    def one_row(at: str, _: list[str]) -> list[str]:
        _fill(e, tile, 1, (at, column), index, stop)
        return []

    loop(e, row, row_end, "1", [], [], one_row)
    e.jump(out)
    e.start(out)


FEW = 4  # iterations, below which lanes are worse than what LLVM makes of the loops inside


def _narrow(
    e: Emitter, tile: Tile, machine: CpuMachine, origins: tuple[str, str], columns: str,
    index: Callable[[Value, str], str], out: str,
) -> None:  # fmt: skip
    """The columns that are left where these are one vector at most: of a sum of few columns each
    vector that is loaded counts. Goes on behind it where there are more."""
    column = origins[1]
    left = e.inst(f"sub nsw i64 {columns}, {column}")
    few, asked, part, more = (e.label(s) for s in ("few", "asked", "part", "more"))
    e.branch(e.inst(f"icmp slt i64 {columns}, {FEW}"), few, asked)
    e.start(few)
    lane = tile.body.args[tile.column]

    def scalar(count: str, _: list[str]) -> list[str]:
        e.names[lane] = index(lane, count)
        emit_block(e, tile.body)
        return []

    loop(e, column, columns, "1", [], [], scalar)
    del e.names[lane]
    e.jump(out)
    e.start(asked)
    for width in (tile.width, tile.width // 2):
        if width > 1 and all(fits_lanes(op, width, machine) for op in walk(tile.body)):
            one, other = e.label("one"), e.label("other")
            e.branch(e.inst(f"icmp eq i64 {left}, {width}"), one, other)
            e.start(one)
            _fill(e, tile, 1, origins, index, "", sides=(1, width))
            e.jump(out)
            e.start(other)
    e.branch(e.inst(f"icmp slt i64 {left}, {tile.width}"), part, more)
    e.start(part)
    _fill(e, tile, 1, origins, index, columns, sides=(1, tile.width))
    e.jump(out)
    e.start(more)


def _fill(
    e: Emitter,
    tile: Tile,
    jam: int,
    origins: tuple[str, str],
    index: Callable[[Value, str], str],
    stop: str,
    *,
    sides: tuple[int, int] | None = None,
) -> None:
    """Writes ``jam`` rows of a tile from ``origins``; where ``stop`` is given, only the columns
    before it, with a mask. ``sides``: so many vectors, of so many lanes, in place of
    the tile's."""
    row, column = origins
    vectors, width = sides or (tile.vectors, tile.width)
    lanes = VectorEmitter(e, tile, jam, vectors, width)
    v = lanes.v
    if tile.row is not None:
        value = tile.body.args[tile.row]
        v.names[value] = {
            (j, 0): index(value, e.inst(f"add nsw i64 {row}, {j}")) for j in range(jam)
        }
    value = tile.body.args[tile.column]
    first = tile.columns - 1 if tile.reverse else 0
    v.names[value] = {(0, 0): index(value, e.inst(f"add nsw i64 {column}, {first}"))}
    if stop:
        stride = -1 if tile.reverse else 1
        left = e.inst(f"trunc i64 {e.inst(f'sub nsw i64 {stop}, {column}')} to i32")
        splat = v.splat(left, "i32")
        ramps = [v.ramp(stride, (0, m), "i32", first) for m in range(vectors)]
        masks = [e.inst(f"icmp slt {v.of('i32')} {ramp}, {splat}") for ramp in ramps]
        v.mask = {(j, m): masks[m] for j, m in v.instances}
    lanes.block(tile.body)

"""A register tile, whole or at an edge: which instances of iterations ``lanes`` writes."""

from __future__ import annotations

from collections.abc import Callable

from weft.codegen.emit import Emitter
from weft.codegen.lanes import Tile, VectorEmitter, pick
from weft.codegen.llvm import loop
from weft.ir.core import Value


def emit_tile(
    e: Emitter,
    tile: Tile,
    lengths: tuple[str, str],
    origins: tuple[str, str],
    index: Callable[[Value, str], str],
) -> None:
    """Writes the code of one tile, whole or at an edge.

    ``origins`` are the tile's first iterations along its rows' and its columns' index, ``lengths``
    the numbers of iterations there; ``index(value, count)`` gives the parallel index ``value`` at
    iteration ``count``.
    """
    row, column = origins
    rows, columns = lengths
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

    def one_row(at: str, _: list[str]) -> list[str]:
        _fill(e, tile, 1, (at, column), index, stop)
        return []

    loop(e, row, row_end, "1", [], [], one_row)
    e.jump(out)
    e.start(out)


def _fill(
    e: Emitter,
    tile: Tile,
    jam: int,
    origins: tuple[str, str],
    index: Callable[[Value, str], str],
    stop: str,
) -> None:
    """Writes ``jam`` rows of a tile from ``origins``; where ``stop`` is given, only the columns
    before it, with a mask."""
    row, column = origins
    lanes = VectorEmitter(e, tile, jam)
    if tile.row is not None:
        value = tile.body.args[tile.row]
        lanes.bind(
            value, {(j, 0): index(value, e.inst(f"add nsw i64 {row}, {j}")) for j in range(jam)}
        )
    value = tile.body.args[tile.column]
    first = tile.columns - 1 if tile.reverse else 0
    lanes.bind(value, {(0, 0): index(value, e.inst(f"add nsw i64 {column}, {first}"))})
    if stop:
        stride = -1 if tile.reverse else 1
        left = e.inst(f"trunc i64 {e.inst(f'sub nsw i64 {stop}, {column}')} to i32")
        splat = lanes.splat(left, "i32")
        kind = f"<{tile.width} x i32>"
        masks = {}
        for m in range(tile.vectors):
            ramp = lanes.ramp(stride, (0, m), "i32", first)
            masks[(0, m)] = e.inst(f"icmp slt {kind} {ramp}, {splat}")
        lanes.mask = {(j, m): masks[(0, m)] for j in range(jam) for m in range(tile.vectors)}
    lanes.block(tile.body)

"""The condition around what an iteration of a register tile does: asked once for the tile.

A loop that gathers a gradient asks for each element whether there are iterations to sum over, by
comparisons of indices and sizes. Where these rise or fall along a tile they hold in all of it if
they do at its corners: then the tile needs no masks. The others go as tiles at an edge do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial, reduce
from itertools import product

from weft.ir.builder import Rewriter
from weft.ir.core import Op, Value, walk
from weft.ir.types import index
from weft.ir.views import If
from weft.schedule.strips import Write
from weft.schedule.variation import Variation

# What an index, a size and a number may go through to a comparison; none of them can fail.
_PLAIN = {"arith.constant", "arith.addi", "arith.subi", "arith.muli", "arith.minsi", "arith.maxsi",
          "memref.dim"}  # fmt: skip
_CONVEX = {"slt", "sle", "sgt", "sge", "eq"}  # what holds at both ends holds between them


def tile_guard(parallel: Op, axes: Sequence[int]) -> Op | None:
    """The branch of an iteration of ``parallel`` that holds its loops, if there is one, and if its
    condition may be asked at the corners of tiles along ``axes``."""
    body = parallel.body
    branches = [op for op in body.ops if op.name == "scf.if" and _has_loops(op)]
    if len(branches) != 1 or any(op.name == "scf.for" for op in body.ops):
        return None
    (branch,) = branches
    asked = _comparisons(If(branch).condition)
    if len(If(branch).otherwise.ops) > 1 or not asked:
        return None
    along = [Variation(body, {body.args[axis]: 1}) for axis in axes]
    convex = all(_is_one_way(op, each) for op in asked for each in along)
    inside = {v for op in body.ops for v in op.results}
    return branch if convex and all(_is_plain(op, inside) for op in asked) else None


def holds_at_corners(
    build: Rewriter, parallel: Op, guard: Op, indices: Mapping[int, Value],
    corners: Mapping[int, tuple[Value, Value]],
) -> Value:  # fmt: skip
    """Whether the condition of ``guard`` holds at all ``corners`` of a tile: its first and last
    iteration along each of its axes. ``indices``: along the others."""
    body, condition = parallel.body, If(guard).condition
    varying = {axis: ends for axis, ends in corners.items()
               if not Variation(body, {body.args[axis]: 1}).uniform(condition)}  # fmt: skip
    inside = {v for op in body.ops for v in op.results}
    met: list[Value] = []
    for corner in product(*varying.values()):
        places = {**indices, **{axis: first for axis, (first, _) in corners.items()},
                  **dict(zip(varying, corner, strict=True))}  # fmt: skip
        known = {body.args[axis]: value for axis, value in places.items()}
        met.append(build.in_front(condition, inside, known))
    return reduce(partial(build.op, "arith.andi"), met)


def without_guard(build: Rewriter, parallel: Op, guard: Op) -> Write:
    """What writes an iteration in which the condition of ``guard`` holds, given its indices."""

    def write(indices: Sequence[Value]) -> None:
        body = parallel.body
        build.replacement.update(zip(body.args, indices, strict=True))
        for op in body.ops[:-1]:
            if op is guard:
                build.stand_for(op.results, build.inline(If(op).then, ()))
            else:
                build.rewrite(op)

    return write


def _has_loops(op: Op) -> bool:
    return any(inner.name == "scf.for" for region in op.regions for inner in walk(region))


def _comparisons(condition: Value) -> list[Op]:
    """The comparisons of indices that ``condition`` joins by "and"; none where it is another."""
    found: list[Op] = []
    open_ = [condition]
    while open_:
        op = open_.pop().op
        if op is not None and op.name == "arith.andi":
            open_ += op.operands
        elif op is not None and op.name == "arith.cmpi" and op.left.type is index:
            found.append(op)
        else:
            return []
    return found


def _is_one_way(comparison: Op, along: Variation) -> bool:
    """Whether one side rises or falls towards the other all along, and the comparison holds at no
    two places between which it does not."""
    left, right = map(along.growth, comparison.operands)
    one_way = left.low >= right.high or left.high <= right.low
    return one_way and comparison.attrs["predicate"] in _CONVEX


def _is_plain(comparison: Op, inside: Collection[Value]) -> bool:
    """Whether what is compared may be computed for any index."""
    open_ = list(comparison.operands)
    while open_:
        value = open_.pop()
        if value in inside and value.op is not None:
            if value.op.name not in _PLAIN:
                return False
            open_ += value.op.operands
    return True

"""Unroll-and-jam beside ``stage``: each thread of a block that stages has several iterations.

What a block has staged each of its threads reads from shared memory, and where an element of that
is used once, these reads are what a turn takes. Iterations that are jammed read it once for all of
them. They are jammed before their loops are written out and rows are staged, for as many threads
as are left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.ir.core import Function, Op, walk
from weft.ir.ops import OPS
from weft.ir.views import For, If, memory
from weft.ir.writes import written
from weft.schedule.grid import WARP
from weft.schedule.jammed_body import LANE
from weft.schedule.language import (
    Bind,
    Schedule,
    SharedArrays,
    Stage,
    Step,
    Unroll,
    UnrollJam,
    only,
    several,
)
from weft.schedule.nest import LoopNest, Refusal, loops_of
from weft.schedule.unroll_jam import unroll_jam, variation

COPIES = 2
# Of local arrays in registers, of all iterations of a thread.
_LEAST_WORDS, _MOST_WORDS = 64, 128


def why_not_jammed(nest: LoopNest, jam: UnrollJam, schedule: Schedule) -> Refusal | None:
    """Why iterations are not jammed beside ``stage``; None where they may be."""
    staged, first = only(schedule, Stage), several(schedule, Bind)
    assert staged is not None
    if (first and jam.axis != first[0].axis) or not jam.whole or jam.overlap != staged.threads:
        name, threads = first[0].axis if first else jam.axis, staged.threads
        return Refusal(
            "beside stage(...) a block has whole groups of iterations along x", None,
            f"unroll_jam({name}, {COPIES}, stride={threads}, overlap={threads}, whole=True)",
        )  # fmt: skip
    if only(schedule, SharedArrays) is not None:
        return Refusal("it does not go with `shared_arrays()`", None, "leave one of them out")
    return _together(nest.function, nest.parallel, nest.axes.index(jam.axis))


def _together(function: Function, parallel: Op, axis: int) -> Refusal | None:
    """A refusal where a loop of iterations along ``axis`` does not become one loop."""
    along = variation(function, parallel, axis)
    for op in walk(parallel.body):
        if op.name == "scf.while" or "rare" in op.attrs or (
            op.name == "scf.for" and not along.uniform(*For(op).bounds)
        ):  # fmt: skip
            return Refusal("iterations have other turns than their neighbours", op.span)
        around = any(inner.name == "scf.for" for region in op.regions for inner in walk(region))
        if around and op.name == "scf.if" and not along.uniform(If(op).condition):
            return Refusal("loops are carried out by some of neighbours", op.span)
    return None


def jams_of(
    function: Function, parallel: Op, axis: int, name: str, schedule: Sequence[Step]
) -> Schedule:
    """``schedule`` for half as many threads, each of which has two iterations along ``axis``, of
    that ``name``; nothing where registers do not hold it."""
    staged, unrolled = several(schedule, Stage), only(schedule, Unroll)
    arrays = [op.result.memref for op in walk(parallel.body) if op.name == "memref.alloca"]
    words = sum(math.prod(m.shape or ()) * -(-m.element.bytes // 4) for m in arrays)
    if len(staged) != 1 or unrolled is None or only(schedule, SharedArrays) is not None:
        return ()
    (stage,), loops = staged, loops_of(parallel)
    threads, steps = stage.threads // COPIES, stage.steps // COPIES  # as much code as before
    inside = [op for op in walk(loops[stage.loop].body) if op.name == "scf.for"]
    if (
        threads < WARP or steps < 2 or not _LEAST_WORDS <= words * COPIES <= _MOST_WORDS
        or any(map(_sums_of_others, inside))
        or _together(function, parallel, axis) is not None
    ):  # fmt: skip
        return ()
    jam = UnrollJam(name, COPIES, threads, threads, True)
    new = jam, Stage(stage.loop, steps, threads)
    return tuple(s for step in schedule for s in (new if step is stage else (step,)))


def _sums_of_others(loop: Op) -> bool:
    """Whether a turn adds up elements of local arrays that it replaces then: ptxas takes such sums
    late, and keeps all of these until then. (RWKV-7's adjoint by rows takes .85 ms on an H200,
    jammed 1.95; Mamba-2's .44, 1.04. Their forward loops .87, jammed .76; .44, .41.)"""
    body = loop.body.ops
    # What a turn leaves in arrays is there afterwards, too.
    stores = [op for op in body if op.name == "memref.store"]
    seen = {*{memory(op)[0]: memory(op)[2][0] for op in stores}.values()}
    waiting = list(loop.body.terminator.operands)
    while waiting:
        value = waiting.pop()
        if value in seen or value.op is None or value.op not in body:
            continue
        seen.add(value)
        array = memory(value.op)[0] if value.op.name == "memref.load" else None
        if array is not None and array.op and array in written(body[body.index(value.op) :]):
            return True
        waiting += value.op.operands
    return False


def jam_staged(function: Function, parallel: Op, axis: int, jam: UnrollJam) -> tuple[Function, Op]:
    """``function`` after ``jam``, and its loop that was ``parallel``. It is legal."""
    how = jam.copies, jam.stride, jam.overlap, jam.whole
    return unroll_jam(function, parallel, axis, *how, lanes=True)


def by_lane(parallel: Op) -> None:
    """Of stores that follow each other in blocks of ``parallel``, those of one iteration stand
    together: neighbours that are stored become vectors. (What iterations store is apart.)"""
    blocks = [parallel.body, *(r for op in walk(parallel.body) for r in op.regions)]
    for block in blocks:
        made: list[Op] = []
        stores: list[Op] = []
        for op in block.ops:
            if not _passes(op, stores):
                made += sorted(stores, key=lambda store: store.attrs[LANE])
                stores = []
            (stores if LANE in op.attrs else made).append(op)
        block.ops[:] = made + stores
        for op in block.ops:
            op.attrs.pop(LANE, None)


def _passes(op: Op, stores: list[Op]) -> bool:
    """Whether ``stores`` in front of ``op`` may stand behind it."""
    if LANE in op.attrs or (OPS[op.name].pure and not op.regions):
        return not OPS[op.name].terminator
    return op.name == "memref.load" and all(memory(op)[0] is not memory(s)[0] for s in stores)

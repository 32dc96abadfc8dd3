"""The schedules that a loop may run by on a CPU.

A register tile is some vectors of consecutive iterations along one parallel index (a lane each),
times some iterations along another that shares loads. It pays where iterations hold serial loops
whose loads are the same for all lanes or lie side by side; LLVM, which vectorises innermost loops,
would vectorise the serial loop and pay for a sum across lanes in each iteration. All else is left
to LLVM.
"""

from __future__ import annotations

from dataclasses import replace

from weft.index.expression import Both, Compare, atom
from weft.index.integers import Integers
from weft.ir.core import Block, Function, Op, walk
from weft.ir.types import index
from weft.ir.views import For, If, Parallel, is_constant
from weft.schedule.language import Privatize, Schedule, UnrollJam, Vectorize, parse
from weft.schedule.legal_cpu import allows, is_access, lanes, outermost
from weft.schedule.machine import CpuMachine
from weft.schedule.nest import LoopNest, axes_of
from weft.schedule.register_tile import register_tile
from weft.schedule.tile_size import tile_size
from weft.schedule.variation import Variation

# Operations as vectors, beyond which a tile is not taken: LLVM takes seconds for it. Those of the
# examples have 960 at most.
MOST_TILED = 1600


def candidates(function: Function, machine: CpuMachine) -> list[Schedule]:
    """The schedules that pay, first the one that is taken. One has no tile: LLVM vectorises."""
    parallel = outermost(function)
    if parallel is None:
        return [()]
    tile = _tile(function, parallel, machine)
    own = tuple(
        Privatize(name) for name in LoopNest(function, parallel).tensors
        if allows(function, (Privatize(name),), machine)
    )  # fmt: skip
    if not tile:
        return [own]
    tiled, _ = register_tile(function, parallel, tile, machine)
    return [tile, own] if tile_size(tiled) <= MOST_TILED else [own, tile]


def _tile(function: Function, parallel: Op, machine: CpuMachine) -> Schedule:
    """The steps of a register tile along the innermost index, if one pays."""
    body, axes = parallel.body, axes_of(parallel)
    loops = [op for op in walk(body) if op.name == "scf.for"]
    width = lanes(body, machine)
    if not loops or not width:
        return ()
    inside = [op for loop in loops for op in walk(loop.body) if is_access(op)]
    along = Variation(body, {body.args[-1]: 1})
    strides = [along.stride(op) for op in inside]
    if not any(stride in (1, -1) for stride in strides):
        return ()
    if any(stride not in (0, 1, -1) for stride in strides):
        pays = machine.vector_bytes == 64 and _gathers_pay(loops, strides, along, body)
        steps = (Vectorize(axes[-1], width, width),) if pays else ()
    elif _is_narrow(function, parallel, loops, along, width):
        steps = ()
    else:
        sums = max(len(loop.results) for loop in loops)
        vectors = 4 if sums == 1 else 2 if sums == 2 else 1
        vector = Vectorize(
            axes[-1], width, width * vectors, reverse=strides.count(-1) > strides.count(1)
        )
        moving = [op for op, s in zip(inside, strides, strict=True) if s]
        row = _shared_axis(parallel, loops, moving)
        jams = () if row is None else (UnrollJam(axes[row], 2 if sums > 2 else 4),)
        steps = (*jams, vector)
    return steps if allows(function, steps, machine) else ()


def _gathers_pay(loops: list[Op], strides: list[int | None], along: Variation, body: Block) -> bool:
    """Whether lanes that load elements anywhere are better than what LLVM makes of the serial
    loops: these have no rows of their own to load, and what is stored are rows of the lanes."""
    for loop in loops:
        turns = Variation(body, {For(loop).index: 1})
        inside = [op for op in walk(loop.body) if is_access(op)]
        if any(turns.stride(op) in (1, -1) for op in inside):
            return False
        if any(op.name == "memref.store" and along.stride(op) not in (1, -1) for op in inside):
            return False
    return True


def _is_narrow(
    function: Function, parallel: Op, loops: list[Op], along: Variation, width: int
) -> bool:
    """Whether many lanes of a vector would have nothing to do: a condition around the loops holds
    for fewer iterations along the index than a vector and a half has lanes, and turns differ from
    lane to lane. LLVM vectorises the loops, whose elements lie side by side."""
    if all(along.uniform(*For(loop).bounds) for loop in loops):
        return False
    for loop in loops:
        turns = Variation(parallel.body, {For(loop).index: 1})
        own = [op for op in loop.body.ops if is_access(op)]
        if not all(turns.stride(op) in (0, 1) for op in own):
            return False
    known, lane = Integers(function), parallel.body.args[-1]
    asked = [known.condition(If(op).condition) for op in parallel.body.ops if op.name == "scf.if"
             and loops[0] in [*walk(If(op).then)]]  # fmt: skip
    parts = [part for one in asked for part in (one.parts if isinstance(one, Both) else (one,))]
    ends = [(part.poly + atom(lane)).constant for part in parts
            if isinstance(part, Compare) and part.kind == "ge"]  # fmt: skip
    return any(end is not None and 2 * end < 3 * width for end in ends)


def _shared_axis(parallel: Op, loops: list[Op], vectors: list[Op]) -> int | None:
    """The outer index, if there is one, that most loads of whole vectors do not depend on, and
    that leaves the bounds of loops as they are."""
    best, best_shared = None, 0
    guards = {op for op in walk(parallel.body) if op.name == "scf.if" and _is_guard(op)}
    for axis, step in enumerate(Parallel(parallel).steps[:-1]):
        if not is_constant(step, 1):
            continue
        along = Variation(parallel.body, {parallel.body.args[axis]: 1}, masked=True,
                          whole=guards)  # fmt: skip
        shared = sum(along.uniform(*access.operands) for access in vectors)
        if shared > best_shared and all(along.uniform(*For(loop).bounds) for loop in loops):
            best, best_shared = axis, shared
    return best


def _is_guard(op: Op) -> bool:
    """Whether a branch goes by comparisons of indices and numbers: nearly all iterations of a
    gradient's loop take its first arm, which asks whether there is an iteration."""
    open_ = [If(op).condition]
    while open_:
        asked = open_.pop().op
        if asked is None or asked.name not in ("arith.andi", "arith.cmpi"):
            return False
        if asked.name == "arith.andi":
            open_ += asked.operands
        elif asked.left.type is not index:
            return False
    return True


def completed(text: str) -> Schedule:
    """The schedule that a person's text stands for. Raises ``ScheduleError``."""
    return tuple(
        replace(step, copies=step.copies or step.width) if isinstance(step, Vectorize) else step
        for step in parse(text)
    )

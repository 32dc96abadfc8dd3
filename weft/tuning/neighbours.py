"""Schedules to measure: those that a loop's calls may take, and their neighbours, by what a simple
model expects of them.

Texts are as people write them (``Kernel.schedule``): what they leave open is completed, and what a
loop does not allow is refused, by whoever compiles them.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from weft import compiler
from weft.codegen.interface import Slot
from weft.codegen.machine import host_cpu
from weft.codegen.threads import argument_slots
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import memory
from weft.runtime.arguments import sizes_of
from weft.runtime.build import Made
from weft.runtime.gpu import GpuCompiled, optimized
from weft.schedule import apply_cuda, default_cpu, legal_cpu
from weft.schedule.choose import candidate
from weft.schedule.cost import UNKNOWN_TRIPS, Work
from weft.schedule.grid import LEAST_TURNS
from weft.schedule.language import (
    Bind,
    BlockDim,
    Cooperate,
    CopyAhead,
    Persist,
    Privatize,
    Schedule,
    Stage,
    Step,
    StreamingStores,
    Unroll,
    UnrollJam,
    Vectorize,
    only,
    show,
)
from weft.schedule.machine import CpuMachine, GpuMachine
from weft.schedule.nest import LoopNest, axes_of
from weft.schedule.variation import Variation

_COPIES = (2, 4, 8)
# Copies of what an iteration carries, beyond which it is kept in memory.
_REGISTERS, _REGISTERS_GPU = 16, 64
_BUSY = 1024  # threads for each multiprocessor
_WARP = 32
# Steps that say which iterations run where; the others follow from them and from the call.
_TELLING = (UnrollJam, Vectorize, Cooperate, Privatize, Persist, BlockDim, Unroll, Stage)


def proposals(made: Made, block: bytes) -> list[str]:
    """Schedules to try for a compiled loop and a call with this argument block: those that its
    calls may take, those one change away from them, then others, each in the order of what is
    expected of them."""
    job = made.job
    others: Iterator[Schedule] = iter(())
    wanted, width, longest = 1, math.inf, math.inf
    if isinstance(made, GpuCompiled):
        function = optimized(job)
        parallel = apply_cuda.outermost(function)
        own = [_told(candidate(text).schedule) for text in made.facts.candidates]
        bound = only(candidate(made.facts.candidates[0]).schedule, Bind)
        if bound is not None and parallel is not None:
            others = cuda_schedules(bound.axis, own[0], parallel)
        sizes = sizes_of(made.facts, made.loop.summary.types, block, frozenset())
        width = math.prod(n or 1 for n in sizes.trips)
        longest = max((n or 1 for n in sizes.lengths), default=math.inf)
        wanted = _BUSY * GpuMachine().processors
    else:
        function = compiler.optimize_for_cpu(made.function, job.options, noalias=job.noalias)
        parallel = legal_cpu.outermost(function)
        own = default_cpu.candidates(function, host_cpu())
        if parallel is not None:
            others = cpu_schedules(LoopNest(function, parallel), host_cpu())
    if parallel is None:
        return []
    slots = made.facts.slots if isinstance(made, GpuCompiled) else argument_slots(function)
    cost = model(loads(function, parallel, slots, block), width, wanted, longest)
    near = [changed for schedule in own for changed in _changed(schedule)]
    found = [s for part in (own, near, others) for s in sorted(part, key=cost)]
    if not isinstance(made, GpuCompiled):  # what a GPU does not allow is found by compiling it
        found = [s for s in found if legal_cpu.allows(function, s, host_cpu())]
    return list(dict.fromkeys(map(show, found)))


# -- the model


def model(
    shared: list[tuple[frozenset[str], float]], width: float, wanted: int, longest: float
) -> Callable[[Schedule], tuple[float, int, int]]:
    """What is expected of a schedule: of the loads ``shared``, where iterations of one thread load
    what they share once; more where copies have no registers, or where of ``width`` iterations
    fewer than the ``wanted`` threads are left. Threads that share loops, whose turns are
    ``longest`` at most, have no fewer turns each than ``grid`` gives them. Of equals, fewer copies,
    then fewer steps."""
    registers = _REGISTERS if width == math.inf else _REGISTERS_GPU

    def shares(team: Cooperate) -> float:
        return min(team.threads, max(longest / LEAST_TURNS, 1.0))

    def cost(schedule: Schedule) -> tuple[float, int, int]:
        jams = [s.copies for s in schedule if isinstance(s, UnrollJam)]
        vectors = [-(-s.copies // s.width) for s in schedule if isinstance(s, Vectorize)]
        copies = {s.axis: s.copies for s in schedule if isinstance(s, UnrollJam | Vectorize)}
        team = only(schedule, Cooperate)
        threads = width / math.prod(copies.values()) * (shares(team) if team else 1)
        loaded = sum(
            weight / math.prod(copies.get(axis, 1) for axis in axes) for axes, weight in shared
        )
        kept = math.prod((*jams, *vectors))
        return loaded * max(kept / registers, 1.0) * max(wanted / threads, 1.0), kept, len(schedule)

    return cost


def loads(
    function: Function, parallel: Op, slots: Sequence[Slot], block: bytes
) -> list[tuple[frozenset[str], float]]:
    """For each load of a loop the axes along which neighbours read the same element, and how often
    a call with this argument block carries it out."""
    shapes: dict[Value, list[int]] = {}
    numbers: dict[Value, int] = {}
    for k, slot in enumerate(slots):
        if slot.kind in ("size", "int"):
            (word,) = struct.unpack_from("<q", block, 8 * k)
            if slot.kind == "size":
                shapes[function.args[slot.arg]].append(word)
            else:
                numbers[function.args[slot.arg]] = word
        elif slot.kind == "pointer":
            shapes[function.args[slot.arg]] = []
    work = Work(shapes, numbers, UNKNOWN_TRIPS)
    work.block(function.body, 1.0)
    body, axes = parallel.body, axes_of(parallel)
    along = {axis: Variation(body, {body.args[k]: 1}) for k, axis in enumerate(axes)}
    found: list[tuple[frozenset[str], float]] = []
    for op in walk(body):
        if op.name == "memref.load":
            _, subscripts, _ = memory(op)
            same = frozenset(axis for axis in axes if along[axis].uniform(*subscripts))
            found.append((same, work.times.get(op, 0.0)))
    return found


# -- CPUs


def cpu_schedules(nest: LoopNest, machine: CpuMachine) -> Iterator[Schedule]:
    """Register tiles of some vectors along the last index by some iterations along another; where
    there are no loops inside, stores that stream."""
    *others, last = nest.axes
    longest = max(machine.vector_bytes // 4, 1)
    jams: list[tuple[Step, ...]] = [()]
    jams += [(UnrollJam(axis, n),) for axis in others for n in _COPIES]
    for width in (longest, longest // 2):
        for vectors, reverse in itertools.product((1, 2, 4), (False, True)):
            for jam in jams if width > 1 else ():
                yield (*jam, Vectorize(last, width, width * vectors, reverse=reverse))
    for axis in (*others, last):
        yield from ((UnrollJam(axis, n),) for n in _COPIES)
    if longest > 1 and nest.stored and not nest.serial:
        yield (Vectorize(last, longest, 4 * longest), StreamingStores(nest.stored))


# -- CUDA


def cuda_schedules(x: str, first: Schedule, parallel: Op) -> Iterator[Schedule]:
    """Several iterations for each thread, threads that share one, and other blocks, for the
    schedule ``first``, too. ``x``: the axis along neighbouring threads."""
    axes = axes_of(parallel)
    outer = [axis for axis in axes if axis != x]
    along_x: list[tuple[Step, ...]] = [(), *((UnrollJam(x, n, _WARP),) for n in _COPIES)]
    along: list[tuple[Step, ...]] = [(), *((UnrollJam(a, n),) for a in outer for n in _COPIES)]
    for one, other in itertools.product(along, along_x):
        yield (*one, *other)
    loops = [op for op in walk(parallel.body) if op.name in ("scf.for", "scf.while", "scf.if")]
    for threads in (8, _WARP, 128, 512, 1024) if loops else ():
        yield (Cooperate((), threads),)
    for width in () if loops else _COPIES:
        yield (Vectorize(x, width, width),)
        yield (Vectorize(x, width, 2 * width),)
    for blocks in (8, _WARP):
        yield (Persist(blocks),)
    blocks = [(64,), (128,), (256,), (512,), *([(_WARP, 8), (16, 16)] if outer else [])]
    for jam in dict.fromkeys(((), first)):
        yield from ((*jam, BlockDim(sides)) for sides in blocks)


def _told(candidate: Schedule) -> Schedule:
    """The steps that do not follow from the others."""
    steps: list[Step] = [step for step in candidate if isinstance(step, _TELLING)]
    # Offsets of vectors follow from the loop.
    return tuple(replace(s, peel=0) if isinstance(s, Vectorize) else s for s in steps)


def _changed(schedule: Schedule) -> Iterator[Schedule]:
    """The schedules in which one number is half or twice as large."""
    for k, step in enumerate(schedule):
        others: list[Step] = []
        match step:
            case UnrollJam(copies=n):
                others = [replace(step, copies=m) for m in (n // 2, 2 * n) if m > 1]
            case Vectorize(copies=n, width=width):
                others = [replace(step, copies=m) for m in (n // 2, 2 * n) if m >= max(width, 2)]
            case Cooperate(threads=n):
                others = [replace(step, threads=m) for m in (n // 2, 2 * n)]
            case Stage(steps=n) | CopyAhead(steps=n):
                others = [replace(step, steps=m) for m in (n // 2, 2 * n) if m > 1]
            case _:
                pass
        for other in others:
            yield (*schedule[:k], other, *schedule[k + 1 :])

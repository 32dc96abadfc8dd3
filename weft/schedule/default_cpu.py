"""The schedules that a loop may run by on a CPU, and which steps such a schedule may have.

A register tile is some vectors of consecutive iterations along one parallel index (a lane each),
times some iterations along another that shares loads. It pays where iterations hold serial loops
whose loads are the same for all lanes or lie side by side; LLVM, which vectorises innermost loops,
would vectorise the serial loop and pay for a sum across lanes in each iteration. All else is left
to LLVM.
"""

from __future__ import annotations

from dataclasses import replace

from weft.errors import ScheduleError, Span
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, bf16, f16, i1, index
from weft.ir.views import For, If, Parallel, is_constant, memory
from weft.schedule.language import (
    Privatize,
    Schedule,
    Step,
    UnrollJam,
    Vectorize,
    only,
    parse,
    show,
)
from weft.schedule.machine import CpuMachine
from weft.schedule.nest import arrays_of, axes_of, combined_by, is_plain
from weft.schedule.variation import Variation

MOST = 8  # vectors side by side, and iterations along the other index, of a register tile

# Operations of mathematics that are instructions for vectors of any length; others are calls.
_INSTRUCTIONS = {
    "math.absf", "math.absi", "math.ceil", "math.copysign", "math.ctpop", "math.floor", "math.fma",
    "math.isinf", "math.isnan", "math.roundeven", "math.rsqrt", "math.sqrt", "math.trunc",
}  # fmt: skip
_CALLS_OUT = ("weft.assert", "weft.bounds", "weft.check_race", "weft.print")


def outermost(function: Function) -> Op | None:
    """The parallel loop that threads share."""
    found = (op for op in function.body.ops if op.name == "scf.parallel" and op.attrs["dims"])
    return next(found, None)


# -- the picker


def candidates(function: Function, machine: CpuMachine) -> list[Schedule]:
    """The schedules to try, the best first. The last one has no tile: LLVM vectorises."""
    parallel = outermost(function)
    if parallel is None:
        return [()]
    tile = _tile(function, parallel, machine)
    names = arrays_of(function)
    own = tuple(
        Privatize(name) for name, array in zip(names, function.args, strict=True)
        if combiner(function, array) and not _no_copies(function, parallel, array)
    )  # fmt: skip
    return [tile, own] if tile else [own]


def combiner(function: Function, array: Value) -> str:
    """What iterations combine with the elements of ``array`` atomically, if nothing else happens to
    it; "" where that is not so, and of a number."""
    kinds = combined_by(function, array) if isinstance(array.type, MemRefType) else ()
    return "" if isinstance(kinds, Op) or len(kinds) != 1 else next(iter(kinds))


def _no_copies(function: Function, parallel: Op, array: Value) -> str:
    """Why chunks cannot have copies of ``array``, which iterations accumulate into."""
    element = array.memref.element
    if parallel.attrs["kinds"]:
        return "the loop reduces into a scalar, too"
    if array.memref.layout != "contiguous":
        return "it is not contiguous"
    if element in (f16, bf16, i1):
        return f"copies of {element} would be combined with other roundings"
    if function.strict and element.is_float:
        return "strict_math keeps the order of sums"
    if not function.attrs.get("noalias"):
        return "the loop's arguments may overlap in memory"
    return ""


def _tile(function: Function, parallel: Op, machine: CpuMachine) -> Schedule:
    """The steps of a register tile along the innermost index, if one pays."""
    body, axes = parallel.body, axes_of(parallel)
    loops = [op for op in walk(body) if op.name == "scf.for"]
    lanes = _lanes(body, machine)
    if not loops or not lanes:
        return ()
    inside = [op for loop in loops for op in walk(loop.body) if _is_access(op)]
    along = Variation(body, {body.args[-1]: 1})
    strides = [along.stride(op) for op in inside]
    if not any(stride in (1, -1) for stride in strides):
        return ()
    if any(stride not in (0, 1, -1) for stride in strides):
        pays = machine.vector_bytes == 64 and _gathers_pay(loops, strides, along, body)
        steps = (Vectorize(axes[-1], lanes, lanes),) if pays else ()
    else:
        sums = max(len(loop.results) for loop in loops)
        vectors = 4 if sums == 1 else 2 if sums == 2 else 1
        vector = Vectorize(
            axes[-1], lanes, lanes * vectors, reverse=strides.count(-1) > strides.count(1)
        )
        moving = [op for op, s in zip(inside, strides, strict=True) if s]
        row = _shared_axis(parallel, loops, moving)
        jams = () if row is None else (UnrollJam(axes[row], 2 if sums > 2 else 4),)
        steps = (*jams, vector)
    try:
        check(function, steps, machine)
    except ScheduleError:
        return ()
    return steps


def _gathers_pay(loops: list[Op], strides: list[int | None], along: Variation, body: Block) -> bool:
    """Whether lanes that load elements anywhere are better than what LLVM makes of the serial
    loops: these have no rows of their own to load, and what is stored are rows of the lanes."""
    for loop in loops:
        turns = Variation(body, {For(loop).index: 1})
        inside = [op for op in walk(loop.body) if _is_access(op)]
        if any(turns.stride(op) in (1, -1) for op in inside):
            return False
        if any(op.name == "memref.store" and along.stride(op) not in (1, -1) for op in inside):
            return False
    return True


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


def _is_access(op: Op) -> bool:
    return op.name in ("memref.load", "memref.store")


def _lanes(body: Block, machine: CpuMachine) -> int:
    """The lanes of a vector of the widest numbers that are loaded or carried; 0 if there are no
    such vectors."""
    loaded = [v for op in walk(body) if op.name == "memref.load" for v in op.results]
    carried = [v for op in walk(body) if op.name == "scf.for" for v in op.results]
    widths = [v.type.bytes for v in (*loaded, *carried) if isinstance(v.type, ScalarType)]
    widest = max(widths, default=0)
    return machine.vector_bytes // max(widest, 4) if widest in (2, 4, 8) else 0


def completed(text: str) -> Schedule:
    """The schedule that a person's text stands for. Raises ``ScheduleError``."""
    return tuple(
        replace(step, copies=step.copies or step.width) if isinstance(step, Vectorize) else step
        for step in parse(text)
    )


# -- legality


def check(function: Function, schedule: Schedule, machine: CpuMachine) -> None:
    """Raises ``ScheduleError`` where ``function`` cannot run by ``schedule`` on this CPU.

    A register tile is one ``vectorize`` and at most one ``unroll_jam`` along another axis. Without
    vectors there may be several ``unroll_jam``, of iterations next to each other or not, and
    ``privatize`` of arrays.
    """
    parallel = outermost(function)
    vector = only(schedule, Vectorize)
    axes = axes_of(parallel) if parallel is not None else ()
    taken: set[str] = set()
    for step in schedule:
        if isinstance(step, Privatize):
            _check_copies(function, step, schedule)
            continue
        if not isinstance(step, UnrollJam | Vectorize):
            raise ScheduleError(
                f"`{show([step])}` is no step for a CPU",
                help="write unroll_jam(...), vectorize(...) or privatize(...)",
            )
        if parallel is None or step.axis not in axes:
            there = ", ".join(axes) or "none"
            raise _refused(step, f"the axes of the parallel loop are: {there}", parallel)
        if step.axis in taken:
            raise _refused(step, f"another step has the axis `{step.axis}`", parallel)
        if parallel.attrs["kinds"]:
            raise _refused(step, "the loop reduces", parallel)
        if not is_constant(Parallel(parallel).steps[axes.index(step.axis)], 1):
            raise _refused(step, f"the loop over `{step.axis}` does not go by one", parallel)
        if isinstance(step, UnrollJam) and not 1 <= step.copies <= MOST:
            raise _refused(step, f"`copies` are 1 to {MOST} iterations", parallel)
        if isinstance(step, UnrollJam) and step.overlap:
            raise _refused(step, "only a GPU's groups of threads overlap", parallel)
        taken.add(step.axis)
        for op in walk(parallel.body):
            if op.name in _CALLS_OUT:
                raise _refused(step, "the loop has checks or prints", op)
        if isinstance(step, Vectorize):
            _check_vectors(step, parallel, axes, machine)
        elif vector is not None:
            _check_rows(step, schedule, parallel)
        elif not function.attrs.get("noalias", True):
            raise _refused(step, "the loop's arguments may overlap in memory", parallel)


def _refused(step: Step, why: str, op: Op | None) -> ScheduleError:
    span = op.span if op is not None else None
    return ScheduleError(f"`{show([step])}`: {why}", span if isinstance(span, Span) else None)


def _check_copies(function: Function, step: Privatize, schedule: Schedule) -> None:
    parallel, named = (
        outermost(function),
        dict(zip(arrays_of(function), function.args, strict=True)),
    )
    array = named.get(step.array)
    if parallel is None or array is None or not isinstance(array.type, MemRefType):
        there = ", ".join(name for name, v in named.items() if isinstance(v.type, MemRefType))
        raise _refused(step, f"the arrays are: {there or 'none'}", parallel)
    if [*schedule].count(step) > 1 or only(schedule, Vectorize) is not None:
        raise _refused(step, "a register tile has no copies, an array has them once", parallel)
    if not combiner(function, array):
        raise _refused(step, f"iterations do not only accumulate into `{step.array}`", parallel)
    why = _no_copies(function, parallel, array)
    if why:
        raise _refused(step, why, parallel)


def _check_rows(step: UnrollJam, schedule: Schedule, parallel: Op) -> None:
    if len(schedule) > 2:
        raise _refused(step, "a register tile has one other axis at most", parallel)
    if step.stride != 1:
        raise _refused(step, "iterations of a register tile are next to each other", parallel)


def _check_vectors(
    step: Vectorize, parallel: Op, axes: tuple[str, ...], machine: CpuMachine
) -> None:
    body, widest = parallel.body, _lanes(parallel.body, machine)
    if not widest:
        raise _refused(step, "there are no vectors of what the loop loads and carries", parallel)
    if step.stride != 1 or step.peel or step.divisible:
        raise _refused(step, "a CPU's vectors are next to each other, and not peeled", parallel)
    if step.width < 2 or step.width & (step.width - 1) or step.width > widest:
        raise _refused(step, f"`width` is a power of two from 2 to {widest}", parallel)
    if step.copies % step.width or step.copies > MOST * step.width:
        raise _refused(step, f"`copies` are one to {MOST} vectors of {step.width}", parallel)
    for op in walk(body):
        if not fits_lanes(op, step.width, machine):
            raise _refused(step, f"`{op.name}` has no form for vectors here", op)


def fits_lanes(op: Op, width: int, machine: CpuMachine) -> bool:
    """Whether there are vectors of ``width`` numbers for ``op``."""
    if _is_access(op):
        memref, subscripts, _ = memory(op)
        return bool(subscripts) and memref.memref.element is not i1
    calls = op.name.startswith("math.") and op.name not in _INSTRUCTIONS
    return is_plain(op) and (not calls or width in machine.lanes(op.result.scalar))

"""Which steps a loop allows on a CPU: its rules, beside those of ``schedule.legal``.

A register tile is one ``vectorize`` and at most one ``unroll_jam`` along another axis. Without
vectors there may be several ``unroll_jam``, of iterations next to each other or not, and
``privatize`` of arrays.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.errors import ScheduleError
from weft.ir.core import Block, Function, Op, walk
from weft.ir.types import ScalarType, i1
from weft.ir.views import memory
from weft.schedule import legal
from weft.schedule.language import (
    STEPS,
    Privatize,
    Schedule,
    Step,
    StreamingStores,
    UnrollJam,
    Vectorize,
    only,
    several,
    show,
)
from weft.schedule.legal import Rule, accumulated, beside, side_by_side
from weft.schedule.machine import CpuMachine
from weft.schedule.nest import LoopNest, Refusal, is_plain
from weft.schedule.own import OwnStep

MOST = 8  # vectors side by side, and iterations along the other index, of a register tile

# Operations of mathematics that are instructions for vectors of any length; others are calls.
INSTRUCTIONS = {
    "math.absf", "math.absi", "math.ceil", "math.copysign", "math.ctpop", "math.detach",
    "math.floor", "math.fma", "math.isinf", "math.isnan", "math.philox", "math.roundeven",
    "math.rsqrt", "math.sqrt", "math.trunc",
}  # fmt: skip
_OVERLAP = "the loop's arguments may overlap in memory"


def outermost(function: Function) -> Op | None:
    """The parallel loop that threads share."""
    found = (op for op in function.body.ops if op.name == "scf.parallel" and op.attrs["dims"])
    return next(found, None)


def check(function: Function, schedule: Schedule, machine: CpuMachine) -> None:
    """Raises ``ScheduleError`` where ``function`` cannot run by ``schedule`` on this CPU."""
    parallel = outermost(function)
    if parallel is not None:
        legal.check(LoopNest(function, parallel), schedule, rules(machine))
        for step in several(schedule, OwnStep):
            if step.guards():
                raise ScheduleError(f"`{show([step])}`: calls on a CPU have no guards")
    elif schedule:
        raise ScheduleError(
            f"`{show(schedule)}`: there is no parallel loop, one thread runs all of this",
            function.span, "take the schedule away",
        )  # fmt: skip


def allows(function: Function, schedule: Schedule, machine: CpuMachine) -> bool:
    """Whether ``function`` can."""
    try:
        check(function, schedule, machine)
    except ScheduleError:
        return False
    return True


def rules(machine: CpuMachine) -> dict[type[Any], Rule]:
    """The rule of each step."""
    return {
        **dict.fromkeys(STEPS, _no_step), UnrollJam: _unroll_jam, Privatize: _privatize,
        Vectorize: partial(_vectorize, machine), StreamingStores: _streaming,
    }  # fmt: skip


def _no_step(nest: LoopNest, step: Step, schedule: Schedule) -> Refusal:
    return Refusal(
        "it is no step for a CPU", None,
        "write unroll_jam(...), vectorize(...), privatize(...) or streaming_stores(...)",
    )  # fmt: skip


def _neighbours(nest: LoopNest, step: UnrollJam | Vectorize, schedule: Schedule) -> Refusal | None:
    """Why iterations along an axis cannot run side by side."""
    if nest.parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar", None, "leave it out")
    for other in (*several(schedule, UnrollJam), *several(schedule, Vectorize)):
        if other != step and other.axis == step.axis:
            return Refusal(f"`{show([other])}` has that axis", None, "leave one of them out")
    return side_by_side(nest, step)


def _unroll_jam(nest: LoopNest, step: UnrollJam, schedule: Schedule) -> Refusal | None:
    if not 1 <= step.copies <= MOST:
        return Refusal(f"`copies` are 1 to {MOST} iterations")
    if step.overlap:
        return Refusal("only a GPU's groups of threads overlap")
    if only(schedule, Vectorize) is not None:
        if len(several(schedule, UnrollJam)) > 1:
            return Refusal("a register tile has one other axis at most")
        if step.stride != 1:
            return Refusal("iterations of a register tile are next to each other")
    elif not nest.function.attrs.get("noalias", True):
        return Refusal(_OVERLAP)
    return _neighbours(nest, step, schedule)


def _vectorize(
    machine: CpuMachine, nest: LoopNest, step: Vectorize, schedule: Schedule
) -> Refusal | None:
    widest = lanes(nest.parallel.body, machine)
    if not widest:
        return Refusal("there are no vectors of what the loop loads and carries")
    if step.stride != 1 or step.peel or step.divisible:
        return Refusal("a CPU's vectors are next to each other, and not peeled")
    if step.width < 2 or step.width & (step.width - 1) or step.width > widest:
        return Refusal(f"`width` is a power of two from 2 to {widest}")
    if step.copies % step.width or step.copies > MOST * step.width:
        return Refusal(f"`copies` are one to {MOST} vectors of {step.width}")
    found = _neighbours(nest, step, schedule)
    for op in walk(nest.parallel.body) if found is None else ():
        if not fits_lanes(op, step.width, machine):
            return Refusal(f"`{op.name}` has no form for vectors here", op.span)
    return found


def _privatize(nest: LoopNest, step: Privatize, schedule: Schedule) -> Refusal | None:
    found, function = accumulated(nest, step), nest.function
    if isinstance(found, Refusal):
        return found
    element = nest.array(step.array).memref.element
    if element is i1 or element.is_storage:
        return Refusal(f"copies of {element} would be combined with other roundings")
    if function.strict and element.is_float:
        return Refusal("strict_math keeps the order of sums")
    if not function.attrs.get("noalias"):
        return Refusal(_OVERLAP)
    return beside(step, schedule, Vectorize)


def _streaming(nest: LoopNest, step: StreamingStores, schedule: Schedule) -> Refusal | None:
    if only(schedule, Vectorize) is None:
        return Refusal("whole vectors stream", None, "write vectorize(...) as well")
    return legal.RULES[StreamingStores](nest, step, schedule)


def is_access(op: Op) -> bool:
    return op.name in ("memref.load", "memref.store")


def lanes(body: Block, machine: CpuMachine) -> int:
    """The lanes of a vector of the widest numbers that are loaded or carried; 0 if there are no
    such vectors."""
    loaded = [v for op in walk(body) if op.name == "memref.load" for v in op.results]
    carried = [v for op in walk(body) if op.name == "scf.for" for v in op.results]
    widths = [v.type.bytes for v in (*loaded, *carried) if isinstance(v.type, ScalarType)]
    widest = max(widths, default=0)
    return machine.vector_bytes // max(widest, 4) if widest in (2, 4, 8) else 0


def fits_lanes(op: Op, width: int, machine: CpuMachine) -> bool:
    """Whether there are vectors of ``width`` numbers for ``op``."""
    if is_access(op):
        memref, subscripts, _ = memory(op)
        return bool(subscripts) and memref.memref.element is not i1
    calls = op.name.startswith("math.") and op.name not in INSTRUCTIONS
    return is_plain(op) and (not calls or width in machine.lanes(op.result.scalar))

"""Small local arrays as numbers: loops through their elements are written out."""

from __future__ import annotations

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op
from weft.schedule.nest import loops_of
from weft.schedule.recurrences import MOST_JOINT
from weft.schedule.unroll import for_registers, written_out


def small_loops(function: Function) -> dict[str, Op]:
    """The loops through local arrays that a scan may carry."""
    return {
        name: loops_of(op)[name] for op in function.body.ops if op.name == "scf.parallel"
        for name in for_registers(op, MOST_JOINT)
    }  # fmt: skip


def write_out(function: Function) -> Function:
    """Writes every turn of ``small_loops``, so that subscripts are numbers and ``promote`` carries
    the elements.

    Precondition: a verified function. Non-goals: larger arrays, which schedules keep in registers
    (``unroll``).
    """
    loops = [*small_loops(function).values()]
    made = Rewriter(around=lambda op, rewriter: written_out(op, rewriter) if op in loops else None)
    return made.function(function) if loops else function

"""Small local arrays as numbers: loops through their elements are written out."""

from __future__ import annotations

from math import prod

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, walk
from weft.ir.types import compute_type
from weft.ir.views import accessed_by, constant_of, memory, written_by
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.forward_stores import forward_stores
from weft.passes.lower_updates import lowered
from weft.passes.memory import is_local
from weft.passes.promote import promote
from weft.passes.simplify import simplify
from weft.schedule.nest import loops_of
from weft.schedule.recurrences import MOST_JOINT
from weft.schedule.unroll import for_registers, written_out


def carries_small_arrays(function: Function) -> bool:
    """Whether turns of a loop store to local arrays that a scan may carry."""
    small = {op.result for op in walk(function.body) if op.name == "memref.alloca"
             and prod(op.result.memref.shape or (MOST_JOINT + 1,)) <= MOST_JOINT}  # fmt: skip
    loops = (op for op in walk(function.body) if op.name == "scf.for") if small else ()
    return any(written_by(op) in small for loop in loops for op in walk(loop.body))


def small_loops(function: Function) -> dict[str, Op]:
    """The loops through local arrays that a scan may carry."""
    return {
        name: loops_of(op)[name] for op in function.body.ops if op.name == "scf.parallel"
        for name in for_registers(op, MOST_JOINT)
    }  # fmt: skip


def as_numbers(function: Function) -> Function:
    """What turns of a serial loop store to small local arrays, as numbers that the loop carries: of
    these a gradient keeps one for each element and turn, and whole loops of them compose. Arrays
    that are subscripted otherwise stay arrays.

    Precondition: a verified function.
    """
    if not carries_small_arrays(function):
        return function
    function = cse(simplify(write_out(function)))
    function = forward_stores(lowered(function, _updates_of_numbers(function)))
    return dce(simplify(forward_stores(promote(function, local=MOST_JOINT))))


def _updates_of_numbers(function: Function) -> set[Op]:
    """Updates of small local arrays whose elements are all numbered."""
    accesses = [op for op in walk(function.body) if accessed_by(op) is not None]
    unknown = {accessed_by(op) for op in accesses if None in map(constant_of, memory(op)[1])}
    found: set[Op] = set()
    for op in accesses:
        memref = memory(op)[0]
        small = prod(memref.memref.shape or (MOST_JOINT + 1,)) <= MOST_JOINT
        exact = compute_type(memref.memref.element) is memref.memref.element
        if op.name == "memref.atomic_rmw" and is_local(memref) and memref not in unknown:
            found |= {op} if small and exact else set()
    return found


def write_out(function: Function) -> Function:
    """Writes every turn of ``small_loops``, so that subscripts are numbers and ``promote`` carries
    the elements.

    Precondition: a verified function. Non-goals: larger arrays, which schedules keep in registers
    (``unroll``).
    """
    loops = [*small_loops(function).values()]
    made = Rewriter(around=lambda op, rewriter: written_out(op, rewriter) if op in loops else None)
    return made.function(function) if loops else function

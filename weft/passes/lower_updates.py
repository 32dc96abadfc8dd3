"""Ordinary updates as a load, an operation and a store, which other passes know.

Precondition: ``relax_atomics`` has said which updates of arguments are ordinary; those of local
arrays are. Non-goals: elements whose
arithmetic is carried out in another type (f16), and updates that are atomic.
"""

from __future__ import annotations

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import compute_type
from weft.ir.views import memory
from weft.passes.memory import is_local


def lower_updates(function: Function) -> Function:
    """Replaces every ``memref.atomic_rmw`` that need not be atomic."""
    if not any(map(_is_ordinary, walk(function.body))):
        return function

    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if not _is_ordinary(op):
            return None
        memref, subscripts, (value,) = memory(op)
        before = rewriter.load(memref, subscripts)
        after = rewriter.op(f"arith.{op.attrs['kind']}", before, value)
        rewriter.store(after, memref, subscripts)
        return [before]

    return Rewriter(visit).function(function)


def _is_ordinary(op: Op) -> bool:
    if op.name != "memref.atomic_rmw":
        return False
    memref = memory(op)[0]
    element = memref.memref.element
    return (is_local(memref) or not op.attrs["atomic"]) and compute_type(element) is element

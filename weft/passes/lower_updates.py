"""Ordinary updates as a load, an operation and a store, which other passes know.

Precondition: ``relax_atomics`` has said which updates are ordinary. Non-goals: elements whose
arithmetic is carried out in another type (f16), and updates that are atomic.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import compute_type
from weft.ir.views import memory


def lower_updates(function: Function) -> Function:
    """Replaces every ``memref.atomic_rmw`` that is not atomic."""
    return lowered(function, {op for op in walk(function.body) if _is_ordinary(op)})


def lowered(function: Function, updates: Collection[Op]) -> Function:
    """Replaces ``updates``, which are ordinary, of elements whose arithmetic is in their type."""
    if not updates:
        return function
    order = (op in updates for op in walk(function.body) if op.name == "memref.atomic_rmw")

    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op.name != "memref.atomic_rmw" or not next(order):
            return None
        memref, subscripts, (value,) = memory(op)
        before = rewriter.load(memref, subscripts)
        after = rewriter.op(f"arith.{op.attrs['kind']}", before, value)
        rewriter.store(after, memref, subscripts)
        return [before]

    return Rewriter(visit).function(function)


def _is_ordinary(op: Op) -> bool:
    if op.name != "memref.atomic_rmw" or op.attrs["atomic"]:
        return False
    element = memory(op)[0].memref.element
    return compute_type(element) is element

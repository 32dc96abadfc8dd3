"""Ordinary updates as a load, an operation and a store, which other passes know.

Precondition: ``relax_atomics`` has said which updates are ordinary. Non-goals: elements whose
arithmetic is carried out in another type (f16), and updates that are atomic. The sum of an element
and a wider float, which was rounded to the element's type (``late``), is computed in the wider one,
and rounded once, as Python does; an atomic update rounds the float.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import compute_type
from weft.ir.views import made_by, memory


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
        wide = _wide(op)
        if wide is not None:
            element = rewriter.op("arith.extf", before, type=wide.type)
            both = rewriter.op(f"arith.{op.attrs['kind']}", element, wide)
            after = rewriter.op("arith.truncf", both, type=memref.memref.element)
        else:
            after = rewriter.op(f"arith.{op.attrs['kind']}", before, value)
        rewriter.store(after, memref, subscripts)
        return [before]

    return Rewriter(visit).function(function)


def _is_ordinary(op: Op) -> bool:
    if op.name != "memref.atomic_rmw" or op.attrs["atomic"]:
        return False
    element = memory(op)[0].memref.element
    return compute_type(element) is element or _wide(op) is not None


def _wide(op: Op) -> Value | None:
    """The float that the update's operand was rounded from, if it is to be rounded late."""
    rounded = made_by(memory(op)[2][0], "arith.truncf")
    if rounded is None or "late" not in rounded.attrs or op.attrs["kind"] not in ("addf", "mulf"):
        return None
    return rounded.operand

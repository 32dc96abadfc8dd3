"""Reads of arrays all of whose elements are one in memory, as the gradient of a sum is."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.views import memory


def read_uniform(function: Function, arrays: Collection[Value]) -> Function:
    """``function``, which loads the first element of ``arrays`` in place of any other.

    Precondition: it writes to none of these arguments. Where it is called, each has an element.
    """
    rewriter = Rewriter(lambda op, b: _first(op, b, own))
    new = function.without_body()
    own = {b for a, b in zip(function.args, new.args, strict=True) if a in arrays}
    return rewriter.into(function, new)


def _first(op: Op, b: Rewriter, own: Collection[Value]) -> list[Value] | None:
    if op.name != "memref.load":
        return None
    memref, subscripts, _ = memory(op)
    return [b.load(memref, [b.index(0)] * len(subscripts))] if memref in own else None

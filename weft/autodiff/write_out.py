"""Loops through chunks, written out: what they keep in local arrays becomes values."""

from __future__ import annotations

from collections.abc import Sequence

from weft.autodiff.checkpoints import WRITTEN_OUT
from weft.autodiff.clean import clean
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.passes.cse import cse
from weft.passes.forward_stores import forward_stores
from weft.passes.simplify import simplify
from weft.schedule.unroll import turns, written_out


def write_out(function: Function) -> Function:
    """``function``, in which each turn of the loops that are marked so is written out, if their
    number is known. The others, in place, become loops that are not worth their code: of what is
    left over."""
    marked = [op for op in walk(function.body) if op.attrs.pop(WRITTEN_OUT, False)]
    chunks = {op for op in marked if turns(op) >= 0}
    for op in marked:
        op.attrs |= {"unroll": 1, "rare": True}
    if not chunks:
        return function

    def around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return written_out(op, rewriter) if op in chunks else None

    function = Rewriter(None, around).function(function)
    return clean(forward_stores(cse(simplify(function))))

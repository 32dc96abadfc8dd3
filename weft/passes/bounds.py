"""Bounds checks that are proven to hold are dropped (debug mode).

Precondition: none. Non-goals: checks are not moved or merged; use common subexpressions for that.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.index.bounds import needless_checks
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk


def bounds(function: Function) -> Function:
    """Removes every ``weft.bounds`` whose subscript is always in range."""
    checks = [op for op in walk(function.body) if op.name == "weft.bounds"]
    needless = needless_checks(function) if checks else set()
    if not needless:
        return function
    drop = iter([op in needless for op in checks])

    def visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return [] if op.name == "weft.bounds" and next(drop) else None

    return Rewriter(visit).function(function)

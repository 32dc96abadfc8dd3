"""Dead code of adjoints: what was redone or taped in vain."""

from __future__ import annotations

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import written_by
from weft.ir.writes import loaded, written
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify


def clean(function: Function) -> Function:
    """``function`` simplified, without tapes that are never read and without unused arguments.

    Arguments whose names begin with "tape" or "work." are workspaces of ``function`` alone: nobody
    looks at them afterwards.
    """
    function = cse(simplify(function))
    while True:
        function = dce(function)
        unread = _unread(function)
        if not unread:
            break
        function = _without_stores(function, unread)
    return without_unused(dce(simplify(function)))


def _unread(function: Function) -> set[str]:
    """The tapes that are written and never read."""
    tapes = {a for a in function.args if a.name.startswith(("tape", "work."))}
    return {a.name for a in (written(function) & tapes) - loaded(function)}


def _without_stores(function: Function, names: set[str]) -> Function:
    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        memref = written_by(op)
        if memref is None or memref.name not in names:
            return None
        return [rewriter.constant(0, r.type) for r in op.results]  # type: ignore[arg-type]

    return Rewriter(visit).function(function)


def without_unused(function: Function) -> Function:
    """``function`` without the arguments that nothing in it mentions. It is changed in place."""
    used = {v for op in walk(function.body) for v in op.operands}
    function.body.args = [a for a in function.body.args if a in used]
    return function


def has_effects(function: Function) -> bool:
    """Whether it writes to any of its arguments."""
    return not written(function).isdisjoint(function.args)

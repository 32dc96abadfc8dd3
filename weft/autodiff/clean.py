"""Dead code of adjoints: what was redone or taped in vain."""

from __future__ import annotations

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify


def clean(function: Function) -> Function:
    """``function`` simplified, without tapes that are never read and without unused arguments.

    Arguments whose names begin with "tape" or "keep" are workspaces of ``function`` alone: nobody
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
    tapes = {a for a in function.args if a.name.startswith("tape")}
    stored = {op.operands[1] for op in walk(function.body) if op.name == "memref.store"} & tapes
    read = {op.operands[0] for op in walk(function.body) if op.name == "memref.load"}
    return {a.name for a in stored - read}


def _without_stores(function: Function, names: set[str]) -> Function:
    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        return [] if op.name == "memref.store" and op.operands[1].name in names else None

    return Rewriter(visit).function(function)


def without_unused(function: Function) -> Function:
    """``function`` without the arguments that nothing in it mentions. It is changed in place."""
    used = {v for op in walk(function.body) for v in op.operands}
    function.body.args = [a for a in function.body.args if a in used]
    return function


def has_effects(function: Function) -> bool:
    """Whether it writes to any of its arguments."""
    args = set(function.args)
    return any(
        op.operands[1] in args
        for op in walk(function.body)
        if op.name in ("memref.store", "memref.atomic_rmw")
    )

"""Dead code of adjoints: what was redone or taped in vain."""

from __future__ import annotations

from weft.ir.core import Function, walk
from weft.ir.writes import written
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify


def clean(function: Function) -> Function:
    """``function`` simplified, without tapes of which nothing that matters is read, and without
    unused arguments.

    Arguments whose names begin with "tape" or "work." are workspaces of ``function`` alone: nobody
    looks at them afterwards.
    """
    function = cse(simplify(function))
    tapes = {a for a in function.args if a.name.startswith(("tape", "work."))}
    return without_unused(dce(simplify(dce(function, tapes))))


def without_unused(function: Function) -> Function:
    """``function`` without the arguments that nothing in it mentions. It is changed in place."""
    used = {v for op in walk(function.body) for v in op.operands}
    function.body.args = [a for a in function.body.args if a in used]
    return function


def has_effects(function: Function) -> bool:
    """Whether it writes to any of its arguments."""
    return not written(function).isdisjoint(function.args)

"""Dead code of adjoints: what was redone or taped in vain."""

from __future__ import annotations

from collections.abc import Mapping

from weft.autodiff.names import workspaces_of
from weft.ir.core import Function, walk
from weft.ir.writes import written
from weft.passes.cse import cse
from weft.passes.dce import dce
from weft.passes.simplify import simplify


def clean(function: Function) -> Function:
    """``function`` simplified, without tapes of which nothing that matters is read, and without
    unused arguments.

    Nobody looks at an adjoint's own workspaces afterwards (see ``workspaces_of``).
    """
    function = cse(simplify(function))
    order = function.attrs.get("order")
    own = workspaces_of(order) if order else ()
    tapes = {a for a in function.args if a.name.startswith(own)}
    return without_unused(dce(simplify(dce(function, tapes))))


def without_unused(function: Function) -> Function:
    """``function`` without the arguments that nothing in it mentions. It is changed in place."""
    used = {v for op in walk(function.body) for v in op.operands}
    function.body.args = [a for a in function.body.args if a in used]
    return function


def sizes_of_gradients(function: Function, gradients: Mapping[str, str]) -> Function:
    """``function``, which asks the gradient of an argument for its sizes where it asks the argument
    for nothing else: nobody has to keep that, and it may be overwritten. ``gradients``: the names
    of gradients, by those of what they are of. It is changed in place."""
    args = {a.name: a for a in function.args}
    ops = [*walk(function.body)]
    read = {v for op in ops if op.name != "memref.dim" for v in op.operands}
    instead = {args[name]: args[own] for name, own in gradients.items()
               if name in args and own in args and args[name] not in read}  # fmt: skip
    for op in ops:
        op.operands = [instead.get(v, v) for v in op.operands]
    return cse(without_unused(function)) if instead else function


def has_effects(function: Function) -> bool:
    """Whether it writes to any of its arguments."""
    return not written(function).isdisjoint(function.args)

"""Maxima and minima that a sequential loop carries: who gets the adjoint is seen from the result.

What equals the result shares its adjoint evenly, as ``torch.amax`` has it. That needs neither a
tape nor the order of the iterations.
"""

from __future__ import annotations

from weft.ir.core import Op, Value, slice_of, walk
from weft.ir.types import ScalarType
from weft.ir.views import For, memory
from weft.passes.reassociate_extrema import running_extremum
from weft.values import mutable

_UPDATES = ("arith.maximumf", "arith.minimumf")
# What gives the same bits wherever it is computed: no rounding, so no fused or other rounding.
_EXACT = ("memref.load", "arith.extf", "arith.negf", "math.absf", "arith.constant")


@mutable
class Extremum:
    """``carried`` becomes ``element`` where that is more extreme; ``slice`` computes ``element``
    from the loop's index, in order. ``place``: which carried value of the loop it is."""

    carried: Value
    element: Value
    slice: tuple[Op, ...]
    place: int


def extremum(loop: Op, place: int) -> Extremum | None:
    """Carried value ``place`` of a ``scf.for`` as an extremum of elements that are exactly the same
    when they are computed once more; None where it is something else."""
    found = running_extremum(loop, place)
    if found is not None and "unshared" in found[3].attrs:
        return None
    element = found[2] if found is not None else _updated(loop, place)
    if element is None:
        return None
    # Of the loop's arguments it is the index alone.
    carried = set(For(loop).carried)
    slice = slice_of(
        element, loop.body, lambda op: is_exact(op) and carried.isdisjoint(op.operands)
    )
    if element in carried or slice is None:
        return None
    return Extremum(For(loop).carried[place], element, tuple(slice), place)


def _updated(loop: Op, place: int) -> Value | None:
    """The element by which carried value ``place`` goes on to a maximum or minimum with it, and
    that is all that becomes of it."""
    carried, following = For(loop).carried[place], For(loop).yielded[place]
    update = following.op
    if update is None or update.name not in _UPDATES or update not in loop.body.ops:
        return None
    own = (carried, following)
    users = [o for o in walk(loop.body) if carried in o.operands or following in o.operands]
    if users != [update, loop.body.terminator]:
        return None
    if sum(v in own for v in loop.body.terminator.operands) != 1 or carried not in update.operands:
        return None
    return next((v for v in update.operands if v is not carried), None)


def is_exact(op: Op) -> bool:
    """Whether ``op`` gives the same bits wherever it is computed."""
    if op.name == "memref.load":
        return memory(op)[0].op is None  # a local array may have changed
    return op.name in _EXACT or all(
        isinstance(v.type, ScalarType) and not v.type.is_float and not op.regions
        for v in (*op.operands, *op.results)
    )

"""Maxima and minima that a sequential loop carries: who gets the adjoint is seen from the result.

What equals the result shares its adjoint evenly, as ``torch.amax`` has it. That needs neither a
tape nor the order of the iterations.
"""

from __future__ import annotations

from weft.ir.core import Op, Value, slice_of
from weft.ir.types import ScalarType
from weft.ir.views import For, memory
from weft.passes.reassociate_extrema import running_extremum
from weft.values import mutable

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
    if found is None:
        return None
    *_, element, _ = found
    # Of the loop's arguments it is the index alone.
    carried = set(For(loop).carried)
    slice = slice_of(
        element, loop.body, lambda op: is_exact(op) and carried.isdisjoint(op.operands)
    )
    if element in carried or slice is None:
        return None
    return Extremum(For(loop).carried[place], element, tuple(slice), place)


def is_exact(op: Op) -> bool:
    """Whether ``op`` gives the same bits wherever it is computed."""
    if op.name == "memref.load":
        return memory(op)[0].op is None  # a local array may have changed
    return op.name in _EXACT or all(
        isinstance(v.type, ScalarType) and not v.type.is_float and not op.regions
        for v in (*op.operands, *op.results)
    )

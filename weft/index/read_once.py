"""Arrays each element of which a function loads a few times at most."""

from __future__ import annotations

from collections.abc import Sequence

from weft.index.access import Access
from weft.ir.core import Function, Value, walk

_READS = ("memref.load", "memref.dim")


def reads_each_once(function: Function, found: Sequence[Access], array: Value) -> bool:
    """Whether all that ``function`` does with its argument ``array`` is to ask for its sizes, and
    to load in such a way that no load comes to an element twice: each index of the loops around it
    moves a subscript of its own. Then loads are as many as elements, as those of a copy would be.

    ``found``: the accesses of the function."""
    for op in walk(function.body):
        if op.name == "scf.while" or (array in op.operands and op.name not in _READS):
            return False
    return all(_each_once(a) for a in found if a.memref is array)


def _each_once(access: Access) -> bool:
    indices = [loop.iv for loop in access.loops]
    own = set[Value]()
    for subscript in access.subscripts:
        moving = [v for v in indices if subscript is None or subscript.slope(v) != 0]
        if len(moving) == 1 and subscript is not None and subscript.slope(moving[0]):
            own.add(moving[0])
    return own.issuperset(indices)

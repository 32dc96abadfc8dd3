"""By which indices of a parallel loop what its iterations accumulate is apart.

``for n, i, j: h[n, a[n, i, j]] += v`` meets on elements of ``h`` where ``n`` is the same only: one
thread may carry out all iterations of an ``n``, in their order and without atomics.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.index.access import Access
from weft.index.budget import Budget
from weft.index.disjoint import provably_disjoint
from weft.index.races import pairs
from weft.ir.core import Value


def leading(every: Sequence[Access], arrays: Collection[Value]) -> int:
    """How many of the outermost indices of a parallel loop (not all) are so that iterations which
    differ in one of them never meet on an element of ``arrays``. ``every``: all accesses of the
    function, which has no other parallel loop that touches ``arrays``."""
    groups = [[a for a in every if a.memref is array] for array in arrays]
    spaces = {a.parallel for group in groups for a in group}
    if len(spaces) != 1:
        return 0
    (space,) = spaces
    budget = Budget()
    for count in range(len(space) - 1, 0, -1):
        if all(_apart(group, space[count:], budget) for group in groups):
            return count
    return 0


def _apart(group: Sequence[Access], inner: Sequence[Value], budget: Budget) -> bool:
    """Whether iterations that differ in a parallel index other than ``inner`` never meet."""
    for a, b in pairs([_in_order(a, inner) for a in group]):
        budget.pairs -= 1
        if budget.pairs < 0 or ((a.writes or b.writes) and not provably_disjoint(a, b)):
            return False
    return True


def _in_order(access: Access, inner: Sequence[Value]) -> Access:
    """``access`` where one thread goes along the indices ``inner``."""
    loops = tuple(replace(x, parallel=x.parallel and x.iv not in inner) for x in access.loops)
    return replace(access, loops=loops)

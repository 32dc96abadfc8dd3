"""Atomic demotion: an accumulation is plain where no two iterations can meet on its element.

Precondition: none. Non-goals: accumulations that meet are not turned into reductions, and
``memref.atomic_cas`` is left alone. What depends on data stays atomic.
"""

from __future__ import annotations

import logging

from weft.index.access import Access, accesses
from weft.index.budget import Budget
from weft.index.races import meeting, places
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk

log = logging.getLogger("weft.races")


def relax_atomics(function: Function) -> Function:
    """Sets ``atomic`` to False on every ``memref.atomic_rmw`` that is proven not to need it."""
    decisions = _decisions(function)
    if not any(decisions.values()):
        return function
    # The rewriter hands over copies, but in program order, for operations without regions.
    plain = iter([decisions.get(op, False) for op in _accumulations(function)])

    def visit(op: Op, rewriter: Rewriter) -> None:
        if op.name == "memref.atomic_rmw" and next(plain):
            op.attrs["atomic"] = False

    return Rewriter(visit).function(function)


def _accumulations(function: Function) -> list[Op]:
    return [op for op in walk(function.body) if op.name == "memref.atomic_rmw"]


def _decisions(function: Function) -> dict[Op, bool]:
    """Which of the accumulations that are atomic now can be plain."""
    if not _accumulations(function):
        return {}
    by_array: dict[tuple[Value | None, Value], list[Access]] = {}
    for access in accesses(function):
        loop = access.parallel[0] if access.parallel else None
        by_array.setdefault((loop, access.memref), []).append(access)
    decisions: dict[Op, bool] = {}
    budget = Budget()
    for (loop, _), group in by_array.items():
        atomic = [a for a in group if a.kind == "rmw" and a.op.attrs["atomic"]]
        shared = {places(a) for a in atomic if not (loop is None or a.local)}
        met = meeting(group, shared, budget) if shared else set()
        for access in atomic:
            decisions[access.op] = plain = places(access) not in met
            if log.isEnabledFor(logging.DEBUG):
                how = "plain" if plain else "atomic"
                log.debug("%s: %s is %s", function.name, access.where, how)
    return decisions

"""Reduction recognition: an element that all iterations accumulate into becomes a reduction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from weft.ir.core import Function, Op, Value, below, defined, walk
from weft.ir.made import pure_parts
from weft.ir.types import compute_type, i1
from weft.ir.views import Parallel, constant_of, memory
from weft.passes.carry import Accumulating, Element
from weft.passes.memory import is_local, subscripts_differ

MOST = 16  # elements of one loop


def recognise_reductions(function: Function) -> Function:
    """``for i: s[0] += x[i]`` becomes a parallel loop that reduces into a value, which starts as
    ``s[0]`` and is stored there behind the loop, as ``total += x[i]`` does.

    That holds for arrays that a loop does nothing with but accumulate, by one combiner for each
    element, without asking what was there, into elements that no iteration chooses; also in
    branches and in ``for`` loops. Where a subscript may lie outside of its array (no iteration may
    come to the update), the array is left alone.

    Precondition: a verified function after ``collapse``, arguments that do not overlap
    (``noalias``; nothing is done otherwise).
    Non-goals: accumulations in a ``while``; elements whose arithmetic is carried out in another
    type (f16); sums and products of floats with ``strict_math``, which keeps their order.
    """
    if not function.attrs.get("noalias"):
        return function
    loops = [op for op in function.body.ops if op.name == "scf.parallel"]
    plans = {op: plan for op in loops if (plan := _plan(op, strict=function.strict))}
    return _Recogniser(plans).function(function) if plans else function


def _plan(parallel: Op, *, strict: bool) -> dict[Op, Element]:
    """The updates that become reductions, with their elements: subscripts that are the same number
    are the same value."""
    if not any(op.name == "memref.atomic_rmw" for op in walk(parallel.body)):
        return {}
    inside = defined([parallel.body])
    used = {v for op in walk(parallel.body) for v in op.operands}
    nowhere = {op for loop in walk(parallel.body) if loop.name == "scf.while" for op in below(loop)}
    arrays: dict[Value, dict[Op, Element] | None] = {}  # None: something else happens to it
    numbers: dict[int | float, Value] = {}
    for op in walk(parallel.body):
        if op.name == "memref.atomic_rmw" and op not in nowhere and op.result not in used:
            memref, at, _ = memory(op)
            element, combiner = memref.memref.element, op.attrs["kind"]
            ordered = strict and combiner in ("addf", "mulf")
            fits = compute_type(element) is element is not i1 and not ordered
            if fits and not is_local(memref) and pure_parts(at, inside) is not None:
                same = (numbers.setdefault(n, v) if (n := constant_of(v)) is not None else v
                        for v in at)  # fmt: skip
                if (updates := arrays.setdefault(memref, {})) is not None:
                    updates[op] = (memref, *same)
                continue
        if op.name != "memref.dim":
            arrays |= dict.fromkeys(op.operands)
    plan: dict[Op, Element] = {}
    for updates in arrays.values():
        if updates and _apart(updates):
            plan |= updates
    return plan if len({*plan.values()}) <= MOST else {}


def _apart(updates: dict[Op, Element]) -> bool:
    """Whether elements of one array differ, and each has one combiner."""
    elements = {*updates.values()}
    kinds = {(element, op.attrs["kind"]) for op, element in updates.items()}
    pairs = combinations(elements, 2)
    return len(kinds) == len(elements) and all(subscripts_differ(a[1:], b[1:]) for a, b in pairs)


class _Recogniser(Accumulating):
    def loop(self, op: Op) -> Sequence[Value]:
        self.place(op)
        guards = {element: self.within(element) for element in self.kinds}
        view = Parallel(op)
        totals = [self.loaded(element, guard) for element, guard in guards.items()]
        starts = [*map(self.lookup, view.inits), *totals]
        lowers, uppers, steps = (list(map(self.lookup, ends)) for ends in view.ranges)
        new = self.parallel(lowers, uppers, steps, starts, (*view.kinds, *self.kinds.values()))
        new.attrs = {**op.attrs, "kinds": new.attrs["kinds"]}
        self.stand_for(op.body.args, new.body.args)
        with self.at(new.body):
            self.current = {element: self.neutral(element) for element in guards}
            self.fill_from(op.body)
            new.body.terminator.operands += self.current.values()
        count = len(op.results)
        for (element, guard), value in zip(guards.items(), new.results[count:], strict=True):
            self.stored(value, element, guard)
        return new.results[:count]

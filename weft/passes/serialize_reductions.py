"""Loop interchange: axes of a box that only accumulations run over become serial loops inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.index.access import Access, Extraction
from weft.index.budget import Budget
from weft.index.races import proven_apart
from weft.ir.core import Function, Op, Value, below, defined, walk
from weft.ir.made import pure_parts
from weft.ir.ops import OPS
from weft.ir.types import compute_type, i1
from weft.ir.views import Parallel, is_constant, memory, surely_less
from weft.passes.carry import Accumulating, Element
from weft.values import frozen


def serialize_reductions(function: Function) -> Function:
    """``for i, j: s[j] += x[i, j]`` becomes a parallel loop over ``j`` that loads ``s[j]``, adds up
    in a serial loop over ``i``, and stores: no two iterations meet any more. Of each element the
    order of updates is that of the source.

    That holds for every parallel loop of more than one axis whose only effects are accumulations of
    which nobody uses what was there before, into memory that the loop does not read, where some
    axes occur in no subscript of them, and iterations along the others are proven apart. Under a
    condition a sum stays as it is, to the bit, where that does not hold; where a subscript is
    outside of its array, no iteration may come to the update, and none is made.

    Precondition: a verified function after ``collapse``; arguments that do not overlap
    (``noalias``; nothing is done otherwise).
    Non-goals: accumulations in a ``while``; subscripts that depend on data (histograms); elements
    whose arithmetic is carried out in another type (f16).
    """
    if not function.attrs.get("noalias"):
        return function
    boxes = [op for op in function.body.ops if op.name == "scf.parallel" and _may(op)]
    if not boxes:
        return function
    extraction, budget = Extraction(function), Budget()
    plans = {op: plan for op in boxes if (plan := _plan(op, extraction, budget)) is not None}
    return _Serializer(plans).function(function) if plans else function


@frozen
class _Plan:
    """``outer``, ``inner``: numbers of the axes that stay parallel, and of the others. ``updates``:
    the element that each accumulates into. ``certain``: the elements that every iteration does."""

    outer: list[int]
    inner: list[int]
    updates: dict[Op, Element]
    certain: set[Element]


def _may(parallel: Op) -> bool:
    """Whether the effects of ``parallel`` are such accumulations."""
    body, every = parallel.body, list(walk(parallel.body))
    if len(body.args) < 2 or parallel.attrs["kinds"]:
        return False
    updates = [op for op in every if op.name == "memref.atomic_rmw"]
    into = {memory(op)[0] for op in updates}
    types = {memref.memref.element for memref in into}
    if not updates or any(type is i1 or compute_type(type) is not type for type in types):
        return False
    results = {op.result for op in updates}
    for op in every:
        reads = op.name == "memref.load" and memory(op)[0] not in into
        plain = reads or op in updates or OPS[op.name].pure or OPS[op.name].terminator
        if not plain and op.name not in ("scf.for", "scf.if", "scf.while"):
            return False
    within = (inner for op in every if op.name == "scf.while" for inner in below(op))
    if not {*updates}.isdisjoint(within):
        return False
    return not any(value in results for op in every for value in op.operands)


def _plan(parallel: Op, extraction: Extraction, budget: Budget) -> _Plan | None:
    updates: dict[Op, Element] = {}
    inside = {a.op: a for a in extraction.found if parallel.body.args[0] in a.parallel}
    moving, used = parallel.body.args, set[Value]()
    made = defined([parallel.body]) - {*moving}
    for op in walk(parallel.body):
        if op.name == "memref.atomic_rmw":
            memref, at, _ = memory(op)
            if (parts := pure_parts(at, made)) is None:
                return None
            used |= parts
            updates[op] = (memref, *at)
    elements = dict.fromkeys(updates.values())
    if len({memref for memref, *_ in elements}) < len(elements):
        return None
    outer = [k for k, iv in enumerate(moving) if iv in used]
    inner = [k for k, iv in enumerate(moving) if iv not in used]
    serial = {moving[k] for k in inner}
    if not outer or not inner:
        return None
    # Without conditions each iteration has the same element, whatever of it is carried out.
    accesses = {
        a.memref: replace(_serial(a, serial), guards=()) for a in map(inside.get, updates) if a
    }
    if not all(proven_apart(a, a, budget) for a in accesses.values()):
        return None
    certain = {element for op, element in updates.items() if op in parallel.body.ops}
    return _Plan(outer, inner, updates, certain)


def _serial(access: Access, ivs: set[Value]) -> Access:
    loops = (replace(x, parallel=x.parallel and x.iv not in ivs) for x in access.loops)
    return replace(access, loops=tuple(loops))


class _Serializer(Accumulating):
    def __init__(self, plans: dict[Op, _Plan]) -> None:
        super().__init__({op: plan.updates for op, plan in plans.items()})
        self.plans = plans

    def loop(self, op: Op) -> Sequence[Value]:
        plan, indices = self.plans[op], op.body.args
        axes = [list(map(self.lookup, axis)) for axis in Parallel(op).axes]
        runs = [  # where the serial loops do not, no element is touched
            self.op("arith.cmpi", axes[k][0], axes[k][1], predicate="slt")
            for k in plan.inner if not surely_less(*axes[k][:2])
        ]  # fmt: skip
        inside, doubtful = defined([op.body]), [e for e in self.kinds if e not in plan.certain]
        by_bounds = len(self.kinds) == 1 and all(
            v not in inside or (v in indices and is_constant(axes[indices.index(v)][2], 1))
            for element in doubtful for v in element[1:]
        )  # fmt: skip
        for memref, *at in doubtful if by_bounds else ():  # all iterations that may come to it
            for axis, v in enumerate(at):
                size, none = self.op("memref.dim", self.lookup(memref), axis=axis), self.index(0)
                if v in inside:
                    bounds = axes[indices.index(v)]
                    bounds[0] = self.op("arith.maxsi", none, bounds[0])
                    bounds[1] = self.op("arith.minsi", bounds[1], size)
                else:
                    one = self.lookup(v)
                    runs += [self.op("arith.cmpi", one, size, predicate="slt"),
                             self.op("arith.cmpi", none, one, predicate="sle")]  # fmt: skip
        if (all_run := self.all_of(runs)) is not None:
            last = axes[plan.outer[-1]]
            last[1] = self.op("arith.select", all_run, last[1], last[0])
        new = self.parallel(*map(list, zip(*(axes[k] for k in plan.outer), strict=True)))
        new.attrs = {**op.attrs, "dims": len(plan.outer)}
        self.stand_for([indices[k] for k in plan.outer], new.body.args)
        with self.at(new.body):
            self.place(op)
            guards = {
                e: self.within(e) if e in doubtful and not by_bounds else None for e in self.kinds
            }
            self.current = {e: self.loaded(e, guard) for e, guard in guards.items()}
            self._nest(op, [(indices[k], axes[k]) for k in plan.inner])
            for element, guard in guards.items():
                self.stored(self.current[element], element, guard)
            self.rewrite(op.body.terminator)
        return []

    def _nest(self, parallel: Op, axes: Sequence[tuple[Value, list[Value]]]) -> None:
        """The serial loops over ``axes``, which carry what becomes of the elements."""
        if not axes:
            for op in parallel.body.ops[:-1]:
                self.rewrite(op)
            return
        (index, bounds), *rest = axes
        loop = self.for_(bounds[0], bounds[1], bounds[2], list(self.current.values()))
        index_here, *carried = loop.body.args
        for value, element in zip(carried, self.current, strict=True):
            value.name = element[0].name
        self.stand_for([index], [index_here])
        self.current = dict(zip(self.current, carried, strict=True))

        def inside() -> list[Value]:
            self._nest(parallel, rest)
            return list(self.current.values())

        self.fill(loop.body, inside)
        self.current = dict(zip(self.current, loop.results, strict=True))

"""Loop interchange: axes of a box that only accumulations run over become serial loops inside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.index.access import Access, Extraction
from weft.index.budget import Budget
from weft.index.races import proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import compute_type, i1
from weft.ir.views import Parallel, memory, surely_less
from weft.values import frozen


def serialize_reductions(function: Function) -> Function:
    """``for i, j: s[j] += x[i, j]`` becomes a parallel loop over ``j`` that loads ``s[j]``, adds up
    in a serial loop over ``i``, and stores: no two iterations meet any more. Of each element the
    order of updates is that of the source.

    That holds for every parallel loop of more than one axis whose only effects are accumulations of
    which nobody uses what was there before, into memory that the loop does not read, where some
    axes occur in no subscript of them, and iterations along the others are proven apart.

    Precondition: a verified function after ``collapse``; arguments that do not overlap
    (``noalias``; nothing is done otherwise).
    Non-goals: accumulations under a condition or in a loop of an iteration; subscripts that depend
    on data (histograms); elements whose arithmetic is carried out in another type (f16).
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
    the accumulations into each array."""

    outer: list[int]
    inner: list[int]
    updates: dict[Value, list[Op]]


def _may(parallel: Op) -> bool:
    """Whether the effects of ``parallel`` are such accumulations."""
    body = parallel.body
    if len(body.args) < 2 or parallel.attrs["kinds"]:
        return False
    updates = [op for op in body.ops if op.name == "memref.atomic_rmw"]
    into = {memory(op)[0] for op in updates}
    types = {memref.memref.element for memref in into}
    if not updates or any(type is i1 or compute_type(type) is not type for type in types):
        return False
    results, every = {op.result for op in updates}, list(walk(body))
    for op in every:
        reads = op.name == "memref.load" and memory(op)[0] not in into
        plain = reads or op in updates or OPS[op.name].pure or OPS[op.name].terminator
        if not plain and op.name not in ("scf.for", "scf.if", "scf.while"):
            return False
    return not any(value in results for op in every for value in op.operands)


def _plan(parallel: Op, extraction: Extraction, budget: Budget) -> _Plan | None:
    updates: dict[Value, list[Op]] = {}
    inside = {a.op: a for a in extraction.found if parallel.body.args[0] in a.parallel}
    moving, used = parallel.body.args, set[Value]()
    made = {v for op in parallel.body.ops for v in op.results}
    for op in parallel.body.ops:
        if op.name == "memref.atomic_rmw":
            memref, at, _ = memory(op)
            if at != memory(updates.setdefault(memref, [op])[0])[1] or not _made_of(at, made, used):
                return None
            if op not in updates[memref]:
                updates[memref].append(op)
    outer = [k for k, iv in enumerate(moving) if iv in used]
    inner = [k for k, iv in enumerate(moving) if iv not in used]
    serial = {moving[k] for k in inner}
    firsts = [_serial(inside[ops[0]], serial) for ops in updates.values()]
    if not outer or not inner or not all(proven_apart(a, a, budget) for a in firsts):
        return None
    return _Plan(outer, inner, updates)


def _made_of(values: Sequence[Value], made: Collection[Value], used: set[Value]) -> bool:
    """Whether ``values`` are made by pure operations, of those that an iteration has ``made``; what
    they are made of goes to ``used``."""
    open_ = list(values)
    while open_:
        value = open_.pop()
        used.add(value)
        if value in made:
            assert value.op is not None
            if value.op.regions or not OPS[value.op.name].pure:
                return False
            open_ += value.op.operands
    return True


def _serial(access: Access, ivs: set[Value]) -> Access:
    loops = (replace(x, parallel=x.parallel and x.iv not in ivs) for x in access.loops)
    return replace(access, loops=tuple(loops))


class _Serializer(Rewriter):
    def __init__(self, plans: dict[Op, _Plan]) -> None:
        super().__init__(self._visit, self._around)
        self.plans = plans
        self.sums: dict[Value, Value] = {}  # of each array: its element as it is here

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        plan = self.plans.get(op)
        if plan is None:
            return None
        self.span = op.span
        axes = [list(map(self.lookup, axis)) for axis in Parallel(op).axes]
        outer = [axes[k] for k in plan.outer]
        runs: Value | None = None  # where the serial loops do not, no element is touched
        for lower, upper, _ in (axes[k] for k in plan.inner):
            if not surely_less(lower, upper):
                one = self.op("arith.cmpi", lower, upper, predicate="slt")
                runs = one if runs is None else self.op("arith.andi", runs, one)
        if runs is not None:
            lower, upper, _ = outer[-1]
            outer[-1][1] = self.op("arith.select", runs, upper, lower)
        new = self.parallel(*map(list, zip(*outer, strict=True)))
        new.attrs = {**op.attrs, "dims": len(outer)}
        indices = op.body.args
        self.stand_for([indices[k] for k in plan.outer], new.body.args)
        with self.at(new.body):
            places = {ops[0]: array for array, ops in plan.updates.items()}
            subscripts = self._subscripts(op, list(places))
            arrays = [self.lookup(array) for array in places.values()]
            before = [self.load(a, at) for a, at in zip(arrays, subscripts, strict=True)]
            rest = [(indices[k], axes[k]) for k in plan.inner]
            after = self._nest(op, rest, dict(zip(arrays, before, strict=True)))
            for value, array, at in zip(after, arrays, subscripts, strict=True):
                self.store(value, array, at)
            self.rewrite(op.body.terminator)
        return []

    def _subscripts(self, parallel: Op, updates: Sequence[Op]) -> list[list[Value]]:
        """Those of ``updates``, computed in front of the serial loops."""
        inside = {v for op in parallel.body.ops for v in op.results}
        known: dict[Value, Value] = {}
        return [[self.in_front(v, inside, known) for v in memory(op)[1]] for op in updates]

    def _nest(
        self, parallel: Op, axes: Sequence[tuple[Value, list[Value]]], sums: dict[Value, Value]
    ) -> Sequence[Value]:
        """The serial loops over ``axes``, and what becomes of ``sums`` in them."""
        if not axes:
            self.sums = sums
            for op in parallel.body.ops[:-1]:
                self.rewrite(op)
            return list(self.sums.values())
        (index, bounds), *rest = axes
        loop = self.for_(bounds[0], bounds[1], bounds[2], list(sums.values()))
        index_here, *carried = loop.body.args
        for value, array in zip(carried, sums, strict=True):
            value.name = array.name
        self.stand_for([index], [index_here])
        inside = dict(zip(sums, carried, strict=True))
        self.fill(loop.body, lambda: self._nest(parallel, rest, inside))
        return loop.results

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op.name != "memref.atomic_rmw":
            return None
        array, _, (value,) = memory(op)
        before = self.sums.get(array)
        if before is None:  # of another loop
            return None
        self.sums[array] = self.op(f"arith.{op.attrs['kind']}", before, value)
        return [before]

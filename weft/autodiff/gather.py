"""Gather form: a loop over the elements of a gradient, each summing what reads it.

``S[i] : gx[f(i)] += v(i)`` becomes ``for j: gx[j] = sum of v(i) over {i : f(i) = j}``. The
equations ``f(i) = j`` are solved for as many loop indices as there are; what the loops' bounds and
conditions then say of the remaining ones are the bounds of the sums. No atomics, no order that
varies. Where there are fewer elements than a machine wants iterations, a sum may be split into
chunks: one loop computes partial sums into a workspace, a second one adds them up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from weft.autodiff.adjoint import Buffer
from weft.autodiff.clean import clean, has_effects
from weft.autodiff.elements import element_loop, longest, split_loops
from weft.autodiff.fibre import Fibre, NotAffine, fibre
from weft.autodiff.lift import lift
from weft.autodiff.slices import Slicer, Unavailable
from weft.index.access import Access, accesses
from weft.index.expression import Poly
from weft.index.races import proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, i64


@dataclass(slots=True)
class _Plan:
    """What becomes of the accumulations into one gradient."""

    name: str
    form: str  # "plain", "reduce", "gather" or "atomic"
    note: str
    group: list[Access] = field(default_factory=list)
    fibres: list[Fibre] = field(default_factory=list)

    @property
    def found(self) -> list[tuple[Access, Fibre]]:
        return list(zip(self.group, self.fibres, strict=True))


@dataclass(slots=True)
class Gathered:
    """The functions to be launched in order, a note on each gradient, the workspaces for what the
    sums need and for their parts, and how long sums are (see ``Adjoint.sums``)."""

    steps: list[Function]
    notes: dict[str, str]
    buffers: list[Buffer] = field(default_factory=list)
    sums: dict[str, Poly] = field(default_factory=dict)


def gather(
    function: Function, names: Sequence[str], parallel: Op, split: Collection[str] = ()
) -> Gathered:
    """Takes the accumulations into the arguments ``names`` out of ``function`` where that makes
    them deterministic. ``parallel`` is the primal's loop; ``split`` names gradients whose sums are
    computed in chunks."""
    function = clean(lift(function, names))
    every = accesses(function)
    plans = []
    slicer = Slicer(function)
    for name in names:
        group = [a for a in every if a.memref.name == name]
        if group:
            plans.append(_plan(name, group, slicer))
    notes = {plan.name: plan.note for plan in plans}
    gathered = [p for p in plans if p.form == "gather"]
    reduced = {a.op for p in plans if p.form == "reduce" for a in p.group}
    if not gathered and not reduced:
        return Gathered([function] if has_effects(function) else [], notes)
    loops: list[Function] = []
    buffers: list[Buffer] = []
    sums = {p.name: terms for p in gathered if (terms := longest(p.found)) is not None}
    for plan in gathered:
        for access in plan.group:
            slicer.spill(access)
    for plan in gathered:
        if plan.name in split and plan.name in sums:
            workspace = f"part.{plan.name}.{function.name}"
            loops += split_loops(function, plan.name, plan.found, slicer, workspace)
            element = next(a.memref.type for a in plan.group)
            assert isinstance(element, MemRefType)
            buffers.append(Buffer(workspace, element.element.name, None, partial=plan.name))
        else:
            loops.append(element_loop(function, plan.name, plan.found, slicer))
    for k, value in enumerate(slicer.spilled):
        element = slicer.element(value)
        buffers.append(Buffer(slicer.name(k), element.name, parallel))
    taken = {a.op for p in gathered for a in p.group}
    main = _rest(function, taken, reduced, slicer)
    steps = [clean(main)] if has_effects(clean(main)) else []
    return Gathered([*steps, *map(clean, loops)], notes, buffers, sums)


def _plan(name: str, group: list[Access], slicer: Slicer) -> _Plan:
    if any(a.kind != "rmw" for a in group):
        return _Plan(name, "atomic", "as the loop writes it")
    alone = all(proven_apart(a, b) for k, a in enumerate(group) for b in group[k:])
    if alone:
        return _Plan(name, "plain", "plain store: no two iterations read one element", group)
    if all(slicer.is_fixed(v) for a in group for v in a.op.operands[2:]) and all(
        not a.serial and not a.guards for a in group
    ):
        return _Plan(name, "reduce", "parallel reduction", group)
    try:
        fibres = [fibre(a) for a in group]
        for access in group:
            slicer.check(access)
    except (NotAffine, Unavailable) as error:
        return _Plan(name, "atomic", f"atomic ({error})", group)
    return _Plan(name, "gather", "gather", group, fibres)


def _rest(function: Function, taken: set[Op], reduced: set[Op], slicer: Slicer) -> Function:
    """``function`` without the accumulations that were taken, which stores what sums need of it,
    and which reduces what goes to one element."""
    new = Function(
        function.name,
        [a.type for a in function.args] + [slicer.type(v) for v in slicer.spilled],
        [a.name for a in function.args] + [slicer.name(k) for k in range(len(slicer.spilled))],
        dict(function.attrs),
        function.span,
    )
    order = iter([op for op in walk(function.body) if op.name == "memref.atomic_rmw"])
    finals: list[tuple[Value, list[Value]]] = []

    def visit(op: Op, r: Rewriter) -> list[Value] | None:
        if op.name != "memref.atomic_rmw":
            return None
        old = next(order)
        if old in reduced:
            finals.append((op.operands[0], old.operands[1:]))
        return [op.operands[0]] if old in taken | reduced else None

    def around(op: Op, r: Rewriter) -> list[Value] | None:
        if op.name != "scf.parallel" or r.depth:
            return None
        copy = r.copy(op)
        old, body = op.regions[0], copy.regions[0]
        r.region(old, body)
        end = body.ops.pop()
        with r.at(body):
            indices = slicer.indices(r)
            for value, place in zip(slicer.spilled, new.args[len(function.args) :], strict=True):
                kept = r.lookup(value)
                assert isinstance(place.type, MemRefType)
                if place.type.element is i64 and kept.type is not i64:
                    kept = r.op("arith.index_cast", kept, type=i64)
                r.store(kept, place, indices)
            r.append(end)
        for value, _ in finals:
            type = value.type
            assert isinstance(type, ScalarType)
            copy.operands.append(r.constant(0.0, type))
            copy.results.append(Value(type, "", copy))
            end.operands.append(value)
        copy.attrs["kinds"] = (*copy.attrs["kinds"], *["addf"] * len(finals))
        r.append(copy)
        count = len(op.results)
        for (_, place), total in zip(finals, copy.results[count:], strict=True):
            memref, *at = (r.lookup(v) for v in place)
            r.atomic_rmw("addf", total, memref, at)
        return copy.results[:count]

    rewriter = Rewriter(visit, around=around)
    rewriter.replacement.update(zip(function.args, new.args, strict=False))
    rewriter.block = new.body
    for op in function.body.ops:
        rewriter.rewrite(op)
    return new

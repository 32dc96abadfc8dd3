"""Gather form: a loop over the elements of a gradient, each summing what reads it.

``S[i] : gx[f(i)] += v(i)`` becomes ``for j: gx[j] = sum of v(i) over {i : f(i) = j}``. The
equations ``f(i) = j`` are solved for as many loop indices as there are; what the loops' bounds and
conditions then say of the remaining ones are the bounds of the sums. No atomics, no order that
varies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from weft.autodiff.adjoint import Buffer
from weft.autodiff.clean import clean, has_effects
from weft.autodiff.fibre import Fibre, NotAffine, fibre
from weft.autodiff.lift import lift
from weft.autodiff.slices import Slicer, Unavailable
from weft.autodiff.write import Writer
from weft.index.access import Access, accesses
from weft.index.races import proven_apart
from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, i64, index


@dataclass(slots=True)
class _Plan:
    """What becomes of the accumulations into one gradient."""

    name: str
    form: str  # "plain", "reduce", "gather" or "atomic"
    note: str
    group: list[Access] = field(default_factory=list)
    fibres: list[Fibre] = field(default_factory=list)


def gather(
    function: Function, names: Sequence[str], parallel: Op
) -> tuple[list[Function], dict[str, str], list[Buffer]]:
    """Takes the accumulations into the arguments ``names`` out of ``function`` where that makes
    them deterministic. Gives the functions to be launched in order, a note on each gradient, and
    the workspaces for what the sums need of ``function``. ``parallel`` is the primal's loop."""
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
        return [function], notes, []
    loops, buffers = [], []
    for plan in gathered:
        for access in plan.group:
            slicer.spill(access)
    for plan in gathered:
        loops.append(_loop(function, plan, slicer))
    for k, value in enumerate(slicer.spilled):
        element = slicer.element(value)
        buffers.append(Buffer(slicer.name(k), element.name, parallel))
    taken = {a.op for p in gathered for a in p.group}
    main = _rest(function, taken, reduced, slicer)
    steps = [clean(main)] if has_effects(clean(main)) else []
    return [*steps, *map(clean, loops)], notes, buffers


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


def _loop(function: Function, plan: _Plan, slicer: Slicer) -> Function:
    """The loop over the elements of the gradient ``plan.name``."""
    args = [*function.args]
    types = [a.type for a in args] + [slicer.type(v) for v in slicer.spilled]
    names = [a.name for a in args] + [slicer.name(k) for k in range(len(slicer.spilled))]
    new = Function(f"{function.name}_{plan.name.replace('.', '_')}", types, names,
                   dict(function.attrs), function.span)  # fmt: skip
    b = Builder(new.body, function.span)
    outside = dict(zip(args, new.args, strict=False))
    kept = new.args[len(args) :]
    target = next(v for v in new.args if v.name == plan.name)
    assert isinstance(target.type, MemRefType)
    rank = target.type.rank
    zero, one = b.constant(0, index), b.constant(1, index)
    ends = [b.op("memref.dim", target, axis=k) for k in range(rank)]
    loop = b.parallel([zero] * rank, ends, [one] * rank)
    with b.at(loop.regions[0]) as block:
        total = b.constant(0.0, target.type.element)
        for access, found in zip(plan.group, plan.fibres, strict=True):
            writer = Writer(b, dict(outside))
            writer.values.update(zip(found.element, block.args, strict=True))
            total = _sum(writer, access, found, total, slicer, kept)
        b.store(total, target, block.args)
        b.do("scf.reduce")
    b.do("func.return")
    return new


def _sum(
    w: Writer, access: Access, found: Fibre, total: Value, slicer: Slicer, kept: Sequence[Value]
) -> Value:
    """``total`` plus the sum of the values of ``access`` over the fibre."""

    def value(total: Value) -> Value:
        for iv, poly in found.solved.items():
            w.values[iv] = w.poly(poly)
        return slicer.copy(access, w, kept, lambda v: w.b.op("arith.addf", total, v), total)

    def nest(k: int, total: Value) -> Value:
        if k == len(found.loops):
            return guarded(found.inner, total, value)
        iv, lowers, uppers = found.loops[k]
        low, high = w.extreme("arith.maxsi", lowers), w.extreme("arith.minsi", uppers)
        one = w.b.constant(1, index)
        loop = w.b.for_(low, w.b.op("arith.addi", high, one), one, [total])
        with w.b.at(loop.regions[0]) as block:
            block.args[0].name = iv.name
            w.values[iv] = block.args[0]
            w.b.do("scf.yield", nest(k + 1, block.args[1]))
        return loop.result

    def guarded(
        conditions: Sequence[object], total: Value, inside: Callable[[Value], Value]
    ) -> Value:
        if not conditions:
            return inside(total)
        test = w.all(conditions)  # type: ignore[arg-type]
        branch = w.b.if_(test, [total.type])
        with w.b.at(branch.regions[0]):
            w.b.do("scf.yield", inside(total))
        with w.b.at(branch.regions[1]):
            w.b.do("scf.yield", total)
        return branch.result

    return guarded(found.outer, total, lambda t: nest(0, t))


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

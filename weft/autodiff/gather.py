"""Gather form: a loop over the elements of a gradient, each summing what reads it.

``S[i] : gx[f(i)] += v(i)`` becomes ``for j: gx[j] = sum of v(i) over {i : f(i) = j}``. The
equations ``f(i) = j`` are solved for as many loop indices as there are; what the loops' bounds and
conditions then say of the remaining ones are the bounds of the sums. No atomics, no order that
varies. Where there are fewer elements than a machine wants iterations, a sum may be split into
chunks: one loop computes partial sums into a workspace, a second one adds them up.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any

from weft.autodiff.accumulate_after_loop import accumulate_after_loop
from weft.autodiff.adjoint import Additions, Buffer, Extent, Listed, Sorted, Terms
from weft.autodiff.affine_pieces import affine_pieces
from weft.autodiff.clean import clean, has_effects
from weft.autodiff.dense import Whole, dense
from weft.autodiff.elements import Found, added_up, element_loops, keys_of, split_loops, terms
from weft.autodiff.fibre import NotAffine, fibre
from weft.autodiff.privatize import privatize
from weft.autodiff.reroll import Rolled, reroll
from weft.autodiff.segments import Segments, segments
from weft.autodiff.slices import Slicer, Unavailable
from weft.index.access import Access, Loop, accesses
from weft.index.budget import Budget
from weft.index.expression import Dim, Poly, atom, number
from weft.index.leading import leading
from weft.index.races import pairs, proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, i64, index
from weft.ir.views import For, memory
from weft.passes.relax_atomics import relax_atomics
from weft.passes.same_range_loops import walk_blocks
from weft.schedule.cooperative_loops import find
from weft.values import frozen, mutable


@mutable
class _Plan:
    """What becomes of the accumulations into one gradient."""

    name: str
    form: str  # "plain", "reduce", "gather", "listed", "atomic" or "private"
    note: str
    group: list[Access] = field(default_factory=list)
    found: Found = ()

    @property
    def element(self) -> ScalarType:
        return self._type.element

    @property
    def rank(self) -> int:
        return self._type.rank

    @property
    def _type(self) -> MemRefType:
        return self.group[0].memref.memref


@frozen
class Form:
    """What is chosen by the sizes of a call. ``split``: the gradients, of ``Adjoint.sums``, whose
    sums are computed in chunks. ``wide``: a sum may have a workspace of the size of the whole
    iteration space where it needs what a sequential loop carries; it is accumulated atomically
    otherwise. ``segments``: gradients that would be accumulated atomically, of which each element
    sums the iterations that data picks for its row instead (``Adjoint.sorted``), where these can
    be known. ``sort``: what else would be is listed (``Adjoint.listed``). ``stored``: gradients of
    ``Adjoint.dense`` that are stored. ``private``: gradients of ``Adjoint.private`` that have
    private copies. ``narrow``: gradients are in f16 or bf16 themselves where that is the same.
    ``alike``: those with private copies have one shape and dtype: one loop adds them up.
    ``atomic``: no sums have loops of their own, over the elements of a gradient."""

    split: Collection[str] = ()
    wide: bool = True
    sort: bool = False
    segments: Collection[str] = ()
    stored: Collection[str] = ()
    private: Collection[str] = ()
    narrow: bool = False
    alike: bool = False
    atomic: bool = False


@mutable
class Gathered:
    """The functions to be launched in order, a note on each gradient, the workspaces for what the
    sums need and for their parts. The rest: see ``Adjoint``."""

    steps: list[Function]
    notes: dict[str, str]
    buffers: list[Buffer] = field(default_factory=list)
    sums: dict[str, Terms] = field(default_factory=dict)
    listed: list[Listed] = field(default_factory=list)
    sorted: list[Sorted] = field(default_factory=list)
    defined: set[str] = field(default_factory=set)
    dense: dict[str, tuple[tuple[Poly, Poly], ...]] = field(default_factory=dict)
    private: dict[str, Additions] = field(default_factory=dict)


@frozen
class Prepared:
    """An adjoint that accumulates after its loops, and ``every`` access of it: what all forms have
    in common. ``names``: the arguments that it accumulates into."""

    function: Function
    names: Sequence[str]
    every: Sequence[Access]


def prepared(function: Function, names: Sequence[str]) -> Prepared:
    """``function``, which accumulates into ``names``, for ``gather``."""
    function = clean(accumulate_after_loop(function, names))
    every = accesses(function)
    if _data_last(function, _by_data(every, names)):
        every = accesses(function)
    return Prepared(function, names, every)


def gather(
    given: Prepared, parallel: Op, undone: Sequence[Op], form: Form, whole: Mapping[str, Whole]
) -> Gathered:
    """Takes the accumulations out of the function that is ``given`` where that makes them
    deterministic. ``parallel`` is the primal's loop, ``undone`` those that its sequential loops
    undo. ``whole``: what the primal says of gradients by name."""
    function, names, every = given.function, given.names, given.every
    slicer = Slicer(function, form.wide)
    groups = {name: [a for a in every if a.memref.name == name] for name in names}
    plans = [_plan(name, group, slicer, form) for name, group in groups.items() if group]
    made = Gathered([], {})
    stores: set[Op] = set()
    for plan in plans:
        found = dense(plan.group, function.args) if plan.form == "plain" else None
        if found is None and plan.form == "plain" and plan.name in whole:
            found = whole[plan.name].of(plan.group)
        if found is not None:
            made.dense[plan.name] = found.equal
            stores |= found.first if plan.name in form.stored else set()
    slices = _slices(plans, every)
    made.private = additions(plans, slicer, slices)
    for plan in plans:
        if plan.name in form.private:
            _make_private(plan)
        elif plan.form == "atomic" and slices:
            names = ", ".join(f"`{loop.iv.name}`" for loop in slices)
            plan.note += f"; in order, without atomics, by a CPU of no more threads than {names}"
    made.notes = {plan.name: plan.note for plan in plans}
    gathered = [p for p in plans if p.form == "gather"]
    reduced = {a.op for p in plans if p.form == "reduce" for a in p.group}
    copied = {p.name: f"part.{p.name}.{function.name}" for p in plans if p.form == "private"}
    lists = [_List(a, f"{p.name}.{k}.{function.name}", slicer.undoing(slicer.parents[a.op]) or [])
             for p in plans if p.form == "listed" for k, a in enumerate(p.group)]  # fmt: skip
    made.defined = {*(p.name for p in gathered), *copied, *(made.dense.keys() & form.stored)}
    if not any((gathered, reduced, lists, stores, copied)):
        # Another form finds it as it is.
        made.steps = [_plain(Rewriter().function(function))] if has_effects(function) else []
        return made
    loops: list[Function] = []
    made.sums = {p.name: long for p in gathered if (long := terms(p.found)) is not None}
    for plan in gathered:
        for access in plan.group:
            slicer.spill(access)
    for plan in gathered:
        if plan.name in form.split and plan.name in made.sums:
            workspace = f"part.{plan.name}.{function.name}"
            loops += split_loops(function, plan.name, plan.found, slicer, workspace)
            made.buffers.append(Buffer(workspace, plan.element.name, None, partial=plan.name))
        else:
            loops += element_loops(function, plan.name, plan.found, slicer)
    keys = _keys(made, function, [f for p in gathered for _, f in p.found], slicer, parallel)
    for k, value in enumerate(slicer.spilled):
        element = slicer.element(value)
        time = [Extent(undone[op.attrs["undoes"]]) for op in slicer.loops(value)]
        made.buffers.append(Buffer(slicer.name(k), element.name, parallel, tuple(time)))
        if time:
            for plan in gathered:
                if any(value in slicer.kept_for(a) for a in plan.group):
                    made.notes[plan.name] = "gather (with a workspace of the whole iteration space)"
    for entry in lists:
        extents = tuple(Extent(undone[op.attrs["undoes"]]) for op in entry.loops)
        made.buffers.append(Buffer(entry.places, "i64", parallel, extents))
        made.buffers.append(Buffer(entry.values, entry.element.name, parallel, extents))
    taken = {a.op for p in gathered for a in p.group}
    main = clean(_rest(function, taken, reduced, slicer, lists, stores))
    apart = [p for p in plans if p.name in copied]
    for plan in apart:
        workspace = copied[plan.name]
        made.buffers.append(
            Buffer(workspace, plan.element.name, None, partial=plan.name, private=True)
        )
    for few in [apart] if form.alike and apart else [[plan] for plan in apart]:
        names = [plan.name for plan in few]
        parts = [copied[name] for name in names]
        loops.append(added_up(function, names, few[0].element, few[0].rank, parts))
    main = clean(privatize(relax_atomics(main), copied)) if copied else main
    steps = [main] if has_effects(main) else []
    made.listed = [Listed(x.access.memref.name, x.places, x.values) for x in lists]
    made.steps = [_plain(step) for step in (*keys, *steps, *map(clean, loops))]
    return made


def _keys(
    made: Gathered, function: Function, found: Sequence[object], slicer: Slicer, parallel: Op
) -> list[Function]:
    """The functions that write what is to be sorted, which ``made`` then says."""
    sums = [each for each in found if isinstance(each, Segments)]
    made.buffers += [buffer for each in sums for buffer in each.buffers(parallel)]
    made.sorted = [each.names for each in sums]
    return [clean(keys_of(function, each, slicer)) for each in sums]


def _by_data(every: Sequence[Access], names: Collection[str]) -> set[Op]:
    """Accumulations outside of loops to elements of ``names`` that data picks, where there are
    others before or behind whose elements are known."""
    known = {a.memref for a in every if None not in a.subscripts}
    return {a.op for a in every if a.memref in known and a.memref.name in names
            and a.kind == "rmw" and not a.serial and None in a.subscripts}  # fmt: skip


def _data_last(function: Function, ops: Collection[Op]) -> bool:
    """Puts the accumulations ``ops`` at the end of their blocks: what goes to each element once may
    then be stored before. Says whether there are any. ``function`` is changed in place."""
    for block in walk_blocks(function.body) if ops else ():
        moved = [op for op in block.ops if op in ops]
        others = [op for op in block.ops if op not in ops]
        block.ops[:] = [*others[:-1], *moved, *others[-1:]]
    return bool(ops)


def _slices(plans: Sequence[_Plan], every: Sequence[Access]) -> Sequence[Loop]:
    """The outermost parallel indices that keep apart all that is accumulated atomically."""
    into = {a.memref for plan in plans if plan.form == "atomic" for a in plan.group}
    group = [a for a in every if a.memref in into]
    count = leading(group, into)
    return group[0].loops[:count] if count else ()


def additions(
    plans: Sequence[_Plan], slicer: Slicer, slices: Sequence[Loop]
) -> dict[str, Additions]:
    """The gradients that may have private copies. Those in gather form only if the loop goes where
    they are accumulated for another gradient's sake: then it has their values at hand. ``slices``:
    the indices that keep apart what is accumulated atomically."""
    if slicer.parallel.results or any(p.form == "reduce" for p in plans):
        return {}
    args = slicer.function.args
    visited = {op for p in plans if p.form == "plain" for a in p.group
               for op in slicer.enclosing(a.op)}  # fmt: skip
    found: dict[str, Additions] = {}
    for plan in plans:
        if any(a.kind != "rmw" or not a.parallel for a in plan.group):
            continue
        along = all(slicer.parents[a.op] in visited for a in plan.group)
        if plan.form == "atomic" or (plan.form == "gather" and along):
            counts = [_iterations(a, args) for a in plan.group]
            total = functools.reduce(operator.add, counts)
            rows = plan.form == "gather" and _along_rows(plan.group, slicer)
            atomic = plan.form == "atomic"
            apart = _trips(slices, args) if atomic and slices else None
            found[plan.name] = Additions(total, atomic, rows, apart)
    return found


def _along_rows(group: Sequence[Access], slicer: Slicer) -> bool:
    """Whether each of these accesses is to the element at the index of a loop that threads of a GPU
    share."""
    if any(len(a.serial) != 1 or a.subscripts != (atom(a.serial[0]),) for a in group):
        return False
    team = find(slicer.function, slicer.parallel, 0)
    return (
        team is not None
        and not team.columns
        and ({a.serial[0] for a in group} <= {For(op).index for op in team.loops})
    )


def _iterations(access: Access, known: Collection[Value]) -> Poly:
    """How often ``access`` is carried out, in ``known`` and their extents: loops that these do not
    say the length of count once, conditions count as true."""
    return _trips(access.loops, known)


def _trips(loops: Sequence[Loop], known: Collection[Value]) -> Poly:
    total = number(1)
    for loop in loops:
        if loop.lower is None or loop.upper is None or loop.step != number(1):
            continue
        length = loop.upper - loop.lower
        leaves = (x.memref if isinstance(x, Dim) else x for x in length.leaves())
        if all(leaf in known for leaf in leaves):
            total = total * length
    return total


def _make_private(plan: _Plan) -> None:
    _, _, why = plan.note.partition(" ")
    plan.note = f"private copies, added up in their order {why}".rstrip()
    plan.form = "private"


def _plain(function: Function) -> Function:
    """``function`` without the notes that only this module reads. It is changed in place."""
    for op in walk(function.body):
        op.attrs.pop("undoes", None)
        op.attrs.pop("of", None)
    return function


@frozen
class _List:
    """An accumulation that is carried out later: where and what is listed in two workspaces, with
    an entry for each iteration of the parallel loop and of ``loops``."""

    access: Access
    name: str
    loops: Sequence[Op]

    @property
    def places(self) -> str:
        return f"place.{self.name}"

    @property
    def values(self) -> str:
        return f"value.{self.name}"

    @property
    def element(self) -> ScalarType:
        _, _, (value,) = memory(self.access.op)
        return value.scalar

    def write(self, r: Rewriter, op: Op, slicer: Slicer, places: Value, values: Value) -> None:
        """Lists ``op``, which stands for the accumulation."""
        memref, subscripts, (value,) = memory(op)
        place = r.constant(0, index)
        for axis, subscript in enumerate(subscripts):
            extent = r.op("memref.dim", memref, axis=axis)
            place = r.addi(r.muli(place, extent), subscript)
        at = slicer.indices(r, self.loops, r.lookup)
        r.store(r.op("arith.index_cast", place, type=i64), places, at)
        r.store(value, values, at)


def _plan(name: str, group: list[Access], slicer: Slicer, form: Form) -> _Plan:
    if any(a.kind != "rmw" for a in group):
        return _Plan(name, "atomic", "as the loop writes it")
    budget = Budget()
    alone = all(proven_apart(a, b, budget) for a, b in pairs(group))
    if alone:
        return _Plan(name, "plain", "plain store: no two iterations read one element", group)
    if all(slicer.is_fixed(v) for a in group for v in memory(a.op)[1]) and all(
        not a.serial and not a.guards for a in group
    ):
        return _Plan(name, "reduce", "parallel reduction", group)
    if form.atomic:
        return _Plan(name, "atomic", "atomic", group)
    try:
        every = reroll(slicer.function, group, slicer)
        found = [(piece, fibre(piece)) for a in every for piece in affine_pieces(a)]
        for access, each in found:
            slicer.check(access)
            slicer.check_symbols(each.symbols())
        for access in every:
            slicer.check_symbols(access.symbols() if isinstance(access, Rolled) else set())
    except (NotAffine, Unavailable) as error:
        found = _segmented(name, group, slicer) if name in form.segments else None
        if found is not None:
            return _Plan(name, "gather", f"sorted by rows ({error})", group, found)
        if form.sort and all(slicer.undoing(slicer.parents[a.op]) is not None for a in group):
            return _Plan(name, "listed", f"sorted ({error})", group)
        return _Plan(name, "atomic", f"atomic ({error})", group)
    return _Plan(name, "gather", "gather", group, found)


def _segmented(name: str, group: list[Access], slicer: Slicer) -> Found | None:
    """What is summed for each element, where data picks rows; None where no loop of its own can."""
    found: list[tuple[Access, Any]] = []
    try:
        for k, access in enumerate(group):
            one = segments(access, slicer, f"{name}.{k}.{slicer.function.name}")
            if one is None:
                return None
            found.append((access, one))
    except Unavailable:
        return None
    return found


def _rest(
    function: Function, taken: set[Op], reduced: set[Op], slicer: Slicer, lists: Sequence[_List],
    stores: set[Op],
) -> Function:  # fmt: skip
    """``function`` without the accumulations that were taken, which stores what sums need of it,
    which reduces what goes to one element, and which writes ``lists``; ``stores`` are stores."""
    new = Function(
        function.name,
        [a.type for a in function.args] + [slicer.type(v) for v in slicer.spilled],
        [a.name for a in function.args] + [slicer.name(k) for k in range(len(slicer.spilled))],
        dict(function.attrs),
        function.span,
    )
    listing: dict[Op, tuple[_List, Value, Value]] = {}
    for entry in lists:
        rank = slicer.dims + len(entry.loops)
        places = Value(MemRefType(i64, rank), entry.places, new.body)
        values = Value(MemRefType(entry.element, rank), entry.values, new.body)
        new.body.args += [places, values]
        listing[entry.access.op] = entry, places, values
    order = iter([op for op in walk(function.body) if op.name == "memref.atomic_rmw"])
    finals: list[tuple[Value, Op]] = []  # what is reduced, and the accumulation

    def visit(op: Op, r: Rewriter) -> list[Value] | None:
        if op.name != "memref.atomic_rmw":
            return None
        old = next(order)
        memref, subscripts, (value,) = memory(op)
        if old in reduced:
            finals.append((value, old))
        if old in listing:
            entry, places, values = listing[old]
            entry.write(r, op, slicer, places, values)
            return [value]
        if old in stores:
            r.store(value, memref, subscripts)
            return [value]
        return [value] if old in taken | reduced else None

    def around(op: Op, r: Rewriter) -> list[Value] | None:
        if op.name != "scf.parallel" or r.depth:
            return None
        copy = r.copy(op)
        old, body = op.body, copy.body
        r.region(old, body)
        end = body.ops.pop()
        with r.at(body):
            r.append(end)
        for value, _ in finals:
            type = value.scalar
            copy.operands.append(r.constant(0.0, type))
            copy.results.append(Value(type, "", copy))
            end.operands.append(value)
        copy.attrs["kinds"] = (*copy.attrs["kinds"], *["addf"] * len(finals))
        r.append(copy)
        count = len(op.results)
        for (_, accumulation), total in zip(finals, copy.results[count:], strict=True):
            memref, at, _ = memory(accumulation)
            r.atomic_rmw("addf", total, r.lookup(memref), [r.lookup(v) for v in at])
        return copy.results[:count]

    rewriter = Rewriter(visit, around=around)
    rewriter.into(function, new)
    for value, place in zip(slicer.spilled, new.args[len(function.args) :], strict=False):
        _store_spill(rewriter, new, value, place, slicer)
    return new


def _store_spill(r: Rewriter, new: Function, value: Value, place: Value, slicer: Slicer) -> None:
    """Stores what stands for ``value`` in the workspace ``place``, where it is made."""
    kept = r.lookup(value)
    made = Block()
    with r.at(made):
        at = slicer.indices(r, slicer.loops(value), r.lookup)
        if place.memref.element is i64 and kept.type is not i64:
            kept = r.op("arith.index_cast", kept, type=i64)
        r.store(kept, place, at)
    owner = r.lookup(value).owner
    if isinstance(owner, Block):
        owner.ops[:0] = made.ops
        return
    for block in walk_blocks(new.body):
        if owner in block.ops:
            after = block.ops.index(owner) + 1
            block.ops[after:after] = made.ops
            return

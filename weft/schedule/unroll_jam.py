"""Unroll-and-jam: several iterations of a parallel loop in one, which loads shared elements once.

Iterations of a parallel loop do not depend on each other, so that any order of their operations
will do in which each iteration keeps its own (``jammed_body``). Where some iterations do nothing,
as below the diagonal of a triangle, they take the place of one that does something, and store
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.views import For, If, Parallel
from weft.ir.writes import loaded, written
from weft.schedule.jammed_body import JammedBody
from weft.schedule.variation import Variation

_MASKED = ("memref.load", "memref.store", "scf.for", "scf.if", "scf.yield")
TILE = "tile"  # attribute of a group's number, and of a position in it: the axis


def unroll_jam(
    function: Function, parallel: Op, axis: int, copies: int, stride: int = 1, overlap: int = 0,
    whole: bool = False, *, lanes: bool = False,
) -> tuple[Function, Op]:  # fmt: skip
    """``function``, in which an iteration of ``parallel``, one of its operations, does what
    ``copies`` along ``axis`` did, and the new parallel loop. These are ``stride`` from each other:
    those between them belong to the neighbours of the thread that has them. ``overlap``: so many
    neighbours are a group, and groups are whole: the last one begins earlier, and stores nothing of
    what the one before it does; ``whole``: there is nothing left over. ``lanes``: stores say whose
    they are. The old one has step 1 along the axis, and reduces nothing; memrefs do not overlap if
    one of them is written."""
    new = function.without_body()
    jam = JammedBody(function, new, variation(function, parallel, axis), copies)
    jam.lanes = lanes
    how = axis, copies, stride, overlap
    return new, _Jamming(jam, parallel, how, whole=whole).run(function)


def variation(function: Function, parallel: Op, axis: int) -> Variation:
    """How values vary between iterations of ``parallel``, an operation of ``function``, along an
    axis."""
    return Variation(
        parallel.body, {Parallel(parallel).indices[axis]: 1}, changing=written(function)
    )


def repeatable(parallel: Op) -> bool:
    """Whether an iteration of ``parallel`` may be carried out again where it stores nothing."""
    inside = list(walk(parallel.body))
    return not loaded(inside) & written(inside) and all(
        (OPS[op.name].pure or op.name in _MASKED)
        and not (op.results and any(inner.name == "memref.store" for inner in below(op)))
        for op in inside[:-1]
    )


def _alone(body: Block) -> list[Op]:
    """The operations of an iteration that is alone along other indices, too."""
    found: list[Op] = []
    for op in body.ops[:-1]:
        found += If(op).otherwise.ops[:-1] if op.attrs.get("whole") else [op]
    return found


class _Jamming:
    """The parallel loop: which iterations are together, and what becomes of those left over."""

    def __init__(
        self, jam: JammedBody, parallel: Op, how: tuple[int, int, int, int], *, whole: bool
    ) -> None:
        self.jam, self.parallel, self.whole = jam, parallel, whole
        self.axis, self.copies, self.apart, self.group = how

    def run(self, function: Function) -> Op:
        made = None
        for op in function.body.ops:
            if op is self.parallel:
                self.jam.outside = False
                made = self._parallel(op)
                self.jam.outside = True
            else:
                self.jam.alone(op, self.jam.all)
        assert made is not None
        return made

    # -- the parallel loop

    def _parallel(self, op: Op) -> Op:
        build = self.jam.builder
        lowers, uppers, steps = ([self.jam.get(0, v) for v in vs] for vs in Parallel(op).ranges)
        lower, upper = lowers[self.axis], uppers[self.axis]
        zero, one = build.number(0, lower), build.number(1, lower)
        # Positions along the axis: as many as ``grid.left_over`` says.
        near = max(self.apart, self.group)  # positions that belong together
        count = build.trip_count(lower, upper, build.number(self.copies * near, lower))
        if near > 1:
            count = build.muli(count, build.number(near, lower))
        lowers[self.axis], uppers[self.axis], steps[self.axis] = zero, count, one
        block = Block([a.type for a in op.body.args])
        operands = [*lowers, *uppers, *steps]
        made = build.append(Op(op.name, operands, (), dict(op.attrs), [block], op.span))
        for k, (old, arg) in enumerate(zip(op.body.args, block.args, strict=True)):
            if k != self.axis:
                self.jam.put(self.jam.all, old, arg)
            arg.name = old.name
        with build.at(block):
            self._iterations(op, block.args[self.axis], lower, upper)
            build.append(Op("scf.reduce", []))
        return made

    def _iterations(self, op: Op, place: Value, lower: Value, upper: Value) -> None:
        """Those at ``place``: together if there are so many, else one by one."""
        build, body = self.jam.builder, op.body
        iv = body.args[self.axis]
        begin = None
        if self.group:
            begin, first = self._in_groups(place, lower, upper)
        else:
            if self.apart > 1:
                warp = build.op("arith.floordivsi", place, build.number(self.apart, place))
                far = build.number(self.apart * (self.copies - 1), place)
                first = build.addi(place, build.muli(warp, far))
            else:
                first = build.muli(place, build.number(self.copies, place))
            first = build.addi(lower, first)
        more = range(self.apart, self.copies * self.apart, self.apart)
        indices = [first, *(build.addi(first, build.number(n, first)) for n in more)]
        for k, index in enumerate(indices):
            self.jam.put([k], iv, index)
        masks: list[Value] = []
        if begin is not None and not self.whole:
            masks = [build.op("arith.cmpi", index, begin, predicate="sge") for index in indices]
        early, taken = self._early(body)
        self.jam.ops(early, self.jam.all)
        asked = [If(branch).condition for branch in taken]
        conditions = [self.jam.get(k, v) for v in asked for k in self._deciding(v)]
        if begin is None:
            inside = build.op("arith.cmpi", indices[-1], upper, predicate="slt")
            conditions = [inside, *conditions]
        if not conditions:
            self._all_together(body, early, taken, masks)
            return
        whole, *others = dict.fromkeys(conditions)
        for condition in others:
            whole = build.op("arith.andi", whole, condition)

        def left() -> None:
            if begin is None and (found := self._maskable(body)) is not None:
                self._masked(*found, early, indices, upper)
            else:
                self._one_by_one(body, indices, upper, None if self.whole else begin)

        together = partial(self._all_together, body, early, taken, masks)
        build.either(whole, together, left, whole=True)

    def _deciding(self, condition: Value) -> Sequence[int]:
        """The iterations in which ``condition`` has to hold so that it does in all of them."""
        ends = self.jam.along.ends(condition)
        return self.jam.all if ends is None else sorted({self.jam.all[k] for k in ends or (0,)})

    def _in_groups(self, place: Value, lower: Value, upper: Value) -> tuple[Value, Value]:
        """The first iteration that the group at ``place`` stores, and the first that is carried
        out there."""
        build = self.jam.builder
        many, none = build.number(self.group, place), build.number(0, place)
        group = build.op("arith.floordivsi", place, many)
        thread = build.subi(place, build.muli(group, many))
        for value in (group, thread):
            assert value.op is not None
            value.op.attrs[TILE] = self.axis
        size = build.number(self.group * self.copies, place)
        begin = build.addi(lower, build.muli(group, size))
        if self.apart == 1:
            thread = build.muli(thread, build.number(self.copies, place))
        if self.whole:
            return begin, build.addi(begin, thread)
        far = build.op("arith.maxsi", build.subi(build.addi(begin, size), upper), none)
        return begin, build.addi(build.subi(begin, far), thread)

    def _all_together(
        self, body: Block, early: Sequence[Op], taken: Sequence[Op], masks: Sequence[Value]
    ) -> None:
        """All iterations, which take the first one of each of the branches ``taken``."""
        self.jam.masks = masks
        for op in body.ops[:-1]:
            if op in taken:
                then = If(op).then
                self.jam.ops(then.ops[:-1], self.jam.all)
                ends = then.terminator.operands
                for old, new in zip(op.results, ends, strict=True):
                    for k in self.jam.all:
                        self.jam.values[k][old] = self.jam.get(k, new)
            elif op not in early:
                self.jam.ops([op], self.jam.all)
        self.jam.masks = ()

    def _one_by_one(
        self, body: Block, indices: Sequence[Value], upper: Value, begin: Value | None
    ) -> None:
        """The iterations that are there, each by itself; of a group those from ``begin`` on."""
        build, first = self.jam.builder, indices[0]
        if begin is None and self.copies == 1:
            self.jam.single = True
            with build.when(build.op("arith.cmpi", first, upper, predicate="slt")):
                self.jam.ops(_alone(body), [0])
            self.jam.single = False
            return
        end = build.addi(indices[-1], build.number(1, first))
        last, step = self.jam.least([end, upper]), build.number(self.apart, first)
        inner = build.for_(first, last, step, unroll=1, rare=True).body
        self.jam.single = True

        def carried_out() -> None:
            self.jam.put([0], body.args[self.axis], inner.args[0])
            self.jam.ops(_alone(body), [0])

        def own(begin: Value) -> None:
            with build.when(build.op("arith.cmpi", inner.args[0], begin, predicate="sge")):
                carried_out()

        build.fill(inner, carried_out if begin is None else partial(own, begin))
        self.jam.single = False

    def _maskable(self, body: Block) -> tuple[list[Op], Op] | None:
        """What is computed before the branch that all of ``body`` is, and that branch, if it does
        nothing but store, and its loops have the same bounds for all iterations."""
        ops = _alone(body)
        if not ops or ops[-1].name != "scf.if" or ops[-1].results or not all(
            OPS[op.name].pure and not op.regions for op in ops[:-1]
        ):  # fmt: skip
            return None
        *before, branch = ops
        inside = [*walk(If(branch).then)]
        loops = [op for op in inside if op.name == "scf.for"]
        plain = all(
            not op.attrs.get("rare") and (op.name in _MASKED or OPS[op.name].pure)
            and not (op.name == "scf.if" and op.results) for op in inside
        )  # fmt: skip
        same = loops and all(self.jam.same(bound) for op in loops for bound in For(op).bounds)
        return (before, branch) if plain and same and len(If(branch).otherwise.ops) == 1 else None

    def _masked(
        self, before: Sequence[Op], branch: Op, early: Sequence[Op], indices: Sequence[Value],
        upper: Value,
    ) -> None:  # fmt: skip
        """All iterations together: those that are beyond the last one, or do not take the branch,
        do what one does that takes it, but for its stores."""
        build, iv = self.jam.builder, self.parallel.body.args[self.axis]
        self.jam.ops([op for op in before if op not in early], self.jam.all)
        masks: list[Value] = []
        for k, index in enumerate(indices):
            there = build.op("arith.cmpi", index, upper, predicate="slt")
            masks.append(build.op("arith.andi", there, self.jam.get(k, If(branch).condition)))
        some, chosen = masks[-1], indices[-1]
        for mask, index in zip(masks[-2::-1], indices[-2::-1], strict=True):
            some = build.op("arith.ori", some, mask)
            chosen = build.op("arith.select", mask, index, chosen, type=index.type)
        with build.when(some):
            for k, (mask, index) in enumerate(zip(masks, indices, strict=True)):
                own = build.op("arith.select", mask, index, chosen, type=index.type)
                self.jam.put([k], iv, own)
            self.jam.ops(before, self.jam.all)
            self.jam.masks, self.jam.few, self.jam.places = masks, True, (iv, indices)
            self.jam.ops(If(branch).then.ops[:-1], self.jam.all)
            self.jam.masks, self.jam.few, self.jam.places = (), False, None

    def _early(self, body: Block) -> tuple[list[Op], list[Op]]:
        """What may be computed before it is known that there are so many iterations, and those of
        the branches on it, around loops, that iterations need not agree on: if all take the first
        one, and there are so many, that is the only thing to ask."""
        early: list[Op] = []
        taken: list[Op] = []
        late = {v for op in body.ops for v in op.results}
        for op in body.ops[:-1]:
            ready = not any(v in late for v in op.operands)
            if ready and OPS[op.name].pure:
                early.append(op)
                late.difference_update(op.results)
            elif ready and op.attrs.get("whole"):
                taken.append(op)
            elif ready and op.name == "scf.if" and not self.jam.same(If(op).condition):
                taken += [op] * any(inner.name == "scf.for" for inner in walk(If(op).then))
        return early, taken

"""Unroll-and-jam: several iterations of a parallel loop in one, which loads shared elements once.

Iterations of a parallel loop do not depend on each other, so that any order of their operations
will do in which each iteration keeps its own. Serial loops of the iterations become one loop. Where
their bounds differ, each iteration first catches up with the last to begin, then all go on
together, and at the end each does what is left of its own: the order within an iteration is what it
was, and so is every bit of the result. Where some iterations do nothing, as below the diagonal of a
triangle, they take the place of one that does something, and store nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.types import Type
from weft.ir.views import For, If, Parallel, is_constant
from weft.ir.writes import loaded, written
from weft.schedule.variation import Variation

_RARE = {"unroll": 1, "rare": True}  # loops that are not worth their code
_MASKED = ("memref.load", "memref.store", "scf.for", "scf.if", "scf.yield")
TILE = "tile"  # attribute of a group's number, and of a position in it: the axis
STAGED = "staged"  # attribute of a loop: rows of so many turns are in shared memory


def unroll_jam(
    function: Function, parallel: Op, axis: int, copies: int, stride: int = 1, overlap: int = 0,
    whole: bool = False,
) -> tuple[Function, Op]:  # fmt: skip
    """``function``, in which an iteration of ``parallel``, one of its operations, does what
    ``copies`` along ``axis`` did, and the new parallel loop. These are ``stride`` from each other:
    those between them belong to the neighbours of the thread that has them. ``overlap``: so many
    neighbours are a group, and groups are whole: the last one begins earlier, and stores nothing of
    what the one before it does; ``whole``: there is nothing left over. The old one has step 1
    along the axis, and reduces nothing; memrefs do not overlap if one of them is written."""
    new = Function(
        function.name, [a.type for a in function.args], [a.name for a in function.args],
        dict(function.attrs), function.span,
    )  # fmt: skip
    work = _Jamming(function, parallel, (axis, copies, stride, overlap), new, whole=whole)
    return new, work.run(function, new)


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


class _Jamming:
    """One function while it is rebuilt. ``values[k]`` has, for the k-th iteration, the new value
    of each old one; what all have in common is the same object in each."""

    def __init__(
        self, function: Function, parallel: Op, how: tuple[int, int, int, int], new: Function, *,
        whole: bool,
    ) -> None:  # fmt: skip
        self.axis, self.copies, self.apart, self.group = how
        self.whole = whole
        self.parallel = parallel
        self.along = variation(function, parallel, self.axis)
        self.same = self.along.uniform
        self.builder = Builder(new.body)
        start = dict(zip(function.args, new.args, strict=True))
        self.values = [dict(start) for _ in range(self.copies)]
        self.all = range(self.copies)
        self.outside = True  # of the parallel loop
        self.masks: Sequence[Value] = ()  # of each iteration, whether it may store
        self.few = False  # such iterations are rare
        self.single = False  # one iteration is carried out by itself

    def run(self, function: Function, new: Function) -> Op:
        made = None
        for op in function.body.ops:
            if op is self.parallel:
                self.outside = False
                made = self._parallel(op)
                self.outside = True
            else:
                self._alone(op, self.all)
        assert made is not None
        return made

    # -- values

    def get(self, k: int, value: Value) -> Value:
        return self.values[k][value]

    def put(self, lanes: Sequence[int], old: Value, new: Value) -> None:
        if not new.name:
            new.name = old.name
        for k in lanes:
            self.values[k][old] = new

    def least(self, values: Sequence[Value], name: str = "arith.minsi") -> Value:
        found = values[0]
        for value in values[1:]:
            if value is not found:
                found = self.builder.op(name, found, value)
        return found

    # -- the parallel loop

    def _parallel(self, op: Op) -> Op:
        build = self.builder
        lowers, uppers, steps = ([self.get(0, v) for v in vs] for vs in Parallel(op).ranges)
        lower, upper = lowers[self.axis], uppers[self.axis]
        zero, one = self.builder.number(0, lower), self.builder.number(1, lower)
        # Positions along the axis: as many as ``grid.left_over`` says.
        near = max(self.apart, self.group)  # positions that belong together
        count = build.trip_count(lower, upper, self.builder.number(self.copies * near, lower))
        if near > 1:
            count = build.op("arith.muli", count, self.builder.number(near, lower))
        lowers[self.axis], uppers[self.axis], steps[self.axis] = zero, count, one
        block = Block([a.type for a in op.body.args])
        operands = [*lowers, *uppers, *steps]
        made = build.append(Op(op.name, operands, (), dict(op.attrs), [block], op.span))
        for k, (old, arg) in enumerate(zip(op.body.args, block.args, strict=True)):
            if k != self.axis:
                self.put(self.all, old, arg)
            arg.name = old.name
        with build.at(block):
            self._iterations(op, block.args[self.axis], lower, upper)
            build.append(Op("scf.reduce", []))
        return made

    def _iterations(self, op: Op, place: Value, lower: Value, upper: Value) -> None:
        """Those at ``place``: together if there are so many, else one by one."""
        build, body = self.builder, op.body
        iv = body.args[self.axis]
        begin = None
        if self.group:
            begin, first = self._in_groups(place, lower, upper)
        else:
            if self.apart > 1:
                warp = build.op("arith.floordivsi", place, self.builder.number(self.apart, place))
                skipped = build.op(
                    "arith.muli", warp, self.builder.number(self.apart * (self.copies - 1), place)
                )
                first = self.builder.addi(place, skipped)
            else:
                first = build.op("arith.muli", place, self.builder.number(self.copies, place))
            first = self.builder.addi(lower, first)
        indices = [first]
        for k in range(1, self.copies):
            indices.append(build.addi(first, build.number(k * self.apart, first)))
        for k, index in enumerate(indices):
            self.put([k], iv, index)
        masks: list[Value] = []
        if begin is not None and not self.whole:
            masks = [build.op("arith.cmpi", index, begin, predicate="sge") for index in indices]
        early, taken = self._early(body)
        self._body(early, self.all)
        conditions = [self.get(k, If(branch).condition) for branch in taken for k in self.all]
        if begin is None:
            inside = build.op("arith.cmpi", indices[-1], upper, predicate="slt")
            conditions = [inside, *conditions]
        if not conditions:
            self._all_together(body, early, taken, masks)
            return
        whole, *others = dict.fromkeys(conditions)
        for condition in others:
            whole = build.op("arith.andi", whole, condition)
        branch = build.if_(whole)
        branch.attrs["whole"] = True
        with build.at(If(branch).then):
            self._all_together(body, early, taken, masks)
            build.append(Op("scf.yield", []))
        with build.at(If(branch).otherwise):
            if begin is None and (found := self._maskable(body)) is not None:
                self._masked(*found, early, indices, upper)
            else:
                self._one_by_one(body, indices, upper, begin)
            build.append(Op("scf.yield", []))

    def _in_groups(self, place: Value, lower: Value, upper: Value) -> tuple[Value, Value]:
        """The first iteration that the group at ``place`` stores, and the first that is carried
        out there."""
        build = self.builder
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
        self.masks = masks
        for op in body.ops[:-1]:
            if op in taken:
                then = If(op).then
                self._body(then.ops[:-1], self.all)
                ends = then.terminator.operands
                for old, new in zip(op.results, ends, strict=True):
                    for k in self.all:
                        self.values[k][old] = self.get(k, new)
            elif op not in early:
                self._body([op], self.all)
        self.masks = ()

    def _one_by_one(
        self, body: Block, indices: Sequence[Value], upper: Value, begin: Value | None
    ) -> None:
        """The iterations that are there, each by itself; of a group those from ``begin`` on."""
        build, first = self.builder, indices[0]
        end = build.addi(indices[-1], build.number(1, first))
        rest = build.for_(first, self.least([end, upper]), build.number(self.apart, first))
        rest.attrs |= _RARE
        rest.regions = [inner := Block([first.type])]
        self.single = True

        def carried_out() -> None:
            self.put([0], body.args[self.axis], inner.args[0])
            for op in body.ops[:-1]:  # one by one along other indices, too
                self._body(If(op).otherwise.ops[:-1] if op.attrs.get("whole") else [op], [0])
            build.append(Op("scf.yield", []))

        with build.at(inner):
            if begin is None:
                carried_out()
            else:
                own = build.if_(build.op("arith.cmpi", inner.args[0], begin, predicate="sge"))
                with build.at(If(own).then):
                    carried_out()
                with build.at(If(own).otherwise):
                    build.append(Op("scf.yield", []))
                build.append(Op("scf.yield", []))
        self.single = False

    def _maskable(self, body: Block) -> tuple[list[Op], Op] | None:
        """What is computed before the branch that all of ``body`` is, and that branch, if it does
        nothing but store, and its loops have the same bounds for all iterations."""
        ops: list[Op] = []
        for op in body.ops[:-1]:
            ops += If(op).otherwise.ops[:-1] if op.attrs.get("whole") else [op]
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
        same = loops and all(self.same(bound) for op in loops for bound in For(op).bounds)
        return (before, branch) if plain and same and len(If(branch).otherwise.ops) == 1 else None

    def _masked(
        self, before: Sequence[Op], branch: Op, early: Sequence[Op], indices: Sequence[Value],
        upper: Value,
    ) -> None:  # fmt: skip
        """All iterations together: those that are beyond the last one, or do not take the branch,
        do what one does that takes it, but for its stores."""
        build, iv = self.builder, self.parallel.body.args[self.axis]
        self._body([op for op in before if op not in early], self.all)
        masks: list[Value] = []
        for k, index in enumerate(indices):
            there = build.op("arith.cmpi", index, upper, predicate="slt")
            masks.append(build.op("arith.andi", there, self.get(k, If(branch).condition)))
        some, chosen = masks[-1], indices[-1]
        for mask, index in zip(masks[-2::-1], indices[-2::-1], strict=True):
            some = build.op("arith.ori", some, mask)
            chosen = build.op("arith.select", mask, index, chosen, type=index.type)
        made = build.if_(some)
        with build.at(If(made).then):
            for k, (mask, index) in enumerate(zip(masks, indices, strict=True)):
                own = build.op("arith.select", mask, index, chosen, type=index.type)
                self.put([k], iv, own)
            self._body(before, self.all)
            self.masks, self.few = masks, True
            self._body(If(branch).then.ops[:-1], self.all)
            self.masks, self.few = (), False
            build.append(Op("scf.yield", []))
        with build.at(If(made).otherwise):
            build.append(Op("scf.yield", []))

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
            elif ready and op.name == "scf.if" and not self.same(If(op).condition):
                taken += [op] * any(inner.name == "scf.for" for inner in walk(If(op).then))
        return early, taken

    # -- operations

    def _body(self, ops: Sequence[Op], lanes: Sequence[int]) -> None:
        for op in ops:
            with self.builder.about(op.span):
                self._op(op, lanes)

    def _op(self, op: Op, lanes: Sequence[int]) -> None:
        if self.single or len(lanes) == 1 < self.copies:
            self._alone(op, lanes)
        elif op.attrs.get("rare"):
            for k in lanes:
                self._alone(op, [k])
        elif op.name == "scf.for":
            self._for(op, lanes)
        elif op.name == "scf.if":
            self._if(op, lanes)
        elif not self.along.common(op):
            for k in lanes:
                self._alone(op, [k])
        else:
            self._alone(op, lanes)

    def _alone(self, op: Op, lanes: Sequence[int]) -> None:
        """One copy of ``op``, for all of ``lanes``, as the first of them has its operands."""
        k = lanes[0]
        if self.masks and any(inner.name == "memref.store" for inner in below(op)):
            masks, self.masks = self.masks, ()
            branch = self.builder.if_(masks[k])
            for region, ops in zip(branch.regions, ([op], []), strict=True):
                with self.builder.at(region):
                    for inner in ops:
                        self._alone(inner, lanes)
                    self.builder.append(Op("scf.yield", []))
            self.masks = masks
            return
        operands = [self.get(k, v) for v in op.operands]
        types = [v.type for v in op.results]
        made = Op(op.name, operands, types, dict(op.attrs), [], op.span)
        if op.name == "scf.for" and not self.outside:
            made.attrs |= _RARE
            made.attrs.pop(STAGED, None)  # threads do not come there together
        for region in op.regions:
            made.regions.append(self._region(region, lanes))
        self.builder.append(made)
        for old, new in zip(op.results, made.results, strict=True):
            self.put(lanes, old, new)

    def _region(self, old: Block, lanes: Sequence[int]) -> Block:
        new = Block([a.type for a in old.args])
        for before, after in zip(old.args, new.args, strict=True):
            self.put(lanes, before, after)
        with self.builder.at(new):
            for op in old.ops:
                self._alone(op, lanes)
        return new

    # -- loops

    def _for(self, op: Op, lanes: Sequence[int]) -> None:
        *bounds, step = For(op).bounds
        lows, highs = ([self.get(k, bound) for k in lanes] for bound in bounds)
        carried = [[self.get(k, v) for v in For(op).inits] for k in lanes]
        uneven = [not self.same(bound) for bound in bounds]
        if not self.same(step) or (any(uneven) and not is_constant(step, 1)):
            for k in lanes:
                self._alone(op, [k])
            return
        ranks = [self.along.direction(bound) for bound in bounds]
        if uneven[0] != uneven[1] and ranks[uneven[1]]:
            carried = self._ladder(op, lanes, lows, highs, carried, ranks[uneven[1]] > 0)
        else:
            carried = self._stairs(op, lanes, lows, highs, carried, uneven)
        for place, k in enumerate(lanes):
            for old, new in zip(op.results, carried[place], strict=True):
                self.put([k], old, new)

    def _ladder(
        self, op: Op, lanes: Sequence[int], lows: list[Value], highs: list[Value],
        carried: list[list[Value]], rising: bool,
    ) -> list[list[Value]]:  # fmt: skip
        """Iterations that begin or end one after the other: those that are there go on together,
        as far as no other begins or ends. ``rising``: later iterations begin, or end, later."""
        places = list(range(len(lanes)))
        order = places if rising else places[::-1]  # by which bound comes first
        ends = not self.same(For(op).upper)
        # Where a rung begins or ends, and who is on it.
        if ends:
            rungs = [(order[s:], highs[order[s]]) for s in places]
            low = lows[0]
        else:
            rungs = [(order[: s + 1], lows[order[s + 1]]) for s in places[:-1]]
            rungs.append((order, highs[0]))
            low = lows[order[0]]
        for number, (there, high) in enumerate(rungs):
            there = sorted(there)
            if ends:
                high = self.least([low, high], "arith.maxsi")
            elif number:
                low = lows[order[number]]
            if not ends:
                high = self.least([high, highs[0]])
            times = {} if len(there) == len(lanes) else {"unroll": 1}
            rows = self._together(
                op, [lanes[p] for p in there], low, high, [carried[p] for p in there], times
            )
            for p, row in zip(there, rows, strict=True):
                carried[p] = row
            low = high
        return carried

    def _stairs(
        self, op: Op, lanes: Sequence[int], lows: list[Value], highs: list[Value],
        carried: list[list[Value]], uneven: list[bool],
    ) -> list[list[Value]]:  # fmt: skip
        """All together where all are there; before and after that, each by itself."""
        low, high = lows[0], highs[0]
        if uneven[0]:
            low = self.least(lows, "arith.maxsi")
            for place, k in enumerate(lanes):
                end = self.least([low, highs[place]])
                carried[place] = self._own(op, k, lows[place], end, carried[place])
        if uneven[1]:
            high = self.least([low, self.least(highs)], "arith.maxsi")
        carried = self._together(op, lanes, low, high, carried, {})
        if uneven[1]:
            for place, k in enumerate(lanes):
                carried[place] = self._own(op, k, high, highs[place], carried[place])
        return carried

    def _own(self, op: Op, k: int, low: Value, high: Value, carried: list[Value]) -> list[Value]:
        """The iterations of a serial loop from ``low`` to ``high`` of the ``k``-th iteration."""
        return self._together(op, [k], low, high, [carried], {"unroll": 1})[0]

    def _together(
        self, op: Op, lanes: Sequence[int], low: Value, high: Value, carried: list[list[Value]],
        attrs: dict[str, int],
    ) -> list[list[Value]]:  # fmt: skip
        """One loop from ``low`` to ``high`` for the iterations ``lanes``, what each of them carries
        then, and further attributes of it."""
        body = op.body
        own = [not self.same(arg) for arg in body.args[1:]]
        # What is carried, once for each iteration or once for all: (position, place of a lane).
        columns = [
            (j, place) for j, several in enumerate(own)
            for place in (range(len(lanes)) if several else (0,))
        ]  # fmt: skip
        inits = [carried[place][j] for j, place in columns]
        types: list[Type] = [v.type for v in inits]
        block = Block([body.args[0].type, *types])
        step = self.get(lanes[0], For(op).step)
        operands = [low, high, step, *inits]
        few = {"unroll": 1} if self.few else {}
        made = Op("scf.for", operands, types, {**op.attrs, **attrs, **few}, [block], op.span)
        self.put(lanes, body.args[0], block.args[0])
        for (j, place), arg in zip(columns, block.args[1:], strict=True):
            self.put([lanes[place]] if own[j] else lanes, For(op).carried[j], arg)
        with self.builder.at(block):
            self._body(body.ops[:-1], lanes)
            ends = [self.get(lanes[place], For(op).yielded[j]) for j, place in columns]
            self.builder.append(Op("scf.yield", ends))
        self.builder.append(made)
        results = [list(row) for row in carried]
        for (j, place), value in zip(columns, made.results, strict=True):
            for row in [place] if own[j] else range(len(lanes)):
                results[row][j] = value
        return results

    # -- branches

    def _if(self, op: Op, lanes: Sequence[int]) -> None:
        """Together where all take the same branch. Where they need not: if all take the first one
        and that has loops, together; else one by one."""
        condition = If(op).condition
        if self.same(condition):
            self._branch(op, lanes, self.get(lanes[0], condition), apart=False)
        elif any(inner.name == "scf.for" for inner in walk(If(op).then)):
            conditions = [self.get(k, condition) for k in lanes]
            self._branch(op, lanes, self.least(conditions, "arith.andi"), apart=True)
        else:
            for k in lanes:
                self._alone(op, [k])

    def _branch(self, op: Op, lanes: Sequence[int], condition: Value, *, apart: bool) -> None:
        own = [not self.same(v) for v in op.results]
        columns = [
            (j, k) for j, several in enumerate(own) for k in (lanes if several else lanes[:1])
        ]
        types = [op.results[j].type for j, _ in columns]
        made = Op("scf.if", [condition], types, dict(op.attrs), [Block(), Block()], op.span)
        kept = [dict(values) for values in self.values]
        for number, region in enumerate(op.regions):
            with self.builder.at(made.regions[number]):
                if number == 1 and apart:
                    for k in lanes:
                        self._alone(op, [k])
                    ends = [self.get(k, op.results[j]) for j, k in columns]
                else:
                    self._body(region.ops[:-1], lanes)
                    ends = [self.get(k, region.terminator.operands[j]) for j, k in columns]
                self.builder.append(Op("scf.yield", ends))
            self.values = [dict(values) for values in kept]
        self.builder.append(made)
        for (j, k), value in zip(columns, made.results, strict=True):
            self.put([k] if own[j] else lanes, op.results[j], value)

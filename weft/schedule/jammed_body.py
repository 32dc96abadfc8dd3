"""The body of iterations that became one: an operation for each of them, or one for all.

Serial loops of the iterations become one loop. Where their bounds differ, each iteration first
catches up with the last to begin, then all go on together, and at the end each does what is left of
its own: the order within an iteration is what it was, and so is every bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.types import Type
from weft.ir.views import For, If, is_constant, memory
from weft.schedule.spmd import WORKGROUP
from weft.schedule.variation import Variation

RARE = {"unroll": 1, "rare": True}  # loops that are not worth their code
LANE = "lane"  # attribute of a store: the iteration, of those that became one, whose it is
ASKING = "asking"  # attribute of a loop: in its turns, each iteration asks whether it is there
STAGED = "staged"  # attribute of a loop: rows of so many turns are in shared memory


def loads_of(loop: Op) -> list[Op]:
    """What a loop loads in every turn, and where iterations ask whether they are there."""
    ops = walk(loop.body) if ASKING in loop.attrs else loop.body.ops
    return [op for op in ops if op.name == "memref.load"]


class JammedBody:
    """``values[k]`` has, for the k-th of ``copies`` iterations, the new value of each old one; what
    all have in common is the same object in each. ``along``: how values vary between these."""

    def __init__(self, function: Function, new: Function, along: Variation, copies: int) -> None:
        self.along, self.same = along, along.uniform
        self.builder = Builder(new.body)
        start = dict(zip(function.args, new.args, strict=True))
        self.values = [dict(start) for _ in range(copies)]
        self.all = range(copies)
        self.outside = True  # of the parallel loop
        self.masks: Sequence[Value] = ()  # of each iteration, whether it may store
        # The old index, and that of each iteration, where some do what another one does.
        self.places: tuple[Value, Sequence[Value]] | None = None
        self.few = False  # such iterations are rare
        self.lanes = False  # stores say whose they are
        self.single = False  # one iteration is carried out by itself
        # Drivers compile shaders when they are first called, and loops cost them most.
        self.brief = WORKGROUP in function.attrs

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

    # -- operations

    def ops(self, ops: Sequence[Op], lanes: Sequence[int]) -> None:
        for op in ops:
            with self.builder.about(op.span):
                self._op(op, lanes)

    def _op(self, op: Op, lanes: Sequence[int]) -> None:
        if self.single or len(lanes) == 1 < len(self.values):
            self.alone(op, lanes)
        elif op.attrs.get("rare"):
            self._each(op, lanes)
        elif op.name == "scf.for":
            self._for(op, lanes)
        elif op.name == "scf.if":
            self._if(op, lanes)
        elif self.along.common(op):
            self.alone(op, lanes)
        else:
            self._each(op, lanes)

    def _each(self, op: Op, lanes: Sequence[int]) -> None:
        for k in lanes:
            self.alone(op, [k])

    def alone(self, op: Op, lanes: Sequence[int]) -> None:
        """One copy of ``op``, for all of ``lanes``, as the first of them has its operands."""
        k = lanes[0]
        if self.masks and any(inner.name == "memref.store" for inner in below(op)):
            masks, self.masks = self.masks, ()
            with self.builder.when(masks[k]):
                self.alone(op, lanes)
            self.masks = masks
            return
        operands = [self.get(k, v) for v in op.operands]
        if self.places is not None and op.name in ("memref.load", "memref.store"):
            index, places = self.places
            _own_place(self, op, index, places[k], operands)
        types = [v.type for v in op.results]
        made = Op(op.name, operands, types, dict(op.attrs), [], op.span)
        if op.name == "memref.store" and self.lanes and not self.outside:
            made.attrs[LANE] = k
        if op.name == "scf.for" and not self.outside:
            made.attrs |= RARE
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
                self.alone(op, lanes)
        return new

    # -- loops

    def _for(self, op: Op, lanes: Sequence[int]) -> None:
        *bounds, step = For(op).bounds
        lows, highs = ([self.get(k, bound) for k in lanes] for bound in bounds)
        carried = [[self.get(k, v) for v in For(op).inits] for k in lanes]
        uneven = [not self.same(bound) for bound in bounds]
        if not self.same(step) or (any(uneven) and not is_constant(step, 1)):
            self._each(op, lanes)
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
        # Who is on a rung, and where it ends, as far as all of these are there.
        if ends := not self.same(For(op).upper):
            low, rungs = lows[0], [(order[s:], highs[p]) for s, p in enumerate(order)]
        else:
            stops = [*(lows[p] for p in order[1:]), highs[0]]
            low, rungs = lows[order[0]], [(order[: s + 1], v) for s, v in enumerate(stops)]
        if self.brief and len(rungs) > 2 and _plain(self, op):
            return _one_by_one(self, op, lanes, rungs, carried, low, highs, ends=ends)
        for on, stop in rungs:
            there = sorted(on)
            high = self.least([low, stop], "arith.maxsi") if ends else self.least([stop, highs[0]])
            times = {} if len(there) == len(lanes) else {"unroll": 1}
            rows = self.together(
                op, [lanes[p] for p in there], low, high, [carried[p] for p in there], times
            )
            for p, row in zip(there, rows, strict=True):
                carried[p] = row
            low = high if ends else stop
        return carried

    def _stairs(
        self, op: Op, lanes: Sequence[int], lows: list[Value], highs: list[Value],
        carried: list[list[Value]], uneven: list[bool],
    ) -> list[list[Value]]:  # fmt: skip
        """All together where all are there; before and after that, each by itself."""
        low, high = lows[0], highs[0]

        def own(begins: Iterable[Value], ends: Iterable[Value]) -> list[list[Value]]:
            return [
                self.together(op, [k], begin, end, [row], {"unroll": 1})[0]
                for k, begin, end, row in zip(lanes, begins, ends, carried, strict=True)
            ]

        if uneven[0]:
            low = self.least(lows, "arith.maxsi")
            carried = own(lows, (self.least([low, end]) for end in highs))
        if uneven[1]:
            high = self.least([low, self.least(highs)], "arith.maxsi")
        carried = self.together(op, lanes, low, high, carried, {})
        return own([high] * len(lanes), highs) if uneven[1] else carried

    def together(
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
            self.ops(body.ops[:-1], lanes)
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
            self._each(op, lanes)

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
                    self._each(op, lanes)
                    ends = [self.get(k, op.results[j]) for j, k in columns]
                else:
                    self.ops(region.ops[:-1], lanes)
                    ends = [self.get(k, region.terminator.operands[j]) for j, k in columns]
                self.builder.append(Op("scf.yield", ends))
            self.values = [dict(values) for values in kept]
        self.builder.append(made)
        for (j, k), value in zip(columns, made.results, strict=True):
            self.put([k] if own[j] else lanes, op.results[j], value)


def _own_place(body: JammedBody, op: Op, index: Value, place: Value, operands: list[Value]) -> None:
    """Takes the iteration's own index, ``place``, for that of the one whose work it does: in a
    store, which it carries out itself, and where the element that it loads is there because others
    along the other axes are. What depends on one index stays so, and is loaded once."""
    memref, subscripts, _ = memory(op)
    load, build = op.name == "memref.load", body.builder
    others = [v for v in subscripts if v is not index]
    if load and (memref.op is not None or len(others) != len(subscripts) - 1
                 or not body.same(*others)):  # fmt: skip
        return
    for axis, subscript in enumerate(subscripts):
        if subscript is not index:
            continue
        if load:
            extent = build.op("memref.dim", operands[0], type=place.scalar, axis=axis)
            last = build.subi(extent, build.number(1, extent))
            place = build.op("arith.minsi", place, last)
            place = build.op("arith.maxsi", place, build.number(0, place))
        operands[axis - len(subscripts)] = place


def _plain(jam: JammedBody, op: Op) -> bool:
    """Whether turns of the loop ``op`` do nothing but load and compute, each for itself."""
    return not any(map(jam.same, op.body.args[1:])) and all(
        inner.name == "memref.load" or (OPS[inner.name].pure and not inner.regions)
        for inner in op.body.ops[:-1]
    )


def _one_by_one(
    jam: JammedBody, op: Op, lanes: Sequence[int], rungs: Sequence[tuple[list[int], Value]],
    carried: list[list[Value]], low: Value, highs: list[Value], *, ends: bool,
) -> list[list[Value]]:  # fmt: skip
    """A ladder of two loops: that of all iterations, and behind or in front of it one for those
    that are there, each of which asks in every turn whether it is. ``ends``: behind."""
    every, before = range(len(lanes)), carried
    if ends:
        first, last = jam.least([low, rungs[0][1]], "arith.maxsi"), rungs[-1][1]
        before = jam.together(op, lanes, low, first, carried, {})
        some, begin, stop = rungs[1][0], first, last
        limits = [highs[p] for p in every]
    else:
        some, begin, stop = rungs[-2][0], low, jam.least([rungs[-2][1], highs[0]])
        limits = [*map(jam.get, lanes, [For(op).lower] * len(lanes))]
    found = _asking(jam, op, [(p, lanes[p], limits[p]) for p in sorted(some)], begin, stop,
                    before, "slt" if ends else "sge")  # fmt: skip
    return found if ends else jam.together(op, lanes, rungs[-2][1], highs[0], found, {})


def _asking(
    jam: JammedBody, op: Op, some: Sequence[tuple[int, int, Value]], low: Value, high: Value,
    carried: list[list[Value]], predicate: str,
) -> list[list[Value]]:  # fmt: skip
    """One loop for ``some`` iterations, each with its place, its lane, and the turn to compare
    with. One of them is there in every turn."""
    build, body, width = jam.builder, op.body, len(op.results)
    inits = [v for place, _, _ in some for v in carried[place]]
    step = jam.get(some[0][1], For(op).step)
    made = build.for_(low, high, step, inits, **{**op.attrs, "unroll": 1, ASKING: True})
    index, *values = made.body.args
    jam.put([lane for _, lane, _ in some], body.args[0], index)
    shared = [inner for inner in body.ops[:-1] if jam.along.common(inner)]

    def turns() -> list[Value]:
        jam.ops(shared, [lane for _, lane, _ in some])
        found: list[Value] = []
        for k, (_, lane, limit) in enumerate(some):
            own = values[k * width : (k + 1) * width]

            def turn(lane: int = lane, own: Sequence[Value] = own) -> list[Value]:
                for old, new in zip(For(op).carried, own, strict=True):
                    jam.put([lane], old, new)
                for inner in body.ops[:-1]:
                    if inner not in shared:
                        jam.alone(inner, [lane])
                return [jam.get(lane, v) for v in For(op).yielded]

            there = build.op("arith.cmpi", index, limit, predicate=predicate)
            found += build.either(there, turn, lambda own=own: own, [v.type for v in own])
        return found

    build.fill(made.body, turns)
    rows = [list(row) for row in carried]
    for k, (place, _, _) in enumerate(some):
        rows[place] = list(made.results[k * width : (k + 1) * width])
    return rows

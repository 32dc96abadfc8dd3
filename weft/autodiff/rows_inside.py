"""One index of a parallel loop goes inside of its sequential loops: loop interchange.

``for row: for chunk: ...`` becomes ``for chunk: for row: ...``, with what a row carries from chunk
to chunk in a local array that has a place for each row. What all rows add to is then added up in
registers, and what all rows need is computed once. Iterations of the parallel loop do not depend on
each other, and what each does stays in its order.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from weft.autodiff.accumulate_after_loop import accumulate_after_loop
from weft.autodiff.clean import clean
from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import For, Parallel, constant_of, memory
from weft.ir.writes import written

_UNROLLED = 8  # rows at a time: their turns need each other, rows do not
_INTERLEAVED = 2  # rows of which operations stand side by side
_AHEAD = 6  # rows of which tapes are read ahead: by 5, 8 or 12 some gradients take longer


def rows_inside(
    function: Function, row: int, rows: int, names: Collection[str], taped: Collection[str]
) -> Function:
    """``function`` with the parallel index ``row``, of ``rows`` at a time, inside of the loops in
    its iteration whose bounds are alike for all rows; the parallel loop begins at 0 and goes by 1.
    ``names``: gradients, which nothing reads. ``taped``: tapes."""
    made = accumulate_after_loop(_Inside(function, row, rows, taped).made(), names)
    return clean(_factored(clean(made)))


class _Inside:
    """``common``: what stands for values that all rows share. ``mine``: for those of the row whose
    operations are being built. ``arrays``: where the values are that a row has kept for later."""

    def __init__(self, function: Function, row: int, rows: int, taped: Collection[str]) -> None:
        self.old, self.row, self.rows, self.taped = function, row, rows, taped
        self.parallel = next(op for op in function.body.ops if op.name == "scf.parallel")
        self.written = written(function)
        self.new = Function(function.name, [a.type for a in function.args],
                            [a.name for a in function.args], dict(function.attrs),
                            function.span)  # fmt: skip
        self.b = Builder(self.new.body, function.span)
        self.common: dict[Value, Value] = dict(zip(function.args, self.new.args, strict=True))
        self.mine: dict[Value, Value] = {}
        self.places = _Places(rows)
        self.arrays = self.places.of
        self.front = Builder(Block(), function.span)

    def made(self) -> Function:
        for op in self.old.body.ops:
            if op is self.parallel:
                self._parallel(op)
            else:
                self._alike(op, self.b)
        return self.new

    def _alike(self, op: Op, b: Builder) -> None:
        copy = b.copied(op, self.common.__getitem__)
        for before, after in zip(op.results, copy.results, strict=True):
            after.name = before.name
            self.common[before] = after

    def _parallel(self, op: Op) -> None:
        view, b = Parallel(op), self.b
        lowers, uppers, steps = ([self.common[v] for v in side] for side in view.ranges)
        alone = constant_of(view.uppers[self.row]) == self.rows
        if alone:
            for side in (lowers, uppers, steps):
                del side[self.row]
        else:
            uppers[self.row] = b.op("arith.floordivsi", uppers[self.row], b.index(self.rows))
        loop = b.parallel(lowers, uppers, steps)
        with b.at(loop.body) as block:
            indices, old = [*block.args], [*view.indices]
            mine = old.pop(self.row)
            self.first = b.index(0) if alone else b.muli(indices[self.row], b.index(self.rows))
            if not alone:
                indices.pop(self.row).name = mine.name
            for before, after in zip(old, indices, strict=True):
                after.name = before.name
                self.common[before] = after
            self._groups(op)
            block.ops[:0] = self.front.block.ops
            b.do("scf.reduce")

    # -- the iteration, loop by loop, and what is between them

    def _groups(self, op: Op) -> None:
        groups: list[list[Op]] = [[]]
        for o in op.body.ops[:-1]:
            if o.name == "memref.alloca":
                self._alike(o, self.front)
            elif o.name == "scf.for" and "rare" not in o.attrs:
                groups += [[o], []]
            else:
                groups[-1].append(o)
        for k, group in enumerate(groups):
            later = {v for g in groups[k + 1 :] for v in _used(g)}
            if k % 2:
                self._loop(group[0], later)
            else:
                kept = [v for o in group for v in o.results if v in later]
                self.places.let_go(later)  # a row reads what was there before it stores
                self._rows(group, {}, {v: v for v in kept}, self.b.block)

    def _loop(self, op: Op, later: Collection[Value]) -> None:
        loop, b = For(op), self.b
        starts, needed = dict(zip(loop.carried, loop.inits, strict=True)), {*later, *_used([op])}
        copied = dict(starts)
        for carried, init in starts.items():
            if init in self.arrays and init not in later and _uses(op).count(init) == 1:
                self.arrays[carried] = self.arrays[init]
                del copied[carried]
        self.places.let_go({*needed, *starts})
        self._rows([], {}, copied, b.block)
        lower, upper, step = map(self._shared, loop.bounds)
        made = b.for_(lower, upper, step)
        made.attrs = {k: v for k, v in op.attrs.items() if k != "undoes"}
        with b.at(made.body) as block:
            self.common[loop.index] = block.args[0]
            block.args[0].name = loop.index.name
            ends = dict(zip(loop.carried, op.body.terminator.operands, strict=True))
            self._rows(op.body.ops[:-1], starts, ends, block)
            b.do("scf.yield")
        for carried, result in zip(loop.carried, op.results, strict=True):
            if result in later:
                self.arrays[result] = self.arrays[carried]

    def _shared(self, value: Value) -> Value:
        """What stands for a value that all rows share."""
        if value not in self.common:
            assert value.op is not None
            for operand in value.op.operands:
                self._shared(operand)
            self._alike(value.op, self.b)
        return self.common[value]

    def _rows(
        self, ops: Sequence[Op], carried: Collection[Value], kept: dict[Value, Value],
        outer: Block,
    ) -> None:  # fmt: skip
        """A loop through the rows, each of which carries out ``ops`` and keeps what is in ``kept``
        for the values there. ``carried``: those that it has kept for itself."""
        b, mine = self.b, Parallel(self.parallel).indices[self.row]
        before, self.mine = self.mine, {}
        attrs = {"unroll": _UNROLLED, "interleave": _INTERLEAVED}
        rows = Op("scf.for", [b.index(0), b.index(self.rows), b.index(1)], (), attrs,
                  [Block([index])], self.old.span)  # fmt: skip
        self.ahead = self._read_ahead(carried, ops, rows)
        with b.at(rows.body) as block:
            place = self.place = block.args[0]
            place.name = mine.name
            self.mine[mine] = b.addi(self.first, place)
            for v in carried:
                self.mine[v] = self._row_later(v, place)
            for v in (*_used(ops), *kept.values()):
                if v in self.arrays and v not in self.mine:
                    self.mine[v] = b.load(self.arrays[v], [place])
            own = {r for o in ops for x in (o, *below(o)) for r in x.results}
            own |= defined([r for o in ops for r in o.regions])
            for v in (*_used(ops), *kept.values()):
                if v not in own:
                    self._again(v)
            for op in ops:
                self._op(op, Builder(outer, op.span))
            given = [(v, self._at(value)) for v, value in kept.items()]
            for v, value in given:
                if v not in self.common:
                    b.store(value, self.places.array(v, self.front), [place])
            later = [v for waiting in self.ahead.values() for v in waiting[1:]]
            b.do("scf.yield", *later)
        if any(not OPS[op.name].pure and op.name != "memref.load" for op in rows.body.ops[:-1]):
            with b.at(outer):
                places = [b.index(min(k, self.rows - 1)) for k in range(_AHEAD)]
                rows.operands += (self._read(key, p) for key in self.ahead for p in places)
            outer.ops.append(rows)
        self.mine = before

    # -- what no other thread reads, and so comes from far away: tapes, and what rows have kept

    def _read_ahead(
        self, carried: Collection[Value], ops: Sequence[Op], rows: Op
    ) -> dict[Op | Value, list[Value]]:
        """For ``carried``, and the loads of ``ops`` that may be carried out for later rows, what
        ``rows`` carries of them, this row's value first."""
        mine, here = Parallel(self.parallel).indices[self.row], {*ops}

        @functools.cache
        def alike(value: Value) -> bool:
            if (op := value.op) is None or op not in here or value in self.common:
                return value in self.common
            return OPS[op.name].pure and not op.regions and all(map(alike, op.operands))

        found: dict[Op | Value, list[Value]] = {v: [] for v in carried}
        for op in ops:
            if op.name != "memref.load" or memory(op)[0].name not in self.taped:
                continue
            stored = any(memory(op)[0] in written(o) for o in ops)
            if not stored and all(v is mine or alike(v) for v in memory(op)[1]):
                found[op] = []
        for key, waiting in found.items():
            value = key if isinstance(key, Value) else key.result
            waiting += (Value(value.type, value.name, rows.body) for _ in range(_AHEAD))
            rows.body.args += waiting
            rows.results += (Value(value.type, "", rows) for _ in waiting)
        return found

    def _read(self, key: Op | Value, place: Value) -> Value:
        """What the row at ``place`` reads."""
        if isinstance(key, Value):
            return self.b.load(self.arrays[key], [place])
        mine = Parallel(self.parallel).indices[self.row]
        here = self.mine.get(mine)
        self.mine[mine] = self.b.addi(self.first, place)
        made = self.b.append(self._copy(key)).result
        if here is not None:
            self.mine[mine] = here
        return made

    def _row_later(self, key: Op | Value, place: Value) -> Value:
        """Reads what ``key`` says for a later row; gives what was read for the one at ``place``."""
        b, waiting = self.b, self.ahead[key]
        later = b.op("arith.minsi", b.addi(place, b.index(_AHEAD)), b.index(self.rows - 1))
        waiting.append(self._read(key, later))
        return waiting[0]

    def _at(self, value: Value) -> Value:
        return self.mine.get(value) or self.common[value]

    def _again(self, value: Value) -> None:
        """Computes in this row what an earlier part of the iteration did."""
        if value in self.mine or value in self.common:
            return
        op = value.op
        assert op is not None
        assert OPS[op.name].pure, op.name
        for operand in op.operands:
            self._again(operand)
        self.mine[value] = self.b.copied(op, self._at).result

    # -- operations

    def _op(self, op: Op, outer: Builder) -> None:
        """Carries out ``op`` in the row; in front of all rows if it is alike for these."""
        b = self.b
        b.span = op.span
        plain = not op.regions and (OPS[op.name].pure or op.name == "memref.load")
        reads = memory(op)[0] if op.name == "memref.load" else None
        if (
            plain and reads not in self.written and reads not in self.arrays.values()
            and len(op.results) == 1 and all(v in self.common for v in op.operands)
            and (reads is None or reads in self.old.args)
        ):  # fmt: skip
            self._alike(op, outer)
            return
        if op in self.ahead:
            self.mine[op.result] = self._row_later(op, self.place)
            return
        copy = b.append(self._copy(op))
        for before, after in zip(op.regions, copy.regions, strict=True):
            self._region(before, after)
        self.mine.update(zip(op.results, copy.results, strict=True))

    def _region(self, before: Block, after: Block) -> None:
        self.mine.update(zip(before.args, after.args, strict=True))
        with self.b.at(after):
            for op in before.ops:
                copy = self.b.append(self._copy(op))
                for old, new in zip(op.regions, copy.regions, strict=True):
                    self._region(old, new)
                self.mine.update(zip(op.results, copy.results, strict=True))

    def _copy(self, op: Op) -> Op:
        operands = [self._at(v) for v in op.operands]
        regions = [Block([a.type for a in r.args]) for r in op.regions]
        copy = Op(op.name, operands, [r.type for r in op.results], dict(op.attrs), regions,
                  op.span)  # fmt: skip
        for before, after in zip(op.results, copy.results, strict=True):
            after.name = before.name
        return copy


class _Places:
    """Where values are that rows keep: ``of`` each the local array, with a place for each of
    ``rows``. ``free``: those of ``all`` whose values nothing asks for any more."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.of: dict[Value, Value] = {}
        self.all: list[Value] = []
        self.free: list[Value] = []

    def array(self, value: Value, front: Builder) -> Value:
        """The array of ``value``; where there is none yet, one that is free, or a new one in
        ``front``."""
        if value not in self.of:
            alike = [a for a in self.free if a.memref.element is value.scalar]
            if alike:
                self.free.remove(alike[0])
            else:
                alike = [front.alloca(value.scalar, (self.rows,))]
                self.all += alike
            self.of[value] = alike[0]
        return self.of[value]

    def let_go(self, needed: Collection[Value]) -> None:
        """Lets other values be where those were that are not ``needed``."""
        kept = {self.of[v] for v in needed if v in self.of}
        self.free = [array for array in self.all if array not in kept]


def _used(ops: Sequence[Op]) -> set[Value]:
    return {v for op in ops for v in _uses(op)}


def _uses(op: Op) -> list[Value]:
    return [v for x in below(op) for v in x.operands]


def _factored(function: Function) -> Function:
    """Of the sums that loops through rows carry, of products with what all rows share: the product
    with the sum."""

    def visit(op: Op, r: Rewriter) -> list[Value] | None:
        if op.name != "scf.for" or "unroll" not in op.attrs or not op.results:
            return None
        inside, sums = defined([op.body]), For(op)
        used = Counter(v for o in walk(op.body) for v in o.operands)
        found = [
            _factors(carried, given, inside, used) if constant_of(init) == 0.0 else []
            for carried, init, given in zip(sums.carried, sums.inits, sums.yielded, strict=True)
        ]
        if not any(found):
            return None
        r.append(op)
        results: list[Value] = []
        for value, factors in zip(op.results, found, strict=True):
            for o in reversed(factors):
                others = [v for v in o.operands if v not in inside]
                value = r.op(o.name, value, *others)
            results.append(value)
        return results

    return Rewriter(visit).function(function)


def _factors(
    carried: Value, given: Value, inside: Collection[Value], used: Mapping[Value, int]
) -> list[Op]:
    """Takes off what is added to ``carried`` what it is multiplied by last, where that is not
    ``inside`` of the loop; the operations that did so, the last one first."""
    add = given.op
    if add is None or add.name != "arith.addf" or add.left is not carried:
        return []
    found: list[Op] = []
    while (product := add.right.op) is not None and used[add.right] == 1:
        mine = [v for v in product.operands if v in inside]
        if product.name not in ("arith.mulf", "arith.negf") or len(mine) != 1:
            break
        found.append(product)
        add.operands = [carried, *mine]
    return found

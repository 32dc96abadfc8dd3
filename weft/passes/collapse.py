"""Serial loops of a perfect nest as further dimensions of the parallel loop around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace

from weft.index.access import Access, accesses
from weft.index.budget import Budget
from weft.index.pairs import pairs
from weft.index.races import compatible, proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import For, Parallel, constant_of, memory
from weft.ir.writes import written
from weft.values import mutable

UNROLLED = 16  # iterations, up to which a loop of constant length is left to unrolling
# Operations in front of a loop that its iterations may repeat: where each computes one more loop,
# and where it does not.
LONG, SHORT = 32, 8

# What stops the kernel or is seen outside of it: when, and how often, has to stay.
_ORDERED = {
    "weft.assert", "weft.bounds", "weft.touch", "weft.print", "memref.atomic_cas", "scf.parallel",
}  # fmt: skip


def collapse(function: Function, stay: Collection[str] = ()) -> Function:
    """``for i: for j: for k`` becomes one parallel loop over those of the indices whose iterations
    are proven apart: over i and j in a matrix product. The other loops run inside, in their order:
    each element sees the same operations in the same order as before.

    What stands in front of a loop, a few pure operations and loads of memory that nobody writes, is
    repeated by its iterations. Accumulations that may meet across iterations of the parallel loop
    already may meet across those of the new one. Its last index is the one along which most
    accesses go from an element to the next.

    Precondition: a verified function, after races were checked; arguments that do not overlap
    (``noalias``; nothing is done otherwise).
    Non-goals: parallel loops that reduce or have one iteration (they run in order); loops that
    carry values; bounds that depend on an index or on memory; loops over indices that are called as
    one of ``stay``, and all of a function whose ``block_dim`` has a number for each index.
    """
    if not function.attrs.get("noalias") or len(function.attrs.get("block_dim", ())) > 1:
        return function
    nests = {op: _nest(op) for op in function.body.ops if op.name == "scf.parallel"}
    if not any(nest.loops for nest in nests.values()):
        return function
    every, budget = accesses(function), Budget()
    for parallel, nest in nests.items():
        inside = defined([parallel.body]) if nest.loops else set[Value]()
        may = [op for op in nest.loops if For(op).index.name not in stay and _movable(op, inside)]
        if may:
            nest.choose(may, [a for a in every if parallel.body.args[0] in a.parallel], budget)
    if not any(nest.moved for nest in nests.values()):
        return function
    return _Collapser(nests).function(function)


@mutable
class _Nest:
    """``loops``: those of the perfect nest in ``parallel``, outermost first. ``moved``: which of
    them become dimensions. ``last``: the number of the dimension that comes last."""

    parallel: Op
    loops: list[Op] = field(default_factory=list)
    moved: list[Op] = field(default_factory=list)
    last: int = -1

    def choose(self, may: list[Op], every: list[Access], budget: Budget) -> None:
        """Moves as many of the loops that ``may`` be moved as can go together, if that pays.
        ``every``: the accesses in the nest."""
        used = {v for op in walk(self.parallel.body) for v in op.operands}
        changed = {a.memref: None for a in every if a.writes and not a.local}
        groups = [[a for a in every if a.memref is memref] for memref in changed]
        if _apart(may, groups, used, budget):
            self.moved = may
        else:
            for loop in may if len(may) > 1 else ():
                if _apart([*self.moved, loop], groups, used, budget):
                    self.moved.append(loop)
        if self._dear():
            self.moved = []
        indices = [*self.parallel.body.args, *(For(loop).index for loop in self.moved)]
        scores = [_score(every, iv) for iv in indices]
        self.last = max(range(len(indices)), key=lambda k: (scores[k], k))

    def _dear(self) -> bool:
        """Whether the iterations of the moved loops repeat more than pays."""
        blocks = [self.parallel.body, *(loop.body for loop in self.loops)]
        serial = any(op.name in ("scf.for", "scf.while") for op in walk(blocks.pop()))
        each = 0
        for loop, block in zip(reversed(self.loops), reversed(blocks), strict=True):
            serial |= loop not in self.moved
            repeated = sum(op.result.type is not index for op in _before(block) if op.results)
            if repeated > LONG:
                return True
            each += 0 if serial else repeated
        return each > SHORT


def _nest(parallel: Op) -> _Nest:
    """The perfect nest in ``parallel``; without loops where they must stay."""
    nest = _Nest(parallel)
    if parallel.attrs["kinds"] or all(_trips(*axis) in (0, 1) for axis in Parallel(parallel).axes):
        return nest
    if any(op.name in _ORDERED for op in walk(parallel.body)):
        return nest
    changed, block = written(parallel), parallel.body
    while True:
        loop = next((op for op in block.ops if op.name == "scf.for"), None)
        if (
            loop is None
            or loop.results
            or not all(_repeatable(op, changed) for op in _before(block))
        ):
            return nest
        after = block.ops[block.ops.index(loop) + 1 : -1]
        if not all(OPS[op.name].pure for op in after):  # of which nothing can come
            return nest
        nest.loops.append(loop)
        block = loop.body


def _before(block: Block) -> list[Op]:
    """What stands in front of the first loop of ``block``, but for constants."""
    place = next(k for k, op in enumerate(block.ops) if op.name == "scf.for")
    found = (inner for op in block.ops[:place] for inner in below(op))
    return [op for op in found if op.name != "arith.constant"]


def _repeatable(op: Op, changed: Collection[Value]) -> bool:
    if op.name == "memref.load":
        return memory(op)[0] not in changed
    return OPS[op.name].pure or op.name in ("scf.if", "scf.yield")


def _movable(loop: Op, inside: Collection[Value]) -> bool:
    """Whether the bounds of ``loop`` can be computed in front of the nest, and it is a long one."""
    trips = _trips(*For(loop).bounds)
    if constant_of(For(loop).step) is None or (trips is not None and trips <= UNROLLED):
        return False
    open_ = list(For(loop).bounds)
    while open_:
        value = open_.pop()
        if value in inside:
            op = value.op
            if op is None or op.regions or not OPS[op.name].pure:
                return False
            open_ += op.operands
    return True


def _trips(lower: Value, upper: Value, step: Value) -> int | None:
    first, last, by = constant_of(lower), constant_of(upper), constant_of(step)
    if first is None or last is None or by is None:
        return None
    return len(range(int(first), int(last), int(by)))


# -- legality


def _apart(
    loops: Sequence[Op], groups: Sequence[Sequence[Access]], used: Collection[Value], budget: Budget
) -> bool:
    """Whether ``loops`` may be parallel, too. ``groups``: the accesses to each array that is
    written; ``used``: what is an operand."""
    ivs = {For(loop).index for loop in loops}
    for group in groups:
        before = {a.op: a for a in group}
        for a, b in pairs([_with_parallel(a, ivs) for a in group]):
            if not a.writes and not b.writes:
                continue
            budget.pairs -= 1
            if budget.pairs < 0:
                return False
            if proven_apart(a, b, budget):
                continue
            if not compatible(a, b) or any(r in used for x in (a, b) for r in x.op.results):
                return False
            if all(proven_apart(before[a.op], other, budget) for other in group):
                return False  # it has an order, and needs no atomics
    return True


def _with_parallel(access: Access, ivs: Collection[Value]) -> Access:
    loops = (replace(x, parallel=x.parallel or x.iv in ivs) for x in access.loops)
    return replace(access, loops=tuple(loops))


def _score(every: Sequence[Access], iv: Value) -> float:
    """How many accesses go from an element to the next by ``iv``, those of inner loops more."""
    rows = (a for a in every if a.stride(iv) in (1, -1) and a.memref.memref.row_major)
    return sum(4.0 ** len(a.serial) * (1.5 if a.writes else 1.0) for a in rows)


# -- the rewrite


class _Collapser(Rewriter):
    def __init__(self, nests: dict[Op, _Nest]) -> None:
        super().__init__(lambda op, rewriter: None, around=self._around)
        self.nests = nests

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        nest = self.nests.get(op)
        if nest is None or not nest.moved:
            return None
        self.span = op.span
        inside, memo = defined([op.body]), dict[Value, Value]()
        axes = [(iv, *axis) for iv, axis in zip(op.body.args, Parallel(op).axes, strict=True)]
        axes += [(For(loop).index, *For(loop).bounds) for loop in nest.moved]
        axes.append(axes.pop(nest.last))
        indices, *bounds = zip(*axes, strict=True)
        lowers, uppers, steps = ([self._outside(v, inside, memo) for v in vs] for vs in bounds)
        new = self.parallel(lowers, uppers, steps)
        new.attrs = {**op.attrs, "dims": len(axes)}
        self.stand_for(indices, new.body.args)
        with self.at(new.body):
            self._level(op.body, nest, 0)
            self.rewrite(op.body.terminator)
        return []

    def _outside(self, value: Value, inside: Collection[Value], memo: dict[Value, Value]) -> Value:
        """``value`` computed in front of the nest."""
        if value not in inside:
            return self.lookup(value)
        if value not in memo:
            op = value.op
            assert op is not None
            for operand in op.operands:
                self._outside(operand, inside, memo)
            memo[value] = self.copied(op, lambda v: memo.get(v) or self.lookup(v)).result
        return memo[value]

    def _level(self, block: Block, nest: _Nest, depth: int) -> None:
        """The operations of ``block`` but for its terminator: it is where the loop ``depth`` of the
        nest stands, or the innermost one's body."""
        loop = nest.loops[depth] if depth < len(nest.loops) else None
        for op in block.ops[:-1]:
            if op is not loop:
                self.rewrite(op)
            elif op in nest.moved:
                self._level(op.body, nest, depth + 1)
            else:
                copy = self.copy(op)
                self.stand_for(op.body.args, copy.body.args)
                with self.at(copy.body):
                    self._level(op.body, nest, depth + 1)
                    self.rewrite(op.body.terminator)
                self.append(copy)

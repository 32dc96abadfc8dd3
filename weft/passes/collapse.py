"""Serial loops of a perfect nest as further dimensions of the parallel loop around them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field, replace

from weft.index.access import Access, Extraction, Loop
from weft.index.budget import Budget
from weft.index.expression import nonnegative
from weft.index.races import compatible, pairs, proven_apart
from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, walk
from weft.ir.ops import OPS
from weft.ir.types import index
from weft.ir.views import For, Parallel, constant_of, is_constant, memory
from weft.ir.writes import written
from weft.passes.simplify import known_trips
from weft.values import frozen, mutable

UNROLLED = 16  # iterations, up to which a loop of constant length is left to unrolling
# Operations in front of a loop that its iterations may repeat: where each computes one more loop,
# and where it does not.
LONG, SHORT = 32, 8

# What stops the kernel or is seen outside of it: when, and how often, has to stay.
_ORDERED = {
    "weft.assert", "weft.bounds", "weft.check_race", "weft.print", "memref.atomic_cas",
    "scf.parallel",
}  # fmt: skip


def collapse(function: Function, stay: Collection[str] = (), *, ragged: bool = False) -> Function:
    """``for i: for j: for k`` becomes one parallel loop over those of the indices whose iterations
    are proven apart: over i and j in a matrix product. The other loops run inside, in their order:
    each element sees the same operations in the same order as before.

    What stands in front of a loop, a few pure operations and loads of memory that nobody writes, is
    repeated by its iterations. Accumulations that may meet across iterations of the parallel loop
    already may meet across those of the new one. Its last index is the one along which most
    accesses go from an element to the next.

    A loop of which one end follows an index outside (``for j in range(i, n)``) becomes a dimension
    that is long enough for all of them, with a condition, where that is at most some twice as many
    iterations as there were, and each computes a loop; ``ragged``: or whatever it computes.

    Precondition: a verified function, after races were checked; arguments that do not overlap
    (``noalias``; nothing is done otherwise).
    Non-goals: parallel loops that reduce or have one iteration (they run in order); loops that
    carry values; other bounds that depend on an index or on memory; loops over indices that are
    called as one of ``stay``, and all of a function whose ``block_dim`` has a number for each one.
    """
    if not function.attrs.get("noalias") or len(function.attrs.get("block_dim", ())) > 1:
        return function
    nests = {op: _nest(op) for op in function.body.ops if op.name == "scf.parallel"}
    if not any(nest.loops for nest in nests.values()):
        return function
    extraction, budget = Extraction(function), Budget()
    for parallel, nest in nests.items():
        may = nest.candidates(extraction, stay) if nest.loops else []
        if may:
            inside = [a for a in extraction.found if parallel.body.args[0] in a.parallel]
            nest.choose(may, inside, budget, ragged=ragged)
    if not any(nest.moved for nest in nests.values()):
        return function
    return _Collapser(nests).function(function)


@mutable
class _Nest:
    """``loops``: those of the perfect nest in ``parallel``, outermost first. ``moved``: which of
    them become dimensions. ``last``: the number of the dimension that comes last. ``triangles``:
    of loops that follow an index."""

    parallel: Op
    loops: list[Op] = field(default_factory=list)
    moved: list[Op] = field(default_factory=list)
    last: int = -1
    triangles: dict[Op, _Triangle] = field(default_factory=dict)

    def candidates(self, extraction: Extraction, stay: Collection[str]) -> list[Op]:
        """The loops that can be moved as far as their bounds say."""
        inside, found = defined([self.parallel.body]), list[Op]()
        view = Parallel(self.parallel)
        boxes = dict(zip(view.indices, view.axes, strict=True))
        for loop in self.loops:
            index, bounds = For(loop).index, For(loop).bounds
            trips = known_trips(*bounds)
            if index.name in stay or constant_of(bounds[2]) is None:
                continue
            if trips is not None and trips <= UNROLLED:
                continue
            if _in_front(bounds, inside):
                boxes[index] = bounds
            elif is_constant(bounds[2], 1):
                own = extraction.loops[loop][-1]
                triangles = (_triangle(own, iv, box, extraction) for iv, box in boxes.items())
                pairs_of = zip(boxes, triangles, strict=True)
                shape = next(
                    (t for iv, t in pairs_of if t and _in_front(bounds, inside - {iv})), None
                )
                if shape is None:
                    continue
                self.triangles[loop] = shape
            else:
                continue
            found.append(loop)
        return found

    def choose(self, may: list[Op], every: list[Access], budget: Budget, *, ragged: bool) -> None:
        """Moves as many of the loops that ``may`` be moved as can go together, if that pays.
        ``every``: the accesses in the nest."""
        used = {v for op in walk(self.parallel.body) for v in op.operands}
        changed = {a.memref: None for a in every if a.writes and not a.local}
        groups = [[a for a in every if a.memref is memref] for memref in changed]
        if _apart(may, groups, used, budget):
            self.moved = may
        else:
            known = set(self.parallel.body.args)
            for loop in may if len(may) > 1 else ():
                if loop in self.triangles and self.triangles[loop].iv not in known:
                    continue
                if _apart([*self.moved, loop], groups, used, budget):
                    self.moved.append(loop)
                    known.add(For(loop).index)
        if not ragged:
            self.moved = [op for op in self.moved if op not in self.triangles or self._works(op)]
        if self._expensive():
            self.moved = []
        indices = [*self.parallel.body.args, *(For(loop).index for loop in self.moved)]
        scores = [_score(every, iv) for iv in indices]
        self.last = max(range(len(indices)), key=lambda k: (scores[k], k))

    def _works(self, loop: Op) -> bool:
        """Whether each iteration of ``loop`` still computes a loop where some are moved."""
        deeper = self.loops[self.loops.index(loop) + 1 :]
        return any(op not in self.moved for op in deeper) or _computes_a_loop(self.loops[-1].body)

    def _expensive(self) -> bool:
        """Whether the iterations of the moved loops repeat more than pays."""
        blocks = [self.parallel.body, *(loop.body for loop in self.loops)]
        serial = _computes_a_loop(blocks.pop())
        each = 0
        for loop, block in zip(reversed(self.loops), reversed(blocks), strict=True):
            serial |= loop not in self.moved
            repeated = sum(v.type is not index for op in _before(block) for v in op.results)
            if repeated > LONG:
                return True
            each += 0 if serial else repeated
        return each > SHORT


def _nest(parallel: Op) -> _Nest:
    """The perfect nest in ``parallel``; without loops where they must stay."""
    nest = _Nest(parallel)
    if parallel.attrs["kinds"] or all(
        known_trips(*axis) in (0, 1) for axis in Parallel(parallel).axes
    ):
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


def _computes_a_loop(block: Block) -> bool:
    return any(op.name in ("scf.for", "scf.while") for op in walk(block))


def _in_front(values: Sequence[Value], inside: Collection[Value]) -> bool:
    """Whether ``values`` can be computed in front of a nest, in which ``inside`` is defined."""
    open_ = list(values)
    while open_:
        value = open_.pop()
        if value in inside:
            op = value.op
            if op is None or op.regions or not OPS[op.name].pure:
                return False
            open_ += op.operands
    return True


@frozen
class _Triangle:
    """A loop whose lower or upper bound (``end``: 0 or 1) grows or falls by one with the index
    ``iv``, and which is the longest at the last value of this or (``first``) at the first."""

    end: int
    iv: Value
    first: bool


def _triangle(
    loop: Loop, iv: Value, box: Sequence[Value], extraction: Extraction
) -> _Triangle | None:
    """How ``loop`` follows the index ``iv`` of the range ``box``, if it does, and at most some half
    of the iterations are wasted where it always is as long as at its longest."""
    lower, upper = loop.lower, loop.upper
    begin, end = map(extraction.poly, box[:2])
    if not is_constant(box[2], 1) or lower is None or upper is None or begin is None or end is None:
        return None
    slopes = lower.slope(iv), upper.slope(iv)
    if slopes not in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        return None
    shrinks = slopes in ((1, 0), (0, -1))
    least = (upper - lower).substitute(
        lambda leaf: (end if shrinks else begin) if leaf is iv else None
    )
    if (least.constant is None or least.constant < -UNROLLED) and not nonnegative(least):
        return None
    return _Triangle(0 if slopes[0] else 1, iv, shrinks)


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
        super().__init__(around=self._around)
        self.nests = nests

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        nest = self.nests.get(op)
        if nest is None or not nest.moved:
            return None
        self.span = op.span
        inside, memo = defined([op.body]), dict[Value, Value]()
        axes = {iv: list(axis) for iv, axis in zip(op.body.args, Parallel(op).axes, strict=True)}
        axes = {iv: [self.lookup(v) for v in axis] for iv, axis in axes.items()}
        for loop in nest.moved:
            shape = nest.triangles.get(loop)
            widest = memo if shape is None else {shape.iv: self._end(axes[shape.iv], shape)}
            axes[For(loop).index] = [self.in_front(v, inside, widest) for v in For(loop).bounds]
        order = list(axes)
        order.append(order.pop(nest.last))
        lowers, uppers, steps = map(list, zip(*(axes[iv] for iv in order), strict=True))
        new = self.parallel(lowers, uppers, steps)
        new.attrs = {**op.attrs, "dims": len(axes)}
        self.stand_for(order, new.body.args)
        with self.at(new.body):
            self._level(op.body, nest, 0)
            self.rewrite(op.body.terminator)
        return []

    def _end(self, box: Sequence[Value], shape: _Triangle) -> Value:
        """The index of the range ``box`` at which the loop is the longest."""
        return box[0] if shape.first else self.subi(box[1], self.index(1))

    def _level(self, block: Block, nest: _Nest, depth: int) -> None:
        """The operations of ``block`` but for its terminator: it is where the loop ``depth`` of the
        nest stands, or the innermost one's body."""
        loop = nest.loops[depth] if depth < len(nest.loops) else None
        for op in block.ops[:-1]:
            if op is not loop:
                self.rewrite(op)
            elif op in nest.moved and op in nest.triangles:
                end = nest.triangles[op].end
                pair = self.lookup(For(op).index), self.lookup(For(op).bounds[end])
                with self.when(self.op("arith.cmpi", *pair, predicate=("sge", "slt")[end])):
                    self._level(op.body, nest, depth + 1)
            elif op in nest.moved:
                self._level(op.body, nest, depth + 1)
            else:
                copy = self.copy(op)
                self.stand_for(op.body.args, copy.body.args)
                with self.at(copy.body):
                    self._level(op.body, nest, depth + 1)
                    self.rewrite(op.body.terminator)
                self.append(copy)

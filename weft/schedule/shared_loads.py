"""Which iterations a thread of a GPU may do in step, so that they share what they read.

A multiprocessor reads one row of 32 numbers from its first cache in the time of four rows of
multiplications. Where iterations along a parallel index read the same elements, a thread that has
several of them reads those once. A call chooses, ``unroll_jam`` writes the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.index.integers import Integers
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import is_slow
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import For, If, Parallel, is_constant, memory
from weft.schedule.cooperative_loops import ordered
from weft.schedule.grid import WARP
from weft.schedule.language import RegisterWindow, Reverse, UnrollJam
from weft.schedule.nest import axes_of, is_plain, loops_of
from weft.schedule.register_window import windows
from weft.schedule.unroll_jam import variation
from weft.schedule.variation import Variation
from weft.values import frozen

COPIES = 4  # along one index
MOST_OPS = 320  # in the innermost loops, for all iterations of a thread
_WORTH = 0.65  # of the loads have to be left, at most, for another axis to be taken
_STEEPEST = 1  # how much the bounds of a serial loop may change from iteration to iteration

# Iterations of a thread along the index of the neighbours and along another one, turns that become
# one, and threads of a block: eight along the first index have nearly the same turns.
TILES = ((8, 8), 4, (8, 4)), ((8, 4), 8, (8, 4)), ((8,), 16, (16, 2))
MOST_TILE = 128  # words that a turn computes, for all iterations of a thread


@frozen
class UnrollJamCandidates:
    """Steps of which those may pay that save most of ``loads`` loads, with ``most`` iterations of a
    thread. Bit k of a step's number in ``unshared``: its iterations do the k-th load each for
    itself."""

    unshared: Mapping[UnrollJam, int] = field(default_factory=dict[UnrollJam, int])
    loads: int = 0
    most: int = 1

    def cost(self, taken: Sequence[UnrollJam]) -> float:
        """Loads of an iteration, on average, by the steps ``taken``."""
        return sum(
            1 / math.prod(jam.copies for jam in taken if not self.unshared[jam] >> k & 1)
            for k in range(self.loads)
        )

    def choices(self) -> list[tuple[UnrollJam, ...]]:
        """What pays, the best first: a second axis only beside the better one of the two, which
        fits wherever both do."""
        order = list(self.unshared)
        ranked = sorted(order, key=lambda jam: self.cost([jam]))
        found: list[tuple[UnrollJam, ...]] = []
        for k, first in enumerate(ranked):
            pairs = [(first, second) for second in ranked[k + 1 :]]
            pairs.sort(key=lambda pair: (self.cost(pair), order.index(pair[1])))
            found += [how for how in (*pairs, (first,)) if self._pays(how)]
        return found

    def _pays(self, taken: Sequence[UnrollJam]) -> bool:
        copies = math.prod(jam.copies for jam in taken)
        return copies <= self.most and self.cost(taken) < _WORTH * self.cost(taken[:-1])


@frozen
class WindowTile:
    """Iterations of a thread where the elements that one reads are its neighbour's a turn of
    ``loop`` later. ``order``: the parallel dimensions, that of the neighbours first. ``steps``:
    what makes the tile, with as many iterations as ``copies`` says along the first dimensions.
    ``block``: threads of a block along the first two. ``words``: that a turn computes, for one
    iteration."""

    loop: Op
    order: tuple[int, ...]
    copies: tuple[int, ...]
    steps: tuple[Reverse | UnrollJam | RegisterWindow, ...]
    block: tuple[int, int]
    words: int = 1


def window_tiles(function: Function, parallel: Op) -> list[WindowTile]:
    """What may pay for the iterations of ``parallel``, the best first."""
    innermost = _innermost(function, parallel)
    found = Integers(function)
    if len(innermost) != 1:
        return []
    (loop,) = innermost
    rows = [row.loads for row in windows(function, loop, {}, found)]
    loads = [op for op in walk(loop.body) if op.name == "memref.load"]
    if not all(any(op in row for row in rows) for op in loads):
        return []
    along = [variation(function, parallel, axis) for axis in range(Parallel(parallel).dims)]
    indices = Parallel(parallel).indices
    fit = [axis for axis, step in enumerate(Parallel(parallel).steps)
           if is_constant(step, 1) and _even(parallel, along[axis])]  # fmt: skip
    slides = {axis: {op for op in loads if _next_to(op, indices[axis], found)} for axis in fit}
    first = next((axis for axis in fit if slides[axis] and all(
        op in slides[axis] or along[axis].common(op) for op in loads)), None)  # fmt: skip
    if first is None:
        return []
    beside = [axis for axis in fit if axis != first and all(map(along[axis].common, slides[first]))]
    names = axes_of(parallel)
    name = next(name for name, op in loops_of(parallel).items() if op is loop)
    later = _begins_later(loop, indices[first], found)
    if later and ordered(function, loop) is not None:
        return []
    order = (first, *beside[-1:])
    order += tuple(k for k in reversed(range(len(names))) if k not in order)
    made = [v.type for op in loop.body.ops if op.name != "memref.load" for v in op.results]
    size = sum(-(-t.bytes // 4) for t in made if isinstance(t, ScalarType) and t.is_float)
    return [
        WindowTile(loop, order, copies, (
            *((Reverse(name),) if later else ()),
            *reversed([UnrollJam(names[k], n) for k, n in zip(order, copies, strict=False)]),
            RegisterWindow(name, turns),
        ), block, size)
        for copies, turns, block in TILES
        if len(copies) <= 1 + bool(beside) and size * math.prod(copies) <= MOST_TILE
    ]  # fmt: skip


def _next_to(load: Op, index: Value, found: Integers) -> bool:
    """Whether neighbours along ``index`` load neighbours in a row."""
    *outer, last = map(found.poly, memory(load)[1])
    in_row = not any(poly is None or poly.mentions(index) for poly in outer)
    return in_row and last is not None and last.slope(index) in (1, -1)


def _begins_later(loop: Op, index: Value, found: Integers) -> bool:
    """Whether neighbours along ``index`` begin ``loop`` one after the other, and end it
    together."""
    lower, upper = found.poly(For(loop).lower), found.poly(For(loop).upper)
    if lower is None or upper is None:
        return False
    return lower.mentions(index) and not upper.mentions(index)


def unroll_jam_candidates(function: Function, parallel: Op, fastest: int) -> UnrollJamCandidates:
    """What may pay for the iterations of ``parallel``, indices that no serial loop's bounds depend
    on first. ``fastest``: the index along neighbouring threads, whose iterations in one thread are
    a warp apart, so that neighbouring threads still read neighbouring elements."""
    innermost = [op.body for op in _innermost(function, parallel) if "skipped" not in op.attrs]
    loads = [op for block in innermost for op in block.ops if _moves(op, block)]
    if not loads:
        return UnrollJamCandidates()
    found: list[tuple[bool, bool, UnrollJam, int]] = []
    for axis, (name, step) in enumerate(
        zip(axes_of(parallel), Parallel(parallel).steps, strict=True)
    ):
        along = variation(function, parallel, axis)
        if not is_constant(step, 1) or not _even(parallel, along):
            continue
        own = sum((not along.common(op)) << k for k, op in enumerate(loads))
        jam = UnrollJam(name, COPIES, WARP if axis == fastest else 1)
        if UnrollJamCandidates({jam: own}, len(loads)).cost([jam]) < _WORTH * len(loads):
            slides = axis != fastest and any(_slides(op, parallel, axis) for op in loads)
            found.append((not _alike(parallel, along), not slides, jam, own))
    found.sort(key=lambda row: row[:2])
    size = sum(len(block.ops) for block in innermost)
    unshared = {jam: own for *_, jam, own in found}
    return UnrollJamCandidates(unshared, len(loads), MOST_OPS // size)


def _innermost(function: Function, parallel: Op) -> list[Op]:
    """The innermost loops of iterations that a thread may have several of; none where it may
    not."""
    body = parallel.body
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return []
    if any(is_slow(op.name) or not is_plain(op) for op in walk(body)):
        return []
    return [op for op in walk(body) if op.name == "scf.for" and _last(op)]


def _last(loop: Op) -> bool:
    return all(op.name != "scf.for" for op in walk(loop.body))


def _moves(op: Op, block: Block) -> bool:
    """Whether ``op`` loads something else each time that the loop of ``block`` runs it."""
    inside = {*block.args, *(v for o in block.ops for v in o.results)}
    return op.name == "memref.load" and any(v in inside for v in memory(op)[1])


def _slides(load: Op, parallel: Op, axis: int) -> bool:
    """Whether neighbours along ``axis`` read, some iterations of a serial loop later, the same."""
    index = parallel.body.args[axis]
    _, subscripts, _ = memory(load)
    return any(v.op and v.op.name == "arith.addi" and index in v.op.operands for v in subscripts)


def _bounds(parallel: Op) -> list[Value]:
    loops = (op for op in walk(parallel.body) if op.name == "scf.for")
    return [bound for op in loops for bound in For(op).bounds]


def _alike(parallel: Op, along: Variation) -> bool:
    """Whether neighbours' serial loops have the same bounds."""
    return along.uniform(*_bounds(parallel))


def _even(parallel: Op, along: Variation) -> bool:
    """Whether neighbours do nearly the same: bounds of their loops differ by little, and what they
    branch on follows from indices."""
    if any(along.steepness(bound) > _STEEPEST for bound in _bounds(parallel)):
        return False
    conditions = (If(op).condition for op in walk(parallel.body) if op.name == "scf.if")
    return all(along.uniform(v) or _of_indices(v) for v in conditions)


def _of_indices(value: Value) -> bool:
    """Whether a condition is made of comparisons of integers, none of which was loaded."""
    op = value.op
    if op is None:
        return True
    if op.name == "memref.load" or op.regions or op.name == "arith.cmpf":
        return False
    return all(_of_indices(v) for v in op.operands if not isinstance(v.type, MemRefType))

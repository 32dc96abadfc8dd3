"""Which iterations a thread of a GPU may do in step, so that they share what they read.

A multiprocessor reads one row of 32 numbers from its first cache in the time of four rows of
multiplications. Where iterations along a parallel index read the same elements, a thread that has
several of them reads those once. A call chooses, ``unroll_jam`` writes the code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType
from weft.ir.views import For, If, Parallel, is_constant, memory
from weft.schedule.grid import WARP
from weft.schedule.language import UnrollJam
from weft.schedule.nest import axes_of, is_plain
from weft.schedule.unroll_jam import variation
from weft.schedule.variation import Variation
from weft.values import frozen

COPIES = 4  # along one index
MOST_OPS = 320  # in the innermost loops, for all iterations of a thread
_WORTH = 0.65  # of the loads have to be left, at most, for another axis to be taken
_STEEPEST = 1  # how much the bounds of a serial loop may change from iteration to iteration

_LIGHT = {"math.fma", "math.absf", "math.absi", "math.isnan", "math.isinf"}


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


def unroll_jam_candidates(function: Function, parallel: Op, fastest: int) -> UnrollJamCandidates:
    """What may pay for the iterations of ``parallel``, indices that no serial loop's bounds depend
    on first. ``fastest``: the index along neighbouring threads, whose iterations in one thread are
    a warp apart, so that neighbouring threads still read neighbouring elements."""
    body = parallel.body
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return UnrollJamCandidates()
    if not all(is_plain(op) and _is_light(op) for op in walk(body)):
        return UnrollJamCandidates()
    innermost = [op.body for op in walk(body) if op.name == "scf.for" and _last(op)]
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


def _is_light(op: Op) -> bool:
    return op.name in _LIGHT or not op.name.startswith("math.")


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

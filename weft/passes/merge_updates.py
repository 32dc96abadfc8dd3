"""Stores of what a later loop reads, adds to and stores again."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, slice_of
from weft.ir.ops import OPS
from weft.ir.views import For, memory
from weft.passes.same_range_loops import (
    Touched,
    ValueNumbers,
    is_expensive,
    may_reuse_memory,
    same_place,
    same_range_loops,
    walk_blocks,
)

_LONGEST = 16  # operations that are computed again in place of a load


def merge_updates(function: Function, expensive: bool = False) -> Function:
    """Where a loop stores an element that a later loop of the same iterations reads, changes and
    stores, the later loop computes the value itself, and the first one does not store it.

    That is what gradients are: contributions to one element, from one loop after the other. The
    last loop then has them all. What is computed again is arithmetic and loads of what nobody
    writes; functions like ``exp`` only if the later loop has them anyway, or these may be
    ``expensive``.
    Precondition: a verified function after ``lower_updates`` and ``cse``; arguments do not overlap.
    Non-goals: elements that anything else touches; values that loops carry.
    """
    if not may_reuse_memory(function):
        return function
    while (found := _first(function, expensive)) is not None:
        function = _Sinker(*found).function(function)
    return function


def _first(function: Function, expensive: bool) -> tuple[Op, Op, list[Op], Op] | None:
    """(store, load, what computes the value, the later loop) of the first that can be sunk."""
    pairs = (
        _between(block, touched, early, late, expensive)
        for block in walk_blocks(function.body) if (groups := same_range_loops(block))
        for touched in (Touched(block),) for group in groups
        for early, late in combinations(group, 2)
    )  # fmt: skip
    return next((found for found in pairs if found is not None), None)


def _between(
    block: Block, touched: Touched, early: int, late: int, expensive: bool
) -> tuple[Op, Op, list[Op], Op] | None:
    first, last = block.ops[early], block.ops[late]
    ops = first.body.ops
    for store in ops:
        if store.name != "memref.store":
            continue
        memref, at, (value,) = memory(store)
        later = touched.at(late, memref)
        if [o.name for o in later] != ["memref.load", "memref.store"]:
            continue
        own = [o for o in touched.at(early, memref) if o is not store]
        iv, later_iv = For(first).index, For(last).index
        before = ops[: ops.index(store)]
        if any(o not in before or o.name != "memref.load" or memory(o)[1] != at for o in own):
            continue
        if touched.within(memref, early + 1, late - 1):
            continue
        if any(o not in last.body.ops for o in later):
            continue
        if any(v.owner in ops for v in at) or not all(
            same_place(at, iv, memory(o)[1], later_iv) for o in later
        ):
            continue
        changed = touched.changed(early, late) - {memref}
        needed = _needed(value, first, changed)
        if needed is None:
            continue
        there = set(ValueNumbers(last, lambda m, c=changed: m not in c).matched(first))
        again = [o for o in needed if o.result not in there]
        if len(again) <= _LONGEST and (
            expensive or not any(is_expensive(o, first.body) for o in again)
        ):
            return store, later[0], needed, last
    return None


def _needed(value: Value, loop: Op, changed: Collection[Value]) -> list[Op] | None:
    """The operations in the body of ``loop`` that compute ``value``; None if no other loop can."""
    carried = set(For(loop).carried)

    def can(op: Op) -> bool:
        read = op.name == "memref.load" and memory(op)[0] not in changed
        return (read or OPS[op.name].pure) and not op.regions and carried.isdisjoint(op.operands)

    return None if value in carried else slice_of(value, loop.body, can)


class _Sinker(Rewriter):
    def __init__(self, stored: Op, loaded: Op, needed: list[Op], loop: Op) -> None:
        super().__init__()
        self.stored, self.loaded, self.needed = stored, loaded, needed
        self.iv = For(loop).index

    def rewrite(self, op: Op) -> None:
        if op is self.stored:
            return
        if op is not self.loaded:
            super().rewrite(op)
            return
        _, at, (value,) = memory(self.stored)
        early = next(v for v, w in zip(at, memory(op)[1], strict=True) if w is self.iv)
        saved = dict(self.replacement)
        self.replacement[early] = self.lookup(self.iv)
        for inner in self.needed:
            super().rewrite(inner)
        saved[op.result] = self.lookup(value)
        self.replacement = saved

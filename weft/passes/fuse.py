"""Loop fusion: what loops of the same iterations do, in one of them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.views import For, constant_of, memory
from weft.ir.writes import written
from weft.passes.same_range_loops import (
    ValueNumbers,
    may_reuse_memory,
    same_place,
    same_range_loops,
    touches,
    walk_blocks,
)
from weft.schedule.combiners import combiners, is_joint


def fuse(function: Function) -> Function:
    """Two loops over one range, one behind the other, become one, at the place of the earlier or of
    the later, where nothing in between stands against it and both load the same elements.

    Threads that share rows then combine what both loops carry at once, and wait once; a row that
    registers do not hold is read once less. Iterations of either may go in any order: a loop whose
    turns need each other stays alone. The bits of what is carried are as they were.
    Precondition: a verified function after ``merge_updates``, ``cse`` and ``dce``; arguments do not
    overlap.
    Non-goals: loops with loops in them; loops from a number to a number, which are written out.
    """
    if not may_reuse_memory(function):
        return function
    while (found := _first(function)) is not None:
        function = found.function(function)
    return function


def _first(function: Function) -> _Fuser | None:
    for block in walk_blocks(function.body):
        for group in same_range_loops(block):
            group = [k for k in group if _may(block.ops[k])]
            for n, late in enumerate(group):
                for early in group[:n]:
                    found = _fused(block, early, late)
                    if found is not None:
                        return found
    return None


def _may(loop: Op) -> bool:
    if loop.attrs or constant_of(For(loop).upper) is not None:
        return False
    if any(kind is None or is_joint(kind) for kind in combiners(loop).kinds):
        return False
    inside = [*walk(loop.body)]
    reached = [op for op, _ in touches(loop)]
    plain = all(op.name in ("memref.load", "memref.store") for op in reached)
    return plain and not any(op.name in ("scf.for", "scf.while", "memref.alloca") for op in inside)


def _fused(block: Block, early: int, late: int) -> _Fuser | None:
    first, last = block.ops[early], block.ops[late]
    between = block.ops[early + 1 : late]
    one, other = _accesses(first), _accesses(last)
    if not any(x.name == y.name == "memref.load" and _alike(x, first, y, last)
               for x in one for y in other):  # fmt: skip
        return None
    if not all(_alike(x, first, y, last) for x in one for y in other
               if memory(x)[0] is memory(y)[0] and "memref.store" in (x.name, y.name)):  # fmt: skip
        return None
    if _apart(other, between) and (ahead := _needed(last, first, between)) is not None:
        return _Fuser(first, last, ahead, first)
    used = {v for op in (*between, last) for inner in below(op) for v in inner.operands}
    if _apart(one, between) and used.isdisjoint(first.results):
        return _Fuser(first, last, [], last)
    return None


def _accesses(loop: Op) -> list[Op]:
    return [op for op, _ in touches(loop)]


def _alike(x: Op, loop: Op, y: Op, other: Op) -> bool:
    """Whether two accesses are to one element in iterations with one index, else to others."""
    (memref, at, _), (there, at_there, _) = memory(x), memory(y)
    return memref is there and same_place(at, For(loop).index, at_there, For(other).index)


def _apart(own: Sequence[Op], between: Sequence[Op]) -> bool:
    """Whether a loop with these accesses may go past what stands ``between``."""
    seen = {memory(op)[0] for op in own}
    changed = written(own)
    return not any(
        memref in changed or (memref in seen and op.name != "memref.load")
        for o in between for op, memref in touches(o)
    )  # fmt: skip


def _needed(loop: Op, first: Op, between: Sequence[Op]) -> list[Op] | None:
    """What of ``between`` computes what ``loop`` uses; None if that cannot stand before ``first``,
    another loop."""
    makers = {v: op for op in (first, *between) for v in op.results}
    left = [v for inner in below(loop) for v in inner.operands]
    needed: set[Op] = set()
    while left:
        op = makers.get(left.pop())
        if op is None or op in needed:
            continue
        if op.regions or not OPS[op.name].pure:
            return None
        needed.add(op)
        left += op.operands
    return [op for op in between if op in needed]


class _Fuser(Rewriter):
    """``ahead``: what is computed in front of ``first``. ``place``: the loop, of both, in whose
    place they are."""

    def __init__(self, first: Op, last: Op, ahead: Sequence[Op], place: Op) -> None:
        super().__init__()
        self.loops, self.ahead, self.place = (first, last), ahead, place

    def rewrite(self, op: Op) -> None:
        if op is self.place:
            for moved in self.ahead:
                super().rewrite(moved)
            self.fused()
        elif op not in self.loops and op not in self.ahead:
            super().rewrite(op)

    def fused(self) -> None:
        first, last = (For(op) for op in self.loops)
        self.span = first.op.span
        inits = [self.lookup(v) for v in (*first.inits, *last.inits)]
        lower, upper, step = map(self.lookup, first.bounds)
        loop = self.for_(lower, upper, step, inits)
        iv, *carried = loop.body.args
        for new, old in zip(
            (iv, *carried), (first.index, *first.carried, *last.carried), strict=True
        ):
            new.name = old.name
        count = len(first.inits)

        changed = {m for op in self.loops for x, m in touches(op) if x.name != "memref.load"}
        equal = ValueNumbers(first.op, lambda m: m not in changed).matched(last.op)

        def body() -> list[Value]:
            ends = self.inline(first.op.body, [iv, *carried[:count]])
            self.stand_for([last.index, *last.carried], [iv, *carried[count:]])
            for op in last.op.body.ops[:-1]:
                if op.results and op.results[0] in equal:
                    self.replacement[op.results[0]] = self.lookup(equal[op.results[0]])
                else:
                    self.rewrite(op)
            return [*ends, *map(self.lookup, last.yielded)]

        self.fill(loop.body, body)
        self.stand_for([*first.op.results, *last.op.results], loop.results)

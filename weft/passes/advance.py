"""Loads in front of loops that nobody waits for meanwhile."""

from __future__ import annotations

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.views import memory
from weft.passes.same_range_loops import may_reuse_memory, touches, walk_blocks

_MOST = 4  # loads of a block, each of which takes a register meanwhile


def advance(function: Function) -> Function:
    """What an iteration loads behind its loops, of arguments that nothing writes and at subscripts
    that are known before (the target of a cross entropy, and the element there), it loads in front
    of them: nobody waits for memory once more, behind the loops.

    Precondition: a verified function after ``cse``; arguments do not overlap.
    Non-goals: loads in branches, which may not be carried out.
    """
    if not may_reuse_memory(function):
        return function
    written = {m for op in function.body.ops for x, m in touches(op) if x.name != "memref.load"}
    constant = {*function.args} - written
    plan = {loop: moved for block in walk_blocks(function.body)
            for loop, moved in _early(block, constant).items()}  # fmt: skip
    return _Advance(plan).function(function) if plan else function


def _early(block: Block, constant: set[Value]) -> dict[Op, list[Op]]:
    """What may stand in front of each loop of a block: of the first one loads, of the next one
    loads at subscripts that were loaded there."""
    loops = [op for op in block.ops if op.name == "scf.for"]
    if not loops:
        return {}
    behind = block.ops[block.ops.index(loops[0]) :]
    late = {v for op in behind for v in op.results}  # less what may be there before
    able: dict[Value, Op] = {}
    ready: dict[Value, int] = {}  # the loop that a value may stand in front of
    loads: list[Op] = []
    for place, op in enumerate(behind):
        read = op.name == "memref.load" and memory(op)[0] in constant
        if op.regions or not (read or OPS[op.name].pure) or not late.isdisjoint(op.operands):
            continue
        at = max((ready[v] + (able[v] in loads) for v in op.operands if v in able), default=0)
        if at < len(loops) and place > behind.index(loops[at]):
            late -= {*op.results}
            able[op.result], ready[op.result] = op, at
            loads += [op] if read else []
    needed: set[Op] = set()
    left = loads[:_MOST]
    while left:
        op = left.pop()
        needed.add(op)
        left += [able[v] for v in op.operands if v in able]
    return {loop: [op for op in behind if op in needed and ready[op.result] == k]
            for k, loop in enumerate(loops)}  # fmt: skip


class _Advance(Rewriter):
    def __init__(self, plan: dict[Op, list[Op]]) -> None:
        super().__init__()
        self.plan = plan
        self.moved = {op for ops in plan.values() for op in ops}

    def rewrite(self, op: Op) -> None:
        for early in self.plan.get(op, ()):
            super().rewrite(early)
        if op not in self.moved:
            super().rewrite(op)

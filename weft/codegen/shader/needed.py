"""Which operations a shader has: those with effects, and those whose results are used.

Schedules leave copies of subscripts behind that no access has, and loads of four neighbours have
one place for them all. Compilers drop such code, but a driver reads it first.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.codegen.shader.runs import Place
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.views import memory


def needed(function: Function, joined: Mapping[Op, Place]) -> set[Op]:
    """The operations of ``function`` that are printed. ``joined``: see ``runs``."""
    found = _Needed(joined)
    found.block(function.body)
    return found.ops


class _Needed:
    """A walk from the end: what uses a value comes after what makes it. What a loop or a branch
    hands on is taken to be used."""

    def __init__(self, joined: Mapping[Op, Place]) -> None:
        self.joined = joined
        self.ops: set[Op] = set()
        self.values: set[Value] = set()

    def block(self, block: Block) -> None:
        for op in reversed(block.ops):
            row = OPS[op.name]
            removable = op.name == "memref.load" or (row.pure and not row.terminator)
            if removable and self.values.isdisjoint(op.results):
                continue
            self.ops.add(op)
            for region in reversed(op.regions):
                self.block(region)
            self.values.update(self.used(op))

    def used(self, op: Op) -> list[Value]:
        """What ``op`` takes: of four neighbours, the first is the one that has a place."""
        place = self.joined.get(op)
        if place is None or place.run[0] is op:
            return op.operands
        if op.name == "memref.load":
            return [place.run[0].result]
        return list(memory(op)[2])

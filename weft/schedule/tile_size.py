"""How much code vector loops (``register_tile``) are.

An operation is written once for each of its instances that differ; a serial loop whose bounds
differ between lanes twice, those inside it four times; likewise a branch with a loop in it.
"""

from __future__ import annotations

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import For, If
from weft.schedule.variation import Variation


def tile_size(function: Function) -> int:
    """The operations of one lane or all that are written of the vector loops of ``function``."""
    loops = [op for op in walk(function.body) if "vector" in op.attrs]
    return sum(_Size(op).block(op.body, masked="masked" in op.attrs) for op in loops)


class _Size:
    """``op`` as ``codegen.lanes`` writes it."""

    def __init__(self, op: Op) -> None:
        self.jam, copies, width = op.attrs["vector"]
        self.vectors = copies // width
        *rows, column = op.body.args
        self.down = Variation(op.body, dict.fromkeys(rows, 1), masked=True)
        self.along = Variation(op.body, {column: 1}, beside=self.down)

    def block(self, block: Block, *, masked: bool) -> int:
        return sum(self.op(op, masked=masked) for op in block.ops[:-1])

    def op(self, op: Op, *, masked: bool) -> int:
        if op.name == "scf.for":
            ragged = sum(map(self.ragged, For(op).bounds[:2]))
            whole = self.block(op.body, masked=masked)
            return whole + (ragged and ragged * self.block(op.body, masked=True))
        if op.name == "scf.if":
            then, other = If(op).then, If(op).otherwise
            part = self.block(then, masked=True) + self.block(other, masked=True)
            loops = any(inner.name == "scf.for" for inner in walk(then))
            return part if masked or not loops else part + self.block(then, masked=False)
        return max(map(self.instances, op.results or op.operands), default=1)

    def instances(self, value: Value) -> int:
        rows = 1 if self.down.uniform(value) else self.jam
        return rows * (self.vectors if self.along.slope(value) is None else 1)

    def ragged(self, bound: Value) -> bool:
        return self.along.slope(bound) != 0 or not self.down.uniform(bound)

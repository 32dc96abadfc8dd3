"""Loops out of branches: all threads of a block come by a loop that only some of them carry out.

A branch that computes nothing but a loop, and what may be computed anywhere, is no branch: where it
is not taken, the loop has no iterations.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below
from weft.ir.ops import DIVISIONS, OPS
from weft.ir.types import i1
from weft.ir.views import For, If
from weft.schedule.spmd import Threads


def anywhere(op: Op) -> bool:
    """Whether ``op`` has no effect, reads no memory and divides nothing."""
    return all(
        (OPS[inner.name].pure and inner.name not in DIVISIONS)
        or inner.name in ("scf.if", "scf.yield")
        for inner in below(op)
    )  # fmt: skip


def exposed(body: Block, loops: Collection[Op]) -> set[Op]:
    """What all threads come by of an iteration with this ``body``, once ``loops`` are exposed."""
    found = {*body.ops}
    for op in body.ops:
        if _is_guard(op, loops):
            found |= {inner for region in op.regions for inner in region.ops}
    return found


def _is_guard(op: Op, loops: Collection[Op]) -> bool:
    inside = [inner for region in op.regions for inner in region.ops[:-1]]
    return (
        op.name == "scf.if" and any(inner in loops for inner in inside)
        and all(inner in loops or (not inner.regions and anywhere(inner)) for inner in inside)
    )  # fmt: skip


def expose(function: Function, parallel: Op) -> tuple[Function, Op]:
    """``function`` with the marked loops of ``parallel`` exposed, and its loop that was
    ``parallel``."""
    loops = [op for op in _arms(parallel.body) if "team" in op.attrs and op.name == "scf.for"]
    guards = {op for op in parallel.body.ops if _is_guard(op, loops)}
    if not guards:
        return function, parallel
    made = _Exposing(function, guards).function(function)
    return made, made.body.ops[function.body.ops.index(parallel)]


def _arms(body: Block) -> list[Op]:
    return [inner for op in body.ops if op.name == "scf.if" for r in op.regions for inner in r.ops]


class _Exposing(Threads):
    def __init__(self, function: Function, guards: Collection[Op]) -> None:
        super().__init__(function)
        self.guards = guards
        self.taken: Value | None = None  # whether the branch would be, of which a loop is exposed

    def entered(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op in self.guards:
            return self.guard(op)
        return self.loop_of(op, self.taken) if self.taken is not None else None

    def guard(self, op: Op) -> list[Value]:
        """Both arms, of which one has no iterations."""
        condition = self.lookup(If(op).condition)
        ends: list[list[Value]] = []
        for k, region in enumerate(op.regions):
            self.taken = condition
            if k:
                self.taken = self.op("arith.xori", condition, self.constant(True, i1))
            ends.append(self.inline(region, []))
        self.taken = None
        return [
            self.op("arith.select", condition, yes, no, type=yes.type)
            for yes, no in zip(*ends, strict=True)
        ]  # fmt: skip

    def loop_of(self, op: Op, taken: Value) -> list[Value]:
        loop = self.copy(op)
        lower, upper, step = For(loop).bounds
        upper = self.op("arith.select", taken, upper, lower, type=lower.type)
        loop.operands = [lower, upper, step, *For(loop).inits]
        self.taken = None
        self.region(op.body, loop.body)
        self.taken = taken
        return self.append(loop).results

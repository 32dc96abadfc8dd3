"""Loads in front of loops that would load the same element at every turn.

A driver does not move them: to it, an array that is only read may be another name of one that the
loop writes. Where the loop may have no turn, place 0 is loaded instead, which every buffer has.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType
from weft.ir.views import For, constant_of, memory, surely_less
from weft.ir.writes import written

_MOST = 16  # elements that are loaded in front of a loop: each takes a register as long as it runs
_ENDS = ("weft.assert", "weft.bounds")


def early_loads(function: Function) -> Function:
    """``function``, what a thread of a shader runs, with loads in front of loops. Those in branches
    stay, and all where a check may end the thread before."""
    found = _Plan(function)
    return _Early(found).function(function) if found.loads else function


class _Plan:
    """``loads``: of a loop, those that go in front of it, each with the loops it leaves, the
    outermost first."""

    def __init__(self, function: Function) -> None:
        changed = written(function)
        self.read = {v for v in function.args if isinstance(v.type, MemRefType)} - set(changed)
        self.loads: dict[Op, list[tuple[Op, Sequence[Op]]]] = {}
        self.inside: dict[Op, set[Value]] = {}
        self.places: dict[Op, set[tuple[Any, ...]]] = {}
        if self.read and not any(op.name in _ENDS for op in walk(function.body)):
            self.block(function.body, ())

    def block(self, block: Block, around: Sequence[Op]) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                self.block(op.body, (*around, op))
            elif op.name == "memref.load" and around and memory(op)[0] in self.read:
                self.load(op, around)
            for region in op.regions if op.name != "scf.for" else ():
                self.block(region, ())

    def made_in(self, loop: Op) -> set[Value]:
        found = self.inside.get(loop)
        if found is None:
            found = self.inside[loop] = set(loop.body.args)
            for op in walk(loop.body):
                found.update(op.results, *(region.args for region in op.regions))
        return found

    def load(self, op: Op, around: Sequence[Op]) -> None:
        needed, target = list(memory(op)[1]), len(around)
        for k in range(len(around) - 1, -1, -1):
            inside = self.made_in(around[k])
            if not all(_movable(v, inside) for v in needed):
                break
            target = k
            needed += For(around[k]).bounds[:2]
        if target < len(around):
            loop = around[target]
            places = self.places.setdefault(loop, set())
            memref, subscripts, _ = memory(op)
            numbers = [v if (n := constant_of(v)) is None else n for v in subscripts]
            place = memref, op.attrs.get("offset", 0), *numbers
            if place in places or len(places) < _MOST:  # copies of a turn load the same
                places.add(place)
                self.loads.setdefault(loop, []).append((op, around[target:]))


def _movable(value: Value, inside: Set[Value]) -> bool:
    """Whether pure operations make ``value`` of what is not inside."""
    if value not in inside:
        return True
    op = value.op
    if op is None or op.regions or not OPS[op.name].pure or len(op.results) != 1:
        return False
    return all(_movable(v, inside) for v in op.operands)


class _Early(Rewriter):
    def __init__(self, plan: _Plan) -> None:
        super().__init__(None, self.entered)
        self.plan = plan
        self.moved: set[Op] = set()

    def rewrite(self, op: Op) -> None:
        if op not in self.moved:
            super().rewrite(op)

    def entered(self, op: Op, rewriter: Rewriter) -> None:
        known: dict[Value, Value] = {}
        for load, loops in self.plan.loads.get(op, ()):
            self.early(load, loops, self.plan.made_in(op), known)

    def early(
        self, load: Op, loops: Sequence[Op], inside: Set[Value], known: dict[Value, Value]
    ) -> None:
        places = {v: self.in_front(v, inside, known) for v in memory(load)[1]}
        runs: Value | None = None
        for loop in loops if places else ():
            lower, upper, _ = (self.in_front(v, inside, known) for v in For(loop).bounds)
            if not surely_less(lower, upper):
                some = self.op("arith.cmpi", lower, upper, predicate="slt")
                runs = some if runs is None else self.op("arith.andi", runs, some)
        for old, place in places.items():
            if runs is not None and constant_of(place) != 0:
                places[old] = self.op("arith.select", runs, place, self.number(0, place))
        copy = self.copied(load, lambda v: places.get(v) or self.lookup(v))
        self.replacement[load.result] = copy.result
        self.moved.add(load)

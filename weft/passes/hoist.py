"""Loop-invariant code motion."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import DIVISIONS, OPS
from weft.ir.views import constant_of, loop_of, memory, surely_less
from weft.passes.memory import is_local, may_alias, writes
from weft.values import mutable

_LOOPS = ("scf.for", "scf.while", "scf.parallel")


def hoist(function: Function) -> Function:
    """Moves what every iteration would compute alike in front of the loop.

    Precondition: a verified function.
    A pure operation goes in front of the outermost loop that its operands do not depend on, also
    out of ifs on the way, but never out of an if alone: it would be computed in vain where the
    condition is false. Integer divisions go only if the divisor is a constant that cannot trap.
    Loads go if nothing in the loop may write the memref, and if they cannot fault: from arguments
    of rank 0, from local arrays with constant subscripts, and any load that the loop is certain to
    execute (a constant, positive number of iterations, not inside an if, nothing before it that
    may stop the kernel or wait).
    An assertion that each iteration of a loop makes alike, with nothing before it that may stop the
    kernel, wait or print, goes in front of the loop, where it also asks whether there is an
    iteration: in the loop it would keep iterations from being lanes of vectors.
    Non-goals: whole ifs and loops; sinking; stores.
    """
    return _Nest(function).function(function)


@mutable
class _Loop:
    """A loop around the current operation."""

    op: Op
    before: Block  # the block that the loop will be appended to
    changed: list[Value]  # the memrefs that are written in it
    certain: bool  # what comes next in the body is executed whenever the loop is reached
    always: bool = True  # it is in each iteration, which nothing before it may end


class _Nest(Rewriter):
    def __init__(self, function: Function) -> None:
        super().__init__(self._visit, around=self._around)
        self.loops: list[_Loop] = []
        # The number of loops that a value changes with; 0 where there is no entry.
        self.level: dict[Value, int] = {}
        self.writes = writes(function)
        self.noalias = bool(function.attrs.get("noalias"))
        # Operations so far that may stop the kernel, print, or not come to an end: in how many
        # loops each is left.
        self.stops: list[int] = []

    def stop(self, depth: int) -> None:
        self.stops.append(depth)
        self.nothing_is_certain(depth)

    def nothing_is_certain(self, depth: int | None = None) -> None:
        for loop in self.loops[:depth]:
            loop.certain = loop.always = False

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        loops, level = self.loops, self.level
        depth = len(loops)
        if not depth or OPS[op.name].terminator:
            return None
        target = depth
        if OPS[op.name].pure:
            if op.name not in DIVISIONS or _cannot_trap(op):
                target = _invariant_level(op.operands, level)
        elif op.name == "memref.load":
            target = _load_level(op, self)
        elif op.name == "weft.assert":
            return self._assertion(op)
        elif op.name in ("weft.bounds", "weft.print"):
            self.stop(depth)
        for result in op.results:
            level[result] = target
        if target == depth:
            return None
        loops[target].before.ops.append(op)
        return op.results

    def _assertion(self, op: Op) -> Sequence[Value] | None:
        loops, level = self.loops, self.level
        depth = target = len(loops)
        needed, ends = _invariant_level(op.operands, level), list[tuple[Value, Value]]()
        while target > needed and loops[target - 1].always:
            loop = loops[target - 1].op
            if loop.name == "scf.while":
                break
            if not _surely_runs(loop):
                ends += ((lower, upper) for lower, upper, _ in loop_of(loop).axes)
                needed = max(needed, *(_invariant_level(pair, level) for pair in ends))
            target -= 1
        self.stop(target)
        if target == depth:
            return None
        with self.at(loops[target].before), self.about(op.span):
            values = iter(op.operands)
            ok = next(values)
            for lower, upper in ends:
                none = self.op("arith.cmpi", lower, upper, predicate="sge")
                ok = self.op("arith.ori", none, ok)
                level.update({none: target, ok: target})
            self.append(Op(op.name, [ok, *values], (), op.attrs))
        return ()

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value]:
        copy = self.copy(op)
        loops = self.loops
        certain = [(loop.certain, loop.always) for loop in loops]
        stops = len(self.stops)
        is_loop = op.name in _LOOPS
        if is_loop:
            changed = [self.lookup(memref) for memref in self.writes[op]]
            loops.append(_Loop(copy, self.block, changed, _surely_runs(copy)))
        for position, (old, new) in enumerate(zip(op.regions, copy.regions, strict=True)):
            if op.name == "scf.if" or position == 1:  # the body of a while is not certain to run
                self.nothing_is_certain()
            for arg in new.args:
                self.level[arg] = len(loops)
            self.region(old, new)
        if is_loop:
            loops.pop()
        if op.name == "scf.while":
            self.stop(len(loops))
        inside = max(self.stops[stops:], default=0)
        self.nothing_is_certain(inside)
        for loop, before in zip(loops[inside:], certain[inside:], strict=True):
            loop.certain, loop.always = before
        for result in copy.results:
            self.level[result] = len(loops)
        return self.append(copy).results


def _invariant_level(operands: Sequence[Value], level: dict[Value, int]) -> int:
    highest = 0
    for operand in operands:
        found = level.get(operand, 0)
        if found > highest:
            highest = found
    return highest


def _cannot_trap(op: Op) -> bool:
    divisor = constant_of(op.right)
    # The least integer divided by -1 traps as well.
    return divisor is not None and divisor not in (0, -1)


def _load_level(op: Op, nest: _Nest) -> int:
    """How many loops a load must stay in."""
    memref, target = memory(op)[0], len(nest.loops)
    invariant = _invariant_level(op.operands, nest.level)
    safe = _cannot_fault(op)
    while target > invariant:
        loop = nest.loops[target - 1]
        if not (safe or loop.certain):
            break
        if any(may_alias(memref, other, nest.noalias) for other in loop.changed):
            break
        target -= 1
    return target


def _cannot_fault(op: Op) -> bool:
    memref, subscripts, _ = memory(op)
    if not subscripts:
        return True
    if not is_local(memref):
        return False
    shape = memref.memref.shape
    assert shape is not None
    numbers = [constant_of(s) for s in subscripts]
    return all(
        number is not None and 0 <= number < extent
        for number, extent in zip(numbers, shape, strict=True)
    )


def _surely_runs(loop: Op) -> bool:
    """True if the first region is entered at least once."""
    if loop.name == "scf.while":
        return True
    return all(surely_less(lower, upper) for lower, upper, _ in loop_of(loop).axes)

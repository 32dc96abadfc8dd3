"""Dead code."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.views import For, If, Parallel, loop_of, written_by
from weft.passes.memory import is_local

# Kept whatever is in them: a while may not end, and a function has its parallel loop.
_KEPT = ("scf.parallel", "scf.while")


def dce(function: Function, own: Collection[Value] = ()) -> Function:
    """Removes what has no effect and gives nothing that is used.

    Precondition: a verified function. ``own``: its arguments at which nobody looks afterwards.
    Removed are: operations without effects, loads and local arrays that are not used; stores to and
    atomics on local arrays, and ``own``, that are never read; values that a ``scf.for`` carries for
    themselves only; unused results of ``scf.if``, ``scf.for`` and ``scf.parallel``; ifs and for
    loops in which nothing is left. Gives ``function`` itself if all of it is alive.
    Non-goals: removing a ``scf.while`` (it may not end) or a ``scf.parallel``; stores to arguments
    that are overwritten later.
    """
    alive = _Alive(function, own)
    if alive.is_everything():
        return function
    return _Sweep(alive).function(function)


class _Alive:
    """The operations and values of a function that matter, found from its effects backwards."""

    def __init__(self, function: Function, own: Collection[Value]) -> None:
        self.own = own
        self.ops: set[Op] = set()
        self.values: set[Value] = set()
        self.parent: dict[Op | Block, Op | None] = {function.body: None}
        # What writes each array of its own: alive as soon as the array is read.
        self.writers: dict[Value, list[Op]] = {}
        self.removable = 0  # operations that could die
        self.optional: list[Value] = []  # results of operations with regions that could
        self.todo: list[Value] = []
        effects: list[Op] = []
        self._survey(function.body, None, effects)
        for op in effects:
            self._mark_effect(op)
        while self.todo:
            self._mark_value(self.todo.pop())

    def is_everything(self) -> bool:
        return len(self.ops) == self.removable and self.values.issuperset(self.optional)

    def _survey(self, block: Block, parent: Op | None, effects: list[Op]) -> None:
        for op in block.ops:
            name = op.name
            row = OPS[name]
            self.removable += not row.terminator
            if op.regions:
                self.optional += op.results
                self.parent[op] = parent
                for region in op.regions:
                    self.parent[region] = op
                    self._survey(region, op, effects)
                if name in _KEPT:
                    effects.append(op)
            elif row.pure or name in ("memref.load", "memref.alloca"):
                continue
            elif row.terminator:
                # What the other terminators hand on is alive one by one.
                if parent is not None and parent.name == "scf.while":
                    self.todo += op.operands
            else:
                self.parent[op] = parent
                target = written_by(op)  # is that all that it writes?
                if target is None or not (is_local(target) or target in self.own):
                    effects.append(op)
                else:
                    self.writers.setdefault(target, []).append(op)

    def _mark_effect(self, op: Op) -> None:
        """``op`` matters, and so do the operations that it is in."""
        self._mark_op(op)
        parent = self.parent[op]
        while parent is not None and parent not in self.ops:
            self._mark_op(parent)
            parent = self.parent[parent]

    def _mark_op(self, op: Op) -> None:
        if op in self.ops:
            return
        self.ops.add(op)
        if op.name in ("scf.for", "scf.parallel"):
            for bounds in loop_of(op).axes:
                self.todo += bounds
        elif op.name != "memref.dim" or op.operand not in self.own:  # which reads nothing of it
            self.todo += op.operands

    def _mark_value(self, value: Value) -> None:
        if value in self.values:
            return
        self.values.add(value)
        owner = value.owner
        for op in self.writers.pop(value, ()):
            self._mark_effect(op)
        if isinstance(owner, Block):
            op = self.parent[owner]
            if op is not None and op.name == "scf.for" and value is not owner.args[0]:
                self._mark_carried(op, owner.args.index(value) - 1)
            return
        assert owner is not None
        if owner.regions:
            self._mark_region_result(owner, owner.results.index(value))
        else:
            self._mark_op(owner)
            if owner in self.parent:  # an atomic on a local array, whose old value is used
                self._mark_effect(owner)

    def _mark_region_result(self, op: Op, position: int) -> None:
        self._mark_op(op)
        if op.name == "scf.for":
            self._mark_carried(op, position)
        elif op.name == "scf.if":
            self.todo += If(op).arms(position)
        elif op.name == "scf.parallel":
            self.todo += Parallel(op).inits[position], Parallel(op).contributions[position]

    def _mark_carried(self, op: Op, position: int) -> None:
        self._mark_op(op)
        loop = For(op)
        self.todo += loop.carried[position], loop.inits[position]
        self.todo += loop.yielded[position], op.results[position]


class _Sweep(Rewriter):
    """Rebuilds what is alive."""

    def __init__(self, alive: _Alive) -> None:
        super().__init__()
        self.alive = alive

    def rewrite(self, op: Op) -> None:
        if op not in self.alive.ops and not OPS[op.name].terminator:
            return
        dead = [k for k, v in enumerate(op.results) if v not in self.alive.values]
        if op.regions and dead and op.name != "scf.while":
            self._narrow(op, set(dead))
        else:
            super().rewrite(op)

    def _narrow(self, op: Op, dead: set[int]) -> None:
        """Rebuilds a for, if or parallel without some of its results."""
        copy = self.copy(op)
        for old, new in zip(op.regions, copy.regions, strict=True):
            self.region(old, new)
            new.terminator.operands = _without(new.terminator.operands, dead)
        if op.name == "scf.for":
            loop = For(copy)
            copy.operands = [*loop.bounds, *_without(loop.inits, dead)]
            copy.body.args = [loop.index, *_without(loop.carried, dead)]
        elif op.name == "scf.parallel":
            *ranges, inits = Parallel(copy).split(copy.operands)
            copy.operands = [*chain(*ranges), *_without(inits, dead)]
            copy.attrs["kinds"] = tuple(_without(copy.attrs["kinds"], dead))
        copy.results = _without(copy.results, dead)
        self.append(copy)
        alive = [v for k, v in enumerate(op.results) if k not in dead]
        self.replacement.update(zip(alive, copy.results, strict=True))


def _without(items: Sequence[Any], dead: set[int]) -> list[Any]:
    return [item for k, item in enumerate(items) if k not in dead]

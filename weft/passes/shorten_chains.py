"""Extrema of several integers, taken with what the turn before gives last."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, defined, walk
from weft.ir.ops import OPS
from weft.ir.views import For, memory
from weft.passes.memory import offset_of

_KINDS = {"arith.minsi", "arith.maxsi", "arith.minui", "arith.maxui"}


def shorten_chains(function: Function) -> Function:
    """``d[j] = min(min(d[j] + 1, d[j - 1] + 1), p)``, in a ``scf.for`` over ``j``: each turn waits
    for ``d[j - 1]``, which the one before stored. The minimum of the others is taken first, so that
    turns wait for one operation of each other, not for two. Integers are the same in any order.

    What comes from the turn before is what a load reads that a store of the loop wrote in an
    earlier turn, one subscript being ahead, and carried values that are made of extrema.

    Precondition: a verified function, best after ``cse``. Non-goals: floats, whose order NaN and
    -0.0 tell; loops around loops.
    """
    chosen: dict[Op, list[Value]] = {}
    for op in walk(function.body):
        if op.name == "scf.for":
            chosen |= _chains(op)
    return _Shorter(chosen).function(function) if chosen else function


def _chains(loop: Op) -> dict[Op, list[Value]]:
    """The last operation of each chain that gets another order, with what it is taken of, in
    that."""
    ops, users = loop.body.ops, dict[Value, list[Op]]()
    extrema = [op for op in ops if op.name in _KINDS]
    if not any(v.op in extrema for op in extrema for v in op.operands):
        return {}
    for op in walk(loop.body):
        for value in op.operands:
            users.setdefault(value, []).append(op)

    def inner(value: Value, kind: str) -> bool:
        """Whether ``value`` is a part of a longer chain, and nothing else."""
        op = value.op
        return op is not None and op in extrema and op.name == kind and len(users[value]) == 1

    def leaves(op: Op) -> list[Value]:
        return [v for operand in op.operands for v in (
            leaves(operand.op) if operand.op is not None and inner(operand, op.name) else [operand]
        )]  # fmt: skip

    late, found = _late(loop), dict[Op, list[Value]]()
    for op in extrema:
        user = users.get(op.result, [])
        if len(user) == 1 and user[0] in extrema and user[0].name == op.name:
            continue
        before = leaves(op)
        after = sorted(before, key=lambda v: v in late)  # others stay in their order
        if len(before) > 2 and any(v in late for v in before) and after != before:
            found[op] = after
    return found


def _late(loop: Op) -> set[Value]:
    """The values of a turn that depend on what the turn before computed."""
    body = loop.body
    late = {op.result for op in body.ops if op.name == "memref.load" and _stored_before(loop, op)}
    pairs = zip(For(loop).carried, For(loop).yielded, strict=True)
    late |= {carried for carried, following in pairs if _of_extrema(body, following)}
    for op in body.ops:
        if OPS[op.name].pure and any(v in late for v in op.operands):
            late |= {*op.results}
    return late


def _stored_before(loop: Op, load: Op) -> bool:
    """Whether an earlier turn has stored what ``load`` reads."""
    array, subscripts, _ = memory(load)
    for op in loop.body.ops:
        if op.name == "memref.store" and memory(op)[0] is array:
            pairs = [(r, w) for r, w in zip(subscripts, memory(op)[1], strict=True) if r is not w]
            if len(pairs) == 1:
                (base, read), (other, written) = map(offset_of, pairs[0])
                if base is other is For(loop).index and written > read:
                    return True
    return False


def _of_extrema(body: Block, value: Value) -> bool:
    """Whether the turn makes ``value`` of an extremum."""
    inside, open_, seen = defined([body]), [value], set[Value]()
    while open_:
        op = (one := open_.pop()).op
        if op is None or one not in inside or one in seen:
            continue
        if op.name in _KINDS:
            return True
        seen.add(one)
        open_ += op.operands if OPS[op.name].pure else ()
    return False


class _Shorter(Rewriter):
    def __init__(self, chosen: dict[Op, list[Value]]) -> None:
        super().__init__()
        self.chosen = chosen

    def rewrite(self, op: Op) -> None:
        if op not in self.chosen:
            super().rewrite(op)
            return
        with self.about(op.span or self.span):
            values: Sequence[Value] = [self.lookup(v) for v in self.chosen[op]]
            self.stand_for(op.results, [reduce(lambda a, b: self.op(op.name, a, b), values)])

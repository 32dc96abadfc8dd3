"""One exponential for two numbers that are shifted by one of them."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import Select, made_by

_NAMES = ("math.exp", "math.exp2")


def share_exponentials(function: Function) -> Function:
    """Where ``m`` is one of ``p`` and ``q``, as ``max(p, q)`` is, one of ``exp(p - m)`` and
    ``exp(q - m)`` is 1, and the other the exponential of a difference of both: it is computed once.

    So a running softmax (flash attention, RWKV, ``logaddexp``) has one exponential a step for two.
    Bits are as they were: 1 is written ``m - m + 1``, which is NaN where ``m`` is infinite or NaN.

    Precondition: a verified function after cse, which makes ``m`` one value.
    Non-goals: exponentials of different blocks; more than two numbers.
    """
    if sum(op.name in _NAMES for op in walk(function.body)) < 2:
        return function
    return Rewriter(_Shared()).function(function)


class _Shared:
    """``first``: exponentials of a difference with a choice, by that and what it is taken from."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, Value, Value], Op] = {}

    def __call__(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op.name not in _NAMES:
            return None
        difference = made_by(op.operand, "arith.subf")
        chosen = difference and made_by(difference.right, "arith.select")
        if not difference or not chosen:
            return None
        choice = Select(chosen)
        condition, both = choice.condition, [choice.yes, choice.no]
        if difference.left not in both:
            return None
        mine = both.index(difference.left)
        other = self.first.get((op.name, chosen.result, both[1 - mine]))
        place = other and _place(other, rewriter.block)
        if other is None or place is None or both[0] is both[1]:
            rewriter.append(op)
            self.first[op.name, chosen.result, difference.left] = op
            return op.results
        inner = Block()
        with rewriter.at(inner):
            apart = [rewriter.op("arith.subf", *pair) for pair in (both[::-1], both)]
            shift = rewriter.op("arith.select", condition, *apart)
            shared = rewriter.op(op.name, shift)
            nothing = rewriter.op("arith.subf", chosen.result, chosen.result)
            one = rewriter.op("arith.addf", nothing, rewriter.constant(1.0, op.result.scalar))
        rewriter.block.ops[place:place] = inner.ops
        arms = [[one, shared], [shared, one]]  # of the first number, of the second
        other.name, other.operands = "arith.select", [condition, *arms[1 - mine]]
        return [rewriter.op("arith.select", condition, *arms[mine])]


def _place(op: Op, block: Block) -> int | None:
    """Where ``op`` is in ``block``; None if it is elsewhere."""
    places = range(len(block.ops) - 1, -1, -1)  # what belongs together is near
    return next((k for k in places if block.ops[k] is op), None)

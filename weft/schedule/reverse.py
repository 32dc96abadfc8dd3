"""Loop reversal: turns of a serial loop go from the last to the first.

Neighbouring threads whose loops begin one after the other and end together then read the same
element of a row at each turn, as those do that begin together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.views import For


def reverse(function: Function, parallel: Op, loops: Collection[Op]) -> tuple[Function, Op]:
    """``function``, in which ``loops`` of ``parallel``, whose turns go by one and may go in any
    order, go backwards, and its loop that was ``parallel``."""
    work = _Backwards(loops)
    place = function.body.ops.index(parallel)
    made = work.function(function)
    return made, made.body.ops[place]


class _Backwards(Rewriter):
    def __init__(self, loops: Collection[Op]) -> None:
        super().__init__(None, self._around)
        self.loops = loops

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op not in self.loops:
            return None
        loop = For(op)
        lower, upper, step = map(self.lookup, loop.bounds)
        count = self.trip_bound(lower, upper, step)
        last = self.subi(upper, self.constant(1, upper.scalar))
        inits = list(map(self.lookup, loop.inits))
        made = self.for_(self.constant(0, lower.scalar), count, step, inits, **op.attrs)
        number, *carried = made.body.args
        number.name = loop.index.name
        self.fill(made.body, lambda: self.inline(op.body, [self.subi(last, number), *carried]))
        return list(made.results)

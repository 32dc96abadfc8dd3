"""Interleave: turns of a serial loop that need each other in sums alone are carried out together.

Each operation of a turn stands beside that of the turns behind it, so that there is always one
that waits for no result, and what a turn loads last does not wait for what another one stores
first. Sums keep their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.views import For
from weft.schedule.unroll import turns

TOGETHER = "interleave"  # attribute of a loop: so many of its turns need each other in sums alone


def interleave(function: Function) -> Function:
    """``function``, in which turns of the loops that have the attribute are carried out together,
    where these loops have no others inside, and as many turns as several of them are."""

    def around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        many = op.attrs.get(TOGETHER, 1)
        if many == 1 or turns(op) % many or any(o.regions for o in op.body.ops):
            return None
        return _Loop(op, many, rewriter).made()

    return Rewriter(around=around).function(function)


class _Loop:
    """``sums``: the additions that carry a sum on. ``handed``: what else a turn hands on, by what
    it was handed for it. ``lanes``: of each turn what stands for values of the old one."""

    def __init__(self, op: Op, many: int, rewriter: Rewriter) -> None:
        self.op, self.many, self.r = op, many, rewriter
        loop, inside = For(op), {*op.body.ops}
        used = Counter(v for o in inside for v in o.operands)
        self.sums: dict[Op, Value] = {}
        self.handed: dict[Value, Value] = {}
        for carried, given in zip(loop.carried, loop.yielded, strict=True):
            add = given.op if given.op in inside else None
            alone = used[carried] == used[given] == 1
            if add and add.name == "arith.addf" and carried in add.operands and alone:
                self.sums[add] = carried
            else:
                self.handed[carried] = given
        self.lanes: list[dict[Value, Value]] = [{} for _ in range(many)]

    def made(self) -> list[Value] | None:
        loop, r, body = For(self.op), self.r, self.op.body.ops
        for carried in {v for o in body[:-1] for v in o.operands} & self.handed.keys():
            for _ in range(self.many - 1):  # no turn asks for what one before it finds out
                carried = self.handed.get(carried, carried)
            if carried not in self.handed:
                return None
        lower, upper, step = map(r.lookup, loop.bounds)
        inits = list(map(r.lookup, loop.inits))
        attrs = {k: v for k, v in self.op.attrs.items() if k != TOGETHER}
        attrs["unroll"] = max(self.op.attrs.get("unroll", 1) // self.many, 1)
        step = r.number(self.many, step)  # where they go by one
        made = r.for_(lower, upper, step, inits, **attrs)
        block = made.body
        self.first = dict(zip((loop.index, *loop.carried), block.args, strict=True))
        with r.at(block):
            for k, lane in enumerate(self.lanes):
                index = block.args[0]
                lane[loop.index] = r.addi(index, r.number(k, index)) if k else index
            for op in body[:-1]:
                for k, lane in enumerate(self.lanes):
                    copy = r.copied(op, lambda v, k=k: self.value(k, v))
                    lane.update(zip(op.results, copy.results, strict=True))
                    if op in self.sums:  # which the turn behind it begins with
                        self.first[self.sums[op]] = copy.result
            r.do("scf.yield", *(self.value(self.many - 1, v) for v in loop.yielded))
        return made.results

    def value(self, k: int, value: Value) -> Value:
        """What stands for ``value`` in the turn ``k``."""
        if value in self.handed:
            return self.value(k - 1, self.handed[value]) if k else self.first[value]
        return self.lanes[k].get(value) or self.first.get(value) or self.r.lookup(value)

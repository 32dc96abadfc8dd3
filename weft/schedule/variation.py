"""How values vary from one iteration of a loop to the next: the analysis that schedules ask.

Along an index a value is uniform, affine (it grows by the same number each time), monotone, or
varying. These are one domain: the interval of what it may grow by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from copy import copy
from math import inf
from typing import NamedTuple

from weft.ir.core import Block, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import Type, i64, index
from weft.ir.views import For, If, constant_of, memory


class Growth(NamedTuple):
    """From an iteration to the next one a value grows by ``low`` to ``high``."""

    low: float
    high: float


UNIFORM, VARYING = Growth(0, 0), Growth(-inf, inf)


def _hull(a: Growth, b: Growth) -> Growth:
    return Growth(min(a.low, b.low), max(a.high, b.high))


_ARITHMETIC: dict[str, Callable[..., Growth]] = {
    "arith.addi": lambda a, b: Growth(a.low + b.low, a.high + b.high),
    "arith.subi": lambda a, b: Growth(a.low - b.high, a.high - b.low),
    "arith.minsi": _hull,
    "arith.maxsi": _hull,
    "arith.index_cast": lambda a: a,
    "arith.extsi": lambda a: a,
    "arith.muli": lambda a, n: Growth(*sorted((a.low * n, a.high * n))),
}


class Variation:
    """How the values of a loop's ``body`` vary along ``indices``, which grow by the given numbers
    (None: by unknown ones). What comes from outside is uniform.

    Iterations are thought to run side by side: a serial loop inside has one index for all of them,
    whatever its bounds. ``divergent`` holds the loops and branches that they do not all run, or not
    equally often; what is carried through these varies.
    """

    def __init__(
        self, body: Block, indices: Mapping[Value, int | None], *,
        changing: Set[Value] = frozenset(), masked: bool = False, beside: Variation | None = None,
        exact: tuple[Type, ...] = (index, i64), whole: Set[Op] = frozenset(),
        rule: Callable[[Variation, Op], Growth | None] | None = None,
    ) -> None:  # fmt: skip
        """``changing``: memory of which one element may hold different numbers for different
        iterations. ``masked``: what is computed inside of divergent loops and branches varies, but
        for constants and sizes. ``beside``: the variation along another index, where what diverges
        does so here too. ``exact``: types of integers that do not wrap around, besides those of
        ``indices``. ``whole``: branches whose first arm all iterations take, in these
        arms. ``rule``: the growth of an operation's results where it is not the usual."""
        self.divergent: set[Op] = set()
        self._changing, self._masked, self._beside = changing, masked, beside
        self._whole = whole
        self._masks: set[Op] = set()  # branches that stand where iterations part
        self._exact, self._rule = (*exact, *(value.type for value in indices)), rule
        self._growth = {
            value: VARYING if step is None else Growth(step, step)
            for value, step in indices.items()
        }
        self._settle(body, divergent=False)

    def _settle(self, block: Block, *, divergent: bool) -> None:
        self._again = True  # something that a loop carries was found to vary
        while self._again:
            self._again = False
            self._block(block, divergent=divergent)

    def where_taken(self, branch: Op, beside: Variation | None = None) -> Variation:
        """The same inside of the first arm of ``branch``, where all iterations take that."""
        found, then = copy(self), If(branch).then
        inside = set(walk(then))
        args = {v for op in inside for region in op.regions for v in region.args}
        found._beside = beside
        found.divergent, found._masks = self.divergent - inside, self._masks - inside
        found._growth = {
            v: growth for v, growth in self._growth.items() if v not in args and v.op not in inside
        }
        found._settle(then, divergent=branch in self._masks)
        return found

    # -- what is asked

    def growth(self, value: Value) -> Growth:
        return self._growth.get(value, UNIFORM)

    def uniform(self, *values: Value) -> bool:
        """Whether these are the same in all iterations."""
        return self._growth.keys().isdisjoint(values)

    def slope(self, value: Value) -> int | None:
        """What an affine value grows by, 0 if it is uniform; None for others."""
        found = self.growth(value)
        return int(found.low) if found.low == found.high else None

    def direction(self, value: Value) -> int:
        """1 if a value that is not uniform never falls, -1 if it never grows, else 0."""
        found = self.growth(value)
        return 0 if found == UNIFORM else 1 if found.low >= 0 else -1 if found.high <= 0 else 0

    def ends(self, condition: Value) -> frozenset[int] | None:
        """Of iterations in a row, those in which ``condition`` has to hold so that it does in all:
        the first (0), the last (-1), both, or none where it is uniform; None: all may have to."""
        op = condition.op
        if op is None or self.uniform(condition):
            return frozenset() if self.uniform(condition) else None
        if op.name == "arith.andi":
            sides = [self.ends(v) for v in op.operands]
            known = [s for s in sides if s is not None]
            return frozenset().union(*known) if len(known) == len(sides) else None
        if op.name != "arith.cmpi":
            return None
        left, right = map(self.growth, op.operands)
        rises, falls = left.low >= right.high, left.high <= right.low
        match op.attrs["predicate"]:
            case "sge" | "sgt" if rises or falls:
                return frozenset({0 if rises else -1})
            case "sle" | "slt" if rises or falls:
                return frozenset({-1 if rises else 0})
            case "eq" if rises or falls:
                return frozenset({0, -1})
            case _:
                return None

    def steepness(self, value: Value) -> float:
        """By how much a value grows or falls at most."""
        found = self.growth(value)
        return max(abs(found.low), abs(found.high))

    def stride(self, access: Op) -> int | None:
        """By how many elements of a row a load or store moves; None where that is not one number,
        or it moves from row to row."""
        memref, subscripts, _ = memory(access)
        if self.uniform(*subscripts):
            return 0
        if not memref.memref.row_major or not self.uniform(*subscripts[:-1]):
            return None
        return self.slope(subscripts[-1])

    def common(self, op: Op) -> bool:
        """Whether ``op``, without regions, gives the same in all iterations that run it."""
        known = OPS[op.name].pure or (
            op.name == "memref.load" and memory(op)[0] not in self._changing
        )
        return known and self.uniform(*op.operands)

    # -- the walk

    def _note(self, values: list[Value], growth: Growth) -> None:
        if growth != UNIFORM:
            self._growth.update(dict.fromkeys(values, growth))

    def _block(self, block: Block, *, divergent: bool) -> None:
        for op in block.ops:
            if op.name == "scf.for":
                self._loop(op, divergent=divergent)
            elif op.name == "scf.if":
                self._masks |= {op} if divergent else set()
                apart = self._diverges(op, [If(op).condition], divergent=divergent)
                for region in op.regions:
                    self._block(region, divergent=apart)
                for k, result in enumerate(op.results):
                    if apart or op in self._whole or not self.uniform(*If(op).arms(k)):
                        self._note([result], VARYING)
            elif op.regions:
                for region in op.regions:
                    self._note(region.args, VARYING)
                    self._block(region, divergent=True)
                self._note(op.results, VARYING)
            else:
                self._note(op.results, self._result(op, divergent=divergent))

    def _loop(self, op: Op, *, divergent: bool) -> None:
        loop = For(op)
        apart = self._diverges(op, loop.bounds, divergent=divergent)
        if not self.uniform(loop.step):
            self._note([loop.index], VARYING)
        self._block(op.body, divergent=apart)
        for row in loop.rows:
            if apart or not self.uniform(*row):
                self._again |= self.growth(row[0]) != VARYING
                self._note([row[0], row[3]], VARYING)

    def _diverges(self, op: Op, on: list[Value] | tuple[Value, ...], *, divergent: bool) -> bool:
        if divergent or (op not in self._whole and not self.uniform(*on)):
            self.divergent.add(op)
        beside = self._beside is not None and op.name == "scf.for" and op in self._beside.divergent
        return beside or op in self.divergent

    def _result(self, op: Op, *, divergent: bool) -> Growth:
        found = self._rule(self, op) if self._rule is not None else None
        if found is not None:
            return found
        if divergent and self._masked and op.name not in ("arith.constant", "memref.dim"):
            return VARYING
        if self.common(op):
            return UNIFORM
        follow = _ARITHMETIC.get(op.name)
        if follow is None or not all(v.type in self._exact for v in (op.result, *op.operands)):
            return VARYING
        if op.name != "arith.muli":
            return follow(*map(self.growth, op.operands))
        for factor, other in ((op.left, op.right), (op.right, op.left)):
            number = constant_of(factor)
            if number:  # an infinity times zero is no number
                return follow(self.growth(other), number)
        return VARYING

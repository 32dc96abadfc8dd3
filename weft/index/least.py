"""The least value of an integer at a point of a function, by what loops, conditions and the values
that loops carry say. Cheaper than index sets, and it follows what these do not: a `while` loop's
counter, integers in local arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from weft.index.facts import Fact, Points, is_wide, says, sides
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import ScalarType
from weft.ir.views import If, Parallel, Select, While, accessed_by, constant_of, loop_of, memory

UNKNOWN = -math.inf
MOST = 1_500  # values looked at for one question
DEPTH = 60


class Least:
    """Answers for one function."""

    def __init__(self, function: Function, points: Points | None = None) -> None:
        self._written = functools.cache(lambda: _stores(function.body))
        self._points = points or Points(function)
        self._assumed: dict[Value, float] = {}  # of what is being proved, of carried values, arrays
        self._known: dict[Value, float] = {}  # of carried values and arrays
        self._left = 0

    def at(self, value: Value, op: Op) -> float:
        """A number that ``value`` is not less than where ``op`` uses it; ``UNKNOWN`` if none is
        found."""
        self._left = MOST
        return self._least(value, [*self._points.facts(op)], 0)

    # --- values -----------------------------------------------------------------------------------
    def _least(self, value: Value, facts: list[Fact], depth: int) -> float:
        self._left -= 1
        if self._left < 0 or depth > DEPTH:
            return UNKNOWN
        number = constant_of(value)
        if number is not None:
            return int(number) if not isinstance(number, float) else UNKNOWN
        found = self._made(value, facts, depth + 1)
        base, offset = self._points.split(value)
        differs: set[float] = set()
        for fact in facts:
            for kind, this, other in sides(fact):
                of, extra = self._points.split(this)
                if of is not base:
                    continue
                # base + extra is `kind` than other, so value is that than other + offset - extra.
                if kind == "ne":
                    number = constant_of(other)
                    differs |= {number + offset - extra} if number is not None else set()
                    continue
                least = self._least(other, _without(facts, fact), depth + 1)
                found = max(found, least + offset - extra + (kind == "sgt"))
        while found in differs:
            found += 1
        return found

    def _made(self, value: Value, facts: list[Fact], depth: int) -> float:
        """By how ``value`` is made."""
        if not isinstance(value.type, ScalarType):
            return UNKNOWN
        op = value.op
        if op is None:
            return self._argument(value, facts, depth)
        match op.name:
            case "scf.for" | "scf.while":
                return self._argument(value, facts, depth)
            case "scf.if":
                branch = If(op)
                arms = zip((branch.then, branch.otherwise), branch.arms(op.results.index(value)),
                           strict=True)  # fmt: skip
                return min(self._least(v, [*facts, *self._points.facts(region.terminator)], depth)
                           for region, v in arms)  # fmt: skip
            case "arith.select":
                choice = Select(op)
                taken = ((choice.yes, True), (choice.no, False))
                return min(self._least(v, [*facts, *says(choice.condition, holds)], depth)
                           for v, holds in taken)  # fmt: skip
            case "memref.dim" | "math.absi" | "math.ctpop" | "arith.extui":
                return 0
            case "arith.index_cast" | "arith.extsi" if is_wide(value):
                return self._least(op.operand, facts, depth)
            case "arith.table" if not value.type.is_float:
                return min(op.attrs["values"])
            case "memref.load":
                return self._loaded(op)
            case _:
                return self._computed(op, facts, depth) if is_wide(value) else UNKNOWN

    def _computed(self, op: Op, facts: list[Fact], depth: int) -> float:
        if op.name not in _ARITHMETIC:
            return UNKNOWN
        a, b = op.operands
        if op.name == "arith.subi":
            return self._difference(a, b, facts, depth)
        left = self._least(a, facts, depth)
        if (quotient := _quotient(op.result)) is not None:
            return _divided(left, quotient[1])
        match op.name:
            case "arith.muli" if constant_of(b) == -1:
                return self._difference(None, a, facts, depth)
            case "arith.andi" if left >= 0:
                return 0
            case "arith.remsi" | "arith.shrsi":
                return 0 if left >= 0 else UNKNOWN
            case _:
                right = self._least(b, facts, depth)
        match op.name:
            case "arith.addi":
                return max(left + right, self._sum(a, b, facts, depth))
            case "arith.muli":
                return left * right if min(left, right) >= 0 else UNKNOWN
            case "arith.minsi":
                return min(left, right)
            case "arith.maxsi":
                return max(left, right)
            case "arith.andi":
                return 0 if right >= 0 else UNKNOWN
            case _:  # floordivsi
                return 0 if left >= 0 and right >= 0 else UNKNOWN

    def _sum(self, a: Value, b: Value, facts: list[Fact], depth: int) -> float:
        """Of ``3 + k * -1``: the form of an index that counts down."""
        for x, y in ((a, b), (b, a)):
            made = y.op
            if made is not None and made.name == "arith.muli" and constant_of(made.right) == -1:
                return self._difference(x, made.left, facts, depth)
        return UNKNOWN

    def _difference(self, a: Value | None, b: Value, facts: list[Fact], depth: int) -> float:
        """Of ``a - b``, or of ``-b``."""
        number = constant_of(b)
        if number is not None:
            return (0 if a is None else self._least(a, facts, depth)) - number
        if a is not None and (by := _divisor(a, b)) is not None:  # a remainder
            if self._least(by, facts, depth) >= 1:
                return 0
            return 0 if min(self._least(v, facts, depth) for v in (a, by)) >= 0 else UNKNOWN
        least = 0 if a is None else self._least(a, facts, depth)
        found = max(least - _most(b), self._beyond_quotient(a, b, least, facts, depth))
        base, offset = self._points.split(b)
        to, extra = (None, 0) if a is None else self._points.split(a)
        for fact in facts:
            for kind, this, other in sides(fact):
                of, more = self._points.split(other)
                if of is not base or kind == "ne":
                    continue
                # this >= base + more (+ 1), so a - b >= a - this + more - offset (+ 1).
                gain = more - offset + (kind == "sgt")
                top, above = self._points.split(this)
                limit = constant_of(top)
                if to is not None and top is to:
                    found = max(found, extra - above + gain)
                elif limit is not None:
                    start = 0 if a is None else self._least(a, _without(facts, fact), depth)
                    found = max(found, start - limit - above + gain)
        return found

    def _beyond_quotient(
        self, a: Value | None, b: Value, least: float, facts: list[Fact], depth: int
    ) -> float:
        """Of ``a - b``, ``a`` being ``least`` or more, where ``b`` is a quotient and a number: by
        what is divided."""
        base, offset = self._points.split(b)
        quotient = _quotient(base)
        if quotient is None or depth > DEPTH:
            return UNKNOWN
        divided, by = quotient
        # divided <= most, so floor(divided / by) <= floor(most / by).
        most = -self._difference(None, divided, facts, depth + 1)
        found = least - offset + -_divided(most, by)
        to, extra = (b, 0) if a is None else self._points.split(a)
        other = None if a is None else _quotient(to)
        if other is not None and other[1] == by:  # floor(x + n * by) is floor(x) + n
            apart = self._difference(other[0], divided, facts, depth + 1)
            found = max(found, _divided(apart, by) + extra - offset)
        return found

    # --- what loops carry, and arrays -----------------------------------------------------------
    def _argument(self, value: Value, facts: list[Fact], depth: int) -> float:
        """Of an index, a carried value, or the result of a loop."""
        if value in self._assumed:
            return self._assumed[value]
        loop = self._points.maker(value)
        if loop is not None and loop.name == "scf.while":
            return self._of_while(value, loop, facts, depth)
        if loop is None or loop.name not in ("scf.for", "scf.parallel"):
            return UNKNOWN
        view = loop_of(loop)
        for iv, (lower, _, step) in zip(view.indices, view.axes, strict=True):
            if iv is value:
                return self._least(lower, facts, depth) if (constant_of(step) or 0) > 0 else UNKNOWN
        if isinstance(view, Parallel):
            return UNKNOWN
        for carried, init, yielded, result in view.rows:
            if value is carried or value is result:
                return self._carried(carried, init, yielded, loop, view.op.body.terminator, depth)
        return UNKNOWN

    def _of_while(self, value: Value, loop: Op, facts: list[Fact], depth: int) -> float:
        view = While(loop)
        before, after = view.before, view.after
        if value in before.args:
            k = before.args.index(value)
            yielded = after.terminator.operands[k]
            return self._carried(value, loop.operands[k], yielded, loop, after.terminator, depth)
        inside = value in after.args
        k = (after.args if inside else loop.results).index(value)
        here = [*facts, *says(view.condition, inside), *self._points.facts(before.terminator)]
        return self._least(view.handed[k], here, depth)

    def _carried(
        self, value: Value, init: Value, yielded: Value, loop: Op, end: Op, depth: int
    ) -> float:
        """Of what a loop carries: what it is at first and what an iteration hands on, if that is
        not less where it was not less."""
        if value in self._known:
            return self._known[value]
        if value in self._assumed:
            return self._assumed[value]
        first = self._least(init, [*self._points.facts(loop)], depth)
        facts = [*self._points.facts(end)]
        return self._inductive(value, first, lambda: self._least(yielded, facts, depth))

    def _loaded(self, load: Op) -> float:
        """Of an element of an array of the iteration: the least of what is stored in it."""
        memref = memory(load)[0]
        if memref in self._known:
            return self._known[memref]
        if memref in self._assumed:
            return self._assumed[memref]
        writes = self._written().get(memref)
        if writes is None:
            return UNKNOWN

        def least() -> float:
            found = math.inf
            for op in writes:
                (value,) = memory(op)[2]
                found = min(found, self._least(value, [*self._points.facts(op)], DEPTH // 2))
                if found == UNKNOWN:
                    break
            return found

        return self._inductive(memref, math.inf, least)

    def _inductive(self, value: Value, first: float, following: Callable[[], float]) -> float:
        """The largest of a few bounds that holds at first, and of ``following`` if it held
        before."""
        outermost = not self._assumed
        found = UNKNOWN
        for bound in dict.fromkeys((first, 1.0, 0.0, -1.0)):
            if bound == UNKNOWN or bound == math.inf or bound > first:
                continue
            self._assumed[value] = bound
            holds = following() >= bound
            del self._assumed[value]
            if holds:
                found = bound
                break
        if outermost:
            self._known[value] = found
        return found


_ARITHMETIC = (
    "arith.addi", "arith.subi", "arith.muli", "arith.floordivsi", "arith.remsi", "arith.andi",
    "arith.minsi", "arith.maxsi", "arith.shrsi",
)  # fmt: skip


def _stores(body: Block) -> dict[Value, list[Op]]:
    """The stores into each array of an iteration of integers that nothing else writes; no
    others."""
    found: dict[Value, list[Op]] = {}
    other: set[Value] = set()
    for op in walk(body):
        if op.name == "memref.alloca" and op.result.memref.element.is_integer:
            found[op.result] = []
        elif op.name == "memref.store":
            found.get(memory(op)[0], []).append(op)
        elif op.name != "memref.load":
            touched = accessed_by(op)
            other.update([touched] if touched is not None else op.operands)
    return {memref: stores for memref, stores in found.items() if memref not in other}


def _divisor(a: Value, b: Value) -> Value | None:
    """By what ``a`` is divided where ``a - b`` is the remainder."""
    product = b.op
    if product is None or product.name != "arith.muli":
        return None
    quotient = product.left.op
    if quotient is None or quotient.name != "arith.floordivsi" or quotient.left is not a:
        return None
    return product.right if quotient.right is product.right else None


def _quotient(value: Value) -> tuple[Value, int] | None:
    """What ``value`` is the quotient of, rounded down, and the positive number it is divided by."""
    op = value.op
    if op is None or not is_wide(value) or op.name not in ("arith.floordivsi", "arith.shrsi"):
        return None
    by = constant_of(op.right)
    if op.name == "arith.shrsi":
        by = 1 << int(by) if by is not None and 0 <= by < 63 else None
    return (op.left, int(by)) if by is not None and by > 0 else None


def _divided(value: float, by: int) -> float:
    """``value``, a bound, divided and rounded down."""
    return value if math.isinf(value) else value // by


def _most(value: Value) -> float:
    """What a remainder, or what is left of some bits, is at most."""
    op = value.op
    if op is None or not is_wide(value):
        return math.inf
    match op.name:
        case "arith.subi" if (by := _divisor(*op.operands)) is not None:
            number = constant_of(by)
            return math.inf if number is None or number <= 0 else number - 1
        case "arith.andi":
            masks = [n for v in op.operands if (n := constant_of(v)) is not None and n >= 0]
            return min(masks, default=math.inf)
        case _:
            return math.inf


def _without(facts: list[Fact], fact: Fact) -> list[Fact]:
    return [f for f in facts if f is not fact]

"""Which subscripts with quotients make whole vectors, where numbers of a call are multiples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.core import Block, Op, Value
from weft.ir.types import SCALARS, i1
from weft.ir.views import constant_of, memory
from weft.ir.writes import written
from weft.schedule.variation import UNIFORM, Growth, Variation
from weft.values import frozen, remembered


@frozen
class Common:
    """What a number of neighbours have in common from a multiple of that number on, in calls in
    which each of ``multiples`` is such a multiple and each of ``divisors`` is positive."""

    shared: frozenset[Op]  # quotients that are the same for all of them
    whole: frozenset[Op]  # loads and stores of elements side by side, from a multiple on
    multiples: tuple[Value, ...]
    divisors: tuple[Value, ...]


def common(
    body: Block, iv: Value, lower: Value, count: int, given: Callable[[Value], bool]
) -> Common | None:
    """How ``count`` neighbours (a power of two) along ``iv``, which begins at ``lower`` and goes
    by one, read and write whole vectors; None where a call cannot make them.

    ``given``: whether a call's sizes and numbers alone decide a value. (With a and b multiples of
    n, (a + k) // b is the same for 0 <= k < n, and (a + k) % b is k more than a % b.)
    """
    return _Lines(iv, lower, count, given).of(body)


_ONE = Growth(1, 1)
_DIVISIONS = {
    "arith.floordivsi": UNIFORM, "arith.remsi": _ONE, "arith.shrsi": UNIFORM, "arith.andi": _ONE,
}  # fmt: skip


class _Refused(Exception):
    """A call cannot make this even."""


class _Lines:
    def __init__(self, iv: Value, lower: Value, count: int, given: Callable[[Value], bool]) -> None:
        self.iv, self.lower, self.count, self.given = iv, lower, count, given
        self.divisors: set[Value] = set()
        self.needs: dict[Op, frozenset[Value]] = {}  # multiples, for what is said of the result

    def of(self, body: Block) -> Common | None:
        integers = [t for t in SCALARS.values() if t.is_integer and t is not i1]
        along = Variation(
            body, {self.iv: 1}, changing=written(body), exact=tuple(integers), rule=self._divided
        )
        whole: set[Op] = set()
        needs: frozenset[Value] = frozenset()
        gained = False
        for op in body.ops:
            if op.name not in ("memref.load", "memref.store"):
                continue
            stride = along.stride(op)
            if stride not in (0, 1) or (op.name == "memref.store" and stride == 0):
                return None
            _, at, _ = memory(op)
            more = frozenset[Value]().union(*map(self._needed, at))
            if stride == 1:
                try:
                    more |= self._multiple(at[-1])
                    whole.add(op)
                except _Refused:
                    if op.name == "memref.store":
                        return None
            needs |= more
            gained |= op.name == "memref.load" and bool(more)
        if not gained:
            return None
        shared = frozenset(
            op for op in body.ops
            if len(op.results) == 1 and along.uniform(op.result) and not along.uniform(*op.operands)
            and self._needed(op.result) <= needs
        )  # fmt: skip
        divisors = tuple(v for v in needs if v in self.divisors)
        return Common(shared, frozenset(whole), tuple(needs), divisors)

    def _needed(self, value: Value) -> frozenset[Value]:
        """What has to be multiples for what is said of a value."""
        op = value.op
        if op is None:
            return frozenset()
        if op not in self.needs:
            self.needs[op] = frozenset[Value]().union(*map(self._needed, op.operands))
        return self.needs[op]

    def _divided(self, along: Variation, op: Op) -> Growth | None:
        """The growth of quotients and remainders, where the divisor can be a multiple."""
        if op.name not in _DIVISIONS or along.slope(op.left) != 1 or not along.uniform(op.right):
            return None
        try:
            needs = self._multiple(op.left) | self._needed(op.left) | self._needed(op.right)
            if op.name in ("arith.floordivsi", "arith.remsi"):
                needs |= self._divisor(op.right)
            elif not self._power(op.right, shift=op.name == "arith.shrsi"):
                return None
        except _Refused:
            return None
        self.needs[op] = needs
        return _DIVISIONS[op.name]

    def _divisor(self, value: Value) -> frozenset[Value]:
        number = _constant(value)
        if number is not None:
            if number <= 0 or number % self.count:
                raise _Refused
            return frozenset()
        if not self.given(value):
            raise _Refused
        self.divisors.add(value)
        return frozenset((value,))

    def _power(self, value: Value, *, shift: bool) -> bool:
        """Whether a constant shift or mask stands for a power of two that is a multiple."""
        number = _constant(value)
        if number is None or not 0 <= number < 1 << 31:
            return False
        power = 1 << min(number, 31) if shift else number + 1
        return power & (power - 1) == 0 and power % self.count == 0

    def _multiple(self, value: Value) -> frozenset[Value]:
        """What has to be multiples for ``value`` to be one, for the first of the neighbours.

        Numbers that wrap around stay multiples: they do at a power of two."""
        found = self._found(value)
        if found is None:
            raise _Refused
        return found

    @remembered
    def _found(self, value: Value) -> frozenset[Value] | None:
        try:
            return self._of(value)
        except _Refused:
            return None

    def _of(self, value: Value) -> frozenset[Value]:
        if value is self.iv:
            return self._multiple(self.lower)
        number = _constant(value)
        if number is not None:
            if number % self.count:
                raise _Refused
            return frozenset()
        if self.given(value):
            return frozenset((value,))
        op = value.op
        if op is None:
            raise _Refused
        match op.name:
            case "arith.addi" | "arith.subi" | "arith.remsi":
                return self._multiple(op.left) | self._multiple(op.right)
            case "arith.index_cast" | "arith.extsi":
                return self._multiple(op.operand)
            case "arith.muli":
                return self._one_multiple(op.operands)
            case "arith.shli" if self._power(op.right, shift=True):
                return frozenset()
            case "arith.andi" if self._power(op.right, shift=False):
                return self._multiple(op.left)
            case _:
                raise _Refused

    def _one_multiple(self, factors: Sequence[Value]) -> frozenset[Value]:
        found: list[frozenset[Value]] = []
        for factor in factors:
            try:
                found.append(self._multiple(factor))
            except _Refused:
                continue
        if not found:
            raise _Refused
        return min(found, key=len)


def _constant(value: Value) -> int | None:
    number = constant_of(value)
    return int(number) if isinstance(number, int) else None

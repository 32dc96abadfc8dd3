"""What neighbouring iterations of a parallel loop have in common. It only reads the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.ir.core import Block, Op, Value
from weft.ir.views import constant_of, memory


def quotients(body: Block, iv: Value) -> set[Op]:
    """Divisions ``a // b`` whose dividend grows by one with ``iv`` and whose divisor is a number
    that is not known before the call."""
    slopes: dict[Value, int | None] = {iv: 1}  # of what depends on iv; None: not a straight line
    found: set[Op] = set()
    for op in body.ops:
        known = [slopes.get(v, 0) for v in op.operands]
        if not any(v in slopes for v in op.operands):
            continue
        slope: int | None = None
        match op.name, known:
            case "arith.addi", [int(a), int(b)]:
                slope = a + b
            case "arith.subi", [int(a), int(b)]:
                slope = a - b
            case "arith.index_cast", [int(a)]:
                slope = a
            case "arith.floordivsi", [1, _] if op.right not in slopes:
                if op.right.op not in body.ops and constant_of(op.right) is None:
                    found.add(op)
            case _:
                pass
        slopes.update(dict.fromkeys(op.results, slope))
    return found


def _distance(value: Value, iv: Value) -> int | None:
    """``value - iv`` where that is a number that can be read off."""
    if value is iv:
        return 0
    op = value.op
    if op is None or op.name not in ("arith.addi", "arith.subi"):
        return None
    for a, b in ((op.left, op.right), (op.right, op.left))[: 2 if op.name == "arith.addi" else 1]:
        number = constant_of(b)
        if a is iv and number is not None:
            return int(number) if op.name == "arith.addi" else -int(number)
    return None


def whole_vectors(body: Block, iv: Value, k: int, limits: Mapping[Value, int]) -> dict[Op, int]:
    """Loads and stores of ``body`` that are at multiples of the bytes in ``limits`` (by memref) at
    iteration ``iv + k``, if rows begin at such multiples and ``iv`` counts whole vectors."""
    found = {}
    for op in body.ops:
        if op.name not in ("memref.load", "memref.store"):
            continue
        memref, subscripts, _ = memory(op)
        limit = limits.get(memref)
        if limit is None:
            continue
        distance = _distance(subscripts[-1], iv) if subscripts else None
        if distance is not None and (distance + k) * memref.memref.element.bytes % limit == 0:
            found[op] = limit
    return found


# -- what a call may promise


@dataclass(frozen=True, slots=True)
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


class _Refused(Exception):
    """A call cannot make this even."""


class _Lines:
    def __init__(self, iv: Value, lower: Value, count: int, given: Callable[[Value], bool]) -> None:
        self.iv, self.lower, self.count, self.given = iv, lower, count, given
        self.slopes: dict[Value, int | None] = {iv: 1}  # of what differs, or is not known, along iv
        self.needs: dict[Value, frozenset[Value]] = {iv: frozenset()}  # multiples, for the slope
        self.divisors: set[Value] = set()
        self.shared: dict[Op, frozenset[Value]] = {}

    def of(self, body: Block) -> Common | None:
        whole: set[Op] = set()
        needs: frozenset[Value] = frozenset()
        gained = False
        for op in body.ops[:-1]:
            if op.name not in ("memref.load", "memref.store"):
                self._follow(op)
                continue
            found = self._access(op)
            if op.name == "memref.load":
                self.slopes[op.result] = None
            if found is None:
                return None
            more, side_by_side = found
            needs |= more
            if side_by_side:
                whole.add(op)
            gained |= op.name == "memref.load" and bool(more)
        if not gained:
            return None
        shared = frozenset(op for op, more in self.shared.items() if more <= needs)
        divisors = tuple(v for v in needs if v in self.divisors)
        return Common(shared, frozenset(whole), tuple(needs), divisors)

    def _access(self, op: Op) -> tuple[frozenset[Value], bool] | None:
        """What has to be multiples for a load or store, and whether it is of elements side by side
        from a multiple on; None where it cannot be."""
        memref, at, _ = memory(op)
        slopes = [self.slopes.get(v, 0) for v in at]
        needs = frozenset[Value]().union(*(self.needs.get(v, frozenset()) for v in at))
        if not any(slope != 0 for slope in slopes):  # one element, for all of them
            return (needs, False) if op.name == "memref.load" else None
        if any(k != 0 for k in slopes[:-1]) or slopes[-1] != 1 or memref.memref.layout == "strided":
            return None
        try:
            return needs | self._multiple(at[-1]), True
        except _Refused:
            return (needs, False) if op.name == "memref.load" else None

    def _follow(self, op: Op) -> None:
        """Notes the slope of an operation's result."""
        if not any(v in self.slopes for v in op.operands):
            return
        known = [self.slopes.get(v, 0) for v in op.operands]
        needs = frozenset[Value]().union(*(self.needs.get(v, frozenset()) for v in op.operands))
        slope: int | None = None
        try:
            match op.name, known:
                case "arith.addi", [int(a), int(b)]:
                    slope = a + b
                case "arith.subi", [int(a), int(b)]:
                    slope = a - b
                case (("arith.index_cast" | "arith.extsi"), [int(a)]):
                    slope = a
                case "arith.floordivsi", [1, 0]:
                    needs |= self._multiple(op.left) | self._divisor(op.right)
                    slope = 0
                case "arith.remsi", [1, 0]:
                    needs |= self._multiple(op.left) | self._divisor(op.right)
                    slope = 1
                case "arith.shrsi", [1, 0] if self._power(op.right, shift=True):
                    needs |= self._multiple(op.left)
                    slope = 0
                case "arith.andi", [1, 0] if self._power(op.right, shift=False):
                    needs |= self._multiple(op.left)
                    slope = 1
                case name, _ if not any(k != 0 for k in known):
                    slope = 0 if name.startswith(("arith.", "math.")) else None
                case _:
                    pass
        except _Refused:
            slope = None
        for result in op.results:
            self.slopes[result] = slope
            self.needs[result] = needs
        if slope == 0 and any(known):
            self.shared[op] = needs

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

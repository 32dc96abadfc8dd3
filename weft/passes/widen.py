"""Integer arithmetic in narrow integers and in floats as index arithmetic, where it is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import ScalarType, index
from weft.ir.views import constant_of, loop_of
from weft.schedule.intervals import ANY, MEANING, Interval
from weft.values import frozen

# Up to 2 to the power of this all integers are floats, and floor(a / b) of such is a // b.
_EXACT = {"f32": 24, "f64": 53}


def widen(function: Function) -> Function:
    """Subscripts whose arithmetic goes through ``i32`` or floats as arithmetic of ``index``, where
    the bounds of loops, which are numbers, say that nothing wraps or is rounded: ``i32(floor(y /
    144))`` is ``y // 144`` then. ``runs`` and LLVM read it.

    Precondition: a verified function. Non-goals: numbers that a call decides (sizes, arguments),
    that are loaded or carried by loops. Gives ``function`` itself where nothing is cast.
    """
    if not any(_is_cast(op) for op in walk(function.body)):
        return function
    return _Widening().function(function)


def _is_cast(op: Op) -> bool:
    """Whether ``op`` makes an index, or an integer of a float."""
    if op.name == "arith.fptosi":
        return True
    return op.name == "arith.index_cast" and op.result.type is index


@frozen
class _Number:
    """An integer that is exact: its interval, and the index operation that makes it of others.
    Without an operation it is ``value``, or what is written."""

    interval: Interval
    value: Value | None = None
    name: str = ""
    operands: tuple[_Number, ...] = ()


class _Widening(Rewriter):
    def __init__(self) -> None:
        super().__init__(self._visit)
        self.numbers: dict[Value, _Number] = {}
        self.quotients: dict[Value, tuple[_Number, _Number]] = {}  # of floats

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        if op.name in ("scf.for", "scf.parallel"):
            loop = loop_of(new)
            for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                ends = [self._number(v) for v in bounds]
                low, high, step = (n.interval if n else ANY for n in ends)
                if ANY not in (low, high) and step[0] > 0:
                    self.numbers[iv] = _Number((low[0], max(low[0], high[1] - 1)), iv)
        return new

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if len(op.results) != 1 or not isinstance(op.result.type, ScalarType):
            return None
        rule = _RULES.get(op.name)
        number = rule(self, op) if rule is not None else None
        if number is None or not _fits(number.interval, op.result.scalar):
            return None
        if not _is_cast(op):
            self.numbers[op.result] = number
            return None
        made = self._made(number, {})
        type = op.result.type
        found = made if type is index else self.op("arith.index_cast", made, type=type)
        self.numbers[found] = _Number(number.interval, made)
        return [found]

    def _number(self, value: Value) -> _Number | None:
        written = constant_of(value)
        if written is None or isinstance(written, bool):
            return self.numbers.get(value)
        if written != written or abs(written) > 1 << 53 or written != int(written):
            return None
        return _Number((int(written), int(written)))

    def _made(self, number: _Number, memo: dict[int, Value]) -> Value:
        """The index, computed here."""
        if number.value is not None:
            return number.value
        if not number.name:
            return self.constant(number.interval[0], index)
        if id(number) not in memo:
            operands = [self._made(n, memo) for n in number.operands]
            memo[id(number)] = self.op(f"arith.{number.name}", *operands)
        return memo[id(number)]

    # -- rules: the number that an operation makes, if it is one

    def same(self, op: Op) -> _Number | None:
        """A conversion."""
        return self._number(op.operand)

    def floor(self, op: Op) -> _Number | None:
        pair = self.quotients.get(op.operand)
        return self._of("floordivsi", *pair) if pair else self._number(op.operand)

    def divide(self, op: Op) -> None:
        a, b = map(self._number, op.operands)
        if a and b and b.interval[0] > 0 and _both_fit(a, b, op.result.scalar):
            self.quotients[op.result] = a, b

    def multiply(self, op: Op) -> _Number | None:
        factor, a = constant_of(op.right), self._number(op.left)
        if not isinstance(factor, float) or not 0 < abs(factor) < 1:
            return self.binary("muli")(op)
        mantissa, exponent = math.frexp(factor)  # of a division by a power of two, after simplify
        divisor = 1 << 1 - exponent
        b = _Number((divisor, divisor))
        if a and mantissa == 0.5 and _both_fit(a, b, op.result.scalar):
            self.quotients[op.result] = a, b
        return None

    def binary(self, name: str) -> Callable[[Op], _Number | None]:
        def rule(op: Op) -> _Number | None:
            a, b = map(self._number, op.operands)
            return self._of(name, a, b, op.result) if a and b else None

        return rule

    def _of(self, name: str, a: _Number, b: _Number, result: Value | None = None) -> _Number | None:
        if name == "floordivsi" and b.interval[0] <= 0:
            return None
        interval = MEANING[_MEANINGS[name]](a.interval, b.interval)
        if result is not None and result.type is index:
            return _Number(interval, result)
        return _Number(interval, None, name, (a, b))


def _fits(interval: Interval, type: ScalarType) -> bool:
    """Whether all numbers of an interval are of this type."""
    low, high = interval
    if type.is_float:
        return max(-low, high) <= 1 << _EXACT.get(type.name, 0)
    bits = 62 if type is index else type.bits - 1
    return -(1 << bits) <= low and high < 1 << bits


def _both_fit(a: _Number, b: _Number, type: ScalarType) -> bool:
    return _fits(a.interval, type) and _fits(b.interval, type)


_MEANINGS = {
    "addi": "add", "subi": "sub", "muli": "mul", "floordivsi": "div", "minsi": "min",
    "maxsi": "max",
}  # fmt: skip


def _arithmetic(name: str) -> Callable[[_Widening, Op], _Number | None]:
    return lambda self, op: self.binary(name)(op)


_RULES: dict[str, Callable[[_Widening, Op], _Number | None]] = {
    **{f"arith.{name}": _arithmetic(name) for name in _MEANINGS},
    "arith.addf": _arithmetic("addi"), "arith.subf": _arithmetic("subi"),
    "arith.mulf": _Widening.multiply, "arith.divf": _Widening.divide,
    "math.floor": _Widening.floor, "arith.index_cast": _Widening.same,
    "arith.extsi": _Widening.same, "arith.sitofp": _Widening.same,
    "arith.fptosi": _Widening.same,
}  # fmt: skip

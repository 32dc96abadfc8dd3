"""Integer arithmetic in narrow integers and in floats as index arithmetic, where it is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import ScalarType, f64, i64, index
from weft.ir.views import Parallel, constant_of, is_constant, loop_of
from weft.schedule.intervals import ANY, MEANING, Interval
from weft.values import frozen

# Up to 2 to the power of this all integers are floats, and floor(a / b) of such is a // b.
_EXACT = {"f32": 24, "f64": 53}


def widen(function: Function) -> Function:
    """Subscripts whose arithmetic goes through ``i32`` or floats as arithmetic of ``index``, where
    the bounds of loops, which are numbers, say that nothing wraps or is rounded: ``i32(floor(y /
    144))`` is ``y // 144`` then. ``runs`` and LLVM read it.

    Precondition: a verified function. Non-goals: numbers that a call decides (sizes, arguments; see
    ``widen_by_call``), that are loaded or carried by loops. Gives ``function`` itself where nothing
    is widened.
    """
    ops = list(walk(function.body))
    if not any(map(_is_cast, ops)):
        return function
    look = _Widening()
    if not any(look.note(op) is not None and _is_cast(op) for op in ops):
        return function
    return _Widening().function(function)


@frozen
class ByCall:
    """The ``body`` of a parallel loop, of whose index arithmetic some is widened. It stands for the
    loop's own, whose arguments it has, where ``holds``, which operations in ``front`` of the loop
    make of the numbers of a call."""

    front: Block
    holds: Value
    body: Block


def widen_by_call(parallel: Op) -> ByCall | None:
    """The same for numbers that a call decides: sizes, arguments, whatever is computed in front of
    the loop. Whether nothing wraps or is rounded is asked when the loop begins.

    Non-goals: bodies with loops or branches; those without a quotient of floats, for which LLVM
    needs no help.
    """
    ops = parallel.body.ops
    names = {op.name for op in ops}
    steps = Parallel(parallel).steps
    if "math.floor" not in names or any(op.regions for op in ops):
        return None
    return _ByCall(parallel).widened() if all(is_constant(n, 1) for n in steps) else None


def _is_cast(op: Op) -> bool:
    """Whether ``op`` makes an index, or an integer of a float."""
    if op.name == "arith.fptosi":
        return True
    return op.name == "arith.index_cast" and op.result.type is index


_Ends = tuple[Value, Value]


@frozen
class _Number:
    """An integer that is exact: its interval, and the index operation that makes it of others.
    Without an operation it is ``value``, or what is written. What a call decides is between the
    ``ends``, floats, if what is ``asked`` of them holds."""

    interval: Interval
    value: Value | None = None
    name: str = ""
    operands: tuple[_Number, ...] = ()
    ends: _Ends | None = None
    asked: tuple[Value, ...] = ()


class _Widening(Rewriter):
    def __init__(self) -> None:
        super().__init__(self._visit)
        self.numbers: dict[Value, _Number] = {}
        self.quotients: dict[Value, tuple[_Number, _Number]] = {}  # of floats

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        self._note_indices(new)
        return new

    def _note_indices(self, op: Op) -> None:
        if op.name in ("scf.for", "scf.parallel"):
            loop = loop_of(op)
            for iv, bounds in zip(loop.indices, loop.axes, strict=True):
                ends = [self._number(v) for v in bounds]
                low, high, step = (n.interval if n else ANY for n in ends)
                if ANY not in (low, high) and step[0] > 0:
                    self.numbers[iv] = _Number((low[0], max(low[0], high[1] - 1)), iv)

    def note(self, op: Op) -> _Number | None:
        """The number that ``op`` makes; noted, if the operation stays. Those that a loop counts are
        noted, too."""
        self._note_indices(op)
        rule = _RULES.get(op.name)
        if rule is None or len(op.results) != 1 or not isinstance(op.result.type, ScalarType):
            return None
        number = self.within(rule(self, op), op.result.scalar)
        if number is not None and not _is_cast(op):
            self.numbers[op.result] = number
        return number

    def _visit(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        number = self.note(op)
        if number is None or not _is_cast(op):
            return None
        made = self._made(number, {})
        type = op.result.type
        found = made if type is index else self.op("arith.index_cast", made, type=type)
        self.numbers[found] = replace(number, value=made)
        return [found]

    def within(self, number: _Number | None, type: ScalarType) -> _Number | None:
        """``number`` if it is of this type in every case."""
        return number if number is not None and _fits(number.interval, type) else None

    def positive(self, number: _Number | None) -> _Number | None:
        """``number`` if it is above 0."""
        return number if number is not None and number.interval[0] > 0 else None

    def _number(self, value: Value) -> _Number | None:
        written = constant_of(value)
        if written is None or isinstance(written, bool):
            return self.numbers.get(value)
        if written != written or abs(written) > 1 << 53 or written != int(written):
            return None
        return self.written(int(written))

    def written(self, number: int) -> _Number:
        return _Number((number, number))

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
        a, b = (self.within(self._number(v), op.result.scalar) for v in op.operands)
        if a and (b := self.positive(b)):
            self.quotients[op.result] = a, b

    def multiply(self, op: Op) -> _Number | None:
        factor, a = constant_of(op.right), self._number(op.left)
        if not isinstance(factor, float) or not 0 < abs(factor) < 1:
            return self.binary("muli")(op)
        mantissa, exponent = math.frexp(factor)  # of a division by a power of two, after simplify
        divisor = 1 << 1 - exponent
        a, b = (self.within(n, op.result.scalar) for n in (a, self.written(divisor)))
        if a and b and mantissa == 0.5:
            self.quotients[op.result] = a, b
        return None

    def binary(self, name: str) -> Callable[[Op], _Number | None]:
        def rule(op: Op) -> _Number | None:
            a, b = map(self._number, op.operands)
            return self._of(name, a, b, op.result) if a and b else None

        return rule

    def _of(self, name: str, a: _Number, b: _Number, result: Value | None = None) -> _Number | None:
        divisor = self.positive(b) if name == "floordivsi" else b
        if divisor is None:
            return None
        made = self.combined(name, a, divisor)
        if result is not None and result.type is index:
            return replace(made, value=result)
        return replace(made, name=name, operands=(a, b))

    def combined(self, name: str, a: _Number, b: _Number) -> _Number:
        """Between what the operation of two numbers is."""
        return _Number(MEANING[_MEANINGS[name]](a.interval, b.interval))


class _ByCall(_Widening):
    """Widens the body of ``parallel``. Ends are integers below 2^52, or not exact and then too far
    apart by 1 on either side; where one is larger, what is asked does not hold."""

    def __init__(self, parallel: Op) -> None:
        super().__init__()
        self.front, self.loop = Block(), parallel
        self.asked: dict[Value, None] = {}  # of what is widened
        self.own: set[Op] = set()  # what the new body is made of
        self.floats: dict[float, Value] = {}
        self.made: dict[tuple[object, ...], Value] = {}  # in front
        self.known: dict[tuple[Value, int], _Number] = {}  # sizes

    def widened(self) -> ByCall | None:
        loop, body = Parallel(self.loop), Block()
        body.args = list(self.loop.body.args)
        one = self.float(1.0)
        for iv, low, high in zip(loop.indices, loop.lowers, loop.uppers, strict=True):
            first, last = (self.outside(v) for v in (low, high))
            (begin, _), (_, end) = _ends(first), _ends(last)
            end = self.ahead("maxnumf", begin, self.ahead("subf", end, one))
            asked = _joined(first.asked, last.asked)
            self.numbers[iv] = _Number(ANY, iv, ends=(begin, end), asked=asked)
        with self.at(body):
            for op in self.loop.body.ops:
                self.rewrite(op)
        if not self.asked:
            return None
        with self.at(self.front):
            holds = reduce(lambda a, b: self.op("arith.andi", a, b), self.asked)
        return ByCall(self.front, holds, body)

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        self.own.add(new)
        return new

    def float(self, number: float) -> Value:
        if number not in self.floats:
            with self.at(self.front):
                self.floats[number] = self.constant(number, f64)
        return self.floats[number]

    def ahead(self, name: str, *operands: Value, **attrs: Any) -> Value:
        key = name, *operands, *attrs.values()
        if key not in self.made:
            with self.at(self.front):
                self.made[key] = self.op(f"arith.{name}", *operands, **attrs)
        return self.made[key]

    def outside(self, value: Value) -> _Number:
        """An integer from in front of the loop."""
        with self.at(self.front):
            if value.type is not index:
                value = self.op("arith.index_cast", value, type=index)
            wide = self.op("arith.index_cast", value, type=i64)
            end = self.op("arith.sitofp", wide, type=f64)
        found = self.within(_Number(ANY, value, ends=(end, end)), index)
        assert found is not None
        return found

    def _number(self, value: Value) -> _Number | None:
        found = super()._number(value)
        if found is not None or not isinstance(value.type, ScalarType):
            return found
        op = value.op
        if op is not None and op.name == "memref.dim" and op.operand.op is None:
            size = op.operand, op.attrs["axis"]
            if size not in self.known:
                with self.at(self.front):
                    self.known[size] = self.outside(self.op("memref.dim", op.operand, **op.attrs))
            return self.known[size]
        if op in self.own or value.type.is_float or value.type.bits < 32:
            return None
        self.numbers[value] = found = self.outside(value)
        return found

    def written(self, number: int) -> _Number:
        end = self.float(float(number))
        return _Number((number, number), ends=(end, end))

    def ask(self, number: _Number, predicate: str, end: Value, limit: float) -> _Number:
        holds = self.ahead("cmpf", end, self.float(limit), predicate=predicate)
        return replace(number, asked=_joined(number.asked, (holds,)))

    def within(self, number: _Number | None, type: ScalarType) -> _Number | None:
        if number is None:
            return None
        bits = _EXACT.get(type.name, 0) if type.is_float else type.bits - 1
        limit = float((1 << min(bits, 52)) - 1)
        low, high = _ends(number)
        return self.ask(self.ask(number, "oge", low, -limit), "ole", high, limit)

    def positive(self, number: _Number | None) -> _Number | None:
        return None if number is None else self.ask(number, "oge", _ends(number)[0], 1.0)

    def _made(self, number: _Number, memo: dict[int, Value]) -> Value:
        self.asked.update(dict.fromkeys(number.asked))
        return super()._made(number, memo)

    def combined(self, name: str, a: _Number, b: _Number) -> _Number:
        ends = self.between(name, _ends(a), _ends(b))
        return _Number(ANY, ends=ends, asked=_joined(a.asked, b.asked))

    def between(self, name: str, a: _Ends, b: _Ends) -> _Ends:
        if name in ("minsi", "maxsi"):
            low, high = (self.ahead(f"{name[:3]}numf", x, y) for x, y in zip(a, b, strict=True))
            return low, high
        if name == "addi":
            return self.ahead("addf", a[0], b[0]), self.ahead("addf", a[1], b[1])
        if name == "subi":
            return self.ahead("subf", a[0], b[1]), self.ahead("subf", a[1], b[0])
        operation = "mulf" if name == "muli" else "divf"
        corners = [self.ahead(operation, x, y) for x in a for y in b]
        low, high = (reduce(lambda x, y, f=f: self.ahead(f, x, y), corners)
                     for f in ("minnumf", "maxnumf"))  # fmt: skip
        if name == "muli":
            return low, high
        one = self.float(1.0)
        return self.ahead("subf", low, one), self.ahead("addf", high, one)


def _joined(a: Sequence[Value], b: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys((*a, *b)))


def _ends(number: _Number) -> _Ends:
    assert number.ends is not None
    return number.ends


def _fits(interval: Interval, type: ScalarType) -> bool:
    """Whether all numbers of an interval are of this type."""
    low, high = interval
    if type.is_float:
        return max(-low, high) <= 1 << _EXACT.get(type.name, 0)
    bits = 62 if type is index else type.bits - 1
    return -(1 << bits) <= low and high < 1 << bits


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

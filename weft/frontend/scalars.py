"""Arithmetic on scalars: promotion and Python's meaning of each operator, as IR operations."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

from weft.errors import KernelTypeError, KernelValueError
from weft.frontend.conversions import RING, Captured, Conversions, does_not_fit
from weft.frontend.kinds import (
    UNSIGNED,
    NumberPinned,
    Operand,
    Scalar,
    Static,
    Varying,
    int_range,
    is_float,
    is_int,
    is_weak,
    promote,
)
from weft.frontend.powers import integer_power
from weft.frontend.room import dtype_with_room
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Value
from weft.ir.views import made_by
from weft.source import Span

PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
    "//": operator.floordiv, "%": operator.mod, "**": operator.pow, "<<": operator.lshift,
    ">>": operator.rshift, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SIGNED = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
_UNSIGNED = {"==": "eq", "!=": "ne", "<": "ult", "<=": "ule", ">": "ugt", ">=": "uge"}
_ORDERED = {"==": "oeq", "!=": "une", "<": "olt", "<=": "ole", ">": "ogt", ">=": "oge"}
_TURNED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_BITS = {"&": "andi", "|": "ori", "^": "xori"}
MOST_BITS = 1 << 16  # of a compile-time integer: Python would compute for minutes
_ROOTS = {0.5: "math.sqrt", -0.5: "math.rsqrt"}
LARGEST_POWER = 16  # x ** n for a literal n up to this is a chain of multiplications


class Scalars:
    """Emits scalar operations into ``builder``; ``float`` is the kernel's own float type."""

    def __init__(self, builder: Builder, float_type: ir.ScalarType) -> None:
        self.builder, self.captured = builder, Captured(builder)
        self.float_type = float_type
        self.conversions = into = Conversions(builder, float_type)
        self.type, self.constant, self.number = into.type, into.constant, into.number
        self.cast, self.cast_exactly = into.cast, into.cast_exactly
        self.truth, self.index = into.truth, into.index

    # --- operators ----------------------------------------------------------------------------
    def binary(self, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
        """``a symbol b`` for an arithmetic or bitwise operator of Python."""
        if isinstance(a, Static) and isinstance(b, Static):
            if isinstance(a, Varying) or isinstance(b, Varying):
                return self.captured.binary(symbol, a, b, span)
            return fold(symbol, a, b, span)
        x, y = self.number(a, span, "the left operand"), self.number(b, span, "the right operand")
        dtype = promote(x, y)
        _pin(a, b, x, y)
        if dtype == "bool" and symbol in _BITS:
            return Scalar(self._op(_BITS[symbol], a, b, "bool", span), "bool")
        if x == y == "bool":
            raise KernelTypeError(
                f"`{symbol}` of two booleans: Python and torch disagree on what it means", span,
                help="use `and`, `or`, `^`, or int(...) around them",
            )  # fmt: skip
        if symbol in ("<<", ">>", *_BITS):
            return self._bitwise(symbol, a, b, dtype, span)
        if symbol == "/":
            dtype = dtype if is_float(dtype) else "float"
            return Scalar(self._op("divf", a, b, dtype, span), dtype)
        if symbol in RING:
            suffix = "f" if is_float(dtype) else "i"
            return Scalar(self._op(RING[symbol] + suffix, a, b, dtype, span), dtype)
        if symbol == "**":
            return self._power(a, b, dtype, span)
        if is_float(dtype):
            return self._float_divmod(symbol, a, b, dtype, span)
        return self._int_divmod(symbol, a, b, dtype, span)

    def _op(self, name: str, a: Operand, b: Operand, dtype: str, span: Span, **attrs: Any) -> Value:
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        return self.builder.op(f"arith.{name}", x, y, **attrs)

    def _bitwise(self, symbol: str, a: Operand, b: Operand, dtype: str, span: Span) -> Scalar:
        if is_float(dtype):
            raise KernelTypeError(
                f"`{symbol}` needs integers, and this is a {dtype}", span,
                help="convert with int(...) first",
            )  # fmt: skip
        if symbol in _BITS:
            return Scalar(self._op(_BITS[symbol], a, b, dtype, span), dtype)
        if isinstance(b, Scalar) and b.dtype == "int" and self.type(dtype).bits < 64:
            # The low bits of an amount say less than the amount: 256 is not 0.
            width = self.builder.constant(self.type(dtype).bits, ir.index)
            b = Scalar(self.builder.op("arith.minui", b.value, width), "int")
        name = "shli" if symbol == "<<" else "shrui" if dtype in UNSIGNED else "shrsi"
        return Scalar(self._op(name, a, b, dtype, span), dtype)

    def _int_divmod(self, symbol: str, a: Operand, b: Operand, dtype: str, span: Span) -> Scalar:
        divide = "divui" if dtype in UNSIGNED else "floordivsi"
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        quotient = self.builder.op(f"arith.{divide}", x, y)
        if symbol == "%":
            product = self.builder.op("arith.muli", quotient, y)
            quotient = self.builder.op("arith.subi", x, product)
        return Scalar(quotient, dtype)

    def _float_divmod(self, symbol: str, a: Operand, b: Operand, dtype: str, span: Span) -> Scalar:
        """Python's float ``//`` and ``%``, from C's fmod (the method of CPython's float_divmod)."""
        op, const = self.builder.op, self.builder.constant
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        type = self.type(dtype)
        zero = const(0.0, type)
        rem = op("arith.remf", x, y)
        nonzero = op("arith.cmpf", rem, zero, predicate="une")
        opposite = op("arith.xori", op("arith.cmpf", rem, zero, predicate="olt"),
                      op("arith.cmpf", y, zero, predicate="olt"))  # fmt: skip
        adjust = op("arith.andi", nonzero, opposite)
        if symbol == "%":
            moved = op("arith.select", adjust, op("arith.addf", rem, y), rem)
            signed_zero = _signed(self.builder, rem, y)
            return Scalar(op("arith.select", nonzero, moved, signed_zero), dtype)
        quotient = op("arith.divf", op("arith.subf", x, rem), y)
        quotient = op(
            "arith.select", adjust, op("arith.subf", quotient, const(1.0, type)), quotient
        )
        floor = op("math.floor", quotient)
        gap = op("arith.subf", quotient, floor)
        up = op("arith.cmpf", gap, const(0.5, type), predicate="ogt")
        floor = op("arith.select", up, op("arith.addf", floor, const(1.0, type)), floor)
        true_quotient = op("arith.divf", x, y)
        is_zero = op("arith.cmpf", quotient, zero, predicate="oeq")
        floor = op("arith.select", is_zero, op("math.copysign", zero, true_quotient), floor)
        by_zero = op("arith.cmpf", y, zero, predicate="oeq")
        return Scalar(op("arith.select", by_zero, true_quotient, floor), dtype)

    def _power(self, a: Operand, b: Operand, dtype: str, span: Span) -> Scalar | Static:
        exponent = b.value if isinstance(b, Static) else None
        if (
            isinstance(exponent, (int, float))
            and abs(exponent) <= LARGEST_POWER  # false of NaN
            and exponent == int(exponent)
        ):
            base_dtype = self.number(a, span)
            if is_float(dtype) or exponent >= 0:
                base = self.cast(a, "int" if dtype == "bool" else dtype, span)
                if exponent < 0:  # not 1 / x ** n, whose derivatives at 0 are inf * 0
                    base = self.cast(self.binary("/", Static(1.0), base, span), dtype, span)
                return self._chain(base, int(abs(exponent)))
            if is_int(base_dtype):
                return self._power(
                    self.cast(a, "float", span), Static(float(exponent)), "float", span
                )
        if not is_float(dtype):
            base = self.cast(a, "int" if dtype == "bool" else dtype, span)
            # An exponent beyond the base's type is one of 64 bits: its low bits say less.
            exponent = self.cast(b, "u64" if self.number(b, span) == "u64" else "int", span)
            may_be_negative = self.number(b, span) not in (*UNSIGNED, "bool")
            self.builder.span = span
            power = integer_power(
                self.builder, base.value, exponent.value, may_be_negative=may_be_negative
            )
            return Scalar(power, base.dtype)
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        # torch takes the root of an element, Python's float has pow: they differ for -inf and -0.0.
        root = None if dtype == "float" or exponent is None else _ROOTS.get(exponent)
        result = self.builder.op(root, x) if root else self.builder.op("math.powf", x, y)
        return Scalar(result, dtype)

    def _chain(self, x: Scalar, n: int) -> Scalar:
        """x ** n by repeated squaring."""
        name = "arith.mulf" if is_float(x.dtype) else "arith.muli"
        result: Value | None = None
        square = x.value
        while n:
            if n & 1:
                result = square if result is None else self.builder.op(name, result, square)
            n >>= 1
            if n:
                square = self.builder.op(name, square, square)
        return Scalar(result, x.dtype) if result is not None else self.constant(1, x.dtype)

    def compare(self, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
        if isinstance(a, Static) and isinstance(b, Static):
            return fold(symbol, a, b, span)
        x, y = self.number(a, span, "the left operand"), self.number(b, span, "the right operand")
        _pin(a, b, x, y)
        dtype = promote(x, y)
        if is_float(dtype):
            return Scalar(self._op("cmpf", a, b, dtype, span, predicate=_ORDERED[symbol]), "bool")
        # Compare in 64 bits where one could lie outside the other's integer type.
        if x != y and not is_weak(dtype):
            literal = next((v.value for v in (a, b) if isinstance(v, Static)), None)
            low, high = int_range(dtype)
            if any(is_weak(d) for d in (x, y)):
                beyond = literal is None or not low <= literal <= high
            else:
                beyond = dtype in UNSIGNED and not {x, y} <= {*UNSIGNED, "bool"}
            if beyond and dtype == "u64":
                return _compare_beyond(self, symbol, a, b, span)
            dtype = "int" if beyond else dtype
        predicate = (_UNSIGNED if dtype in (*UNSIGNED, "bool") else _SIGNED)[symbol]
        return Scalar(self._op("cmpi", a, b, dtype, span, predicate=predicate), "bool")

    def select(self, condition: Value, a: Operand, b: Operand, span: Span,
               *, shared: bool = False) -> Scalar:  # fmt: skip
        dtype = promote(self.number(a, span), self.number(b, span))
        dtype = dtype_with_room(dtype, a, b)
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        return Scalar(_choice(self.builder, condition, x, y, shared=shared), dtype)

    def extreme(self, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
        """Python's ``max(a, b)`` (symbol ">") and ``min(a, b)`` ("<"): b if b symbol a else a."""
        if isinstance(a, Static) and isinstance(b, Static):
            if isinstance(a, Varying) or isinstance(b, Varying):
                return self.captured.extreme(symbol, a, b)
            return Static(max(a.value, b.value) if symbol == ">" else min(a.value, b.value))
        x, y = self.number(a, span), self.number(b, span)
        dtype = promote(x, y)
        mixed = dtype in UNSIGNED and x != y and not {x, y} <= {*UNSIGNED}  # one has a sign
        run_time = not isinstance(a, Static) and not isinstance(b, Static)
        by_value = mixed and run_time and (dtype == "u64" or "int" not in (x, y))
        if is_float(dtype) or "bool" in (x, y) or by_value:
            better = self.compare(symbol, b, a, span)
            return self.select(self.truth(better, span), b, a, span, shared=True)
        weak = any(isinstance(v, Scalar) and v.dtype == "int" for v in (a, b))
        literal = next((v.value for v in (a, b) if isinstance(v, Static)), 0)
        low, high = int_range(dtype)
        if (literal > high) if symbol == ">" else (literal < low):  # it is the result, always
            raise does_not_fit(literal, dtype, span)
        if dtype == "u64" and not low <= literal <= high:  # it is the other one, always
            return self.cast(b if isinstance(a, Static) else a, dtype, span)
        wide = "int" if weak or not low <= literal <= high else dtype
        name = ("max" if symbol == ">" else "min") + ("ui" if wide in UNSIGNED else "si")
        found = Scalar(self._op(name, a, b, wide, span), wide)
        return found if weak else self.cast(found, dtype, span)  # whichever of the two it is

    def negate(self, x: Operand, span: Span) -> Scalar | Static:
        if isinstance(x, Varying):
            return self.captured.binary("*", x, Static(-1), span)
        if isinstance(x, Static):
            return Static(-x.value)
        dtype = self.number(x, span)
        dtype = "int" if dtype == "bool" else dtype
        value = self.cast(x, dtype, span).value
        if is_float(dtype):
            return Scalar(self.builder.op("arith.negf", value), dtype)
        zero = self.builder.constant(0, self.type(dtype))
        return Scalar(self.builder.op("arith.subi", zero, value), dtype)

    def invert(self, x: Operand, span: Span) -> Scalar | Static:
        dtype = self.number(x, span)
        if isinstance(x, Static) and not is_float(dtype):
            return Static(~x.value)
        if is_float(dtype):
            raise KernelTypeError(f"`~` needs an integer, and this is a {dtype}", span,
                                  help="convert with int(...) first")  # fmt: skip
        ones = self.builder.constant(True if dtype == "bool" else -1, self.type(dtype))
        return Scalar(self.builder.op("arith.xori", self.cast(x, dtype, span).value, ones), dtype)

    def negation(self, x: Operand, span: Span) -> Scalar | Static:
        """``not x``."""
        if isinstance(x, Static):
            return Static(not x.value)
        true = self.builder.constant(True, ir.i1)
        return Scalar(self.builder.op("arith.xori", self.truth(x, span), true), "bool")

    def magnitude(self, x: Operand, span: Span) -> Scalar | Static:
        """``abs(x)``."""
        if isinstance(x, Varying):
            return self.captured.magnitude(x)
        if isinstance(x, Static):
            return Static(abs(x.value))
        dtype = self.number(x, span)
        if dtype in UNSIGNED:
            return self.cast(x, dtype, span)
        dtype = "int" if dtype == "bool" else dtype
        name = "math.absf" if is_float(dtype) else "math.absi"
        return Scalar(self.builder.op(name, self.cast(x, dtype, span).value), dtype)

    def function(self, name: str, arguments: list[Operand], span: Span) -> Scalar:
        """``math.<name>`` of the IR on floats; integers become the kernel's own float first."""
        dtype = reduce(promote, [self.number(x, span) for x in arguments])
        dtype = dtype if is_float(dtype) else "float"
        values = [self.cast(x, dtype, span).value for x in arguments]
        result = self.builder.op(f"math.{name}", *values)
        return Scalar(result, "bool" if result.type is ir.i1 else dtype)


def _choice(b: Builder, condition: Value, x: Value, y: Value, *, shared: bool) -> Value:
    """``x`` where the condition holds, else ``y``. Where these are what it compares and equal, a
    derivative goes to the one that is taken, or, of an extremum, is ``shared``. (Elements that are
    read to be compared and read again to be taken are the same values after a while.)"""
    compare = made_by(condition, "arith.cmpf")
    attrs: dict[str, Any] = {}
    numbers = any(made_by(v, "arith.constant") for v in (x, y))
    if not shared and compare and (not numbers or {*compare.operands} == {x, y}):
        attrs["unshared"] = True
    return b.op("arith.select", condition, x, y, **attrs)


def _signed(b: Builder, zero: Value, y: Value) -> Value:
    """``zero``, a rest that is 0, with the sign of y, and with the derivative that it has."""
    none = b.constant(0.0, y.scalar)
    below = b.op("arith.cmpf", y, none, predicate="olt")
    minus = b.op("arith.negf", b.op("arith.subf", none, zero))
    return b.op("arith.select", below, minus, b.op("arith.addf", none, zero))


def _pin(a: Operand, b: Operand, x: str, y: str) -> None:
    """Asks for captured numbers beside integers, of dtypes ``x`` and ``y``: subscripts are analysed
    with the number itself, and what may be an int is one."""
    for v, other in ((a, y), (b, x)):
        if isinstance(v, Varying) and not is_float(other) and (v.either or is_int(v.dtype)):
            raise NumberPinned(v.places)


def _compare_beyond(s: Scalars, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
    """A u64 compared with an integer that may be negative, or a literal out of its range."""
    if s.number(b, span) == "u64":
        return _compare_beyond(s, _TURNED[symbol], b, a, span)
    if isinstance(b, Static) and not isinstance(b, Varying):
        return Static(PYTHON[symbol](0 if b.value < 0 else -1, -1 if b.value < 0 else 0))
    signed = s.cast(b, "int", span)
    x, y = s.cast(a, "u64", span).value, s.cast(signed, "u64", span).value
    unsigned = s.builder.op("arith.cmpi", x, y, predicate=_UNSIGNED[symbol])
    zero = s.builder.constant(0, ir.index)
    negative = s.builder.op("arith.cmpi", signed.value, zero, predicate="slt")
    beyond = s.builder.constant(PYTHON[symbol](0, -1), ir.i1)
    return Scalar(s.builder.op("arith.select", negative, beyond, unsigned), "bool")


def _bits(symbol: str, a: Any, b: Any) -> int:
    """How many bits an integer that is computed from two has at most."""
    if type(a) is not int or type(b) is not int:
        return 0
    if symbol == "*":
        return a.bit_length() + b.bit_length()
    return a.bit_length() + b if symbol == "<<" else (abs(a) - 1).bit_length() * b


def fold(symbol: str, a: Static, b: Static, span: Span) -> Static:
    """Python's own arithmetic on two compile-time values."""
    if symbol in ("**", "<<", "*") and _bits(symbol, a.value, b.value) > MOST_BITS:
        raise KernelValueError(
            f"a constant of more than {MOST_BITS} bits", span,
            help="write a float, as 1e300, or compute it in the host part",
        )  # fmt: skip
    try:
        return Static(PYTHON[symbol](a.value, b.value))
    except Exception as error:
        raise KernelValueError(f"{type(error).__name__}: {error}", span,
                               help="change the constants") from None  # fmt: skip

"""Arithmetic on scalars: casts, promotion, Python's meaning of each operator, as IR operations."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from weft.errors import KernelTypeError, KernelValueError
from weft.frontend.kinds import (
    Box,
    Method,
    NumberPinned,
    Operand,
    Range,
    Scalar,
    Static,
    Tup,
    Unbound,
    Varying,
    Vec,
    describe,
    dtype_of,
    int_range,
    is_float,
    is_int,
    is_weak,
    promote,
)
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Block, Value
from weft.lang.numbers import Number, plain
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
_RING = {"+": "add", "-": "sub", "*": "mul"}
_BITS = {"&": "andi", "|": "ori", "^": "xori"}
MOST_BITS = 1 << 16  # of a compile-time integer: Python would compute for minutes
_ROOTS = {0.5: "math.sqrt", -0.5: "math.rsqrt"}
WORD_BITS = 62  # of an integer that is computed of captured ones that vary
LARGEST_POWER = 16  # x ** n for a literal n up to this is a chain of multiplications


class Scalars:
    """Emits scalar operations into ``builder``; ``float`` is the kernel's own float type."""

    def __init__(self, builder: Builder, float_type: ir.ScalarType) -> None:
        self.builder = builder
        self.start, self.above = builder.block, 0  # where, and after how many operations
        self.float_type = float_type

    # --- types and casts ----------------------------------------------------------------------
    def type(self, dtype: str) -> ir.ScalarType:
        """The IR type that values of ``dtype`` are computed in."""
        if dtype == "int":
            return ir.index
        if dtype == "float":
            return self.float_type
        if dtype in ("f16", "bf16"):
            return ir.f32
        return {"bool": ir.i1, "u8": ir.i8}.get(dtype) or ir.SCALARS[dtype]

    def constant(self, value: bool | int | float, dtype: str) -> Scalar:
        return Scalar(self.builder.constant(value, self.type(dtype)), dtype)

    def number(self, x: Operand, span: Span, what: str = "this") -> str:
        """The dtype of ``x``, which must be a number."""
        dtype = dtype_of(x)
        if dtype is None:
            raise KernelTypeError(
                f"{what} must be a scalar, and is {describe(x)}", span, help=_scalar_of(x)
            )
        return dtype

    def cast(self, x: Operand, dtype: str, span: Span) -> Scalar:
        """``x`` as a scalar of ``dtype``, as an assignment or an operand converts it."""
        source = self.number(x, span)
        if isinstance(x, Varying):
            return self._rounded(x, dtype, span)
        if isinstance(x, Static):
            if not isinstance(x.value, Number):
                return self._literal(x.value, dtype, span)
            x = self.constant(plain(x.value), source)
        assert isinstance(x, Scalar)
        if source == dtype:
            return x
        value = self._convert(x.value, source, dtype)
        return Scalar(value, dtype)

    def cast_exactly(self, x: Operand, dtype: str, span: Span) -> Scalar:
        """An explicit cast, ``weft.f16(x)``: unlike ``cast``, rounds to a storage type at once."""
        if isinstance(x, Static) and is_int(dtype) and isinstance(x.value, float):
            if not math.isfinite(x.value):
                raise KernelValueError(f"{x.value} as {dtype}", span,
                                       help="write the number that is meant")  # fmt: skip
            x = Static(int(x.value))
        scalar = self.cast(x, dtype, span)
        if dtype in ("f16", "bf16"):
            b = self.builder
            narrow = b.op("arith.truncf", scalar.value, type=ir.SCALARS[dtype])
            return Scalar(b.op("arith.extf", narrow, type=ir.f32), dtype)
        return scalar

    def _literal(self, value: Any, dtype: str, span: Span) -> Scalar:
        if is_int(dtype) and not isinstance(value, float):
            low, high = int_range(dtype)
            if not low <= value <= high:
                raise _does_not_fit(value, dtype, span)
        if is_int(dtype) and isinstance(value, float):
            return self.cast(self.constant(value, "float"), dtype, span)
        if is_float(dtype) and isinstance(value, int) and value.bit_length() > 1023:
            raise KernelValueError(f"{shown(value)} is too large for a float", span,
                                   help="write math.inf, or a smaller number")  # fmt: skip
        return self.constant(value, dtype)

    def _rounded(self, x: Varying, dtype: str, span: Span) -> Scalar:
        """What a literal of that value would be."""
        if is_int(dtype) and x.dtype == "float":
            return self.cast(self._rounded(x, "float", span), dtype, span)
        if is_int(dtype) and dtype not in ("int", "i64"):
            return self._literal(x.value, dtype, span)  # whether it fits has to be known
        return Scalar(self._convert(x.scalar, x.dtype, dtype), dtype)

    def _varying(self, symbol: str, a: Static, b: Static, span: Span) -> Static:
        """Python's arithmetic on captured numbers and constants, at the function's start."""
        dtypes = dtype_of(a), dtype_of(b)
        places: frozenset[Any] = frozenset()
        for x in (a, b):
            places |= x.places if isinstance(x, Varying) else places
        if symbol not in "+-*/" or not {*dtypes} <= {"int", "float"}:
            raise NumberPinned(places)
        whole = dtypes == ("int", "int") and symbol != "/"
        m, n = (x.bits if isinstance(x, Varying) else int(x.value).bit_length() if whole else 0
                for x in (a, b))  # fmt: skip
        bits = m + n if symbol == "*" else max(m, n) + 1
        if (whole and bits > WORD_BITS) or (symbol == "/" and isinstance(b, Varying)):
            raise NumberPinned(places)  # it may overflow, or be a division by zero
        scratch, saved = Block([]), self.builder.block
        with self.builder.at(scratch):
            x, y = (self._wide(v, ir.index if whole else ir.f64) for v in (a, b))
            name = "divf" if symbol == "/" else _RING[symbol] + ("i" if whole else "f")
            made = self.builder.op(f"arith.{name}", x, y)
        assert self.builder.block is saved
        self.start.ops[self.above : self.above] = scratch.ops
        self.above += len(scratch.ops)
        return Varying(made, "int" if whole else "float", places, bits)

    def _wide(self, x: Static, type: ir.ScalarType) -> Value:
        if not isinstance(x, Varying):
            return self.builder.constant(x.value, type)
        if x.scalar.type is type:
            return x.scalar
        value = self.builder.op("arith.index_cast", x.scalar, type=ir.i64)
        return self.builder.op("arith.sitofp", value, type=type)

    def _convert(self, value: Value, source: str, target: str) -> Value:
        b, type = self.builder, self.type(target)
        if value.type is type:
            return value
        if target == "bool":
            zero = b.constant(0, value.type)  # type: ignore[arg-type]
            if is_float(source):
                return b.op("arith.cmpf", value, zero, predicate="une")
            return b.op("arith.cmpi", value, zero, predicate="ne")
        if is_float(source):
            if is_float(target):
                wider = type.bits > value.type.bits  # type: ignore[union-attr]
                return b.op("arith.extf" if wider else "arith.truncf", value, type=type)
            if target == "u8":
                return b.op("arith.fptoui", value, type=ir.i8)
            if target == "int":
                return b.op(
                    "arith.index_cast", b.op("arith.fptosi", value, type=ir.i64), type=ir.index
                )
            return b.op("arith.fptosi", value, type=type)
        unsigned = source in ("u8", "bool")
        if is_float(target):
            if source == "int":
                value = b.op("arith.index_cast", value, type=ir.i64)
            return b.op("arith.uitofp" if unsigned else "arith.sitofp", value, type=type)
        if source == "int":
            return b.op("arith.index_cast", value, type=type)
        if target == "int":
            if unsigned:
                value = b.op("arith.extui", value, type=ir.i64)
            return b.op("arith.index_cast", value, type=ir.index)
        if type.bits < value.type.bits:  # type: ignore[union-attr]
            return b.op("arith.trunci", value, type=type)
        return b.op("arith.extui" if unsigned else "arith.extsi", value, type=type)

    def truth(self, x: Operand, span: Span) -> Value:
        """``bool(x)`` as an i1."""
        return self.cast(x, "bool", span).value

    def index(self, x: Operand, span: Span) -> Value:
        """``x`` as a subscript or a loop bound."""
        dtype = self.number(x, span, "a subscript")
        if not is_int(dtype):
            raise KernelTypeError(
                f"a subscript or a bound must be an integer, and this is a {dtype}", span,
                help="write int(...) around it, which truncates towards zero",
            )  # fmt: skip
        return self.cast(x, "int", span).value

    # --- operators ----------------------------------------------------------------------------
    def binary(self, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
        """``a symbol b`` for an arithmetic or bitwise operator of Python."""
        if isinstance(a, Static) and isinstance(b, Static):
            if isinstance(a, Varying) or isinstance(b, Varying):
                return self._varying(symbol, a, b, span)
            return fold(symbol, a, b, span)
        x, y = self.number(a, span, "the left operand"), self.number(b, span, "the right operand")
        dtype = promote(x, y)
        for v in (a, b):
            if isinstance(v, Varying) and is_int(dtype):
                raise NumberPinned(v.places)  # subscripts are analysed with the number itself
        if dtype == "bool" and symbol in _BITS:
            return Scalar(self._op(_BITS[symbol], a, b, "bool", span), "bool")
        if x == y == "bool":
            raise KernelTypeError(
                f"`{symbol}` of two booleans: Python and torch disagree on what it means", span,
                help="use `and`, `or`, `^`, or int(...) around them",
            )  # fmt: skip
        if symbol in ("<<", ">>", *_BITS):
            return self._bitwise(symbol, a, b, dtype, span)
        if symbol == "/" and not is_float(dtype):
            dtype = "float"
        if symbol in _RING:
            suffix = "f" if is_float(dtype) else "i"
            return Scalar(self._op(_RING[symbol] + suffix, a, b, dtype, span), dtype)
        if symbol == "/":
            return Scalar(self._op("divf", a, b, dtype, span), dtype)
        if symbol == "**":
            return self._power(a, b, dtype, span)
        if is_float(dtype):
            return self._float_divmod(symbol, a, b, dtype, span)
        return self._int_divmod(symbol, a, b, dtype, span)

    def _op(self, name: str, a: Operand, b: Operand, dtype: str, span: Span) -> Value:
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        return self.builder.op(f"arith.{name}", x, y)

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
        name = "shli" if symbol == "<<" else "shrui" if dtype == "u8" else "shrsi"
        return Scalar(self._op(name, a, b, dtype, span), dtype)

    def _int_divmod(self, symbol: str, a: Operand, b: Operand, dtype: str, span: Span) -> Scalar:
        # A run-time Python int may be wider than the tensor's integers: divide in 64 bits then.
        weak = any(isinstance(x, Scalar) and x.dtype == "int" for x in (a, b))
        wide = "int" if weak else dtype
        divide = "divui" if wide == "u8" else "floordivsi"
        x, y = self.cast(a, wide, span), self.cast(b, wide, span)
        quotient = self.builder.op(f"arith.{divide}", x.value, y.value)
        if symbol == "%":
            product = self.builder.op("arith.muli", quotient, y.value)
            quotient = self.builder.op("arith.subi", x.value, product)
        return self.cast(Scalar(quotient, wide), dtype, span)

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
            signed_zero = op("math.copysign", zero, y)
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
                target = "int" if dtype == "bool" else dtype
                power = self._chain(self.cast(a, target, span), int(abs(exponent)))
                if exponent >= 0:
                    return power
                return self.binary("/", Static(1.0), power, span)
            if is_int(base_dtype):
                return self._power(
                    self.cast(a, "float", span), Static(float(exponent)), "float", span
                )
        if not is_float(dtype):
            help = "write float(x) ** n, or a loop of multiplications"
            if isinstance(a, Static) and a.value > 1 and a.value.bit_count() == 1:
                bits = a.value.bit_length() - 1
                help = f"write 1 << n for {a.value} ** n" if bits == 1 else f"write 1 << {bits} * n"
            raise KernelTypeError(
                "an integer raised to an exponent that is only known at run time", span, help=help
            )
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
        dtype = promote(x, y)
        if is_float(dtype):
            return self._predicate("cmpf", _ORDERED[symbol], a, b, dtype, span)
        # Compare in 64 bits where a Python int could lie outside the tensor's integer type.
        if x != y and not is_weak(dtype) and any(is_weak(d) for d in (x, y)):
            literal = next((v.value for v in (a, b) if isinstance(v, Static)), None)
            low, high = int_range(dtype)
            if literal is None or not low <= literal <= high:
                dtype = "int"
        predicate = (_UNSIGNED if dtype in ("u8", "bool") else _SIGNED)[symbol]
        return self._predicate("cmpi", predicate, a, b, dtype, span)

    def _predicate(
        self, name: str, predicate: str, a: Operand, b: Operand, dtype: str, span: Span
    ) -> Scalar:
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        return Scalar(self.builder.op(f"arith.{name}", x, y, predicate=predicate), "bool")

    def select(self, condition: Value, a: Operand, b: Operand, span: Span) -> Scalar:
        dtype = promote(self.number(a, span), self.number(b, span))
        x, y = self.cast(a, dtype, span).value, self.cast(b, dtype, span).value
        return Scalar(self.builder.op("arith.select", condition, x, y), dtype)

    def extreme(self, symbol: str, a: Operand, b: Operand, span: Span) -> Scalar | Static:
        """Python's ``max(a, b)`` (symbol ">") and ``min(a, b)`` ("<"): b if b symbol a else a."""
        if isinstance(a, Static) and isinstance(b, Static):
            return Static(max(a.value, b.value) if symbol == ">" else min(a.value, b.value))
        x, y = self.number(a, span), self.number(b, span)
        dtype = promote(x, y)
        if is_float(dtype) or "bool" in (x, y):
            better = self.compare(symbol, b, a, span)
            return self.select(self.truth(better, span), b, a, span)
        weak = any(isinstance(v, Scalar) and v.dtype == "int" for v in (a, b))
        literal = next((v.value for v in (a, b) if isinstance(v, Static)), 0)
        low, high = int_range(dtype)
        if (literal > high) if symbol == ">" else (literal < low):  # it is the result, always
            raise _does_not_fit(literal, dtype, span)
        wide = "int" if weak or not low <= literal <= high else dtype
        name = ("max" if symbol == ">" else "min") + ("ui" if wide == "u8" else "si")
        return self.cast(Scalar(self._op(name, a, b, wide, span), wide), dtype, span)

    def negate(self, x: Operand, span: Span) -> Scalar | Static:
        if isinstance(x, Varying):
            return self._varying("*", x, Static(-1), span)
        if isinstance(x, Static):
            return Static(-x.value)
        dtype = self.number(x, span)
        if dtype == "bool":
            dtype = "int"
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
        if isinstance(x, Static):
            return Static(abs(x.value))
        dtype = self.number(x, span)
        if dtype == "u8":
            return self.cast(x, dtype, span)
        dtype = "int" if dtype == "bool" else dtype
        name = "math.absf" if is_float(dtype) else "math.absi"
        return Scalar(self.builder.op(name, self.cast(x, dtype, span).value), dtype)

    def function(self, name: str, arguments: list[Operand], span: Span) -> Scalar:
        """``math.<name>`` of the IR on floats; integers become the kernel's own float first."""
        dtype = "bool"
        for x in arguments:
            dtype = promote(dtype, self.number(x, span))
        if not is_float(dtype):
            dtype = "float"
        values = [self.cast(x, dtype, span).value for x in arguments]
        result = self.builder.op(f"math.{name}", *values)
        return Scalar(result, "bool" if result.type is ir.i1 else dtype)


def _scalar_of(x: Operand) -> str:
    """What is written to have a number of ``x``, for messages."""
    if isinstance(x, Vec):
        return (
            "name an element, v[0] or v.x, or what makes one number of it, as v.sum() or v.norm()"
        )
    if isinstance(x, Tup):
        return "name an item: t[0]"
    if isinstance(x, Range | Box):
        return "loop over it"
    if isinstance(x, Method):
        return f"call it: .{x.name}()"
    if isinstance(x, Unbound):
        return f"{x.reason}: give it a value before"
    if isinstance(x, Static):
        if x.value is None:
            return "test `is None`, or let the function return a number on every path"
        if isinstance(x.value, str | bytes):
            return "pass a number for it; strings can be compared with each other, and printed"
        if callable(x.value):
            return "call it"
        return "use its attributes or items that are numbers"
    return "subscript a tensor with one index for each dimension to read an element"


def _does_not_fit(value: int, dtype: str, span: Span) -> KernelValueError:
    help = "widen the other operand, for instance weft.i64(x)"
    if dtype in ("int", "i64"):
        help = "write a float, as 1e300"
        if value >> 63 == 1:  # of a hash: it has 64 bits without a sign
            help = f"weft has no unsigned 64 bits: for the same bits write {value - (1 << 64)}"
    return KernelValueError(
        f"{shown(value)} does not fit in {'64 bits' if dtype == 'int' else dtype}", span, help=help
    )


def shown(value: Any) -> str:
    """A number for a message; of a long one, how long it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)


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

"""The types of a kernel's numbers, conversions between them, and captured numbers that change."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from weft.errors import KernelTypeError, KernelValueError
from weft.frontend.kinds import (
    BITS,
    INTS,
    STORAGE,
    UNSIGNED,
    Box,
    Complex,
    Method,
    NumberPinned,
    Operand,
    Range,
    Scalar,
    Static,
    Tensor,
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
    of_values,
)
from weft.ir import types as ir
from weft.ir.builder import Builder
from weft.ir.core import Block, Value
from weft.lang.dtypes import DTYPES
from weft.lang.numbers import Number, converted, plain
from weft.source import Span

RING = {"+": "add", "-": "sub", "*": "mul"}
WORD_BITS = 62  # of an integer that is computed of captured ones that vary


class Conversions:
    """Emits conversions into ``builder``; ``float_type`` is the kernel's own float."""

    def __init__(self, builder: Builder, float_type: ir.ScalarType) -> None:
        self.builder = builder
        self.float_type = float_type
        self.of_whole: Callable[[], str] = lambda: (
            ""
        )  # more help, where a whole tensor is not a number

    def type(self, dtype: str) -> ir.ScalarType:
        """The IR type that values of ``dtype`` are computed in."""
        if dtype == "int":
            return ir.index
        if dtype == "float":
            return self.float_type
        return ir.compute_type(STORAGE[dtype])

    def constant(self, value: bool | int | float, dtype: str) -> Scalar:
        if dtype in UNSIGNED and value >> (BITS[dtype] - 1):  # type: ignore[operator]
            value -= 1 << BITS[dtype]  # the IR's integers have no sign of their own: its bits
        return Scalar(self.builder.constant(value, self.type(dtype)), dtype)

    def number(self, x: Operand, span: Span, what: str = "this") -> str:
        """The dtype of ``x``, which must be a number."""
        dtype = dtype_of(x)
        if dtype is None:
            more = self.of_whole() if isinstance(x, Tensor) else ""
            raise KernelTypeError(
                f"{what} must be a scalar, and is {describe(x)}", span, help=_scalar_of(x) + more
            )
        return dtype

    def cast(self, x: Operand, dtype: str, span: Span) -> Scalar:
        """``x`` as a scalar of ``dtype``, as an assignment or an operand converts it."""
        dtype = of_values(dtype)
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
        elif isinstance(x, Static) and type(dtype_of(x)) is str and dtype in INTS:
            x = x if isinstance(x, Varying) else Static(converted(x.value, DTYPES[dtype]))
        scalar = self.cast(x, dtype, span)
        if is_float(dtype) and not is_weak(dtype) and STORAGE[dtype].is_storage:
            b = self.builder
            narrow = b.op("arith.truncf", scalar.value, type=STORAGE[dtype])
            return Scalar(b.op("arith.extf", narrow, type=ir.f32), scalar.dtype)
        return scalar

    def _literal(self, value: Any, dtype: str, span: Span) -> Scalar:
        if is_int(dtype) and not isinstance(value, float):
            low, high = int_range(dtype)
            if not low <= value <= high:
                raise does_not_fit(value, dtype, span)
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
            if target in UNSIGNED:
                return b.op("arith.fptoui", value, type=type)
            if target == "int":
                return b.op(
                    "arith.index_cast", b.op("arith.fptosi", value, type=ir.i64), type=ir.index
                )
            return b.op("arith.fptosi", value, type=type)
        unsigned = source in UNSIGNED or source == "bool"
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


class Captured:
    """Emits arithmetic on captured numbers where ``builder`` stands: at the function's start."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.start, self.above = builder.block, 0  # where, and after how many operations

    def binary(self, symbol: str, a: Static, b: Static, span: Span) -> Static:
        """Python's arithmetic on captured numbers and constants, at the function's start."""
        dtypes, places = (dtype_of(a), dtype_of(b)), _places(a, b)
        if symbol not in "+-*/" or not {*dtypes} <= {"int", "float"}:
            raise NumberPinned(places)
        whole = dtypes == ("int", "int") and symbol != "/"
        m, n = map(_bits, (a, b)) if whole else (0, 0)
        bits = m + n if symbol == "*" else max(m, n) + 1
        if (whole and bits > WORD_BITS) or (symbol == "/" and isinstance(b, Varying)):
            raise NumberPinned(places)  # it may overflow, or be a division by zero
        name = "divf" if symbol == "/" else RING[symbol] + ("i" if whole else "f")
        with self._at_start():
            x, y = (self._wide(v, ir.index if whole else ir.f64) for v in (a, b))
            made = self.builder.op(f"arith.{name}", x, y)
        either = symbol != "/" and _either(a, b)
        return Varying(made, "int" if whole else "float", places, bits, either)

    def magnitude(self, x: Varying) -> Static:
        """``abs(x)``."""
        with self._at_start():
            made = self.builder.op("math.absi" if x.dtype == "int" else "math.absf", x.scalar)
        return Varying(made, x.dtype, x.places, x.bits, x.either)

    def extreme(self, symbol: str, a: Static, b: Static) -> Static:
        """``b`` if it is more (symbol ">") or less ("<") than ``a``, else ``a``."""
        places, dtypes = _places(a, b), {dtype_of(a), dtype_of(b)}
        if not dtypes <= {"int", "float"}:
            raise NumberPinned(places)
        whole = dtypes == {"int"}
        with self._at_start():
            x, y = (self._wide(v, ir.index if whole else ir.f64) for v in (a, b))
            name, way = ("cmpi", "s") if whole else ("cmpf", "o")
            way += "gt" if symbol == ">" else "lt"
            better = self.builder.op(f"arith.{name}", y, x, predicate=way)
            made = self.builder.op("arith.select", better, y, x)
        bits = max(map(_bits, (a, b))) if whole else 0
        return Varying(made, "int" if whole else "float", places, bits, _either(a, b, True))

    @contextmanager
    def _at_start(self) -> Generator[None]:
        """What is emitted stands at the function's start."""
        scratch = Block([])
        with self.builder.at(scratch):
            yield
        self.start.ops[self.above : self.above] = scratch.ops
        self.above += len(scratch.ops)

    def _wide(self, x: Static, type: ir.ScalarType) -> Value:
        if not isinstance(x, Varying):
            return self.builder.constant(x.value, type)
        if x.scalar.type is type:
            return x.scalar
        value = self.builder.op("arith.index_cast", x.scalar, type=ir.i64)
        return self.builder.op("arith.sitofp", value, type=type)


def _places(*operands: Static) -> frozenset[Any]:
    """Where the numbers were captured."""
    found = (x.places for x in operands if isinstance(x, Varying))
    return frozenset[Any]().union(*found)


def _bits(x: Static) -> int:
    """How many bits a whole number has at most."""
    return x.bits if isinstance(x, Varying) else int(x.value).bit_length()


def _either(a: Static, b: Static, one_of_them: bool = False) -> bool:
    """Whether Python may have an int where a float is computed of both, or is one of them."""
    may_be_int = [dtype_of(x) == "int" or (isinstance(x, Varying) and x.either) for x in (a, b)]
    return any(may_be_int) if one_of_them else all(may_be_int)


def _scalar_of(x: Operand) -> str:
    """What is written to have a number of ``x``, for messages."""
    if isinstance(x, Vec):
        return (
            "name an element, v[0] or v.x, or what makes one number of it, as v.sum() or v.norm()"
        )
    if isinstance(x, Tup) and not x.in_order:
        return f"name a member of it: it has {', '.join(map(str, x.names))}"
    if isinstance(x, Tup):
        return "name an item, t[0]; an array of the iteration is weft.zeros(n, weft.f32)"
    if isinstance(x, Complex) or (isinstance(x, Static) and isinstance(x.value, complex)):
        return "write z.real, z.imag or abs(z)"
    if isinstance(x, Range | Box):
        return "loop over it"
    if isinstance(x, Method):
        return x.missing or f"call it: .{x.name}()"
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


def does_not_fit(value: int, dtype: str, span: Span) -> KernelValueError:
    help = "widen the other operand, for instance weft.i64(x)"
    if dtype in ("int", "i64"):
        help = "write a float, as 1e300"
        if value >> 63 == 1:  # of a hash: it has 64 bits without a sign
            help = f"write weft.u64({value}); in i64, the same bits are {value - (1 << 64)}"
    return KernelValueError(
        f"{shown(value)} does not fit in {'64 bits' if dtype == 'int' else dtype}", span, help=help
    )


def shown(value: Any) -> str:
    """A number for a message; of a long one, how long it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)

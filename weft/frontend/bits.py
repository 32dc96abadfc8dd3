"""Functions of types and bits: ``BITS[canonical name]`` lowers a call."""

from __future__ import annotations

import ast
import math

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates
from weft.frontend.casts import Handler, dtype_from, dtype_name
from weft.frontend.context import Lowering
from weft.frontend.functions import remainder
from weft.frontend.kinds import BITS as WIDTHS
from weft.frontend.kinds import (
    STORAGE,
    Operand,
    Scalar,
    Static,
    Tup,
    Vec,
    is_float,
    is_int,
    of_values,
    promote,
)
from weft.ir import types as ir
from weft.ir.core import Value

# Of floats: bits of the mantissa, the exponent's bias, and the integer of that width.
_FLOATS = {"f32": (23, 127, ir.i32), "f64": (52, 1023, ir.i64)}


def _like(value: int) -> Handler:
    """``zero(x)`` and ``one(x)``."""

    def scalar(cx: Lowering, x: Operand, span: Span) -> Scalar | Static:
        if isinstance(x, Static):
            return Static(type(x.value)(value))
        return cx.scalars.constant(value, cx.scalars.number(x, span))

    return _each(scalar)


def _each(scalar: object) -> Handler:
    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        read = [a if isinstance(a, Vec) else cx.read_scalar(a, span) for a in arguments]
        return aggregates.elementwise(lambda *v: scalar(cx, *v, span), read, span)  # type: ignore

    return handler


def _integer(cx: Lowering, x: Operand, name: str, span: Span) -> Scalar:
    dtype = cx.scalars.number(x, span)
    if not is_int(dtype):
        raise KernelTypeError(f"`{name}` needs an integer, and this is a {dtype}", span,
                              help="convert with int(...) first, or take its bits with "
                              "weft.bit_cast")  # fmt: skip
    return cx.scalars.cast(x, dtype, span)


def _bit_shr(cx: Lowering, x: Operand, n: Operand, span: Span) -> Operand:
    value = _integer(cx, x, "bit_shr", span)
    amount = _integer(cx, n, "bit_shr", span)
    b, width = cx.builder, WIDTHS.get(value.dtype, 64)
    most = b.constant(width, ir.index)  # the low bits of an amount say less than the amount
    less = b.op("arith.minui", cx.scalars.cast(amount, "int", span).value, most)
    amount = cx.scalars.cast(Scalar(less, "int"), value.dtype, span)
    return Scalar(b.op("arith.shrui", value.value, amount.value), value.dtype)


def _clz(cx: Lowering, x: Operand, span: Span) -> Operand:
    """The width less the ones of the bits from the first one on."""
    given = _integer(cx, x, "clz", span)
    b, value, width = cx.builder, given.value, WIDTHS.get(given.dtype, 64)
    shift = 1
    while shift < width:
        amount = b.constant(shift, value.scalar)
        value = b.op("arith.ori", value, b.op("arith.shrui", value, amount))
        shift *= 2
    ones = b.op("math.ctpop", value)
    return Scalar(b.op("arith.subi", b.constant(width, value.scalar), ones), given.dtype)


def _bit_cast(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    target = dtype_name(dtype_from(arguments[1], span))
    target = {"int": "i32", "float": "f32"}.get(target, target)

    def scalar(cx: Lowering, x: Operand, span: Span) -> Operand:
        own = cx.scalars.number(x, span)
        bits = STORAGE[target].bits
        if own in ("int", "float"):  # of that width
            own = {"int": "i", "float": "f"}[own] + str(bits)
            if own not in STORAGE:
                own = "f64"
            x = cx.scalars.cast_exactly(x, own, span)
        if STORAGE[own].bits != bits or "bool" in (own, target):
            raise KernelTypeError(
                f"bit_cast of a {own} to {target}: they have {STORAGE[own].bits} and {bits} bits",
                span, help="cast to a type of as many bits first",
            )  # fmt: skip
        b, value = cx.builder, cx.scalars.cast(x, own, span).value
        if STORAGE[own].is_storage:
            value = b.op("arith.truncf", value, type=STORAGE[own])
        if value.type is not STORAGE[target]:
            value = b.op("arith.bitcast", value, type=STORAGE[target])
        if STORAGE[target].is_storage:
            value = b.op("arith.extf", value, type=ir.f32)
        return Scalar(value, of_values(target))

    return _each(scalar)(cx, node, arguments[:1])


def _raw_div(cx: Lowering, a: Operand, b: Operand, span: Span) -> Operand:
    s = cx.scalars
    dtype = promote(s.number(a, span), s.number(b, span))
    if is_float(dtype) or dtype == "bool":
        return s.binary("/", a, b, span)
    return s.binary("//", s.binary("-", a, remainder(cx, [a, b], span), span), b, span)


def _frexp(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """From the bits: a subnormal number is made a normal one first."""
    span, b, s = cx.span(node), cx.builder, cx.scalars
    x = cx.read_scalar(arguments[0], span)
    dtype = s.number(x, span)
    given = s.cast(x, dtype if is_float(dtype) else "float", span)
    type = given.value.scalar
    mantissa, bias, whole = _FLOATS[type.name]

    def exponent_of(bits: Value) -> Value:
        raw = b.op("arith.shrui", bits, b.constant(mantissa, whole))
        return b.op("arith.andi", raw, b.constant(2 * bias + 1, whole))

    zero = b.constant(0, whole)
    tiny = b.op("arith.cmpi", exponent_of(b.op("arith.bitcast", given.value, type=whole)), zero,
                predicate="eq")  # fmt: skip
    larger = b.op("arith.mulf", given.value, b.constant(2.0 ** (mantissa + 1), type))
    bits = b.op("arith.bitcast", b.op("arith.select", tiny, larger, given.value), type=whole)
    exponent = exponent_of(bits)
    rest = b.op("arith.andi", bits, b.constant(~((2 * bias + 1) << mantissa), whole))
    half = b.op("arith.ori", rest, b.constant((bias - 1) << mantissa, whole))
    less = b.op("arith.select", tiny, b.constant(bias + mantissa, whole),
                b.constant(bias - 1, whole))  # fmt: skip
    found = b.op("arith.subi", exponent, less)
    none = b.op("arith.cmpf", given.value, b.constant(0.0, type), predicate="oeq")
    special = b.op("arith.cmpi", exponent, b.constant(2 * bias + 1, whole), predicate="eq")
    none = b.op("arith.ori", none, special)
    part = b.op("arith.bitcast", half, type=type)
    part = b.op("arith.select", none, given.value, part)
    found = b.op("arith.select", none, zero, found)
    if whole is not ir.i32:
        found = b.op("arith.trunci", found, type=ir.i32)
    return Tup([Scalar(part, given.dtype), Scalar(found, "i32")])


def method(cx: Lowering, x: Scalar, name: str, span: Span) -> Operand | None:
    """Methods that Python's numbers have; None where ``x`` is an element, or has no such one."""
    s = cx.scalars
    match x.dtype, name:
        case "int", "bit_length":
            return s.binary("-", Static(64), _clz(cx, s.magnitude(x, span), span), span)
        case "int", "bit_count":
            size = s.cast(s.magnitude(x, span), "int", span)
            return Scalar(cx.builder.op("math.ctpop", size.value), "int")
        case "int" | "float", "is_integer":
            whole = s.compare("==", s.function("floor", [x], span), x, span)
            finite = s.compare("<", s.magnitude(x, span), Static(math.inf), span)
            both = s.binary("&", whole, finite, span)
            return Static(True) if x.dtype == "int" else both
        case _:
            return None


BITS: dict[str, Handler] = {
    "zero": _like(0), "one": _like(1), "bit_shr": _each(_bit_shr), "clz": _each(_clz),
    "bit_cast": _bit_cast, "raw_div": _each(_raw_div), "frexp": _frexp,
    "raw_mod": _each(lambda cx, a, b, span: remainder(cx, [a, b], span)),
}  # fmt: skip

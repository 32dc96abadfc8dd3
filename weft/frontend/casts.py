"""Types named in a kernel, casts, and what loops are unrolled over."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import KernelTypeError, KernelValueError, Span
from weft.frontend import aggregates, complexes, overflow
from weft.frontend.context import Lowering
from weft.frontend.conversions import shown
from weft.frontend.kinds import (
    Operand,
    Range,
    Scalar,
    Static,
    Tup,
    Vec,
    constant_value,
    describe,
    dtype_of,
    is_complex,
)
from weft.ir.core import Value
from weft.ir.types import index
from weft.ir.views import constant_of, made_by
from weft.lang.dtypes import DTYPES, ComplexType, as_dtype, complex_type
from weft.lang.vectors import MatrixType, VectorType

# Methods that cast, and to what.
CASTING = {"float": "f32", "double": "f64", "half": "f16", "bfloat16": "bf16", "int": "i32",
           "long": "i64", "bool": "bool"}  # fmt: skip
MOST_ELEMENTS = 1 << 20  # of a local array
_OF_SETS = {"|": operator.or_, "&": operator.and_, "-": operator.sub, "^": operator.xor}
Handler = Callable[[Lowering, ast.Call, list[Operand]], Operand]


def dtype_object(name: str) -> Any:
    """What ``x.dtype`` is: torch's dtype of that name; Python's own type for a weak one."""
    return {"int": int, "float": float}.get(name) or DTYPES[name].torch


def complex_object(part: str) -> Any:
    """What ``z.dtype`` is of a complex number with parts of that dtype."""
    return {"f32": torch.complex64, "f64": torch.complex128}.get(part, complex)


def dtype_from(x: Operand, span: Span) -> Any:
    """The dtype (or vector type) that an annotation or an argument names."""
    value = x.value if isinstance(x, Static) else None
    found = complex_type(value)
    if found is not None or value is complex:
        return found or value
    if (
        value is float
        or value is int
        or value is bool
        or isinstance(value, (VectorType, MatrixType))
    ):
        return value
    try:
        return as_dtype(value)
    except KernelTypeError:  # said again with the user's own line
        raise KernelTypeError(
            f"{describe(x)} is not a type",
            span,
            help="write a dtype such as weft.f32, torch.float32, int or float",
        ) from None


def dtype_name(value: Any) -> str:
    return {float: "float", int: "int", bool: "bool"}.get(value) or value.name


def cast(cx: Lowering, x: Operand, dtype: Any, span: Span) -> Operand:
    """``dtype(x)``; of a vector, element by element."""
    if isinstance(dtype, (VectorType, MatrixType)):
        return vector_type(cx, dtype, [x], span)
    if isinstance(dtype, ComplexType) or dtype is complex:
        part = dtype.part if isinstance(dtype, ComplexType) else "float"
        return complexes.cast(cx.scalars, cx.read_number(x, span), part, span)
    name = dtype_name(dtype)
    if isinstance(x, Vec):
        for item in x.items:
            overflow.fits(cx, item, name, span)
        return aggregates.cast(cx, x, lambda i: cx.scalars.cast_exactly(i, name, span))
    number = cx.read_scalar(x, span)
    if isinstance(number, Static) and name in ("int", "float", "bool"):
        convert = {"int": int, "float": float, "bool": bool}[name]
        try:
            return Static(convert(number.value))
        except (OverflowError, ValueError) as error:  # int(inf), int(nan), float(10 ** 400)
            raise KernelValueError(
                f"{name}({shown(number.value)}): {error}", span,
                help="write the number that is meant, or math.inf",
            ) from None  # fmt: skip
    exact = _whole(cx, number, span) if name in ("int", "i32", "i64") else None
    overflow.fits(cx, number, name, span)
    return cx.scalars.cast_exactly(exact or number, name, span)


def of_constants(function: Any, values: list[Any], node: ast.Call, span: Span) -> Operand:
    """``function(*values)``, which Python evaluates. Raises ``KernelTypeError``."""
    try:
        return Static(function(*values))
    except (TypeError, ValueError, OverflowError) as error:
        raise KernelTypeError(
            f"`{ast.unparse(node)}`: {error}", span, help="write the value that is meant"
        ) from None


def _whole(cx: Lowering, x: Operand, span: Span) -> Scalar | None:
    """``quotient`` of a number that is made an integer: rounded before, or not."""
    if isinstance(x, Scalar):
        for name in ("floor", "ceil", "trunc", "roundeven"):
            rounded = made_by(x.value, f"math.{name}")
            if rounded is not None:
                return quotient(cx, name, Scalar(rounded.operand, x.dtype), span)
    return quotient(cx, "trunc", x, span)


def quotient(cx: Lowering, name: str, x: Operand, span: Span) -> Scalar | None:
    """``x`` rounded by ``floor``, ``ceil``, ``trunc`` or ``roundeven``, if it is i / j of Python's
    integers, which Python rounds in float64: exactly, without the rounding of the kernel's own
    float. 0 where j is, as i // j."""
    if not isinstance(x, Scalar) or x.dtype != "float":
        return None
    divided = made_by(x.value, "arith.divf")
    i, j = (_integer(cx, v) for v in divided.operands) if divided is not None else (None, None)
    if i is None or j is None:
        return None
    b, zero = cx.builder, cx.builder.constant(0, index)
    overflow.divisor_is_not_zero(cx, "/", Scalar(i, "int"), Scalar(j, "int"), "int", span)
    found = b.op("arith.floordivsi", i, j)
    if name != "floor":
        one = b.constant(1, index)
        rest = b.op("arith.subi", i, b.op("arith.muli", found, j))
        if name == "roundeven":
            more = _nearer_above(cx, found, rest, b.op("arith.subi", j, rest), j)
        else:
            more = b.op("arith.cmpi", rest, zero, predicate="ne")
        if name == "trunc":
            negative = b.op("arith.cmpi", found, zero, predicate="slt")
            more = b.op("arith.andi", more, negative)
        elif constant_of(j) is None:
            divides = b.op("arith.cmpi", j, zero, predicate="ne")
            more = b.op("arith.andi", more, divides)
        found = b.op("arith.addi", found, b.op("arith.select", more, one, zero))
    return Scalar(found, "int")


def _nearer_above(cx: Lowering, below: Value, down: Value, up: Value, j: Value) -> Value:
    """Whether the integer above i / j is nearer than ``below``, or as near and even. ``down`` and
    ``up`` are j times how far these are; both have the sign of j."""
    b, zero = cx.builder, cx.builder.constant(0, index)
    negative = b.op("arith.cmpi", j, zero, predicate="slt")
    further = [b.op("arith.cmpi", down, up, predicate=p) for p in ("slt", "sgt")]
    odd = b.op("arith.cmpi", b.op("arith.andi", below, b.constant(1, index)), zero, predicate="ne")
    tie = b.op("arith.cmpi", down, up, predicate="eq")
    return b.op("arith.ori", b.op("arith.select", negative, *further), b.op("arith.andi", tie, odd))


def _integer(cx: Lowering, value: Value) -> Value | None:
    """The index that ``value``, a float, was made of, or that is written."""
    number = constant_of(value)
    if number is not None:
        whole = abs(number) < 1 << 53 and number == int(number) != 0
        return cx.builder.constant(int(number), index) if whole else None
    made = made_by(value, "arith.sitofp")
    cast = made_by(made.operand, "arith.index_cast") if made is not None else None
    return cast.operand if cast is not None and cast.operand.type is index else None


def static_items(x: Operand) -> list[Operand] | None:
    """The items of what a loop over ``x`` is unrolled over; None where it is a run-time loop."""
    if isinstance(x, Tup):
        return x.iterated()
    if isinstance(x, Vec):
        return list(aggregates.rows(x))
    if isinstance(items := constant_value(x), dict):
        return list(map(Static, items))  # the keys
    if isinstance(items, (tuple, list, range)):
        return [Tup([Static(i) for i in v]) if isinstance(v, tuple) else Static(v) for v in items]
    return None


def known_items(x: Operand) -> list[Operand] | None:
    """The items of what is written out where it is unpacked or spread: those of a range, too."""
    numbers = aggregates.numbers(x) if isinstance(x, Range) else None
    return static_items(x) if numbers is None else [*numbers]


def of_sets(symbol: str, a: Operand, b: Operand) -> Static | None:
    """``a symbol b`` of two sets, which are known at compile time; None of anything else."""
    known = constant_value(a), constant_value(b)
    if symbol not in _OF_SETS or not all(isinstance(value, set | frozenset) for value in known):
        return None
    return Static(_OF_SETS[symbol](*known))


def picked(cx: Lowering, items: list[Operand], k: Scalar | Static, span: Span) -> Operand:
    """``items[k]``, where a run-time ``k`` selects among numbers, tuples or structs of these."""
    if isinstance(k, Static):
        return items[k.value]
    tuples = [x for x in items if isinstance(x, Tup)]
    if tuples and len(tuples) == len(items) and len({len(x.items) for x in tuples}) == 1:
        made = [picked(cx, list(c), k, span) for c in zip(*(x.items for x in tuples), strict=True)]
        forms = {(x.names, x.struct) for x in tuples}
        return Tup(made, *forms.pop()) if len(forms) == 1 else Tup(made)
    if not items or not all(dtype_of(x) or is_complex(x) for x in items):
        raise KernelTypeError("items that are no numbers, chosen by a run-time index", span,
                              help="write the cases out, or use a tensor")  # fmt: skip
    return aggregates.pick(cx, items, k, ast.Name("items"), span)


def extent(x: Operand, span: Span) -> int:
    """A size of a local array or vector, which is known at compile time."""
    if not isinstance(x, Static) or type(x.value) is not int:
        raise KernelTypeError(
            "the shape of a local array or vector must be known at compile time",
            span,
            help="use constants or template() arguments; weft.zeros(n, weft.f32, most=64) is an "
            "array of at most so many",
        )
    if x.value < 1:
        raise KernelValueError(f"a local array or vector of {shown(x.value)} elements", span,
                               help="sizes are 1 or more")  # fmt: skip
    if x.value > MOST_ELEMENTS:
        raise too_large(x.value, span)
    return x.value


def too_large(count: int, span: Span) -> KernelValueError:
    return KernelValueError(
        f"a local array or vector of {shown(count)} elements: each iteration has one of its own, "
        f"of at most {MOST_ELEMENTS}", span,
        help="make a tensor in the host part, with one more dimension for the iteration",
    )  # fmt: skip


def vector_type(
    cx: Lowering, type: VectorType | MatrixType, arguments: list[Operand], span: Span
) -> Operand:
    """``ivec2(a, b)``, ``vec3(0.0)``, ``mat2(row, row)``."""
    items: list[Operand] = []

    def spread(x: Operand) -> None:
        parts = static_items(x)
        if isinstance(x, Vec):
            items.extend(x.items)
        elif parts is not None:
            for p in parts:
                spread(p)
        else:
            items.append(cx.read_scalar(x, span))

    for a in arguments:
        spread(a)
    shape, count = type.shape, math.prod(type.shape)
    if len(items) == 1:
        items *= count
    if len(items) != count:
        raise KernelTypeError(f"{count} elements are needed, and {len(items)} are given", span,
                              help=f"pass {count} scalars, or one for all")  # fmt: skip
    if type.dtype is not None:
        name = type.dtype.name
        items = [cx.scalars.cast_exactly(i, name, span) for i in items]
    elif type.kind == "float":
        items = [aggregates.floats(cx, i, span) for i in items]
    return Vec(items, shape)  # type: ignore[arg-type]

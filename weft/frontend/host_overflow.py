"""Overflow of integers in the host part, which debug mode checks: arithmetic, negation, shifts and
casts of numbers that have a dtype (annotated ones, ``weft.i32(n)``, elements of fields), and of
vectors of these, as ``frontend.overflow`` does in device loops.

What is computed is Python's and stays so; a check computes it again, exactly. Products and sums of
Python's own ints and of torch's tensors are not looked at.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from weft.errors import OVERFLOW_HELP, KernelOverflowError, Span
from weft.lang.dtypes import DType, Number, Scalar, from_torch
from weft.lang.elements import Elementwise

# By operator: its symbol, what Python does, and what `x += y` does.
_BINARY: dict[type[ast.operator], tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    ast.Add: ("+", operator.add, operator.iadd), ast.Sub: ("-", operator.sub, operator.isub),
    ast.Mult: ("*", operator.mul, operator.imul), ast.Pow: ("**", operator.pow, operator.ipow),
    ast.LShift: ("<<", operator.lshift, operator.ilshift),
    ast.FloorDiv: ("//", operator.floordiv, operator.ifloordiv),
}  # fmt: skip


def binary(
    kind: type[ast.operator], in_place: bool, span: Span
) -> Callable[[Any, Any], Any] | None:
    """What computes ``a + b``, or ``a += b``, and checks it; None of operators that cannot
    overflow."""
    if kind not in _BINARY:
        return None
    symbol, plain, augmented = _BINARY[kind]

    def computed(a: Any, b: Any) -> Any:
        result = (augmented if in_place else plain)(a, b)
        made = _listed(result)
        for x, y, found in zip(_listed(a, made), _listed(b, made), made, strict=False):
            _check(symbol, x, y, found, span)
        return result

    return computed


def negation(span: Span) -> Callable[[Any], Any]:
    """What computes ``-a`` and checks it."""

    def computed(a: Any) -> Any:
        result = -a
        for x, found in zip(_listed(a), _listed(result), strict=False):
            dtype = _dtype(found)
            if dtype is not None and int(found) != -int(x):
                raise KernelOverflowError(
                    f"-{int(x)} overflows {dtype.name}", span, help=OVERFLOW_HELP
                )
        return result

    return computed


def fitting(dtype: Any, value: Any, span: Span) -> Any:
    """``value``, which is cast to ``dtype``: each integer fits where that is one of integers."""
    if isinstance(dtype, DType) and dtype.kind == "int":
        low = -(1 << (dtype.bits - 1)) if dtype.signed else 0
        for x in _listed(value):
            whole = type(x) is int or _dtype(x) is not None
            if whole and not low <= int(x) < low + (1 << dtype.bits):
                raise KernelOverflowError(
                    f"{int(x)} does not fit in {dtype.name}", span, help=OVERFLOW_HELP
                )
    return value


def _listed(value: Any, beside: Sequence[Any] = (0,)) -> Sequence[Any]:
    """The numbers of a vector; of one number as many of it as there are ``beside``."""
    return value.entries() if isinstance(value, Elementwise) else [value] * len(beside)


def _dtype(value: Any) -> DType | None:
    """The integer type that a number has, if it has one."""
    if isinstance(value, Number):
        return value.dtype if value.dtype.kind == "int" else None
    if isinstance(value, Scalar) and not (value.is_floating_point() or value.is_complex()):
        dtype = from_torch(value.dtype)
        return dtype if dtype.kind == "int" else None
    return None


def _check(symbol: str, x: Any, y: Any, found: Any, span: Span) -> None:
    dtype = _dtype(found)
    if dtype is None or not all(type(v) in (int, bool) or _dtype(v) is not None for v in (x, y)):
        return
    a, b = int(x), int(y)
    if symbol == "//":
        wrong = b == -1 and int(found) != -a
    elif symbol == "<<":
        wrong = int(found) != a << min(max(b, 0), 2 * dtype.bits)
    else:
        compute = {"+": operator.add, "-": operator.sub, "*": operator.mul, "**": operator.pow}
        wrong = (symbol != "**" or b >= 0) and int(found) != compute[symbol](a, b)
    if wrong:
        raise KernelOverflowError(
            f"{a} {symbol} {b} overflows {dtype.name}", span, help=OVERFLOW_HELP
        )

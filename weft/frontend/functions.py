"""Functions of scalars: ``FUNCTIONS[canonical name]`` lowers a call, elementwise on vectors."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, expressions
from weft.frontend.casts import Handler, cast, dtype_from, quotient, static_items
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    UNSIGNED,
    Operand,
    Scalar,
    Static,
    Tensor,
    Varying,
    Vec,
    is_float,
    is_int,
    promote,
)
from weft.frontend.signatures import argument


def _each(f: Callable[[Lowering, list[Operand], Span], Operand]) -> Handler:
    """A scalar function, element by element on vectors."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        if any(isinstance(a, Vec) for a in arguments):
            arguments = [aggregates.build(a, span) if aggregates.is_nested(a) else a
                         for a in arguments]  # fmt: skip
        read = [a if isinstance(a, Vec) else cx.read_scalar(a, span) for a in arguments]
        return aggregates.elementwise(lambda *items: f(cx, list(items), span), read, span)

    return handler


def _math(name: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.function(name, a, span))


def _operator(symbol: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.binary(symbol, a[0], a[1], span))


def _comparison(symbol: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.compare(symbol, a[0], a[1], span))


def _logical(symbol: str) -> Handler:
    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        x, y = (cx.scalars.cast(v, "bool", span) for v in a)
        return cx.scalars.binary(symbol, x, y, span)

    return _each(f)


def pythons(cx: Lowering, x: Operand, span: Span) -> Operand:
    """A scalar as the number of Python that ``x.item()`` is. (One of u64 stays what it is.)"""
    dtype = cx.scalars.number(x, span)
    if isinstance(x, Static) or dtype in ("bool", "u64"):
        return x
    return cx.scalars.cast(x, "float" if is_float(dtype) else "int", span)


def _fabs(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    """``math.fabs``, which gives a float of an integer, too."""
    x = a[0]
    if not is_float(cx.scalars.number(x, span)):
        varies = isinstance(x, Varying)
        x = cx.scalars.cast(x, "float", span) if varies else cast(cx, x, float, span)
    return cx.scalars.magnitude(x, span)


def _whole(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    dtype = cx.scalars.number(a[0], span)
    if is_float(dtype):
        raise KernelTypeError(f"this must be an integer, and is a {dtype}", span,
                              help="convert with int(...) first")  # fmt: skip
    return pythons(cx, a[0], span)


def _rounding(name: str, to_int: bool) -> Handler:
    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        dtype = cx.scalars.number(a[0], span)
        if not is_float(dtype):
            whole = cx.scalars.cast(a[0], "int", span) if dtype == "bool" else a[0]
            return pythons(cx, whole, span) if to_int else whole
        exact = quotient(cx, name, a[0], span) if to_int else None
        if exact is not None:
            return exact
        rounded = cx.scalars.function(name, a, span)
        return cx.scalars.cast(rounded, "int", span) if to_int else rounded

    each = _each(f)

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        found = each(cx, node, arguments[:1])
        kind = argument(arguments, 1)  # Taichi's: the dtype of what it gives
        span = cx.span(node)
        return found if kind is None else cast(cx, found, dtype_from(kind, span), span)

    return handler


def _round_int(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    digits = argument(arguments, 1)
    if digits is not None:
        known = digits.value if isinstance(digits, Static) else None
        factor = 10**known if type(known) is int and 0 < known < 10 else "10 ** digits"
        raise KernelTypeError("`round` with digits cannot be compiled", cx.span(node),
                              help=f"write weft.round(x * {factor}) / {factor}")  # fmt: skip
    return _rounding("roundeven", to_int=True)(cx, node, arguments[:1])


def _log(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``log(x)``, and Python's ``log(x, base)``."""
    if len(arguments) == 2:
        top, bottom = (_math("log")(cx, node, [a]) for a in arguments)
        return expressions.binary(cx, "/", top, bottom, cx.span(node))
    return _math("log")(cx, node, arguments)


def _extremes(symbol: str) -> Handler:
    """Python's ``min`` and ``max`` of several scalars, or of one tuple or vector."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        items = arguments
        if len(arguments) == 1:
            items = static_items(arguments[0]) or []
        if not items:
            name = ast.unparse(node.func)
            raise KernelTypeError(f"`{name}` needs two or more scalars", span,
                                  help=f"write {name}(a, b)")  # fmt: skip
        result = items[0]
        for item in items[1:]:
            result = _each(lambda cx, a, span: cx.scalars.extreme(symbol, a[0], a[1], span))(
                cx, node, [result, item]
            )
        return cx.read_scalar(result, span) if isinstance(result, Tensor) else result

    return handler


def _propagating(name: str, **attrs: Any) -> Handler:
    """torch's ``maximum`` and ``minimum``: NaN where an argument is."""

    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        dtype = promote(cx.scalars.number(a[0], span), cx.scalars.number(a[1], span))
        if not is_float(dtype):
            return cx.scalars.extreme(">" if name == "maximum" else "<", a[0], a[1], span)
        x, y = (cx.scalars.cast(v, dtype, span).value for v in a)
        return Scalar(cx.builder.op(f"arith.{name}f", x, y, **attrs), dtype)

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        first, *rest = arguments
        result = _each(lambda cx, a, span: a[0])(cx, node, [first])
        for item in rest:
            result = _each(f)(cx, node, [result, item])
        return result

    return handler


def _fminmax(symbol: str) -> Handler:
    """``fmin`` and ``fmax``: the other argument where one is NaN."""

    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        better = cx.scalars.compare(f"{symbol}=", a[0], a[1], span)  # the derivative is the first's
        missing = cx.scalars.function("isnan", [a[1]], span)
        first = cx.scalars.binary("|", better, missing, span)
        return cx.scalars.select(cx.scalars.truth(first, span), a[0], a[1], span)

    return _each(f)


def sign(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s, dtype = cx.scalars, cx.scalars.number(a[0], span)
    up, down = s.compare(">", a[0], Static(0), span), s.compare("<", a[0], Static(0), span)
    dtype = "int" if dtype == "bool" else dtype
    result = s.cast(up, dtype, span)
    return s.binary("-", result, s.cast(down, dtype, span), span)  # of NaN 0, as torch.sign


def _select(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    condition = cx.scalars.truth(a[0], span)
    return cx.scalars.select(condition, a[1], a[2], span)


def _isfinite(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    nan = cx.scalars.function("isnan", a, span)
    inf = cx.scalars.function("isinf", a, span)
    return cx.scalars.negation(cx.scalars.binary("|", nan, inf, span), span)


def _relu(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    """torch's: NaN stays, and the derivative at 0 is 0, where that of ``max(x, 0)`` is 1."""
    s = cx.scalars
    if not is_float(s.number(a[0], span)):
        return s.extreme(">", a[0], Static(0), span)
    below = s.truth(s.compare("<=", a[0], Static(0), span), span)
    return s.select(below, Static(0.0), a[0], span)


def _scaled(factor: float) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.binary("*", a[0], Static(factor), span))


def _exact_remainder(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    """Python's ``math.fmod``, which takes numbers as they are: an int that an element's dtype does
    not hold, too."""
    s = cx.scalars
    numbers = [s.number(v, span) for v in a]
    if "int" in numbers and all(is_int(n) and n != "u64" for n in numbers):
        return remainder(cx, [s.cast(v, "int", span) for v in a], span)
    return remainder(cx, a, span)


def _float_power(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    """Python's ``math.pow``: of floats, where the root of -0.0 is 0 and that of -inf is not NaN."""
    s = cx.scalars
    floats = [s.cast(v, "float", span) if is_int(s.number(v, span)) else v for v in a]
    # Constants stay what they are, once it is known that a float holds them.
    base, exponent = (v if isinstance(v, Static) else f for v, f in zip(a, floats, strict=True))
    if isinstance(base, Static) and isinstance(exponent, Static):
        return s.binary("**", base, Static(float(exponent.value)), span)
    found = s.binary("**", base, exponent, span)
    if not isinstance(exponent, Static) or exponent.value not in (0.5, -0.5):
        return found
    least = Static(-math.inf)
    found = s.binary("**", s.binary("+", base, Static(0.0), span), exponent, span)
    infinite = s.truth(s.compare("==", base, least, span), span)
    return s.select(infinite, Static(math.inf if exponent.value > 0 else 0.0), found, span)


def remainder(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    """C's, with the sign of the dividend."""
    s = cx.scalars
    dtype = promote(s.number(a[0], span), s.number(a[1], span))
    x, y = (s.cast(v, dtype, span).value for v in a)
    name = (
        "arith.remf" if is_float(dtype) else "arith.remui" if dtype in UNSIGNED else "arith.remsi"
    )
    return Scalar(cx.builder.op(name, x, y), dtype)


def _fract(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    return cx.scalars.binary("-", a[0], cx.scalars.function("floor", a, span), span)


def _fma(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s = cx.scalars
    if any(is_float(s.number(v, span)) for v in a):
        return s.function("fma", a, span)
    return s.binary("+", s.binary("*", a[0], a[1], span), a[2], span)


def _clamp(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    low, high = argument(arguments, 1), argument(arguments, 2)
    if low is None and high is None:
        raise KernelTypeError(f"`{ast.unparse(node.func)}` needs a bound", cx.span(node),
                              help="write clamp(x, low, high), or clamp(x, min=low)")  # fmt: skip
    result = arguments[0]
    for name, bound in (("maximum", low), ("minimum", high)):
        if bound is not None:
            # The derivative of a number that is its bound is its own.
            result = _propagating(name, unshared=True)(cx, node, [result, bound])
    return result


def _widened(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    return cx.scalars.cast(a[0], "f64", span)


def _narrowed(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    dtype = cx.scalars.number(a[1], span)
    return cx.scalars.cast(a[0], dtype if is_float(dtype) else "float", span)


def _bit_count(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    dtype = cx.scalars.number(a[0], span)
    if not is_int(dtype):
        raise KernelTypeError(f"bit_count needs an integer, and this is a {dtype}", span,
                              help="convert with int(...) first")  # fmt: skip
    return Scalar(cx.builder.op("math.ctpop", cx.scalars.cast(a[0], dtype, span).value), dtype)


FUNCTIONS: dict[str, Handler] = {
    **{name: _math(name) for name in (
        "exp", "exp2", "expm1", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
        "erfc", "sigmoid", "isnan", "isinf", "atan2", "hypot", "copysign",
    )},
    "log": _log,
    **{name: _rounding(name, False) for name in ("floor", "ceil", "trunc")},
    "round": _rounding("roundeven", False),
    **{f"{name}_int": _rounding(name, True) for name in ("floor", "ceil", "trunc")},
    "round_int": _round_int,
    "abs": _each(lambda cx, a, span: cx.scalars.magnitude(a[0], span)),
    "neg": _each(lambda cx, a, span: cx.scalars.negate(a[0], span)),
    "invert": _each(lambda cx, a, span: cx.scalars.invert(a[0], span)),
    "logical_not": _each(lambda cx, a, span: cx.scalars.negation(a[0], span)),
    "sign": _each(sign), "isfinite": _each(_isfinite),
    "fract": _each(_fract), "bit_count": _each(_bit_count),
    "radians": _scaled(0.017453292519943295), "degrees": _scaled(57.29577951308232),
    "square": _each(lambda cx, a, span: cx.scalars.binary("*", a[0], a[0], span)),
    "reciprocal": _each(lambda cx, a, span: cx.scalars.binary("/", Static(1.0), a[0], span)),
    "relu": _each(_relu),
    "pow": _operator("**"), "mod": _operator("%"), "floordiv": _operator("//"),
    "pow_float": _each(_float_power),
    "add": _operator("+"), "sub": _operator("-"), "mul": _operator("*"), "truediv": _operator("/"),
    "and": _operator("&"), "or": _operator("|"), "xor": _operator("^"),
    "lt": _comparison("<"), "le": _comparison("<="), "eq": _comparison("=="),
    "gt": _comparison(">"), "ge": _comparison(">="), "ne": _comparison("!="),
    "logical_and": _logical("&"), "logical_or": _logical("|"),
    "fmod": _each(remainder), "fmod_exact": _each(_exact_remainder),
    "fmin": _fminmax("<"), "fmax": _fminmax(">"),
    "fabs": _each(_fabs), "whole": _each(_whole),
    "widened": _each(_widened), "narrowed": _each(_narrowed),
    "fma": _each(_fma), "select": _each(_select), "clamp": _clamp,
    "min": _extremes("<"), "max": _extremes(">"),
    "minimum": _propagating("minimum"), "maximum": _propagating("maximum"),
}  # fmt: skip

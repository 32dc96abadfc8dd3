"""Calls in a kernel: the functions that the language knows, casts, methods, inlined functions.

``HANDLERS[canonical name]`` lowers one call; canonical names are those of ``weft.lang.names``. What
is not there is a plain Python function, which is inlined, or refused.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import KernelSyntaxError, KernelTypeError
from weft.frontend import aggregates, expressions, reductions
from weft.frontend.kinds import (
    Box,
    Method,
    Operand,
    Part,
    Range,
    Scalar,
    Static,
    Tensor,
    Tup,
    Vec,
    describe,
    is_float,
    is_int,
    promote,
)
from weft.ir import types as ir
from weft.lang import names
from weft.lang.dtypes import DTYPES, DType, as_dtype
from weft.lang.vectors import MatrixType, VectorType
from weft.source import Span

if TYPE_CHECKING:
    from weft.frontend.lower import Lowering

Handler = Callable[["Lowering", ast.Call, list[Operand]], Operand]


def dtype_object(name: str) -> Any:
    """The ``weft`` dtype of that name; Python's own type for a weak one."""
    return {"int": int, "float": float}.get(name) or DTYPES[name]


def dtype_from(x: Operand, span: Span) -> Any:
    """The dtype (or vector type) that an annotation or an argument names."""
    value = x.value if isinstance(x, Static) else None
    if value is float or value is int or value is bool or isinstance(value, (VectorType, MatrixType)):
        return value
    if value is not None:
        try:
            return as_dtype(value)
        except KernelTypeError:
            pass
    raise KernelTypeError(f"{describe(x)} is not a type", span,
                          help="write a dtype such as weft.f32, torch.float32, int or float")  # fmt: skip


def dtype_name(value: Any) -> str:
    return {float: "float", int: "int", bool: "bool"}.get(value) or value.name


def cast(cx: Lowering, x: Operand, dtype: Any, span: Span) -> Operand:
    """``dtype(x)``; of a vector, element by element."""
    if isinstance(dtype, (VectorType, MatrixType)):
        return _vector_type(cx, dtype, [x], span)
    name = dtype_name(dtype)
    if isinstance(x, Vec):
        return aggregates.cast(cx, x, lambda i: cx.scalars.cast_exactly(i, name, span))
    number = expressions.read_scalar(cx, x, span)
    if isinstance(number, Static) and name in ("int", "float", "bool"):
        return Static({"int": int, "float": float, "bool": bool}[name](number.value))
    return cx.scalars.cast_exactly(number, name, span)


def static_items(x: Operand) -> list[Operand] | None:
    """The items of what a loop over ``x`` is unrolled over; None where it is a run-time loop."""
    if isinstance(x, Tup):
        return list(x.items)
    if isinstance(x, Vec):
        return list(aggregates.rows(x))
    if isinstance(x, Static) and isinstance(x.value, (tuple, list, range)):
        return [Tup([Static(i) for i in v]) if isinstance(v, tuple) else Static(v) for v in x.value]
    return None


# --- the call itself ----------------------------------------------------------------------------
def call(cx: Lowering, node: ast.Call) -> Operand:
    span = cx.span(node)
    function = expressions.expression(cx, node.func)
    if isinstance(function, Method):
        return _method(cx, function, _arguments(cx, node), span)
    if not isinstance(function, Static):
        raise KernelTypeError(f"{describe(function)} cannot be called", span, help="call a function")
    target = function.value
    if isinstance(target, DType):
        (argument,) = _exactly(cx, node, 1, repr(target))
        return cast(cx, argument, target, span)
    if isinstance(target, (VectorType, MatrixType)):
        return _vector_type(cx, target, _arguments(cx, node), span)
    name = names.canonical(target)
    if name is not None and name not in INLINED:
        if name in _LAZY:
            return _LAZY[name](cx, node)
        handler = HANDLERS.get(name)
        if handler is None:
            raise KernelSyntaxError(f"`{ast.unparse(node.func)}` cannot be called in a device loop", span,
                                    help="call it in the host part")  # fmt: skip
        arguments = _arguments(cx, node)
        _check_count(name, arguments, node, span)
        return handler(cx, node, arguments)
    return _inlined(cx, node, target, span)


def _arguments(cx: Lowering, node: ast.Call) -> list[Operand]:
    arguments: list[Operand] = []
    for a in node.args:
        if isinstance(a, ast.Starred):
            value = expressions.expression(cx, a.value)
            items = static_items(value)
            if items is None:
                raise KernelTypeError(f"{describe(value)} cannot be spread with `*`", cx.span(a),
                                      help="spread a tuple or a vector")  # fmt: skip
            arguments += items
        else:
            arguments.append(expressions.expression(cx, a))
    return arguments


def _exactly(cx: Lowering, node: ast.Call, count: int, name: str) -> list[Operand]:
    arguments = _arguments(cx, node)
    if len(arguments) != count or node.keywords:
        raise KernelTypeError(
            f"`{name}` takes {count} argument{'' if count == 1 else 's'}, and "
            f"{len(arguments) + len(node.keywords)} are given",
            cx.span(node), help="check the call",
        )  # fmt: skip
    return arguments


def _check_count(name: str, arguments: list[Operand], node: ast.Call, span: Span) -> None:
    for table, count in ((names.UNARY, 1), (names.BINARY, 2), (names.TERNARY, 3)):
        if name in table and (len(arguments) != count or node.keywords):
            if name in ("round_int", "log", "clamp"):
                return
            raise KernelTypeError(
                f"`{ast.unparse(node.func)}` takes {count} argument{'' if count == 1 else 's'}, and "
                f"{len(arguments) + len(node.keywords)} are given", span, help="check the call",
            )  # fmt: skip


def _inlined(cx: Lowering, node: ast.Call, target: Any, span: Span) -> Operand:
    receiver: list[Operand] = []
    arguments = _arguments(cx, node)
    if any(target is f for f in _OF_CONSTANTS) and arguments and all(isinstance(a, Static) for a in arguments):
        return _of_constants(target, [a.value for a in arguments], node, span)  # type: ignore[union-attr]
    if target is breakpoint:
        raise KernelSyntaxError(
            "`breakpoint()` in compiled code", span,
            help=f"run the Python itself: WEFT_INTERPRET=1, or {cx.source.name}.interpret(...)",
        )  # fmt: skip
    named: dict[str, Operand] = {}
    while isinstance(target, functools.partial):
        receiver = [*map(Static, target.args), *receiver]
        named = {**{k: Static(v) for k, v in target.keywords.items()}, **named}
        target = target.func
    if isinstance(target, types.MethodType):
        receiver = [Static(target.__self__), *receiver]
        target = target.__func__
    target = inspect.unwrap(target) if callable(target) else target
    if not isinstance(target, types.FunctionType):
        raise KernelTypeError(
            f"`{ast.unparse(node.func)}` cannot be called in a device loop: it has no Python source",
            span, help="use weft.math, math, or a Python function of your own; whole-tensor "
            "functions belong in the host part",
        )  # fmt: skip
    arguments = [*receiver, *arguments]
    for keyword in node.keywords:
        if keyword.arg is None:
            raise KernelSyntaxError("`**` cannot be compiled", span, help="write the arguments one by one")
        named[keyword.arg] = expressions.expression(cx, keyword.value)
    signature = inspect.signature(target)
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise KernelTypeError(f"`{target.__name__}`: {error}", span,
                              help=f"it is defined as {target.__name__}{signature}") from None  # fmt: skip
    values: dict[str, Operand] = {}
    for parameter in signature.parameters.values():
        if parameter.name in bound.arguments:
            value = bound.arguments[parameter.name]
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                value = Tup(list(value))
            values[parameter.name] = value
        elif parameter.default is not inspect.Parameter.empty:
            values[parameter.name] = Static(parameter.default)
        else:
            values[parameter.name] = Tup([])
    return cx.inline(target, values, node)


# Functions that are evaluated by Python where all arguments are known at compile time.
_OF_CONSTANTS = (ord, chr, str, *(f for f in vars(math).values() if callable(f)))


def _of_constants(function: Any, values: list[Any], node: ast.Call, span: Span) -> Operand:
    try:
        return Static(function(*values))
    except (TypeError, ValueError, OverflowError) as error:
        raise KernelTypeError(f"`{ast.unparse(node)}`: {error}", span, help="check the call") from None


# --- scalar functions ---------------------------------------------------------------------------
def _each(f: Callable[[Lowering, list[Operand], Span], Operand]) -> Handler:
    """A scalar function, element by element on vectors."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        read = [a if isinstance(a, Vec) else expressions.read_scalar(cx, a, span) for a in arguments]
        return aggregates.elementwise(lambda *items: f(cx, list(items), span), read, span)

    return handler


def _math(name: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.function(name, a, span))


def _operator(symbol: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.binary(symbol, a[0], a[1], span))


def _comparison(symbol: str) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.compare(symbol, a[0], a[1], span))


def _rounding(name: str, to_int: bool) -> Handler:
    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        dtype = cx.scalars.number(a[0], span)
        if not is_float(dtype):
            return cx.scalars.cast(a[0], "int", span) if dtype == "bool" else a[0]
        rounded = cx.scalars.function(name, a, span)
        return cx.scalars.cast(rounded, "int", span) if to_int else rounded

    return _each(f)


def _round_int(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    if len(arguments) > 1:
        raise KernelTypeError("`round` with digits cannot be compiled", cx.span(node),
                              help="write round(x * 100) / 100")  # fmt: skip
    return _rounding("roundeven", to_int=True)(cx, node, arguments)


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
        if not items or node.keywords:
            raise KernelTypeError(f"`{ast.unparse(node.func)}` needs two or more scalars", span,
                                  help="write max(a, b)")  # fmt: skip
        result = items[0]
        for item in items[1:]:
            result = _each(lambda cx, a, span: cx.scalars.extreme(symbol, a[0], a[1], span))(
                cx, node, [result, item]
            )
        return expressions.read_scalar(cx, result, span) if isinstance(result, Tensor) else result

    return handler


def _propagating(name: str) -> Handler:
    """torch's ``maximum`` and ``minimum``: NaN where an argument is."""

    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        dtype = promote(cx.scalars.number(a[0], span), cx.scalars.number(a[1], span))
        if not is_float(dtype):
            return cx.scalars.extreme(">" if name == "maximum" else "<", a[0], a[1], span)
        x, y = (cx.scalars.cast(v, dtype, span).value for v in a)
        return Scalar(cx.builder.op(f"arith.{name}f", x, y), dtype)

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        result = arguments[0]
        for item in arguments[1:]:
            result = _each(f)(cx, node, [result, item])
        return result

    return handler


def _fminmax(symbol: str) -> Handler:
    """``fmin`` and ``fmax``: the other argument where one is NaN."""

    def f(cx: Lowering, a: list[Operand], span: Span) -> Operand:
        better = cx.scalars.compare(symbol, a[0], a[1], span)
        missing = cx.scalars.function("isnan", [a[1]], span)
        first = cx.scalars.binary("|", better, missing, span)
        return cx.scalars.select(cx.scalars.truth(first, span), a[0], a[1], span)

    return _each(f)


def _sign(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s, dtype = cx.scalars, cx.scalars.number(a[0], span)
    up, down = s.compare(">", a[0], Static(0), span), s.compare("<", a[0], Static(0), span)
    dtype = "int" if dtype == "bool" else dtype
    result = s.cast(up, dtype, span)
    difference = s.binary("-", result, s.cast(down, dtype, span), span)
    if is_float(dtype):  # torch.sign of NaN is 0; of -0.0 it is 0
        return difference
    return difference


def _select(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    condition = cx.scalars.truth(a[0], span)
    return cx.scalars.select(condition, a[1], a[2], span)


def _isfinite(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    nan = cx.scalars.function("isnan", a, span)
    inf = cx.scalars.function("isinf", a, span)
    return cx.scalars.negation(cx.scalars.binary("|", nan, inf, span), span)


def _sigmoid(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s = cx.scalars
    grown = s.function("exp", [s.negate(a[0], span)], span)
    return s.binary("/", Static(1.0), s.binary("+", Static(1.0), grown, span), span)


def _scaled(factor: float) -> Handler:
    return _each(lambda cx, a, span: cx.scalars.binary("*", a[0], Static(factor), span))


def _fmod(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s = cx.scalars
    dtype = promote(s.number(a[0], span), s.number(a[1], span))
    x, y = (s.cast(v, dtype, span).value for v in a)
    name = "arith.remf" if is_float(dtype) else "arith.remui" if dtype == "u8" else "arith.remsi"
    return Scalar(cx.builder.op(name, x, y), dtype)


def _hypot(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s = cx.scalars
    squares = [s.binary("*", v, v, span) for v in a]
    return s.function("sqrt", [s.binary("+", squares[0], squares[1], span)], span)


def _fract(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    return cx.scalars.binary("-", a[0], cx.scalars.function("floor", a, span), span)


def _fma(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    s = cx.scalars
    if any(is_float(s.number(v, span)) for v in a):
        return s.function("fma", a, span)
    return s.binary("+", s.binary("*", a[0], a[1], span), a[2], span)


def _clamp(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    low = _propagating("maximum")(cx, node, arguments[:2])
    return _propagating("minimum")(cx, node, [low, arguments[2]])


def _bit_count(cx: Lowering, a: list[Operand], span: Span) -> Operand:
    dtype = cx.scalars.number(a[0], span)
    if not is_int(dtype):
        raise KernelTypeError(f"bit_count needs an integer, and this is a {dtype}", span,
                              help="convert with int(...) first")  # fmt: skip
    return Scalar(cx.builder.op("math.ctpop", cx.scalars.cast(a[0], dtype, span).value), dtype)


def _to(dtype: Any) -> Handler:
    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        if len(arguments) != 1:
            if not arguments and not node.keywords:
                return Static(dtype())
            raise KernelTypeError(f"`{dtype.__name__}` takes one argument", span, help="check the call")
        x = arguments[0]
        if isinstance(x, Static) and isinstance(x.value, str):
            return Static(dtype(x.value))
        return cast(cx, x, dtype, span)

    return handler


# --- loops, tuples ------------------------------------------------------------------------------
def _range(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    if not 1 <= len(arguments) <= 3 or node.keywords:
        raise KernelTypeError("`range` takes one to three arguments", span, help="write range(n)")
    items: list[Any] = []
    for a, n in zip(arguments, node.args, strict=False):
        number = expressions.read_scalar(cx, a, cx.span(n))
        if isinstance(number, Static) and isinstance(number.value, int):
            items.append(number)
        else:
            items.append(Scalar(cx.scalars.index(number, cx.span(n)), "int"))
    if len(items) == 1:
        items.insert(0, Static(0))
    if len(items) == 2:
        items.append(Static(1))
    return Range(*items)


def _ndrange(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    bounds = []
    for a in arguments:
        if isinstance(a, (Tup, Vec)) and len(a.items) == 2:
            bounds.append((a.items[0], a.items[1]))
        else:
            bounds.append((Static(0), expressions.read_scalar(cx, a, cx.span(node))))
    if not bounds:
        raise KernelTypeError("`ndrange` needs at least one extent", cx.span(node),
                              help="write weft.ndrange(n)")  # fmt: skip
    return Box(bounds)


def _grouped(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    (x,) = arguments
    if isinstance(x, Tensor):
        return Box([(Static(0), expressions.extent(cx, x, k)) for k in range(x.lattice)], grouped=True)
    if isinstance(x, Box):
        return Box(x.bounds, grouped=True)
    if isinstance(x, Range) and isinstance(x.step, Static) and x.step.value == 1:
        return Box([(x.lower, x.upper)], grouped=True)
    raise KernelTypeError(f"`grouped` takes a tensor or an ndrange, and this is {describe(x)}", span,
                          help="write weft.grouped(x) or weft.grouped(weft.ndrange(n, m))")  # fmt: skip


def _static(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    if len(arguments) != 1:
        return Tup(arguments)
    x = arguments[0]
    if isinstance(x, Range) and all(isinstance(v, Static) for v in (x.lower, x.upper, x.step)):
        return Static(range(x.lower.value, x.upper.value, x.step.value))  # type: ignore[union-attr]
    if isinstance(x, Box) and all(isinstance(v, Static) for pair in x.bounds for v in pair):
        pairs = [(low.value, high.value) for low, high in x.bounds]
        return Static(tuple(_product(pairs)))
    if isinstance(x, (Static, Tup, Vec)):
        return x
    raise KernelTypeError("`static` needs what is known at compile time", span,
                          help="constants, template() arguments, and shapes of local arrays are known")  # fmt: skip


def _product(pairs: list[tuple[int, int]]) -> list[Any]:
    rows: list[Any] = [()]
    for low, high in pairs:
        rows = [(*row, k) for row in rows for k in range(low, high)]
    return [row[0] for row in rows] if len(pairs) == 1 else rows


def _serial(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return arguments[0]


def _len(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    (x,) = arguments
    if isinstance(x, Tup):
        return Static(len(x.items))
    if isinstance(x, Vec):
        return Static(x.shape[0])
    if isinstance(x, Static) and hasattr(x.value, "__len__"):
        return Static(len(x.value))
    if isinstance(x, Tensor) and x.rank:
        return expressions.extent(cx, x, 0)
    raise KernelTypeError(f"{describe(x)} has no len()", cx.span(node), help="use a tensor or a tuple")


def _items(cx: Lowering, node: ast.Call, x: Operand) -> list[Operand]:
    items = static_items(x)
    if items is None:
        raise KernelTypeError(f"`{ast.unparse(node.func)}` needs a tuple or a vector, and this is {describe(x)}",
                              cx.span(node), help="write the loop over the elements")  # fmt: skip
    return items


def _sum(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    result: Operand = arguments[1] if len(arguments) > 1 else Static(0)
    for item in _items(cx, node, arguments[0]):
        result = expressions.binary(cx, "+", result, item, cx.span(node))
    return result


def _any(symbol: str) -> Handler:
    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        result: Operand = Static(symbol == "&")
        for item in _items(cx, node, arguments[0]):
            truth = cx.scalars.cast(expressions.read_scalar(cx, item, span), "bool", span)
            result = truth if isinstance(result, Static) else cx.scalars.binary(symbol, result, truth, span)
        return result

    return handler


def _tuple(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return Tup(_items(cx, node, arguments[0]) if arguments else [])


def _enumerate(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return Tup([Tup([Static(k), x]) for k, x in enumerate(_items(cx, node, arguments[0]))])


def _zip(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    columns = [_items(cx, node, a) for a in arguments]
    return Tup([Tup(list(row)) for row in zip(*columns, strict=False)])


def _divmod(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    return Tup([expressions.binary(cx, symbol, *arguments, span) for symbol in ("//", "%")])


def _nothing(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    return Static(None)


# --- vectors, local arrays ----------------------------------------------------------------------
def _vector_type(
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
            items.append(expressions.read_scalar(cx, x, span))

    for a in arguments:
        spread(a)
    shape = type.shape
    count = shape[0] * (shape[1] if len(shape) == 2 else 1)
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


def _vector(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``weft.Vector([a, b], dtype)`` and ``weft.Matrix([[a, b], [c, d]], dtype)``."""
    span = cx.span(node)
    made = aggregates.build(arguments[0], span)
    types = arguments[1:] + [expressions.expression(cx, k.value) for k in node.keywords]
    if types:
        return cast(cx, made, dtype_from(types[0], span), span)
    return made


def _filled(value: int, ranks: int) -> Handler:
    """``Vector.zero(dtype, n)``, ``Matrix.one(dtype, n, m)``."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        dtype = dtype_from(arguments[0], span)
        shape = tuple(_extent(a, span) for a in arguments[1 : 1 + ranks])
        count = shape[0] * (shape[1] if ranks == 2 else 1)
        return cast(cx, Vec([Static(value)] * count, shape), dtype, span)

    return handler


def _identity(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    n = _extent(arguments[-1], span)
    made = Vec([Static(float(i == j)) for i in range(n) for j in range(n)], (n, n))
    return cast(cx, made, dtype_from(arguments[0], span), span) if len(arguments) > 1 else made


def _extent(x: Operand, span: Span) -> int:
    if isinstance(x, Static) and isinstance(x.value, int) and 0 < x.value <= 1 << 20:
        return x.value
    raise KernelTypeError("the shape of a local array or vector must be known at compile time", span,
                          help="use constants or template() arguments")  # fmt: skip


def _zeros(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``weft.zeros((4, 8), weft.f32)``: a local array."""
    span = cx.span(node)
    extra = [expressions.expression(cx, k.value) for k in node.keywords]
    shape_operand, *rest = arguments
    items = static_items(shape_operand)
    shape = tuple(_extent(i, span) for i in (items if items is not None else [shape_operand]))
    rest += extra
    dtype = dtype_name(dtype_from(rest[0], span)) if rest else "f32"
    dtype = {"int": "i64", "float": cx.scalars.float_type.name}.get(dtype, dtype)
    return cx.local_array(shape, dtype, span)


def _of_method(name: str) -> Handler:
    """``weft.math.dot(a, b)`` is ``a.dot(b)``."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        first = aggregates.build(arguments[0], span)
        return aggregates.method(cx, first, name, arguments[1:], span)

    return handler


def _distance(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    difference = expressions.binary(cx, "-", arguments[0], arguments[1], span)
    return aggregates.method(cx, aggregates.build(difference, span), "norm", [], span)


def _method(cx: Lowering, method: Method, arguments: list[Operand], span: Span) -> Operand:
    x, name = method.receiver, method.name
    if isinstance(x, Vec):
        if name in ("cast", "to"):
            return cast(cx, x, dtype_from(arguments[0], span), span)
        if name == "to_list":
            return Tup(list(aggregates.rows(x)))
        return aggregates.method(cx, x, name, arguments, span)
    if isinstance(x, Scalar):
        if name == "item" and not arguments:
            return x
        if name in ("to", "type", "cast") and len(arguments) == 1:
            return cast(cx, x, dtype_from(arguments[0], span), span)
        named = {"float": "f32", "double": "f64", "half": "f16", "bfloat16": "bf16", "int": "i32", "long": "i64", "bool": "bool"}
        if name in named and not arguments:
            return cx.scalars.cast_exactly(x, named[name], span)
        if name in names.UNARY and name in HANDLERS and not arguments:
            return HANDLERS[name](cx, ast.Call(ast.Name(name), [], [], lineno=span.line, col_offset=span.column), [x])
    if isinstance(x, Tensor):
        if name == "size":
            dims = expressions.attribute(cx, x, "shape", span)
            assert isinstance(dims, Tup)
            if not arguments:
                return dims
            if isinstance(arguments[0], Static) and -x.rank <= arguments[0].value < x.rank:
                return dims.items[arguments[0].value]
        if name in ("dim", "ndimension") and not arguments:
            return Static(x.rank)
        if name == "numel" and not arguments:
            total: Operand = Static(1)
            for k in range(x.rank):
                total = cx.scalars.binary("*", total, expressions.extent(cx, x, k), span)
            return total
        if name == "item" and x.rank == 0 and not arguments:
            return expressions.read_scalar(cx, x, span)
    raise KernelTypeError(
        f"{describe(x)} has no method `{name}` in a device loop", span,
        help="read elements with x[i, j]; whole-tensor methods belong in the host part",
    )  # fmt: skip


# --- what must see the syntax: atomics, print, isinstance -----------------------------------------
_RMW = {"atomic_add": "add", "atomic_sub": "add", "atomic_mul": "mul", "atomic_min": "min",
        "atomic_max": "max", "atomic_and": "and", "atomic_or": "or", "atomic_xor": "xor"}  # fmt: skip


def _place(cx: Lowering, node: ast.Call, count: int, name: str) -> tuple[Tensor, list[Any], list[Operand]]:
    span = cx.span(node)
    base: Operand | None = None
    if len(node.args) == count and isinstance(node.args[0], ast.Subscript):
        base = expressions.expression(cx, node.args[0].value)
    if not isinstance(base, (Tensor, Part)):
        raise KernelTypeError(f"`{name}` works on an element of a tensor", span,
                              help=f"write weft.{name}(x[i], value)")  # fmt: skip
    tensor, indices = expressions.element(cx, base, node.args[0].slice, span)  # type: ignore[attr-defined]
    values = [expressions.read_scalar(cx, expressions.expression(cx, a), span) for a in node.args[1:]]
    return tensor, indices, values


def _atomic(name: str) -> Callable[[Lowering, ast.Call], Operand]:
    def handler(cx: Lowering, node: ast.Call) -> Operand:
        span = cx.span(node)
        tensor, indices, (value,) = _place(cx, node, 2, name)
        if name == "atomic_sub":
            value = cx.scalars.negate(value, span)
        dtype = tensor.dtype
        if dtype == "bool" and _RMW[name] in ("add", "mul"):
            raise KernelTypeError(f"`{name}` on a tensor of booleans", span,
                                  help="use atomic_or or atomic_and")  # fmt: skip
        if is_float(dtype) and _RMW[name] in ("and", "or", "xor"):
            raise KernelTypeError(f"`{name}` on a tensor of floats", span, help="use an integer tensor")
        stored = cx.scalars.cast(value, dtype, span)
        kind = reductions.kind(_RMW[name], dtype)
        return Scalar(cx.builder.atomic_rmw(kind, stored.value, tensor.memref, indices), dtype)

    return handler


def _atomic_cas(cx: Lowering, node: ast.Call) -> Operand:
    span = cx.span(node)
    tensor, indices, values = _place(cx, node, 3, "atomic_cas")
    expected, desired = (cx.scalars.cast(v, tensor.dtype, span).value for v in values)
    before = cx.builder.op(
        "memref.atomic_cas", expected, desired, tensor.memref, *indices, type=expected.type
    )
    return Scalar(before, tensor.dtype)


def _atomic_exchange(cx: Lowering, node: ast.Call) -> Operand:
    """By compare and swap, until nobody came between."""
    b, span = cx.builder, cx.span(node)
    tensor, indices, (value,) = _place(cx, node, 2, "atomic_exchange")
    new = cx.scalars.cast(value, tensor.dtype, span).value
    first = expressions.load_element(cx, tensor, indices, span).value
    op = b.while_([first], [first.type])
    with b.at(op.regions[0]):
        (expected,) = op.regions[0].args
        seen = b.op("memref.atomic_cas", expected, new, tensor.memref, *indices, type=new.type)
        bits = {8: ir.i8, 16: ir.i16, 32: ir.i32, 64: ir.i64}.get(seen.type.bits)  # type: ignore[union-attr]
        left, right = seen, expected
        if seen.type.is_float:  # type: ignore[union-attr]
            left, right = (b.op("arith.bitcast", v, type=bits) for v in (seen, expected))
        again = b.op("arith.cmpi", left, right, predicate="ne")
        b.do("scf.condition", again, seen)
    with b.at(op.regions[1]):
        b.do("scf.yield", op.regions[1].args[0])
    return Scalar(op.results[0], tensor.dtype)


def _print(cx: Lowering, node: ast.Call) -> Operand:
    """``print(a, "text", f"x = {x}", sep=..., end=...)``."""
    span = cx.span(node)
    options = {"sep": " ", "end": "\n"}
    for keyword in node.keywords:
        value = expressions.expression(cx, keyword.value)
        if keyword.arg not in options or not isinstance(value, Static) or not isinstance(value.value, str):
            raise KernelTypeError("print in a kernel takes `sep` and `end`, which are strings", span,
                                  help="leave the other keywords out")  # fmt: skip
        options[keyword.arg] = value.value
    parts: list[str | None] = []
    values: list[Any] = []

    def add(x: Operand) -> None:
        if isinstance(x, Static):
            parts.append(str(x.value))
        elif isinstance(x, (Tup, Vec)):
            parts.append("[" if isinstance(x, Vec) else "(")
            rows = list(aggregates.rows(x)) if isinstance(x, Vec) else x.items
            for k, item in enumerate(rows):
                if k:
                    parts.append(", ")
                add(item)
            parts.append("]" if isinstance(x, Vec) else ")")
        else:
            number = expressions.read_scalar(cx, x, span)
            assert isinstance(number, Scalar)
            parts.append(None)
            wide = "int" if number.dtype == "u8" else number.dtype
            values.append(cx.scalars.cast(number, wide, span).value)

    for k, argument in enumerate(node.args):
        if k:
            parts.append(options["sep"])
        if isinstance(argument, ast.JoinedStr):
            for piece in argument.values:
                if isinstance(piece, ast.Constant):
                    parts.append(str(piece.value))
                elif isinstance(piece, ast.FormattedValue):
                    if piece.format_spec is not None or piece.conversion != -1:
                        raise KernelSyntaxError("a format in an f-string of a kernel", cx.span(argument),
                                                help="print the plain value: {x}")  # fmt: skip
                    add(expressions.expression(cx, piece.value))
        else:
            add(expressions.expression(cx, argument))
    parts.append(options["end"])
    cx.builder.span = span
    cx.builder.do("weft.print", *values, parts=tuple(parts))
    return Static(None)


def assert_message(cx: Lowering, node: ast.Assert) -> str:
    """The text of an assert's message, which must be known at compile time."""
    if node.msg is None:
        return ast.unparse(node.test)
    if isinstance(node.msg, ast.JoinedStr):
        raise KernelSyntaxError("the message of an assert in a kernel must be a plain string",
                                cx.span(node.msg), help="print(...) the values before")  # fmt: skip
    message = expressions.expression(cx, node.msg)
    return str(message.value) if isinstance(message, Static) else describe(message)


def _isinstance(cx: Lowering, node: ast.Call) -> Operand:
    raise KernelSyntaxError("`isinstance` cannot be called in a device loop", cx.span(node),
                            help="test in the host part, or use weft.static(...)")  # fmt: skip


_LAZY: dict[str, Callable[[Lowering, ast.Call], Operand]] = {
    **{name: _atomic(name) for name in _RMW},
    "atomic_cas": _atomic_cas, "atomic_exchange": _atomic_exchange, "print": _print,
    "isinstance": _isinstance,
}  # fmt: skip

HANDLERS: dict[str, Handler] = {
    **{name: _math(name) for name in (
        "exp", "exp2", "expm1", "log2", "log10", "log1p", "sqrt", "rsqrt", "cbrt", "sin", "cos",
        "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc",
        "isnan", "isinf", "atan2", "copysign",
    )},
    "log": _log,
    **{name: _rounding("roundeven" if name == "round" else name, False) for name in ("floor", "ceil", "round", "trunc")},
    **{f"{name}_int": _rounding(name, True) for name in ("floor", "ceil", "trunc")},
    "round_int": _round_int,
    "abs": _each(lambda cx, a, span: cx.scalars.magnitude(a[0], span)),
    "neg": _each(lambda cx, a, span: cx.scalars.negate(a[0], span)),
    "invert": _each(lambda cx, a, span: cx.scalars.invert(a[0], span)),
    "logical_not": _each(lambda cx, a, span: cx.scalars.negation(a[0], span)),
    "sign": _each(_sign), "isfinite": _each(_isfinite), "sigmoid": _each(_sigmoid),
    "fract": _each(_fract), "bit_count": _each(_bit_count),
    "radians": _scaled(0.017453292519943295), "degrees": _scaled(57.29577951308232),
    "square": _each(lambda cx, a, span: cx.scalars.binary("*", a[0], a[0], span)),
    "reciprocal": _each(lambda cx, a, span: cx.scalars.binary("/", Static(1.0), a[0], span)),
    "relu": lambda cx, node, a: _propagating("maximum")(cx, node, [a[0], Static(0)]),
    "pow": _operator("**"), "mod": _operator("%"), "floordiv": _operator("//"), "add": _operator("+"),
    "sub": _operator("-"), "mul": _operator("*"), "truediv": _operator("/"), "and": _operator("&"),
    "or": _operator("|"), "xor": _operator("^"), "divmod": _divmod,
    "lt": _comparison("<"), "le": _comparison("<="), "gt": _comparison(">"), "ge": _comparison(">="),
    "eq": _comparison("=="), "ne": _comparison("!="),
    "logical_and": _each(lambda cx, a, span: cx.scalars.binary(
        "&", *(cx.scalars.cast(v, "bool", span) for v in a), span)),
    "logical_or": _each(lambda cx, a, span: cx.scalars.binary(
        "|", *(cx.scalars.cast(v, "bool", span) for v in a), span)),
    "fmod": _each(_fmod), "hypot": _each(_hypot), "fmin": _fminmax("<"), "fmax": _fminmax(">"),
    "fma": _each(_fma), "select": _each(_select), "clamp": _clamp,
    "min": _extremes("<"), "max": _extremes(">"),
    "minimum": _propagating("minimum"), "maximum": _propagating("maximum"),
    "int": _to(int), "float": _to(float), "bool": _to(bool),
    "range": _range, "ndrange": _ndrange, "grouped": _grouped, "serial": _serial, "static": _static,
    "loop_config": _nothing, "sync": _nothing,
    "len": _len, "sum": _sum, "any": _any("|"), "all": _any("&"), "tuple": _tuple, "list": _tuple,
    "enumerate": _enumerate, "zip": _zip,
    "Vector": _vector, "Matrix": _vector, "zeros": _zeros,
    "Vector.zero": _filled(0, 1), "Vector.one": _filled(1, 1), "Matrix.zero": _filled(0, 2),
    "Matrix.one": _filled(1, 2), "Matrix.identity": _identity, "eye": _identity,
    "dot": _of_method("dot"), "cross": _of_method("cross"), "length": _of_method("norm"),
    "normalize": _of_method("normalized"), "determinant": _of_method("determinant"),
    "inverse": _of_method("inverse"), "distance": _distance,
}  # fmt: skip
# weft.math.mix, step, smoothstep and reflect are written in Python: they are inlined as they stand.
INLINED = frozenset({"mix", "step", "smoothstep", "reflect"})

"""Vectors and matrices that a kernel makes: ``weft.Vector([a, b])``, ``Matrix.cols([v])``."""

from __future__ import annotations

import ast

from weft.errors import KernelTypeError
from weft.frontend import aggregates, signatures
from weft.frontend.casts import Handler, cast, dtype_from, extent
from weft.frontend.context import Lowering
from weft.frontend.kinds import Operand, Static, Vec
from weft.lang.dtypes import i32


def vector(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    """``weft.Vector([a, b], dtype)`` and ``weft.Matrix([[a, b], [c, d]], dtype)``."""
    span = cx.span(node)
    made = aggregates.build(arguments[0], span)
    dtype = signatures.argument(arguments, 2) or signatures.argument(arguments, 1)
    return cast(cx, made, dtype_from(dtype, span), span) if dtype else made


def _filled(value: int, ranks: int) -> Handler:
    """``Vector.zero(dtype, n)``, ``Matrix.one(dtype, n, m)``."""

    def handler(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
        span = cx.span(node)
        dtype = dtype_from(arguments[0], span)
        shape = tuple(extent(a, span) for a in arguments[1 : 1 + ranks])
        count = shape[0] * (shape[1] if ranks == 2 else 1)
        return cast(cx, Vec([Static(value)] * count, shape), dtype, span)

    return handler


def _identity(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    n = extent(arguments[-1], span)
    made = Vec([Static(float(i == j)) for i in range(n) for j in range(n)], (n, n))
    return cast(cx, made, dtype_from(arguments[0], span), span) if len(arguments) > 1 else made


def _columns(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    made = aggregates.build(arguments[0], cx.span(node))
    return aggregates.method(cx, made, "transpose", [], cx.span(node))


def _diagonal(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    n, value = extent(arguments[0], cx.span(node)), cx.read_scalar(arguments[1], cx.span(node))
    return Vec([value if i == j else Static(0) for i in range(n) for j in range(n)], (n, n))


def _unit(cx: Lowering, node: ast.Call, arguments: list[Operand]) -> Operand:
    span = cx.span(node)
    n, axis = extent(arguments[0], span), arguments[1]
    dtype = signatures.argument(arguments, 2)
    if not isinstance(axis, Static) or not 0 <= axis.value < n:
        raise KernelTypeError("`unit` needs a constant axis in range", span,
                              help="write weft.Vector.unit(3, 0)")  # fmt: skip
    made = Vec([Static(int(k == axis.value)) for k in range(n)], (n,))
    return cast(cx, made, dtype_from(dtype, span) if dtype else i32, span)


FUNCTIONS: dict[str, Handler] = {
    "Vector": vector, "Matrix": vector, 
    "Vector.zero": _filled(0, 1), "Vector.one": _filled(1, 1), "Matrix.zero": _filled(0, 2),
    "Matrix.one": _filled(1, 2), "Matrix.cols": _columns, "Matrix.diag": _diagonal,
    "Matrix.rows": lambda cx, node, a: aggregates.build(a[0], cx.span(node)),
    "Vector.unit": _unit,
    "Matrix.identity": _identity, "eye": _identity,
}  # fmt: skip

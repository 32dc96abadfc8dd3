"""Subscripts with slices: ``x[i, 1:]``, ``x[:, j]``, ``x[i, ...]``, ``x[i, a:b:2]``.

A slice means what Python's does: bounds are moved into the range, and negative ones count from the
end, also where they are known at run time only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from weft.errors import KernelIndexError, KernelTypeError, Span
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Along,
    Operand,
    Scalar,
    Static,
    Tup,
    Vec,
    View,
    describe,
    dtype_of,
)
from weft.ir.core import Value
from weft.ir.views import constant_of

Index = Scalar | Static
Place = tuple[Along, Index] | tuple[Index, None]  # a slice with its size, or one subscript


def has_slice(node: ast.expr) -> bool:
    """Whether a subscript keeps a dimension by what is written in it."""
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(item, ast.Slice) or _is_ellipsis(item) for item in items)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def axes(
    cx: Lowering, node: ast.expr, sizes: list[Index],
    integer: Callable[[int, Operand, Span], Index], span: Span,
) -> list[Place]:  # fmt: skip
    """What the subscript ``node`` takes of each dimension of ``sizes``. ``integer`` makes a
    subscript of dimension k of a number that is written."""
    written: list[Operand | ast.Slice] = []
    spans: list[Span] = []
    hole = -1
    for item in node.elts if isinstance(node, ast.Tuple) else [node]:
        if _is_ellipsis(item):
            if hole >= 0:
                raise KernelIndexError("two `...` in one subscript", span, help="write one")
            hole = len(written)
            continue
        operand = item if isinstance(item, ast.Slice) else cx.expression(item)
        parts = operand.items if isinstance(operand, Vec | Tup) else [operand]
        written += parts
        spans += [cx.span(item)] * len(parts)
    rest = len(sizes) - len(written)
    if rest < 0:
        count = len(sizes)
        raise KernelIndexError(
            f"{len(written)} subscripts of {count} dimension{'s' * (count != 1)}", span,
            help=f"write {count} at most",
        )  # fmt: skip
    hole = hole if hole >= 0 else len(written)
    filled: list[Operand | ast.Slice | None] = [*written[:hole], *[None] * rest, *written[hole:]]
    marks = [*spans[:hole], *[span] * rest, *spans[hole:]]
    places: list[Place] = []
    for k, (item, size, at) in enumerate(zip(filled, sizes, marks, strict=True)):
        if item is None:
            places.append((Along(Static(0), 1), size))
        elif isinstance(item, ast.Slice):
            places.append(_along(cx, item, size, at))
        elif dtype_of(item) == "bool" or (isinstance(item, Static) and item.value is None):
            raise KernelTypeError(
                f"{describe(item)} as a subscript of a row", at,
                help="take the view or the mask in the host part, or write the loop",
            )  # fmt: skip
        else:
            places.append((integer(k, item, at), None))
    return places


def position(cx: Lowering, axis: Along, k: Index, span: Span) -> Index:
    """The subscript of item ``k`` of a slice."""
    s = cx.scalars
    if axis.step != 1:
        k = s.binary("*", k, Static(axis.step), span)
    start = axis.start
    if isinstance(start, Static) and start.value == 0:
        return k
    return s.binary("+", start, k, span)


def subscripts(cx: Lowering, part: View, place: list[Index], span: Span) -> list[Value]:
    """The tensor's subscripts of the element of a view at ``place``."""
    remaining = iter(place)
    return [
        axis if isinstance(axis, Value) else
        cx.scalars.index(position(cx, axis, next(remaining), span), span)
        for axis in part.axes
    ]  # fmt: skip


def _along(cx: Lowering, node: ast.Slice, size: Index, span: Span) -> tuple[Along, Index]:
    s = cx.scalars
    step = _step(cx, node.step, span)
    lower = Static(0) if node.lower is None else _bound(cx, node.lower, span)
    upper = size if node.upper is None else _bound(cx, node.upper, span)
    if isinstance(size, Static) and isinstance(lower, Static) and isinstance(upper, Static):
        start, stop, _ = slice(lower.value, upper.value, step).indices(size.value)
        return Along(Static(start), step), Static(len(range(start, stop, step)))
    start = _from_end(cx, lower, size, span)
    stop = size
    if node.upper is not None:
        stop = s.extreme("<", _from_end(cx, upper, size, span), size, span)
    count: Index = stop
    if not (isinstance(start, Static) and start.value == 0):
        # A start behind the end makes an empty slice: it need not be moved into the range.
        count = s.extreme(">", s.binary("-", stop, start, span), Static(0), span)
    if step != 1:
        count = s.binary("//", s.binary("+", count, Static(step - 1), span), Static(step), span)
    return Along(start, step), count


def _step(cx: Lowering, node: ast.expr | None, span: Span) -> int:
    step = Static(1) if node is None else cx.expression(node)
    value = step.value if isinstance(step, Static) else None
    if value is None and isinstance(step, Static):
        return 1
    if type(value) is not int or value < 1:
        raise KernelTypeError(
            "the step of a slice is a positive number that is known at compile time", span,
            help="write the loop over range(start, stop, step)",
        )  # fmt: skip
    return value


def _bound(cx: Lowering, node: ast.expr, span: Span) -> Index:
    x = cx.expression(node)
    if isinstance(x, Static) and type(x.value) is int:
        return x
    return Scalar(cx.scalars.index(cx.read_scalar(x, span), span), "int")


def _from_end(cx: Lowering, bound: Index, size: Index, span: Span) -> Index:
    """A bound that counts from the front, and is not negative."""
    s = cx.scalars
    if isinstance(bound, Static):
        if bound.value >= 0:
            return bound
        return s.extreme(">", s.binary("+", size, bound, span), Static(0), span)
    if _is_natural(cx, bound.value):
        return bound
    negative = s.truth(s.compare("<", bound, Static(0), span), span)
    moved = s.binary("+", bound, size, span)
    return s.extreme(">", s.select(negative, moved, bound, span), Static(0), span)


def _is_natural(cx: Lowering, value: Value) -> bool:
    """Whether an index is 0 or more for sure: a size, an index of a loop from such a number on, or
    a sum, product or maximum of these."""
    number = constant_of(value)
    if number is not None:
        return number >= 0
    op = value.op
    if op is None:
        return value in cx.naturals
    natural = [_is_natural(cx, x) for x in op.operands] if op.name in _KEEP else []
    if op.name == "arith.maxsi":
        return any(natural)
    return op.name == "memref.dim" or (bool(natural) and all(natural))


_KEEP = ("arith.addi", "arith.muli", "arith.minsi", "arith.floordivsi", "arith.maxsi")

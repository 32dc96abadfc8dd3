"""What is gone over one by one in a loop of the iteration: rows, ``enumerate``, ``zip``,
``reversed``, and ranges of run-time sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import casts, complexes, row_order, rows, tuple_lists
from weft.frontend.context import Lowering
from weft.frontend.kinds import (
    Items,
    Operand,
    Range,
    Row,
    Scalar,
    Static,
    Tensor,
    Tup,
    TupleList,
    describe,
)

Index = Scalar | Static


def items(cx: Lowering, x: Operand, span: Span) -> Items | None:
    """``x`` as items that a loop goes over; None of what is none, or of a fixed number."""
    if isinstance(x, Items):
        return x
    if isinstance(x, TupleList):
        return tuple_lists.over(cx, x, span)
    if isinstance(x, Range):
        return Items(_count(cx, x, span), lambda k: _nth(cx, x, k, span))
    row = rows.of(cx, x)
    if row is None:
        return None
    return row_order.items(cx, row, span)


def of_elements(cx: Lowering, x: Operand) -> Operand:
    """``x`` for what goes over it as Python does: a whole tensor's elements, or rows. (A ``for``
    statement goes over its subscripts.)"""
    row = rows.of(cx, x) if isinstance(x, Tensor) and not x.listed else None
    return row or x


def loopable(cx: Lowering, x: Operand, span: Span) -> Operand:
    """What a ``for`` statement goes over: a row's elements. Of a whole tensor it is the indices."""
    if isinstance(x, TupleList):
        return items(cx, x, span) or x
    if (isinstance(x, Tensor) and not x.listed) or not rows.is_row(x):
        return x
    return items(cx, x, span) or x


def _count(cx: Lowering, r: Range, span: Span) -> Index:
    s = cx.scalars
    step = r.step.value if isinstance(r.step, Static) else None
    if type(step) is not int or step == 0 or abs(step) >= 1 << 31:
        raise KernelTypeError("a range whose step is not known at compile time, as a value", span,
                              help="write the loop")  # fmt: skip
    low, high = (r.lower, r.upper) if step > 0 else (r.upper, r.lower)
    count = s.binary("-", high, low, span)
    if abs(step) != 1:
        count = s.binary("//", s.binary("+", count, Static(abs(step) - 1), span),
                         Static(abs(step)), span)  # fmt: skip
    return s.extreme(">", count, Static(0), span)


def _nth(cx: Lowering, r: Range, k: Index, span: Span) -> Index:
    one = isinstance(r.step, Static) and r.step.value == 1
    offset = k if one else cx.scalars.binary("*", k, r.step, span)
    return cx.scalars.binary("+", r.lower, offset, span)


def reverse(cx: Lowering, x: Operand, span: Span) -> Operand:
    """``reversed(x)``."""
    if isinstance(x, Range):
        s, count = cx.scalars, _count(cx, x, span)
        last = _nth(cx, x, s.binary("-", count, Static(1), span), span)
        step = s.negate(x.step, span)
        return Range(last, s.binary("+", x.lower, step, span), step)
    known = casts.static_items(x)
    if known is not None:
        return Tup(known[::-1])
    found = items(cx, x, span)
    if found is None:
        raise _no_items("reversed", x, span)
    last = cx.scalars.binary("-", found.count, Static(1), span)
    return Items(found.count, lambda k: found.item(cx.scalars.binary("-", last, k, span)))


def enumerated(cx: Lowering, x: Operand, start: Operand, span: Span) -> Items:
    found = items(cx, x, span)
    if found is None:
        raise _no_items("enumerate", x, span)
    return Items(
        found.count, lambda k: Tup([cx.scalars.binary("+", start, k, span), found.item(k)])
    )


def zipped(cx: Lowering, columns: Sequence[Operand], strict: bool, span: Span) -> Items:
    """``zip`` of rows, ranges and tuples: as many as the shortest one has."""
    parts = [_column(cx, x, span) for x in columns]
    count = parts[0].count
    for other in parts[1:]:
        if strict:
            rows.require_same(cx, count, other.count, "zip(strict=True) of different lengths", span)
        elif not rows.same_index(count, other.count):
            count = cx.scalars.extreme("<", count, other.count, span)
    return Items(count, lambda k: Tup([part.item(k) for part in parts]))


def _column(cx: Lowering, x: Operand, span: Span) -> Items:
    known = casts.static_items(x)
    if known is None:
        found = items(cx, x, span)
        if found is None:
            raise _no_items("zip", x, span)
        return found

    def item(k: Index) -> Operand:
        return casts.picked(cx, known, k, span)

    return Items(Static(len(known)), item)


def _no_items(function: str, x: Operand, span: Span) -> KernelTypeError:
    return KernelTypeError(
        f"`{function}` needs a row, a range, a tuple or a vector, and this is {describe(x)}", span,
        help="write the loop over the elements",
    )  # fmt: skip


# --- Python's own reductions --------------------------------------------------------------------
def total(cx: Lowering, row: Row, start: Operand, span: Span) -> Operand:
    """``sum(row)``: in the elements' dtype, as sums of 0-d tensors are."""
    if len(row.extents) > 1:
        raise KernelTypeError("`sum` of several rows", span, help="write x[i].sum(0)")
    dtype = rows.dtype(cx, row)
    found = rows.total(cx, row, span, "i64" if dtype == "bool" else dtype)
    return complexes.arithmetic(cx.scalars, "+", start, found, span)


def extreme(cx: Lowering, row: Row, symbol: str, span: Span) -> Operand:
    """``max(row)`` and ``min(row)``: the first element that none is beyond, as Python compares."""
    if len(row.extents) > 1:
        raise KernelTypeError("`max` or `min` of several rows", span, help="write x[i].max()")
    rows.require_some(cx, row.extents[0], "`max` or `min` of no elements", span)
    dtype = rows.dtype(cx, row)
    first = cx.scalars.cast(row.at([Static(0)]), dtype, span)

    def better(place: list[Any], values: list[Any]) -> list[Any]:
        item = cx.scalars.cast(row.at(place), dtype, span)
        found = cx.scalars.extreme(symbol, values[0], item, span)
        return [cx.scalars.cast(found, dtype, span)]

    return rows.each(cx, row.extents, [first], better, span)[0]

"""Attributes of rows: their sizes and dtype, and the parts of complex numbers."""

from __future__ import annotations

from weft.errors import Span
from weft.frontend import casts, rows
from weft.frontend.context import Lowering
from weft.frontend.kinds import Complex, Operand, Row, Static, Tup


def attribute(cx: Lowering, row: Row, name: str, span: Span) -> Operand | None:
    """``row.name``; None of what is no attribute."""
    if name == "shape":
        return Tup(list(row.extents))
    if name == "ndim":
        return Static(len(row.extents))
    pair = name in ("dtype", "real", "imag") and isinstance(rows.probe(cx, row), Complex)
    if name == "dtype":
        return Static((casts.complex_object if pair else casts.dtype_object)(rows.dtype(cx, row)))
    if name == "real" and not pair:
        return row
    if pair:
        return rows.elementwise(cx, lambda items: getattr(items[0], name), [row], span)
    return None

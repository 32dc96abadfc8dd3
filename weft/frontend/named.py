"""Tuples whose items have names: members, methods and arithmetic of structs."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from weft.errors import KernelTypeError, Span
from weft.frontend import aggregates, casts
from weft.frontend.context import Lowering
from weft.frontend.kinds import Method, Operand, Static, Tup, dtype_of
from weft.lang.structs import StructType
from weft.lang.vectors import MatrixType, VectorType


def is_record(x: Any) -> bool:
    """Whether ``x`` is a tuple with named items."""
    return isinstance(x, Tup) and bool(x.names)


def member(x: Tup, name: str) -> Operand | None:
    """``x.name``, also a method of it; None where there is none."""
    if name in x.names and x.struct is not dict:
        return x.items[x.names.index(name)]
    return Method(x, name) if method(x, name) is not None else None


def method(x: Any, name: str) -> Any:
    """The function that is the method ``name`` of a struct."""
    if not is_record(x) or x.struct is None:
        return None
    kind = x.struct
    found = (
        kind.methods.get(name)
        if isinstance(kind, StructType)
        else inspect.getattr_static(kind, name, None)
    )
    return found if isinstance(found, types.FunctionType) else None


def cast_member(cx: Lowering, kind: Any, x: Operand, span: Span) -> Operand:
    """``x`` as a member of type ``kind``; as it is where that is no type of numbers."""
    if isinstance(kind, StructType) and isinstance(x, Tup):
        pairs = zip(kind.members.values(), x.items, strict=True)
        return Tup([cast_member(cx, t, i, span) for t, i in pairs], x.names, kind)
    try:
        wanted = casts.dtype_from(Static(kind), span)
    except KernelTypeError:
        return x
    if isinstance(wanted, VectorType | MatrixType) and isinstance(x, Static):
        x = aggregates.build(x, span) if dtype_of(x) is None else x
    return casts.cast(cx, x, wanted, span)


def binary(
    cx: Lowering, symbol: str, a: Operand, b: Operand, span: Span,
    combine: Callable[..., Operand],
) -> Operand | None:  # fmt: skip
    """Member by member, each by ``combine``; None where neither is a struct of weft's."""
    records = [x for x in (a, b) if isinstance(x, Tup) and _is_struct(x)]
    if not records:
        return None
    first = records[0]
    if any(x.names != first.names for x in records):
        raise KernelTypeError(f"`{symbol}` of structs with other members", span,
                              help="both need members of the same names")  # fmt: skip
    items: list[Operand] = []
    for k in range(len(first.items)):
        x, y = (v.items[k] if isinstance(v, Tup) and _is_struct(v) else v for v in (a, b))
        items.append(combine(cx, symbol, x, y, span))
    made = Tup(items, first.names, first.struct)
    return made if first.struct is None else cast_member(cx, first.struct, made, span)


def _is_struct(x: Tup) -> bool:
    return bool(x.names) and (x.struct is None or isinstance(x.struct, StructType))

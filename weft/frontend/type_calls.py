"""Calls of types in a kernel: they cast (``weft.f16(v)``, ``x.dtype(v)``), or make vectors,
matrices and structs."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import torch

from weft.frontend import records
from weft.frontend.arguments import keywords, positional
from weft.frontend.casts import cast, of_constants, vector_type
from weft.frontend.context import Lowering
from weft.frontend.kinds import Operand, Static
from weft.frontend.row_calls import Bound
from weft.lang.dtypes import ComplexType, DType, as_dtype, complex_type
from weft.lang.vectors import MatrixType, VectorType


def call(
    cx: Lowering, node: ast.Call, target: Any, written: Any, bound: Bound
) -> Operand | None:  # fmt: skip
    """A call of ``target``, which stands for ``written``; None where that is no type. ``bound``
    gives arguments as parameters take them."""
    span = cx.span(node)
    if isinstance(target, torch.dtype):  # `x.dtype(v)` casts, too
        target = complex_type(target) or as_dtype(target)
    if isinstance(target, DType | ComplexType):
        (x,) = bound(("x",), repr(target))
        if _is_of_numpy(written) and isinstance(x, Static):  # a number of Python's, too
            return of_constants(lambda value: written(value).item(), [x.value], node, span)
        return cast(cx, x, target, span)
    if isinstance(target, (VectorType, MatrixType)):
        return vector_type(cx, target, bound(("x -", "*"), ast.unparse(node.func)), span)
    if records.makes_records(target):
        return records.make(cx, target, positional(cx, node), keywords(cx, node), span)
    return None


def _is_of_numpy(target: Any) -> bool:
    """Whether it is one of NumPy's types of scalars."""
    return isinstance(target, type) and issubclass(target, np.generic)

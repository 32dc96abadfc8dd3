"""Determinants and inverses of ``weft.Matrix``: formulas of up to 4 rows, else elimination."""

from __future__ import annotations

import math
import operator
from functools import reduce
from typing import Any

import torch

from weft.lang.dtypes import to_float, total

CLOSED = 4  # matrices of up to so many rows have formulas without choices


def _minor(a: Any, i: int, j: int) -> Any:
    keep = [[a[r, c] for c in range(a.m) if c != j] for r in range(a.n) if r != i]
    return type(a)(keep)


def _cofactor(a: Any, i: int, j: int) -> Any:
    minor = determinant(_minor(a, i, j)) if a.n > 1 else 1
    return -minor if (i + j) % 2 else minor


def determinant(a: Any) -> Any:
    """By expansion along the first row; of larger matrices, by elimination."""
    if a.n > CLOSED:
        if any(map(_is_float, a.entries())):
            return _elimination().determinant(_arithmetic(), _float_rows(a))
        return _elimination().whole_determinant(_arithmetic(), [list(row) for row in a])
    if a.n == 1:
        return a[0, 0]
    terms = (a[0, j] * determinant(_minor(a, 0, j)) for j in range(a.n))
    return total(-term if j % 2 else term for j, term in enumerate(terms))


def inverse(a: Any) -> Any:
    """The adjugate over the determinant; of larger matrices, by elimination."""
    if a.n > CLOSED:
        return type(a)(_elimination().inverse(_arithmetic(), _float_rows(a)))
    sides = range(a.n)
    adjugate = type(a)([[_cofactor(a, j, i) for j in sides] for i in sides])
    scale = to_float(determinant(a))
    if isinstance(scale, torch.Tensor):
        return adjugate / scale
    return adjugate * quotient(1.0, scale)


def _float_rows(a: Any) -> list[list[Any]]:
    """The rows, all elements of one float dtype."""
    items = list(map(to_float, a.entries()))
    tensors = [item for item in items if isinstance(item, torch.Tensor)]
    if tensors:
        dtype = reduce(torch.promote_types, [item.dtype for item in tensors])
        device = tensors[0].device
        items = [torch.as_tensor(item, dtype=dtype, device=device) for item in items]
    return [items[k : k + a.m] for k in range(0, len(items), a.m)]


def _is_float(value: Any) -> bool:
    return (
        value.dtype.is_floating_point
        if isinstance(value, torch.Tensor)
        else isinstance(value, float)
    )


def quotient(a: Any, b: Any) -> Any:
    """``a / b`` as IEEE has it: Python's own raises where ``b`` is 0."""
    if isinstance(b, torch.Tensor) or b:
        return a / b
    return math.nan if a == 0 or a != a else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _select(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, torch.Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


_BINARY = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": quotient}


def _elimination() -> Any:
    from weft.lang import elimination  # of large matrices

    return elimination


def _arithmetic() -> Any:
    return _elimination().Arithmetic(
        binary=lambda symbol, a, b: _BINARY[symbol](a, b), negate=operator.neg, magnitude=abs,
        larger=operator.gt, equal=operator.eq, select=_select,
    )  # fmt: skip

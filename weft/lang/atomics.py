"""Atomic updates by name: ``atomic_add(x[i, j], v)`` adds and gives the element before.

In plain Python ``x[i, j]`` of a torch tensor is a view, and of weft's arrays a scalar that knows
where it came from: either way the element itself is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.lang import math
from weft.lang.dtypes import EIGHT_BITS, Scalar, quietly, tensor_of
from weft.lang.elements import Elementwise


def _update(name: str, element: Any, function: Callable[[Any], Any]) -> Scalar:
    kind = name.removeprefix("atomic_")
    if isinstance(element, Scalar) and element.home is not None:
        array, position = element.home
        if array.dtype in EIGHT_BITS:
            raise KernelTypeError(f"{name}() on a tensor of {array.dtype}",
                                  help="update a float32 tensor, and round what is in it "
                                  "afterwards")  # fmt: skip
        return array.update(position, function, kind)
    if not isinstance(element, torch.Tensor) or isinstance(element, Scalar) or element.numel() != 1:
        raise KernelTypeError(
            f"{name}() updates an element of a tensor, not a value",
            help=f"write weft.{name}(x[i], v)",
        )
    with quietly():
        # x[None] of a 0-d tensor has one dimension in torch, hence the reshape.
        plain = element.as_subclass(torch.Tensor).reshape(())
        before = plain.clone().as_subclass(Scalar)
    after = function(before)
    with quietly():
        plain.copy_(torch.as_tensor(after, device=plain.device))
    return before


def _typed(element: Any, value: Any) -> Any:
    """``value`` in the element's dtype, in which min, max and cas compare."""
    with quietly():
        return tensor_of(value, element.device).to(element.dtype)


def _combine(name: str, x: Any, v: Any, function: Callable[[Any, Any], Any]) -> Any:
    """Updates an element, or each number of one that is a vector, by ``function(old, v)``."""
    if not isinstance(x, Elementwise):
        return _update(name, x, lambda old: function(old, v))
    entries = x.entries()
    values = v.entries() if isinstance(v, Elementwise) else [v] * len(entries)
    pairs = zip(entries, values, strict=True)
    return x.with_entries([_combine(name, a, b, function) for a, b in pairs])


def atomic_add(x: Any, v: Any) -> Any:
    """``x += v``. Gives the element before."""
    return _combine("atomic_add", x, v, operator.add)


def atomic_sub(x: Any, v: Any) -> Any:
    """``x -= v``. Gives the element before."""
    return _combine("atomic_sub", x, v, operator.sub)


def atomic_mul(x: Any, v: Any) -> Any:
    """``x *= v``. Gives the element before."""
    return _combine("atomic_mul", x, v, operator.mul)


def atomic_min(x: Any, v: Any) -> Any:
    """``x = min(x, v)``; NaN if either is. Gives the element before."""
    return _combine("atomic_min", x, v, lambda old, v: torch.minimum(old, _typed(old, v)))


def atomic_max(x: Any, v: Any) -> Any:
    """``x = max(x, v)``; NaN if either is. Gives the element before."""
    return _combine("atomic_max", x, v, lambda old, v: torch.maximum(old, _typed(old, v)))


def atomic_and_(x: Any, v: Any) -> Any:
    """``x &= v``. Gives the element before."""
    return _combine("atomic_and_", x, v, operator.and_)


def atomic_or_(x: Any, v: Any) -> Any:
    """``x |= v``. Gives the element before."""
    return _combine("atomic_or_", x, v, operator.or_)


def atomic_xor(x: Any, v: Any) -> Any:
    """``x ^= v``. Gives the element before."""
    return _combine("atomic_xor", x, v, operator.xor)


def atomic_exchange(x: Any, v: Any) -> Scalar:
    """``x = v``. Gives the element before."""
    return _update("atomic_exchange", x, lambda old: _typed(old, v))


def atomic_cas(x: Any, expected: Any, desired: Any) -> Scalar:
    """``x = desired`` where ``x == expected``. Gives the element before."""

    def replace(old: Any) -> Any:
        return _typed(old, desired) if bool(old == _typed(old, expected)) else old

    return _update("atomic_cas", x, replace)


atomic_and = atomic_and_
atomic_or = atomic_or_


# What each is of a variable, which the frontend writes for it.
vars(atomic_max)["max"], vars(atomic_min)["min"] = math.max, math.min

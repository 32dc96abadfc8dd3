"""Atomic updates by name: ``atomic_add(x[i, j], v)`` adds and gives the element before.

In plain Python ``x[i, j]`` of a torch tensor is a view, and of weft's arrays a scalar that knows
where it came from: either way the element itself is written.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.lang.dtypes import Scalar, quietly, tensor_of
from weft.lang.elements import Elementwise


def _update(name: str, element: Any, function: Callable[[Any], Any]) -> Scalar:
    kind = name.removeprefix("atomic_")
    if isinstance(element, Scalar) and element.home is not None:
        array, position = element.home
        return array.update(position, function, kind)
    if not isinstance(element, torch.Tensor) or isinstance(element, Scalar) or element.numel() != 1:
        raise KernelTypeError(
            f"{name}() updates an element of a tensor, not a value",
            help=f"write weft.{name}(x[i], v)",
        )
    with torch.no_grad():
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


def _elementwise(update: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """``update`` of an element, or of each number of one that is a vector."""

    @functools.wraps(update)
    def each(x: Any, v: Any) -> Any:
        if not isinstance(x, Elementwise):
            return update(x, v)
        entries = x.entries()
        values = v.entries() if isinstance(v, Elementwise) else [v] * len(entries)
        return x.with_entries([update(a, b) for a, b in zip(entries, values, strict=True)])

    return each


@_elementwise
def atomic_add(x: Any, v: Any) -> Any:
    """``x += v``. Gives the element before."""
    return _update("atomic_add", x, lambda old: old + v)


@_elementwise
def atomic_sub(x: Any, v: Any) -> Any:
    """``x -= v``. Gives the element before."""
    return _update("atomic_sub", x, lambda old: old - v)


@_elementwise
def atomic_mul(x: Any, v: Any) -> Any:
    """``x *= v``. Gives the element before."""
    return _update("atomic_mul", x, lambda old: old * v)


@_elementwise
def atomic_min(x: Any, v: Any) -> Any:
    """``x = min(x, v)``; NaN if either is. Gives the element before."""
    return _update("atomic_min", x, lambda old: torch.minimum(old, _typed(old, v)))


@_elementwise
def atomic_max(x: Any, v: Any) -> Any:
    """``x = max(x, v)``; NaN if either is. Gives the element before."""
    return _update("atomic_max", x, lambda old: torch.maximum(old, _typed(old, v)))


@_elementwise
def atomic_and_(x: Any, v: Any) -> Any:
    """``x &= v``. Gives the element before."""
    return _update("atomic_and_", x, lambda old: old & v)


@_elementwise
def atomic_or_(x: Any, v: Any) -> Any:
    """``x |= v``. Gives the element before."""
    return _update("atomic_or_", x, lambda old: old | v)


@_elementwise
def atomic_xor(x: Any, v: Any) -> Any:
    """``x ^= v``. Gives the element before."""
    return _update("atomic_xor", x, lambda old: old ^ v)


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

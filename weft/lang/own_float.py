"""What torch computes in a loop whose own float is f64, while it is interpreted.

torch gives an integer beside one of Python's floats float32; here it is a ``Weak``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from weft.lang.dtypes import Weak, is_strong, promoted, quietly
from weft.lang.elements import leaves, mapped

# Functions that give the dtype that their name or an argument says.
_CONVERSIONS = frozenset(("to", "float", "double", "half", "bfloat16", "type", "type_as"))


def computed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``function``, one of torch's, of what an iteration has."""
    given = leaves((*args, *kwargs.values()))
    tensors = [v for v in given if isinstance(v, torch.Tensor)]
    if not tensors or getattr(function, "__name__", "") in _CONVERSIONS or torch.dtype in map(
        type, given
    ):  # fmt: skip
        return function(*args, **kwargs)
    with quietly():  # a question to a number would be one more of torch's functions
        strong = [t.dtype for t in tensors if is_strong(t)]
    weak = any(isinstance(t, Weak) for t in tensors)
    if strong:
        if weak:
            dtype = reduce(promoted, strong)
            args, kwargs = mapped(
                (args, kwargs), lambda t: t.to(dtype) if isinstance(t, Weak) else t
            )
        return function(*args, **kwargs)
    floats = weak or any(isinstance(v, float | complex) for v in given)
    if floats and getattr(function, "__name__", "") == "where":
        args, kwargs = tuple(map(_chosen, args)), {k: _chosen(v) for k, v in kwargs.items()}
    elif floats:
        args, kwargs = mapped((args, kwargs), _widened)
    result = function(*args, **kwargs)
    if not floats and any(map(is_strong, leaves([result]))):  # of integers alone
        args, kwargs = mapped((args, kwargs), _widened)
        result = function(*args, **kwargs)
    return mapped(result, _weak)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if isinstance(tensor, Weak) else tensor.to(torch.float64)


def _chosen(value: Any) -> Any:
    """An argument of ``torch.where``, which may be the condition."""
    if isinstance(value, torch.Tensor):
        return value if value.dtype is torch.bool else _widened(value)
    return (
        torch.tensor(value, dtype=torch.float64, device="cpu")
        if isinstance(value, float)
        else value
    )


def _weak(tensor: torch.Tensor) -> torch.Tensor:
    with quietly():
        weak = tensor.dim() == 0 and tensor.dtype is torch.float64
        return tensor.as_subclass(Weak) if weak else tensor

"""Floats that graphs leave open: operators take these as tensors of one number.

torch's graphs hold a float of a schema as a constant, and are compiled again for each new one. A
tensor they leave open, as torch's own operators have it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from weft.lang.dtypes import DType, from_torch
from weft.pytorch.guarded import plainly

CHANGING = "Changing"  # the type of such a parameter, where others have a schema type


class Unknown(float):
    """Stands for the number in ``tensor``, which has no data."""

    tensor: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Unknown:
        made = cls("nan")  # which nobody takes for a result
        made.tensor = tensor
        return made


def number_in(tensor: torch.Tensor) -> Any:
    """The number, or what stands for it."""
    if not isinstance(tensor, FakeTensor) and not tensor.is_meta:
        return tensor.item()
    return Unknown.of(tensor)


def changes(number: Any) -> bool:
    """While Dynamo traces it: whether it is a symbol."""
    # Dynamo has imported it, and sympy.
    from torch.fx.experimental.symbolic_shapes import has_static_value

    return not has_static_value(number)


def without_symbols(value: Any) -> Any:
    """While Dynamo traces it: what is fixed in an operator. For each symbol in it, which Dynamo
    makes of an int that has changed, it has the number, which a guard then asks for."""
    # Dynamo has imported it, and sympy.
    from torch.fx.experimental.symbolic_shapes import guard_scalar

    if isinstance(value, int | float) and not isinstance(value, Enum):
        return guard_scalar(value)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [without_symbols(item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def as_constant(value: Any) -> tuple[bool, Any]:
    """While Dynamo traces it: what is fixed in an operator as what Dynamo takes for a constant, and
    whether that stands for a dtype of weft's."""
    return isinstance(value, DType), plainly(without_symbols(value))


def of_constant(constant: tuple[bool, Any]) -> Any:
    return from_torch(constant[1]) if constant[0] else constant[1]


def as_tensor(number: Any) -> torch.Tensor:
    """While Dynamo traces it: a float that is a symbol. torch's graphs make a sum with one a sum
    with a tensor that they are given."""
    return torch.zeros((), dtype=torch.float64, device="cpu") + number

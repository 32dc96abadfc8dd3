"""Vectors and matrices of the host part, as tensors while a device loop stores into them, and its
scalars where the loop's tensors are.

What the loop leaves in the tensor becomes the vector's elements: 0-d tensors, as the results of
reductions are. A scalar (``weft.f32(0)``) is a value: the loop has its copy on the device.
"""

from __future__ import annotations

# What is asked of forward mode has no public name.
# pyright: reportPrivateUsage=false
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from weft.frontend.split import Region
from weft.lang.dtypes import SYMBOLS, Scalar
from weft.lang.vectors import Backing, Matrix, Vector


def is_backed(region: Region, args: Sequence[Any]) -> bool:
    """Whether the loop stores into a vector of the host part, or reads one whose numbers are data:
    what loops gave (as a constant it would be compiled for each value, and have no gradient), or
    sizes under torch.compile. Or reads a scalar that is not where its tensors are."""
    return any((isinstance(v, Vector | Matrix) and (k in region.stored or _is_data(v)))
               or (isinstance(v, Scalar) and _elsewhere(v, args) is not None)
               for k, v in enumerate(args))  # fmt: skip


def _elsewhere(value: Scalar, args: Sequence[Any]) -> torch.device | None:
    """The device of the loop's tensors, where it is not the CPU and ``value`` is there."""
    if not value.is_cpu:
        return None
    return next((v.device for v in args if isinstance(v, torch.Tensor) and not v.is_cpu), None)


def _is_data(value: Vector | Matrix) -> bool:
    return any(isinstance(v, SYMBOLS) or (isinstance(v, torch.Tensor) and
               (not isinstance(v, Scalar) or v.requires_grad or forward_ad._current_level >= 0))
               for v in value.entries())  # fmt: skip


def backed(region: Region, args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, with tensors for the vectors that the loop stores into or that have gradients,
    and scalars where its tensors are. An object that is there twice stays one."""
    made: dict[int, torch.Tensor] = {}
    for k, value in enumerate(args):
        if isinstance(value, Vector | Matrix) and (k in region.stored or _is_data(value)):
            if k in region.stored:
                value.store_entries(value.entries())  # refuses those that cannot be set
            if id(value) not in made:
                made[id(value)] = _tensor(value, region, args)
        elif isinstance(value, Scalar) and (device := _elsewhere(value, args)) is not None:
            made[id(value)] = _plain(value).to(device)
    return tuple(made.get(id(value), value) for value in args)


def put_back(region: Region, args: Sequence[Any], tensors: Sequence[Any]) -> None:
    """Has the vectors that the loop stores into hold what their tensors do."""
    for k in region.stored:
        value, tensor = args[k], tensors[k]
        if isinstance(value, Vector | Matrix):
            value.store_entries([item.clone() for item in tensor.reshape(-1).unbind()])


def _tensor(value: Vector | Matrix, region: Region, args: Sequence[Any]) -> torch.Tensor:
    entries = value.entries()
    tensors = [v for v in args if isinstance(v, torch.Tensor)]
    dtype = _dtype(entries, region, tensors)
    device = next((v.device for v in tensors), torch.device("cpu"))
    items = [_plain(v).to(device, dtype) if isinstance(v, torch.Tensor) else
             torch.tensor(v, dtype=dtype, device=device) for v in entries]  # fmt: skip
    made = torch.stack(items).reshape(value.shape).clone()
    made.element = Backing(value.shape)  # type: ignore[attr-defined]
    return made


def _plain(item: torch.Tensor) -> torch.Tensor:
    return item.as_subclass(torch.Tensor) if isinstance(item, Scalar) else item


def _dtype(entries: Sequence[Any], region: Region, tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The join of the elements' dtypes; that of Python's floats is the loop's own float."""
    strong = [v.dtype for v in entries if isinstance(v, torch.Tensor)]
    wide = torch.float64 in [v.dtype for v in (*tensors, *entries) if isinstance(v, torch.Tensor)]
    wide |= any(a.parameter is not None and a.parameter.dtype == "f64" for a in region.args)
    joined = functools.reduce(torch.promote_types, strong) if strong else None
    weak = [v for v in entries if not isinstance(v, torch.Tensor)]
    if any(isinstance(v, float) for v in weak) and not (joined and joined.is_floating_point):
        return torch.float64 if wide else torch.float32
    if joined is not None and (joined is not torch.bool or all(type(v) is bool for v in weak)):
        return joined
    return torch.bool if all(type(v) is bool for v in weak) else torch.int64

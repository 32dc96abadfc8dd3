"""What torch sorts of accumulations whose places data picks."""

from __future__ import annotations

import math

import torch


def added(gradient: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """``gradient`` with ``values`` added to the elements ``places``: by sorting them on CUDA, one
    by one on the CPU (torch's ``index_put_``, where it is to be deterministic)."""
    sums = values.new_zeros(gradient.numel() + 1)  # the last element is what -1 stands for
    sums = sums.index_put((places.flatten(),), values.flatten(), accumulate=True)
    return gradient + sums[:-1].view_as(gradient)


def order_of(
    keys: torch.Tensor, gradient: torch.Tensor, axes: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of ``keys``, row numbers along ``axes`` of ``gradient``, in their order; where
    in it each row begins, and where the last one ends."""
    rows = math.prod(gradient.shape[axis] for axis in axes)
    # Fewer bits are sorted sooner.
    first, dtype = 0, torch.int32 if rows < 1 << 31 else torch.int64
    if rows < (1 << 16) - 1:  # numbers from -1 to `rows` are 16 bits
        first, dtype = 1 - (1 << 15), torch.int16
    narrow = torch.empty(keys.numel(), dtype=dtype, device=keys.device)
    keys, order = torch.sort(torch.add(keys.flatten(), first, out=narrow), stable=True)
    all_rows = torch.arange(first, first + rows + 1, dtype=dtype, device=keys.device)
    return order, torch.searchsorted(keys, all_rows)

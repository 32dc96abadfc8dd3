"""Calls of kernels for CUDA as schedules see them, made of sizes alone."""

from __future__ import annotations

import torch

from weft.schedule.nest import Nest
from weft.schedule.sizes import Array, Sizes


def call_of(nest: Nest, trips: dict[str, int], **arrays: tuple[int, ...]) -> Sizes:
    """A call in which indices go from 0 to ``trips``, and arrays are contiguous floats at multiples
    of 512 bytes, of one element if nothing else is said."""
    values = [(0, 0)] * len(nest.program)
    for axis, (low, high, step) in zip(nest.axes, nest.bounds, strict=True):
        values[low], values[high], values[step] = (0, 0), (trips[axis],) * 2, (1, 1)
    shapes = {name: arrays.get(name, (1,)) for name in nest.arrays}
    strides = {
        name: tuple(torch.empty(shape, device="meta").stride()) for name, shape in shapes.items()
    }
    found = {name: Array(shape, strides[name], 4, True) for name, shape in shapes.items()}
    aligned = {(name, 1 << k) for name in found for k in range(10)}
    return Sizes(nest, values, found, frozenset(aligned))

"""Carrying out an IR function by the reference interpreter: slow, and open to the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.ir import interp
from weft.ir.core import Function


class InterpretedFunction:
    """As ``CompiledFunction``, by ``ir.interp`` with races checked. ``watch`` is called after each
    operation (see ``interp.run``)."""

    def __init__(self, function: Function, watch: interp.Watch | None = None) -> None:
        self.function = function
        self.watch = watch

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        arrays = [_array(v) if isinstance(v, torch.Tensor) else v for v in values]
        interp.run(self.function, arrays, races=True, watch=self.watch)
        for value, array in zip(values, arrays, strict=True):
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                found = torch.from_numpy(array)
                value.copy_(found.view(value.dtype) if value.dtype is torch.bfloat16 else found)


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor's memory, or a copy of it where that is on another device."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":  # the same strides, as its type in the IR says
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        tensor = copy.copy_(tensor)
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.view(torch.uint16)
    return tensor.numpy()

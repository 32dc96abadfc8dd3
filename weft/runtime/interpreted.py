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
        memory = HostMemory()
        arrays = [memory.array(v) if isinstance(v, torch.Tensor) else v for v in values]
        interp.run(self.function, arrays, races=True, watch=self.watch)
        memory.write_back()


class HostMemory:
    """Tensors as NumPy arrays. Memory of another device is copied here, each storage once, so that
    tensors which share memory there do so here."""

    def __init__(self) -> None:
        self.copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def array(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        tensor = tensor.detach()
        if tensor.device.type != "cpu":
            tensor = self._copied(tensor)
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.view(torch.uint16)
        return tensor.numpy()

    def write_back(self) -> None:
        for theirs, ours in self.copies.values():
            theirs.copy_(ours)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        theirs = tensor.untyped_storage()
        _, ours = self.copies.setdefault(theirs.data_ptr(), (theirs, theirs.cpu()))
        empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return empty.set_(ours, tensor.storage_offset(), tensor.shape, tensor.stride())

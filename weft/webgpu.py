"""Tensors that live on a device of WebGPU between calls of kernels (docs/webgpu.md)."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.lang.resident import Resident
from weft.runtime.webgpu_device import WebGpuError, device

__all__ = ["WebGpuError", "adapter", "buffer"]


def buffer(tensor: Any) -> torch.Tensor:
    """A copy of the CPU tensor ``tensor``, of its shape, strides, dtype and values, whose elements
    stay on the device between calls of kernels that run there (``kernel.on("webgpu")``).

    To torch it is a tensor of the CPU: operations work on its copy there, which is brought up to
    date first, and is copied to the device again before the next kernel where they changed it. New
    tensors like it (``torch.empty_like(x)``, ``x.clone()``, ``x.new_zeros(...)``) live on the
    device, too; what is computed of it is a tensor of the CPU. While something else has its memory
    (a view, a NumPy array, a graph of autograd), kernels copy as they do for other tensors.

    Raises ``KernelTypeError`` for what is no dense tensor, and ``KernelValueError`` for one that is
    not on the CPU.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise KernelTypeError(
            f"a {type(tensor).__name__} has no buffer", help="pass a dense tensor of torch's"
        )
    if tensor.device.type != "cpu":
        raise KernelValueError(
            f"the tensor is on {tensor.device}, and a buffer is made of one on the CPU",
            help="pass x.cpu()",
        )
    with torch.no_grad():
        like = torch.empty_like(tensor, device="meta")
        memory = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
        made = Resident.of(memory.copy_(tensor))
    return made.requires_grad_(tensor.requires_grad)


def adapter() -> str:
    """What the device is called. Raises ``WebGpuError`` where there is none."""
    return device().name

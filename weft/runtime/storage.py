"""Where the elements of a tensor are: torch has tensors without memory, or with that of others."""

from __future__ import annotations

from typing import Any

import torch

from weft.errors import KernelValueError
from weft.runtime.overlap import extent
from weft.source import Span

# What torch knows of a tensor beside its memory has no public name.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false


def dense(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments, with memory for torch's ZeroTensors (tangents and gradients), which have
    none."""
    return tuple(
        v.clone() if isinstance(v, torch.Tensor) and v._is_zerotensor() else v for v in args
    )


def check_memory(name: str, tensor: torch.Tensor, span: Span) -> None:
    """Raises ``KernelValueError`` where the elements of ``tensor`` are not in memory of its own."""
    if torch._is_functional_tensor(tensor):
        raise KernelValueError(
            f"`{name}` is a functional tensor: it stands for one in a trace", span,
            help="call the kernel as an operator, kernel.op(...), where tensors are functionalized",
        )  # fmt: skip
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        raise KernelValueError(
            f"`{name}` has no memory of its own: it is a batch, or belongs to a transform of "
            "torch.func", span,
            help="kernels have no batching rule: write the loop over the batch in the kernel, and "
            "use tensors of a transform inside of it only",
        ) from error  # fmt: skip
    size = tensor.untyped_storage().nbytes()
    if tensor.numel() and size < tensor.storage_offset() * tensor.element_size() + extent(tensor):
        raise KernelValueError(
            f"`{name}` has {tensor.numel()} element{'s' * (tensor.numel() != 1)}, and its storage "
            f"has {size} bytes", span,
            help="its storage was resized: call the kernel while the data is there (inside of "
            "FSDP's forward, say)",
        )  # fmt: skip


def check_writable(name: str, tensor: torch.Tensor, span: Span) -> None:
    """Raises ``KernelValueError`` for a tensor that torch does not write to, either."""
    if tensor._is_zerotensor():
        raise KernelValueError(
            f"`{name}` is written, and it is a ZeroTensor, which is immutable", span,
            help=f"pass {name}.clone()",
        )  # fmt: skip
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise KernelValueError(
            f"`{name}` is written, and it is an inference tensor, outside of inference mode", span,
            help=f"pass {name}.clone(), or call the kernel under torch.inference_mode()",
        )  # fmt: skip

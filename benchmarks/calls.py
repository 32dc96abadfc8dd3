"""From a kernel and its arguments to the call that is timed. The last argument is the output."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import peers
from benchmarks.harness import Case

Call = Callable[[], Any]
Provider = Callable[[Case], Call]


def calling(kernel: Callable[..., Any], *arguments: Any) -> Call:
    """``kernel(*arguments)``, giving back the last argument."""
    out = arguments[-1]

    def call() -> Any:
        kernel(*arguments)
        return out

    return call


def on_arrays(kernel: Callable[..., Any], *arguments: Any) -> Call:
    """`calling` with NumPy arrays over the memory of the tensors among the arguments."""
    return calling(kernel, *(a.numpy() if isinstance(a, torch.Tensor) else a for a in arguments))


def on_warp(kernel: Any, dim: Any, *arguments: Any) -> Call:
    """A launch of a Warp kernel on the CPU, the tensors wrapped once before."""
    wp = peers.warp()
    inputs = [wp.from_torch(a) if isinstance(a, torch.Tensor) else a for a in arguments]
    out = arguments[-1]

    def call() -> Any:
        wp.launch(kernel, dim=dim, inputs=inputs, device="cpu")
        return out

    return call


def compiled(expression: Callable[..., torch.Tensor]) -> Callable[..., None]:
    """``torch.compile`` of ``out.copy_(expression(...))``: no copy is left in the code."""

    def into(*arguments: Any) -> None:
        arguments[-1].copy_(expression(*arguments[:-1]))

    return torch.compile(into, dynamic=False)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """An output that shows it where nothing was written."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -1, dtype=dtype)

"""What torch.compile looks for in what it compiles: code objects, and methods with a source."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.torch_version import TorchVersion

from weft.runtime.launch import KernelLike


def original(kernel: KernelLike) -> Callable[..., Any]:
    """What torch.compile of the kernel by itself compiles: a function with a code object of its
    own, which counts recompilations. Objects that are called share one."""
    if TorchVersion(torch.__version__) < "2.13":  # which unbinds methods
        raise AttributeError

    def call(*args: Any, **kwargs: Any) -> Any:
        return kernel(*args, **kwargs)

    own = kernel.function.__code__
    call.__code__ = call.__code__.replace(
        co_name=own.co_name, co_filename=own.co_filename, co_firstlineno=own.co_firstlineno
    )
    call.kernel = kernel  # type: ignore[attr-defined]
    return call


class BoundForward(functools.partial[Any]):
    """The ``forward`` of a module. torch.compile looks for the source of methods, and a kernel is
    no function that has one."""

    @property
    def __self__(self) -> Any:
        return self.args[0]

    @property
    def __func__(self) -> Any:
        return self.func

    def __getattr__(self, name: str) -> Any:
        return getattr(self.func, name)

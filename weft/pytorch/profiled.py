"""Calls of kernels in profiles: by the name that a person gave, with shapes, and the line of the
source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import torch

from weft.runtime.launch import KernelLike

# What names an event without much ado has no public name.
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false

# What is told of each profiled call of a kernel: the kernel, its name and its arguments.
Noting = Callable[[KernelLike, str, tuple[Any, ...], dict[str, Any]], None]
noting: ContextVar[Noting | None] = ContextVar("weft_noting", default=None)


def recorded(
    kernel: KernelLike, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AbstractContextManager[None]:
    """The event of a call, which is made inside of it. Tables and traces have the shapes of its
    arguments, and where the kernel is."""
    note = noting.get()
    if note is not None:
        note(kernel, name, args, kwargs)
    plain = tuple(v if isinstance(v, torch.Tensor | int | float) else str(v)
                  for v in (*args, *kwargs.values()))  # fmt: skip
    return torch._C._profiler._RecordFunctionFast(name, plain, {"source": place(kernel)})


def place(kernel: KernelLike) -> str:
    """The file and line of a kernel."""
    return f"{kernel.span.file}:{kernel.span.line}"

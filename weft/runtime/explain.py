"""What is wrong with a call, where Python or PyTorch have said it in their words."""

from __future__ import annotations

import types
from typing import Any

import torch

from weft.errors import KernelTypeError
from weft.frames import entries
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.signature import check_layout


def explain(
    kernel: KernelLike, host: types.CodeType | None, error: Exception, args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:  # fmt: skip
    """Raises ``KernelTypeError`` where arguments do not fit the parameters, have a layout that the
    host part (whose code is ``host``) has no operation for, or lack what a loop reads of them."""
    lines = [entry.tb_lineno for entry in entries(error) if entry.tb_frame.f_code is host]
    if isinstance(error, AttributeError):
        last = entries(error)[-1:]
        if last and last[0].tb_frame.f_code is host:
            _missing(kernel, error, last[0].tb_lineno)
    elif isinstance(error, TypeError | NotImplementedError):
        if isinstance(error, NotImplementedError):
            _check_layouts(kernel, args, kwargs, error)
        if len(entries(error)) < 2:  # nothing was called
            kernel.bind(args, kwargs)
    elif all(_loops(kernel, line) for line in lines):  # else it is the host part's own matter
        # PyTorch could not say what a tensor's strides are, on the way to a loop.
        _check_layouts(kernel, args, kwargs, None)


def _loops(kernel: KernelLike, line: int) -> list[Launcher]:
    return [x for x in kernel.launchers if x.region.node.lineno == line]


def _missing(kernel: KernelLike, error: AttributeError, line: int) -> None:
    for launcher in _loops(kernel, line):
        for arg in launcher.region.args:
            if arg.name.rpartition(".")[2] == error.name:
                raise KernelTypeError(
                    f"`{arg.name}`: {error}", kernel.source.span(arg.expr),
                    help="check the spelling",
                ) from None  # fmt: skip


def _check_layouts(
    kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any],
    error: NotImplementedError | None,
) -> None:  # fmt: skip
    for name, value in kernel.bind(args, kwargs).arguments.items():
        if isinstance(value, torch.Tensor):
            check_layout(name, value, kernel.span, error)

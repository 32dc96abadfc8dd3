"""Dual tensors, and the level of PyTorch's forward mode at which they are."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
_unpack: Any = torch._C._VariableFunctions._unpack_dual
LEVEL = 0  # torch has one only. Under torch.compile its number in Python is not kept up to date.


def is_dual(value: Any) -> bool:
    """Whether ``value`` is a tensor with a tangent, in a context where tangents count."""
    return tangent_of(value) is not None


def tangent_of(value: Any) -> torch.Tensor | None:
    """The tangent of a dual tensor, None of everything else."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    # What ``forward_ad.unpack_dual`` calls: each operator asks this of each of its arguments.
    return _unpack(value, LEVEL)[1] if torch._C._is_fwd_grad_enabled() else None


def has_dual(values: Sequence[Any]) -> bool:
    """Whether there is such a tensor among ``values``, or in the lists among them."""
    if not torch._C._is_fwd_grad_enabled():
        return False
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() and _unpack(value, LEVEL)[1] is not None:
                return True
        elif isinstance(value, list | tuple) and has_dual(value):
            return True
    return False


def primal_of(value: torch.Tensor) -> torch.Tensor:
    """``value`` without its tangent, as an operation that reverse mode sees."""
    return forward_ad.unpack_dual(value, level=LEVEL).primal


def within_level() -> bool:
    """Whether tensors can be dual here."""
    return forward_ad._current_level >= 0


@contextmanager
def level() -> Generator[None]:
    """A context in which tensors can be dual, whether or not it is one already."""
    before = forward_ad._current_level
    if before == LEVEL:
        yield
        return
    try:
        forward_ad.enter_dual_level()
    except RuntimeError:  # there is one, entered by compiled code
        forward_ad._current_level = LEVEL
        try:
            yield
        finally:
            forward_ad._current_level = before
        return
    try:
        yield
    finally:
        forward_ad.exit_dual_level()

"""Dual tensors, and the level of PyTorch's forward mode at which they are."""

from __future__ import annotations

import functools
import operator
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
_unpack: Any = torch._C._VariableFunctions._unpack_dual
LEVEL = 0  # torch has one only. Under torch.compile its number in Python is not kept up to date.


def is_open() -> bool:
    """Whether there is a level at all. Only within one are tensors asked for tangents: that asks
    the dispatcher for an alias of each, which tracers record and some tensors cannot give."""
    if not torch._C._is_fwd_grad_enabled():
        return False
    if forward_ad._current_level >= LEVEL:
        return True
    # Compiled code enters levels behind Python's back. A second level is refused; one that was
    # entered is left before another thread can have the interpreter.
    try:
        deque(map(operator.call, _ENTER_AND_EXIT), maxlen=0)
    except RuntimeError:
        return True
    return False


_ENTER_AND_EXIT = (torch._C._enter_dual_level,
                   functools.partial(torch._C._exit_dual_level, level=LEVEL))  # fmt: skip


def is_dual(value: Any) -> bool:
    """Whether ``value`` is a tensor with a tangent, in a context where tangents count."""
    return tangent_of(value) is not None


def tangent_of(value: Any) -> torch.Tensor | None:
    """The tangent of a dual tensor, None of everything else."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    return _unpack(value, LEVEL)[1] if is_open() else None  # as ``forward_ad.unpack_dual``


def has_dual(values: Sequence[Any]) -> bool:
    """Whether there is such a tensor among ``values``, or in the lists among them."""
    if not is_open():
        return False
    for value in values:
        if isinstance(value, torch.Tensor):
            if tangent_of(value) is not None:
                return True
        elif isinstance(value, list | tuple) and value and has_dual(value):
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

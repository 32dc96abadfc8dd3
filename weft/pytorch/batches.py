"""Batches: the tensors of ``vmap``, which show one sample and hold all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import pyfunctorch
from torch.overrides import TorchFunctionMode

# pyright: reportPrivateUsage=false
outside = pyfunctorch.temporarily_clear_interpreter_stack  # of all transforms

# Functions that allocate what they return.
_FRESH = frozenset(f"{prefix}{name}{suffix}" for name in ("empty", "zeros", "ones", "full")
                   for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))) | {
    "clone", "empty_strided", "new_empty_strided",
}  # fmt: skip


def is_batched(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _functorch.is_batchedtensor(value)


def unwrapped(value: Any) -> tuple[Any, tuple[int, ...]]:
    """What ``value`` is a batch of, and the levels of its batches: its first dimensions, in this
    order. To be called ``outside``."""
    if not is_batched(value):
        return value, ()
    tensor, levels = unwrapped(_functorch.get_unwrapped(value))
    place = _functorch.maybe_get_bdim(value)
    if place:
        tensor = tensor.movedim(len(levels) + place, len(levels))
    return tensor, (*levels, _functorch.maybe_get_level(value))


def storage(tensor: torch.Tensor) -> int:
    """What tells the memory of ``tensor``, a batch maybe, from others'."""
    while is_batched(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.untyped_storage()._cdata


def wrapped(tensor: torch.Tensor, levels: Sequence[int]) -> torch.Tensor:
    """The reverse."""
    for level in levels:
        tensor = _functorch._add_batch_dim(tensor, 0, level)
    return tensor


def unbatched(tensor: torch.Tensor, level: int, size: int) -> torch.Tensor:
    """All samples of ``tensor``, along the first dimension."""
    return _functorch._remove_batch_dim(tensor, level, size, 0)


def active() -> dict[int, int]:
    """The sizes of the batches around, by level."""
    found = pyfunctorch.retrieve_all_functorch_interpreters()
    return {i.level(): i.batch_size() for i in found if isinstance(i, pyfunctorch.VmapInterpreter)}


class Fresh(TorchFunctionMode):
    """Under ``vmap``: what a host part allocates has room for every sample, as loops may write to
    it."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in _FRESH:
            return made
        sizes = active()
        with outside():
            tensor, levels = unwrapped(made)
            if len(levels) == len(sizes):
                return made
            for place, level in enumerate(sizes):
                if level not in levels:
                    tensor = tensor.unsqueeze(place)
            own = tensor.shape[len(sizes) :]
            many = tensor.expand(*sizes.values(), *own).contiguous()
        return wrapped(many, list(sizes))


def direct(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``call(*args, **kwargs)`` of a kernel that writes to batches."""
    with Fresh():
        return call(*args, **kwargs)

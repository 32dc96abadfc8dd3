"""Race checks of loops that run on a GPU, in debug mode: before each launch the CPU's code, which
checks itself (``race_shadow.py``), runs on copies of what the loop reaches.

So a race is found before anything is written, by the same rules and with the same text as on the
CPU, whichever back end launches the loop. The copies overlap as the tensors do. Random numbers are
a function of what is in the argument block, and the CPU's code is made without prints: nothing that
a person sees happens twice.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

# What runs beside modes has no public name.
# pyright: reportPrivateUsage=false
from torch.utils._python_dispatch import _disable_current_modes

from weft.frames import eager
from weft.lang.resident import Home
from weft.runtime import build
from weft.runtime.overlap import address_of, extent


class CheckedFirst:
    """``call`` of a loop on ``tensors`` (and others of their sizes), after ``races``, the CPU's
    code, has run on copies. It is called with the argument block and the tensors of its
    pointers."""

    def __init__(
        self, call: Callable[..., object], takes_tensors: bool, races: build.Made,
        tensors: Sequence[torch.Tensor], error: build.Failure,
    ) -> None:  # fmt: skip
        self.call, self.takes_tensors = call, takes_tensors
        self.check, _ = races.bound(tensors, error, brief=False)

    def __call__(self, slots: bytes, tensors: Sequence[torch.Tensor]) -> None:
        # A graph's launches are recorded, not run: there is nothing to copy.
        if not (tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()):
            copies, addresses = copied(tensors)
            self.check(struct.pack(f"<{len(addresses)}Q", *addresses) + slots[8 * len(addresses) :])
            del copies  # alive until here
        self.call(slots, tensors) if self.takes_tensors else self.call(slots)


def copied(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[int]]:
    """The bytes from the first to the last element of each tensor, in memory of the CPU; and where
    each begins there. What overlaps has one copy."""
    begins, sizes = [address_of(t) for t in tensors], [extent(t) for t in tensors]
    copies: list[torch.Tensor] = []
    addresses = [0] * len(tensors)
    group: list[int] = []
    end = 0
    for k in sorted((k for k, size in enumerate(sizes) if size), key=begins.__getitem__):
        if group and begins[k] >= end:
            _copy_group(tensors, group, begins, end, copies, addresses)
            group = []
        end = begins[k] + sizes[k] if not group else max(end, begins[k] + sizes[k])
        group.append(k)
    if group:
        _copy_group(tensors, group, begins, end, copies, addresses)
    return copies, addresses


def _copy_group(
    tensors: Sequence[torch.Tensor], group: Sequence[int], begins: Sequence[int], end: int,
    copies: list[torch.Tensor], addresses: list[int],
) -> None:  # fmt: skip
    first = begins[group[0]]
    made, address = _copy(tensors[group[0]], end - first)
    copies.append(made)
    for k in group:
        addresses[k] = address + begins[k] - first


@eager
def _copy(tensor: torch.Tensor, size: int) -> tuple[torch.Tensor, int]:
    """``size`` bytes from the first element on, on the CPU, and where."""
    with _disable_current_modes(), torch.no_grad():
        if tensor.device.type == "cpu":  # the loop runs on a device without tensors of torch's
            address = torch.Tensor.data_ptr(tensor)
            home = Home.by_address.get(address)
            if home is not None:
                home.to_host()
            made = torch.empty(size, dtype=torch.uint8)
            ctypes.memmove(made.data_ptr(), address, size)
        else:
            there: Any = torch.empty(0, dtype=torch.uint8, device=tensor.device)
            offset = tensor.storage_offset() * tensor.element_size()
            there.set_(torch.Tensor.untyped_storage(tensor), offset, (size,))
            made: torch.Tensor = there.cpu()
    return made, made.data_ptr()

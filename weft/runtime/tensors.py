"""What machine code knows of torch: where a tensor is, and what Python's functions ask."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from weft.codegen import libraries

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportPrivateImportUsage=false
_WORDS = 24  # of a tensor's head that are looked at
_HEAD = object.__basicsize__


class Layout(NamedTuple):
    """``held``: at which byte of its Python object a tensor is, whose address is a handle of
    torch's C interface; ``keys``: at which byte of what that points to its dispatch keys are;
    ``data``: the address of torch's function that writes a tensor's address, given a handle. It
    takes a tenth of the time of describing the tensor (``native.export``)."""

    held: int
    keys: int
    data: int


_UNKNOWN = Layout(0, 0, 0)


@functools.cache
def layout() -> Layout:
    """What is known of this torch, tried on tensors of several kinds; zeros where one of them is
    otherwise."""
    found = [_UNKNOWN]

    def ask() -> None:
        with torch.no_grad():
            found[0] = _layout()

    # Modes, which may watch this thread, are those of a thread.
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def _layout() -> Layout:
    libraries.load()
    data = libraries.address_of("aoti_torch_get_data_ptr")
    plain = torch.ones(3, device="cpu")[1:]
    with torch.inference_mode():
        inference = torch.ones(2, device="cpu")
    examples = [
        plain, inference, torch.nn.Parameter(plain), torch._neg_view(plain),
        torch.ones(2, dtype=torch.complex64, device="cpu").conj(),
    ]  # fmt: skip
    places = {*range(_WORDS)}
    for tensor in examples:
        # Before torch 2.10 another word comes first, which says who owns the tensor.
        if not data or _words(id(tensor) + _HEAD, 1) != [tensor._cdata]:
            return _UNKNOWN
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        places &= {k for k, word in enumerate(_words(tensor._cdata, _WORDS)) if word == keys}
    if len(places) != 1:
        return _UNKNOWN
    address, ask = ctypes.c_void_p(), ctypes.CFUNCTYPE(*[ctypes.c_int32, *[ctypes.c_void_p] * 2])
    for tensor in examples[:3]:
        said = ask(data)(id(tensor) + _HEAD, ctypes.addressof(address))
        if said != 0 or address.value != tensor.data_ptr():
            return _UNKNOWN
    return Layout(_HEAD, 8 * places.pop(), data)


@functools.cache
def answers() -> Mapping[object, int]:
    """The addresses of what functions without arguments call, and of nothing else."""
    libraries.load()
    found = {function: libraries.address_of(name) for function, name in _CALLED.items()}
    return {function: address for function, address in found.items() if address}


_CALLED: dict[Callable[[], bool], str] = {
    torch.is_grad_enabled: "_ZN3c108GradMode10is_enabledEv",
    torch._C._is_torch_function_mode_enabled: "_ZN2at4impl27torch_function_mode_enabledEv",
}


def _words(address: int, count: int) -> list[int]:
    return [*(ctypes.c_uint64 * count).from_address(address)]

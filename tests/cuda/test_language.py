"""The tests of the language again: their kernels in the emulator, and on a CUDA device if there is
one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.cuda.emulator import emulated
from tests.frontend import test_language as language
from tests.frontend.test_language import *  # noqa: F403 - the same tests


def in_emulator(kernel: weft.Kernel, *args: Any, rtol: float = 1e-5) -> None:
    """As ``test_language.same``, with the loops run in the emulator."""
    copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    expected = kernel.interpret(*copies)
    found = emulated(kernel)(*args)
    for e, f in zip(language.flat(expected), language.flat(found), strict=True):
        language.close(f, e, rtol)
    for e, f in zip(copies, args, strict=True):
        if isinstance(f, torch.Tensor):
            language.close(f, e, rtol)


def on_device(kernel: weft.Kernel, *args: Any, rtol: float = 1e-5) -> None:
    """As ``test_language.same``, with tensors of the same strides on a CUDA device."""
    device = [strided_copy(a) if isinstance(a, torch.Tensor) else a for a in args]
    expected, found = kernel.interpret(*args), kernel(*device)
    for e, f in zip(language.flat(expected), language.flat(found), strict=True):
        language.close(f.cpu() if isinstance(f, torch.Tensor) else f, e, rtol)
    for e, f in zip(args, device, strict=True):
        if isinstance(f, torch.Tensor):
            language.close(f.cpu(), e, rtol)


def strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    room = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return room.copy_(tensor)


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.fixture(
    autouse=True, params=["emulator", pytest.param("cuda", marks=[pytest.mark.cuda, NO_GPU])]
)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernels of these tests run."""
    monkeypatch.setattr(language, "same", in_emulator if request.param == "emulator" else on_device)

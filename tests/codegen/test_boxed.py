"""Kernels of operators in machine code, without the dispatcher."""

import ctypes
import struct

import pytest
import torch

from weft.codegen import boxed
from weft.codegen.boxed_forms import Form, MadeForm, RunForm, TensorForm
from weft.codegen.interface import Slot
from weft.runtime import stable
from weft.runtime.cpu import load_shared
from weft.runtime.record import LaunchConfig

pytestmark = pytest.mark.skipif(bool(stable.missing()), reason=stable.missing())

FUNCTION, STREAM = 0x1234, 0x5678


class Driver:
    """Stands for CUDA's driver, and torch's current stream."""

    def __init__(self) -> None:
        self.launched: list[tuple[tuple[int, ...], int, tuple[int, ...]]] = []
        self.code = 0
        words = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
        self.functions = {
            "cuLaunchKernelEx": ctypes.CFUNCTYPE(ctypes.c_int32, *words)(self.launch),
            "cuCtxGetDevice": ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(self.device),
            "aoti_torch_get_current_cuda_stream": ctypes.CFUNCTYPE(
                ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
            )(self.stream),
        }

    def device(self, place: int) -> int:
        ctypes.c_int32.from_address(place).value = -1  # what torch says of the CPU's
        return 0

    def stream(self, device: int, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = STREAM + device
        return 0

    def launch(self, config: int, function: int, _: int, extra: int) -> int:
        told = LaunchConfig.from_address(config)
        which, block, also, size, end = (ctypes.c_uint64 * 5).from_address(extra)
        assert (which, also, end) == (1, 2, 0)
        words = ctypes.string_at(block, ctypes.c_uint64.from_address(size).value)
        names = [name for name, *_ in LaunchConfig._fields_]
        self.launched.append((tuple(getattr(told, n) or 0 for n in names), function,
                              tuple(w for (w,) in struct.iter_unpack("<q", words))))  # fmt: skip
        return self.code

    def addresses(self) -> dict[str, int]:
        return {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in self.functions.items()}


def test_launches_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # CPU tensors, as if they were a device's.
    monkeypatch.setattr(boxed, "CUDA", 0)
    monkeypatch.setattr(boxed, "CPU", 1)
    number = stable.number_of(torch.float32)
    tensor = TensorForm(number, 4, 1, "contiguous", False, (8,), (1,))
    words = [Slot("constant", 8)], [Slot("constant", 1)]
    made = MadeForm(TensorForm(number, 4, 1, "contiguous", True, (8,), (1,)), *map(tuple, words))
    slots = (Slot("pointer", 0), Slot("pointer", 1), Slot("size", 0), Slot("constant", -7))
    run = RunForm(slots, (3, 1, 1, 64, 1, 1, 96), ((0, 16),))
    form = Form((tensor,), (made,), (run, run), (1,), False, (None,), False, (0, -1))
    driver = Driver()
    code = load_shared(
        "a test", lambda: (boxed.text((form,), stable.keys()), boxed.SYMBOLS), None,
        needs={**stable.functions(), **driver.addresses()},
    )  # fmt: skip
    python = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(lambda *_: None)
    address = ctypes.cast(python, ctypes.c_void_p).value or 0
    entry = (ctypes.c_uint64 * 3)(0, FUNCTION, FUNCTION + 1)
    record = (ctypes.c_uint64 * 4)(0, address, 1, ctypes.addressof(entry))
    types = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p]
    kernel = ctypes.CFUNCTYPE(None, *types)(code.addresses[boxed.BELOW])

    def call(x: torch.Tensor) -> int:
        stack = (ctypes.c_uint64 * 1)(stable.given(x))
        before = stack[0]
        kernel(ctypes.addressof(stack), 1, 1, ctypes.addressof(record))
        if stack[0] == before:  # Python's to carry out
            stable.taken(before)
            return 0
        return stable.taken(stack[0]).data_ptr()

    x = torch.randn(8)
    out = call(x)
    assert out
    config = (3, 1, 1, 64, 1, 1, 96, STREAM - 1, 0, 0)
    assert driver.launched == [
        (config, FUNCTION + k, (x.data_ptr(), out, 8, -7)) for k in range(2)
    ]  # fmt: skip
    driver.launched.clear()
    for other in (torch.randn(9), torch.randn(9)[1:], torch.randn(16)[::2], torch.ones(8).int()):
        assert not call(other)
    assert not driver.launched
    driver.code = 700  # the driver refuses
    assert not call(x)
    assert len(driver.launched) == 1
    assert torch._C._storage_Use_Count(x.untyped_storage()._cdata) == 2  # with what asks

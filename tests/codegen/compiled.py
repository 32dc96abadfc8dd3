"""Running IR functions on NumPy arrays: what the tests of code generation share."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from weft.codegen.cpu import CpuCode, compile_cpu
from weft.ir.core import Function
from weft.runtime.cpu import LoadedFunction, load
from weft.schedule.language import Schedule


class Compiled:
    """A compiled function that can be called on arrays (uint16 for bf16) and numbers."""

    def __init__(
        self, function: Function, schedule: Schedule | None = None, **attributes: bool
    ) -> None:  # fmt: skip
        function.attrs |= {name: True for name, given in attributes.items() if given}
        self.code: CpuCode = compile_cpu(function, schedule)
        self.loaded: LoadedFunction = load(self.code.object, self.code.symbol, self.code.prints)
        self.record = (ctypes.c_int64 * 16)()

    def block(self, *args: Any) -> bytes:
        words = []
        for slot in self.code.slots:
            value = args[slot.arg]
            if slot.kind == "pointer":
                words.append(value.ctypes.data.to_bytes(8, "little"))
            elif slot.kind == "int":
                words.append(int(value).to_bytes(8, "little", signed=True))
            elif slot.kind == "float":
                words.append(struct.pack("d", value))
            elif slot.kind == "size":
                words.append(value.shape[slot.axis].to_bytes(8, "little"))
            elif slot.kind == "stride":
                stride = value.strides[slot.axis] // value.itemsize
                words.append(stride.to_bytes(8, "little", signed=True))
            else:
                words.append(ctypes.addressof(self.record).to_bytes(8, "little"))
        return b"".join(words)

    def __call__(self, *args: Any) -> None:
        ctypes.memset(self.record, 0, ctypes.sizeof(self.record))
        self.loaded.call(self.block(*args))


def poisoned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array full of a value that no test computes."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8).fill(0xAB)
    return array

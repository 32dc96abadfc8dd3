"""Launching an IR function that has no source: a step of a gradient."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.codegen.interface import Slot
from weft.frontend.lower import Lowered
from weft.ir.core import Function
from weft.lang.dtypes import Housed
from weft.options import Options
from weft.runtime import build
from weft.runtime.launch import MOST_PLANS, check_error, on_host
from weft.runtime.specialize import backend
from weft.settings import rarely_collected

_Bound = tuple[build.Made, Callable[..., object]]


class CompiledFunction:
    """``function``, compiled (or taken from the disk cache) at its first call on a device.

    Precondition of a call: no tensor that is written overlaps another argument.
    """

    def __init__(self, function: Function, options: Options) -> None:
        self.function = function
        self.options = options
        self._lock = threading.Lock()
        self._made: dict[str, build.Made] = {}
        self._calls: dict[tuple[torch.device, tuple[int, ...]], _Bound] = {}

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        device = _device_of(values)
        if device.type != "meta":
            made, call, block = self.bound(values)
            if made.takes_tensors:
                call(block, [values[s.arg] for s in made.slots if s.kind == "pointer"])
            else:
                call(block)

    def bound(self, values: Sequence[Any]) -> tuple[build.Made, Callable[..., object], bytes]:
        """What runs it on ``values``, and their argument block."""
        if not self.options.on and any(isinstance(v, Housed) for v in values):
            values = [*on_host(values)]
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        device = _device_of(tensors)
        if device.type in self._made:
            return self._bound(values, tensors, device)
        with rarely_collected:  # from the first to the last of what compiles
            return self._bound(values, tensors, device)

    def _bound(
        self, values: Sequence[Any], tensors: Sequence[torch.Tensor], device: torch.device
    ) -> tuple[build.Made, Callable[..., object], bytes]:
        compiled = self._compiled(device.type)
        block, shape = packed(compiled.slots, values)
        with self._lock:
            key = device, shape
            found = self._calls.get(key)
            if found is None:
                if len(self._calls) >= MOST_PLANS:
                    self._calls.clear()
                made = compiled.fitting(tensors, self)
                call, _ = made.bound(tensors, check_error, brief=False)
                found = self._calls[key] = made, call
        return *found, block

    def forget(self) -> None:
        """There are other records of tuning."""
        with self._lock:
            self._calls.clear()

    def _compiled(self, place: str) -> build.Made:
        with self._lock:
            found = self._made.get(place)
            if found is None:
                lowered = Lowered(self.function, [], [], "")
                found = self._made[place] = build.compile_region(
                    backend(place, self.options), None, None, {}, self.options, lowered=lowered
                )
            return found


def packed(slots: Sequence[Slot], values: Sequence[Any]) -> tuple[bytes, tuple[int, ...]]:
    """The argument block for ``values``, and the sizes and strides in it."""
    words, formats, shape = [], [], []
    for slot in slots:
        value = 0 if slot.kind in ("record", "shadow", "shift") else values[slot.arg]
        match slot.kind:
            case "pointer":
                # The base's: one that lives on a device is found there, and not handed out.
                words.append(torch.Tensor.data_ptr(value))  # type: ignore[arg-type]
            case "size" | "stride":
                steps = value.size() if slot.kind == "size" else value.stride()  # type: ignore[union-attr]
                words.append(steps[slot.axis])
                shape.append(steps[slot.axis])
            case _:
                words.append(value)
        formats.append({"pointer": "Q", "float": "d"}.get(slot.kind, "q"))
    return struct.pack(f"<{''.join(formats)}", *words), tuple(shape)


def _device_of(values: Sequence[Any]) -> torch.device:
    """Where ``values`` are. What no tensor is passed to can only check and print."""
    tensors = (v.device for v in values if isinstance(v, torch.Tensor))
    return next(tensors, torch.device("cpu"))

"""Launching an IR function that has no source: a step of a gradient."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.frontend.lower import Lowered
from weft.ir.core import Function
from weft.options import Options
from weft.runtime import build
from weft.runtime.launch import MOST_PLANS, check_error
from weft.runtime.specialize import backend


class CompiledFunction:
    """``function``, compiled (or taken from the disk cache) at its first call on a device.

    Precondition of a call: no tensor that is written overlaps another argument.
    """

    def __init__(self, function: Function, options: Options) -> None:
        self.function = function
        self.options = options
        self._lock = threading.Lock()
        self._made: dict[str, build.Made] = {}
        self._calls: dict[tuple[torch.device, tuple[int, ...]], Callable[[bytes], object]] = {}

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        device = tensors[0].device
        if device.type == "meta":
            return
        words, formats, shape = [], [], []
        made = self._compiled(device.type)
        for slot in made.slots:
            value = 0 if slot.kind == "record" else values[slot.arg]
            match slot.kind:
                case "pointer":
                    words.append(value.data_ptr())  # type: ignore[union-attr]
                case "size" | "stride":
                    steps = value.shape if slot.kind == "size" else value.stride()  # type: ignore[union-attr]
                    words.append(steps[slot.axis])
                    shape.append(steps[slot.axis])
                case _:
                    words.append(value)
            formats.append({"pointer": "Q", "float": "d"}.get(slot.kind, "q"))
        with self._lock:
            key = device, tuple(shape)
            call = self._calls.get(key)
            if call is None:
                if len(self._calls) >= MOST_PLANS:
                    self._calls.clear()
                call, _ = made.bound(tensors, check_error, brief=False)
                self._calls[key] = call
        call(struct.pack(f"<{''.join(formats)}", *words))

    def _compiled(self, place: str) -> build.Made:
        with self._lock:
            found = self._made.get(place)
            if found is None:
                lowered = Lowered(self.function, [], [], "")
                found = self._made[place] = build.compile_region(
                    backend(place), None, None, {}, self.options, lowered=lowered
                )
            return found

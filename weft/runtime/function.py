"""Launching an IR function that has no source: a step of a gradient."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weft.codegen.interface import Slot
from weft.frontend.lower import Lowered
from weft.ir.core import Function
from weft.options import Options
from weft.runtime import build
from weft.runtime.launch import MOST_PLANS, check_error
from weft.runtime.shadow import checked


class CompiledFunction:
    """``function``, compiled (or taken from the disk cache) at its first call on a device.

    Precondition of a call: no tensor that is written overlaps another argument.
    """

    def __init__(self, function: Function, options: Options) -> None:
        self.function = function
        self.options = options
        self._lock = threading.Lock()
        self._compiled: dict[str, _Compiled] = {}
        self._calls: dict[tuple[torch.device, tuple[int, ...]], Any] = {}  # on GPUs

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        device = next(v.device for v in values if isinstance(v, torch.Tensor))
        if device.type == "meta":
            return
        with self._lock:
            compiled = self._compiled.get(device.type)
            if compiled is None:
                compiled = self._compiled[device.type] = self._compile(device.type)
        words, formats, shape = [], [], []
        for slot in compiled.slots:
            value = None if slot.kind == "record" else values[slot.arg]
            match slot.kind:
                case "pointer":
                    words.append(value.data_ptr())  # type: ignore[union-attr]
                case "size" | "stride":
                    steps = value.shape if slot.kind == "size" else value.stride()  # type: ignore[union-attr]
                    words.append(steps[slot.axis])
                    shape.append(steps[slot.axis])
                case "record":
                    words.append(0)
                case _:
                    words.append(value)
            formats.append({"pointer": "Q", "float": "d"}.get(slot.kind, "q"))
        block = struct.pack(f"<{''.join(formats)}", *words)
        if device.type == "cuda":
            self._on_gpu(compiled.made, device, tuple(shape))(block)
        elif compiled.made.checks:  # assertions, and subscripts in debug mode
            made = compiled.made
            call = checked(made.load.call, compiled.slots, made.checks, [], check_error)
            call(block[:-8])  # less the last word, the record: no races are looked for
        else:
            compiled.made.load.call(block)

    def _compile(self, place: str) -> _Compiled:
        lowered = Lowered(self.function, [], [], "")
        if place == "cuda":
            from weft.runtime import gpu  # heavy, and not needed where there is no GPU

            on_gpu = gpu.compile_region(None, None, {}, self.options, lowered=lowered)
            return _Compiled(on_gpu, on_gpu.facts.slots)
        made = build.compile_region(None, None, {}, self.options, lowered=lowered)
        return _Compiled(made, made.slots)

    def _on_gpu(self, made: Any, device: torch.device, shape: tuple[int, ...]) -> Any:
        from weft.runtime import gpu  # imported before, by ``_compile``

        with self._lock:
            key = (device, shape)
            found = self._calls.get(key)
            if found is None:
                if len(self._calls) >= MOST_PLANS:
                    self._calls.clear()
                found = self._calls[key] = gpu.Call(made, device.index or 0, check_error)
            return found


@dataclass(slots=True)
class _Compiled:
    made: Any
    slots: Sequence[Slot]

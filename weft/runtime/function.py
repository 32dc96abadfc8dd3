"""Launching an IR function that has no source: a step of a gradient."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Any

import torch

from weft import compiler
from weft.errors import GradientError
from weft.ir.core import Function
from weft.options import Options
from weft.runtime.cpu import LoadedFunction, load


class CompiledFunction:
    """``function`` for this machine, compiled at its first call.

    Precondition of a call: no tensor that is written overlaps another argument.
    """

    def __init__(self, function: Function, options: Options) -> None:
        self.function = function
        self.options = options
        self._lock = threading.Lock()
        self._loaded: LoadedFunction | None = None
        self._slots: Sequence[Any] = ()

    def __call__(self, values: Sequence[Any]) -> None:
        """Runs it on ``values``: a tensor for each memref, a number for each scalar."""
        for value in values:
            if isinstance(value, torch.Tensor) and not value.is_cpu:
                raise GradientError("gradients on CUDA are not there yet", self.function.span,
                                    help="run the kernel under torch.no_grad()")  # fmt: skip
        loaded = self._compiled()
        words, formats = [], []
        for slot in self._slots:
            match slot.kind:
                case "pointer":
                    word = values[slot.arg].data_ptr()
                case "int" | "float":
                    word = values[slot.arg]
                case "size":
                    word = values[slot.arg].shape[slot.axis]
                case "stride":
                    word = values[slot.arg].stride(slot.axis)
                case _:
                    word = 0
            words.append(word)
            formats.append({"pointer": "Q", "float": "d"}.get(slot.kind, "q"))
        loaded.call(struct.pack(f"<{''.join(formats)}", *words))

    def _compiled(self) -> LoadedFunction:
        with self._lock:
            if self._loaded is None:
                code = compiler.to_code(
                    self.function, strict_math=self.options.strict_math, noalias=True,
                    verify=self.options.verify,
                )  # fmt: skip
                self._slots = code.slots
                self._loaded = load(code.object, code.symbol, code.prints)
            return self._loaded

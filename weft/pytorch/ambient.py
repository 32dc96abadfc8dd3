"""What is around a call that its host part depends on, and that is another when a graph carries it
out, or a derivative does so again: autocast, the default device, and the state of random number
generators."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._device import DeviceContext

# pyright: reportPrivateUsage=false
from weft.errors import GradientError
from weft.source import Span

Autocast = tuple[tuple[str, torch.dtype], ...]  # device types for which it is on
# Autocast, and "" with a default device where that is another than the CPU.
Ambient = tuple[tuple[str, torch.dtype | str], ...]
# Generators of random numbers beside torch's own.
SOURCES = (random.Random, np.random.RandomState, np.random.Generator, torch.Generator)


def autocast_state() -> Autocast:
    """Where autocast is on, and to which dtype."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda", "mps")
                 if torch.is_autocast_enabled(kind))  # fmt: skip


def default_device() -> str:
    """The device of tensors that are made without one, "" for the CPU. Dynamo traces this."""
    if torch._C._len_torch_function_stack() == 0:
        return ""
    if torch.compiler.is_dynamo_compiling():  # which has no modes to look at
        device = torch.empty(0).device
    else:
        modes = [mode for mode in function_modes() if isinstance(mode, DeviceContext)]
        device = modes[-1].device if modes else torch.device("cpu")
    return "" if device.type == "cpu" else str(device)


def ambient_state(device: str) -> Ambient:
    """What a host part runs under, where ``device`` is the default one or "" if it makes none."""
    return (*autocast_state(), *([("", device)] if device else []))


@contextlib.contextmanager
def under(ambient: Ambient) -> Generator[None]:
    """With autocast on, and tensors made, as ``ambient`` says."""
    with contextlib.ExitStack() as stack:
        for kind, value in ambient:
            if isinstance(value, str):
                stack.enter_context(under_modes([DeviceContext(value)]))
            else:
                stack.enter_context(torch.autocast(kind, value))
        yield


@contextlib.contextmanager
def under_dtype(dtype: torch.dtype) -> Generator[None]:
    """With ``dtype`` as the default one."""
    now = torch.get_default_dtype()
    if now is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(now)


def function_modes() -> list[Any]:
    """The ``TorchFunctionMode``s around."""
    return [torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack())]


@contextlib.contextmanager
def under_modes(modes: Sequence[Any]) -> Generator[None]:
    """With ``modes`` around, too."""
    around = function_modes()
    more = [mode for mode in modes if all(mode is not own for own in around)]
    for mode in more:  # not entered, which ``torch.device`` would note
        torch._C._push_on_torch_function_stack(mode)
    try:
        yield
    finally:
        for _ in more:
            torch._C._pop_torch_function_stack()


class Draws:
    """The states of the random number generators that work on ``tensors`` may draw from, and of
    ``sources``, others that the host part knows."""

    def __init__(self, tensors: Sequence[Any], sources: Sequence[Any] = ()) -> None:
        self.generators = [torch.default_generator]
        if torch.cuda.is_initialized():
            devices = {t.get_device() for t in tensors if isinstance(t, torch.Tensor) and t.is_cuda}
            self.generators += [torch.cuda.default_generators[k] for k in sorted(devices)]
        if any(isinstance(t, torch.Tensor) and t.is_mps for t in tensors):
            self.generators.append(torch._C._mps_get_default_generator())
        self.states = [g.get_state() for g in self.generators]
        self.sources, self.others = sources, [*map(_state, sources)]

    def unchanged(self) -> bool:
        """Whether nothing was drawn since."""
        pairs = zip(self.generators, self.states, strict=True)
        return all(bytes(g.get_state().numpy()) == bytes(s.numpy()) for g, s in pairs) and all(
            pickle.dumps(_state(source)) == pickle.dumps(state)
            for source, state in zip(self.sources, self.others, strict=True)
        )

    @contextlib.contextmanager
    def again(self) -> Generator[None]:
        """With the states as they were; what follows draws as if nothing had been drawn here."""
        now = [g.get_state() for g in self.generators]
        others = [*map(_state, self.sources)]
        self._set(self.states, self.others)
        try:
            yield
        finally:
            self._set(now, others)

    def _set(self, states: list[torch.Tensor], others: list[Any]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        for source, state in zip(self.sources, others, strict=True):
            _set_state(source, state)


def _state(source: Any) -> Any:
    match source:
        case random.Random():
            return source.getstate()
        case np.random.Generator():
            return source.bit_generator.state
        case _:
            return source.get_state()


def _set_state(source: Any, state: Any) -> None:
    match source:
        case random.Random():
            source.setstate(state)
        case np.random.Generator():
            source.bit_generator.state = state
        case _:
            source.set_state(state)


@contextlib.contextmanager
def drawing_nothing(
    tensors: Sequence[Any], span: Span, sources: Sequence[Any] = ()
) -> Generator[None]:
    """Raises ``GradientError`` where random numbers are drawn inside: those of the call that is
    differentiated were others."""
    before = Draws(tensors, sources)
    yield
    if not before.unchanged():
        raise GradientError(
            "the kernel draws random numbers, and the derivative of the operator would be that "
            "of other numbers", span,
            help="draw them outside of the kernel and pass the tensor as an argument, or call the "
            "kernel in plain eager mode, not under torch.compile and dispatch modes",
        )  # fmt: skip

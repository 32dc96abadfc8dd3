"""The meta kernel: the host part of a kernel, run with launchers that do nothing.

Shapes, dtypes and devices of what a kernel returns are made by its host part. All that a device
loop adds is the dtype of what it reduces into, which the frontend infers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch

from weft.frontend.lower import lower
from weft.frontend.specs import Spec, TensorSpec
from weft.frontend.split import HostPart, Region, RegionArg
from weft.lang.vectors import Backing
from weft.runtime.backing import backed, is_backed, put_back
from weft.runtime.signature import DTYPES, TORCH_DTYPES, spec_of
from weft.source import FunctionSource


class KernelSource(Protocol):
    """What is asked of a kernel."""

    @functools.cached_property
    def parts(self) -> HostPart: ...
    @functools.cached_property
    def source(self) -> FunctionSource: ...


def fake_launchers(kernel: KernelSource) -> tuple[Callable[..., Any], ...]:
    """One launcher for each device loop of ``kernel``."""
    return tuple(_launcher(region, kernel.source) for region in kernel.parts.regions)


def _launcher(region: Region, source: FunctionSource) -> Callable[..., Any]:
    known: dict[tuple[Spec, ...], list[torch.dtype]] = {}

    def launch(*args: Any) -> Any:
        if is_backed(region, args):
            tensors = backed(region, args)
            empty = [torch.empty_like(t) if isinstance(t, torch.Tensor) else t for t in tensors]
            put_back(region, args, empty)
            args = tensors
        if not region.results:
            return None
        specs = tuple(loose_spec(arg, value) for arg, value in zip(region.args, args, strict=True))
        if specs not in known:
            named = dict(zip((arg.name for arg in region.args), specs, strict=True))
            lowered = lower(region, named, source)
            known[specs] = [TORCH_DTYPES[dtype] for _, dtype in lowered.results]
        device = next((v.device for v in args if isinstance(v, torch.Tensor)), None)
        out = [torch.empty((), dtype=dtype, device=device) for dtype in known[specs]]
        return out[0] if len(out) == 1 else tuple(out)

    return launch


def loose_spec(arg: RegionArg, value: Any) -> Spec:
    """As ``spec_of``, but asks a tensor nothing that would fix its strides."""
    if isinstance(value, torch.Tensor) and value.dtype in DTYPES:
        element = getattr(value, "element", None)
        backing = isinstance(element, Backing)
        return TensorSpec(
            DTYPES[value.dtype], value.dim(), "strided", element.shape if backing else None,
            element.shape if element is not None else (), backing,
        )  # fmt: skip
    return spec_of(arg, value)

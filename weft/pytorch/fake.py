"""The meta kernel: the host part of a kernel, run with launchers that do nothing.

Shapes, dtypes and devices of what a kernel returns are made by its host part. All that a device
loop adds is the dtype of what it reduces into, which the frontend infers.
"""

from __future__ import annotations

import ast
import functools
import traceback
from collections.abc import Callable
from typing import Any, Protocol

import torch

from weft.errors import KernelValueError
from weft.frontend.lower import lower
from weft.frontend.specs import Spec, TensorSpec
from weft.frontend.split import HostPart, Region, RegionArg
from weft.lang.vectors import Backing
from weft.runtime.backing import backed, is_backed, put_back
from weft.runtime.signature import DTYPES, TORCH_DTYPES, spec_of
from weft.source import FunctionSource, Span


class KernelSource(Protocol):
    """What is asked of a kernel."""

    @functools.cached_property
    def parts(self) -> HostPart: ...
    @functools.cached_property
    def source(self) -> FunctionSource: ...
    @property
    def span(self) -> Span: ...


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


def without_data(implementation: Callable[..., Any], kernel: KernelSource) -> Callable[..., Any]:
    """``implementation`` for fake tensors; its error says so where the host part asks for data."""

    def fake(*args: Any) -> Any:
        try:
            return implementation(*args)
        except RuntimeError as error:
            refused, asks_for_data = _data_errors()
            if not isinstance(error, asks_for_data):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            lines = {f.lineno for f in frames if f.filename == kernel.source.file}
        tree = kernel.source.tree
        found = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno in lines]
        # Not as its cause, which Dynamo would look at instead.
        raise refused(kernel.source.span(found[-1]) if found else kernel.span)

    return fake


@functools.cache
def _data_errors() -> tuple[Callable[[Span], Exception], tuple[type[Exception], ...]]:
    """What to raise, and torch's errors: a fake tensor is asked for its data."""
    # Imported by what has made the fake tensor.
    from torch._subclasses.fake_tensor import DataDependentOutputException
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    class DataDependentError(KernelValueError, DataDependentOutputException):
        """Where torch's error would break a graph, this does."""

        def __init__(self, span: Span) -> None:
            what = "the host part makes a number of what is in a tensor, and there is no data yet"
            help = (
                "under torch.compile sizes and branches may depend on shapes and numbers only: "
                "compute the number outside of the kernel and pass it as an argument"
            )
            KernelValueError.__init__(self, what, span, help)
            self.func: Any = str(self)

    return DataDependentError, (DataDependentOutputException, GuardOnDataDependentSymNode)

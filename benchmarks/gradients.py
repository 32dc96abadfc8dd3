"""Forward and backward of four kernels of the gallery, allocating, all inputs needing a gradient.

"forward" records what the backward needs; "backward" is ``torch.autograd.grad`` with respect to all
inputs, of which one is compared with float64.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.calls import Call, Provider
from benchmarks.harness import Case, Subject, main
from examples import grid_sample, layer_norm, softmax, wkv
from examples.beside import passes, prepared

Function = Callable[..., torch.Tensor]


def forward(function: Function, inputs: Callable[..., Any], compiled: bool = False) -> Provider:
    """``function`` on inputs that require a gradient."""

    def provider(case: Case) -> Call:
        call = torch.compile(function, dynamic=False) if compiled else function
        return passes(call, prepared(inputs(*case.sizes["shape"])))[0]

    return provider


def backward(
    function: Function, inputs: Callable[..., Any], shown: int, compiled: bool = False
) -> Provider:
    """All gradients of ``function``; gives that of input ``shown``."""

    def provider(case: Case) -> Call:
        call = torch.compile(function, dynamic=False) if compiled else function
        _, go = passes(call, prepared(inputs(*case.sizes["shape"])))
        return lambda: go()[shown]

    return provider


def exact(function: Function, inputs: Callable[..., Any], shown: int | None) -> Any:
    """The value in float64, or the gradient of input ``shown``."""

    def reference(case: Case) -> torch.Tensor:
        value, go = passes(function, prepared(inputs(*case.sizes["shape"]), double=True))
        return value() if shown is None else go()[shown]

    return reference


def subjects(
    name: str, title: str, kernel: Function, theirs: Function, inputs: Callable[..., Any],
    shapes: tuple[tuple[int, ...], ...], shown: int = 0, compiled: bool = True,
) -> list[Subject]:  # fmt: skip
    """Two subjects: forward, and backward. ``compiled``: also by ``torch.compile``, which would
    unroll a loop over time, for minutes."""
    cases = tuple(Case(" × ".join(map(str, s)), {"shape": s}) for s in shapes)
    functions = {"weft": kernel, "torch": theirs}
    ahead = {who: forward(f, inputs) for who, f in functions.items()}
    back = {who: backward(f, inputs, shown) for who, f in functions.items()}
    if compiled:
        ahead["torch.compile"] = forward(theirs, inputs, compiled=True)
        back["torch.compile"] = backward(theirs, inputs, shown, compiled=True)
    return [
        Subject(f"{name}_forward", f"{title}, forward", cases, ahead,
                exact(theirs, inputs, None)),
        Subject(f"{name}_backward", f"{title}, backward", cases, back,
                exact(theirs, inputs, shown)),
    ]  # fmt: skip


SUBJECTS = (
    *subjects("softmax", "row softmax", softmax.softmax, softmax.torch_softmax, softmax.inputs,
              ((1823, 781), (4096, 4096))),
    *subjects("layer_norm", "layer norm", layer_norm.layer_norm, layer_norm.torch_layer_norm,
              layer_norm.inputs, ((4096, 768),)),
    *subjects("wkv", "RWKV's wkv (B × T × C; PyTorch a step of time at once)", wkv.wkv,
              wkv.torch_wkv, wkv.inputs, ((8, 64, 256), (8, 512, 512)), shown=2,
              compiled=False),
    *subjects("grid_sample", "bilinear grid sample (N × C × H × W)", grid_sample.grid_sample,
              grid_sample.torch_grid_sample, grid_sample.inputs, ((2, 3, 256, 256),)),
)  # fmt: skip


if __name__ == "__main__":
    main("gradients", SUBJECTS)

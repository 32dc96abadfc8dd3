"""Whether a loop over elements, which Python may run as well, can be compiled for given arguments,
with its gradient if one is asked for. (``frontend.element_proofs`` compares what it means.)"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false
from weft.errors import CompileError
from weft.runtime.fastpath import passed
from weft.runtime.launch import Launcher, overlaps
from weft.runtime.signature import TORCH_DTYPES
from weft.runtime.specialize import Specialization


def compiles(
    launcher: Launcher, args: tuple[Any, ...], wanted: bool, plain: bool
) -> Sequence[torch.dtype] | None:
    """The dtypes of what the loop hands on, if it can be compiled; None otherwise. ``wanted``:
    whether a gradient is. ``plain``: whether the tensors have data."""
    options, forms = launcher.options, launcher.forms
    counted = any(isinstance(v, torch.Tensor) and v.dtype == torch.int64 for v in args)
    if options.on or (options.debug and counted):  # which checks that integers do not wrap
        return None
    place = next(v for v in args if isinstance(v, torch.Tensor)).device.type if plain else "none"

    def specialized(given: tuple[Any, ...]) -> Specialization:
        forms.check(tuple(None if _is_batched(v) else v for v in given))
        return forms.specialize([*forms.specs(given).values()], place=place)

    try:
        special = forms.retried(args, specialized)
        if wanted and not _derives(launcher, args, place):
            return None
    except CompileError:
        return None
    return [TORCH_DTYPES[dtype] for _, dtype in special.compiled.results]


def _is_batched(value: Any) -> bool:
    """Whether it is a tensor of a transform of ``torch.func``, which has no memory of its own."""
    return (
        isinstance(value, torch.Tensor) and not torch._is_functional_tensor(value)
        and torch._C._functorch.is_functorch_wrapped_tensor(value)
    )  # fmt: skip


def _derives(launcher: Launcher, args: tuple[Any, ...], place: str) -> bool:
    """Whether autograd may be told of a launch. Raises ``GradientError`` where no gradient is
    derived."""
    from weft.pytorch.autograd import loop_of  # where a gradient is asked for

    specs = list(launcher.forms.specs(args).values())
    loop = loop_of(launcher, specs, place)
    values = passed(specs, args)
    if overlaps(launcher, specs, args, loop.function):
        return False
    written = [values[k] for k in loop.written if k < len(values)]
    if len(loop.written) > 1 and any(v._is_view() for v in written):
        return False
    for v in written:
        base = v if v._base is None else v._base
        if base.requires_grad and base.is_leaf:
            return False  # which is an error of torch's
    wanted = frozenset(
        k for k, v in enumerate(values)
        if isinstance(v, torch.Tensor) and v.requires_grad and v.is_floating_point()
    )  # fmt: skip
    loop.reversed(wanted, frozenset(loop.written) - wanted)
    return True

"""Launches under ``vmap``: a loop over all samples, derived from that of one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import KernelValueError
from weft.pytorch import overwriting
from weft.pytorch.autograd import differentiate, extended, tracked
from weft.pytorch.batches import no_samples, outside, samples_of, unwrapped, wrapped
from weft.pytorch.forward_level import is_dual
from weft.pytorch.loop import Loop
from weft.runtime.deterministic import Ordered
from weft.runtime.fastpath import passed
from weft.runtime.launch import Launcher, one_or_all, overlaps
from weft.runtime.overlap import dense
from weft.runtime.pairs import apart
from weft.runtime.signature import TORCH_DTYPES, come_apart

# pyright: reportPrivateUsage=false


def with_batches(launcher: Launcher, plain: Callable[..., Any], *args: Any) -> Any:
    """A launch of a kernel's loop under ``vmap``; ``plain`` is the launch without."""
    if come_apart(launcher.region, args):
        return apart(launcher, args, lambda own, given: with_batches(own, own.current, *given))

    def call(given: tuple[Any, ...]) -> Any:
        with outside():
            pairs = [unwrapped(v) for v in given]
            tensors = dense(tuple(t for t, _ in pairs))
            levels = [own for _, own in pairs]
            sizes = samples_of(tensors, levels)
            if sizes:
                found = _launched(launcher, tensors, levels, sizes)
            elif any(map(is_dual, given)):
                return differentiate(launcher, given)
            else:
                return plain(*given)
        return one_or_all([wrapped(t, tuple(sizes)) for t in found])

    return extended(launcher, args, call)


def _launched(
    launcher: Launcher, args: tuple[Any, ...], levels: Sequence[tuple[int, ...]],
    sizes: dict[int, int],
) -> list[torch.Tensor]:  # fmt: skip
    """Launches the loop on all samples; gives what it reduces into. ``levels``: of the batches
    that each argument has; ``sizes``: of all of them, by level."""
    every = tuple(sizes)
    samples = [_sample(v, len(own)) for v, own in zip(args, levels, strict=True)]
    specs = list(launcher.forms.specs(samples).values())
    launcher.forms.check(args)
    values = passed(specs, args)
    special = launcher.forms.specialize(specs, place="none")
    if special.derived is None:
        special.derived = Loop(special.compiled.function, launcher.options)
        special.derived.later = overwriting.overwritten_later(launcher, specs)
    own = [of for spec, v, of in zip(specs, args, levels, strict=True) for _ in passed([spec], [v])]
    for k in special.derived.written:
        if k < len(values) and own[k] != every:
            pairs = zip(launcher.forms.names, levels, strict=True)
            batched = next(name for name, found in pairs if found)
            loop = special.derived
            raise no_samples(loop.names[k], batched, loop.function.span)
    device = next(v.device for v in values if isinstance(v, torch.Tensor))
    shape = [*sizes.values()]
    results = [torch.empty(shape, dtype=TORCH_DTYPES[a.memref.element.name], device=device)
               for a in special.derived.function.args[len(values) :]]  # fmt: skip
    loop = special.derived.over_samples([*values, *results], [*own, *[every] * len(results)])
    if device.type != "meta" and overlaps(launcher, specs, args, loop.function):
        raise KernelValueError(
            "memory that the loop writes is also read or written through another argument, which "
            "vmap does not allow", loop.function.span, help="pass a copy: x.clone()",
        )  # fmt: skip
    run = functools.partial(_in_order, loop) if special.compiled.loop.summary.unordered else None
    tracked(loop, values, results, run)
    return results


def _in_order(loop: Loop, values: Sequence[Any]) -> None:
    """Runs a loop whose result may depend on the order of its iterations."""
    on_gpu = any(isinstance(v, torch.Tensor) and v.is_cuda for v in values)
    assert loop.function.span is not None
    Ordered(lambda _: loop.run(values), loop, on_gpu, loop.function.span)(b"")


def _sample(value: Any, dims: int) -> Any:
    """What has the type of one sample of ``value``, whose first ``dims`` dimensions are batches."""
    if not dims:
        return value
    shape, strides = value.size()[dims:], value.stride()[dims:]
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")

"""Batches: the tensors of ``vmap``, which show one sample and hold all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import pyfunctorch
from torch._functorch.vmap import _remove_batch_dim
from torch.overrides import TorchFunctionMode

from weft.errors import KernelValueError, Span

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
outside = pyfunctorch.temporarily_clear_interpreter_stack  # of all transforms

# Functions that allocate what they return.
_FRESH = frozenset(f"{prefix}{name}{suffix}" for name in ("empty", "zeros", "ones", "full")
                   for prefix, suffix in (("", ""), ("", "_like"), ("new_", ""))) | {
    "clone", "empty_strided", "new_empty_strided",
}  # fmt: skip


def is_batched(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _functorch.is_batchedtensor(value)


def unwrapped(value: Any) -> tuple[Any, tuple[int, ...]]:
    """What ``value`` is a batch of, and the levels of its batches: its first dimensions, in this
    order. To be called ``outside``."""
    if not is_batched(value):
        return value, ()
    tensor, levels = unwrapped(_functorch.get_unwrapped(value))
    place = _functorch.maybe_get_bdim(value)
    if place:
        tensor = tensor.movedim(len(levels) + place, len(levels))
    return tensor, (*levels, _functorch.maybe_get_level(value))


def level_of(value: Any) -> int:
    """The level of the batch that ``value`` is; below 0 if it is none."""
    return _functorch.maybe_get_level(value) if is_batched(value) else -1


def levels_of(*values: Any) -> set[int]:
    """The levels of the batches that ``values`` are of, around derivatives and in them."""
    levels: set[int] = set()
    for value in values:
        while isinstance(value, torch.Tensor) and _functorch.is_functorch_wrapped_tensor(value):
            levels |= {level_of(value)} if is_batched(value) else set()
            value = _functorch.get_unwrapped(value)
    return levels


def storage(tensor: torch.Tensor) -> int:
    """What tells the memory of ``tensor``, a batch maybe, from others'."""
    return innermost(tensor).untyped_storage()._cdata


def innermost(value: torch.Tensor) -> torch.Tensor:
    """The tensor of no transform that ``value`` is, whose memory it has."""
    while _functorch.is_functorch_wrapped_tensor(value):
        value = _functorch.get_unwrapped(value)
    return value


def wrapped(tensor: torch.Tensor, levels: Sequence[int]) -> torch.Tensor:
    """The reverse."""
    for level in levels:
        tensor = _functorch._add_batch_dim(tensor, 0, level)
    return tensor


def unbatched(tensor: torch.Tensor, level: int, size: int) -> torch.Tensor:
    """All samples of ``tensor``, along the first dimension."""
    return _functorch._remove_batch_dim(tensor, level, size, 0)


def expanded(
    tensor: torch.Tensor, levels: Sequence[int], sizes: Mapping[int, int]
) -> torch.Tensor:  # fmt: skip
    """``tensor``, whose first dimensions are batches of ``levels``, with a copy for each sample of
    all those of ``sizes``; itself if it has them."""
    if len(levels) == len(sizes):
        return tensor
    for place, level in enumerate(sizes):
        if level not in levels:
            tensor = tensor.unsqueeze(place)
    return tensor.expand(*sizes.values(), *tensor.size()[len(sizes) :]).clone(
        memory_format=torch.contiguous_format
    )


def in_front(values: Sequence[Any], dims: Sequence[Any]) -> tuple[list[torch.Tensor], list[bool]]:
    """The tensors among ``values`` and the lists in it, their batches (of ``dims``) along the first
    dimension, and which have one."""
    tensors: list[torch.Tensor] = []
    have: list[bool] = []
    for value, dim in zip(values, dims, strict=True):
        many = isinstance(value, list | tuple)
        for t, d in zip(value, dim or [None] * len(value), strict=True) if many else [(value, dim)]:
            if isinstance(t, torch.Tensor):
                tensors.append(t if d is None else t.movedim(d, 0))
                have.append(d is not None)
    return tensors, have


def filled(tensor: torch.Tensor, size: Any, has: bool) -> torch.Tensor:
    """``tensor``, or a batch of ``size`` samples that are all it."""
    return tensor if has else tensor.expand(size, *tensor.size())


def no_samples(name: str, batched: str, span: Span | None) -> KernelValueError:
    """What is raised where a loop would store into ``name`` what it computes of the batch
    ``batched``."""
    return KernelValueError(
        f"under vmap `{name}` is written, and has no samples of its own as `{batched}` has", span,
        help=f"return a new tensor, made by torch.empty_like and the like or by clone(); or give "
        f"vmap a dimension of `{name}` (in_dims)",
    )  # fmt: skip


def samples_of(tensors: Sequence[Any], levels: Sequence[Sequence[int]]) -> dict[int, int]:
    """The sizes of all the batches that ``tensors`` are of, by level, in the order of levels."""
    pairs = (pair for v, own in zip(tensors, levels, strict=True) if own
             for pair in zip(own, v.size(), strict=False))  # fmt: skip
    return dict(sorted(pairs))


def level() -> int:
    """That of the innermost transform around; 0 where there is none."""
    return _functorch.maybe_current_level() or 0


def active(floor: int) -> dict[int, int]:
    """The sizes of the batches around, by level, of those above ``floor``."""
    found = pyfunctorch.retrieve_all_functorch_interpreters()
    return {i.level(): i.batch_size() for i in found
            if isinstance(i, pyfunctorch.VmapInterpreter) and i.level() > floor}  # fmt: skip


def layers() -> tuple[tuple[Any, ...], ...]:
    """The transforms around, from the outermost: their kinds; of ``vmap`` the size of the batch and
    the randomness, too."""
    found = pyfunctorch.retrieve_all_functorch_interpreters()
    return tuple(layer(i.batch_size(), i.randomness()) if isinstance(i, pyfunctorch.VmapInterpreter)
                 else (i.key(),) for i in found)  # fmt: skip


def layer(size: int, randomness: str) -> tuple[Any, ...]:
    """What ``layers`` has for a ``vmap``."""
    return pyfunctorch.TransformType.Vmap, size, randomness


def differentiates() -> bool:
    """Whether a transform around is a derivative: a constant to Dynamo."""
    found = pyfunctorch.retrieve_all_functorch_interpreters()
    return any(isinstance(i, pyfunctorch.GradInterpreter | pyfunctorch.JvpInterpreter)
               for i in found)  # fmt: skip


def vectorizes() -> bool:
    """Whether a transform around is ``vmap``: a constant to Dynamo."""
    return len(active(0)) > 0


def is_transformed() -> bool:
    """Whether there is a transform around: a constant to Dynamo, which calls torch's own function
    of that in torch 2.13 only."""
    return _functorch.get_dynamic_layer_stack_depth() > 0


def _vmap_levels() -> tuple[int, ...]:
    """The levels of the ``vmap``s around, from the innermost: a constant to Dynamo."""
    return tuple(sorted(active(0), reverse=True))


def of_all_samples(value: torch.Tensor) -> torch.Tensor:
    """What ``value`` is a batch of, for each ``vmap`` around. Dynamo traces this, which cannot
    unwrap a tensor."""
    for level in _vmap_levels():
        value = _remove_batch_dim(value, level, 1, 0)
    return value


_vmap_levels._dynamo_marked_constant = True  # type: ignore[attr-defined]
differentiates._dynamo_marked_constant = True  # type: ignore[attr-defined]
is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]
vectorizes._dynamo_marked_constant = True  # type: ignore[attr-defined]


def under_vmap(call: Callable[..., Sequence[Any]], values: Sequence[Any]) -> Sequence[Any]:
    """``call(*values)``, tensors or None, where batches among them may be those of torch's first
    ``vmap``, which ``is_grads_batched`` and ``vectorize`` go by and which knows few functions: in
    the second one's place."""
    taken: list[int] = []
    level = 0
    there: list[bool] = []

    def one(*given: Any) -> tuple[Any, ...]:
        found = call(*given)
        there[:] = [v is not None for v in found]
        return tuple(v for v in found if v is not None)

    every: Callable[..., Sequence[Any]] = one
    while any(map(_is_legacy, values)):
        level += 1  # those around are not asked for: a backward pass may be in another thread
        values, dims = zip(*(_legacy_unwrapped(v, level) for v in values), strict=True)
        if 0 in dims:
            taken.append(level)
            every = torch.vmap(every, dims, randomness="same")  # numbers are drawn already
    if not taken:
        return call(*values)
    found = iter(every(*values))
    return [_legacy_wrapped(next(found), taken) if has else None for has in there]


def _legacy_wrapped(tensor: torch.Tensor, levels: Sequence[int]) -> torch.Tensor:
    """``tensor``, whose first dimensions are batches of ``levels`` from the last to the first."""
    for place, level in zip(reversed(range(len(levels))), levels, strict=True):
        tensor = torch._add_batch_dim(tensor, place, level)
    return tensor


def _is_legacy(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _functorch.is_legacy_batchedtensor(value)


def _legacy_unwrapped(value: Any, level: int) -> tuple[Any, int | None]:
    if not _is_legacy(value):
        return value, None
    try:  # what has no such batch cannot be expanded to -1 samples
        return torch._remove_batch_dim(value, level, -1, 0), 0
    except RuntimeError:
        return value, None


class Fresh(TorchFunctionMode):
    """Under ``vmap``: what a host part allocates has room for every sample, as loops may write to
    it. ``floor``: see ``active``. ``levels``: those of the samples, where it is not all."""

    def __init__(self, floor: int, levels: Set[int] | None = None) -> None:
        super().__init__()
        self.floor, self.levels = floor, levels

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in _FRESH:
            return made
        sizes = active(self.floor)
        if self.levels is not None:
            sizes = {level: size for level, size in sizes.items() if level in self.levels}
        if levels_of(made) >= sizes.keys():
            return made
        with outside():
            rooms = torch.empty([*sizes.values()], dtype=made.dtype, device=made.device)
        return wrapped(rooms, list(sizes)).new_empty(made.size()).copy_(made)


def direct(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    levels: Set[int] | None = None,
) -> Any:  # fmt: skip
    """``call(*args, **kwargs)`` of a kernel that writes to batches. ``levels``: see ``Fresh``."""
    with Fresh(0, levels):
        return call(*args, **kwargs)

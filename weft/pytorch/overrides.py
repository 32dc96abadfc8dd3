"""Calls of a kernel with arguments whose types have a say in what functions do with them.

A kernel is a function of torch's in this: where the type of an argument has a
``__torch_function__`` of its own, it is handed the kernel and the arguments. So
``torch.fx.symbolic_trace`` records it. Modes (``TorchFunctionMode``) see what the host part calls,
not the kernel: ``torch.device`` as a context is one of them, and has to reach what the host part
makes.

Transforms (``torch.func``, forward mode) have a say in what launches the loops of a call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.fx.node import has_side_effect

from weft.errors import KernelTypeError, WeftError
from weft.lang.dtypes import Housed, quietly
from weft.runtime import native
from weft.runtime.launch import KernelLike, Launcher
from weft.runtime.signature import REACHED, check_layout
from weft.settings import rarely_collected

# pyright: reportPrivateUsage=false
_NONE = torch._C._disabled_torch_function_impl
_USUAL: Any = torch.Tensor.__torch_function__
_FUNCTION, _DISPATCH = "__torch_function__", "__torch_dispatch__"


@functools.cache
def overrides(kind: type) -> bool:
    """Whether a type has a ``__torch_function__`` of its own."""
    own = getattr(kind, _FUNCTION, None)
    return own not in (None, _NONE) and getattr(own, "__func__", own) is not _USUAL.__func__


@functools.cache
def dispatches_as_usual(kind: type[torch.Tensor]) -> bool:
    """Whether kernels may take the data of such tensors without asking torch's dispatcher."""
    own = getattr(kind, _DISPATCH)
    return own is getattr(torch.Tensor, _DISPATCH) or issubclass(kind, Housed)


def overriding(values: Iterable[Any]) -> list[Any]:
    """Those of ``values`` whose types have a ``__torch_function__`` of their own, while torch asks
    for it."""
    if not torch._C._is_torch_function_enabled():
        return []
    return [v for v in values if overrides(type(v))]


def overridden(kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the types of the arguments make of a call of ``kernel``. Raises ``KernelTypeError``."""
    with quietly():  # types see the call, not what is asked of their tensors before it
        tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        nested = any(tensor.is_nested for tensor in tensors)
    if nested:
        from weft.pytorch import jagged  # only for such tensors

        if any(map(jagged.is_jagged, (*args, *kwargs.values()))):
            return jagged.over_rows(kernel, args, kwargs)
    found: list[Any] = torch.overrides._get_overloaded_args(overriding((*args, *kwargs.values())))
    types = tuple(map(type, found))
    if kernel.mutated and any(isinstance(v, torch.fx.Proxy) for v in found):
        has_side_effect(kernel)  # so that no graph loses the call
    for value in found:
        result = getattr(value, _FUNCTION)(kernel, types, args, kwargs)
        if result is not NotImplemented:
            return result
    raise KernelTypeError(
        f"`{_name(kernel, args, kwargs, found[0])}` is a {types[0].__name__}, whose "
        "__torch_function__ does not take kernels", kernel.span,
        help="call the kernel with the tensors that it is made of",
    )  # fmt: skip


def check_foreign(
    kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> None:
    """Raises ``KernelTypeError`` where ``error`` says that the type of an argument
    (``__torch_dispatch__``) knows nothing of the kernel's operator."""
    named = f".{kernel.__name__}" in str(error)
    for name, value in kernel.bind(args, kwargs).arguments.items():
        if isinstance(value, torch.Tensor) and named and not isinstance(error, WeftError):
            check_layout(name, value, kernel.span, error)
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise KernelTypeError(
                    f"`{name}` is a {type(value).__name__}, which does not take operators that it "
                    "does not know", kernel.span,
                    help="call the kernel with the tensors that it is made of "
                    f"({name}.to_local(), {name}.get_data(), ...)",
                ) from error  # fmt: skip


def _name(kernel: KernelLike, args: Any, kwargs: Any, wanted: Any) -> str:
    """The parameter that ``wanted`` is passed for."""
    return next(n for n, v in kernel.bind(args, kwargs).arguments.items() if v is wanted)


# --- transforms ----------------------------------------------------------------------------------
_transforms = torch._C._are_functorch_transforms_active
Launch = Callable[..., Any]


def transformed(plain: list[Launch], regions: Sequence[Launcher]) -> Sequence[Launch]:
    """What launches each device loop under the transforms that are active; ``plain`` if none is."""
    way = _with_batches if _transforms() else _with_tangents
    found: Sequence[Launch] = plain
    if way is _with_batches or forward_ad._current_level >= 0:
        found = [functools.partial(way, plain, launcher) for launcher in regions]
    if (reached := REACHED.get()) is not None:
        found = [functools.partial(_seen, reached, launch) for launch in found]
    return found


def _seen(reached: Callable[[Any], None], launch: Launch, *args: Any) -> Any:
    for value in args:
        reached(value)
    return launch(*args)


def _with_tangents(plain: list[Launch], launcher: Launcher, *args: Any) -> Any:
    with rarely_collected:
        from weft.pytorch.autograd import with_tangents  # only where a derivative is asked for

    return with_tangents(launcher, lambda: plain[launcher.region.index], *args)


def _with_batches(plain: list[Launch], launcher: Launcher, *args: Any) -> Any:
    with rarely_collected:
        from weft.pytorch.batching import with_batches  # only under vmap

    return with_batches(launcher, plain[launcher.region.index], *args)


def connect(launcher: Launcher) -> None:
    """Has autograd know of the launches of ``launcher``."""
    launcher.differentiate = functools.partial(_differentiate, launcher)
    launcher.history = functools.partial(_history, launcher)
    launcher.connect = connect
    either = launcher.region.either
    if either is not None and either.compiles is None:
        either.compiles = functools.partial(_compiles, launcher)


def _compiles(
    launcher: Launcher, args: tuple[Any, ...], wanted: bool, plain: bool
) -> Sequence[torch.dtype] | None:
    from weft.pytorch.element_loops import compiles  # where there are such loops

    return compiles(launcher, args, wanted, plain)


def _differentiate(launcher: Launcher, args: tuple[Any, ...]) -> Any:
    with rarely_collected:
        from weft.pytorch.autograd import differentiate  # only where a gradient is asked for

    return differentiate(launcher, args)


def _history(launcher: Launcher, args: tuple[Any, ...]) -> native.History | None:
    with rarely_collected:
        from weft.pytorch.history import history  # where a gradient is asked for again

        return history(launcher, args)

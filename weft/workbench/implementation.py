"""Other code that computes what a kernel's loops do: written in Triton, CUDA C++, Numba, C, or of
PyTorch's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.errors import KernelTypeError, KernelValueError
from weft.kernel import Kernel
from weft.values import frozen

# What is asked of torch's dispatcher has no public name.
# pyright: reportPrivateUsage=false
DEVICES = ("cpu", "cuda")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
TENSORS = (torch.Tensor, torch.nn.Parameter)


@frozen
class Implementation:
    """A function of the kernel's parameters, for calls on ``device`` whose tensors have one of
    ``dtypes`` (None: any) and for which ``when`` of the arguments is true. ``finite``: it is to
    agree with the loop for finite numbers alone."""

    name: str
    function: Callable[..., Any]
    device: str
    dtypes: tuple[torch.dtype, ...] | None
    when: Callable[..., Any] | None
    finite: bool

    def __str__(self) -> str:
        return f"{self.name} on {self.device}"

    def takes(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether it is for tensors on such devices, of such dtypes."""
        return all(
            tensor.device.type == self.device
            and (self.dtypes is None or tensor.dtype in self.dtypes)
            for tensor in tensors
        )

    def applies(
        self, args: Sequence[Any], named: dict[str, Any], tensors: Sequence[torch.Tensor]
    ) -> bool:
        return self.takes(tensors) and (self.when is None or bool(self.when(*args, **named)))

    def comparison(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """For what one comparison with the loop is."""
        return (self.name, self.function, *[(t.dtype, t.dim()) for t in tensors])

    def run(
        self, args: tuple[Any, ...], named: dict[str, Any], written: Sequence[torch.Tensor] = ()
    ) -> Any:
        """What the function returns. It gets tensors that ask for no gradient, which other
        libraries do not take, on the device that is current. That it writes to ``written`` is
        counted, as it goes by addresses."""
        given, passed = args, named
        if torch._C._any_requires_grad(*args, *named.values()):
            given = tuple(map(_detached, args))
            passed = {n: _detached(v) for n, v in named.items()}
        if self.device == "cuda" and (place := _place(args, named)) != torch._C._cuda_getDevice():
            with torch.cuda.device(place):
                out = self.unrecorded(*given, **passed)
        else:
            out = self.unrecorded(*given, **passed)
        if written:
            torch._C._increment_version([t for t in written if not t.is_inference()])
        if given is args:
            return out
        values, detached = (*args, *named.values()), (*given, *passed.values())
        own = {id(a): b for a, b in zip(detached, values, strict=True)}  # the caller's arguments
        several = isinstance(out, tuple | list)
        return tuple(own.get(id(v), v) for v in out) if several else own.get(id(out), out)

    def unrecorded(self, *args: Any, **named: Any) -> Any:
        """A call of the function of which autograd learns nothing."""
        if not torch.is_grad_enabled():
            return self.function(*args, **named)
        torch._C._set_grad_enabled(False)
        try:
            return self.function(*args, **named)
        finally:
            torch._C._set_grad_enabled(True)


def parameters_of(kernel: Kernel) -> list[inspect.Parameter]:
    """Those of a kernel, without those that configs give (``weft.autotune``)."""
    found = kernel.signature.parameters.values()
    if kernel.tuning is None:
        return [*found]
    return [p for p in found if p.default is not None or p.kind is not p.KEYWORD_ONLY]


def conditions(
    kernel: Kernel, device: str, dtypes: Sequence[torch.dtype] | None,
    when: Callable[..., Any] | None,
) -> tuple[torch.dtype, ...] | None:  # fmt: skip
    """The dtypes of what is for calls of ``kernel`` on ``device`` for which ``when`` is true.
    Raises ``KernelValueError`` and ``KernelTypeError``."""
    if device not in DEVICES:
        raise KernelValueError(
            f"no implementation is for the device {device!r}", kernel.span,
            help='write "cpu" or "cuda"',
        )  # fmt: skip
    listed: Any = (dtypes,) if isinstance(dtypes, torch.dtype) else dtypes
    if listed is not None and not all(isinstance(d, torch.dtype) for d in listed):
        raise KernelTypeError(
            f"dtypes={dtypes!r} of an implementation are no dtypes", kernel.span,
            help="write dtypes=[torch.float32]: those that tensors of a call may have",
        )  # fmt: skip
    if any(p.kind in _VARIADIC for p in parameters_of(kernel)):
        raise KernelTypeError(
            f"`{kernel.__name__}` takes any number of arguments, and an implementation those that "
            "have a name", kernel.span, help="give each argument of the kernel a parameter",
        )  # fmt: skip
    if when is not None:
        _check_signature(kernel, when, "`when`")
    return None if listed is None else tuple(listed)


def check_function(kernel: Kernel, function: Any, name: str) -> None:
    if isinstance(function, str):
        help = "give a function that launches it: weft.cuda_source and weft.c_source compile it"
    elif type(function).__module__.partition(".")[0] in ("triton", "numba", "numba_cuda"):
        help = (f"give its launcher: a function of {kernel.signature} that makes what is "
                f"returned and calls {name}[grid](...)")  # fmt: skip
    elif isinstance(function, Kernel) or not callable(function):
        help = f"give a function of {kernel.signature} that is no weft.kernel"
    else:
        _check_signature(kernel, function, f"`{name}`")
        return
    raise KernelTypeError(
        f"{type(function).__name__} is no implementation of `{kernel.__name__}`",
        kernel.span, help=help,
    )  # fmt: skip


def _check_signature(kernel: Kernel, function: Callable[..., Any], name: str) -> None:
    parameters = parameters_of(kernel)
    try:
        signature = inspect.signature(function)
    except ValueError:  # of a builtin, which has none
        return
    try:
        signature.bind(
            *[None for p in parameters if p.kind is not p.KEYWORD_ONLY],
            **{p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY},
        )
    except TypeError as error:
        raise KernelTypeError(
            f"{name}{signature} does not take the arguments of `{kernel.__name__}`: "
            f"{error}", kernel.span,
            help=f"they are passed as the kernel's: {kernel.__name__}"
            f"{kernel.signature}",
        ) from None  # fmt: skip


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) and value.requires_grad else value


def _place(args: tuple[Any, ...], named: dict[str, Any]) -> int:
    """The number of the device of a call's tensors."""
    values = (*args, *named.values())
    return next(v for v in values if isinstance(v, torch.Tensor)).get_device()


def add_plain(values: Sequence[Any], tensors: list[torch.Tensor]) -> bool:
    """Adds the tensors among ``values``; False where one is of a subclass or in a list, has no
    elements, or is more than elements in memory: where others may look at no more than that."""
    for value in values:
        if value.__class__ in TENSORS:
            if (
                value.layout is not torch.strided or value.is_nested or not value.numel()
                or value.is_neg() or value.is_conj() or value._is_zerotensor()
            ):  # fmt: skip
                return False
            tensors.append(value)
        elif isinstance(value, torch.Tensor) or (
            isinstance(value, list | tuple) and any(isinstance(v, torch.Tensor) for v in value)
        ):
            return False
    return True

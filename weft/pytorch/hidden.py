"""Tensors that a kernel reaches by other ways than its arguments, and what asks for a derivative.

An operator's derivatives are those of its arguments. A tensor that needs one and that the host part
or a loop finds elsewhere (in a dict, an object, by a function that it calls) would be a constant.
Those that the kernel's own text names are refused at once, others when they are used.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch._C import _functorch
from torch.overrides import TorchFunctionMode

# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false
from weft.errors import GradientError, Span
from weft.frontend.names import KNOWN_MODULES, MISSING, Scope, is_known
from weft.pytorch import batches
from weft.pytorch.forward_level import has_dual, tangent_of
from weft.runtime.launch import KernelLike
from weft.runtime.signature import REACHED
from weft.values import frozen

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
# What gives tensors without a history.
_WITHOUT = {torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__,
            torch.Tensor.grad.__get__}  # type: ignore[attr-defined]  # fmt: skip


def foreign_error(name: str = "a tensor", span: Span | None = None) -> GradientError:
    """What a transform would take for a constant, or for a batch of its own."""
    return GradientError(
        f"{name} belongs to a transform of torch.func, and it is not an argument of the kernel",
        span, help="transforms see arguments only: pass it as one",
    )  # fmt: skip


def captured(kernel: KernelLike) -> tuple[str, ...]:
    """The values that the kernel takes from around it, dotted where they are attributes."""
    args = [a.name for r in kernel.parts.regions for a in r.args if a.captured and not a.read]
    return (*_names(kernel.function), *args)


def _names(function: Callable[..., Any]) -> set[str]:
    """Those of its own text that it takes from closures and globals."""
    code = function.__code__
    found = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return found | {*code.co_freevars}


def check_captured(kernel: KernelLike, names: Sequence[str]) -> None:
    """Raises ``GradientError`` where the derivative would leave out a tensor that is no argument,
    and so none of the operator's."""
    function = kernel.function
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    scope = dict(function.__globals__)
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # not assigned yet
            scope[name] = cell.cell_contents
    for dotted in names:
        first, *rest = dotted.split(".")
        value = functools.reduce(lambda v, name: getattr(v, name, None), rest, scope.get(first))
        listed = [value] if isinstance(value, torch.Tensor | list | tuple) else []
        if any(map(batches.is_batched, _tensors(listed))):
            raise foreign_error(f"`{dotted}`", kernel.span)
        wanted = is_recording() and any(t.requires_grad for t in _tensors(listed))
        if wanted or has_dual((value,)):
            raise GradientError(
                f"`{dotted}` needs a derivative, and it is not an argument of the kernel",
                kernel.span,
                help="torch.compile and other transforms see arguments only: pass it as one, "
                f"or {dotted}.detach()",
            )  # fmt: skip


@frozen
class Asked:
    """``recording``: whether autograd is on; ``floor``: the level of transforms of ``torch.func``
    that are around."""

    recording: bool
    floor: int

    @contextlib.contextmanager
    def known(self) -> Generator[None]:
        """Says so to what is carried out, where neither shows any more."""
        token = _ASKED.set(self)
        try:
            yield
        finally:
            _ASKED.reset(token)


AGAIN = Asked(False, -1)  # for a derivative: they were looked for before
_ASKED: ContextVar[Asked | None] = ContextVar("weft_asked", default=None)


@contextlib.contextmanager
def asked_here() -> Generator[None]:
    """Has what an operator carries out under transforms of its own know by what it was called, if
    nobody has said so: tensors of these transforms are none of those around."""
    asked = _ASKED.get() or Asked(torch.is_grad_enabled(), batches.level())
    with asked.known():
        yield


def seen(f: Callable[..., Any], given: Sequence[Any], span: Span, recording: bool) -> Any:
    """``f(given)``, which must not use hidden tensors. ``recording``: whether autograd is on, where
    nobody has said so."""
    asked = _ASKED.get() or Asked(recording, batches.level())
    if asked is AGAIN or torch.is_grad_enabled():
        return f(given)
    hidden = Hidden(given, asked, span)
    token = REACHED.set(hidden.check)
    try:
        with hidden, asked.known():
            return f(given)
    finally:
        REACHED.reset(token)


def is_recording() -> bool:
    """Whether autograd is on, or was where an operator was called that is being carried out."""
    asked = _ASKED.get()
    return torch.is_grad_enabled() or (asked is not None and asked.recording)


def reaches(function: Callable[..., Any], values: Iterable[Any]) -> bool:
    """Whether ``function``, which has these values besides, may find tensors that it does not
    name."""
    around = map(Scope.of(function).lookup, _names(function))
    return not all(map(_is_plain, (*around, *values)))


def _is_plain(value: Any) -> bool:
    if isinstance(value, type | types.ModuleType):
        name = value.__module__ if isinstance(value, type) else value.__name__
        return name.partition(".")[0] in (*KNOWN_MODULES, "builtins")
    return value is MISSING or isinstance(value, (*_PLAIN, torch.Tensor)) or is_known(value)


class Hidden(TorchFunctionMode):
    """Refuses such tensors while the host part runs. ``given``: the operator's arguments;
    ``asked``: by what the call was."""

    def __init__(self, given: Sequence[Any], asked: Asked, span: Span) -> None:
        self.given = {id(t) for t in _tensors(given)}
        self.recording, self.floor = asked.recording, asked.floor
        # What is made of tensors with tangents has some, too.
        self.tangents = not any(map(_has_tangent, _tensors(given)))
        self.span = span

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        used = [*args, *(kwargs or {}).values()]
        self._check_levels(used)
        out = func(*args, **(kwargs or {}))
        if func not in _WITHOUT and next(_tensors((out,)), None) is not None:
            self.check(*used)
        return out

    def _check_levels(self, values: Sequence[Any]) -> None:
        for tensor in _tensors(values):
            level = _functorch.maybe_get_level(tensor)
            hidden = 0 < level <= self.floor or level > batches.level()
            if hidden and id(tensor) not in self.given:
                raise foreign_error(span=self.span)

    def check(self, *values: Any) -> None:
        self._check_levels(values)
        for tensor in _tensors(values):
            if id(tensor) in self.given:
                continue
            known = self.recording and tensor.requires_grad
            if known or (self.tangents and _has_tangent(tensor)):
                raise GradientError(
                    f"a tensor {tuple(tensor.shape)} needs a derivative, and it is not an argument "
                    "of the kernel", self.span,
                    help="torch.compile and other transforms see arguments only: pass it as one, "
                    "or a copy without a history: .detach(); under torch.no_grad() none needs one",
                )  # fmt: skip


def _has_tangent(tensor: torch.Tensor) -> bool:
    """Of a batch nobody can ask."""
    return not _functorch.is_functorch_wrapped_tensor(tensor) and tangent_of(tensor) is not None


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())

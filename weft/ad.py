"""Gradients in Taichi's words, ``weft.ad``: tapes that check their gradients, and functions whose
derivatives are written by hand.

A function with a gradient of its own is one operation to torch's autograd: of all fields with
gradients, the same fields. Its kernels run without a record. Backward, ``x.grad`` of each field is
the gradient with respect to the values after the function; what the function for the gradient
leaves there is the one with respect to the values before.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch

from weft.errors import GradientError, KernelTypeError
from weft.kernel import Kernel
from weft.lang.field import Field
from weft.pytorch import tape
from weft.pytorch.tape import FwdMode as FwdMode
from weft.pytorch.tape import clear_all_gradients as clear_all_gradients

_STEPS = [2.0**-k for k in range(3, 30, 2)]  # of finite differences, the widest first
_CLOSE = 0.01  # relative


class _Replaced(torch.autograd.Function):
    """Of fields that a function has written to and of others with gradients: the former. ``back``
    turns gradients of the former into those of all."""

    @staticmethod
    def forward(ctx: Any, back: Callable[[], None], count: int, *fields: Field) -> Any:
        ctx.back, ctx.count, ctx.fields = back, count, fields
        ctx.mark_dirty(*fields[:count])
        return fields[:count]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        kept = [field.grad for field in ctx.fields]
        try:
            for field, grad in zip(ctx.fields, grads, strict=False):
                field.grad = grad.clone()
            for field in ctx.fields[ctx.count :]:
                field.grad = torch.zeros_like(field.detach())
            ctx.back()
            found = [field.grad.as_subclass(torch.Tensor) for field in ctx.fields]
        finally:
            for field, grad in zip(ctx.fields, kept, strict=True):
                field.grad = grad
        return None, None, *found


def _replaced(function: Callable[..., Any], back: Callable[..., Any] | None) -> Any:
    @functools.wraps(function)
    def replaced(*args: Any, **kwargs: Any) -> None:
        active = tape.Tape.active()
        if active is None or not torch.is_grad_enabled():  # within another such function
            function(*args, **kwargs)
            return
        own = replaced.__dict__["grad"]
        if own is None:
            raise GradientError(
                f"`{function.__name__}` has no gradient",
                help=f"write one below @weft.ad.grad_for({function.__name__})",
            )
        with torch.no_grad():
            written = active.changed(functools.partial(function, *args, **kwargs))
        if written:
            rest = [one for one, _, _ in active.begins if not any(one is w for w in written)]
            for one in written:
                active.writes(one)
            _Replaced.apply(functools.partial(own, *args, **kwargs), len(written), *written, *rest)
            for one in written:
                active.wrote(one, f"a field of `{function.__name__}`")

    replaced.__dict__["grad"] = back
    return replaced


def grad_replaced(function: Callable[..., Any]) -> Any:
    """Decorates a Python function that calls kernels: a tape takes its gradient from the function
    that is decorated by ``grad_for`` of this one, not from its kernels. Numbers and fields are its
    arguments; its result is None. Raises ``GradientError`` under a tape where there is none."""
    return _replaced(function, None)


def grad_for(primal: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the gradient of ``primal``, a function decorated by ``grad_replaced``. It has
    the same arguments, reads ``y.grad`` of what ``primal`` writes and adds to ``x.grad`` of what
    that reads. Raises ``KernelTypeError`` for any other ``primal``."""
    if "grad" not in getattr(primal, "__dict__", {}):
        raise KernelTypeError(
            f"`{getattr(primal, '__name__', primal)}` keeps its own gradient",
            help="decorate a Python function that calls the kernel with @weft.ad.grad_replaced",
        )

    def given(function: Callable[..., Any]) -> Callable[..., Any]:
        primal.__dict__["grad"] = function
        return function

    return given


def no_grad(function: Callable[..., Any]) -> Any:
    """Decorates a Python function that calls kernels: to a tape it does nothing, so that gradients
    pass by as they are."""
    return _replaced(function, lambda *_, **__: None)


class Tape(tape.Tape):
    """``weft.pytorch.tape.Tape``, whose gradients may be checked.

    ``grad_check``: fields. Along a random direction of each, the derivative is compared with
    central differences of the loss, a field of float64: the kernels that ran under the tape run
    again for them, on the values that the fields had at its begin. Raises ``AssertionError`` where
    they differ by more than 1 %, and ``KernelTypeError`` for a kernel that writes to an argument
    which is no field.
    """

    def __init__(
        self, loss: Any, clear_gradients: bool = True, validation: bool = False,
        grad_check: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(loss, clear_gradients, validation)
        self._checked = [*(grad_check or ())]
        self._calls: list[Callable[[], Any]] = []
        self._before: list[tuple[Field, torch.Tensor]] = []

    def __enter__(self) -> Self:
        if not self._checked:
            return super().__enter__()
        if self.loss.dtype != torch.float64 or not all(
            isinstance(one, Field) and one.needs_grad for one in self._checked
        ):
            raise KernelTypeError(
                "gradients are checked of fields with gradients, and a loss of float64",
                help="write weft.field(weft.f64, ..., needs_grad=True)",
            )
        super().__enter__()
        try:
            self._before = [(one, one.to_torch()) for one in Field.alive()]
        except BaseException:  # no memory, say
            self.end()
            raise
        self._plain, here, within = Kernel.__call__, threading.get_ident(), False

        def noted(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
            nonlocal within
            if within or threading.get_ident() != here:
                return self._plain(kernel, *args, **kwargs)
            given = kernel.bind(args, kwargs).arguments
            if own := [n for n in kernel.mutated if n in given and not isinstance(given[n], Field)]:
                raise KernelTypeError(
                    f"a tape that checks gradients runs kernels again, which would write to "
                    f"`{own[0]}` again", kernel.span, help="write to a field",
                )  # fmt: skip
            within = True
            self._calls.append(functools.partial(kernel, *args, **kwargs))
            try:
                return self._plain(kernel, *args, **kwargs)
            finally:
                within = False

        setattr(Kernel, "__call__", noted)  # noqa: B010  # costs nothing where no tape checks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:  # fmt: skip
        if self._checked:
            setattr(Kernel, "__call__", self._plain)  # noqa: B010
        super().__exit__(kind, error, traceback)
        if kind is None and self._checked:
            after = [(one, one.to_torch()) for one in Field.alive()]
            try:
                for k, one in enumerate(self._checked):
                    if one is not self.loss:
                        self._check(k, one)
            finally:
                _restore(after)

    def _check(self, k: int, one: Field) -> None:
        gradient = one.grad.to_torch()
        pairs: list[tuple[float, float]] = []
        for step in _STEPS:
            direction = torch.rand_like(gradient)
            own = float((gradient * direction).sum())
            high, low = (self._loss(one, direction * s) for s in (step, -step))
            found = (high - low) / (2 * step)
            if abs(own - found) <= _CLOSE * abs(own):
                return
            pairs.append((own, found))
        own, found = min(pairs, key=lambda pair: abs(pair[0] - pair[1]))
        raise AssertionError(
            f"grad_check: the derivative along a direction of field {k} is {own}, and finite "
            f"differences give {found}"
        )

    def _loss(self, one: Field, change: torch.Tensor) -> float:
        _restore(self._before)
        one.from_torch(one.to_torch() + change)
        for call in self._calls:
            call()
        return float(self.loss.to_torch())


def _restore(fields: Sequence[tuple[Field, torch.Tensor]]) -> None:
    for field, values in fields:
        field.from_torch(values)

"""Gradients in Taichi's words: ``with ti.ad.Tape(loss=loss): step()``, then ``x.grad``.

Taichi records nothing but what runs under a tape, and differentiates with respect to fields that
were made with ``needs_grad=True``; what is stored into any other field is a constant. Here torch's
autograd does the recording. A tape makes each field with a gradient the result of an operation
that does nothing (``_Begin``), so that kernels may write to it, and takes that back at its end.
Outside a tape, loops that write to such a field are carried out without a record, as under
``no_grad``.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Self

import torch

from weft.errors import GradientError, KernelTypeError, Span
from weft.lang.field import Field
from weft.pytorch.forward_fields import FwdMode as FwdMode  # one of Taichi's names beside these
from weft.pytorch.forward_level import is_open
from weft.runtime.launch import KernelLike

_MANY = (
    "{} loops under the tape wrote to `{}`: the gradient with respect to each value that an "
    "element had on the way is not kept"
)
_MANY_HELP = (
    "copy what you want the gradient of into the field under the tape, from a field that is not "
    "written there: x[0, i] = start[i], and read start.grad"
)


class _Begin(torch.autograd.Function):
    """Of a field's values at the begin of a tape, the field: what is written to it from here on has
    a history. Nothing is copied."""

    @staticmethod
    def forward(ctx: Any, start: torch.Tensor, field: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(field)
        return field

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return *grads, None


_Begun = list[tuple[Field, torch.Tensor, torch.Tensor]]


def _begun(fields: Sequence[Field]) -> _Begun:
    """Has what is written from here on to those of ``fields`` with gradients recorded. Gives them,
    each with the leaf that stands for its values now, and its gradient, which torch would drop."""
    if is_open():
        raise KernelTypeError(
            "a gradient of fields within forward mode", help="end the forward mode before"
        )
    gradients = [(one, one.grad) for one in fields if one.needs_grad]  # raises before any change
    for one in fields:
        if not one.is_leaf:
            one.detach_()
    begins: _Begun = []
    for one, gradient in gradients:
        one.requires_grad_(False)
        start = one.detach().requires_grad_()
        with torch.enable_grad():
            _Begin.apply(start, one)
        begins.append((one, start, gradient))
    return begins


def _ended(begins: _Begun) -> None:
    """Makes leaves of fields again."""
    for field, _, gradient in begins:
        field.detach_()
        field.requires_grad_()
        field.grad = gradient


class Tape:
    """Computes the gradients of ``loss`` with respect to fields, at its end: ``x.grad``.

    ``loss``: a field of one number with ``needs_grad=True``. It is set to 0 at the begin.
    ``clear_gradients``: set all gradients of fields to 0 before. ``validation`` is Taichi's and has
    no use here: what a loop overwrites is kept for the gradient.

    ``x.grad`` of a field that the kernels under the tape do not write is the gradient with respect
    to its values; of one that one loop writes, to what that loop left there. Tensors of
    torch's that require gradients get theirs, as by ``loss.backward()``. Raises
    ``GradientError`` where a field is read for its gradient that several loops wrote to.
    """

    active: ClassVar[Tape | None] = None

    def __init__(
        self, loss: Any, clear_gradients: bool = True, validation: bool = False
    ) -> None:  # fmt: skip
        self.loss, self.clear_gradients = loss, clear_gradients
        self._begins: _Begun = []
        self._written: dict[int, list[torch.Tensor | None]] = {}  # the gradients of what was left
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        if (
            not isinstance(self.loss, Field)
            or self.loss.numel() != 1
            or not self.loss.is_floating_point()
        ):
            raise KernelTypeError(
                "a tape's loss is a field of one floating-point number",
                help="write loss = ti.field(ti.f32, shape=(), needs_grad=True)",
            )
        if not self.loss.needs_grad:
            raise KernelTypeError(
                "the loss of a tape has no gradient",
                help="write loss = ti.field(ti.f32, shape=(), needs_grad=True)",
            )
        if Tape.active is not None:
            raise KernelTypeError("a tape within a tape", help="end the first one before")
        if self.clear_gradients:
            clear_all_gradients()
        fields = Field.alive()
        with torch.no_grad():
            torch.Tensor.zero_(self.loss)
        self._begins = _begun(fields)
        Tape.active = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:  # fmt: skip
        Tape.active = None
        try:
            if kind is None:
                torch.autograd.backward(self.loss, torch.ones_like(self.loss))
        finally:
            _ended(self._begins)
        if kind is not None:
            return
        for field, start, _ in self._begins:
            left = self._written.get(id(field))
            self._add(field, start.grad if left is None else left[-1])
            if left is not None and len(left) > 1 and field is not self.loss:
                told = _MANY.format(len(left), self._names[id(field)])
                field.ungraded = (told, _MANY_HELP)
        with torch.no_grad():
            self.loss.grad.fill_(1)

    @staticmethod
    def _add(field: Field, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            with torch.no_grad():
                field.grad.add_(gradient)

    def wrote(self, field: Field, name: str) -> None:
        """Notes that a loop wrote to ``field``, which has a history and is called ``name``."""
        self._names[id(field)] = name
        left = self._written.setdefault(id(field), [])
        position = len(left)
        left.append(None)

        def keep(gradient: torch.Tensor) -> None:
            before = left[position]
            left[position] = gradient if before is None else before + gradient

        if field.requires_grad:
            torch.Tensor.register_hook(field, keep)


def clear_all_gradients() -> None:
    """Sets the gradients of all fields to 0."""
    for one in Field.alive():
        if one.needs_grad:
            one.ungraded = None
            found = torch.Tensor.grad.__get__(one)  # type: ignore[attr-defined]
            if found is not None:
                with torch.no_grad():
                    found.zero_()


def recorded(
    values: Sequence[Any], written: Iterable[int], needing: Iterable[int], span: Span | None
) -> list[Any] | None:
    """What a loop is to be recorded with: ``values``, in which fields without a gradient are
    constants; None where it is not recorded. ``written``, ``needing``: the positions of what the
    loop writes to and of what requires a gradient."""
    fields = [k for k in written if isinstance(values[k], Field)]
    if Tape.active is not None:
        found = [*values]
        for k in fields:
            if not values[k].needs_grad:
                found[k] = values[k].detach()
        return found
    leaves = [k for k in fields if values[k].requires_grad and values[k].is_leaf]
    if not leaves:
        return [*values]
    if all(isinstance(values[k], Field) for k in needing):
        return None
    raise GradientError(
        "the loop writes to a field with a gradient, and reads a tensor with one", span,
        help="call the kernel under torch.no_grad(), or under weft.ad.Tape(loss)",
    )  # fmt: skip


def transposed(kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``kernel.grad(...)`` of Taichi: the gradients of the fields that a call writes to are carried
    over to those that it reads. The values of the fields are as they were before. A field that is
    written has the gradient with respect to its values before the call then (0 where the call
    overwrites them)."""
    fields = Field.alive()
    with torch.no_grad():
        before = [f.as_subclass(torch.Tensor).clone() for f in fields]
    begins = _begun(fields)
    starts = [start for _, start, _ in begins]
    active, Tape.active = Tape.active, Tape(None)
    try:
        kernel(*args, **kwargs)
        found: Sequence[Any] = torch.autograd.grad(
            [f for f, _, _ in begins], starts, [g.clone() for _, _, g in begins], allow_unused=True
        )
    finally:
        Tape.active = active
        _ended(begins)
        with torch.no_grad():
            for field, values in zip(fields, before, strict=True):
                field.copy_(values)
    with torch.no_grad():
        for (field, _, _), gradient in zip(begins, list[Any](found), strict=True):
            field.grad.copy_(torch.zeros(()) if gradient is None else gradient)

"""Gradients in Taichi's words: ``with ti.ad.Tape(loss=loss): step()``, then ``x.grad``.

Taichi records nothing but what runs under a tape, and differentiates with respect to fields that
were made with ``needs_grad=True``; what is stored into any other field is a constant. Here torch's
autograd does the recording. A tape makes each field with a gradient the result of an operation
that does nothing (``_Begin``), so that kernels may write to it, and takes that back at its end.
Outside a tape, loops that write to such a field are carried out without a record, as under
``no_grad``.

A launch that autograd is told of in plain eager mode asks ``recorded``. What ``torch.compile``, a
dispatch mode, a transform, ``kernel.interpret`` or torch's own functions write does not: such
writes are found by the history that fields have then, and refused. A tape is its thread's, and
there is one at a time, since a field can have one history.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch.autograd.grad_mode import (
    _unsafe_preserve_version_counter,  # pyright: ignore[reportPrivateUsage]
)
from torch.autograd.graph import get_gradient_edge

from weft.errors import GradientError, KernelTypeError, Span
from weft.lang.dtypes import from_torch
from weft.lang.field import Field
from weft.pytorch.forward_fields import FwdMode as FwdMode  # one of Taichi's names beside these
from weft.pytorch.forward_level import is_open
from weft.pytorch.loop import Later, Loop
from weft.runtime.launch import KernelLike

_MANY = (
    "{} loops under the tape wrote to `{}`: the gradient with respect to each value that an "
    "element had on the way is not kept"
)
_MANY_HELP = (
    "copy what you want the gradient of into the field under the tape, from a field that is not "
    "written there: x[0, i] = start[i], and read start.grad"
)


_OTHER = (
    "the field was written under the tape by something else than a loop of a kernel that runs as "
    "it is: which of its values the gradient is for is not known"
)
_OTHER_HELP = (
    "call the kernel that writes to it as it is, not under torch.compile, a mode, a transform or "
    "kernel.interpret, and write to its elements in a kernel"
)
_CONSTANT = (
    "a field of shape {} and {}, made without a gradient, was written under the tape by something "
    "else than a loop of a kernel that runs as it is ({}): a derivative would go through it, and "
    "what is stored into such a field is a constant to a tape"
)
_CONSTANT_HELP = (
    "make it with needs_grad=True; or call the kernel that writes to it as it is, not under "
    "torch.compile, a mode, a transform or kernel.interpret; or write to it under torch.no_grad()"
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

    _one: ClassVar[threading.Lock] = threading.Lock()  # held while any thread has a tape
    _now: ClassVar[tuple[int, Tape] | None] = None  # that thread, and its tape

    def __init__(
        self, loss: Any, clear_gradients: bool = True, validation: bool = False
    ) -> None:  # fmt: skip
        self.loss, self.clear_gradients = loss, clear_gradients
        # The fields with gradients, each with the leaf that stands for its values at the begin,
        # and its gradient, which torch would drop.
        self.begins: list[tuple[Field, torch.Tensor, torch.Tensor]] = []
        self._made: list[Field] = []  # under the tape; held, since they may have a history
        self._written: dict[int, list[torch.Tensor | None]] = {}  # the gradients of what was left
        self._last: dict[int, Any] = {}  # the ``grad_fn`` that a field should have
        self._others: set[int] = set()  # fields that had another
        self._names: dict[int, str] = {}

    @classmethod
    def active(cls) -> Tape | None:
        """The tape of this thread."""
        now = cls._now
        return now[1] if now is not None and now[0] == threading.get_ident() else None

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
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:  # fmt: skip
        made = None
        try:
            if kind is None:
                self.check_constants()
                made = get_gradient_edge(self.loss)
        finally:
            self.end()
        if made is None:
            return
        torch.autograd.backward(made, torch.ones_like(self.loss.detach()))
        for field, start, _ in self.begins:
            left = self._written.get(id(field))
            self._add(field, start.grad if left is None else left[-1])
            if field is self.loss:
                continue
            if id(field) in self._others:
                field.ungraded = (_OTHER, _OTHER_HELP)
            elif left is not None and len(left) > 1:
                told = _MANY.format(len(left), self._names[id(field)])
                field.ungraded = (told, _MANY_HELP)
        with torch.no_grad():
            self.loss.grad.fill_(1)

    def begin(self) -> None:
        """Has what this thread writes to fields with gradients from here on recorded."""
        if is_open():
            raise KernelTypeError(
                "a gradient of fields within forward mode", help="end the forward mode before"
            )
        if not self._one.acquire(blocking=False):
            if Tape.active() is not None:
                raise KernelTypeError("a tape within a tape", help="end the first one before")
            raise KernelTypeError(
                "another thread has a tape, and a field has one history",
                help="let one thread after the other have a tape: hold a threading.Lock",
            )
        try:
            if self.clear_gradients:
                clear_all_gradients()
            if self.loss is not None:
                with torch.no_grad():
                    torch.Tensor.zero_(self.loss)
            self._begin(Field.alive())
        except BaseException:
            self._one.release()
            raise
        Tape._now, Field.met = (threading.get_ident(), self), self._meet

    def end(self) -> None:
        """Makes leaves of fields again."""
        Tape._now = Field.met = None
        try:
            for field, _, gradient in self.begins:
                if id(field) in self._last and field.grad_fn is not self._last[id(field)]:
                    self._others.add(id(field))
                field.detach_()
                field.requires_grad_()
                field.grad = gradient
        finally:
            self._one.release()

    def _begin(self, fields: Sequence[Field]) -> None:
        gradients = [(one, one.grad) for one in fields if one.needs_grad]  # may raise
        for one in fields:
            if not one.is_leaf:
                one.detach_()
        for one, gradient in gradients:
            one.requires_grad_(False)
            start = one.detach().requires_grad_()
            with torch.enable_grad():
                _Begin.apply(start, one)
            self._last[id(one)] = one.grad_fn
            self.begins.append((one, start, gradient))

    def _meet(self, field: Field) -> None:
        self._made.append(field)
        self._begin([field])

    def check_constants(self) -> None:
        """Raises ``GradientError`` where a field without a gradient has a history."""
        found = [one for one in Field.alive() if not one.needs_grad and not one.is_leaf]
        for one in found:
            history = one.grad_fn
            one.detach_()
            if one is found[-1]:
                kind = str(from_torch(one.dtype))
                told = _CONSTANT.format(tuple(one.size()), kind, type(history).__name__)
                raise GradientError(told, help=_CONSTANT_HELP)

    @staticmethod
    def _add(field: Field, gradient: torch.Tensor | None) -> None:
        if gradient is not None:
            with torch.no_grad():
                field.grad.add_(gradient)

    def changed(self, call: Callable[[], None]) -> list[Field]:
        """The fields with gradients that ``call`` writes to."""
        before = [(one, one._version) for one, _, _ in self.begins]
        call()
        return [one for one, version in before if one._version != version]

    def writes(self, field: Field) -> None:
        """Notes that a loop is about to write to ``field``, which has a history."""
        if field.grad_fn is not self._last.get(id(field)):
            self._others.add(id(field))

    def wrote(self, field: Field, name: str) -> None:
        """Notes that it did. ``name``: what the loop calls it."""
        self._last[id(field)] = field.grad_fn
        self._names[id(field)] = name
        left = self._written.setdefault(id(field), [])
        position = len(left)
        left.append(None)

        def keep(gradient: torch.Tensor) -> None:
            before = left[position]
            left[position] = gradient if before is None else before + gradient

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


def field_of(value: torch.Tensor) -> Field | None:
    """The field that a tensor is, or is a view of."""
    base = value._base if value._is_view() else value
    return base if isinstance(base, Field) else None


def overwritten_later(loop: Loop, values: Sequence[Any]) -> Later:
    """What may be overwritten after the loop is carried out on ``values``: under a tape, fields may
    be, by the loops of other kernels."""
    if Tape.active() is None:
        return loop.later
    fields = {
        k for k in loop.memrefs if (one := field_of(values[k])) is not None and not one.is_leaf
    }
    return (loop.later[0] | fields, loop.later[1]) if fields else loop.later


def recorded(
    values: Sequence[Any], written: Iterable[int], needing: Iterable[int], span: Span | None
) -> list[Any] | None:
    """What a loop is to be recorded with: ``values``, in which fields without a gradient are
    constants; None where it is not recorded. ``written``, ``needing``: the positions of what the
    loop writes to and of what requires a gradient."""
    fields = {k: one for k in written if (one := field_of(values[k])) is not None}
    if (active := Tape.active()) is not None:
        found = [*values]
        for k, field in fields.items():
            if field.needs_grad:
                active.writes(field)
            else:
                found[k] = values[k].detach()
        return found
    read = {k: field_of(values[k]) for k in needing}
    leaf = any(field.requires_grad and field.is_leaf for field in fields.values())
    # Another thread's tape has given it a history that is not this thread's.
    taped = any(one is not None and one.needs_grad and not one.is_leaf for one in read.values())
    if not leaf and not taped:
        return [*values]
    if None not in read.values():
        return None
    raise GradientError(
        "the loop writes to a field with a gradient, and reads a tensor with one" if leaf else
        "the loop writes to a field and reads a tensor with a gradient, and another thread has a "
        "tape of the fields", span,
        help="call the kernel under torch.no_grad(), or under weft.ad.Tape(loss)",
    )  # fmt: skip


def transposed(kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """``kernel.grad(...)`` of Taichi: the gradients of the fields that a call writes to are carried
    over to those that it reads. The values of the fields are as they were before. A field that is
    written has the gradient with respect to its values before the call then (0 where the call
    overwrites them). So have arguments that are tensors with ``requires_grad`` (themselves, not in
    an object), whose ``grad`` is 0 where there is none. Raises ``KernelTypeError`` under a tape."""
    fields = tuple(Field.alive())
    # Also where nothing is recorded around: in backward. The fields' values are as they were.
    with torch.enable_grad(), _unsafe_preserve_version_counter(fields):
        _transpose(kernel, args, kwargs, fields)


def _transpose(
    kernel: KernelLike, args: tuple[Any, ...], kwargs: dict[str, Any], fields: Sequence[Field]
) -> None:  # fmt: skip
    tape = Tape(None, clear_gradients=False)
    tape.begin()
    with torch.no_grad():
        before = [f.as_subclass(torch.Tensor).clone() for f in fields]
    found: Sequence[Any] = ()
    tensors = _Copies()
    args = tuple(map(tensors.of, args))
    kwargs = {name: tensors.of(value) for name, value in kwargs.items()}
    try:
        kernel(*args, **kwargs)
        tape.check_constants()
        made = [*tape.begins, *((own, start, _grad(given)) for given, start, own in tensors.made)]
        if made:
            found = torch.autograd.grad(  # which compares shapes, and those of fields are theirs
                [f.as_subclass(torch.Tensor) for f, _, _ in made], [start for _, start, _ in made],
                [g.clone() for _, _, g in made], allow_unused=True,
            )  # fmt: skip
    finally:
        tape.end()
        with torch.no_grad():
            for field, values in zip(fields, before, strict=True):
                field.copy_(values)
    with torch.no_grad():
        wanted = [field.grad for field, _, _ in tape.begins]
        wanted += [_grad(given) for given, _, _ in tensors.made]
        for one, gradient in zip(wanted, list[Any](found), strict=False):
            one.copy_(torch.zeros(()) if gradient is None else gradient)


def _grad(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.grad is None:
        tensor.grad = torch.zeros_like(tensor)
    return tensor.grad


class _Copies:
    """Of tensors with gradients, copies that kernels may write to: ``made`` has each tensor, the
    leaf that stands for its values, and the copy."""

    def __init__(self) -> None:
        self.made: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def of(self, value: Any) -> Any:
        if isinstance(value, Field) or not isinstance(value, torch.Tensor) or (
            not value.requires_grad
        ):  # fmt: skip
            return value
        for given, _, own in self.made:
            if given is value:
                return own
        start = value.detach().clone().requires_grad_()
        self.made.append((value, start, own := start.clone()))
        return own

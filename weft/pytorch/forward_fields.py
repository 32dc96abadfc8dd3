"""Forward mode in Taichi's words: ``with ti.ad.FwdMode(loss=y, param=x, seed=v): step()``, then
``y.dual``.

Torch's forward mode does the work: within the context, the fields that were made with
``needs_dual=True`` are dual tensors, whose tangents are their ``dual``. What is stored into any
other field is a constant.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Self

import torch
from torch.autograd import forward_ad

from weft.errors import KernelTypeError, KernelValueError
from weft.lang.field import Field
from weft.pytorch.forward_level import is_open, tangent_of


class FwdMode:
    """Computes the derivatives of fields along ``seed``, a direction of ``param``: ``loss.dual``.

    ``loss``: the field, or a list of fields, whose derivative is wanted; any other field with
    ``needs_dual=True`` has its own as well. ``param``: a field. ``seed``: as many numbers as it
    has, in the order of its elements; 1 of a field of one number. ``clear_gradients``: set the
    derivatives of all fields to 0 before; else they add to those of ``param``, as directions of
    their own. That of ``param`` is 0 at the end. Nothing is recorded for reverse mode within.

    Raises ``KernelTypeError`` for fields without ``needs_dual=True``, and within another forward
    mode or a tape; ``KernelValueError`` for a seed of another size.
    """

    active: ClassVar[FwdMode | None] = None  # one in a process, as torch's level of forward mode

    def __init__(
        self, loss: Any, param: Any, seed: Any = None, clear_gradients: bool = True
    ) -> None:  # fmt: skip
        self.losses: Sequence[Any] = loss if isinstance(loss, list | tuple) else [loss]
        self.param, self.seed, self.clear_gradients = param, seed, clear_gradients
        self._context = ExitStack()

    def __enter__(self) -> Self:
        for role, one in (("loss", loss) for loss in self.losses):
            _check(role, one)
        _check("param", self.param)
        seed = self._direction()
        if is_open():
            raise KernelTypeError(
                "a forward mode within another", help="end the first one before, or compute "
                "derivatives of derivatives of torch tensors by torch.func.jvp",
            )  # fmt: skip
        fields = _with_duals()
        if not all(one.is_leaf for one in fields):
            raise KernelTypeError("a forward mode within a tape", help="end the tape before")
        with torch.no_grad():
            for one in fields if self.clear_gradients else ():
                one.dual.zero_()
            self.param.dual.copy_(seed.reshape(self.param.size()))
        with ExitStack() as context:
            context.enter_context(torch.no_grad())
            for one in fields:
                if one.requires_grad:  # its loops would be refused: torch sees a leaf overwritten
                    one.requires_grad_(False)
                    context.callback(one.requires_grad_)
            duals = [(one, one.dual.clone()) for one in fields]
            context.enter_context(forward_ad.dual_level())
            for one, dual in duals:
                torch.Tensor.copy_(one, forward_ad.make_dual(one.detach().clone(), dual))
            FwdMode.active = self
            context.callback(setattr, FwdMode, "active", None)
            self._context = context.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:  # fmt: skip
        with self._context:
            found = [(one, tangent_of(one)) for one in _with_duals()]  # also of those made within
        with torch.no_grad():
            for one, tangent in found:
                one.dual.copy_(torch.zeros(()) if tangent is None else tangent)
            self.param.dual.zero_()

    def _direction(self) -> torch.Tensor:
        count = self.param.numel()
        if self.seed is None:
            if count != 1:
                raise KernelValueError(
                    f"no direction is given for a field of {count} numbers",
                    help="write seed=[1.0, 0.0, ...], as many numbers as `param` has",
                )
            return torch.ones(1)
        seed = torch.as_tensor(self.seed, dtype=self.param.dtype).flatten()
        if seed.numel() != count:
            raise KernelValueError(
                f"a seed of {seed.numel()} numbers for a field of {count}",
                help="write as many numbers as `param` has, in the order of its elements",
            )
        return seed


def constants(values: Sequence[Any]) -> tuple[Any, ...]:
    """What a loop is launched with: under ``FwdMode``, fields without ``needs_dual`` in such a way
    that no tangent is stored into them."""
    if FwdMode.active is None:
        return (*values,)
    return tuple(v.without_history() if isinstance(v, Field) and not v.needs_dual else v
                 for v in values)  # fmt: skip


def _with_duals() -> list[Field]:
    return [one for one in Field.alive() if one.needs_dual]


def _check(role: str, one: Any) -> None:
    if not isinstance(one, Field) or not one.needs_dual:
        raise KernelTypeError(
            f"`{role}` of a forward mode is a field with a dual",
            help="write x = ti.field(ti.f32, shape=n, needs_dual=True)",
        )

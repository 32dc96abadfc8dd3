"""Host parts carried out on tensors of which nobody has said how large they are.

What a host part that only makes tensors launches does not depend on sizes, but for these: sizes
are `Size`, with which all arithmetic gives one more, and each tensor has one element.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# How torch calls the getter of an attribute; and what switches modes off has no public name.
# pyright: reportPrivateUsage=false
_SHAPE = vars(torch._C.TensorBase)["shape"].__get__
_OPERATORS = ("add", "sub", "mul", "floordiv", "mod", "pow", "lshift", "rshift")


class Size(int):
    """A number that nobody knows: 1 to those who do not ask its type."""

    def __new__(cls) -> Size:
        return super().__new__(cls, 1)

    def __truediv__(self, other: object) -> float:
        return 1.0

    def __rtruediv__(self, other: object) -> float:
        return 1.0

    def __divmod__(self, other: object) -> tuple[Size, Size]:
        return Size(), Size()


def _unknown(name: str) -> Callable[..., Any]:
    def method(self: Size, other: object = None) -> Any:
        return Size() if isinstance(other, int | None) else getattr(operator, name)(1, other)

    return method


for _name in _OPERATORS:
    setattr(Size, f"__{_name}__", _unknown(_name))
    setattr(Size, f"__r{_name}__", _unknown(_name))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Size, f"__{_name}__", _unknown(_name))


class Shape(tuple[Size, ...]):
    """What a tensor says of its sizes."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        return Size() if isinstance(at, Size) else super().__getitem__(at)

    def numel(self) -> Size:
        return Size()


class Unsized(TorchFunctionMode):
    """Tensors say that they have sizes that nobody knows, and new ones have one element."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (_SHAPE, torch.Tensor.size):  # equal, not the same
            shape = Shape(Size() for _ in range(args[0].dim()))
            of = [*args[1:], *(kwargs or {}).values()]
            return shape if of in ([], [None]) else shape[of[0]]
        if func is torch.Tensor.numel:
            return Size()
        return func(*known(args), **known(kwargs or {}))


def without_sizes(host: Callable[..., Any]) -> Callable[..., Any]:
    """``host``, whose launches are of tensors of one element and of numbers that are 1."""

    def carried_out(launchers: Sequence[Callable[..., Any]], *args: Any, **kwargs: Any) -> Any:
        def outside(launch: Callable[..., Any]) -> Callable[..., Any]:
            def run(*values: Any) -> Any:
                with torch._C.DisableTorchFunction():
                    return launch(*known(values))

            return run

        with Unsized():
            return host([*map(outside, launchers)], *args, **kwargs)

    return carried_out


def known(value: Any) -> Any:
    """``value`` with numbers for sizes."""
    if isinstance(value, Size):
        return 1
    if isinstance(value, dict):
        return {name: known(v) for name, v in value.items()}
    if isinstance(value, tuple | list):
        items = [known(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    return value

"""What torch gives to a kernel that is interpreted (``watch.py``)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from weft.lang.dtypes import Scalar, Weak
from weft.lang.elements import leaves, mapped
from weft.lang.field import Array
from weft.lang.own_float import computed
from weft.runtime.places import here
from weft.runtime.watched_rows import note

_NUMBERS = {Scalar, Weak, int, float, bool}
_AUGMENTED = {  # as torch calls them
    "add_": operator.add, "sub_": operator.sub, "mul_": operator.mul, "div_": operator.truediv,
    "floor_divide_": operator.floordiv, "remainder_": operator.mod, "pow_": operator.pow,
    "__iand__": operator.and_, "__ior__": operator.or_, "__ixor__": operator.xor,
    "__ilshift__": operator.lshift, "__irshift__": operator.rshift,
}  # fmt: skip
_SUBSCRIPTION = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class Adopting(TorchFunctionMode):
    """Makes every tensor that torch gives to the kernel one that is checked, of the class
    ``watched``, or a value."""

    def __init__(self, watch: Any, watched: type[Any]) -> None:
        super().__init__()
        self.watch = watch
        self.watched = watched

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        kinds = {*map(type, args)}
        if self.watch.active and kinds <= _NUMBERS and Scalar in kinds and not kwargs:
            # Most of what is computed: of numbers alone, which touch no element.
            if not self.watch.is_wide():
                result = Scalar.__torch_function__(func, (), args)
            else:
                result = computed(func, args, kwargs)
            return result if type(result) in _NUMBERS else mapped(result, self._adopt)
        if self.watch.active and func in _SUBSCRIPTION and not isinstance(args[0], Scalar | Array):
            # An element of a tensor that is held by an object: it is met here first.
            watched = self.watch.wrap(args[0])
            if func is torch.Tensor.__getitem__:
                return watched.read(args[1], here(1))
            return watched.assign(args[1], args[2], here(1))
        if self.watch.active and self._is_own_number(func, args):
            own: Any = args[0]
            return _AUGMENTED[func.__name__](own.number(), args[1])
        if self.watch.active:
            parts = [t for t in leaves((*args, *kwargs.values())) if self._is_part(t)]
            note(func, parts, args[0] if args else None, lambda: here(3, "torch"))
        wide = self.watch.is_wide()
        result = computed(func, args, kwargs) if wide else func(*args, **kwargs)
        return mapped(result, self._adopt)

    def _adopt(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.watch.adopt(tensor) if type(tensor) is torch.Tensor else tensor

    def _is_part(self, value: Any) -> bool:
        """Whether ``value`` has elements that are watched."""
        return isinstance(value, self.watched)

    def _is_own_number(self, func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
        """Whether this is ``s += v`` of what the kernel has made, a number in a loop."""
        if len(args) != 2 or getattr(func, "__name__", "") not in _AUGMENTED:
            return False
        return self._is_part(args[0]) and args[0].own and not args[0].extents

"""What a host part does with tensors of which some are cut along an axis: whether each rank, on its
own rows, does that part of what is done with the whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from weft.index.rows import Content, NotLocal
from weft.pytorch.batches import storage

_FILLS = {"empty": None, "empty_like": None, "new_empty": None, "empty_strided": None,
          "new_empty_strided": None, "zeros": 0.0, "zeros_like": 0.0, "new_zeros": 0.0,
          "ones": 1.0, "ones_like": 1.0, "new_ones": 1.0}  # fmt: skip
_COPIES = frozenset(("clone", "_to_copy"))
# Views: those that may put axes together, and those that leave them as they are.
_REFORMED = frozenset(("view", "_unsafe_view", "reshape", "_reshape_alias"))
_VIEWS = _REFORMED | {"permute", "transpose", "t", "unsqueeze", "select", "detach", "alias",
                      "squeeze", "slice"}  # fmt: skip
_ASKED = frozenset(("sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "is_contiguous"))


class Host(TorchDispatchMode):
    """Follows what the host part does with tensors, of which some are cut."""

    def __init__(self, symbol: Any) -> None:
        super().__init__()
        self.symbol = symbol
        self.contents: dict[int, Content] = {}
        self.kept: list[torch.Tensor] = []  # whose memory is known by its number

    def know(self, tensor: torch.Tensor, content: Content) -> None:
        self.contents[storage(tensor)] = content
        self.kept.append(tensor)

    def content(self, tensor: torch.Tensor) -> Content:
        found = self.contents.get(storage(tensor))
        if found is None:
            raise NotLocal("the host part uses a tensor that is no argument")
        return found

    def is_cut(self, size: Any) -> bool:
        return isinstance(size, torch.SymInt) and size.node.expr == self.symbol

    def axis(self, tensor: torch.Tensor) -> int | None:
        """Along which it is cut. Raises ``NotLocal``."""
        found = [k for k, size in enumerate(tensor.shape) if isinstance(size, torch.SymInt)]
        if not found:
            return None
        if len(found) > 1 or not self.is_cut(tensor.shape[found[0]]):
            raise NotLocal("the host part makes a tensor that no rank has rows of")
        return found[0]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        kwargs = kwargs or {}
        inputs = tensors_in((args, kwargs))
        name = func._schema.name.rpartition(":")[2]
        if func._schema.is_mutable:
            return self._changed(func, name, args, kwargs)
        out = func(*args, **kwargs)
        made = tensors_in(out)
        if name in _ASKED or func.namespace == "prim":
            return out
        if not made:
            if any(self.axis(t) is not None or self.content(t).partial for t in inputs):
                raise NotLocal(f"the host part computes {name} of a tensor that is cut")
            return out
        if name in _FILLS or name in ("full", "full_like", "new_full"):
            fill = _FILLS.get(name)
            if name not in _FILLS:
                fill = args[1 if name != "new_full" else 2]
                if not isinstance(fill, bool | int | float):
                    raise NotLocal("the host part fills a tensor with a size")
            self._make(out, Content("a tensor", False, fill))
        elif name in _VIEWS:
            self._view(name, inputs[0], out, args)
        elif all(self.axis(t) is None for t in (*inputs, *made)) and not _has_size((args, kwargs)):
            self._whole(func, inputs)
            for tensor in made:
                if storage(tensor) not in self.contents:
                    self._make(tensor, Content("a tensor"))
        elif name in _COPIES or torch.Tag.pointwise in func.tags:
            self._pointwise(func, inputs, made, (args, kwargs))
            self._make(out, Content("a tensor"))
        else:
            raise NotLocal(f"the host part computes {name} of a tensor that is cut")
        return out

    def _make(self, tensor: torch.Tensor, content: Content) -> None:
        self.axis(tensor)
        self.know(tensor, content)

    def _whole(self, func: Any, inputs: Sequence[torch.Tensor]) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise NotLocal("the host part draws random numbers, each rank its own")
        if any(self.content(t).partial for t in inputs):
            raise NotLocal("the host part reads what ranks have parts of")

    def _pointwise(
        self, func: Any, inputs: Sequence[torch.Tensor], made: Sequence[torch.Tensor], given: Any
    ) -> None:
        """Checks that elements are computed from those at the same places."""
        self._whole(func, inputs)
        if _has_size(given):
            raise NotLocal("the host part uses a size as a number")
        for out in made:
            for tensor in inputs:
                axis, own = self.axis(out), self.axis(tensor)
                if own is not None and (axis is None or own - tensor.dim() != axis - out.dim()):
                    raise NotLocal("the host part moves rows")

    def _view(self, name: str, tensor: torch.Tensor, out: Any, args: Sequence[Any]) -> None:
        before = self.axis(tensor)
        if not isinstance(out, torch.Tensor):
            raise NotLocal(f"the host part computes {name} of a tensor that is cut")
        after = self.axis(out)
        if (before is None) != (after is None):
            raise NotLocal("the host part takes single rows")
        if before is None or after is None:
            return
        moved = name == "slice" and ((len(args) > 2 and args[2] not in (None, 0)) or len(args) > 4)
        if moved and (args[1] if len(args) > 1 else 0) % tensor.dim() == before:
            raise NotLocal("the host part takes single rows")
        if name in _REFORMED and math.prod(tensor.shape[:before]) != math.prod(out.shape[:after]):
            raise NotLocal("the host part moves rows")

    def _changed(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """An operator that writes."""
        inputs = tensors_in((args, kwargs))
        target, content = inputs[0], self.content(inputs[0])
        if content.partial or kwargs.get("out") is not None:
            raise NotLocal("the host part writes to what ranks have parts of")
        value = args[1] if len(args) > 1 else 0.0
        plain = isinstance(value, bool | int | float)
        if name in ("fill_", "zero_") and plain and not content.given and not content.whole:
            content.fill = float(value) if not target._is_view() else math.nan
        elif name in ("fill_", "zero_") and plain:
            content.whole = True
        elif name == "copy_" or torch.Tag.pointwise in func.tags or (
            all(self.axis(t) is None for t in inputs)
        ):  # fmt: skip
            if any(self.axis(t) is not None for t in inputs):
                self._pointwise(func, inputs, [target], (args, kwargs))
            else:
                self._whole(func, inputs)
                if _has_size((args, kwargs)):
                    raise NotLocal("the host part uses a size as a number")
            content.whole = True
        else:
            raise NotLocal(f"the host part computes {name} of a tensor that is cut")
        return func(*args, **kwargs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors_in([*value.values()])
    return [t for v in value for t in tensors_in(v)] if isinstance(value, list | tuple) else []


def _has_size(value: Any) -> bool:
    """Whether there is a number among ``value`` that depends on what is cut."""
    if isinstance(value, dict | list | tuple):
        return any(map(_has_size, value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


_PLACES = frozenset(("is_contiguous", "stride", "data_ptr", "storage_offset", "is_cuda",
                     "is_cpu", "get_device"))  # fmt: skip


class Asked(TorchFunctionMode):
    """Refuses questions to which a rank may have an answer of its own."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:  # fmt: skip
        name = func.__name__
        if name == "__get__":  # of a property
            name = getattr(func.__self__, "__name__", name)
        if name in _PLACES:
            raise NotLocal(f"the host part asks for `{name}` of a tensor")
        return func(*args, **(kwargs or {}))

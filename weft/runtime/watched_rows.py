"""Rows under checked interpretation: what torch's functions read and write of watched tensors
(``watch.Watched``)."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

from weft.lang.field import is_number
from weft.runtime.conflict import READ, UPDATES, WRITE

# What asks for no element of a tensor.
_ASKS = frozenset((
    "__get__", "__len__", "size", "dim", "ndimension", "numel", "nelement", "stride", "data_ptr",
    "storage_offset", "element_size", "untyped_storage", "as_subclass", "is_floating_point",
    "is_complex", "is_contiguous", "__getitem__", "__setitem__", "__repr__", "__hash__", "type",
    "empty_like", "zeros_like", "ones_like", "full_like", "new_empty", "new_zeros", "new_ones",
    "new_full", "new_tensor",
))  # fmt: skip


def touch(part: Any, kind: str, place: Any) -> None:
    """Notes that an iteration does ``kind`` with each element of ``part``."""
    for position in itertools.product(*map(range, part.extents)):
        address = part.start + part.width * sum(map(operator.mul, position, part.steps))
        part.watch.touch(address, kind, position, place)


def inside(
    parts: tuple[Any, ...], extents: tuple[int, ...],
    checked: Callable[[tuple[Any, ...]], tuple[int, ...]],
) -> tuple[Any, ...]:  # fmt: skip
    """The subscripts ``parts``, among which are slices: their integers checked as those of elements
    are. What has other things in it is left to torch."""
    simple = all(is_number(p) or isinstance(p, slice) for p in parts)
    if not simple or any(n == 0 for n in extents):
        return parts
    found = checked(tuple(p if is_number(p) else 0 for p in parts))
    return tuple(k if is_number(p) else p for p, k in zip(parts, found, strict=True))


def note(
    function: Callable[..., Any], tensors: list[Any], first: Any, place: Callable[[], Any]
) -> None:
    """Notes what ``function`` of torch does with ``tensors``, of which ``first`` may be the one
    that it changes."""
    name = getattr(function, "__name__", "")
    if name in _ASKS or not tensors:
        return
    here = place()
    changes = _changes(name)
    for tensor in tensors:
        touch(tensor, changes if changes and tensor is first else READ, here)


def _changes(name: str) -> str:
    """What the function of that name does with its first argument; "" where it only reads it."""
    if name.startswith("__i") and name not in ("__invert__", "__index__", "__int__"):
        word = name[3:-2]
        return UPDATES.get({"and": "and_", "or": "or_"}.get(word, word), WRITE)
    if name.endswith("_") and not name.startswith("_"):
        return UPDATES.get(name[:-1], WRITE) if name in ("add_", "sub_", "mul_") else WRITE
    return ""

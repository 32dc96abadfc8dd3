"""``weft.zeros(n, dtype, most=room)`` in plain Python: a list with room for some numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.errors import KernelAssertionError, KernelValueError

ROOM = 64  # elements of a list that a device loop makes by ``[]``


class Bounded(list[Any]):
    """A list of at most ``most`` numbers of ``dtype``. Raises ``KernelAssertionError`` for more."""

    def __init__(self, items: Iterable[Any], dtype: Any, most: int) -> None:
        if type(most) is not int or most < 1:
            raise KernelValueError("`most` is a constant, and at least 1", None,
                                   help="write weft.zeros(n, weft.f32, most=64)")  # fmt: skip
        super().__init__(items)
        self.dtype, self.most = dtype, most
        if len(self) > most:
            raise KernelAssertionError(
                f"the size of an array is not in 0..{most}, its `most`", None
            )

    def append(self, item: Any) -> None:
        if len(self) >= self.most:
            raise KernelAssertionError(f"the list is full: there is room for {self.most} elements")
        super().append(self.dtype(item))

    def extend(self, items: Iterable[Any]) -> None:
        for item in items:
            self.append(item)

    def __setitem__(self, place: Any, item: Any) -> None:
        super().__setitem__(place, self.dtype(item))

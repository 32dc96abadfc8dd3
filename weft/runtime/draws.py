"""The random numbers of a kernel that is interpreted: those of the compiled loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.ir.philox import word
from weft.lang.dtypes import quietly
from weft.lang.loops import Grouped, NDRange
from weft.lang.random import Words, from_torch, new_key


class Draws:
    """What the loops of one call draw. ``device`` gives that of the loop's tensors. A loop takes
    its key when it draws for the first time, or at its end, as a compiled one takes one that has no
    iterations. (A compiled loop whose draws stand in branches that are left out takes none.)
    """

    def __init__(self, device: Callable[[], torch.device]) -> None:
        self.device = device
        self.source: Words = from_torch  # outside of loops
        self._unused: list[int] | None = None  # the key of a loop that draws, until it is taken

    def words(self, count: int) -> list[int]:
        """The next ``count`` words: see ``weft.lang.random``."""
        return self.source(count)

    def loop(self, over: Any, draws: bool) -> Callable[[Any], None]:
        """A loop over a range, a box or a tensor begins. Gives what is to be called with the
        indices of each iteration. ``draws``: whether its text says that it may draw."""
        extents, key = _extents(over), list[int]()
        self._unused = key if draws else None

        def begin(index: Any) -> None:
            parts = index if isinstance(index, Sequence) else (index,)
            iteration, drawn = 0, 0
            for k, value in enumerate(parts):
                iteration = iteration * (extents[k] if k else 1) + int(value)

            def words(count: int) -> list[int]:
                nonlocal drawn
                if not key:
                    self._take(key)
                first = -(-drawn // count) * count
                drawn = first + count
                return [word(key[0], iteration, first + k) for k in range(count)]

            self.source = words

        return begin

    def end(self) -> None:
        """The loop has ended."""
        if self._unused is not None and not self._unused:
            self._take(self._unused)
        self.source, self._unused = from_torch, None

    def _take(self, key: list[int]) -> None:
        with quietly():
            key.append(int(new_key(self.device())))


def _extents(over: Any) -> Sequence[int]:
    if isinstance(over, Grouped):
        return _extents(over.over)
    return over.shape if isinstance(over, NDRange | torch.Tensor) else ()

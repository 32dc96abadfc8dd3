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
    its key when it draws for the first time: a compiled one that never draws has taken one, too.
    """

    def __init__(self, device: Callable[[], torch.device]) -> None:
        self.device = device
        self.source: Words = from_torch  # outside of loops

    def words(self, count: int) -> list[int]:
        """The next ``count`` words: see ``weft.lang.random``."""
        return self.source(count)

    def loop(self, over: Any) -> Callable[[Any], None]:
        """A loop over a range, a box or a tensor begins. Gives what is to be called with the
        indices of each iteration."""
        extents, key = _extents(over), list[int]()

        def begin(index: Any) -> None:
            parts = index if isinstance(index, Sequence) else (index,)
            iteration, drawn = 0, 0
            for k, value in enumerate(parts):
                iteration = iteration * (extents[k] if k else 1) + int(value)

            def words(count: int) -> list[int]:
                nonlocal drawn
                if not key:
                    with quietly():
                        key.append(int(new_key(self.device())))
                first = -(-drawn // count) * count
                drawn = first + count
                return [word(key[0], iteration, first + k) for k in range(count)]

            self.source = words

        return begin

    def end(self) -> None:
        """The loop has ended."""
        self.source = from_torch


def _extents(over: Any) -> Sequence[int]:
    if isinstance(over, Grouped):
        return _extents(over.over)
    return over.shape if isinstance(over, NDRange | torch.Tensor) else ()

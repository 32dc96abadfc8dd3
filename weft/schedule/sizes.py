"""One call of a kernel, as schedules see it: its sizes and numbers, no data."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

from weft.schedule.intervals import ANY, Interval, fits, trip_count
from weft.schedule.nest import Nest
from weft.schedule.reciprocal import DIVIDEND, DIVISOR, reciprocal
from weft.values import frozen

_MARGIN = 1 << 24  # what is left of 32 bits for a thread's place beyond the last iteration


@frozen
class Array:
    """Sizes and strides, in elements, of a memref argument, and the bytes of an element."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    bytes: int
    contiguous: bool  # by its type

    @property
    def reach(self) -> int:
        """The offset of the last element."""
        if 0 in self.sizes:
            return 0
        return sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))

    def rows_are_multiples_of(self, bytes: int) -> bool:
        """Whether every row begins at a multiple of ``bytes`` if the first does."""
        per = bytes // self.bytes
        sizes = self.sizes
        ragged = self.contiguous and len(sizes) > 1 and sizes[-1] % per != 0
        return not ragged and not any(s % per for s in self.strides[:-1])


@frozen
class Sizes:
    """``values``: the interval of each step of the nest's program. ``aligned``: pairs of an array
    and bytes that its address is a multiple of."""

    nest: Nest
    values: Sequence[Interval]
    arrays: Mapping[str, Array]
    aligned: frozenset[tuple[str, int]]

    @functools.cached_property
    def trips(self) -> tuple[int | None, ...]:
        """Trip counts along the axes; None where one is known on the GPU only."""
        return tuple(trip_count(*(self.values[k] for k in bounds)) for bounds in self.nest.bounds)

    @functools.cached_property
    def lengths(self) -> list[int | None]:
        """The most iterations of each loop that threads may share; None where that is not known."""
        return [_length(self.values[low], self.values[high]) for low, high in self.nest.lengths]

    def spans(self, loops: Collection[str]) -> list[int | None]:
        """The most iterations of each of these loops, which blocks share, with those around it."""
        found: list[int | None] = []
        for name, _, ends in self.nest.splits:
            if name in loops:
                many = [_length(self.values[low], self.values[high]) for low, high in ends]
                found.append(None if None in many else math.prod(n or 0 for n in many))
        return found

    @functools.cached_property
    def fits_32(self) -> bool:
        """Whether 32 bits hold every index and the offset of every element."""
        nest, values = self.nest, self.values
        # Threads count a little further than loops go.
        ends = [high for _, high, _ in nest.bounds] + [high for _, high in nest.lengths]
        ends += [*nest.shared_ends, *(high for *_, each in nest.splits for _, high in each)]
        most = (1 << 31) - _MARGIN
        return (
            all(array.reach < (1 << 31) - 1 for array in self.arrays.values())
            and all(fits(values[k]) for k in nest.must_fit_32)
            and all(values[k][1] < most for k in ends)
            and all(n is None or n < most for n in self.trips)
        )

    @functools.cached_property
    def divisors(self) -> bytes:
        """The words of each divisor; none where one is not known, or something that is divided is
        too large."""
        words = b""
        for step, dividends in self.nest.divisions:
            low, high = self.values[step]
            numbers = reciprocal(low) if low == high else None
            if numbers is None or any(
                self.values[k][0] < -DIVIDEND or self.values[k][1] > DIVIDEND for k in dividends
            ):
                return b""
            words += DIVISOR.pack(*numbers)
        return words

    def count(self, array: str) -> int:
        """How many elements an array has."""
        return math.prod(self.arrays[array].sizes)


def _length(first: Interval, end: Interval) -> int | None:
    if ANY in (first, end) or end[1] - first[0] >= 1 << 40:
        return None
    return max(end[1] - first[0], 0)

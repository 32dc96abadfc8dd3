"""What a call must satisfy for a candidate, as values with a text, spelled like steps."""

from __future__ import annotations

import math
from typing import Any, get_args

from weft.schedule import grid
from weft.schedule.intervals import fits
from weft.schedule.language import Schedule
from weft.schedule.machine import GpuMachine
from weft.schedule.sizes import Sizes
from weft.values import frozen


@frozen
class Fits32:
    """32 bits hold every index and the offset of every element."""


@frozen
class Reciprocals:
    """Each number that is divided by has a reciprocal, and what is divided is not too large."""


@frozen
class Aligned:
    """``array`` and each of its rows begin at multiples of ``bytes``."""

    array: str
    bytes: int


@frozen
class MultipleOf:
    """Step ``value`` of the nest's program is a multiple of ``number``."""

    value: int
    number: int


@frozen
class Positive:
    """Step ``value`` of the nest's program is positive."""

    value: int


@frozen
class AtLeast:
    """There are so many iterations along ``axis``."""

    axis: str
    count: int


@frozen
class FewLeft:
    """Of the iterations along ``axis``, three of four are in whole groups of ``length``."""

    axis: str
    length: int


@frozen
class Whole:
    """The iterations along ``axis`` are whole groups of ``length``."""

    axis: str
    length: int


@frozen
class Busy:
    """Each multiprocessor still gets so many threads."""

    threads: int


@frozen
class Idle:
    """Each multiprocessor gets fewer threads than that."""

    threads: int


@frozen
class Grouped:
    """Loops are so long, and iterations so few, that as many threads share one (see
    ``Cooperate``)."""

    threads: int


@frozen
class Columns:
    """Likewise, where so many groups stand side by side."""

    width: int


@frozen
class Scanned:
    """Likewise, where each turn asks for what was carried so far, by threads of so many ``turns``.
    How many threads, the sizes of a call say. ``along``: turns go along rows, iterations do not."""

    turns: int
    along: bool


@frozen
class Split:
    """Likewise, where several blocks share one."""

    columns: int


@frozen
class Held:
    """The registers of a group hold a row, whose length is step ``value`` of the nest's program:
    ``usual`` elements in each thread, ``most`` where it is long. How many threads and vectors of
    ``width`` that takes, the sizes of a call say. ``turns``: a group has one row after
    the other."""

    value: int
    width: int
    usual: int
    most: int
    turns: bool = False


@frozen
class Long:
    """Loops are so long, and iterations so few, that a group shares one; of vectors of ``width`` a
    thread loads ``usual`` elements at a time."""

    width: int
    usual: int


@frozen
class Turns:
    """A serial loop from step ``lower`` to step ``upper`` of the nest's program has so many turns,
    in some iteration."""

    lower: int
    upper: int
    count: int


@frozen
class AtMost:
    """Step ``value`` of the nest's program is no more than ``number``."""

    value: int
    number: int


@frozen
class FewElements:
    """``array`` fits into shared memory, and there are many more iterations than elements."""

    array: str


@frozen
class FitsShared:
    """``array`` fits into the part of shared memory that a block has for it."""

    array: str


@frozen
class KnownTrips:
    """Trip counts are known before the launch. ``most``: there are no more iterations than that in
    all, if it is not 0."""

    most: int = 0


@frozen
class LargerThanCache:
    """``arrays`` are larger than the second-level cache, and all others are small beside them."""

    arrays: tuple[str, ...]


@frozen
class Covered:
    """The grid may have a thread for each iteration."""


Guard = (
    Fits32 | Reciprocals | Aligned | MultipleOf | Positive | AtLeast | FewLeft | Whole
    | Busy | Idle
    | Grouped | Columns | Scanned | Split | Held | Long | Turns | AtMost | FewElements
    | FitsShared
    | KnownTrips | LargerThanCache | Covered
)  # fmt: skip
GUARDS: tuple[type[Any], ...] = get_args(Guard)


def holds(
    guard: Guard, schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int = grid.THREADS
) -> bool:
    """Whether a call of these sizes satisfies ``guard`` for ``schedule``, in blocks of at most
    ``most`` threads."""
    match guard:
        case Fits32():
            return sizes.fits_32
        case Reciprocals():
            return bool(sizes.divisors)
        case Aligned(array, bytes):
            there = (array, bytes) in sizes.aligned
            return there and sizes.arrays[array].rows_are_multiples_of(bytes)
        case MultipleOf(value, number):
            low, high = sizes.values[value]
            return low == high and fits((low, high)) and low % number == 0
        case Positive(value):
            return sizes.values[value][0] > 0
        case AtMost(value, number):
            return sizes.values[value][1] <= number
        case LargerThanCache(arrays):
            return _streams(arrays, sizes, machine.cache_bytes)
        case _:
            return None not in sizes.trips and _of_trips(guard, schedule, sizes, machine, most)


def _of_trips(
    guard: Guard, schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int
) -> bool:
    trips = {axis: n or 0 for axis, n in zip(sizes.nest.axes, sizes.trips, strict=True)}
    total = math.prod(trips.values())
    match guard:
        case AtLeast(axis, count):
            return trips[axis] >= count
        case FewLeft(axis, length):
            n = trips[axis]
            return 4 * (n // length * length) >= 3 * n > 0
        case Whole(axis, length):
            return trips[axis] % length == 0 < trips[axis]
        case Busy(threads):
            return math.prod(grid.along(schedule, sizes)) >= threads * machine.processors
        case Idle(threads):
            return math.prod(grid.along(schedule, sizes)) < threads * machine.processors
        case Turns(lower, upper, count):
            return sizes.values[upper][1] - sizes.values[lower][0] >= count
        case Grouped(threads):
            members, _ = grid.group(sizes.lengths, total)
            members = members if members <= grid.WARP else max(members, grid.SEVERAL)
            return members == threads
        case Held() | Long():
            return sharing(guard, sizes) != (0, 0)
        case Scanned():
            return scanning(guard, sizes) > 0
        case Columns(width):
            return grid.columns(sizes.lengths, grid.along(schedule, sizes))[0] == width
        case Split(width):
            found, parts = grid.split(schedule, sizes)
            return parts > 1 and found == width
        case FewElements(array):
            return _small(array, sizes) and total >= max(16 * sizes.count(array), 1 << 14)
        case FitsShared(array):
            return _small(array, sizes)
        case KnownTrips(limit):
            return not limit or total <= limit
        case Covered():
            left, most = grid.along(schedule, sizes), grid.limit(schedule, most)
            found = grid.shape(schedule, left, few=False, processors=machine.processors, most=most)
            return grid.covers(schedule, left, *found)
        case _:
            return False


def sharing(guard: Held | Long, sizes: Sizes) -> tuple[int, int]:
    """Threads that have an iteration together, and the vectors of each; (0, 0) if none have."""
    rows = math.prod(n or 0 for n in sizes.trips)
    if isinstance(guard, Long):
        return grid.in_strips(sizes.lengths, rows, guard.width, guard.usual)
    low, high = sizes.values[guard.value]
    if low != high:
        return 0, 0
    rows *= 1 + guard.turns  # which keep a group busy: it needs no more threads for that
    return grid.in_registers(low, rows, guard.width, guard.usual, guard.most)


def scanning(guard: Scanned, sizes: Sizes) -> int:
    """Threads that scan the loops of an iteration together; 0 if none do."""
    rows = math.prod(n or 0 for n in sizes.trips)
    return grid.scanned(sizes.lengths, rows, guard.turns, along=guard.along)


def _small(array: str, sizes: Sizes) -> bool:
    return 0 < sizes.count(array) * sizes.arrays[array].bytes <= grid.PRIVATE_BYTES


def _streams(arrays: tuple[str, ...], sizes: Sizes, cache: int) -> bool:
    written = read = 0
    for name, array in sizes.arrays.items():
        if name in arrays:
            written += math.prod(array.sizes) * array.bytes
        else:
            read += math.prod(array.sizes) * array.bytes
    return written > cache and 8 * read <= written


def reason(
    guard: Guard, schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int = grid.THREADS
) -> str:
    """Why a guard that does not hold does not."""
    many = None in sizes.trips
    trips = {axis: n or 0 for axis, n in zip(sizes.nest.axes, sizes.trips, strict=True)}
    match guard:
        case Fits32():
            return "an index or an offset needs more than 32 bits"
        case Reciprocals():
            return "a divisor has no reciprocal, or what it divides is too large"
        case Aligned(array, bytes):
            there = (array, bytes) in sizes.aligned
            what = f"its rows have {sizes.arrays[array].sizes[-1]} elements" if there else "it"
            return f"{what}{'' if there else ' begins elsewhere'}"
        case MultipleOf(value, _) | Positive(value) | AtMost(value, _):
            low, high = sizes.values[value]
            return f"that is {low}" if low == high else "that is not known"
        case Turns(lower, upper, _):
            return f"there are {sizes.values[upper][1] - sizes.values[lower][0]}"
        case LargerThanCache():
            return "the cache holds them, or much else is read"
        case _ if many:
            return "trip counts are known on the GPU only"
        case AtLeast(axis, _) | FewLeft(axis, _) | Whole(axis, _):
            return f"there are {trips[axis]}"
        case Busy(_) | Idle(_):
            threads = math.prod(grid.along(schedule, sizes))
            return f"{threads} threads on {machine.processors} multiprocessors"
        case Grouped(_):
            members = grid.group(sizes.lengths, math.prod(trips.values()))[0]
            return _so_many(members)
        case Held() | Long():
            return "registers do not hold a row" if isinstance(guard, Held) else _so_many(0)
        case Scanned():
            return _so_many(0)
        case Columns(_):
            return _so_many(grid.columns(sizes.lengths, grid.along(schedule, sizes))[0])
        case Split(_):
            width, parts = grid.split(schedule, sizes)
            return f"groups would have {width}" if parts > 1 else "one block does as well"
        case FewElements(array) | FitsShared(array):
            return f"it has {sizes.count(array) * sizes.arrays[array].bytes} bytes"
        case KnownTrips(_):
            return f"there are {math.prod(trips.values())} iterations"
        case _:
            return "the grid has fewer threads"


def _so_many(threads: int) -> str:
    return f"groups would have {threads}" if threads else "a thread does better alone"

"""What a call must satisfy for a candidate, as values with a text, spelled like steps."""

from __future__ import annotations

import math
from typing import Any, get_args

from weft.schedule import grid
from weft.schedule.intervals import Interval, fits
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
class Overlapped:
    """The iterations along ``axis`` fill a group of ``length``, and groups that are whole have few
    twice: of all that they carry out, a quarter at most."""

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
    """Likewise, where so many groups stand side by side. ``most``: of no more iterations than that,
    where it is not 0."""

    width: int
    most: int = 0


@frozen
class Scanned:
    """Likewise, where each turn asks for what was carried so far, by threads of so many ``turns``.
    How many threads, the sizes of a call say. ``along``: turns go along rows, iterations do not."""

    turns: int
    along: bool


@frozen
class ScanSplit:
    """Likewise, where several blocks scan one."""


@frozen
class Split:
    """Likewise, where several blocks share one. ``most``: as of ``Columns``."""

    columns: int
    most: int = 0


@frozen
class Held:
    """The registers of a group hold a row, whose length is step ``value`` of the nest's program:
    ``usual`` elements in each thread, ``most`` where it is long. How many threads and vectors of
    ``width`` that takes, the sizes of a call say. ``turns``: a group has one row after
    the other. ``cluster``: the group is several blocks, which reach each other's shared memory,
    where there are no more rows than that."""

    value: int
    width: int
    usual: int
    most: int
    turns: bool = False
    cluster: int = 0


@frozen
class Clusters:
    """Blocks of a cluster reach each other's shared memory."""


@frozen
class Copies:
    """The GPU copies from memory into shared memory while threads go on."""


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
    Fits32 | Reciprocals | Aligned | MultipleOf | Positive | AtLeast | FewLeft | Overlapped
    | Whole
    | Busy | Idle
    | Grouped | Columns | Scanned | ScanSplit | Split | Held | Clusters | Copies | Long | Turns
    | AtMost
    | FewElements
    | FitsShared
    | KnownTrips | LargerThanCache | Covered
)  # fmt: skip
GUARDS: tuple[type[Any], ...] = get_args(Guard)


def judged(
    guard: Guard, schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int = grid.THREADS
) -> tuple[bool, str]:
    """Whether a call of these sizes satisfies ``guard`` for ``schedule``, in blocks of at most
    ``most`` threads, and why not where it does not."""
    match guard:
        case Fits32():
            return sizes.fits_32, "an index or an offset needs more than 32 bits"
        case Reciprocals():
            none = "a divisor has no reciprocal, or what it divides is too large"
            return bool(sizes.divisors), none
        case Aligned(array, bytes):
            if (array, bytes) not in sizes.aligned:
                return False, "it begins elsewhere"
            own = sizes.arrays[array]
            row = "".join(map(str, own.sizes[-1:]))
            return own.rows_are_multiples_of(bytes), f"its rows have {row} elements"
        case MultipleOf(value, number):
            low, high = sizes.values[value]
            whole = low == high and fits((low, high)) and low % number == 0
            return whole, _is(sizes.values[value])
        case Positive(value):
            return sizes.values[value][0] > 0, _is(sizes.values[value])
        case AtMost(value, number):
            return sizes.values[value][1] <= number, _is(sizes.values[value])
        case Turns(lower, upper, count):
            turns = sizes.values[upper][1] - sizes.values[lower][0]
            return turns >= count and None not in sizes.trips, f"there are {turns}"
        case LargerThanCache(arrays):
            large = _streams(arrays, sizes, machine.cache_bytes)
            return large, "the cache holds them, or much else is read"
        case Clusters():
            return machine.clusters, "blocks of this GPU do not reach each other's shared memory"
        case Copies():
            return machine.copies, "this GPU copies into shared memory through registers"
        case _ if None in sizes.trips:
            return False, "trip counts are known on the GPU only"
        case _:
            return _of_trips(guard, schedule, sizes, machine, most)


def _of_trips(
    guard: Guard, schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int
) -> tuple[bool, str]:
    trips = {axis: n or 0 for axis, n in zip(sizes.nest.axes, sizes.trips, strict=True)}
    total = math.prod(trips.values())
    match guard:
        case AtLeast(axis, count):
            return trips[axis] >= count, f"there are {trips[axis]}"
        case FewLeft(axis, length):
            n = trips[axis]
            return 4 * (n // length * length) >= 3 * n > 0, f"there are {n}"
        case Overlapped(axis, length):
            n = trips[axis]
            few = n >= length and 3 * (-(-n // length) * length) <= 4 * n
            return few, f"there are {n}"
        case Whole(axis, length):
            return trips[axis] % length == 0 < trips[axis], f"there are {trips[axis]}"
        case Busy(each) | Idle(each):
            threads, processors = math.prod(grid.along(schedule, sizes)), machine.processors
            busy = threads >= each * processors
            told = f"{threads} threads on {processors} multiprocessors"
            return busy == isinstance(guard, Busy), told
        case Grouped(threads):
            found, _ = grid.group(sizes.lengths, total)
            members = found if found <= grid.WARP else max(found, grid.SEVERAL)
            return members == threads, _so_many(found)
        case Held():
            return sharing(guard, sizes) != (0, 0), "registers do not hold a row"
        case Long():
            return sharing(guard, sizes) != (0, 0), _so_many(0)
        case Scanned():
            return scanning(guard, sizes) > 0, _so_many(0)
        case ScanSplit():
            return grid.scan_parts(schedule, sizes) > 1, "one block does as well"
        case Columns(_, limit) | Split(_, limit) if 0 < limit < total:
            return False, f"there are {total} iterations"
        case Columns(width):
            found, _ = grid.columns(sizes.lengths, grid.along(schedule, sizes))
            return found == width, _so_many(found)
        case Split(width):
            found, parts = grid.split(schedule, sizes)
            told = f"groups would have {found}" if parts > 1 else "one block does as well"
            return parts > 1 and found == width, told
        case FewElements(array) | FitsShared(array):
            count, bytes = sizes.count(array), sizes.count(array) * sizes.arrays[array].bytes
            few = isinstance(guard, FitsShared) or total >= max(16 * count, 1 << 14)
            return few and 0 < bytes <= grid.PRIVATE_BYTES, f"it has {bytes} bytes"
        case KnownTrips(limit):
            return not limit or total <= limit, f"there are {total} iterations"
        case _:
            left, most = grid.along(schedule, sizes), grid.limit(schedule, most)
            found = grid.shape(
                schedule, left, few=False, processors=machine.processors, most=most,
                limits=machine.blocks,
            )  # fmt: skip
            covered = isinstance(guard, Covered) and grid.covers(schedule, left, *found)
            return covered, "the grid has fewer threads"


def sharing(guard: Held | Long, sizes: Sizes) -> tuple[int, int]:
    """Threads that have an iteration together, and the vectors of each; (0, 0) if none have."""
    rows = math.prod(n or 0 for n in sizes.trips)
    if isinstance(guard, Long):
        return grid.in_strips(sizes.lengths, rows, guard.width, guard.usual)
    low, high = sizes.values[guard.value]
    if low != high:
        return 0, 0
    if guard.cluster:
        return grid.in_cluster(low, rows, guard.width, guard.most, guard.cluster)
    rows *= 1 + guard.turns  # which keep a group busy: it needs no more threads for that
    return grid.in_registers(low, rows, guard.width, guard.usual, guard.most, lone=not guard.turns)


def scanning(guard: Scanned, sizes: Sizes) -> int:
    """Threads that scan the loops of an iteration together; 0 if none do."""
    rows = math.prod(n or 0 for n in sizes.trips)
    return grid.scanned(sizes.lengths, rows, guard.turns, along=guard.along)


def _streams(arrays: tuple[str, ...], sizes: Sizes, cache: int) -> bool:
    written = read = 0
    for name, array in sizes.arrays.items():
        if name in arrays:
            written += math.prod(array.sizes) * array.bytes
        else:
            read += math.prod(array.sizes) * array.bytes
    return written > cache and 8 * read <= written


def _is(value: Interval) -> str:
    low, high = value
    return f"that is {low}" if low == high else "that is not known"


def _so_many(threads: int) -> str:
    return f"groups would have {threads}" if threads else "a thread does better alone"

"""What launching a kernel on a GPU needs to know of it: plain data, and the grid of a call.

Here nothing is compiled: a process whose kernels are all in the disk cache imports no more than
this.
"""

from __future__ import annotations

import itertools
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.interface import Check, Slot
from weft.codegen.intervals import Step
from weft.errors import WeftError
from weft.ir.trips import NUMBERS, trip_count

THREADS = 256  # of a block, at most, where nobody asks for more
WARP = 32
SEVERAL = 512  # as ``Variant.team``: a block of whole warps, of no more threads
MOST_MEMBERS, LEAST_MEMBERS = 1024, 8  # of a team; eight numbers of four bytes are read at once
_TOGETHER = 1 << 20  # threads of all teams, where there are not more iterations
_FEW = 32  # that many times fewer iterations, for teams that stand side by side
_SHORTEST = 16  # the longest loop of a team is not shorter
_EACH = 8  # iterations of that loop that each member has, at least
REDUCTION_BLOCKS = (
    1024  # at most; a function of the sizes alone, so that sums do not depend on the GPU
)
PRIVATE_BYTES = 16384  # of shared memory for a block's own copy of what it accumulates into
PROCESSORS = 128  # multiprocessors of a GPU that is not here
CACHE_BYTES = 50 << 20  # its second-level cache
_WAVES = 4  # blocks for each multiprocessor, below which blocks are made smaller
WORTH = 0.65  # of the loads have to be left, at most, for another axis to be taken
_AXES = 2  # at most, along which a thread has several iterations
_BUSY = 1024  # threads for each multiprocessor, below which none takes several iterations
_LIMITS = (2**31 - 1, 65535, 65535)  # blocks of a grid
Dims = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Jam:
    """``copies`` iterations along a dimension of the parallel loop, ``apart`` from each other:
    those between them belong to the neighbours of the thread that has them. Bit k of ``own`` says
    that each reads the k-th load for itself."""

    axis: int
    copies: int
    apart: int = 1
    own: int = 0

    @property
    def length(self) -> int:
        """Iterations of as many neighbours as there are ``apart``."""
        return self.copies * self.apart

    def trips(self, count: int) -> int:
        """How many iterations are left of so many."""
        return trip_count(NUMBERS, 0, count, self.length) * self.apart

    def fits(self, count: int) -> bool:
        """Whether few of so many iterations are left over."""
        return 4 * (count // self.length * self.length) >= 3 * count > 0


@dataclass(frozen=True, slots=True)
class InStep:
    """What a thread may have several iterations of: of ``jams`` those that save most of ``loads``
    loads, with ``most`` iterations at most."""

    jams: tuple[Jam, ...] = ()
    loads: int = 0
    most: int = 1

    def cost(self, taken: Sequence[Jam]) -> float:
        """Loads of an iteration, on average, if a thread has several along the axes of
        ``taken``."""
        return sum(
            1 / math.prod(jam.copies for jam in taken if not jam.own >> k & 1)
            for k in range(self.loads)
        )


@dataclass(frozen=True, slots=True)
class Mapping:
    """``order``: the parallel dimensions, the one along neighbouring threads (threadIdx.x) first.

    ``vector``: how many neighbours along it one thread takes; this needs ``aligned``, pairs of a
    memref argument and bytes: its address, and its rows, must be multiples of them. ``apart``: how
    far a thread's neighbours are from each other; a warp's threads lie between them if it is
    ``WARP``. ``shift``: neighbours of the first thread that lie before the first iteration.
    ``private``: the memref argument that each block accumulates into a copy of, or -1. ``sides``:
    threads of a block along x and y, where the sizes allow. ``lasting``: how many blocks there are
    for each multiprocessor, each of which goes on to other iterations; 0 for as many as are needed.
    ``block``: what the kernel's writer
    asks for instead: () nothing, (n,) so many threads, (x, y, z) just these sides. ``steps``:
    iterations that a thread may do in step. ``side``: of how many neighbours the longest loads and
    stores are, where they are next to each other. ``streamed``: the arguments that are written, if
    none of them is read. ``team``: first index and end (numbers of ``Facts.steps``) of loops that
    threads may share which have an iteration together, ``columns`` if those threads are not the
    neighbours in a warp: these have iterations that are neighbours.
    """

    order: tuple[int, ...]
    vector: int = 1
    aligned: tuple[tuple[int, int], ...] = ()
    private: int = -1
    sides: tuple[int, int] = (THREADS, 1)
    apart: int = 1
    shift: int = 0
    lasting: int = 0
    block: tuple[int, ...] = ()
    steps: InStep = InStep()
    side: int = 1
    streamed: tuple[int, ...] = ()
    team: tuple[tuple[int, int], ...] = ()
    columns: bool = False

    @property
    def threads(self) -> int:
        """The most threads that a block has."""
        return math.prod(self.block) if self.block else self.sides[0] * self.sides[1]


@dataclass(frozen=True, slots=True)
class Even:
    """A form for calls in which a thread's neighbours are next to each other, ``count`` at a time,
    from a multiple of that on, and then read and write whole vectors.

    ``aligned`` as in ``Mapping``. ``multiples``: steps that must be multiples of ``count``;
    ``divisors``: those of them that must be positive.
    """

    count: int
    aligned: tuple[tuple[int, int], ...]
    multiples: tuple[int, ...]
    divisors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a kernel: ``narrow`` indices of 32 bits, ``vector`` neighbours a thread,
    ``covers``
    if each thread has one iteration at most, ``private`` if blocks accumulate into shared
    memory, ``quick`` if divisors are multiplied by; ``jams`` are
    the places in ``Mapping.steps.jams`` of those that are carried out; ``even`` as in ``Even``,
    ``streams`` if what is written makes way first in the caches; ``team`` is the number of threads
    that have an iteration together, 0 for one, ``SEVERAL`` or ``MOST_MEMBERS`` for as many warps as
    there are; ``columns`` is how many such teams a block has side by side."""

    narrow: bool
    vector: int = 1
    covers: bool = True
    private: bool = False
    quick: bool = False
    jams: tuple[int, ...] = ()
    even: bool = False
    streams: bool = False
    team: int = 0
    columns: int = 0

    def __str__(self) -> str:
        words = [f"i{32 if self.narrow else 64}", f"v{self.vector}"]
        words += [n for n in ("covers", "private", "quick", "even", "streams") if getattr(self, n)]
        words += [f"jam{k}" for k in self.jams]
        words += [f"team{self.team}"] * bool(self.team)
        words += [f"columns{self.columns}"] * bool(self.columns)
        return "-".join(words)


@dataclass(frozen=True, slots=True)
class Facts:
    """What launching needs to know, whichever variant runs.

    ``steps`` compute the index arithmetic from the argument block (see ``narrow.evaluate``);
    ``bounds`` are, for each parallel dimension, the steps of lower bound, upper bound and step;
    ``needed`` the steps that must fit for the narrow form. ``divisions``: for each divisor that a
    call decides, its step and those of what is divided by it. ``mapping`` is None where one thread
    runs everything. ``kinds``: the combiners that the kernel reduces by. ``even``: None where
    there is no such form.
    """

    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[tuple[tuple[str | None, ...], tuple[str, ...]], ...]
    steps: tuple[Step, ...]
    bounds: tuple[tuple[int, int, int], ...]
    needed: tuple[int, ...]
    divisions: tuple[tuple[int, tuple[int, ...]], ...]
    mapping: Mapping | None
    kinds: tuple[str, ...]
    even: Even | None = None

    @property
    def serial(self) -> bool:
        return self.mapping is None


# -- the grid of a call


def shape(
    mapping: Mapping, trips: Sequence[int], *, vector: int, few: bool,
    processors: int = PROCESSORS, most: int = 1024,
) -> tuple[Dims, Dims]:  # fmt: skip
    """(grid, block) for loops of these trip counts, in the order of ``mapping.order``.

    ``vector``: neighbours that a thread takes. ``few``: no more blocks than a reduction may have;
    each then runs several iterations. ``processors``: multiprocessors that want work. ``most``:
    threads that a block may have. Zero iterations give a grid of one block.
    """
    counts = [max(n, 1) for n in trips]
    if vector > 1 and mapping.apart > 1:  # whole warps
        counts[0] = -(-counts[0] // (vector * mapping.apart)) * mapping.apart
    elif vector > 1:
        counts[0] = -(-(counts[0] + mapping.shift) // vector)
    sides = [counts[0], counts[1] if len(counts) > 1 else 1, math.prod(counts[2:])]
    block = _block(mapping, sides, full=few, processors=processors, most=most)
    blocks = [-(-side // b) for side, b in zip(sides, block, strict=True)]
    grid = [min(n, limit) for n, limit in zip(blocks, _LIMITS, strict=True)]
    if mapping.lasting and math.prod(grid) > (total := mapping.lasting * processors):
        grid[1] = min(grid[1], max(mapping.lasting // 2, total // grid[0]))
        grid[0] = min(grid[0], max(total // grid[1], 1))
    if few:
        left = REDUCTION_BLOCKS
        for axis in range(3):
            grid[axis] = min(grid[axis], left)
            left //= grid[axis]
    return (grid[0], grid[1], grid[2]), block


def jams(mapping: Mapping, trips: Sequence[int], processors: int) -> tuple[int, ...]:
    """The places of those ``mapping.steps.jams`` that pay for loops of these trip counts, and leave
    each multiprocessor enough threads."""
    steps = mapping.steps
    taken: list[int] = []
    left = list(trips)
    while len(taken) < _AXES:
        chosen = [steps.jams[place] for place in taken]
        copies = math.prod(jam.copies for jam in chosen)
        best, cost = -1, WORTH * steps.cost(chosen)
        for place, jam in enumerate(steps.jams):
            less = [jam.trips(n) if k == jam.axis else n for k, n in enumerate(left)]
            if (
                place not in taken and jam.fits(left[jam.axis])
                and copies * jam.copies <= steps.most
                and math.prod(less) >= _BUSY * processors
                and (found := steps.cost([*chosen, jam])) < cost
            ):  # fmt: skip
                best, cost = place, found
        if best < 0:
            break
        taken.append(best)
        axis = steps.jams[best].axis
        left[axis] = steps.jams[best].trips(left[axis])
    return tuple(taken)


def jam_choices(steps: InStep) -> list[tuple[int, ...]]:
    """All that ``jams`` may choose, for whatever sizes."""
    places = range(len(steps.jams))

    def pays(taken: tuple[int, ...]) -> bool:
        *before, _ = chosen = [steps.jams[place] for place in taken]
        copies = math.prod(jam.copies for jam in chosen)
        return copies <= steps.most and steps.cost(chosen) < WORTH * steps.cost(before)

    # The first one is the better one of the two: what does not fit then did not fit before.
    ranked = sorted(places, key=lambda place: steps.cost([steps.jams[place]]))
    return [how for n in (1, _AXES) for how in itertools.combinations(ranked, n) if pays(how)]


def team(lengths: Sequence[int | None], rows: int) -> tuple[int, int]:
    """Threads that have an iteration together whose shared loops are so long (None: not known
    before), if there are so many iterations, and iterations that a block has; (0, 0) if each thread
    does better alone. A function of the sizes alone, as sums depend on it."""
    wanted = _power(_TOGETHER // max(rows, 1) + 1) // 2
    if None in lengths:
        members = min(max(wanted, LEAST_MEMBERS), WARP)
    else:
        longest = max((n for n in lengths if n is not None), default=0)
        if longest < _SHORTEST:
            return 0, 0
        members = max(wanted, LEAST_MEMBERS if longest < 16 * _EACH else 2 * LEAST_MEMBERS)
        most = max(_power(-(-longest // _EACH)), LEAST_MEMBERS)
        members = min(members, most, MOST_MEMBERS)
    teams = 1 if members > WARP else THREADS // 2 // members  # of a block
    return (members, teams) if -(-rows // teams) <= _LIMITS[0] else (0, 0)


def columns(lengths: Sequence[int | None], trips: Sequence[int]) -> tuple[int, int]:
    """Teams of a block, side by side along the first index, and threads of each, where shared loops
    are so long and there are so many iterations; (0, 0) if each thread does better alone. A
    function of the sizes alone, as sums depend on it."""
    longest = max((n for n in lengths if n is not None), default=0)
    wanted = _TOGETHER // max(math.prod(trips), 1)
    if None in lengths or wanted < _FEW or longest < _FEW * 2:
        return 0, 0
    outer = math.prod(trips[1:])
    width = next(
        (n for n in (WARP, WARP // 2) if -(-trips[0] // n) * outer >= 2 * PROCESSORS), WARP // 4
    )
    members = min(_power(wanted + 1) // 2, _power(-(-longest // _EACH)), MOST_MEMBERS // width)
    return (width, members) if -(-trips[0] // width) * outer <= _LIMITS[0] else (0, 0)


def _block(mapping: Mapping, sides: list[int], *, full: bool, processors: int, most: int) -> Dims:
    """Threads along each side: powers of two, unless the kernel's writer said others."""
    if len(mapping.block) > 1:
        x, y, z = (*mapping.block, 1, 1)[:3]
        while full and x * y * z % WARP:  # whole warps, for their shuffles
            x += 1
        return x, y, z
    threads = min(mapping.threads, most) if not mapping.block else mapping.threads
    if full and not mapping.block:
        threads = THREADS
    width = min(mapping.sides[0], threads) if mapping.sides[1] > 1 else threads
    x = min(_power(sides[0]), width if sides[1] * sides[2] > 1 else threads)
    y = min(_power(sides[1]), threads // x)
    z = min(_power(sides[2]), threads // (x * y), 64)
    if full or x * y * z < min(threads, WARP):
        return threads // (y * z), y, z
    while not mapping.block and x * y * z > WARP:  # small blocks, so that there are enough
        if math.prod(-(-n // b) for n, b in zip(sides, (x, y, z), strict=True)) >= (
            _WAVES * processors
        ):
            break
        x, y, z = (x, y // 2, z) if y > 1 else (x, y, z // 2) if z > 1 else (x // 2, y, z)
    return x, y, z


def covers(mapping: Mapping, trips: Sequence[int], grid: Dims, block: Dims, vector: int) -> bool:
    """Whether every iteration has a thread of its own."""
    counts = [trips[0], trips[1] if len(trips) > 1 else 1, math.prod(trips[2:])]
    sides = [g * b for g, b in zip(grid, block, strict=True)]
    if vector > 1 and mapping.apart > 1:
        sides[0] = sides[0] // mapping.apart * mapping.apart * vector
    elif vector > 1:
        sides[0] = sides[0] * vector - mapping.shift
    return all(side >= n for side, n in zip(sides, counts, strict=True))


def joined(mapping: Mapping, grid: Dims, block: Dims) -> tuple[Dims, Dims]:
    """Two blocks of a row as one, where rows have an even number of the usual blocks."""
    if mapping.block or mapping.apart == 1 or block != (THREADS, 1, 1) or grid[0] % 2:
        return grid, block
    return (grid[0] // 2, grid[1], grid[2]), (2 * THREADS, 1, 1)


def streams(written: int, read: int, cache: int) -> bool:
    """Whether what a kernel writes should make way in the caches for what it reads: if it is too
    much for the second-level ``cache`` anyway and what is read is little (all in bytes)."""
    return written > cache and 8 * read <= written


def roomier(threads: int, registers: int) -> int:
    """Threads of a block, no more than these, of which a multiprocessor holds the most at once."""
    best = threads
    while registers and threads >= 2 * WARP:
        threads //= 2
        if _resident(threads, registers) > 1.1 * _resident(best, registers):
            best = threads
    return best


def _resident(threads: int, registers: int) -> int:
    """Threads at once: of 65536 registers, handed out to warps by 256, of 2048 threads, of 32
    blocks."""
    block = -(-registers * WARP // 256) * 256 * -(-threads // WARP)
    return min(65536 // block, 2048 // threads, 32) * threads


def _power(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


# -- division by multiplication

DIVISOR = struct.Struct("<iI")  # a word for each divisor, behind the arguments
DIVIDEND = 1 << 29  # what is divided lies between this and its negative


def reciprocal(divisor: int) -> tuple[int, int] | None:
    """(multiplier, shift) with ``((2 * n + 1) * multiplier) >> (32 + shift) == n // divisor`` for
    ``abs(n) <= DIVIDEND``; None where there is none.

    The multiplier m is 2**k / d rounded, with k = 31 + shift. (2 n + 1) m / 2**(k+1) is n / d, and
    half of 1 / d more; what rounding adds, (2 n + 1) (m d - 2**k) / (d 2**(k+1)), has to stay
    below the other half. (The idea is that of Granlund and Montgomery, "Division by invariant
    integers using multiplication", PLDI 1994.)
    """
    if not 0 < divisor < 1 << 31:
        return None
    k = max(31, 30 + (divisor - 1).bit_length())
    multiplier = min(((1 << k) + divisor // 2) // divisor, (1 << 31) - 1)
    rounding = (2 * DIVIDEND + 1) * abs(multiplier * divisor - (1 << k))
    return (multiplier, k - 31) if rounding < 1 << k else None


# -- architectures

# Architectures that LLVM 22 knows: a GPU that is newer than all of them runs the last one's PTX.
KNOWN = (70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121)
LEAST = 70


class UnsupportedArchitectureError(WeftError, ValueError):
    """A GPU that is too old, or a name that is none."""


def architecture(name: str | tuple[int, int]) -> str:
    """``sm_90`` for "sm_90", "90" or a capability (9, 0): the newest known one that runs there.

    Raises ``UnsupportedArchitectureError``.
    """
    if isinstance(name, tuple):
        number = 10 * name[0] + name[1]
    else:
        match = re.fullmatch(r"(?:sm_|compute_)?(\d+)[af]?", name)
        if match is None:
            raise UnsupportedArchitectureError(
                f"{name!r} is no architecture: write it like 'sm_90'"
            )
        number = int(match.group(1))
    usable = [k for k in KNOWN if k <= number]
    if not usable:
        raise UnsupportedArchitectureError(
            f"sm_{number} is too old: kernels need capability {LEAST // 10}.{LEAST % 10} or more"
        )
    return f"sm_{usable[-1]}"

"""What launching a kernel on a GPU needs to know of it: plain data, and the grid of a call.

Here nothing is compiled: a process whose kernels are all in the disk cache imports no more than
this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.codegen.interface import Check, Slot
from weft.codegen.intervals import Step
from weft.errors import WeftError

THREADS = 256  # of a block
WARP = 32
REDUCTION_BLOCKS = (
    1024  # at most; a function of the sizes alone, so that sums do not depend on the GPU
)
PRIVATE_BYTES = 16384  # of shared memory for a block's own copy of what it accumulates into
_LIMITS = (2**31 - 1, 65535, 65535)  # blocks of a grid
Dims = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Mapping:
    """``order``: the parallel dimensions, the one along neighbouring threads (threadIdx.x) first.

    ``vector``: how many neighbours along it one thread takes; this needs ``aligned``, pairs of a
    memref argument and bytes: its address, and its rows, must be multiples of them. ``private``:
    the memref argument that each block accumulates into a copy of, or -1. ``block``: a wish of the
    kernel's writer for the number of threads, or 0. ``loads``: something is read along the rows of
    neighbouring outer iterations, so that square blocks find it in the cache. ``apart``: how far a
    thread's neighbours are from each other; a warp's threads lie between them if it is ``WARP``.
    """

    order: tuple[int, ...]
    vector: int = 1
    aligned: tuple[tuple[int, int], ...] = ()
    private: int = -1
    block: int = 0
    square: bool = True
    apart: int = 1

    @property
    def threads(self) -> int:
        """The most threads that a block has."""
        return self.block or THREADS


@dataclass(frozen=True, slots=True)
class Variant:
    """One form of a kernel: ``narrow`` indices of 32 bits, ``vector`` neighbours a thread,
    ``covers``
    if each thread has one iteration at most, ``private`` if blocks accumulate into shared
    memory."""

    narrow: bool
    vector: int = 1
    covers: bool = True
    private: bool = False

    def __str__(self) -> str:
        words = [f"i{32 if self.narrow else 64}", f"v{self.vector}"]
        return "-".join(words + ["covers"] * self.covers + ["private"] * self.private)


@dataclass(frozen=True, slots=True)
class Facts:
    """What launching needs to know, whichever variant runs.

    ``steps`` compute the index arithmetic from the argument block (see ``narrow.evaluate``);
    ``bounds`` are, for each parallel dimension, the steps of lower bound, upper bound and step;
    ``needed`` the steps that must fit for the narrow form. ``mapping`` is None where one thread
    runs everything. ``kinds``: the combiners that the kernel reduces by.
    """

    symbol: str
    slots: tuple[Slot, ...]
    checks: tuple[Check, ...]
    prints: tuple[Any, ...]
    steps: tuple[Step, ...]
    bounds: tuple[tuple[int, int, int], ...]
    needed: tuple[int, ...]
    mapping: Mapping | None
    kinds: tuple[str, ...]

    @property
    def serial(self) -> bool:
        return self.mapping is None


# -- the grid of a call


def shape(mapping: Mapping, trips: Sequence[int], *, vector: int, few: bool) -> tuple[Dims, Dims]:
    """(grid, block) for loops of these trip counts, in the order of ``mapping.order``.

    ``vector``: neighbours that a thread takes. ``few``: no more blocks than a reduction may have;
    each then runs several iterations. Zero iterations give a grid of one block.
    """
    counts = [max(n, 1) for n in trips]
    if vector > 1 and mapping.apart > 1:  # whole warps
        counts[0] = -(-counts[0] // (vector * mapping.apart)) * mapping.apart
    else:  # one more where rows do not begin aligned
        counts[0] = -(-counts[0] // vector) + (vector > 1)
    sides = [counts[0], counts[1] if len(counts) > 1 else 1, 1]
    for count in counts[2:]:
        sides[2] *= count
    block = _block(sides, mapping.block or THREADS, square=len(counts) > 1, full=few)
    blocks = [-(-side // b) for side, b in zip(sides, block, strict=True)]
    grid = [min(n, limit) for n, limit in zip(blocks, _LIMITS, strict=True)]
    if few:
        left = REDUCTION_BLOCKS
        for axis in range(3):
            grid[axis] = min(grid[axis], left)
            left //= grid[axis]
    return (grid[0], grid[1], grid[2]), block


def _block(sides: list[int], threads: int, *, square: bool, full: bool) -> Dims:
    """Threads along each side: powers of two, at least a warp's width along x where there is
    one."""
    width = min(threads, 64) if square else threads
    x = min(_power(sides[0]), width if sides[1] * sides[2] > 1 else threads)
    y = min(_power(sides[1]), threads // x)
    z = min(_power(sides[2]), threads // (x * y), 64)
    if full or x * y * z < min(threads, 32):  # whole warps, for their shuffles
        x = threads // (y * z)
    return x, y, z


def _power(n: int) -> int:
    """The smallest power of two that is not below ``n``."""
    return 1 << max(n - 1, 0).bit_length()


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

"""The grid of a call: how many blocks of how many threads a schedule asks for, given the sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.ir.trips import NUMBERS, trip_count
from weft.schedule.language import (
    Bind,
    Block,
    BlockDim,
    Cooperate,
    KeepRow,
    LongestFirst,
    Persist,
    Privatize,
    Scan,
    Schedule,
    SplitReduction,
    Stage,
    StreamingStores,
    StripMine,
    UnrollJam,
    Vectorize,
    only,
    several,
)
from weft.schedule.machine import GpuMachine
from weft.schedule.recurrences import MOST_JOINT
from weft.schedule.sizes import Sizes
from weft.values import frozen

THREADS = 256  # of a block, at most, where nobody asks for more
WARP = 32
SEVERAL = 512  # as ``Cooperate.threads``: a block of whole warps, of no more threads
MOST_CLUSTERED = 4096  # threads of a group of several blocks
MOST_MEMBERS, LEAST_MEMBERS = 1024, 8  # of a group; eight numbers of four bytes are read at once
UNKNOWN = 1024  # blocks, where the trip counts are known on the GPU only
PRIVATE_BYTES = 16384  # of shared memory for a block's own copy of what it accumulates into
_FAR = 1 << 15  # elements of a row that many blocks would not find in caches again
_SMALL = 8192  # iterations of a reduction that one block does alone
_TOGETHER = 1 << 20  # threads of all groups, where there are not more iterations
_AT_ONCE = 1 << 17  # threads that are to have rows in registers, where rows are few
_MOST_KEPT = 32  # elements of a row in a thread's registers
_LEAST_CLUSTERS = 4
_FEW = 32  # that many times fewer iterations, for groups that stand side by side
_SHORTEST = 16  # the longest loop of a group is not shorter
LEAST_TURNS = 8  # iterations of that loop that each member has, at least
REDUCTION_BLOCKS = (
    1024  # at most; a function of the sizes alone, so that sums do not depend on the GPU
)
SPLIT_THREADS = 512  # of a block that has iterations side by side together with others
ROW_THREADS = 256  # of one that has a single one
# Loops of some hundred or thousand turns, and so many iterations that few blocks share each: on an
# H200 sums of columns of 1000 x 20,001 take .028 ms (a block alone: .048), of 2000 x 10,000 .029
# (.058), of 500 x 10,000 .0095 (.0116). Smaller ones were not measured. Where these are more blocks
# than run at once, of half as many threads each all do (2000 x 30,001: .0673; .0711).
BESIDE_THREADS = 256
_AT_ONCE_BESIDE = 1 << 10
_RUNNING = 16 * 132  # blocks of half as many threads
_PARTS_BESIDE = 8
_LEAST_SUM, _LONG_SUM = 128, 1024  # turns of a part, and of one of more than run at once
# So many iterations side by side, of so few turns, do best with a thread each: columns of
# 129 x 32,600 take .0066 ms on an H200 (.0140 with 32 threads each), of 300 x 20,000 .0093 (.0113),
# of 256 x 10,000 .0076 (.0089); of 500 x 10,000 .0120 (.0095), of 320 x 8192 .0084 (.0071).
_WIDE, _FLAT = 9 << 10, 320
_SUMMED = 1 << 22
MOST_PARTS = 1024  # of a loop that blocks share
_SPLIT = 1 << 18  # threads of all parts of all iterations
_LEAST_PARTS = 8  # of loops that blocks scan together: turns are read twice
# For each part and value: its row of a map, what is carried up to the part, and behind.
SCAN_WORDS = MOST_JOINT + 3
_TURNS = 32  # of a member of one block, above which several share the loop
_SCANNING = 512  # threads of a group that scans, at most
_WAVES = 4  # blocks for each multiprocessor, below which blocks are made smaller
_MOST_BLOCKS = 2**31 - 1  # of a grid, along x
Dims = tuple[int, int, int]


def grid(schedule: Schedule, sizes: Sizes, machine: GpuMachine, most: int) -> tuple[Dims, Dims]:
    """Blocks of the grid and threads of a block. ``most``: threads that a block may have."""
    binds = several(schedule, Bind)
    if not binds:
        return (1, 1, 1), (1, 1, 1)
    if None in sizes.trips:
        asked = only(schedule, BlockDim)
        x, y, z = (*asked.sides, 1, 1)[:3] if asked else (threads_of(schedule), 1, 1)
        return (UNKNOWN, 1, 1), (x, y, z)
    trips = along(schedule, sizes)
    together = only(schedule, Cooperate)
    if isinstance(together, SplitReduction):
        width = max(together.columns, 1)
        parts = together.parts or max(split(schedule, sizes)[1], 2)
        members = together.threads // width
        return (-(-trips[0] // width) * math.prod(trips[1:]), parts, 1), (width, members, 1)
    if isinstance(together, Scan) and together.parts != 1:
        parts = together.parts or max(scan_parts(schedule, sizes), 2)
        return (math.prod(trips), parts, 1), (together.threads, 1, 1)
    if together is not None and together.columns:
        width, members = columns(sizes.lengths, trips)
        each = together.threads // together.columns
        members = min(members, each) if width == together.columns else each
        width = together.columns
        return (-(-trips[0] // width) * math.prod(trips[1:]), 1, 1), (width, members, 1)
    if together is not None:
        members = group(sizes.lengths, math.prod(trips))[0]
        if members <= WARP or together.threads <= WARP or is_exact(schedule):
            members = together.threads
        members = min(members, together.threads)
        rows = groups(members) if machine.lanes else 1
        if (blocks := cluster(members)) > 1:
            return (math.prod(trips) * blocks, 1, 1), (members // blocks, 1, 1)
        return (-(-math.prod(trips) // rows), 1, 1), (members, rows, 1)
    kinds = sizes.nest.kinds
    few = bool(kinds) or only(schedule, Privatize) is not None
    blocks, block = shape(
        schedule, trips, few=few, processors=machine.processors, most=limit(schedule, most),
        limits=machine.blocks,
    )  # fmt: skip
    if only(schedule, LongestFirst) is not None:
        blocks = (blocks[0], blocks[2], blocks[1])
    if kinds and math.prod(trips) <= _SMALL:
        blocks = (1, 1, 1)
    if most > THREADS and only(schedule, StreamingStores) is not None:
        return joined(schedule, blocks, block)
    return blocks, block


@frozen
class Left:
    """What blocks leave to further stages: so many ``words``, in ``parts``. ``last``: blocks and
    threads of the last stage."""

    parts: int
    words: int
    last: tuple[Dims, Dims]


def left_by(schedule: Schedule, blocks: Dims, block: Dims, sizes: Sizes) -> Left | None:
    """What a grid leaves; None where nothing comes behind it."""
    step, kinds = only(schedule, SplitReduction), len(sizes.nest.kinds)
    scans = only(schedule, Scan)
    if scans is not None and scans.parts != 1:
        carried = sum(count for name, count, _ in sizes.nest.splits if name in scans.loops)
        return Left(blocks[1], SCAN_WORDS * carried * math.prod(blocks), (blocks, block))
    if step is not None:
        carried = [count for name, count, _ in sizes.nest.splits if name in step.loops]
        words = blocks[1] * sum(carried) * math.prod(along(schedule, sizes))
        return Left(blocks[1], words, ((blocks[0], 1 if all(carried) else blocks[1], 1), block))
    parts = math.prod(blocks)
    if parts == 1 or not kinds:
        return None
    return Left(parts, parts * kinds, ((1, 1, 1), (THREADS, 1, 1)))


def along(schedule: Schedule, sizes: Sizes) -> list[int]:
    """The trip counts, all of which are known, that are left for threads: along x first."""
    left = dict(zip(sizes.nest.axes, sizes.trips, strict=True))
    for jam in several(schedule, UnrollJam):
        left[jam.axis] = left_over(jam, left[jam.axis] or 0)
    return [left[bind.axis] or 0 for bind in several(schedule, Bind)]


def left_over(jam: UnrollJam, count: int) -> int:
    """How many iterations are left of so many."""
    near = max(jam.stride, jam.overlap)
    return trip_count(NUMBERS, 0, count, jam.copies * near) * near


def limit(schedule: Schedule, most: int) -> int:
    """The most threads of a block, where ``most`` are possible: no more than usual, but where a
    person asked for more."""
    asked = threads_of(schedule)
    return asked if asked > THREADS <= most else min(most, THREADS)


def is_exact(schedule: Schedule) -> bool:
    """Whether a group has just the threads that ``Cooperate`` says."""
    return any(only(schedule, kind) is not None for kind in (KeepRow, StripMine, Scan))


def in_registers(
    length: int, rows: int, width: int, usual: int, most: int, *, lone: bool = True
) -> tuple[int, int]:
    """Threads that have a row of so many elements in registers together, and vectors of each, if
    there are so many rows; (0, 0) if that is too much, or a thread does better alone. ``lone``: a
    group has one row. A function of the sizes alone, as sums depend on it."""
    if length < _SHORTEST or length % width:
        return 0, 0
    vectors = length // width
    members = max(_power(-(-vectors * width // usual)), LEAST_MEMBERS)
    in_warp = _rounded(-(-vectors // WARP)) * width
    if WARP < members <= 2 * WARP and in_warp <= min(most, _MOST_KEPT):
        members = WARP  # nobody waits for other warps
    enough = _AT_ONCE // 4 if members == WARP and lone else _AT_ONCE
    wanted = min(_power(enough // max(rows, 1) + 1) // 2, _power(length // 4), MOST_MEMBERS)
    members = max(min(members, MOST_MEMBERS), wanted)
    for threads in (members, members // 2):
        each = _rounded(-(-vectors // threads))
        # More threads have fewer registers each.
        held = min(most if threads < MOST_MEMBERS else most // 3, _MOST_KEPT)
        blocks = -(-rows // groups(threads))
        if each * width <= held and threads >= LEAST_MEMBERS and blocks <= _MOST_BLOCKS:
            return threads, each
    return 0, 0


def in_cluster(length: int, rows: int, width: int, most: int, limit: int) -> tuple[int, int]:
    """Likewise, threads of several blocks, and vectors of each; (0, 0) if they are too few for
    that, or there are more rows than the ``limit``, which keep all multiprocessors busy, or so few
    that more blocks do better (see ``split``)."""
    members = max(_power(-(-length // _MOST_KEPT)), 2 * MOST_MEMBERS)
    each = _rounded(-(-(length // width) // members))
    if length % width or members > MOST_CLUSTERED or not _LEAST_CLUSTERS <= rows <= limit:
        return 0, 0
    return (members, each) if each * width <= min(most, _MOST_KEPT) else (0, 0)


def cluster(threads: int) -> int:
    """Blocks that a group of so many threads has."""
    return 1 if threads <= MOST_MEMBERS else threads // SEVERAL


def _rounded(n: int) -> int:
    """One of few numbers, not below ``n`` and hardly larger, so that there are few forms."""
    step = max(_power(n) // 4, 1)
    return -(-n // step) * step


def in_strips(
    lengths: Sequence[int | None], rows: int, width: int, usual: int
) -> tuple[int, int]:  # fmt: skip
    """Threads that have an iteration together, and vectors that each loads at a time; (0, 0) if a
    thread, or several blocks (see ``split``), do better. A function of the sizes alone."""
    members, _ = group(lengths, rows)
    if members == 0 or None in lengths or members * rows < _AT_ONCE // 2:
        return 0, 0
    if max(n or 0 for n in lengths) >= _FAR:  # few rows at once, so that caches hold them
        members = MOST_MEMBERS
    vectors = -(-max(n or 0 for n in lengths) // (members * width))
    return members, max(min(vectors, usual // width), 1)


def scanned(
    lengths: Sequence[int | None], rows: int, turns: int, *, along: bool
) -> int:  # fmt: skip
    """Threads that scan the loops of an iteration together, each so many turns at a time; 0 if a
    thread does better alone. ``along``: neighbouring turns are neighbours in memory, and
    neighbouring iterations are not. A function of the sizes alone, as sums depend on it."""
    longest = max((n or 0 for n in lengths), default=0)
    shortest = _SHORTEST * turns if along else _SHORTEST * WARP
    if None in lengths or longest < shortest or rows > (_MOST_BLOCKS if along else _FEW * WARP):
        return 0
    wanted = min(_AT_ONCE // max(rows, 1), -(-longest // turns), _SCANNING)
    return max(_power(wanted + 1) // 2, WARP)


def scan_parts(schedule: Schedule, sizes: Sizes) -> int:
    """How many blocks scan the loops of an iteration together; 1 if one does as well. A function of
    the sizes alone, as sums depend on it."""
    step = only(schedule, Scan)
    assert step is not None
    lengths, rows = sizes.spans(step.loops), math.prod(along(schedule, sizes))
    if None in lengths:
        return 1
    chunks = max((n or 0 for n in lengths), default=0) // (step.threads * step.turns)
    parts = min(_SPLIT // (step.threads * max(rows, 1)), chunks // 2, MOST_PARTS)
    # Blocks that have whole rows keep more of the machine busy, the more rows there are.
    return parts if parts >= _LEAST_PARTS and chunks >= 2 * _LEAST_PARTS + rows // 2 else 1


def groups(members: int) -> int:
    """Groups of so many threads that a block has."""
    return 1 if members > WARP else THREADS // 2 // members


def threads_of(schedule: Schedule) -> int:
    """The most threads that a block has, but for groups of threads."""
    asked, block, staged = only(schedule, BlockDim), only(schedule, Block), only(schedule, Stage)
    if staged is not None:
        return staged.threads
    if asked is not None:
        return math.prod(asked.sides)
    return block.x * block.y if block is not None else 1


def shape(
    schedule: Schedule, trips: Sequence[int], *, few: bool, processors: int, most: int = 1024,
    limits: Dims = GpuMachine.blocks,
) -> tuple[Dims, Dims]:  # fmt: skip
    """(grid, block) for loops of these trip counts, along x first.

    ``few``: no more blocks than a reduction may have; each then runs several iterations.
    ``processors``: multiprocessors that want work. ``limits``: blocks along each side, at most.
    Zero iterations give a grid of one block.
    """
    counts = [max(n, 1) for n in trips]
    vector = only(schedule, Vectorize)
    if vector is not None and vector.stride > 1:  # whole warps
        counts[0] = -(-counts[0] // (vector.copies * vector.stride)) * vector.stride
    elif vector is not None:
        counts[0] = -(-(counts[0] + vector.peel) // vector.copies)
    sides = [counts[0], counts[1] if len(counts) > 1 else 1, math.prod(counts[2:])]
    block = _block(schedule, sides, full=few, processors=processors, most=most)
    blocks = [-(-side // b) for side, b in zip(sides, block, strict=True)]
    found = [min(n, limit) for n, limit in zip(blocks, limits, strict=True)]
    lasting = only(schedule, Persist)
    if lasting is not None and math.prod(found) > (total := lasting.blocks * processors):
        found[1] = min(found[1], max(lasting.blocks // 2, total // found[0], 1))
        found[0] = min(found[0], max(total // found[1], 1))
    if few:
        left = REDUCTION_BLOCKS
        for axis in range(3):
            found[axis] = min(found[axis], left)
            left //= found[axis]
    return (found[0], found[1], found[2]), block


def group(lengths: Sequence[int | None], rows: int) -> tuple[int, int]:
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
        members = max(wanted, LEAST_MEMBERS if longest < 16 * LEAST_TURNS else 2 * LEAST_MEMBERS)
        most = max(_power(-(-longest // LEAST_TURNS)), LEAST_MEMBERS)
        members = min(members, most, MOST_MEMBERS)
    return (members, groups(members)) if -(-rows // groups(members)) <= _MOST_BLOCKS else (0, 0)


def columns(lengths: Sequence[int | None], trips: Sequence[int]) -> tuple[int, int]:
    """Teams of a block, side by side along the first index, and threads of each, where shared loops
    are so long and there are so many iterations; (0, 0) if each thread does better alone. A
    function of the sizes alone, as sums depend on it."""
    longest = max((n for n in lengths if n is not None), default=0)
    wanted = _TOGETHER // max(math.prod(trips), 1)
    if None in lengths or wanted < _FEW or longest < _FEW * 2 or _flat(longest, trips):
        return 0, 0
    outer = math.prod(trips[1:])
    width = next(
        (n for n in (WARP, WARP // 2) if -(-trips[0] // n) * outer >= 2 * GpuMachine().processors),
        WARP // 4,
    )
    members = min(
        _power(wanted + 1) // 2, _power(-(-longest // LEAST_TURNS)), MOST_MEMBERS // width
    )
    return (width, members) if -(-trips[0] // width) * outer <= _MOST_BLOCKS else (0, 0)


def _flat(longest: int, trips: Sequence[int]) -> bool:
    """Whether iterations are so many, and their loops so short, that a thread has each."""
    return trips[0] >= _WIDE and longest <= _FLAT


def split(schedule: Schedule, sizes: Sizes) -> tuple[int, int]:
    """Groups of a block, side by side along the first index (0 for those that are not), and how
    many blocks share an iteration; no blocks if one does as well. A function of the sizes alone."""
    step, trips = only(schedule, SplitReduction), along(schedule, sizes)
    assert step is not None
    lengths = sizes.spans(step.loops)
    width = _side_by_side(trips[0]) if step.columns else 0
    wide = max(width, 1)
    blocks = -(-trips[0] // wide) * math.prod(trips[1:])
    longest = max((n for n in lengths if n is not None), default=0)
    if step.columns == WARP == width and step.threads in (BESIDE_THREADS, BESIDE_THREADS // 2):
        parts = _parts_beside(blocks, longest)
        long = longest * math.prod(trips) >= _SUMMED and parts > 1 and not _flat(longest, trips)
        fits = step.threads < BESIDE_THREADS or parts * blocks <= _AT_ONCE_BESIDE
        return width, parts * (long and fits and None not in lengths)
    if None in lengths or longest * min(wide, LEAST_MEMBERS) < _TURNS * MOST_MEMBERS:
        return width, 0
    most = longest * wide // (step.threads * LEAST_TURNS)
    return width, min(max(_SPLIT // (step.threads * max(blocks, 1)), 1), most)


def _parts_beside(blocks: int, longest: int) -> int:
    """How many parts loops have, the longest of ``longest`` turns, that share so many ``blocks``
    each: as many as run at once, or more, of long ones, that leave fewer processors idle."""
    once = min(_RUNNING // max(blocks, 1), _PARTS_BESIDE, longest // _LEAST_SUM)
    several = range(once, max(once, min(_PARTS_BESIDE, longest // _LONG_SUM)) + 1)
    busy = {n: n * blocks / (-(-n * blocks // _RUNNING) * _RUNNING) for n in several if n * blocks}
    return min((n for n in busy if busy[n] > max(busy.values()) - 0.1), default=0)


def _side_by_side(count: int) -> int:
    """How many of so many columns a block has: a power of two that leaves few threads idle."""
    if count <= WARP:
        return _power(count)
    return min((WARP, WARP // 2, WARP // 4), key=lambda n: (-(-count // n) * n * 4 // count, -n))


def _block(schedule: Schedule, sides: list[int], *, full: bool, processors: int, most: int) -> Dims:
    """Threads along each side: powers of two, unless the kernel's writer said others."""
    asked, usual = only(schedule, BlockDim), only(schedule, Block)
    if only(schedule, Stage) is not None:
        return threads_of(schedule), 1, 1
    assert usual is not None
    if asked is not None and len(asked.sides) > 1:
        x, y, z = (*asked.sides, 1, 1)[:3]
        while full and x * y * z % WARP:  # whole warps, for their shuffles
            x += 1
        return x, y, z
    threads = threads_of(schedule) if asked else min(threads_of(schedule), most)
    if full and not asked:
        threads = THREADS
    width = min(usual.x, threads) if usual.y > 1 else threads
    x = min(_power(sides[0]), width if sides[1] * sides[2] > 1 else threads)
    y = min(_power(sides[1]), threads // x)
    z = min(_power(sides[2]), threads // (x * y), 64)
    if full or x * y * z < min(threads, WARP):
        return threads // (y * z), y, z
    while not asked and x * y * z > WARP:  # small blocks, so that there are enough
        if math.prod(-(-n // b) for n, b in zip(sides, (x, y, z), strict=True)) >= (
            _WAVES * processors
        ):
            break
        x, y, z = (x, y // 2, z) if y > 1 else (x, y, z // 2) if z > 1 else (x // 2, y, z)
    return x, y, z


def covers(schedule: Schedule, trips: Sequence[int], grid: Dims, block: Dims) -> bool:
    """Whether every iteration has a thread of its own."""
    vector = only(schedule, Vectorize)
    counts = [trips[0], trips[1] if len(trips) > 1 else 1, math.prod(trips[2:])]
    sides = [g * b for g, b in zip(grid, block, strict=True)]
    if vector is not None and vector.stride > 1:
        sides[0] = sides[0] // vector.stride * vector.stride * vector.copies
    elif vector is not None:
        sides[0] = sides[0] * vector.copies - vector.peel
    return all(side >= n for side, n in zip(sides, counts, strict=True))


def joined(schedule: Schedule, grid: Dims, block: Dims) -> tuple[Dims, Dims]:
    """Two blocks of a row as one, where rows have an even number of the usual blocks."""
    vector = only(schedule, Vectorize)
    scattered = vector is not None and vector.stride > 1
    if only(schedule, BlockDim) or not scattered or block != (THREADS, 1, 1) or grid[0] % 2:
        return grid, block
    return (grid[0] // 2, grid[1], grid[2]), (2 * THREADS, 1, 1)


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

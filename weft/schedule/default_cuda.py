"""The schedules that a loop may run by on a GPU: the one place that decides it.

``candidates`` looks at a function's accesses once, when it is compiled: which parallel index runs
along neighbouring threads, how many neighbours a thread takes, which iterations share loads, which
loops threads may share, and what may be kept in shared memory. Each call takes the first candidate
whose guards hold (``schedule.choose``); code generation applies its steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.index.access import Access, accesses
from weft.index.expression import number
from weft.ir.core import Function, Op, Value, walk
from weft.ir.views import For, Parallel, constant_of, is_constant
from weft.ir.views import memory as access_of
from weft.schedule.choose import Candidate
from weft.schedule.cooperative_loops import Team
from weft.schedule.copy_ahead import copies_of
from weft.schedule.grid import (
    BESIDE_THREADS,
    LEAST_MEMBERS,
    MOST_CLUSTERED,
    MOST_MEMBERS,
    ROW_THREADS,
    SEVERAL,
    SPLIT_THREADS,
    THREADS,
    WARP,
)
from weft.schedule.guards import (
    Aligned,
    AtLeast,
    Busy,
    Clusters,
    Columns,
    Copies,
    Covered,
    FewElements,
    FewLeft,
    Fits32,
    Grouped,
    Guard,
    Held,
    Idle,
    LargerThanCache,
    Long,
    MultipleOf,
    Positive,
    Reciprocals,
    Split,
    Whole,
)
from weft.schedule.jam_staged import jams_of
from weft.schedule.language import (
    Align,
    Bind,
    BlockDim,
    Cooperate,
    CopyAhead,
    Cover,
    FastDivision,
    IndexWidth,
    KeepRow,
    Persist,
    Prefetch,
    Privatize,
    Schedule,
    SharedArrays,
    SplitReduction,
    Stage,
    Step,
    StreamingStores,
    StripMine,
    Unroll,
    UnrollJam,
    Vectorize,
    only,
)
from weft.schedule.legal import RULES
from weft.schedule.nest import LoopNest, Nest, axes_of, loops_of
from weft.schedule.prefetch import ahead, only_sums
from weft.schedule.rows import VECTOR_BYTES, find
from weft.schedule.scan import scanned
from weft.schedule.shared_loads import (
    UnrollJamCandidates,
    WindowTile,
    unroll_jam_candidates,
    window_tiles,
)
from weft.schedule.stage import staged, stored_rows
from weft.schedule.tiles import in_tiles, placed
from weft.schedule.unroll import for_registers
from weft.values import frozen

MOST_COPIES = 512  # operations in the unrolled neighbours of one thread
_WORDS_AHEAD = 32  # that a thread has loaded ahead
_WORDS_OF_SEVERAL = 64  # where its turns are several of the loop that it came from
_TURNS_AHEAD, _LEAST_AHEAD = 16, 4  # of a loop, at most and at least
_MOST_AHEAD = 2048  # operations in the unrolled turns of all loops
_LONG = 48  # operations of a turn
_IDLE = 1024  # threads for each multiprocessor, from which on others run while one waits
# Of so many iterations beside one another, or more, whose turns a thread loads ahead, each does
# better alone: on an H200 sums of products in 24,576 columns of 512 take .0347 ms so (.0383), of
# exponentials .0266 (.0322); in 20,001 columns of 1000 .0615 (.0518) and .0518 (.0422).
_MOST_SPLIT = 22 << 10
_CLUSTERS = 64  # rows, at most, that clusters have
# Likewise, where these stage what all of them read: of fewer, each does better with one iteration.
_BUSY_STAGING = 96
_BUSY = 1024  # threads for each multiprocessor, below which none takes several iterations


@frozen
class Divisible:
    """What makes subscripts with quotients and remainders whole vectors: steps of the nest's
    program that must be multiples of the vector's length, those of them that must be positive, and
    the bytes that each accessed argument must be aligned to."""

    multiples: tuple[int, ...]
    divisors: tuple[int, ...]
    aligned: tuple[tuple[int, int], ...]


@frozen
class Vector:
    """How many neighbours a thread takes along x, and how: see ``Vectorize``. ``aligned``: of each
    argument that is accessed in whole vectors, their bytes."""

    copies: int = 1
    width: int = 1
    stride: int = 1
    peel: int = 0
    aligned: tuple[tuple[int, int], ...] = ()


@frozen
class Picks:
    """What a loop's accesses ask for. ``order``: the parallel dimensions, that along neighbouring
    threads first. ``block``: threads of a block along x and y. ``asked``: what the kernel's writer
    asks for instead. ``private``: the argument that blocks accumulate into copies of, or -1.
    ``streamed``: the arguments that are written, if none of them is read. ``ahead``: what serial
    loops may load before its turn, where each multiprocessor gets fewer threads than ``idle``.
    ``unrolled``: the loops that would keep local arrays in memory. ``staged``: the loops whose
    turns read much that neighbours read too, where there are such arrays or turns are several.
    ``rows``: the arguments that they store whole vectors of. ``copies``: the loops that load for
    later turns beside these; ``jammed``: these steps, where a thread has two iterations."""

    order: tuple[int, ...]
    vector: Vector
    block: tuple[int, int]
    asked: tuple[int, ...]
    private: int
    jams: UnrollJamCandidates
    streamed: tuple[int, ...]
    ahead: tuple[Prefetch, ...]
    idle: int
    unrolled: tuple[Unroll, ...]
    staged: tuple[Stage | SharedArrays, ...]
    rows: tuple[int, ...]
    copies: tuple[CopyAhead, ...] = ()
    jammed: Schedule = ()
    tiles: Sequence[WindowTile] = ()


def picks(function: Function, parallel: Op) -> Picks:
    """What the accesses of ``parallel``, the function's outermost loop, ask for."""
    ivs = Parallel(parallel).indices
    found = [
        a for a in accesses(function) if any(loop.iv in ivs for loop in a.loops) and not a.local
    ]
    scores = [_score(found, iv) for iv in ivs]
    # Ties go to the last index, as loops over row-major arrays are written.
    fastest = max(range(len(ivs)), key=lambda k: (scores[k], k))
    order = (fastest, *(k for k in reversed(range(len(ivs))) if k != fastest))
    vector = _vector(function, parallel, found, fastest)
    block = _sides(found, [ivs[k] for k in order])
    private = _private(function, parallel)
    asked = _asked(tuple(function.attrs.get("block_dim", ())), order)
    alone = vector.copies > 1 or private >= 0 or block == _SQUARE or bool(asked)
    written_out = for_registers(parallel)
    alone |= bool(written_out)
    jams = UnrollJamCandidates() if alone else unroll_jam_candidates(function, parallel, fastest)
    if jams.unshared and block[1] == 1:
        block = _STEADY
    stages = () if asked else staged(function, parallel, fastest, written_out)
    streamed = vector.copies > 1 and not parallel.attrs["kinds"]
    return Picks(order, vector, block, asked, private, jams,
                 _streamed(function, found) if streamed else (),
                 *_ahead(function, parallel, written_out),
                 (Unroll(written_out),) if written_out else (),
                 stages,
                 tuple(map(function.args.index, stored_rows(function, parallel, written_out))),
                 copies_of(function, parallel, fastest, (Unroll(written_out), *stages)),
                 jams_of(function, parallel, fastest, axes_of(parallel)[fastest],
                         (Unroll(written_out), *stages)),
                 [] if alone else window_tiles(function, parallel))  # fmt: skip


# -- candidates


def candidates(
    loop: LoopNest, nest: Nest, found: Picks, team: Team | None, divisible: Divisible | None,
    step_of: Callable[[Value], int],
) -> Iterator[Candidate]:  # fmt: skip
    """All forms that calls may take, those that a call prefers first. ``step_of``: of the nest's
    program."""
    parallel = loop.parallel
    by_row: Iterable[Form] = ()
    if team is not None and team.scans:
        names = tuple(name for name, op in loops_of(parallel).items() if op in team.loops)
        parted = team.parted(parallel.body)
        together = list(scanned(names, team.scans, nest, step_of, pays=team.pays, parted=parted))
    else:
        together = list(_together(parallel, team, _MOST_SPLIT if found.ahead else 0))
        if team is not None and team.pays:
            by_row = _by_row(parallel, nest, team, step_of)
    forms = [*together, *_alone(nest, found, None)]
    tiles = in_tiles(loop, found.tiles, step_of, Busy(_BUSY))
    narrow = [*by_row, *together, *tiles, *_alone(nest, found, divisible)]
    width, placed = IndexWidth(32), nest_steps(nest.axes, found)
    if nest.divisions:
        for guards, steps in narrow:
            given = (Fits32(), Reciprocals(), *guards)
            here = () if only(steps, Bind) else placed
            yield Candidate(given, (width, FastDivision(), *steps, *here))
    for guards, steps in narrow:
        here = () if only(steps, Bind) else placed
        yield Candidate((Fits32(), *guards), (width, *steps, *here))
    for guards, steps in forms:
        if not any(isinstance(step, StreamingStores | Prefetch | Stage) for step in steps):
            yield Candidate(guards, (*steps, *placed))


Form = tuple[tuple[Guard, ...], tuple[Step, ...]]


def nest_steps(axes: Sequence[str], found: Picks) -> tuple[Step, ...]:
    """How iterations go onto the grid: the same in all candidates."""
    steps = placed([axes[k] for k in found.order], found.block)
    if found.asked:
        steps.append(BlockDim(found.asked))
    if found.block == _SQUARE:
        steps.append(Persist(_LASTING))
    return tuple(steps)


def _alone(nest: Nest, found: Picks, divisible: Divisible | None) -> Iterator[Form]:
    """Forms in which a thread has its iterations for itself."""
    for guards, steps in _lone(nest, found, divisible):
        yield guards, (*found.unrolled, *steps)


def _lone(nest: Nest, found: Picks, divisible: Divisible | None) -> Iterator[Form]:
    if found.private >= 0:
        name = nest.arrays[found.private]
        if found.ahead:
            yield (FewElements(name), Idle(found.idle)), (Privatize(name), *found.ahead)
        yield (FewElements(name),), (Privatize(name),)
    for steps in found.jams.choices():
        guards = tuple(FewLeft(jam.axis, jam.copies * jam.stride) for jam in steps)
        yield (*guards, Busy(_BUSY), Covered()), (*steps, Cover())
        yield (*guards, Busy(_BUSY)), steps
    if found.staged:
        first = only(found.staged, Stage)
        assert first is not None
        enough = AtLeast(nest.axes[found.order[0]], first.threads // 2)
        whole = [Align(nest.arrays[k], VECTOR_BYTES) for k in found.rows]
        for aligns in (whole, []) if whole else ([],):
            aligned = tuple(Aligned(align.array, align.bytes) for align in aligns)
            if found.jammed:
                group = next(step for step in found.jammed if isinstance(step, UnrollJam))
                guards = Whole(group.axis, group.copies * group.overlap), Busy(_BUSY_STAGING)
                steps = found.jammed[1:]  # what is written out is in all of these forms
                yield (*guards, *aligned, Covered()), (*steps, *aligns, Cover())
            if found.copies:
                steps = *found.staged, *found.copies, *aligns, Cover()
                yield (Copies(), enough, *aligned, Covered()), steps
            yield (enough, *aligned, Covered()), (*found.staged, *aligns, Cover())
    if found.ahead:
        yield (Idle(found.idle), Covered()), (*found.ahead, Cover())
    vector, x = found.vector, nest.axes[found.order[0]]
    if vector.copies > 1:
        enough = AtLeast(x, vector.copies * vector.stride)
        usual = tuple(Aligned(nest.arrays[k], n) for k, n in vector.aligned)
        if divisible is not None:
            aligned = (Aligned(nest.arrays[k], n) for k, n in divisible.aligned)
            more = (
                *(guard for guard in aligned if guard not in usual),
                *(MultipleOf(step, vector.width) for step in divisible.multiples),
                *(Positive(step) for step in divisible.divisors),
            )  # fmt: skip
            steps = _vector_steps(nest, vector, x, divisible)
            yield from _covering(nest, found, (*usual, enough, *more), steps)
        yield from _covering(nest, found, (*usual, enough), _vector_steps(nest, vector, x, None))
    if not nest.kinds:
        yield (Covered(),), (Cover(),)
    yield (), ()


def _vector_steps(
    nest: Nest, vector: Vector, x: str, divisible: Divisible | None
) -> tuple[Step, ...]:
    # Neighbours that lie apart are side by side only where a call makes their subscripts so.
    width = vector.width if divisible is not None or vector.stride == 1 else 1
    aligned = vector.aligned if divisible is None else divisible.aligned
    return (
        Vectorize(x, width, vector.copies, vector.stride, vector.peel, divisible is not None),
        *(Align(nest.arrays[k], n) for k, n in aligned),
    )


def _covering(
    nest: Nest, found: Picks, guards: tuple[Guard, ...], steps: tuple[Step, ...]
) -> Iterator[Form]:
    """A form whose grid has a thread for each vector, or fewer."""
    if not nest.kinds:
        covered, cover = (*guards, Covered()), (*steps, Cover())
        if found.streamed:
            names = tuple(nest.arrays[k] for k in found.streamed)
            yield (*covered, LargerThanCache(names)), (*cover, StreamingStores(names))
        yield covered, cover
    yield guards, steps


def _by_row(
    parallel: Op, nest: Nest, team: Team, step_of: Callable[[Value], int]
) -> Iterator[Form]:
    """Forms in which several threads have an iteration together, and go through its rows by
    vectors: of whole rows in registers, or of one strip after the other. How elements are dealt out
    does not depend on alignment, as sums do on it."""
    loops = tuple(name for name, op in loops_of(parallel).items() if op in team.loops)
    for kind, several in ((KeepRow, False), (KeepRow, True), (StripMine, False)):
        rows = None if team.columns else find(parallel, team.loops, keep=kind is KeepRow)
        if rows is None or (several and (rows.around is not None or rows.width == 1)):
            continue
        usual, most = rows.most
        cluster = 0
        if several:  # waiting for other blocks pays for reading memory less, or for idle processors
            times = {op: 1.0 for found in rows.loops.values() for op in found}
            far = rows.spared(times) >= 2 * max(map(_bytes, rows.arrays.values()))
            cluster = _CLUSTERS if far else _CLUSTERS // 4
        names = [(nest.arrays[k], min(rows.width * _bytes(array), VECTOR_BYTES))
                 for k, array in rows.arrays.items()]  # fmt: skip
        for width in (rows.width, 1):
            fits = (
                *(MultipleOf(step_of(v), width) for v in rows.uppers if width > 1),
                Held(step_of(rows.uppers[0]), width, usual, most, rows.around is not None, cluster)
                if kind is KeepRow
                else Long(width, usual),
                *[Clusters()] * several,
            )  # fmt: skip
            threads = MOST_CLUSTERED if several else THREADS
            steps = Cooperate(loops, threads), kind(width, max(usual // width, 1))
            if width > 1:
                yield (
                    (*fits, *(Aligned(*n) for n in names)),
                    (*steps, *(Align(*n) for n in names)),
                )
            if several:  # others would wait for loads of single elements
                break
            yield fits, steps


def _together(parallel: Op, team: Team | None, most: int) -> Iterator[Form]:
    """Forms in which several threads have an iteration together: of several blocks, of one.
    ``most``: iterations beside one another that are shared, where that is not 0."""
    if team is None:
        return
    loops = tuple(name for name, op in loops_of(parallel).items() if op in team.loops)
    widths = (LEAST_MEMBERS, WARP // 2, WARP)
    if team.split(parallel.body) and any(team.loops.values()):
        for n in (1, 2, 4, *widths) if team.columns else (0,):
            threads = SPLIT_THREADS if n > 1 else ROW_THREADS
            yield (Split(n),), (SplitReduction(loops, threads, n),)
        if team.columns and team.pays:
            for threads in (BESIDE_THREADS, BESIDE_THREADS // 2):
                yield (Split(WARP, most),), (SplitReduction(loops, threads, WARP),)
    if not team.pays:
        return
    if team.columns:
        for n in widths:
            yield (Columns(n, most),), (Cooperate(loops, MOST_MEMBERS, n),)
    else:
        for n in (*widths, SEVERAL, MOST_MEMBERS):
            yield (Grouped(n),), (Cooperate(loops, n),)


def _ahead(
    function: Function, parallel: Op, unrolled: Sequence[str]
) -> tuple[tuple[Prefetch, ...], int]:
    """Of each serial loop that has no other loop in it, as many turns as registers hold, and as the
    code of all of them may have operations; threads for which that pays. Turns that are long take
    registers of their own: fewer threads run at once. A turn that is several is loaded at least."""
    found: list[Prefetch] = []
    left, idle = 0 if parallel.attrs["kinds"] else _MOST_AHEAD, _IDLE
    for name, loop in loops_of(parallel).items():
        body = list(walk(loop.body))
        several = loop.attrs.get("turns", 1)
        inner = any(op.name in ("scf.for", "scf.while") for op in body)
        if inner or name in unrolled or "rare" in loop.attrs:
            continue
        words = sum(-(-load.result.scalar.bytes // 4) for load in ahead(function, loop))
        most = _TURNS_AHEAD // several
        steps = min(_WORDS_AHEAD // max(words, 1), left // len(body), most)
        if several > 1 and words <= _WORDS_OF_SEVERAL and len(body) <= left:
            steps = max(steps, 1)
        if words and steps * several >= _LEAST_AHEAD and is_constant(For(loop).step, 1):
            found.append(Prefetch(name, 1 << steps.bit_length() - 1))
            left -= found[-1].steps * len(body)
            idle = min(idle, _IDLE if len(body) <= _LONG else _IDLE // 4)
    loops = loops_of(parallel)
    return (() if all(only_sums(loops[step.loop]) for step in found) else tuple(found)), idle


def _streamed(function: Function, found: list[Access]) -> tuple[int, ...]:
    written = {a.memref for a in found if a.writes}
    if any(a.memref in written for a in found if a.kind != "store"):
        return ()
    return tuple(k for k, arg in enumerate(function.args) if arg in written)


def _asked(wish: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """What a kernel's writer asks for. One number: so many threads, as whole warps, a power of
    two. Several: threads along each index, in the order of the loop."""
    if len(wish) == 1:
        return (min(max(1 << (wish[0] - 1).bit_length(), WARP), 1024),)
    return tuple(wish[k] for k in order) if wish else ()


def shift(parallel: Op, axis: int, vector: int) -> int:
    """How far the first iteration is behind a multiple of ``vector``, where loops begin at a number
    and go by one: vectors are then whole in memory, not in the loop."""
    lower, _, step = Parallel(parallel).axes[axis]
    first = constant_of(lower)
    return int(first) % vector if first is not None and is_constant(step, 1) else 0


# -- the sides of a block

_SQUARE = 16, 16
_LASTING = 32
_STEADY = 4 * WARP, 1  # where threads do several iterations in step


def _sides(found: list[Access], ivs: list[Value]) -> tuple[int, int]:
    """Threads along x and y. ``ivs``: the parallel indices, that along x first.

    A line, so that a block is in one row; shorter if threads take different times, so that warps
    that are done make room. Where several rows read the same, that is once for a block of some
    rows. Where rows of one array are columns of another, a square block has both as whole sectors;
    such blocks last, so that those which run at the same time are side by side in both arrays:
    of the arrays in the innermost loops, which are accessed most often.
    """
    x, *outer = ivs
    deepest = max((len(access.serial) for access in found), default=0)
    often = [access for access in found if len(access.serial) == deepest]
    if outer and any(_across(access, x, outer[0]) for access in often):
        return _SQUARE
    if outer and (_meet(found, outer[0]) or any(_again(a, outer[0]) for a in found)):
        return 32, 4
    uneven = any(
        poly is None or any(map(poly.mentions, ivs))
        for access in found
        for loop in access.loops
        if not loop.parallel
        for poly in (loop.lower, loop.upper)
    )
    return (2 * WARP if uneven else THREADS), 1


def _across(access: Access, x: Value, y: Value) -> bool:
    """Whether neighbours in memory are neighbours along y, and rows are along x."""
    rows = any(poly is None or poly.mentions(x) for poly in access.subscripts)
    across = access.stride(y) in (1, -1) and access.stride(x) not in (1, -1)
    return rows and across and access.memref.memref.row_major


def _again(access: Access, y: Value) -> bool:
    """Whether a serial loop reads, at other indices ``y``, the same elements again."""
    serial = set(access.serial)
    if access.writes or not serial or None in access.subscripts:
        return False
    leaves = [set(poly.leaves()) for poly in access.subscripts if poly is not None]
    return all(y not in found for found in leaves) or any(y in f and f & serial for f in leaves)


def _meet(found: list[Access], y: Value) -> bool:
    """Whether two loads are apart by a number of rows."""
    rows: dict[object, list[int]] = {}
    for access in found:
        polys = [poly for poly in access.subscripts if poly is not None]
        if access.writes or len(polys) < len(access.subscripts):
            continue
        place = (access.memref, *(poly - number(poly.offset) for poly in polys))
        there = [poly.offset for poly in polys if poly.mentions(y)]
        if rows.setdefault(place, there) != there:
            return True
    return False


def _score(found: list[Access], iv: Value) -> float:
    """How much is gained by ``iv`` on neighbouring threads: unit strides, in inner loops more."""
    score = 0.0
    for access in found:
        weight = 4.0 ** len(access.serial) * (1.5 if access.writes else 1.0)
        stride = access.stride(iv)
        gain = 1.0 if stride in (1, -1) else 0.25 if stride == 0 else -0.5
        score += weight * (gain if access.memref.memref.row_major else 0.0)
    return score


# -- several neighbours in one thread


def in_rows(function: Function, found: list[Access], iv: Value) -> list[Access]:
    """Those of ``found``, accesses to arguments, whose neighbours along ``iv`` are neighbours in
    memory."""
    return [
        a for a in found
        if a.stride(iv) == 1 and a.memref.memref.row_major and a.memref in function.args
    ]  # fmt: skip


def _vector(function: Function, parallel: Op, found: list[Access], axis: int) -> Vector:
    body = parallel.body
    iv = body.args[axis]
    memory = [op for op in body.ops if op.name in ("memref.load", "memref.store")]
    if any(op.regions or op.name.startswith(("weft.", "memref.atomic", "memref.alloca"))
           for op in body.ops):  # fmt: skip
        return Vector()
    unit = in_rows(function, found, iv)
    stores = [a for a in found if a.writes]
    if not unit or any(a not in unit for a in stores):
        return Vector()
    most = max(_bytes(a.memref) for a in unit)
    copies = min(VECTOR_BYTES // most, 8)
    while copies > 1 and copies * len(body.ops) > MOST_COPIES:
        copies //= 2
    if copies < 2 or len(memory) * copies > 128:
        return Vector()
    args = function.args
    aligned = {args.index(a.memref): copies * _bytes(a.memref) for a in unit}
    side = copies
    divides = any(op.name == "arith.floordivsi" for op in body.ops)
    if parallel.attrs["kinds"]:
        copies *= 2  # two vectors on their way at a time
    elif (
        (divides or any(a.kind == "load" and None in a.subscripts for a in found))
        and most >= 4
        and 2 * copies * len(body.ops) <= MOST_COPIES
    ):
        # Twice as many quotients for one division. What is read at places that come of divisions,
        # or of data, is not read in vectors: a warp's threads then access what lies side by side.
        return Vector(2 * copies, side, WARP)
    peel = shift(parallel, axis, copies)
    return Vector(copies, side, 1, peel, tuple(sorted(aligned.items())))


def _bytes(memref: Value) -> int:
    return memref.memref.element.bytes


def _private(function: Function, parallel: Op) -> int:
    """The argument that is only accumulated into, by one combiner and without asking what was
    there."""
    if parallel.attrs["kinds"] or not function.attrs.get("noalias", True):
        return -1
    updated = {access_of(op)[0] for op in walk(function.body) if op.name == "memref.atomic_rmw"}
    nest = LoopNest(function, parallel)
    found = (
        k for k, arg in enumerate(function.args)
        if arg in updated and RULES[Privatize](nest, Privatize(nest.arrays[k]), ()) is None
    )  # fmt: skip
    return next(found, -1)

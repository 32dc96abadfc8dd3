"""Steps of a schedule on a GPU: what a loop must be like for those that ask index sets, and what a
person's text stands for.

The other rules are in ``schedule.legal``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.index.access import Access, accesses
from weft.ir.core import Op, Value, walk
from weft.ir.views import For, Parallel, is_constant
from weft.schedule.choose import Candidate
from weft.schedule.cooperative_loops import Team, asked, ordered
from weft.schedule.copy_ahead import why_not_copied
from weft.schedule.default_cuda import MOST_COPIES, Divisible, Picks, in_rows, nest_steps, shift
from weft.schedule.grid import MOST_CLUSTERED, MOST_MEMBERS, MOST_PARTS, THREADS, WARP
from weft.schedule.guards import (
    Aligned,
    AtLeast,
    AtMost,
    Clusters,
    Copies,
    Covered,
    Fits32,
    FitsShared,
    Guard,
    KnownTrips,
    MultipleOf,
    Positive,
    Reciprocals,
    Whole,
)
from weft.schedule.jam_staged import why_not_jammed
from weft.schedule.language import (
    Align,
    Bind,
    Block,
    BlockDim,
    Cooperate,
    CopyAhead,
    Cover,
    FastDivision,
    IndexWidth,
    KeepRow,
    LongestFirst,
    Persist,
    Prefetch,
    Privatize,
    RegisterWindow,
    Reverse,
    Scan,
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
    parse,
    several,
    tiled,
)
from weft.schedule.legal import RULES, Rule, beside, check, listed
from weft.schedule.nest import LoopNest, Nest, Refusal
from weft.schedule.own import OwnStep
from weft.schedule.register_window import whole_vectors
from weft.schedule.rows import VECTOR_BYTES, Rows, find
from weft.schedule.scan import vectors
from weft.schedule.shared_arrays import fitting
from weft.schedule.stage import MOST_BYTES, bytes_of, done_once, stored_rows
from weft.schedule.stage import rows_of as staged_rows
from weft.schedule.stage_rows import why_not_staged

_MOST_BLOCKS = 2**31 - 1
_MOST_SPLIT = 1 << 20  # iterations that leave a word for each block that shares them
_INNER = (
    Privatize, UnrollJam, OwnStep, Vectorize, Prefetch, Unroll, Stage, Reverse,
    RegisterWindow, LongestFirst, SharedArrays, CopyAhead,
)  # fmt: skip
_MOST_OPS = 8 * MOST_COPIES  # operations in the unrolled neighbours of one thread


# -- rules


def _vectorize(nest: LoopNest, step: Vectorize, schedule: Schedule) -> Refusal | None:
    body, parallel = nest.parallel.body, nest.parallel
    axis = nest.axes.index(step.axis)
    first = only(schedule, Bind)
    if first is not None and first.axis != step.axis:
        return Refusal(
            f"`{first.axis}` is bound to x, and vectors are along x", None, f"bind({step.axis}, x)"
        )
    for op in body.ops:
        if op.regions or op.name.startswith(("weft.", "memref.atomic", "memref.alloca")):
            what = {"scf.for": "a loop", "scf.while": "a loop", "scf.if": "a branch",
                    "memref.alloca": "a local array"}.get(op.name, op.name)  # fmt: skip
            return Refusal(
                f"an iteration has {what} inside", op.span,
                f"write unroll_jam({step.axis}, {step.width}) instead",
            )  # fmt: skip
    sizes = (step.width, step.copies)
    if any(n < 1 or n & (n - 1) for n in sizes) or step.copies < step.width or step.copies < 2:
        return Refusal("width and copies are powers of two, copies a multiple of width")
    if step.copies * len(body.ops) > _MOST_OPS:
        return Refusal(f"{step.copies} iterations of {len(body.ops)} operations are too many")
    if not is_constant(Parallel(parallel).steps[axis], 1):
        return Refusal(f"iterations along `{step.axis}` do not go by 1")
    if step.stride not in (1, WARP):
        return Refusal(f"vectors of a thread are side by side, or {WARP} vectors apart")
    if step.stride > 1 and not _whole_warps(schedule):
        return Refusal(f"stride={WARP} needs blocks of whole warps along x")
    if step.stride > 1 and parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar: stride is 1")
    if step.reverse:
        return Refusal("only a CPU's lanes are reversed", None, "leave reverse=True out")
    if step.peel != shift(parallel, axis, step.copies):
        return Refusal(f"peel is {shift(parallel, axis, step.copies)} here", None, "leave it out")
    if not _units(nest, step.axis) and not step.divisible:
        return Refusal(
            f"no access has unit stride along `{step.axis}`: neighbouring iterations are not "
            "neighbours in memory", _access_span(nest), "vectorize another index",
        )  # fmt: skip
    return beside(step, schedule, UnrollJam, Cooperate, Privatize)


def _whole_warps(schedule: Schedule) -> bool:
    asked_for, block = only(schedule, BlockDim), only(schedule, Block)
    if asked_for is not None:
        return asked_for.sides[0] % WARP == 0
    return block is None or block.x % WARP == 0


def _units(nest: LoopNest, axis: str) -> list[Access]:
    """Accesses whose neighbours along ``axis`` are neighbours in memory."""
    return in_rows(nest.function, accesses(nest.function), nest.index(axis))


def _access_span(nest: LoopNest) -> Any:
    ops = nest.parallel.body.ops
    return next((op.span for op in ops if op.name in ("memref.load", "memref.store")), None)


def _align(nest: LoopNest, step: Align, schedule: Schedule) -> Refusal | None:
    vector, memref = _vectors(schedule), nest.array(step.array)
    if only(schedule, RegisterWindow) is not None:
        if step in whole_vectors(nest, schedule, lambda _: 0)[0]:
            return None
        return Refusal(
            f"no window loads or stores `{step.array}` in whole vectors of {step.bytes} bytes"
        )
    if memref in _rows_stored(nest, schedule) and step.bytes == VECTOR_BYTES:
        return None
    if vector is None:
        return Refusal("vectors are aligned, and there is no vectorize(...)")
    if step.bytes not in (2, 4, 8, VECTOR_BYTES):
        return Refusal(f"the longest load and store have {VECTOR_BYTES} bytes")
    element = memref.memref.element.bytes
    if not memref.memref.row_major or step.bytes > max(vector.width * element, element):
        return Refusal(
            f"{vector.width} elements of `{step.array}` are not {step.bytes} bytes side by side"
        )
    return None


def _rows_stored(nest: LoopNest, schedule: Schedule) -> list[Value]:
    """The arguments that staged loops store whole vectors of."""
    unrolled = only(schedule, Unroll) if only(schedule, Stage) is not None else None
    names = unrolled.loops if unrolled is not None else ()
    return stored_rows(nest.function, nest.parallel, names)


def _vectors(schedule: Schedule) -> Vectorize | KeepRow | StripMine | Scan | None:
    """The step by which threads have vectors."""
    kinds = (Vectorize, KeepRow, StripMine, Scan)
    return next((step for kind in kinds if (step := only(schedule, kind)) is not None), None)


def _reverse(nest: LoopNest, step: Reverse, schedule: Schedule) -> Refusal | None:
    loop = nest.serial[step.loop]
    reason = ordered(nest.function, loop)
    return Refusal(reason, loop.span) if reason is not None else beside(step, schedule, Stage)


def _cooperate(nest: LoopNest, step: Cooperate, schedule: Schedule) -> Refusal | None:
    threads, columns = step.threads, step.columns
    most = MOST_MEMBERS if only(schedule, KeepRow) is None else MOST_CLUSTERED
    if threads < 2 or threads > most or threads & (threads - 1):
        return Refusal(f"a group has a power of two of threads, 2 to {most}")
    split = isinstance(step, SplitReduction)
    if split and not (0 <= columns <= WARP <= threads and not columns & (columns - 1)):
        return Refusal(f"columns are a power of two up to {WARP}, a block has a warp or more")
    if split and not 0 <= step.parts <= MOST_PARTS:
        return Refusal(f"{MOST_PARTS} blocks share an iteration, at most")
    if (
        columns
        and not split
        and (columns & (columns - 1) or not 2 <= columns <= WARP or threads <= WARP)
    ):
        return Refusal(
            f"columns are a power of two, 2 to {WARP}, in blocks of more than {WARP} threads"
        )
    if nest.parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar, by all threads")
    found = team(nest, step)
    if isinstance(found, str):
        spans = [nest.serial[name].span for name in step.loops[:1]]
        return Refusal(found, spans[0] if spans else None, f"loops: {listed(nest.serial)}")
    if split and not any(found.loops.values()):
        names = ", ".join(name for name, op in nest.serial.items() if op in found.loops)
        return Refusal(
            "the loops carry nothing that a further launch would combine",
            next(iter(found.loops)).span, f"write cooperate(({names}), {threads})",
        )  # fmt: skip
    return beside(step, tuple(s for s in schedule if s != step), Cooperate)


def _scan(nest: LoopNest, step: Scan, schedule: Schedule) -> Refusal | None:
    sizes = (step.width, step.turns)
    if any(n < 1 or n & (n - 1) or n > 16 for n in sizes) or step.width > step.turns:
        return Refusal("a thread has 1, 2, 4, 8 or 16 turns, by vectors of no more than these")
    if step.threads < WARP:
        return Refusal(f"a group that scans has whole warps: {WARP} threads or more")
    if step.columns:
        return Refusal("groups that scan do not stand side by side", None, "leave columns out")
    if (found := _cooperate(nest, step, schedule)) is not None:
        return found
    if step.parts != 1:
        together = team(nest, step)
        if isinstance(together, str) or not together.parted(nest.parallel.body):
            return Refusal(
                "blocks scan loops that are in no other loop or branch, whose values do not depend "
                "on each other; only stores to other arrays come behind them", None,
                "leave parts out",
            )  # fmt: skip
        if not 0 <= step.parts <= MOST_PARTS or step.threads <= WARP:
            return Refusal(f"{MOST_PARTS} blocks of several warps scan an iteration, at most")
    size = max(sum(1 for _ in walk(op.body)) for op in scanned_by(nest, step))
    if step.turns * size > _MOST_OPS:
        return Refusal(f"{step.turns} turns of {size} operations are too many")
    return beside(step, schedule, KeepRow, StripMine)


def scanned_by(nest: LoopNest, step: Scan) -> list[Op]:
    """The loops that are scanned."""
    found = team(nest, step)
    return [] if isinstance(found, str) else [op for op in found.loops if op in found.scans]


def _by_row(nest: LoopNest, step: KeepRow | StripMine, schedule: Schedule) -> Refusal | None:
    together, width = only(schedule, Cooperate), step.width
    if together is None:
        return Refusal("no threads share loops", None, "write cooperate(..., threads) as well")
    other = KeepRow if isinstance(step, StripMine) else StripMine
    if (found := beside(step, schedule, other, SplitReduction)) is not None:
        return found
    if width < 1 or width & (width - 1) or width > 16 or not 1 <= step.vectors <= 64:
        return Refusal("a vector has 1, 2, 4, 8 or 16 elements, and a thread 1 to 64 vectors")
    rows = rows_of(nest, together, keep=isinstance(step, KeepRow))
    if together.columns or rows is None:
        what = "a row" if isinstance(step, KeepRow) else "an array"
        return Refusal(
            f"no loops that threads share, from 0 to a number of the call, go along {what} of an "
            "argument", None, "leave it out",
        )  # fmt: skip
    size = sum(1 for op in rows.loops for _ in walk(op.body))
    if width * step.vectors * size > _MOST_OPS:
        return Refusal(f"{width * step.vectors} turns of {size} operations are too many")
    return None


def _stage(nest: LoopNest, step: Stage, schedule: Schedule) -> Refusal | None:
    loop, axis = nest.serial[step.loop], several(schedule, Bind)[0].axis
    for count, least, most in ((step.steps, 1, 64), (step.threads, WARP, MOST_MEMBERS)):
        if not least <= count <= most or count & (count - 1):
            return Refusal(f"turns are a power of two, 1 to 64, threads {WARP} to {MOST_MEMBERS}")
    steps = several(schedule, Stage)
    if any(other.threads != step.threads for other in steps):
        return Refusal("blocks have one number of threads", loop.span)
    if nest.parallel.attrs["kinds"]:
        return Refusal("the loop reduces into a scalar, by all threads")
    refused = done_once(nest.parallel, nest.axes.index(axis), step.threads)
    if refused is not None:
        return Refusal(
            f"threads beyond the last iteration along `{axis}` would do what is to be done once",
            refused.span, "take the assertion, print or atomic update out of the loop",
        )  # fmt: skip
    found = staged_rows(nest.function, nest.parallel, nest.axes.index(axis), loop, step.threads)
    if not found:
        return Refusal(
            f"no turn of `{step.loop}` loads what neighbours along `{axis}` load too", loop.span,
            "a loop by 1 directly in an iteration, whose bounds neighbours share, and in each turn "
            "loads, at places that neighbours share, from what the loop does not write",
        )  # fmt: skip
    size = _staged_bytes(nest, schedule)
    if size > MOST_BYTES:
        return Refusal(f"it takes {size} bytes of shared memory, {MOST_BYTES} are there", loop.span)
    return beside(step, schedule, Vectorize, Cooperate, Privatize, Prefetch, BlockDim, Persist)


def _staged_bytes(nest: LoopNest, schedule: Schedule) -> int:
    """Of shared memory for all loops that are staged."""
    axis = nest.axes.index(several(schedule, Bind)[0].axis)
    return sum(
        bytes_of(staged_rows(nest.function, nest.parallel, axis, nest.serial[step.loop],
                             step.threads), step.steps)
        for step in several(schedule, Stage) if step.loop in nest.serial
    )  # fmt: skip


def _shared_arrays(nest: LoopNest, step: SharedArrays, schedule: Schedule) -> Refusal | None:
    staged, unrolled = only(schedule, Stage), only(schedule, Unroll)
    if staged is None:
        return Refusal("a block's threads are not known", None, "write stage(...) as well")
    fixed = {For(nest.serial[name]).index for name in (unrolled.loops if unrolled else ())}
    room = MOST_BYTES - _staged_bytes(nest, schedule)
    if not fitting(nest.parallel, staged.threads, room, fixed):
        return Refusal(
            f"no local array that is in memory fits into the {room} bytes of shared memory that "
            "are left", None, "leave it out",
        )  # fmt: skip
    return None


def _unroll_jam(nest: LoopNest, step: UnrollJam, schedule: Schedule) -> Refusal | None:
    found = RULES[UnrollJam](nest, step, schedule)
    if found is not None or only(schedule, Stage) is None:
        return found
    return why_not_jammed(nest, step, schedule)


def _register_window(nest: LoopNest, step: RegisterWindow, schedule: Schedule) -> Refusal | None:
    found = RULES[RegisterWindow](nest, step, schedule)
    if found is None and step.staged:
        found = why_not_staged(nest, step, schedule)
    return found or (beside(step, schedule, Persist, Unroll, OwnStep) if step.staged else None)


def _longest_first(nest: LoopNest, step: LongestFirst, schedule: Schedule) -> Refusal | None:
    sides = [bind.side for bind in several(schedule, Bind)]
    if not tiled(schedule) or "y" not in sides:
        return Refusal(
            "blocks along y that have whole tiles are put in order", None,
            "write register_window(..., staged=...), or leave it out",
        )  # fmt: skip
    return None


def rows_of(nest: LoopNest, together: Cooperate, *, keep: bool) -> Rows | None:
    """What goes by vectors of the loops that threads share."""
    found = team(nest, together)
    return None if isinstance(found, str) else find(nest.parallel, found.loops, keep=keep)


def team(nest: LoopNest, step: Cooperate) -> Team | str:
    """The team of a step, or why there is none."""
    loops = [nest.serial[name] for name in step.loops]
    return asked(
        nest.function, nest.parallel, loops, columns=bool(step.columns),
        split=isinstance(step, SplitReduction), scan=isinstance(step, Scan),
    )  # fmt: skip


CUDA_RULES: dict[type[Any], Rule] = RULES | {
    Vectorize: _vectorize, Align: _align, Cooperate: _cooperate, SplitReduction: _cooperate,
    KeepRow: _by_row, StripMine: _by_row, Stage: _stage, RegisterWindow: _register_window,
    LongestFirst: _longest_first, SharedArrays: _shared_arrays,
    Reverse: _reverse, Scan: _scan, CopyAhead: why_not_copied,
    UnrollJam: _unroll_jam,
}  # fmt: skip


# -- a person's text


def candidates(
    text: str, loop: LoopNest, nest: Nest, found: Picks, divisible: Divisible | None,
    step_of: Callable[[Value], int],
) -> tuple[Candidate, ...]:  # fmt: skip
    """The candidates that ``text`` stands for. What it leaves open is as for other candidates:
    several of them, where that is for the call to decide. ``divisible``: what a call must satisfy
    for the vectors of ``text``; ``step_of``: of the nest's program. Raises ``ScheduleError``."""
    given = parse(text)
    _go_together(loop, given, nest_steps(loop.axes, found))
    given = tuple(map(_completed(loop, found), given))
    order = _order(loop, given, found)
    inner: list[Any] = [step for step in given if isinstance(step, _INNER)]
    for kind in (Cooperate, KeepRow, StripMine):
        inner += several(given, kind)
    streaming = several(given, StreamingStores)
    rest = (*_block(loop, given, found, order), *several(given, Persist))
    made: list[Candidate] = []
    for widths, fits in _widths(given, nest):
        for aligns, whole in _aligns(loop, given, divisible, step_of):
            for cover, covered in _covers(loop, given):
                steps = (*widths, *inner, *aligns, *cover, *streaming, *rest)
                if not made:
                    check(loop, steps, CUDA_RULES)
                guards = (*fits, *whole, *_guards(loop, given, divisible, step_of, order), *covered)
                made.append(Candidate(guards, steps))
    return tuple(made)


def _go_together(loop: LoopNest, given: Schedule, usual: Sequence[Step]) -> None:
    """Raises ``ScheduleError`` where names are not there, or where what is completed otherwise is
    asked for beside what does not have it. ``usual``: where indices go and the block of those who
    ask for none: the texts of weft's own candidates have them beside every step."""

    def blocks(nest: LoopNest, step: Block, schedule: Schedule) -> Refusal | None:
        sides = only(schedule, BlockDim)
        if step in usual or (sides is not None and sides.sides == (step.x, step.y)):
            return None
        if nest.parallel.attrs["kinds"] or only(schedule, Privatize):
            return Refusal(
                f"a loop that reduces or privatizes has blocks of {THREADS} threads", None,
                "write block_dim(...)",
            )  # fmt: skip
        return beside(step, schedule, Cooperate, BlockDim)

    def widths(nest: LoopNest, step: IndexWidth, schedule: Schedule) -> Refusal | None:
        return beside(step, schedule, FastDivision) if step.bits == 64 else None

    check(loop, given, {Block: blocks, Bind: RULES[Bind], IndexWidth: widths})


def _completed(loop: LoopNest, found: Picks) -> Any:
    def completed(step: Any) -> Any:
        match step:
            case Vectorize(copies=copies, width=width):
                axis, many = loop.axes.index(step.axis), copies or width
                peel = step.peel or (shift(loop.parallel, axis, many) if many > 0 else 0)
                return replace(step, copies=many, peel=peel)
            case Cooperate(loops=()):
                all_loops = team(loop, step)
                names = () if isinstance(all_loops, str) else tuple(
                    name for name, op in loop.serial.items() if op in all_loops.loops
                )  # fmt: skip
                return replace(step, loops=names)
            case _:
                return step

    return completed


def _order(loop: LoopNest, given: Schedule, found: Picks) -> list[Bind]:
    """Where each index goes: what is not said is as usual."""
    sides: dict[str, list[str]] = {"x": [], "y": [], "z": []}
    for bind in several(given, Bind):
        sides[bind.side].append(bind.axis)
    vector = only(given, Vectorize)
    left = [loop.axes[k] for k in found.order]
    if vector is not None:
        left.sort(key=lambda axis: axis != vector.axis)
    for axis in left:
        if not any(axis in there for there in sides.values()):
            sides["x" if not sides["x"] else "y" if not sides["y"] else "z"].append(axis)
    return [Bind(axis, side) for side, there in sides.items() for axis in there]  # type: ignore[arg-type]


def _block(loop: LoopNest, given: Schedule, found: Picks, order: list[Bind]) -> Iterator[Step]:
    yield from order
    block, sides = only(given, Block), only(given, BlockDim)
    usual = [step for step in nest_steps(loop.axes, found) if not isinstance(step, Bind)]
    as_usual = [loop.axes[k] for k in found.order] == [bind.axis for bind in order]
    if block is None and sides is None and as_usual and not only(given, UnrollJam):
        special = any(only(given, kind) for kind in (Vectorize, Cooperate, Persist, Stage))
        yield from (s for s in usual if not (special and isinstance(s, Persist)))
        return
    steady = only(given, UnrollJam) is not None
    yield block or Block(THREADS // 2 if steady else THREADS, 1)
    if sides is not None:
        yield sides


def _widths(given: Schedule, nest: Nest) -> Iterator[tuple[tuple[Step, ...], tuple[Guard, ...]]]:
    width, fast = only(given, IndexWidth), only(given, FastDivision)
    narrow = (IndexWidth(32),)
    if fast is not None or (width is None and nest.divisions):
        yield (*narrow, FastDivision()), (Fits32(), Reciprocals())
    if fast is None and (width is None or width.bits == 32):
        yield narrow, (Fits32(),)
    vector = only(given, Vectorize)
    divisible = vector is not None and vector.divisible
    if fast is None and (width is None or width.bits == 64) and not divisible:
        yield (), ()


def _aligns(
    loop: LoopNest, given: Schedule, divisible: Divisible | None, step_of: Callable[[Value], int]
) -> Iterator[tuple[Sequence[Align], Sequence[Guard]]]:
    vector, said = _vectors(given), several(given, Align)
    found, multiples = said, list[MultipleOf]()
    whole: Mapping[int, Value] = {}
    if only(given, RegisterWindow) is not None:
        found, multiples = whole_vectors(loop, given, step_of)
        found = said or found
    elif rows := _rows_stored(loop, given):
        found = said or [Align(loop.arrays[loop.function.args.index(arg)], VECTOR_BYTES)
                         for arg in rows]  # fmt: skip
    if isinstance(vector, KeepRow | StripMine):
        together = only(given, Cooperate)
        rows = rows_of(loop, together, keep=isinstance(vector, KeepRow)) if together else None
        whole = rows.arrays if rows is not None else {}
    elif isinstance(vector, Scan):
        whole = vectors(scanned_by(loop, vector)).arrays if vector.width > 1 else {}
    elif vector is not None and divisible is not None:
        found = [Align(loop.arrays[k], n) for k, n in divisible.aligned]
    elif vector is not None:
        units = {access.memref for access in _units(loop, vector.axis)}
        whole = {k: arg for k, arg in enumerate(loop.function.args) if arg in units}
    if vector is not None and vector.width > 1 and not said:
        found = [
            *found,
            *(Align(loop.arrays[k], min(vector.width * arg.memref.element.bytes, VECTOR_BYTES))
              for k, arg in whole.items()),
        ]  # fmt: skip
    yield found, [*(Aligned(align.array, align.bytes) for align in found), *multiples]
    if found and not said and divisible is None:
        yield (), ()


def _covers(loop: LoopNest, given: Schedule) -> Iterator[tuple[Sequence[Cover], Sequence[Guard]]]:
    if only(given, Cover) is not None or only(given, Stage) is not None or tiled(given):
        yield (Cover(),), (Covered(),)
        return
    looping = only(given, Cooperate) or only(given, Privatize) or only(given, Persist)
    if not loop.parallel.attrs["kinds"] and not looping:
        yield (Cover(),), (Covered(),)
    yield (), ()


def _guards(
    loop: LoopNest, given: Schedule, divisible: Divisible | None, step_of: Callable[[Value], int],
    order: Sequence[Bind],
) -> Iterator[Guard]:  # fmt: skip
    """What a call must satisfy for the steps that are given."""
    vector, by_row, together = only(given, Vectorize), _vectors(given), only(given, Cooperate)
    if together is not None and together.threads > MOST_MEMBERS:
        yield Clusters()
    if together is not None and isinstance(by_row, KeepRow | StripMine):
        rows = rows_of(loop, together, keep=isinstance(by_row, KeepRow))
        for upper in rows.uppers if rows is not None else ():
            if by_row.width > 1:
                yield MultipleOf(step_of(upper), by_row.width)
            if isinstance(by_row, KeepRow):
                most = together.threads * by_row.width * by_row.vectors
                yield AtMost(step_of(upper), most)
                if by_row.whole:
                    yield MultipleOf(step_of(upper), most)
                    yield Positive(step_of(upper))
    if isinstance(by_row, Scan) and by_row.width > 1:
        for value in vectors(scanned_by(loop, by_row)).multiples:
            yield MultipleOf(step_of(value), by_row.width)
    for own in several(given, Privatize):
        yield FitsShared(own.array)
    if vector is not None and divisible is not None:
        yield from (MultipleOf(step, vector.width) for step in divisible.multiples)
        yield from (Positive(step) for step in divisible.divisors)
    for step in several(given, OwnStep):
        yield from step.guards()
    for jam in several(given, UnrollJam):
        if jam.overlap:
            yield (Whole if jam.whole else AtLeast)(jam.axis, jam.copies * jam.overlap)
    if only(given, Stage) is not None:
        yield AtLeast(order[0].axis, 1)
    if only(given, CopyAhead) is not None:
        yield Copies()
    if together is not None:
        yield KnownTrips(_MOST_BLOCKS if only(given, SplitReduction) is None else _MOST_SPLIT)
    elif vector or only(given, UnrollJam) or only(given, Persist):
        yield KnownTrips()


def divisible_vector(text: str) -> Vectorize | None:
    """The step of ``text`` that has vectors where subscripts have quotients."""
    vector = only(parse(text), Vectorize)
    return vector if vector is not None and vector.divisible else None


def shared_loops(nest: LoopNest, made: Sequence[Candidate]) -> list[Op]:
    """The loops that threads share by some of these candidates."""
    steps = [only(candidate.schedule, Cooperate) for candidate in made]
    return [nest.serial[name] for step in steps if step is not None for name in step.loops]

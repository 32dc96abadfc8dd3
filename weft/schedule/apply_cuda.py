"""The steps of a schedule for GPUs, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import ScheduleError
from weft.ir.builder import annotated
from weft.ir.core import Function, Op, below, walk
from weft.ir.types import i32, index
from weft.ir.views import Parallel, is_constant
from weft.ir.writes import loaded, written
from weft.schedule import asked_cuda, register_window
from weft.schedule.bind import Bound, bind, limits_of
from weft.schedule.cooperate import cooperate
from weft.schedule.cooperative_loops import marked
from weft.schedule.copy_ahead import COPIED, copy_ahead
from weft.schedule.divisibility import Common, common
from weft.schedule.index_width import Program, candidates, divisions, narrow
from weft.schedule.interleave import interleave
from weft.schedule.jam_staged import by_lane, jam_staged
from weft.schedule.language import (
    Bind,
    Cooperate,
    CopyAhead,
    FastDivision,
    IndexWidth,
    KeepRow,
    Prefetch,
    Privatize,
    RegisterWindow,
    Reverse,
    Scan,
    Schedule,
    SharedArrays,
    SplitReduction,
    Stage,
    StreamingStores,
    StripMine,
    Unroll,
    UnrollJam,
    Vectorize,
    only,
    several,
    show,
    tiled,
)
from weft.schedule.launch_bounds import LaunchBounds, launch_bounds
from weft.schedule.listener import Listener, ignored, tell
from weft.schedule.marks import aggregated, numbered, reassociated, streamed
from weft.schedule.nest import LoopNest, arrays_of, axes_of, loops_of
from weft.schedule.own import OwnStep
from weft.schedule.prefetch import serial_steps
from weft.schedule.privatize import privatize
from weft.schedule.reverse import reverse
from weft.schedule.rows import by_row
from weft.schedule.scan import scan
from weft.schedule.shared_arrays import shared_arrays
from weft.schedule.split_reduction import split_reduction
from weft.schedule.split_scan import split_scan
from weft.schedule.spmd import WORKGROUP
from weft.schedule.stage import MOST_BYTES, stage
from weft.schedule.stage_rows import stage_rows
from weft.schedule.unroll_jam import unroll_jam
from weft.values import frozen


@frozen
class OnGrid:
    """``bound``: what threads run of ``function``, in which only the last steps, that put it on a
    grid, are missing. ``divisors``: how many numbers of a call its code has reciprocals of."""

    function: Function
    bound: Bound
    bounds: LaunchBounds
    divisors: int = 0


def apply_cuda(
    function: Function, schedule: Schedule, index_program: Callable[[Function], Program],
    listener: Listener = ignored,
) -> OnGrid:  # fmt: skip
    """``function`` after the steps of ``schedule``. ``index_program``: of a function, its index
    arithmetic. ``listener`` is told of each step that rewrites it, and what came of it. Raises
    ``ScheduleError`` for what the loop does not allow."""
    function = annotated(function, numbered(function))  # before there are copies of any
    parallel = outermost(function)
    axes = axes_of(parallel) if parallel is not None else ()
    order = [axes.index(bind.axis) for bind in several(schedule, Bind)]
    if parallel is not None:
        function = _marked(LoopNest(function, parallel), schedule)
    if only(schedule, IndexWidth) is not None:
        function, divisors = _narrowed(function, order, schedule, index_program)
        tell(listener, schedule, (IndexWidth, FastDivision), function)
    else:
        divisors = 0
    parallel = outermost(function)
    if parallel is not None:
        for jam in several(schedule, UnrollJam) if only(schedule, Stage) is not None else ():
            function, parallel = jam_staged(function, parallel, axes.index(jam.axis), jam)
            listener(show([jam]), function)
        function, parallel = _serial(function, parallel, order, schedule, listener)
    for step in schedule:
        if parallel is None:
            break
        if isinstance(step, UnrollJam):
            if only(schedule, Stage) is not None:
                continue  # before what its threads stage
            axis = axes.index(step.axis)
            how = step.copies, step.stride, step.overlap, step.whole
            function, parallel = unroll_jam(function, parallel, axis, *how)
        elif isinstance(step, OwnStep):
            function, parallel = step.apply(function, parallel)
        else:
            continue
        listener(show([step]), function)
    if parallel is not None and only(schedule, RegisterWindow) is not None:
        limits = limits_of(function, schedule)
        register_window.align_stores(function, parallel, limits)
        if tiled(schedule):
            function, parallel = stage_rows(function, parallel, order, schedule, limits)
            limits = limits_of(function, schedule)
        function, parallel = register_window.register_window(function, parallel, limits)
        tell(listener, schedule, (RegisterWindow,), function)
    is_shader = WORKGROUP in function.attrs  # which has no such marks
    last = [] if is_shader else [reassociated(function)]
    if not is_shader and parallel is not None and only(schedule, Cooperate) is None:
        last.append(aggregated(parallel, Parallel(parallel).indices[order[0]]))
    if only(schedule, StreamingStores) is not None:
        last.append(streamed(function))
    place = function.body.ops.index(parallel) if parallel is not None else -1
    function = annotated(function, *last)
    parallel = function.body.ops[place] if parallel is not None else None
    bounds = launch_bounds(function, parallel, schedule)
    bound = apply(function, parallel, order, schedule)
    for k, made in enumerate(bound.stages):
        binds = show(several(schedule, Bind)) or "one thread"
        listener(f"{binds}, function {k + 1}" if k else binds, made)
    return OnGrid(function, bound, bounds, divisors)


def apply(
    function: Function, parallel: Op | None, order: Sequence[int], schedule: Schedule
) -> Bound:
    """``function`` as each thread runs it. ``order``: the dimensions of ``parallel``, that along x
    first; without ``parallel``, one thread runs all."""
    together, own = only(schedule, Cooperate), only(schedule, Privatize)
    if parallel is None:
        return Bound((function,))
    if isinstance(together, SplitReduction):
        return split_reduction(function, parallel, order[0], together)
    if together is not None:
        how = only(schedule, KeepRow) or only(schedule, StripMine)
        if how is None and not isinstance(together, Scan):
            return cooperate(function, parallel, order[0], together)
        limits = limits_of(function, schedule)
        if how is not None:
            return by_row(function, parallel, together, how, limits)
        assert isinstance(together, Scan)
        rewrite = scan if together.parts == 1 else split_scan
        return rewrite(function, parallel, together, limits)
    bound = bind(function, parallel, order, schedule)
    if own is not None:
        width = index if only(schedule, IndexWidth) is None else i32
        bound = privatize(bound, arrays_of(function).index(own.array), width)
    return bound


def _narrowed(
    function: Function, order: Sequence[int], schedule: Schedule,
    index_program: Callable[[Function], Program],
) -> tuple[Function, int]:  # fmt: skip
    """``function`` with indices of 32 bits where it has them, and the number of divisors that its
    divisions go by then."""
    program = index_program(function)
    chosen, _ = candidates(program)
    notes: dict[Op, dict[str, Any]] = {op: {} for op in walk(function.body)}
    divisors: list[int] = []
    if only(schedule, FastDivision) is not None:
        found = divisions(program, function, chosen)
        divisors = [step for step, _ in divisors_of(program, found)]
        for op, step in found.items():
            notes[op]["divisor"] = divisors.index(step)
    vector = only(schedule, Vectorize)
    if vector is not None and vector.divisible:
        shared = common_of(outermost(function), order[0], vector.width, program)
        assert shared is not None
        notes |= {op: notes[op] | {"even": "shared"} for op in shared.shared}
        notes |= {op: notes[op] | {"even": "whole"} for op in shared.whole}
    return narrow(function, chosen, notes), len(divisors)


def _serial(
    function: Function, parallel: Op, order: Sequence[int], schedule: Schedule, listener: Listener
) -> tuple[Function, Op]:
    """The steps of serial loops, but for register windows."""
    if reversed_ := several(schedule, Reverse):
        serial = loops_of(parallel)
        function, parallel = reverse(function, parallel, {serial[r.loop] for r in reversed_})
        tell(listener, schedule, (Reverse,), function)
    unrolled, pipelined = only(schedule, Unroll), several(schedule, Prefetch)
    names, staged = unrolled.loops if unrolled else (), several(schedule, Stage)
    if staged:
        function, parallel = stage(function, parallel, order[0], names, staged)
        if only(schedule, SharedArrays) is not None:
            threads = staged[0].threads
            function, parallel = shared_arrays(function, parallel, threads, MOST_BYTES)
        if several(schedule, CopyAhead):
            function, parallel = copy_ahead(function, parallel, staged[0].threads)
        place = function.body.ops.index(parallel)
        function = interleave(function)
        parallel = function.body.ops[place]
        by_lane(parallel)
        register_window.align_stores(function, parallel, limits_of(function, schedule))
        tell(listener, schedule, (Stage, SharedArrays, CopyAhead, Unroll), function)
    elif unrolled or pipelined:
        function, parallel = serial_steps(function, parallel, names, pipelined)
        tell(listener, schedule, (Unroll, Prefetch), function)
    return function, parallel


def _marked(loop: LoopNest, schedule: Schedule) -> Function:
    """The function, in which what threads share is marked, and loops with a register window are.
    Raises ``ScheduleError``."""
    if kept := several(schedule, RegisterWindow):
        return register_window.marked(
            loop.function, {loop.serial[step.loop]: step for step in kept}
        )
    if copies := several(schedule, CopyAhead):
        notes = {loop.serial[step.loop]: {COPIED: step.steps} for step in copies}
        return annotated(loop.function, notes)
    together = only(schedule, Cooperate)
    if together is None:
        return loop.function
    team = asked_cuda.team(loop, together)
    if isinstance(team, str):
        raise ScheduleError(f"`{show([together])}`: {team}", loop.parallel.span)
    return marked(loop.function, team)


def divisors_of(
    program: Program, divisions: Mapping[Op, int]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Each divisor's step, in the order of their numbers, with the steps of what it divides."""
    dividends: dict[int, set[int]] = {}
    for op, step in divisions.items():
        dividends.setdefault(step, set()).add(program.of(op.left))
    return tuple((step, tuple(sorted(dividends[step]))) for step in sorted(dividends))


def common_of(parallel: Op | None, axis: int, width: int, program: Program) -> Common | None:
    """What so many neighbours along ``axis`` have in common; None where a call cannot make them
    whole vectors."""
    if parallel is None:
        return None
    lower, _, step = Parallel(parallel).axes[axis]
    if not is_constant(step, 1):
        return None
    body = parallel.body
    return common(body, body.args[axis], lower, width, program.given)


# -- what runs on the grid

_EFFECTS = {
    "memref.store", "memref.atomic_rmw", "memref.atomic_cas", "memref.alloca", "weft.print",
    "scf.parallel",
}  # fmt: skip


def outermost(function: Function) -> Op | None:
    """The parallel loop that the grid runs; None if one thread has to run the function as written.

    Every thread computes for itself what comes before the loop: that must write nothing, and read
    nothing that the function writes.
    """
    ops = function.body.ops
    places = [k for k, op in enumerate(ops) if op.name == "scf.parallel" and op.attrs["dims"]]
    if len(places) != 1:
        return None
    place = places[0]
    before = [inner for op in ops[:place] for inner in below(op)]
    after = [inner for op in ops[place + 1 :] for inner in below(op)]
    if any(op.name in _EFFECTS for op in before):
        return None
    if not ops[place].attrs["kinds"] and any(
        op.name in _EFFECTS or op.name in ("weft.assert", "weft.bounds") for op in after
    ):
        return None
    changed, read = written(function), loaded(before)
    if read & changed or (read and changed and not function.attrs.get("noalias", True)):
        return None
    return ops[place]

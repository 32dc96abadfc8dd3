"""What launching on a GPU is to know of a loop: the numbers that a call decides by, and the
schedules that it may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.errors import ScheduleError
from weft.ir.core import Function, Op
from weft.ir.views import For, Parallel, memory
from weft.schedule import asked_cuda, default_cuda
from weft.schedule.apply_cuda import common_of, divisors_of, outermost
from weft.schedule.choose import Candidate
from weft.schedule.cooperative_loops import Team, find
from weft.schedule.default_cuda import Divisible, Picks, picks
from weft.schedule.guards import Fits32
from weft.schedule.index_width import Program, candidates, divisions
from weft.schedule.language import IndexWidth, Scan, SplitReduction, only, show
from weft.schedule.nest import LoopNest, Nest, arrays_of, axes_of, loops_of
from weft.schedule.rows import VECTOR_BYTES
from weft.values import frozen


@frozen
class Analysis:
    """``candidates``: those that a call prefers first; the first ``asked`` are a person's."""

    nest: Nest
    candidates: tuple[Candidate, ...]
    asked: int = 0


def analyse(function: Function, program: Program, asked: str | None = None) -> Analysis:
    """What is known of ``function``, the result of the passes, whose index arithmetic ``program``
    is. ``asked``: the text of a person's schedule, whose candidates come first. Raises
    ``ScheduleError`` where the loop does not allow it."""
    parallel = outermost(function)
    if parallel is None and asked is not None:
        raise ScheduleError(
            f"`{asked}`: no parallel loop goes onto the grid, one thread runs all of this",
            function.span, "take the schedule away",
        )  # fmt: skip
    chosen, needed = candidates(program)
    nest = Nest(
        arrays_of(function), (), tuple(program.steps), must_fit_32=tuple(needed),
        divisions=divisors_of(program, divisions(program, function, chosen)),
    )  # fmt: skip
    if parallel is None:
        alone = (Candidate((Fits32(),), (IndexWidth(32),)), Candidate((), ()))
        return Analysis(nest, alone)
    return _of_loop(LoopNest(function, parallel), nest, program, asked)


def _of_loop(loop: LoopNest, nest: Nest, program: Program, asked: str | None) -> Analysis:
    """``nest`` knows nothing of the loop yet."""
    function, parallel = loop.function, loop.parallel
    found = picks(function, parallel)
    team = None if found.asked else find(function, parallel, found.order[0])
    bounds = [(program.of(low), program.of(high), program.of(step))
              for low, high, step in Parallel(parallel).axes]  # fmt: skip
    lengths = team.lengths if team is not None else []
    nest = replace(
        nest, axes=axes_of(parallel), bounds=tuple(bounds), kinds=parallel.attrs["kinds"],
        lengths=tuple((program.of(low), program.of(high)) for low, high in lengths),
    )  # fmt: skip
    divisible = None
    if found.vector.copies > 1:
        divisible = _divisible(loop, found.order[0], found.vector.width, program)
    splits: dict[Op, Team] = {}
    if team is not None and (team.split(parallel.body) or team.parted(parallel.body)):
        splits = dict.fromkeys(team.loops, team)
    first: tuple[Candidate, ...] = ()
    if asked is not None:
        first = _asked(asked, loop, nest, found, program)
        shared = asked_cuda.shared_loops(loop, first)
        ends = [program.of(For(op).upper) for op in shared]
        nest = replace(nest, shared_ends=tuple(sorted({*ends})))
        split = only(first[0].schedule, SplitReduction) or only(first[0].schedule, Scan)
        if split is not None and isinstance(asked_for := asked_cuda.team(loop, split), Team):
            splits |= dict.fromkeys(asked_for.loops, asked_for)
    nest = replace(nest, splits=_splits(parallel, splits, program))
    usual = default_cuda.candidates(loop, nest, found, team, divisible, program.of)
    return Analysis(nest, (*first, *usual), len(first))


def _splits(
    parallel: Op, splits: Mapping[Op, Team], program: Program
) -> tuple[tuple[str, int, tuple[tuple[int, int], ...]], ...]:
    """``Nest.splits``, of these loops of teams."""
    return tuple(
        (name, len(splits[op].loops[op]), tuple(
            (program.of(For(o).lower), program.of(For(o).upper)) for o in splits[op].nest(op)
        ))
        for name, op in (loops_of(parallel) if splits else {}).items() if op in splits
    )  # fmt: skip


def _asked(
    text: str, loop: LoopNest, nest: Nest, found: Picks, program: Program
) -> tuple[Candidate, ...]:
    """The candidates of a person's text. Raises ``ScheduleError``."""
    vector = asked_cuda.divisible_vector(text)
    divisible = None
    if vector is not None and vector.axis in loop.axes:
        divisible = _divisible(loop, loop.axes.index(vector.axis), vector.width, program)
        if divisible is None:
            raise ScheduleError(
                f"`{show([vector])}`: no quotient or remainder in subscripts is shared by "
                f"{vector.width} neighbours in any call", loop.parallel.span,
                "leave divisible=True out",
            )  # fmt: skip
    return asked_cuda.candidates(text, loop, nest, found, divisible, program.of)


def _divisible(loop: LoopNest, axis: int, width: int, program: Program) -> Divisible | None:
    """What a call must satisfy for vectors of ``width`` along ``axis`` where subscripts have
    quotients."""
    shared = common_of(loop.parallel, axis, width, program)
    if shared is None:
        return None
    aligned: dict[int, int] = {}
    for op in shared.whole:
        memref, _, _ = memory(op)
        limit = min(width * memref.memref.element.bytes, VECTOR_BYTES)
        aligned[loop.function.args.index(memref)] = limit
    return Divisible(
        tuple(sorted(map(program.of, shared.multiples))),
        tuple(sorted(map(program.of, shared.divisors))), tuple(sorted(aligned.items())),
    )  # fmt: skip

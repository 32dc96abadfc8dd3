"""The CUDA back end: what is known of a kernel before a call, and its PTX by a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft import timing
from weft.codegen import ptx
from weft.codegen.emit import symbol_of
from weft.codegen.grid import GridEmitter
from weft.codegen.launching import Facts
from weft.codegen.tables import described, printed
from weft.codegen.threads import argument_slots
from weft.errors import ScheduleError
from weft.ir.builder import annotated
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType
from weft.ir.views import For, Parallel, is_constant, memory
from weft.ir.writes import loaded
from weft.ir.writes import written as written_memrefs
from weft.passes.reciprocal import reciprocal
from weft.schedule import asked_cuda, register_window
from weft.schedule.choose import Candidate, candidate
from weft.schedule.cooperative_loops import Team, find, marked
from weft.schedule.default_cuda import Divisible, Picks, picks
from weft.schedule.default_cuda import candidates as schedules
from weft.schedule.divisibility import Common, common
from weft.schedule.index_width import Program, candidates, divisions, narrow
from weft.schedule.interleave import interleave
from weft.schedule.language import (
    Align,
    Bind,
    Cooperate,
    FastDivision,
    IndexWidth,
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
    Unroll,
    UnrollJam,
    Vectorize,
    only,
    several,
    show,
    tiled,
)
from weft.schedule.marks import aggregated, numbered, reassociated
from weft.schedule.nest import LoopNest, Nest, arrays_of, axes_of, loops_of
from weft.schedule.own import OwnStep
from weft.schedule.prefetch import serial_steps
from weft.schedule.reverse import reverse
from weft.schedule.rows import VECTOR_BYTES
from weft.schedule.shared_arrays import shared_arrays
from weft.schedule.stage import MOST_BYTES, stage
from weft.schedule.stage_rows import stage_rows
from weft.schedule.unroll_jam import unroll_jam
from weft.values import frozen


@frozen
class CudaCode:
    """A kernel by one schedule, for one architecture. Its functions are ``symbol`` and, where it
    reduces, ``symbol`` + "_finish"."""

    arch: str
    schedule: Schedule
    llvm: str
    functions: tuple[str, ...]  # of libdevice
    ptx: str
    symbol: str

    def optimized(self) -> str:
        """The LLVM IR after optimisation."""
        return str(ptx.optimized(self.llvm, self.arch, self.functions))


def analyse(function: Function, asked: str | None = None) -> Facts:
    """What is known of ``function``, the result of the passes, and its candidates. ``asked``: the
    text of a person's schedule, whose candidates come first. Raises ``ScheduleError`` where the
    loop does not allow it."""
    parallel = outermost(function)
    if parallel is None and asked is not None:
        raise ScheduleError(
            f"`{asked}`: no parallel loop goes onto the grid, one thread runs all of this",
            function.span, "take the schedule away",
        )  # fmt: skip
    program = program_of(function)
    chosen, needed = candidates(program)
    bounds: list[tuple[int, int, int]] = []
    found = team = None
    if parallel is not None:
        bounds = [
            (program.of(low), program.of(high), program.of(step))
            for low, high, step in Parallel(parallel).axes
        ]
        found = picks(function, parallel)
        if not found.asked:
            team = find(function, parallel, found.order[0])
    lengths = team.lengths if team is not None else []
    nest = Nest(
        arrays_of(function), axes_of(parallel) if parallel is not None else (),
        tuple(program.steps), tuple(bounds),
        tuple((program.of(low), program.of(high)) for low, high in lengths), tuple(needed),
        _divisors(program, divisions(program, function, chosen)),
        parallel.attrs["kinds"] if parallel is not None else (),
    )  # fmt: skip
    usual = ()
    if parallel is not None and found is not None and found.vector.copies > 1:
        usual = (found.order[0], found.vector.width)
    divisible = _divisible(function, parallel, *usual, program) if usual else None
    first: tuple[Candidate, ...] = ()
    splits: dict[Op, Team] = {}
    if parallel is not None and team is not None and (
        team.split(parallel.body) or team.parted(parallel.body)
    ):  # fmt: skip
        splits = dict.fromkeys(team.loops, team)
    loop = LoopNest(function, parallel) if parallel is not None else None
    if asked is not None and loop is not None and found is not None:
        first = _asked(asked, loop, nest, found, program)
        shared = asked_cuda.shared_loops(loop, first)
        ends = [program.of(For(op).upper) for op in shared]
        nest = replace(nest, shared_ends=tuple(sorted({*ends})))
        split = only(first[0].schedule, SplitReduction) or only(first[0].schedule, Scan)
        if split is not None and isinstance(asked_for := asked_cuda.team(loop, split), Team):
            splits |= dict.fromkeys(asked_for.loops, asked_for)
    if parallel is not None and splits:
        nest = replace(nest, splits=tuple(
            (name, len(splits[op].loops[op]), tuple(
                (program.of(For(o).lower), program.of(For(o).upper)) for o in splits[op].nest(op)
            ))
            for name, op in loops_of(parallel).items() if op in splits
        ))  # fmt: skip
    made = (*first, *schedules(loop, nest, found, team, divisible, program.of))
    return Facts(
        symbol_of(function.name), argument_slots(function), described(function),
        printed(function), nest, tuple(map(str, made)), len(first),
    )  # fmt: skip


def _asked(
    text: str, loop: LoopNest, nest: Nest, found: Picks, program: Program
) -> tuple[Candidate, ...]:
    """The candidates of a person's text. Raises ``ScheduleError``."""
    vector = asked_cuda.divisible_vector(text)
    divisible = None
    if vector is not None and vector.axis in loop.axes:
        axis = loop.axes.index(vector.axis)
        divisible = _divisible(loop.function, loop.parallel, axis, vector.width, program)
        if divisible is None:
            raise ScheduleError(
                f"`{show([vector])}`: no quotient or remainder in subscripts is shared by "
                f"{vector.width} neighbours in any call", loop.parallel.span,
                "leave divisible=True out",
            )  # fmt: skip
    return asked_cuda.candidates(text, loop, nest, found, divisible, program.of)


def usual(facts: Facts) -> Schedule:
    """What is asked for, or the schedule of large calls in which each thread has its iterations for
    itself."""
    if facts.asked:
        return candidate(facts.candidates[0]).schedule
    special = (Cooperate, Prefetch, Privatize, UnrollJam, StreamingStores)
    found = (candidate(text).schedule for text in facts.candidates)
    return next(s for s in found if not any(isinstance(step, special) for step in s))


def compile_cuda(function: Function, schedule: Schedule, arch: str) -> CudaCode:
    """PTX of ``function`` by a schedule. ``arch`` as ``ptx.architecture`` gives it."""
    with timing.stage("emit"):
        grid = scheduled(function, schedule)
        text = grid.emit()
    with timing.stage("llvm"):
        functions = tuple(sorted(grid.cuda.functions))
        module = ptx.optimized(text, arch, functions)
    with timing.stage("ptx"):
        assembly = ptx.assemble(module, arch)
        if only(schedule, StreamingStores) is not None:
            assembly = ptx.streaming(assembly)
    return CudaCode(arch, schedule, text, functions, assembly, grid.symbol)


def scheduled(function: Function, schedule: Schedule) -> GridEmitter:
    """``function`` after the steps of ``schedule``, to be written as LLVM IR. Raises
    ``ScheduleError`` for what the loop does not allow."""
    if only(schedule, Scan) is None and not function.strict:
        function = reciprocal(function, carried=True)
    function = annotated(function, numbered(function))  # before there are copies of any
    parallel = outermost(function)
    axes = axes_of(parallel) if parallel is not None else ()
    order = [axes.index(bind.axis) for bind in several(schedule, Bind)]
    if parallel is not None:
        function = _marked(LoopNest(function, parallel), schedule)
    divisors: list[int] = []
    if only(schedule, IndexWidth) is not None:
        program = program_of(function)
        chosen, _ = candidates(program)
        notes: dict[Op, dict[str, Any]] = {op: {} for op in walk(function.body)}
        if only(schedule, FastDivision) is not None:
            found = divisions(program, function, chosen)
            divisors = [step for step, _ in _divisors(program, found)]
            for op, step in found.items():
                notes[op]["divisor"] = divisors.index(step)
        vector = only(schedule, Vectorize)
        if vector is not None and vector.divisible:
            outer = outermost(function)
            shared = _common(outer, order[0], vector.width, program)
            assert shared is not None
            notes |= {op: notes[op] | {"even": "shared"} for op in shared.shared}
            notes |= {op: notes[op] | {"even": "whole"} for op in shared.whole}
        function = narrow(function, chosen, notes)
    parallel = outermost(function)
    if parallel is not None and (reversed_ := several(schedule, Reverse)):
        serial = loops_of(parallel)
        function, parallel = reverse(function, parallel, {serial[r.loop] for r in reversed_})
    unrolled, pipelined = only(schedule, Unroll), several(schedule, Prefetch)
    names, staged = unrolled.loops if unrolled else (), several(schedule, Stage)
    if parallel is not None and staged:
        function, parallel = stage(function, parallel, order[0], names, staged)
        if only(schedule, SharedArrays) is not None:
            threads = staged[0].threads
            function, parallel = shared_arrays(function, parallel, threads, MOST_BYTES)
        place = function.body.ops.index(parallel)
        function = interleave(function)
        parallel = function.body.ops[place]
        register_window.align_stores(function, parallel, _limits(function, schedule))
    elif parallel is not None and (unrolled or pipelined):
        function, parallel = serial_steps(function, parallel, names, pipelined)
    for step in schedule:
        if parallel is None:
            break
        if isinstance(step, UnrollJam):
            axis = axes.index(step.axis)
            how = step.copies, step.stride, step.overlap, step.whole
            function, parallel = unroll_jam(function, parallel, axis, *how)
        elif isinstance(step, OwnStep):
            function, parallel = step.apply(function, parallel)
    if parallel is not None and only(schedule, RegisterWindow) is not None:
        limits = _limits(function, schedule)
        register_window.align_stores(function, parallel, limits)
        if tiled(schedule):
            function, parallel = stage_rows(function, parallel, order, schedule, limits)
            limits = _limits(function, schedule)
        function, parallel = register_window.register_window(function, parallel, limits)
    last = [reassociated(function)]
    if parallel is not None and only(schedule, Cooperate) is None:
        last.append(aggregated(parallel, Parallel(parallel).indices[order[0]]))
    place = function.body.ops.index(parallel) if parallel is not None else -1
    function = annotated(function, *last)
    parallel = function.body.ops[place] if parallel is not None else None
    return GridEmitter(function, parallel, order, schedule, len(divisors))


def _limits(function: Function, schedule: Schedule) -> dict[Value, int]:
    """The bytes that arguments, and their rows, begin at multiples of."""
    names = arrays_of(function)
    return {function.args[names.index(a.array)]: a.bytes for a in several(schedule, Align)}


def _marked(loop: LoopNest, schedule: Schedule) -> Function:
    """The function, in which what threads share is marked, and loops with a register window are.
    Raises ``ScheduleError``."""
    if kept := several(schedule, RegisterWindow):
        return register_window.marked(
            loop.function, {loop.serial[step.loop]: step for step in kept}
        )
    together = only(schedule, Cooperate)
    if together is None:
        return loop.function
    team = asked_cuda.team(loop, together)
    if isinstance(team, str):
        raise ScheduleError(f"`{show([together])}`: {team}", loop.parallel.span)
    return marked(loop.function, team)


def _divisors(
    program: Program, divisions: Mapping[Op, int]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Each divisor's step, in the order of their numbers, with the steps of what it divides."""
    dividends: dict[int, set[int]] = {}
    for op, step in divisions.items():
        dividends.setdefault(step, set()).add(program.of(op.left))
    return tuple((step, tuple(sorted(dividends[step]))) for step in sorted(dividends))


def _common(parallel: Op | None, axis: int, width: int, program: Program) -> Common | None:
    """What so many neighbours along ``axis`` have in common; None where a call cannot make them
    whole vectors."""
    if parallel is None:
        return None
    lower, _, step = Parallel(parallel).axes[axis]
    if not is_constant(step, 1):
        return None
    body = parallel.body
    return common(body, body.args[axis], lower, width, program.given)


def _divisible(
    function: Function, parallel: Op | None, axis: int, width: int, program: Program
) -> Divisible | None:
    """What a call must satisfy for vectors of ``width`` along ``axis`` where subscripts have
    quotients."""
    shared = _common(parallel, axis, width, program)
    if shared is None:
        return None
    aligned: dict[int, int] = {}
    for op in shared.whole:
        memref, _, _ = memory(op)
        limit = min(width * memref.memref.element.bytes, VECTOR_BYTES)
        aligned[function.args.index(memref)] = limit
    return Divisible(
        tuple(sorted(map(program.of, shared.multiples))),
        tuple(sorted(map(program.of, shared.divisors))), tuple(sorted(aligned.items())),
    )  # fmt: skip


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
    before = [inner for op in ops[:place] for inner in (op, *_below(op))]
    after = [inner for op in ops[place + 1 :] for inner in (op, *_below(op))]
    if any(op.name in _EFFECTS for op in before):
        return None
    if not ops[place].attrs["kinds"] and any(
        op.name in _EFFECTS or op.name in ("weft.assert", "weft.bounds") for op in after
    ):
        return None
    written = written_memrefs(function)
    read = loaded(before)
    if read & written or (read and written and not function.attrs.get("noalias", True)):
        return None
    return ops[place]


def _below(op: Op) -> Sequence[Op]:
    return [inner for region in op.regions for inner in walk(region)]


def program_of(function: Function) -> Program:
    """The index arithmetic of ``function``, from its argument block."""
    places = {(s.kind, s.arg, s.axis): k for k, s in enumerate(argument_slots(function))}
    positions = {arg: k for k, arg in enumerate(function.args)}

    def slot_of(value: Value, axis: int) -> int | None:
        position = positions.get(value)
        if position is None:
            return None
        kind = "size" if isinstance(value.type, MemRefType) else "int"
        return places.get((kind, position, axis))

    return Program(function, slot_of)

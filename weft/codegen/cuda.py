"""The CUDA back end: what is known of a kernel before a call, and its PTX by a schedule."""

from __future__ import annotations

from dataclasses import replace

from weft import timing
from weft.codegen import ptx
from weft.codegen.emit import symbol_of
from weft.codegen.grid import GridEmitter
from weft.codegen.launching import Facts
from weft.codegen.tables import described, printed
from weft.codegen.threads import argument_slots
from weft.errors import ScheduleError
from weft.ir.core import Function, Op, Value
from weft.ir.types import MemRefType
from weft.ir.views import For, Parallel, memory
from weft.passes.reciprocal import reciprocal
from weft.schedule import asked_cuda
from weft.schedule.apply_cuda import apply_cuda, common_of, divisors_of, outermost
from weft.schedule.choose import Candidate, candidate
from weft.schedule.cooperative_loops import Team, find
from weft.schedule.default_cuda import Divisible, Picks, picks
from weft.schedule.default_cuda import candidates as schedules
from weft.schedule.index_width import Program, candidates, divisions
from weft.schedule.language import (
    Cooperate,
    Prefetch,
    Privatize,
    Scan,
    Schedule,
    SplitReduction,
    StreamingStores,
    UnrollJam,
    only,
    show,
)
from weft.schedule.listener import Listener, ignored
from weft.schedule.nest import LoopNest, Nest, arrays_of, axes_of, loops_of
from weft.schedule.rows import VECTOR_BYTES
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
        divisors_of(program, divisions(program, function, chosen)),
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


def scheduled(function: Function, schedule: Schedule, listener: Listener = ignored) -> GridEmitter:
    """``function`` after the steps of ``schedule``, to be written as LLVM IR. ``listener``: see
    ``apply_cuda``. Raises ``ScheduleError`` for what the loop does not allow."""
    if only(schedule, Scan) is None and not function.strict:
        function = reciprocal(function, carried=True)
    return GridEmitter(apply_cuda(function, schedule, program_of, listener), schedule)


def _divisible(
    function: Function, parallel: Op | None, axis: int, width: int, program: Program
) -> Divisible | None:
    """What a call must satisfy for vectors of ``width`` along ``axis`` where subscripts have
    quotients."""
    shared = common_of(parallel, axis, width, program)
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

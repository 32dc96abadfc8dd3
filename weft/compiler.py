"""The pipeline: a device loop of a kernel to machine code, from top to bottom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from weft import timing
from weft.codegen.shading import DIALECTS, Form, ShaderCode, ShaderFacts
from weft.frontend.lower import lower
from weft.frontend.sizes import Size, sizes
from weft.frontend.specs import Spec
from weft.frontend.split import Region
from weft.index.bounds import check_negative
from weft.index.describe import describe, in_words
from weft.index.expression import Dim
from weft.index.races import check_races
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Value, walk
from weft.ir.text import print_function
from weft.ir.types import MemRefType
from weft.ir.verify import verify as check
from weft.options import Options
from weft.passes.advance import advance
from weft.passes.collapse import collapse
from weft.passes.dce import dce
from weft.passes.factor import factor
from weft.passes.fuse import fuse
from weft.passes.if_convert import if_convert
from weft.passes.merge_updates import merge_updates
from weft.passes.promote import promote
from weft.passes.race_checks import race_checks
from weft.passes.reassociate_extrema import reassociate_extrema
from weft.passes.reciprocal import reciprocal
from weft.passes.recognise_reductions import recognise_reductions
from weft.passes.relax_atomics import relax_atomics
from weft.passes.reuse_output_as_scratch import reuse_output_as_scratch
from weft.passes.run import PIPELINE, Pass, run
from weft.passes.separate_sums import separate_sums
from weft.passes.serialize_reductions import serialize_reductions
from weft.passes.split_quotients import split_quotients
from weft.passes.tile import tile
from weft.passes.widen import widen
from weft.passes.write_out import carries_small_arrays, small_loops, write_out
from weft.schedule.language import Cooperate, Schedule, SharedArrays, only, parse, several, show
from weft.schedule.nest import loops_of
from weft.schedule.recurrences import MOST_JOINT, composes
from weft.settings import deeply
from weft.source import FunctionSource
from weft.values import mutable

if TYPE_CHECKING:
    from weft.codegen.cpu import CpuCode

DEFAULTS = Options()
Variants = Mapping[Pass, Sequence[Pass]]  # what stands in place of a pass


@deeply
def to_code(
    function: Function, options: Options, *, noalias: bool = True,
    listener: Callable[[str, Function], None] | None = None, asked: str | None = None,
    made_for: str = "", streaming_beyond: int | None = None, columns: str = "", rare: bool = False,
) -> CpuCode:  # fmt: skip
    """IR to object code of this machine (or of another, see ``compile_cpu``), by the schedule that
    is ``asked`` for, or with stores that stream where arrays have more bytes than
    ``streaming_beyond``. ``columns``, ``rare``: see ``compile_cpu``. Raises ``RaceError`` where
    iterations provably meet, ``ScheduleError``; in debug mode, the code checks at run time where
    that is not known."""
    from weft.codegen import cpu  # LLVM, which shaders do without
    from weft.schedule.default_cpu import completed

    wish = asked is not None
    function = optimize_for_cpu(function, options, noalias=noalias, listener=listener, asked=wish)
    schedule = None if asked is None else completed(asked)
    return cpu.compile_cpu(function, schedule, made_for, streaming_beyond, columns, rare=rare)


@deeply
def optimize_for_cpu(
    function: Function, options: Options = DEFAULTS, *, noalias: bool = True,
    listener: Callable[[str, Function], None] | None = None, asked: bool = False,
) -> Function:  # fmt: skip
    """IR after the passes, for a CPU. The loop that a schedule is ``asked`` for is not cut up: its
    axes are those of the source. Raises ``RaceError``."""
    _checked(function, options)
    first = [race_checks] if options.debug else []
    reordered = [reassociate_extrema, factor, separate_sums, reciprocal, fuse]
    moving = [recognise_reductions, serialize_reductions, split_quotients, tile]
    without = [advance, *(reordered if options.strict_math else []), *(moving if asked else [])]
    return _passed(function, options, noalias, listener, without, first)


@deeply
def race_checked(function: Function, *, noalias: bool) -> Function | None:
    """``function`` without its prints, if races are to be looked for when it runs; None where index
    sets decide about them."""
    asked = copy(function)
    asked.attrs = {**function.attrs, "noalias": noalias}
    if not any(op.name == "weft.check_race" for op in walk(race_checks(asked).body)):
        return None
    return Rewriter(lambda op, _: [] if op.name == "weft.print" else None).function(function)


@deeply
def optimize(
    function: Function, options: Options = DEFAULTS, *, noalias: bool = True,
    listener: Callable[[str, Function], None] | None = None, asked: str | None = None,
) -> Function:  # fmt: skip
    """IR after the passes, for a GPU: its loops are not cut up. Loops that the schedule ``asked``
    for lets threads share stay loops, and all that it names where it names one that would be fused
    with others. Raises ``RaceError``."""
    _checked(function, options)
    reordered = (
        [reassociate_extrema, factor, separate_sums, reciprocal] if options.strict_math else []
    )
    moving = [recognise_reductions, serialize_reductions, split_quotients, tile]
    without = [widen, *moving, if_convert, reuse_output_as_scratch, *reordered]
    shared = {name for step in several(parse(asked or ""), Cooperate) for name in step.loops}

    other: Variants = {
        collapse: [partial(collapse, stay=shared, ragged=True)],
        merge_updates: [partial(merge_updates, expensive=True)],  # memory costs more there
        reciprocal: [divided := partial(reciprocal, carried=False)],
    }
    steps = parse(asked or "")
    named = {name for step in steps for name in (*getattr(step, "loops", ()),
                                                 *[getattr(step, "loop", "")])} - {""}  # fmt: skip

    def has_named(made: Function) -> bool:
        loops = (op for op in made.body.ops if op.name == "scf.parallel")
        return all(named <= {*loops_of(op)} for op in loops)

    arrays_asked = only(steps, SharedArrays) is not None or not named.isdisjoint(
        small_loops(function)
    )
    if carries_small_arrays(function) and not arrays_asked:
        scalars, carrying = write_out(function), {
            **other, promote: [partial(promote, local=MOST_JOINT)],
            reciprocal: [dce, divided],  # arrays that are dead hide what composes
        }  # fmt: skip
        made = _passed(scalars, options, noalias, None, without, other=carrying)
        if composes(made) and has_named(made):
            if listener is not None:  # which is told of what is taken only
                made = _passed(scalars, options, noalias, listener, without, other=carrying)
            return made
    made = _passed(function, options, noalias, listener, without, other=other)
    if has_named(made):
        return made
    without += [factor, fuse]
    return _passed(function, options, noalias, listener, without, other=other)


@deeply
def to_shader(
    function: Function, options: Options, dialect: str, *, watch: bool = False
) -> ShaderCode:
    """IR to the text of shaders, in "wgsl" or "msl" (see ``compile_shader``). Raises
    ``CompileError``s."""
    from weft.codegen.shader import emit  # where shaders are asked for

    return emit.compile_shader(optimize(function, options), dialect, watch=watch)


@deeply
def shader_facts(function: Function, dialect: str) -> ShaderFacts:
    """What launching is to know of ``function``, the result of ``optimize``, as a shader."""
    from weft.codegen.shader import emit  # where shaders are asked for

    return emit.analyse(function, dialect)


@deeply
def shader_form(
    function: Function, schedule: Schedule, threads: tuple[int, int, int], private: int,
    dialect: str, *, watch: bool,
) -> Form | None:  # fmt: skip
    """``function``, the result of ``optimize``, as a shader by a schedule: see ``emit.form``. None
    where threads would wait for each other as those of shaders cannot."""
    from weft.codegen.shader import emit  # where shaders are asked for

    try:
        return emit.form(function, schedule, threads, private, dialect, watch=watch)
    except emit.NotInShaderError:
        return None


def _checked(function: Function, options: Options) -> None:
    if options.verify:
        check(function)
    with timing.stage("races"):
        if "order" not in function.attrs:  # derived loops access what theirs do
            check_negative(function)
        check_races(function)


def _passed(
    function: Function, options: Options, noalias: bool,
    listener: Callable[[str, Function], None] | None, without: Sequence[Pass],
    first: Sequence[Pass] = (), other: Variants = MappingProxyType({}),
) -> Function:  # fmt: skip
    function = copy(function)
    function.attrs = {**function.attrs, "noalias": noalias, **options.attributes}
    # Where buffers overlap, accumulations into two of them may meet: they stay atomic.
    left_out = without if noalias else [*without, relax_atomics]
    passes = [*first, *(q for p in PIPELINE if p not in left_out for q in other.get(p, [p]))]
    return run(function, passes, verify=options.verify, listener=listener)


@mutable
class Stages:
    """Every stage of a compilation as text, in order: what ``kernel.inspect`` shows."""

    name: str
    texts: dict[str, str] = field(default_factory=dict)
    # Stages that are made where they are asked for, by name: "wgsl" and "msl".
    others: dict[str, Callable[[], str]] = field(default_factory=dict)

    def __getitem__(self, stage: str) -> str:
        if stage not in self.texts and stage in self.others:
            self.texts[stage] = self.others[stage]()
        if stage not in self.texts:
            every = ", ".join(dict.fromkeys([*self.texts, *self.others]))
            raise KeyError(f"`{self.name}` has no stage `{stage}`; there are: {every}")
        return self.texts[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self.texts))

    def __contains__(self, stage: object) -> bool:
        return stage in self.texts or stage in self.others

    def keys(self) -> list[str]:
        """The stages' names, in order."""
        return list(self.texts)

    def text(self, *stages: str) -> str:
        """The named stages (all if none is named) below each other, with headings."""
        wanted = stages or tuple(self.texts)
        return "\n\n".join(f"=== {self.name}: {s} ===\n{self[s].rstrip()}" for s in wanted)

    def __str__(self) -> str:
        return self.text()


def _equal_sizes(function: Function, equal: Mapping[str | Size, Size]) -> dict[Value | Dim, Dim]:
    """``equal``, which is by name, of the arguments of ``function``."""
    args = {arg.name: arg for arg in function.args}
    arrays = {n: a for n, a in args.items() if isinstance(a.type, MemRefType)}
    found: dict[Value | Dim, Dim] = {}
    for one, (name, axis) in equal.items():
        if name not in arrays or axis >= arrays[name].memref.rank:
            continue
        size = Dim(arrays[name], axis)
        if isinstance(one, str) and one in args and one not in arrays:
            found[args[one]] = size
        elif isinstance(one, tuple) and one[0] in arrays and one[1] < arrays[one[0]].memref.rank:
            found[Dim(arrays[one[0]], one[1])] = size
    return found


@deeply
def stages(
    region: Region, specs: dict[str, Spec], source: FunctionSource, options: Options, *,
    arch: str = "", taken: str = "", streaming_beyond: int | None = None, columns: str = "",
) -> Stages:  # fmt: skip
    """Compiles once more, for this machine or the GPU ``arch``, keeping what each stage made.
    Nothing is loaded or cached. ``taken``: the text of the schedule for a GPU; "": what is
    asked for, or what a large call takes. ``streaming_beyond``, ``columns``: see ``to_code``."""
    lowered = lower(region, specs, source, debug=options.debug)
    shown = Stages(lowered.function.name)
    shown.texts["source"] = lowered.typed_source
    shown.texts["ir"] = print_function(lowered.function, spans=True)
    equal = _equal_sizes(lowered.function, sizes(source.tree, region.node))
    shown.texts["index sets"] = describe(lowered.function, equal)
    shown.texts["index sets in words"] = in_words(lowered.function, equal)

    made = lowered.function

    def listener(name: str, function: Function, what: str = "ir after") -> None:
        nonlocal made
        key, k = f"{what} {name}", 2
        while key in shown.texts:
            key, k = f"{what} {name} ({k})", k + 1
        shown.texts[key] = print_function(function, spans=options.lines)
        made = function

    def step(name: str, function: Function) -> None:
        listener(name, function, "step")

    options = replace(options, verify=True)
    for dialect in DIALECTS:
        shown.others[dialect] = lambda d=dialect: to_shader(lowered.function, options, d).text
    if options.on:
        optimize(lowered.function, options, listener=listener)
        shown.texts["wgsl"] = shown["wgsl"]
        return shown
    asked = None if options.debug else options.asked("cuda" if arch else "cpu", shown.name)
    if arch:
        function = optimize(lowered.function, options, listener=listener, asked=asked)
        shown.texts.update(_gpu_texts(function, arch, asked, step, taken))
        return shown
    from weft.codegen import cpu  # likewise

    code = to_code(lowered.function, options, listener=listener, asked=asked,
                   streaming_beyond=streaming_beyond, columns=columns)  # fmt: skip
    shown.texts["schedule"] = show(code.schedule) or "nothing: LLVM vectorises"
    beyond = streaming_beyond if asked is None else None
    cpu.scheduled(made, code.schedule, cpu.host_cpu(), step, streaming_beyond=beyond)
    shown.texts["scheduled ir"] = print_function(code.function, spans=options.lines)
    shown.texts["llvm"] = code.llvm
    shown.texts["llvm optimized"] = code.optimized()
    shown.texts["assembly"] = code.assembly()
    return shown


def _gpu_texts(
    function: Function, arch: str, asked: str | None, step: Callable[[str, Function], None],
    taken: str,
) -> dict[str, str]:  # fmt: skip
    """The stages behind the passes: of each candidate the IR after its steps, then the code by the
    schedule that is ``taken``, whose steps ``step`` is told of."""
    from weft.codegen import cuda, ptx  # code generation for GPUs is not needed without one
    from weft.schedule.choose import candidate, for_large_calls  # likewise
    from weft.schedule.grid import threads_of

    facts = cuda.analyse(function, asked)
    schedule = parse(taken) if taken else for_large_calls(facts.candidates, facts.asked)
    every = "\n".join(facts.candidates)
    texts = {"schedule": f"{show(schedule)}\n\nfor {arch}, of these:\n{every}"}
    run = cuda.scheduled(function, schedule, step).bound.function
    if taken:
        texts["scheduled ir"] = print_function(run, spans=function.lined)
    for k, text in enumerate(facts.candidates if not taken else ()):
        made = cuda.scheduled(function, candidate(text).schedule)
        texts[f"scheduled ir {k}"] = f"// {text}\n{print_function(made.bound.function)}"
    code = cuda.compile_cuda(function, schedule, arch)
    texts |= {"llvm": code.llvm, "llvm optimized": code.optimized(), "ptx": code.ptx}
    if ptx.ptxas() is None:
        return texts
    threads = threads_of(schedule)
    used = ptx.usage(code.ptx, arch).values()
    texts["resources"] = "\n".join(use.describe(threads) for use in used)
    sass = ptx.disassembly(code.ptx, arch)
    return {**texts, "sass": sass} if sass is not None else texts

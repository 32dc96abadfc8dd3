"""The CUDA back end: what is known of a kernel before a call, and the PTX of each of its
variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft import timing
from weft.codegen import launching, ptx
from weft.codegen.emit import symbol_of
from weft.codegen.grid import Grid
from weft.codegen.host import Cpu
from weft.codegen.jam import jam
from weft.codegen.launching import (
    LEAST_MEMBERS,
    MOST_MEMBERS,
    SEVERAL,
    WARP,
    Even,
    Facts,
    Variant,
)
from weft.codegen.mapping import VECTOR_BYTES, plan
from weft.codegen.narrow import Program, candidates, divisions, narrow
from weft.codegen.neighbours import Common, common
from weft.codegen.teams import find, marked
from weft.codegen.threads import argument_slots
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType
from weft.ir.views import Parallel, is_constant, memory
from weft.ir.writes import loaded
from weft.ir.writes import written as written_memrefs


@dataclass(frozen=True, slots=True)
class CudaCode:
    """One variant of a kernel for one architecture. Its functions are ``symbol`` and, where it
    reduces, ``symbol`` + "_finish"."""

    arch: str
    variant: Variant
    llvm: str
    functions: tuple[str, ...]  # of libdevice
    ptx: str
    symbol: str

    def optimized(self) -> str:
        """The LLVM IR after optimisation."""
        return str(ptx.optimized(self.llvm, self.arch, self.functions))


def analyse(function: Function, *, noalias: bool, strict_math: bool) -> Facts:
    """What is known of ``function``, the result of the passes."""
    function.attrs["noalias"] = noalias
    parallel = outermost(function, noalias=noalias)
    program = _program(function)
    chosen, needed = candidates(program)
    bounds: list[tuple[int, int, int]] = []
    if parallel is not None:
        bounds = [
            (program.of(low), program.of(high), program.of(step))
            for low, high, step in Parallel(parallel).axes
        ]
    tables = Cpu(function)
    mapping = None
    if parallel is not None:
        mapping = plan(function, parallel)
        team = (
            None
            if mapping.block
            else find(function, parallel, mapping.order[0], strict=strict_math)
        )
        lengths = team.lengths if team is not None else []
        mapping = replace(
            mapping,
            team=tuple((program.of(low), program.of(high)) for low, high in lengths),
            columns=team is not None and team.columns,
        )
    return Facts(
        symbol_of(function.name),
        argument_slots(function), tables.check_table, tables.print_table, tuple(program.steps),
        tuple(bounds), tuple(needed), _divisors(program, divisions(program, function, chosen)),
        mapping, parallel.attrs["kinds"] if parallel is not None else (),
        _even(function, parallel, mapping, program),
    )  # fmt: skip


def compile_cuda(
    function: Function,
    facts: Facts,
    variant: Variant,
    arch: str,
    *,
    strict_math: bool,
    noalias: bool,
) -> CudaCode:
    """PTX of one variant of ``function``. ``arch`` as ``ptx.architecture`` gives it."""
    with timing.stage("emit"):
        grid = grid_of(function, facts, variant, strict_math=strict_math, noalias=noalias)
        text = grid.emit()
    with timing.stage("llvm"):
        functions = tuple(sorted(grid.cuda.functions))
        module = ptx.optimized(text, arch, functions)
    with timing.stage("ptx"):
        assembly = ptx.assemble(module, arch)
        if variant.streams:
            assembly = ptx.streaming(assembly)
    return CudaCode(arch, variant, text, functions, assembly, grid.symbol)


def grid_of(
    function: Function, facts: Facts, variant: Variant, *, strict_math: bool, noalias: bool
) -> Grid:
    """One variant of ``function``, to be written as LLVM IR."""
    if variant.team:
        parallel = outermost(function, noalias=noalias)
        assert parallel is not None
        assert facts.mapping is not None
        team = find(function, parallel, facts.mapping.order[0], strict=strict_math)
        assert team is not None
        function = marked(function, team)
    if variant.narrow:
        program = _program(function)
        chosen, _ = candidates(program)
        notes: dict[Op, dict[str, Any]] = {op: {} for op in walk(function.body)}
        if variant.quick:
            found = divisions(program, function, chosen)
            order = [step for step, _ in _divisors(program, found)]
            for op, step in found.items():
                notes[op]["divisor"] = order.index(step)
        if variant.even:
            outer = outermost(function, noalias=noalias)
            shared = _common(outer, facts.mapping, program)
            assert shared is not None
            notes |= {op: notes[op] | {"even": "shared"} for op in shared.shared}
            notes |= {op: notes[op] | {"even": "whole"} for op in shared.whole}
        function = narrow(function, chosen, notes)
    parallel = outermost(function, noalias=noalias)
    assert (parallel is None) == facts.serial
    for place in variant.jams:
        assert parallel is not None
        assert facts.mapping is not None
        function, parallel = jam(function, parallel, facts.mapping.steps.jams[place])
    return Grid(
        function, parallel, facts.mapping, variant, strict_math=strict_math, noalias=noalias,
        divisors=len(facts.divisions), even=facts.even,
    )  # fmt: skip


def _divisors(
    program: Program, divisions: Mapping[Op, int]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Each divisor's step, in the order of their numbers, with the steps of what it divides."""
    dividends: dict[int, set[int]] = {}
    for op, step in divisions.items():
        dividends.setdefault(step, set()).add(program.of(op.left))
    return tuple((step, tuple(sorted(dividends[step]))) for step in sorted(dividends))


def _common(
    parallel: Op | None, mapping: launching.Mapping | None, program: Program
) -> Common | None:
    """What neighbours along x have in common; None where a call cannot make them even."""
    if parallel is None or mapping is None:
        return None
    axis = mapping.order[0]
    lower, _, step = Parallel(parallel).axes[axis]
    if mapping.vector == 1 or not is_constant(step, 1):
        return None
    body = parallel.body
    return common(body, body.args[axis], lower, mapping.side, program.given)


def _even(
    function: Function, parallel: Op | None, mapping: launching.Mapping | None, program: Program
) -> Even | None:
    found = _common(parallel, mapping, program)
    if found is None or mapping is None:
        return None
    aligned: dict[int, int] = {}
    for op in found.whole:
        memref, _, _ = memory(op)
        limit = min(mapping.side * memref.memref.element.bytes, VECTOR_BYTES)
        aligned[function.args.index(memref)] = limit
    return Even(
        mapping.side, tuple(sorted(aligned.items())),
        tuple(sorted(map(program.of, found.multiples))),
        tuple(sorted(map(program.of, found.divisors))),
    )  # fmt: skip


def variants(facts: Facts) -> list[Variant]:
    """Every form that calls may take, first that of large calls: for tests, and to look at."""
    if facts.mapping is None:
        return [Variant(narrow=wide, covers=False) for wide in (True, False)]
    found: list[Variant] = []
    for narrow_form in (True, False):
        for quick in (True, False) if narrow_form and facts.divisions else (False,):
            base = Variant(narrow_form, covers=False, quick=quick)
            found += [*_one_thread_each(facts, facts.mapping, base), *_teams(facts.mapping, base)]
    return found


def _one_thread_each(facts: Facts, mapping: launching.Mapping, base: Variant) -> Iterator[Variant]:
    """Forms in which a thread has its iterations for itself."""
    for vector in sorted({1, mapping.vector}, reverse=True):
        vectors = base.narrow and vector > 1
        for even in (True, False) if vectors and facts.even is not None else (False,):
            form = replace(base, vector=vector, even=even)
            if not facts.kinds:
                yield replace(form, covers=True)
                if vectors and mapping.streamed:
                    yield replace(form, covers=True, streams=True)
            yield form
    for jams in launching.jam_choices(mapping.steps):
        yield from (replace(base, jams=jams, covers=covers) for covers in (True, False))
    if mapping.private >= 0:
        yield replace(base, private=True)


def _teams(mapping: launching.Mapping, base: Variant) -> Iterator[Variant]:
    """Forms in which several threads have an iteration together."""
    if not mapping.team:
        return
    widths = (LEAST_MEMBERS, WARP // 2, WARP)
    if mapping.columns:
        yield from (replace(base, team=MOST_MEMBERS, columns=n) for n in widths)
    else:
        yield from (replace(base, team=n) for n in (*widths, SEVERAL, MOST_MEMBERS))


# -- what runs on the grid

_EFFECTS = {
    "memref.store", "memref.atomic_rmw", "memref.atomic_cas", "memref.alloca", "weft.print",
    "scf.parallel",
}  # fmt: skip


def outermost(function: Function, *, noalias: bool) -> Op | None:
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
    if read & written or (read and written and not noalias):
        return None
    return ops[place]


def _below(op: Op) -> Sequence[Op]:
    return [inner for region in op.regions for inner in walk(region)]


def _program(function: Function) -> Program:
    places = {(s.kind, s.arg, s.axis): k for k, s in enumerate(argument_slots(function))}
    positions = {arg: k for k, arg in enumerate(function.args)}

    def slot_of(value: Value, axis: int) -> int | None:
        position = positions.get(value)
        if position is None:
            return None
        kind = "size" if isinstance(value.type, MemRefType) else "int"
        return places.get((kind, position, axis))

    return Program(function, slot_of)

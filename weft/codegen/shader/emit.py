"""A module of a shader: arguments, buffers, functions and the entry, for a device loop."""

from __future__ import annotations

from collections.abc import Sequence

from weft import timing
from weft.codegen.cuda import program_of
from weft.codegen.shader.dialects import Dialect, UnsupportedInShaderError, type_of
from weft.codegen.shader.expand import expand
from weft.codegen.shader.functions import functions
from weft.codegen.shader.memory import Buffer, View
from weft.codegen.shader.printer import Printer, atomically_updated
from weft.codegen.shader.rules import Expressions
from weft.codegen.shading import ENTRY, FIRST, FLOAT64, INT64, Form, ShaderCode, Stage
from weft.codegen.tables import described
from weft.codegen.threads import argument_slots
from weft.ir.builder import annotated
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType, f32, f64, i64, index
from weft.ir.views import Parallel
from weft.ir.writes import loaded, written
from weft.schedule.apply_cuda import outermost
from weft.schedule.default_cuda import picks
from weft.schedule.index_width import Program, candidates, narrow
from weft.schedule.marks import numbered
from weft.schedule.nest import Nest, arrays_of, axes_of
from weft.schedule.workgroup import THREADS, on_workgroups


def compile_shader(function: Function, dialect: Dialect, *, watch: bool = False) -> ShaderCode:
    """``function``, the result of the passes, as shaders. ``watch``: for a driver that ends long
    loops too early, which is then an error. Raises ``UnsupportedInShaderError``."""
    with timing.stage("schedule"):
        function = expand(annotated(function, numbered(function)))
        parallel = outermost(function)
        program = program_of(function)
        chosen, needed = candidates(program)
        order = picks(function, parallel).order if parallel is not None else ()
        nest = _nest(function, parallel, program, needed)
    threads = (1, 1, 1)  # one thread runs what no loop shares
    if parallel is not None:
        line = len(order) < 2 or parallel.attrs["kinds"]
        threads = (THREADS, 1, 1) if line else (32, THREADS // 32, 1)
    with timing.stage("emit"):
        forms = [_form(narrow(function, chosen), order, threads, dialect, wide=False, watch=watch)]
        if chosen:
            forms.append(_form(function, order, threads, dialect, wide=True, watch=watch))
    places = {arg: k for k, arg in enumerate(function.args)}
    changed = {places[v] for v in written(function) if v in places}
    read = {places[v] for v in loaded(list(walk(function.body))) if v in places}
    return ShaderCode(
        dialect.name, argument_slots(function), described(function), nest, tuple(forms), threads,
        tuple(order), tuple(sorted(read | changed)), tuple(sorted(changed)),
        any(op.name == "weft.print" for op in walk(function.body)),
    )  # fmt: skip


def _nest(function: Function, parallel: Op | None, program: Program, needed: list[int]) -> Nest:
    bounds: list[tuple[int, int, int]] = []
    if parallel is not None:
        bounds = [
            (program.of(a), program.of(b), program.of(c)) for a, b, c in Parallel(parallel).axes
        ]
    return Nest(
        arrays_of(function), axes_of(parallel) if parallel is not None else (),
        tuple(program.steps), tuple(bounds), (), tuple(needed), (),
        parallel.attrs["kinds"] if parallel is not None else (),
    )  # fmt: skip


def _form(
    function: Function, order: Sequence[int], threads: tuple[int, int, int], dialect: Dialect, *,
    wide: bool, watch: bool,
) -> Form:  # fmt: skip
    bound = on_workgroups(function, outermost(function), order)
    word = 0
    if len(bound.stages) > 1:
        word = bound.function.args[-2].memref.element.bytes
    made = [_stage(stage, function, threads, dialect, wide, watch) for stage in bound.stages]
    return Form(wide, tuple(made), word)


def _stage(
    stage: Function, function: Function, threads: tuple[int, int, int], dialect: Dialect,
    wide: bool, watch: bool,
) -> Stage:  # fmt: skip
    """``function``: the one of whose arguments those of ``stage`` are the first. ``wide``: sizes
    and subscripts have 64 bits."""
    e = Expressions(dialect)
    changed, atomic = written(stage), atomically_updated(stage)
    slots = argument_slots(function)
    at = {(s.kind, s.arg, s.axis): FIRST + 2 * k for k, s in enumerate(slots)}
    names: dict[Value, str] = {}
    low: dict[Value, str] = {}
    views: dict[Value, View] = {}

    def size(word: int) -> str:
        return f"i64({dialect.param(word)})" if wide else f"i32({dialect.param(word)})"

    for k, arg in enumerate(stage.args):
        if isinstance(arg.type, MemRefType):
            extra = k >= len(function.args)
            name = "partials" if extra else f"a{k}"
            buffer = Buffer(name, arg.memref.element, True, arg in changed, arg in atomic)
            if extra:
                views[arg] = View(buffer, (), ("1",))
                continue
            rank = arg.memref.rank
            sizes = tuple(size(at["size", k, axis]) for axis in range(rank))
            views[arg] = View(buffer, sizes, _strides(arg.memref, sizes, k, at, size))
        elif k >= len(function.args):  # how many blocks there are
            names[arg] = f"i32({dialect.param(FIRST + 2 * len(slots))})"
        else:
            kind = "float" if arg.scalar.is_float else "int"
            word = at[kind, k, 0]
            single = FIRST + 2 * len(slots) + 1 + (word - FIRST) // 2
            low[arg] = f"i32({dialect.param(word)})"
            if kind == "float":
                low[arg] = f"bitcast<f32>({dialect.param(single)})"
            names[arg] = low[arg] if arg.scalar is f32 else _argument(arg.scalar, word, dialect)
    made = Printer(stage, dialect, e, threads, views, names, low, watch).run()
    elements = [v.buffer.element for v in views.values() if v.buffer.name in made.used]
    doubles = f64 in elements or any(name.startswith("bitcast<f64>") for name in names.values())
    features = []
    if made.needs_64 is not None or wide or doubles or i64 in elements or index in elements:
        features.append(INT64)
    if made.needs_double is not None or f64 in elements:
        features.append(FLOAT64)
    bound = [("params", "u32", False)]
    bound += [(v.buffer.name, v.buffer.type, v.buffer.written) for v in views.values()
              if v.buffer.name in made.used]  # fmt: skip
    if "error" in made.used:
        bound.append(("error", "atomic<u32>", True))
    if dialect.name == "msl" and FLOAT64 in features:
        raise UnsupportedInShaderError(
            "Metal has no float64", function.span, "pass tensors of float32"
        )
    needed = functions(e.needs, dialect)
    text = dialect.module(ENTRY, bound, made.shared, needed, made.body, threads)
    return Stage(text, tuple(n for n, _, _ in bound), tuple(n for n, _, w in bound if w),
                 tuple(features))  # fmt: skip


def _argument(t: ScalarType, word: int, dialect: Dialect) -> str:
    """A number of the argument block."""
    if t is f64 or t in (i64, index):
        words = f"(u64({dialect.param(word)}) | (u64({dialect.param(word + 1)}) << 32u))"
        return f"bitcast<f64>{words}" if t is f64 else f"i64{words}"
    if type_of(t) == "bool":
        return f"({dialect.param(word)} != 0u)"
    return f"i32({dialect.param(word)})"


def _strides(
    type: MemRefType, sizes: Sequence[str], k: int, at: dict[tuple[str, int, int], int],
    size: object,
) -> tuple[str, ...]:  # fmt: skip
    assert callable(size)
    if type.layout == "contiguous":
        return tuple(" * ".join(sizes[axis + 1 :]) or "1" for axis in range(type.rank))
    given = type.rank - (type.layout == "unit")
    strides = [str(size(at["stride", k, axis])) for axis in range(given)]
    return (*strides, "1") if type.layout == "unit" else tuple(strides)

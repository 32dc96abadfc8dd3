"""A module of a shader: arguments, buffers, functions and the entry, for a device loop."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy

from weft import timing
from weft.codegen.program import program_of
from weft.codegen.shader.arrays import atomically_updated, whole
from weft.codegen.shader.choices import without_tables
from weft.codegen.shader.dialects import MSL, WGSL, Dialect, UnsupportedInShaderError, type_of
from weft.codegen.shader.early_loads import early_loads
from weft.codegen.shader.lighter import lighter, weights_of
from weft.codegen.shader.mathematics import all_functions
from weft.codegen.shader.memory import Buffer, View
from weft.codegen.shader.printer import Printer, folds
from weft.codegen.shader.rules import Expressions
from weft.codegen.shader.runs import Forms, runs
from weft.codegen.shading import (
    ENTRY,
    FIRST,
    FLOAT64,
    INT64,
    Form,
    ShaderCode,
    ShaderFacts,
    Stage,
)
from weft.codegen.tables import described
from weft.codegen.threads import argument_slots
from weft.errors import ScheduleError
from weft.ir.core import Function, Value, walk
from weft.ir.types import MemRefType, ScalarType, f64, i64, index
from weft.ir.uniform import GROUP, divergent_wait
from weft.ir.views import memory
from weft.ir.writes import loaded, written
from weft.schedule import analyse as analysis
from weft.schedule import language
from weft.schedule.apply_cuda import apply_cuda, outermost
from weft.schedule.choose import candidate, for_large_calls
from weft.schedule.grid import threads_of
from weft.schedule.guards import Clusters, Copies
from weft.schedule.language import (
    Block,
    BlockDim,
    Cooperate,
    FastDivision,
    IndexWidth,
    Privatize,
    RegisterWindow,
    Scan,
    Schedule,
    StreamingStores,
    UnrollJam,
    only,
    show,
)
from weft.schedule.spmd import WORKGROUP


class NotInShaderError(ScheduleError):
    """A schedule lets threads of a workgroup wait where not all of them come."""


def compile_shader(function: Function, dialect: str, *, watch: bool = False) -> ShaderCode:
    """``function``, the result of the passes, as shaders. ``watch``: for a driver that ends long
    loops too early, which is then an error. Raises ``UnsupportedInShaderError``."""
    function = without_tables(function)
    facts = analyse(function, dialect)
    found = [candidate(text).schedule for text in facts.candidates]
    usual = for_large_calls(facts.candidates, 0)
    wanted = [usual] if only(found[-1], IndexWidth) or usual == found[-1] else [usual, found[-1]]
    forms = [form(function, s, _threads(s), 0, dialect, watch=watch) for s in wanted]
    return ShaderCode(dialect, facts, tuple(forms))


# What no shader has: numbers of 64 bits of a product, stores past caches, and lanes.
_MISSING = (FastDivision, StreamingStores, Scan)
# Steps by which threads wait for each other: a check that fails ends one of them.
_WAITING = (Cooperate, Privatize, language.Stage, RegisterWindow)
# Steps by which each block has its part, and no block is there without one.
_EXACT = (UnrollJam, language.Stage, RegisterWindow)


def analyse(function: Function, dialect: str) -> ShaderFacts:
    """What launching is to know of ``function``, the result of the passes."""
    with timing.stage("schedule"):
        found = analysis.analyse(function, program_of(function))
    checks = described(function)
    missing = (*_MISSING, *_WAITING) if checks else _MISSING
    absent = {Clusters(), Copies()}
    kept: list[str] = []
    parallel = outermost(function)
    weights = {} if parallel is None else weights_of(parallel)
    for each in found.candidates:
        narrow = only(each.schedule, IndexWidth) is not None
        if any(isinstance(step, missing) for step in each.schedule):
            continue
        jammed = only(each.schedule, UnrollJam) and only(each.schedule, language.Stage)
        if jammed or not absent.isdisjoint(each.guards):
            continue
        if narrow or not any(isinstance(step, _WAITING) for step in each.schedule):
            kept.append(str(each if parallel is None else lighter(each, weights)))
    places = {arg: k for k, arg in enumerate(function.args)}
    changed = {places[v] for v in written(function) if v in places}
    read = {places[v] for v in loaded(list(walk(function.body))) if v in places}
    return ShaderFacts(
        dialect, argument_slots(function), checks, found.nest, tuple(kept),
        tuple(sorted(read | changed)), tuple(sorted(changed)),
        any(op.name == "weft.print" for op in walk(function.body)),
    )  # fmt: skip


_WORDS = {FLOAT64: ("f64",), INT64: ("i64", "u64")}  # that a text has which needs a feature


def _threads(schedule: Schedule) -> tuple[int, int, int]:
    """Of a block of a large call."""
    block, asked = only(schedule, Block), only(schedule, BlockDim)
    if asked is not None or only(schedule, language.Stage) is not None or block is None:
        sides = asked.sides if asked is not None else (threads_of(schedule),)
        x, y, z = (*sides, 1, 1)[:3]
        return x, y, z
    return block.x, block.y, 1


def form(
    function: Function, schedule: Schedule, threads: tuple[int, int, int], private: int,
    dialect: str, *, watch: bool,
) -> Form:  # fmt: skip
    """``function`` by ``schedule``, in blocks of ``threads``. ``private``: elements of the array
    that each block has a copy of. Raises ``UnsupportedInShaderError``, and ``NotInShaderError``
    where only lanes could wait for each other as the schedule does."""
    wide = only(schedule, IndexWidth) is None
    with timing.stage("schedule"):
        function = copy(function)
        function.attrs = {**function.attrs, WORKGROUP: threads}
        stages = apply_cuda(function, schedule, program_of).bound.stages
        for stage in stages:
            if GROUP in stage.attrs and (waits := divergent_wait(stage)) is not None:
                raise NotInShaderError(f"`{show(schedule)}`: threads wait for some", waits.span)
    word = 0
    if len(stages) > 1:
        word = stages[0].args[-2].memref.element.bytes
    with timing.stage("emit"):
        spoken = {"wgsl": WGSL, "msl": MSL}[dialect]
        stages = tuple(map(without_tables, stages))
        if spoken.reads_anywhere:
            stages = tuple(map(early_loads, stages))
        made = [_stage(s, function, threads, private, spoken, wide, watch) for s in stages]
    shared = max(n for _, n in made)
    exact = any(isinstance(step, _EXACT) for step in schedule)
    folded = not exact and all(map(folds, stages))
    return Form(show(schedule), wide, threads, shared, tuple(s for s, _ in made), word, folded)


def _stage(
    stage: Function, function: Function, threads: tuple[int, int, int], private: int,
    dialect: Dialect, wide: bool, watch: bool,
) -> tuple[Stage, int]:  # fmt: skip
    """``function``: the one of whose arguments those of ``stage`` are the first. ``wide``: sizes
    and subscripts have 64 bits. Gives the bytes of a block's memory, too."""
    e = Expressions(dialect)
    changed, atomic = set(map(whole, written(stage))), atomically_updated(stage)
    forms = Forms()
    joined = runs(stage, forms) if dialect.vectors else {}
    joined = {op: place for op, place in joined.items() if whole(memory(op)[0]) not in atomic}
    vectors = {whole(memory(op)[0]) for op in joined}
    slots = argument_slots(function)
    at = {(s.kind, s.arg, s.axis): FIRST + 2 * k for k, s in enumerate(slots)}
    numbers = _Numbers(dialect)
    names: dict[Value, str] = {}
    low: dict[Value, str] = {}
    views: dict[Value, View] = {}

    def size(word: int) -> str:
        return dialect.longer(dialect.param(word), "i64") if wide else numbers.i32(word)

    for k, arg in enumerate(stage.args):
        if isinstance(arg.type, MemRefType):
            extra = k >= len(function.args)
            name = "partials" if extra else f"a{k}"
            own, element = (arg in changed, arg in atomic, arg in vectors), arg.memref.element
            part = lead = ""
            if element.bytes < 4 and not extra and arg not in atomic:
                part = dialect.part(element)
            elif element.bytes < 4 and not extra and dialect.part(element):
                lead = dialect.param(at["pointer", k, 0])
            place = dialect.wide if wide else "u32"
            buffer = Buffer(name, element, True, *own, part, lead, place)
            if extra:
                views[arg] = View(buffer, (), ("1",))
                continue
            rank = arg.memref.rank
            sizes = tuple(size(at["size", k, axis]) for axis in range(rank))
            views[arg] = View(buffer, sizes, _strides(arg.memref, sizes, k, at, size))
        elif k >= len(function.args):  # how many blocks there are
            names[arg] = numbers.i32(FIRST + 2 * len(slots))
        else:
            kind = "float" if arg.scalar.is_float else "int"
            word = at[kind, k, 0]
            single = FIRST + 2 * len(slots) + 1 + (word - FIRST) // 2
            low[arg] = numbers.f32(single) if kind == "float" else numbers.i32(word)
            plain = type_of(arg.scalar) in ("f32", "i32")
            names[arg] = low[arg] if plain else _argument(arg.scalar, word, dialect)
    made = Printer(
        stage, dialect, e, threads, private, views, names, low, atomic, joined, forms, watch
    ).run()
    bound = [("params", "u32", False)]
    bound += [(v.buffer.name, v.buffer.type, v.buffer.written) for v in views.values()
              if v.buffer.name in made.used]  # fmt: skip
    if "error" in made.used:
        bound.append(("error", "atomic<u32>", True))
    called, body = all_functions(e.needs, dialect), [*numbers.lets(made.body), *made.body]
    spoken = " ".join((*(type for _, type, _ in bound), *made.shared, *called, *body))
    features = {feature: made.first.get(words[0]) for feature, words in _WORDS.items()
                if any(w in spoken and re.search(rf"\b{w}\b", spoken) for w in words)}  # fmt: skip
    if dialect.name == "msl" and FLOAT64 in features:
        raise UnsupportedInShaderError(
            "Metal has no float64", function.span, "pass tensors of float32"
        )
    text = dialect.module(ENTRY, bound, made.shared, called, body, threads)
    names_of = tuple(n for n, _, _ in bound), tuple(n for n, _, w in bound if w)
    led = tuple(v.buffer.name for v in views.values() if v.buffer.lead)
    drawn = next((op for op in walk(stage.body) if op.name == "math.philox"), None)
    if drawn is not None and INT64 in features:  # not the number of the iteration
        features[INT64] = drawn
    lines = tuple(op.span.text.strip() if op and op.span else "" for op in features.values())
    return Stage(text, *names_of, led, tuple(features), lines), made.bytes


class _Numbers:
    """Sizes and numbers of the argument block by names: a shader reads each once."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.known: dict[str, tuple[str, str]] = {}  # type and text, by name

    def i32(self, word: int) -> str:
        self.known[f"n{word}_"] = "i32", f"i32({self.dialect.param(word)})"
        return f"n{word}_"

    def f32(self, word: int) -> str:
        self.known[f"n{word}_"] = "f32", f"bitcast<f32>({self.dialect.param(word)})"
        return f"n{word}_"

    def lets(self, body: Sequence[str]) -> list[str]:
        """Lines in front of ``body``, for the names in it."""
        used = set(re.findall(r"\bn\d+_\b", "\n".join(body)))
        return [self.dialect.let(name, *what) for name, what in self.known.items() if name in used]


def _argument(t: ScalarType, word: int, dialect: Dialect) -> str:
    """A number of the argument block."""
    if t is f64 or t in (i64, index):
        words = f"(u64({dialect.param(word)}) | (u64({dialect.param(word + 1)}) << 32u))"
        return f"bitcast<f64>{words}" if t is f64 else f"i64{words}"
    assert type_of(t) == "bool"
    return f"({dialect.param(word)} != 0u)"


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

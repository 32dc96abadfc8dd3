"""What the shading languages spell differently.

Expressions are written once, in the words of WGSL: the head of a Metal module names types and
functions likewise (``Msl.head``). Statements, literals that are not finite, atomic operations and
the entry differ.
"""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Sequence

import numpy as np

from weft.errors import CompileError
from weft.ir.scalar import bits_of, to_float
from weft.ir.types import ScalarType, f32, f64, i1, i64, index


class UnsupportedInShaderError(CompileError, TypeError):
    """A kernel needs what shaders, or those of this device, do not have."""


def stored(t: ScalarType) -> bool:
    """Whether values of ``t`` are the bits of an element in memory, in an i32."""
    return t.is_float and t.bits <= 16


def type_of(t: ScalarType) -> str:
    """The type of values: integers of 8 and 16 bits are an i32, sign extended."""
    if t is i1:
        return "bool"
    if t.is_float and not stored(t):
        return t.name
    return "i64" if t in (i64, index) else "i32"


def unsigned_of(t: ScalarType) -> str:
    """The unsigned type of as many bits."""
    return "u64" if t.bits == 64 else "u32"


def literal(value: bool | int | float, t: ScalarType) -> str:
    """A number; infinity and NaN are functions (see ``Dialect.special``)."""
    if t is i1:
        return "true" if value else "false"
    if stored(t):
        return f"i32({bits_of(to_float(value, t), t)})"
    if not t.is_float:
        if int(value) == -(1 << 63):
            return "(i64(1) << 63u)"
        return f"{type_of(t)}({int(value)})"
    number = np.float32(value) if t is f32 else np.float64(value)
    if not np.isfinite(number):
        kind = "nan" if math.isnan(value) else "inf" if value > 0 else "minus_inf"
        return f"{kind}_{t.name}()"
    text = np.format_float_scientific(number, unique=True, trim="0")
    return f"{t.name}({text}{'lf' if t is f64 else 'f'})"


class Dialect(abc.ABC):
    """A shading language."""

    name: str
    head: str = ""  # of each module
    vectors = False  # whether neighbours are accessed together where the text says so alone
    reads_anywhere = False  # whether each buffer has an element 0, that of an empty tensor, too
    wide = "u32"  # the type of places in an array where sizes are of 64 bits

    def part(self, t: ScalarType) -> str:
        """The type in memory of elements of 8 and 16 bits; "" where they are parts of words."""
        return ""

    def param(self, word: int) -> str:
        """A word of "params"."""
        return f"params[{word}u]"

    def longer(self, value: str, type: str) -> str:
        """An integer of 32 bits as one of 64."""
        return f"{type}({value})"

    def rolled(self, step: str, type: str) -> str:
        """The step of a loop that is not worth a driver's unrolling."""
        return step

    @abc.abstractmethod
    def let(self, name: str, type: str, value: str) -> str: ...
    @abc.abstractmethod
    def variable(self, name: str, type: str, value: str = "") -> str: ...
    @abc.abstractmethod
    def array(self, name: str, type: str, count: int, *, shared: bool) -> str:
        """An array of a thread, or of a block."""

    @abc.abstractmethod
    def function(self, text: str) -> str:
        """A function, of its text in WGSL."""

    @abc.abstractmethod
    def special(self, t: ScalarType) -> str:
        """Functions ``inf_f32`` and so on."""

    @abc.abstractmethod
    def zero(self, t: ScalarType) -> str:
        """A function ``zero_f32`` of whose value a driver knows nothing."""

    @abc.abstractmethod
    def load_atomic(self, place: str) -> str: ...
    @abc.abstractmethod
    def store_atomic(self, place: str, value: str) -> str: ...
    @abc.abstractmethod
    def rmw(self, kind: str, place: str, value: str) -> str:
        """What was there before ``kind`` ("add", "min", "max", "and", "or", "xor")."""

    @abc.abstractmethod
    def exchange(self, place: str, old: str, new: str, done: str) -> Sequence[str]:
        """Statements: the variable ``done`` is whether ``place`` held what ``old`` says, and has
        ``new`` now; else ``old`` is what it holds."""

    @abc.abstractmethod
    def barrier(self, *, buffers: bool) -> Sequence[str]:
        """What the threads of a block wait at for each other, and for what they have stored to its
        arrays; ``buffers``: to buffers, too, which takes far longer."""

    @abc.abstractmethod
    def module(
        self, entry: str, buffers: Sequence[tuple[str, str, bool]], shared: Sequence[str],
        functions: Sequence[str], body: Sequence[str], threads: tuple[int, int, int],
    ) -> str:  # fmt: skip
        """``buffers``: name, type of elements and whether they are written, in the order in which
        they are bound; the first is "params"."""


class Wgsl(Dialect):
    name, vectors, reads_anywhere = "wgsl", True, True

    def param(self, word: int) -> str:
        """Uniform, as GPUs have registers for; arrays of those are of vectors of four."""
        return f"params[{word // 4}u].{'xyzw'[word % 4]}"

    def longer(self, value: str, type: str) -> str:
        """A sum, which Mesa's compiler does not compare with constants: of what it knows to have
        been made longer it takes comparisons for false (llvmpipe of Mesa 22.3)."""
        return f"({type}({value}) + {type}({self.param(3)}))"

    def rolled(self, step: str, type: str) -> str:
        """One that no driver knows: WGSL has no other way to say so. NVIDIA's unrolls what it can,
        remainders of a few turns, too."""
        return f"({step} + {type}({self.param(3)}))"

    def let(self, name: str, type: str, value: str) -> str:
        return f"let {name}: {type} = {value};"

    def variable(self, name: str, type: str, value: str = "") -> str:
        return f"var {name}: {type} = {value};" if value else f"var {name}: {type};"

    def array(self, name: str, type: str, count: int, *, shared: bool) -> str:
        return f"var{'<workgroup>' * shared} {name}: array<{type}, {count}>;"

    def function(self, text: str) -> str:
        return text

    def special(self, t: ScalarType) -> str:
        """WGSL has no constants of them: they come with the arguments."""
        values = [f"{t.name}(bitcast<f32>({self.param(k)}))" for k in range(3)]
        return "\n".join(
            f"fn {name}_{t.name}() -> {t.name} {{ return {value}; }}"
            for name, value in zip(("inf", "minus_inf", "nan"), values, strict=True)
        )

    def zero(self, t: ScalarType) -> str:
        value = f"{t.name}(bitcast<f32>({self.param(3)}))"
        return f"fn zero_{t.name}() -> {t.name} {{ return {value}; }}"

    def load_atomic(self, place: str) -> str:
        return f"atomicLoad(&{place})"

    def store_atomic(self, place: str, value: str) -> str:
        return f"atomicStore(&{place}, {value});"

    def rmw(self, kind: str, place: str, value: str) -> str:
        return f"atomic{kind.capitalize()}(&{place}, {value})"

    def exchange(self, place: str, old: str, new: str, done: str) -> Sequence[str]:
        found = f"{old}_found"
        return (
            f"let {found} = atomicCompareExchangeWeak(&{place}, {old}, {new});",
            f"{done} = {found}.exchanged;",
            f"if (!{done}) {{ {old} = {found}.old_value; }}",
        )

    def barrier(self, *, buffers: bool) -> Sequence[str]:
        return ("workgroupBarrier();", "storageBarrier();")[: 1 + buffers]

    def module(
        self, entry: str, buffers: Sequence[tuple[str, str, bool]], shared: Sequence[str],
        functions: Sequence[str], body: Sequence[str], threads: tuple[int, int, int],
    ) -> str:  # fmt: skip
        bound = ["@group(0) @binding(0) var<uniform> params: array<vec4<u32>, {}>;"]
        bound += [
            f"@group(0) @binding({k}) var<storage, {'read_write' if written else 'read'}> "
            f"{name}: array<{type}>;"
            for k, (name, type, written) in enumerate(buffers)
            if k
        ]
        text = "\n".join((*functions, *body))
        used = [int(k) for k in re.findall(r"\bparams\[(\d+)u\]", text)]
        bound[0] = bound[0].format(max(used, default=0) + 1)
        places = (
            "@builtin(local_invocation_id) thread: vec3<u32>",
            "@builtin(local_invocation_index) thread_number: u32",
            "@builtin(workgroup_id) block: vec3<u32>",
            "@builtin(num_workgroups) blocks: vec3<u32>",
        )
        head = f"@compute @workgroup_size({', '.join(map(str, threads))})\nfn {entry}("
        told = [head + ",\n    ".join(places) + ") {", *(f"  {line}" for line in body), "}"]
        return "\n".join([*bound, *shared, "", *functions, *told, ""])


class Msl(Dialect):
    name, wide = "msl", "u64"
    # Infinity and NaN are what they are, and sums of products are rounded twice, as elsewhere.
    head = """#include <metal_stdlib>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;
using i32 = int;
using u32 = uint;
using i64 = long;
using u64 = ulong;
using f32 = float;
template <typename T, typename S> static T bitcast(S value) { return as_type<T>(value); }
static u32 countOneBits(u32 value) { return popcount(value); }
"""

    def part(self, t: ScalarType) -> str:
        signed = {1: "char", 2: "short"}[t.bytes]
        return f"u{signed}" if t.is_float or t is i1 else signed

    def let(self, name: str, type: str, value: str) -> str:
        return f"const {type} {name} = {value};"

    def variable(self, name: str, type: str, value: str = "") -> str:
        return f"{type} {name} = {value};" if value else f"{type} {name};"

    def array(self, name: str, type: str, count: int, *, shared: bool) -> str:
        return f"{'threadgroup ' * shared}{type} {name}[{count}];"

    def function(self, text: str) -> str:
        def head(found: re.Match[str]) -> str:
            name, listed, result = found.groups()
            pairs = [p.split(": ") for p in listed.split(", ")]
            return f"static {result} {name}({', '.join(f'{t} {n}' for n, t in pairs)}) {{"

        text = re.sub(r"fn (\w+)\(([^)]*)\) -> (\w+) \{", head, text)
        text = re.sub(r"let (\w+): (\w+) =", r"const \2 \1 =", text)
        return re.sub(r"var (\w+): (\w+) =", r"\2 \1 =", text)

    def special(self, t: ScalarType) -> str:
        numbers = {"inf": "INFINITY", "minus_inf": "-INFINITY", "nan": "NAN"}
        return "\n".join(f"static f32 {n}_{t.name}() {{ return {v}; }}" for n, v in numbers.items())

    def zero(self, t: ScalarType) -> str:
        return f"static f32 zero_{t.name}() {{ volatile f32 zero = 0.0f; return zero; }}"

    def load_atomic(self, place: str) -> str:
        return f"atomic_load_explicit(&{place}, memory_order_relaxed)"

    def store_atomic(self, place: str, value: str) -> str:
        return f"atomic_store_explicit(&{place}, {value}, memory_order_relaxed);"

    def rmw(self, kind: str, place: str, value: str) -> str:
        return f"atomic_fetch_{kind}_explicit(&{place}, {value}, memory_order_relaxed)"

    def exchange(self, place: str, old: str, new: str, done: str) -> Sequence[str]:
        order = "memory_order_relaxed, memory_order_relaxed"
        call = f"atomic_compare_exchange_weak_explicit(&{place}, &{old}, {new}, {order})"
        return (f"{done} = {call};",)

    def barrier(self, *, buffers: bool) -> Sequence[str]:
        more = " | mem_flags::mem_device" * buffers
        return (f"threadgroup_barrier(mem_flags::mem_threadgroup{more});",)

    def module(
        self, entry: str, buffers: Sequence[tuple[str, str, bool]], shared: Sequence[str],
        functions: Sequence[str], body: Sequence[str], threads: tuple[int, int, int],
    ) -> str:  # fmt: skip
        atomic = {"atomic<i32>": "atomic_int", "atomic<u32>": "atomic_uint"}
        spaces = ["constant ", *("device " if w else "device const " for *_, w in buffers[1:])]
        bound = [
            f"{space}{atomic.get(type, type)}* {name} [[buffer({k})]]"
            for k, (space, (name, type, _)) in enumerate(zip(spaces, buffers, strict=True))
        ]
        places = (
            "uint3 thread [[thread_position_in_threadgroup]]",
            "uint thread_number [[thread_index_in_threadgroup]]",
            "uint3 block [[threadgroup_position_in_grid]]",
            "uint3 blocks [[threadgroups_per_grid]]",
        )
        head = f"kernel void {entry}(\n    " + ",\n    ".join([*bound, *places]) + ") {"
        lines = [f"  {line}" for line in (*shared, *body)]
        return "\n".join([self.head, *functions, head, *lines, "}", ""])


WGSL, MSL = Wgsl(), Msl()


def register(name: str, dimension: str, threads: tuple[int, int, int], *, folds: bool) -> str:
    """A place in the grid (see ``ops.DIMENSIONS``), an i32. ``folds``: see ``Form``."""
    if name == "block_dim":
        sizes = dict(zip("xyz", threads, strict=True))
        return literal(sizes.get(dimension, math.prod(threads)), ScalarType("i32", "int", 32))
    if name == "thread_id" and dimension == "linear":
        return "i32(thread_number)"
    where = {"thread_id": "thread", "block_id": "block", "grid_dim": "blocks"}[name]
    if folds and dimension == "x" and name != "thread_id":
        return (
            "i32(block.x + blocks.x * block.z)"
            if name == "block_id"
            else ("i32(blocks.x * blocks.z)")
        )
    if dimension != "linear":
        return f"i32({where}.{dimension})"
    if name == "grid_dim":
        return "i32(blocks.x * blocks.y * blocks.z)"
    return "i32(block.x + blocks.x * (block.y + blocks.y * block.z))"

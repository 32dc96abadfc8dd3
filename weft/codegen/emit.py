"""Writing LLVM IR text: the module, one function at a time, names, types and literals.

``Emitter`` knows LLVM's spelling, not weft's operations (``llvm.RULES`` does) and not a machine
(``Target`` does).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from weft.codegen.lines import Lines
from weft.errors import InternalError, Span
from weft.ir import float8
from weft.ir.core import Op, Value
from weft.ir.types import MemRefType, ScalarType, Type, f16, f32, i1, index
from weft.ir.views import memory, split_access
from weft.values import mutable

# bf16 and floats of 8 bits are carried as their bits: few machines have instructions for them, and
# LLVM would call a library.
_NAMES = {
    "i1": "i1", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "index": "i64",
    "f8e4m3": "i8", "f8e5m2": "i8", "f16": "half", "bf16": "i16", "f32": "float", "f64": "double",
}  # fmt: skip

# Sizes and indices of real tensors stay below this many bits: what is built from them by a few
# additions and multiplications cannot wrap.
INDEX_BITS = 47


def symbol_of(name: str) -> str:
    """The symbol of a kernel: letters beyond ASCII, which PTX does not take, as ``_``."""
    return "weft_" + "".join(c if c.isascii() and c.isalnum() else "_" for c in name)


def llvm_type(t: Type) -> str:
    """LLVM's name of a value of type ``t`` (memrefs are pointers)."""
    return "ptr" if isinstance(t, MemRefType) else _NAMES[t.name]


def memory_type(t: ScalarType) -> str:
    """LLVM's name of an element of type ``t`` in memory: a bool takes a byte."""
    return "i8" if t is i1 else _NAMES[t.name]


def literal(value: bool | int | float, t: ScalarType) -> str:
    """``value`` as an operand of type ``t``, rounded or wrapped to the type."""
    if t is i1:
        return "true" if value else "false"
    if not t.is_float:
        bits = int(value) & ((1 << t.bits) - 1)
        return str(bits - (1 << t.bits) if bits >> (t.bits - 1) else bits)
    number = float(value)
    if t is f16:
        return f"0xH{int.from_bytes(_pack_half(number), 'big'):04X}"
    if t.bits == 8:
        return str(float8.encode(round_to_f32(number), t))
    if t.name == "bf16":
        return str(bfloat_bits(number))
    if t is f32:
        number = round_to_f32(number)
    return f"0x{struct.unpack('>Q', struct.pack('>d', number))[0]:016X}"


def round_to_f32(number: float) -> float:
    """The nearest float32; beyond its range the infinity of that sign."""
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def bfloat_bits(number: float) -> int:
    """The bits of the nearest bfloat16 of ``number`` (rounded through float32), as a signed i16."""
    bits = struct.unpack("<I", struct.pack("<f", round_to_f32(number)))[0]
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    high = (bits >> 16) | 0x40 if math.isnan(number) else rounded
    return high - (1 << 16) if high >> 15 else high


def _pack_half(number: float) -> bytes:
    try:
        return struct.pack(">e", number)
    except OverflowError:
        return struct.pack(">e", math.copysign(math.inf, number))


@mutable
class View:
    """A memref while code is emitted: its pointer, and the names of its sizes and strides."""

    pointer: str
    type: MemRefType
    sizes: list[str]
    strides: list[str]  # in elements; empty where they follow from the sizes
    parallel: bool = True  # a tensor argument: accesses of different iterations do not conflict


class Target(Protocol):
    """What differs between machines: ``CpuTarget``, ``CudaTarget``. ``leave``: the label that a
    check which fails goes on at."""

    leave: str

    @property
    def rules(self) -> Mapping[str, Any]:
        """Rules that take the place of those in the table."""
        ...

    @property
    def traps(self) -> bool:
        """Whether an integer division by zero ends the process."""
        ...

    @property
    def scales(self) -> bool:
        """Whether one instruction multiplies floats by powers of two."""
        ...

    @property
    def saturates(self) -> bool:
        """Whether an instruction takes floats out of an integer's range to its nearest end."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether one instruction that loads an element for each lane beats as many loads."""
        ...

    @property
    def constants(self) -> str:
        """The address space of tables of constants, as a declaration has it."""
        ...

    @property
    def marks_streams(self) -> bool:
        """Whether stores that stream are marked (see ``past_caches``)."""
        ...

    @property
    def vectorises(self) -> bool:
        """Whether LLVM makes loops over vectors of its loops."""
        ...

    @property
    def copies_loops(self) -> bool:
        """Whether LLVM may write out loops around loops."""
        ...

    def math_call(self, e: Emitter, function: str, t: ScalarType, operands: Sequence[str]) -> str:
        """Emits a call of a transcendental function, gives the name of its result."""
        ...

    def print(self, e: Emitter, op: Op, operands: Sequence[str]) -> None:
        """Emits ``weft.print``."""
        ...

    def check_race(self, e: Emitter, op: Op, pointer: str, operands: Sequence[str]) -> None:
        """Emits ``weft.check_race`` of the element at ``pointer``."""
        ...

    def poll(self, e: Emitter, op: Op) -> None:
        """Emits, at the start of an iteration of the loop ``op``, what lets a person stop it."""
        ...

    def strip(
        self, e: Emitter, op: Op, upper: str, run: Callable[[str, str, list[str]], Sequence[str]]
    ) -> Callable[[str, list[str]], Sequence[str]] | None:
        """The body of a loop over strips of the loop ``op``, which ``run`` emits from, to; None
        where it runs in one piece."""
        ...

    def check(self, e: Emitter, op: Op, ok: str, operands: Sequence[str]) -> None:
        """Emits what happens where ``ok`` is false: note it, leave the function."""
        ...


STREAMS = "weft.streams"


@mutable
class Module:
    """LLVM IR of one kernel: finished functions, declarations, attributes, metadata."""

    functions: list[str] = field(default_factory=list)
    declarations: dict[str, None] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)  # kept though nobody calls them yet
    attributes: dict[str, int] = field(default_factory=dict)
    metadata: list[str] = field(default_factory=list)
    streams: str = ""  # the mark of stores that stream, once there are any (see ``past_caches``)
    lines: Lines | None = None  # the source lines of instructions, where they are wanted

    def attribute(self, text: str) -> str:
        """``#n`` for an attribute group, made at its first use."""
        return f"#{self.attributes.setdefault(text, len(self.attributes))}"

    def node(self, text: str, distinct: bool = False) -> str:
        """A new metadata node; ``{self}`` in ``text`` stands for itself (it is distinct then)."""
        name = f"!{len(self.metadata)}"
        word = "distinct " if distinct or "{self}" in text or text == "!{}" else ""
        self.metadata.append(f"{name} = {word}{text.replace('{self}', name)}")
        return name

    def streaming(self, groups: Sequence[str]) -> str:
        """The access group of a store that is one of ``groups``, and streams."""
        if not self.streams:
            self.streams = self.node("!{}")
        return self.node(f"!{{{', '.join([*groups, self.streams])}}}")

    def __str__(self) -> str:
        parts = list(self.functions)
        parts += self.declarations
        if self.used:
            names = ", ".join(f"ptr @{name}" for name in self.used)
            kind = f"[{len(self.used)} x ptr]"
            parts.append(f"@llvm.compiler.used = appending global {kind} [{names}]"
                         ', section "llvm.metadata"')  # fmt: skip
        parts += (f"attributes #{k} = {{ {text} }}" for text, k in self.attributes.items())
        parts += self.metadata
        parts += [f"!{STREAMS} = !{{{self.streams}}}"] if self.streams else []
        parts += self.lines.named if self.lines is not None else ()
        return "\n".join(parts) + "\n"


class Emitter:
    """Writes the body of one LLVM function. ``lanes`` > 1 makes rules write vector code."""

    def __init__(self, module: Module, target: Target, *, strict_math: bool = False) -> None:
        self.module = module
        self.target = target
        self.fast = "" if strict_math else "contract "
        self.reordered = "" if strict_math else "contract reassoc "  # of accumulations
        self.lanes = 1
        self.offset_type = "i64"  # of subscripts and what addresses are computed from
        self.ordering = "monotonic"  # of atomic operations
        self.lines: list[str] = []
        self.spans: list[Span | None] = []  # of each line
        self.span: Span | None = None  # of the operation that is being written
        self.allocas: list[str] = []  # go to the top of the function
        self.block = "entry"
        self.names: dict[Value, str] = {}
        self.views: dict[Value, View] = {}
        self.bits: dict[Value, int] = {}  # values known to be in [0, 2**bits)
        self.constants: dict[Value, bool | int | float] = {}
        self.running: set[Value] = set()  # extrema of turns so far: see ``arith.note_extrema``
        self.overwritten: dict[Op, bool] = {}  # loads: see ``overwritten.py``
        self.owned: list[str] = []  # places of pointers to memory that is freed at the end
        self.groups: list[str] = []  # access groups of the enclosing parallel loops
        self.counter = 0

    # -- types and operands

    def type(self, t: ScalarType) -> str:
        name = llvm_type(t)
        return name if self.lanes == 1 else f"<{self.lanes} x {name}>"

    def suffix(self, t: ScalarType) -> str:
        """What an intrinsic's name ends with."""
        name = t.name if t is not index else "i64"
        return name if self.lanes == 1 else f"v{self.lanes}{name}"

    def literal(self, value: bool | int | float, t: ScalarType) -> str:
        text = literal(value, t)
        return text if self.lanes == 1 else f"splat ({llvm_type(t)} {text})"

    def name(self, value: Value) -> str:
        """The LLVM operand of a scalar, or the pointer of a memref."""
        if value in self.constants:
            return self.literal(self.constants[value], value.scalar)
        if value in self.names:
            return self.names[value]
        if value in self.views:
            return self.views[value].pointer
        raise InternalError(f"{value!r} is used before it is defined")

    def access(self, op: Op, operands: list[str]) -> tuple[View, list[str], list[str]]:
        """What a load, store or atomic operation accesses, its subscripts, and its values."""
        _, subscripts, values = split_access(op, operands)
        return self.views[memory(op)[0]], subscripts, values

    # -- lines

    def line(self, text: str) -> None:
        self.lines.append(text)
        self.spans.append(self.span)

    def fresh(self, hint: str = "v") -> str:
        self.counter += 1
        return f"%{hint}{self.counter}"

    def inst(self, text: str) -> str:
        """One instruction with a result."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    def place(self, block: str, k: int) -> str:
        """Where word ``k`` of a block of words is."""
        return block if k == 0 else self.inst(f"getelementptr inbounds i64, ptr {block}, i64 {k}")

    def load_word(self, block: str, k: int, ty: str = "i64") -> str:
        return self.inst(f"load {ty}, ptr {self.place(block, k)}, align 8")

    def label(self, hint: str) -> str:
        self.counter += 1
        return f"{hint}{self.counter}"

    def start(self, label: str) -> None:
        """Begins the basic block ``label``."""
        self.line(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, condition: str, yes: str, no: str) -> None:
        self.line(f"br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, type: str) -> tuple[str, int]:
        """Reserves a phi at the current place: its name, and the slot for ``fill``."""
        name = self.fresh("p")
        self.line(f"{name} = phi {type}")
        return name, len(self.lines) - 1

    def fill(self, slot: int, *incoming: tuple[str, str]) -> None:
        """Completes a phi with (value, block) pairs."""
        self.lines[slot] += " " + ", ".join(f"[ {value}, %{block} ]" for value, block in incoming)

    def declare(self, text: str) -> None:
        self.module.declarations[text] = None

    def intrinsic(self, name: str, result: str, *operands: tuple[str, str], flags: str = "") -> str:
        """Calls ``@name`` with (type, value) operands."""
        return self.inst(self._called(name, result, operands, flags))

    def call_void(self, name: str, *operands: tuple[str, str], traits: str = "") -> None:
        """The same where there is no result."""
        self.line(f"{self._called(name, 'void', operands)} {traits}".rstrip())

    def _called(
        self, name: str, result: str, operands: Sequence[tuple[str, str]], flags: str = ""
    ) -> str:
        self.declare(f"declare {result} @{name}({', '.join(t for t, _ in operands)})")
        args = ", ".join(f"{t} {value}" for t, value in operands)
        return f"call {flags}{result} @{name}({args})"

    def extreme(self, function: str, a: str, b: str, ty: str = "i64") -> str:
        """``smin``, ``smax`` and the like of two integers."""
        return self.intrinsic(f"llvm.{function}.{ty}", ty, (ty, a), (ty, b))

    def finish(self, header: str) -> None:
        """Adds ``header { entry: ... }`` with what was written to the module."""
        if self.module.lines is not None:
            header, self.lines = self.module.lines.located(
                self.module.node, header, self.lines, self.spans
            )
        body = "\n".join(f"  {line}" if not line.endswith(":") else line for line in self.lines)
        top = "".join(f"  {line}\n" for line in self.allocas)
        self.module.functions.append(f"{header} {{\nentry:\n{top}{body}\n}}")

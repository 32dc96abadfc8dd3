"""Threads: a kernel as functions that share its chunks.

A kernel becomes an *entry*, and for each loop over chunks (``schedule.chunks``) two functions. The
entry has ``pool`` run the chunks. A *chunk* is one iteration of that loop. Between them stands the
*body*, which hands the chunk its pointers as arguments, for only arguments can be told apart by
LLVM. One loop that few calls take may be left out: the entry asks ``RARE`` for its body, which is
then compiled as a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen import copies, pool
from weft.codegen.arith import from_word, word
from weft.codegen.cpu_target import CpuTarget
from weft.codegen.emit import Emitter, Module, View, symbol_of
from weft.codegen.interface import Slot
from weft.codegen.interrupt import asks, clock
from weft.codegen.lanes import parallel_loop
from weft.codegen.lines import Lines
from weft.codegen.llvm import emit_block, emit_op
from weft.codegen.overwritten import overwritten
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import CheckRace, Parallel
from weft.schedule.machine import CpuMachine

# A function of each kernel's own: it gives the body that is left out, or null where that cannot be
# had. Known from then on.
RARE = "weft_rare"
_TRAITS = 'nounwind "prefer-vector-width"="{}" "no-trapping-math"="true"'
# LLVM calls no functions of C's library in place of loops.
_NO_COPIES, _NO_FILLS = ' "no-builtin-memcpy"', ' "no-builtin-memset"'


def argument_slots(function: Function) -> tuple[Slot, ...]:
    """The layout of the argument block that the compiled function takes."""
    memrefs = [(k, v.type) for k, v in enumerate(function.args) if isinstance(v.type, MemRefType)]
    slots = [Slot("pointer", k) for k, _ in memrefs]
    for k, value in enumerate(function.args):
        if isinstance(value.type, ScalarType):
            slots.append(Slot("float" if value.type.is_float else "int", k))
    for k, type in memrefs:
        slots += [Slot("size", k, axis) for axis in range(type.rank)]
        strides = {"contiguous": 0, "unit": max(type.rank - 1, 0), "strided": type.rank}
        slots += [Slot("stride", k, axis) for axis in range(strides[type.layout])]
    slots.append(Slot("record", -1))
    watched = {CheckRace(op).memref: op.attrs["words"] for op in walk(function.body)
               if op.name == "weft.check_race"}  # fmt: skip
    for k, _ in memrefs:
        words = watched.get(function.args[k])
        if words is not None:
            slots += [Slot("shadow", k, words), Slot("shift", k)]
    return tuple(slots)


class CpuModule:
    """The LLVM module of one kernel while it is written."""

    def __init__(
        self, function: Function, machine: CpuMachine, bits: int = 512, *, rare: bool = False
    ) -> None:
        """``bits``: of the longest vectors that LLVM makes. ``rare``: what is written is the loop
        that few calls take, which is left out else."""
        self.function, self.rare = function, rare
        self.plain = _TRAITS.format(bits)
        self.cpu = CpuTarget(function, machine)
        self.cpu.rules = {
            **CpuTarget.rules, "scf.parallel": self._parallel, "weft.rare": self._is_there,
        }  # fmt: skip
        self.module = Module(lines=Lines(function.span) if function.lined else None)
        self.symbol = symbol_of(function.name)
        self.slots = argument_slots(function)
        self.record = next(k for k, slot in enumerate(self.slots) if slot.kind == "record")
        self.memrefs = [v for v in function.args if isinstance(v.type, MemRefType)]
        ops = list(walk(function.body))
        self.loops = [op for op in ops if "chunks" in op.attrs]
        few = [op for op in self.loops if "rare" in op.attrs]
        self.left_out = few[0] if len(few) == 1 else None
        self.overwritten = overwritten(function)
        # Runs (``passes/split_quotients.py``) are short: memcpy for each costs more than it saves.
        runs = any("independent" in op.attrs and "counts" not in op.attrs for op in ops)
        self.traits = self.module.attribute(self.plain + (_NO_COPIES if runs else ""))

    @property
    def rare_symbol(self) -> str:
        """The function for the loop that is left out, in a module of its own; "" where none is."""
        if self.left_out is None:
            return ""
        return f"{self.symbol}_body{self.loops.index(self.left_out)}"

    def emit(self) -> str:
        """The module's text."""
        for number, op in enumerate(self.loops):
            if (op is self.left_out) == self.rare:
                self._chunk(number, op)
                self._body(number)
        if not self.rare:
            self._entry()
        return str(self.module)

    # -- what a function starts with

    def _emitter(self) -> Emitter:
        e = Emitter(self.module, self.cpu, strict_math=self.function.strict)
        e.overwritten = self.overwritten
        return e

    def _arguments(self, e: Emitter, pointers: Sequence[str] | None = None) -> None:
        """Binds the kernel's arguments: what is not a pointer is loaded from ``%slots``."""
        args = self.function.args
        for k, slot in enumerate(self.slots):
            if slot.kind == "record":  # belongs to no argument: there may be none
                continue
            value = args[slot.arg]
            if slot.kind == "pointer":
                pointer = pointers[k] if pointers else e.load_word("%slots", k, "ptr")
                e.views[value] = View(pointer, value.memref, [], [])
            elif slot.kind in ("int", "float"):
                e.names[value] = from_word(e, e.load_word("%slots", k), value.scalar)
            elif slot.kind == "size":
                e.views[value].sizes.append(e.load_word("%slots", k))
            elif slot.kind == "stride":
                e.views[value].strides.append(e.load_word("%slots", k))
            elif slot.kind == "shadow":
                pair = e.load_word("%slots", k, "ptr"), e.load_word("%slots", k + 1)
                self.cpu.shadows[value] = pair
        for value in self.memrefs:
            if value.memref.layout == "unit" and value.memref.rank:
                e.views[value].strides.append("1")
        if self.cpu.checks:
            self.cpu.record = e.load_word("%slots", self.record, "ptr")
        self.cpu.leave = e.label("leave")

    def _finish(self, e: Emitter, header: str, traits: str = "") -> None:
        """Ends a function that returns nothing, with the place where failed checks go."""
        e.jump(self.cpu.leave)
        e.start(self.cpu.leave)
        copies.release(e)
        e.line("ret void")
        e.finish(f"{header} {traits or self.traits}")

    # -- the entry

    def _entry(self) -> None:
        e = self._emitter()
        self._arguments(e)
        inside = {op for loop in self.loops for op in walk(loop.body)}
        if any("poll" in op.attrs for op in walk(self.function.body) if op not in inside):
            stop = e.fresh("stop")
            e.allocas += [f"{stop} = alloca i64", f"store i64 0, ptr {stop}"]
            self.cpu.polls = clock(e, self.cpu.machine.clock, stop)
        emit_block(e, self.function.body)
        self._finish(e, f"define void @{self.symbol}(ptr %slots)")

    def _parallel(self, e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        """A parallel loop: chunks of it are handed to the pool."""
        if "chunks" not in op.attrs:
            return parallel_loop(e, op, operands)
        frame, count = e.fresh("frame"), e.name(Parallel(op).uppers[0])
        captured = _captured(op, self.function)
        e.allocas.append(f"{frame} = alloca [{pool.FIRST + len(captured)} x i64], align 64")
        stop = e.place(frame, pool.STOP)
        record = self.cpu.record if self.cpu.checks else stop
        body = f"@body{self.loops.index(op)}"
        if op is self.left_out:
            body = e.inst(f"call ptr @{RARE}()")
        words = {
            pool.SLOTS: ("ptr", "%slots"), pool.STOP: ("i64", "0"), pool.RECORD: ("ptr", record),
            pool.CHUNK: ("ptr", body),
            pool.WAITS: ("i64", str(int(asks(op)))),
        }  # fmt: skip
        for k, value in enumerate(captured, pool.FIRST):
            if isinstance(value.type, MemRefType):
                words[k] = ("ptr", e.name(value))
            else:
                words[k] = ("i64", word(e, e.name(value), value.scalar))
        for k, (ty, value) in words.items():
            e.line(f"store {ty} {value}, ptr {e.place(frame, k)}")
        e.declare(pool.DECLARATION)
        alone = "true" if "alone" in op.attrs else "false"
        failed = e.inst(f"call i1 @{pool.RUN}(ptr {frame}, i64 {count}, i1 {alone})")
        on = e.label("ran")
        e.branch(failed, self.cpu.leave, on)
        e.start(on)
        return ()

    def _is_there(self, e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
        """Whether what is left out can be had."""
        if self.left_out is None:
            return ["true"]
        e.declare(f"declare ptr @{RARE}()")
        return [e.inst(f"icmp ne ptr {e.inst(f'call ptr @{RARE}()')}, null")]

    # -- the body

    def _body(self, number: int) -> None:
        """What the pool calls: the chunk, with the tensors' memory."""
        e = self._emitter()
        pointers = [e.load_word("%slots", k, "ptr") for k in range(len(self.memrefs))]
        pairs = [("ptr", "%slots"), ("ptr", "%frame"), ("i64", "%number"),
                 *(("ptr", pointer) for pointer in pointers)]  # fmt: skip
        e.line(f"call void @chunk{number}({', '.join(f'{t} {v}' for t, v in pairs)})")
        e.line("ret void")
        arguments = "ptr %slots, ptr %frame, i64 %number"
        name = self.rare_symbol if self.rare else f"body{number}"
        linkage = "" if self.rare else "internal "
        e.finish(f"define {linkage}void @{name}({arguments}) {self.traits}")

    # -- the chunk

    def _chunk(self, number: int, op: Op) -> None:
        """One iteration of the loop over chunks."""
        e = self._emitter()
        pointers = [f"%m{k}" for k in range(len(self.memrefs))]
        self._arguments(e, pointers)
        self._bind_captured(e, op)
        if asks(op):
            stop = e.place("%frame", pool.STOP)
            self.cpu.polls = clock(e, self.cpu.machine.clock, stop)
        e.names[op.body.args[0]] = "%number"
        emit_block(e, op.body)
        alias = "noalias " if self.function.attrs.get("noalias") else ""
        memrefs = "".join(f", ptr {alias}{p}" for p in pointers)
        own = "ptr noalias readonly %slots, ptr noalias readonly %frame, i64 %number"
        traits = ""
        if any("streaming" in inner.attrs for inner in walk(op.body)):
            e.call_void("llvm.x86.sse.sfence")  # other threads see what streamed
            traits = self.module.attribute(f"{self.plain}{_NO_COPIES}{_NO_FILLS}")
        self._finish(e, f"define internal void @chunk{number}({own}{memrefs}) noinline", traits)

    def _bind_captured(self, e: Emitter, op: Op) -> None:
        """Binds what was computed before the loop: constants and sizes anew, the rest is loaded."""
        for value in _free(op):
            if value.op is not None and _is_cheap(value.op, self.function):
                emit_op(e, value.op)
        for k, value in enumerate(_captured(op, self.function), pool.FIRST):
            if isinstance(value.type, MemRefType):
                sizes = [str(n) for n in value.type.shape or ()]
                e.views[value] = View(e.load_word("%frame", k, "ptr"), value.type, sizes, [])
            else:
                e.names[value] = from_word(e, e.load_word("%frame", k), value.scalar)


def _free(op: Op) -> list[Value]:
    """Values that iterations of the loop ``op`` use, and that were computed outside of it."""
    own, used = set[Value](), dict[Value, None]()
    for inner in walk(op.body):
        used |= dict.fromkeys(inner.operands)
        own.update(inner.results)
        for region in inner.regions:
            own.update(region.args)
    return [v for v in used if v not in own and v not in op.body.args]


def _captured(op: Op, function: Function) -> list[Value]:
    """Those of them that chunks are handed."""
    return [
        v for v in _free(op)
        if v not in function.args and not (v.op is not None and _is_cheap(v.op, function))
    ]  # fmt: skip


def _is_cheap(op: Op, function: Function) -> bool:
    """Whether a chunk computes the result of ``op`` itself."""
    return op.name == "arith.constant" or (op.name == "memref.dim" and op.operand in function.args)

"""Threads: a kernel as functions that share its iterations.

A kernel becomes two LLVM functions. The *entry* computes the sizes, has ``pool`` run the chunks,
and combines what they reduced. The *chunk* is a range of the flattened iteration space, run as a
real nest of loops: only its two ends are taken apart by division. Between them stands the *body*,
which hands the chunk its pointers as arguments, for only arguments can be told apart by LLVM.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen import pool, private
from weft.codegen.arith import from_word, word
from weft.codegen.cpu_target import CpuTarget
from weft.codegen.emit import INDEX_BITS, Emitter, Module, View, llvm_type, symbol_of
from weft.codegen.entry import Launch, combine_all
from weft.codegen.interface import Slot
from weft.codegen.interrupt import asks, clock
from weft.codegen.lines import Lines
from weft.codegen.llvm import emit_block, emit_op, loop
from weft.ir.builder import identity
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import MemRefType, ScalarType
from weft.ir.views import CheckRace, Parallel
from weft.schedule.language import Schedule
from weft.schedule.legal_cpu import outermost
from weft.schedule.machine import CpuMachine


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

    def __init__(self, function: Function, machine: CpuMachine, schedule: Schedule) -> None:
        self.function = function
        self.schedule = schedule
        self.cpu = CpuTarget(function, machine)
        self.module = Module(lines=Lines(function.span) if function.lined else None)
        self.symbol = symbol_of(function.name)
        self.slots = argument_slots(function)
        self.record = next(k for k, slot in enumerate(self.slots) if slot.kind == "record")
        self.memrefs = [v for v in function.args if isinstance(v.type, MemRefType)]
        self.parallel = outermost(function)
        self.split = function.body.ops.index(self.parallel) if self.parallel else 0
        self.shared = _shared_values(function, self.parallel) if self.parallel else []
        self.private = private.private_arrays(function, schedule)
        # Runs (``passes/split_quotients.py``) are short: memcpy for each costs more than it saves.
        runs = any("independent" in op.attrs for op in walk(function.body))
        self.traits = self.module.attribute(
            'nounwind "prefer-vector-width"="512" "no-trapping-math"="true"'
            + (' "no-builtin-memcpy"' if runs else "")
        )

    def emit(self) -> str:
        """The module's text."""
        if self.parallel is not None:
            for alone in (False, True) if self.private else (False,):
                self._chunk(self.parallel, alone=alone)
                self._body(alone=alone)
        self._entry()
        return str(self.module)

    # -- what a function starts with

    def _emitter(self) -> Emitter:
        return Emitter(self.module, self.cpu, strict_math=self.function.strict)

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

    def _finish(self, e: Emitter, header: str) -> None:
        """Ends a function that returns nothing, with the place where failed checks go."""
        e.jump(self.cpu.leave)
        e.start(self.cpu.leave)
        e.line("ret void")
        e.finish(f"{header} {self.traits}")

    # -- the entry

    def _entry(self) -> None:
        e = self._emitter()
        self._arguments(e)
        ops = self.function.body.ops
        for op in ops[: self.split]:
            emit_op(e, op)
        if self.parallel is not None:
            work = next(op.operand for op in ops if op.name == "weft.work")
            Launch(e, self.parallel, self.cpu, self.shared, self.private, work).emit()
            self.split += 1
        for op in ops[self.split :]:
            emit_op(e, op)
        self._finish(e, f"define void @{self.symbol}(ptr %slots)")

    # -- the body

    def _body(self, *, alone: bool) -> None:
        """What the pool calls: the chunk, with the tensors' memory. ``alone``: with copies of its
        own, where there are some."""
        e = self._emitter()
        pointers = [e.load_word("%slots", k, "ptr") for k in range(len(self.memrefs))]
        if alone:
            self._arguments(e, pointers)
            own = private.cleared(e, self.private, "%partial")
            pointers = [own.get(v, p) for v, p in zip(self.memrefs, pointers, strict=True)]
        pairs = [("ptr", "%slots"), ("ptr", "%frame"), ("i64", "%begin"), ("i64", "%end"),
                 ("ptr", "%partial"), *(("ptr", pointer) for pointer in pointers)]  # fmt: skip
        suffix = ".plain" if alone else ""
        e.line(f"call void @chunk{suffix}({', '.join(f'{t} {v}' for t, v in pairs)})")
        e.line("ret void")
        arguments = "ptr %slots, ptr %frame, i64 %begin, i64 %end, ptr %partial"
        e.finish(f"define internal void @body{suffix}({arguments}) {self.traits}")

    # -- the chunk

    def _chunk(self, op: Op, *, alone: bool) -> None:
        """A range of iterations. ``alone``: nobody else accumulates into private arrays."""
        e = self._emitter()
        pointers = [f"%m{k}" for k in range(len(self.memrefs))]
        self._arguments(e, pointers)
        for value in self.private if alone else ():
            e.views[value].parallel, e.views[value].private = False, True
        dims = op.attrs["dims"]
        trips = [e.load_word("%frame", pool.FIRST + k) for k in range(dims)]
        e.line("%last = sub nsw i64 %end, 1")
        self._bind_shared(e, pool.FIRST + dims)
        if asks(op):
            stop = e.place("%frame", pool.STOP)
            self.cpu.polls = clock(e, self.cpu.machine.clock, stop)
        firsts, lasts = _prefixes(e, "%begin", trips), _prefixes(e, "%last", trips)
        body, kinds = op.body, op.attrs["kinds"]
        types = [v.scalar for v in op.results]
        names = [llvm_type(t) for t in types]
        plain = not any(inner.regions and inner.name != "scf.if" for inner in walk(body))
        group = self.module.node("!{}") if plain else ""

        axes = Parallel(op).axes

        def nest(depth: int, prefix: str, carried: list[str]) -> list[str]:
            begin, end = firsts[depth], e.inst(f"add nsw i64 {lasts[depth]}, 1")
            passed = "0"  # iterations of this depth in rows that come before this one
            if depth:  # no branches on "first row?": LLVM would write the loops twice for them
                passed = e.inst(f"mul nsw i64 {prefix}, {trips[depth]}")
                begin = e.extreme("smax", "0", e.inst(f"sub nsw i64 {begin}, {passed}"))
                end = e.extreme("smin", trips[depth], e.inst(f"sub nsw i64 {end}, {passed}"))

            def inside(count: str, values: list[str]) -> list[str]:
                value, (lower, _, step) = body.args[depth], axes[depth]
                e.names[value] = self._index(e, value, count, lower, step)
                if depth + 1 < dims:
                    flat = e.inst(f"add nsw i64 {passed}, {count}") if depth else count
                    return nest(depth + 1, flat, values)
                e.groups = [group] if group else []
                parts = emit_block(e, body)
                e.groups = []
                return combine_all(e, op, values, parts)

            metadata = ""
            if depth + 1 == dims and group:
                accesses = self.module.node(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
                metadata = self.module.node(f"!{{{{self}}, {accesses}}}")
            return loop(e, begin, end, "1", carried, names, inside, metadata=metadata)

        neutral = [e.literal(identity(kind, t), t) for kind, t in zip(kinds, types, strict=True)]
        results = nest(0, "", neutral)
        for k, (value, t) in enumerate(zip(results, types, strict=True)):
            e.line(f"store i64 {word(e, value, t)}, ptr {e.place('%partial', k)}")
        alias = "noalias " if self.function.attrs.get("noalias") else ""
        memrefs = "".join(f", ptr {alias}{p}" for p in pointers)
        own = "ptr noalias readonly %slots, ptr noalias readonly %frame, i64 %begin, i64 %end"
        signature = f"@chunk{'.plain' if alone else ''}({own}, ptr noalias %partial{memrefs})"
        self._finish(e, f"define internal void {signature} noinline")

    def _index(self, e: Emitter, value: Value, count: str, lower: Value, step: Value) -> str:
        """The parallel index ``value`` at an iteration: lower + count * step."""
        name = count
        if e.constants.get(step) != 1:
            name = e.inst(f"mul nsw i64 {name}, {e.name(step)}")
        if e.constants.get(lower) != 0:
            name = e.inst(f"add nsw i64 {name}, {e.name(lower)}")
        if lower in e.bits:
            e.bits[value] = INDEX_BITS
        return name

    def _bind_shared(self, e: Emitter, first: int) -> None:
        """Binds what was computed before the loop: constants and sizes anew, the rest is loaded."""
        shared = {value: first + k for k, value in enumerate(self.shared)}
        for op in self.function.body.ops[: self.split]:
            if op.name == "arith.constant" or (op.name == "memref.dim" and op.operand in e.views):
                emit_op(e, op)
                continue
            for value in op.results:
                if value not in shared:
                    continue
                if isinstance(value.type, MemRefType):
                    assert value.type.shape is not None
                    sizes = [str(n) for n in value.type.shape]
                    pointer = e.load_word("%frame", shared[value], "ptr")
                    e.views[value] = View(pointer, value.type, sizes, [])
                else:
                    e.names[value] = from_word(
                        e, e.load_word("%frame", shared[value]), value.scalar
                    )


def _shared_values(function: Function, parallel: Op) -> list[Value]:
    """Values computed before the loop that its iterations use, in order of definition."""
    used = set(parallel.operands)
    for op in walk(parallel.body):
        used.update(op.operands)
    found = []
    for op in function.body.ops:
        if op is parallel:
            break
        if op.name == "memref.dim" and op.operand in function.args:
            continue
        if op.name != "arith.constant":
            found += [v for v in op.results if v in used]
    return found


def _prefixes(e: Emitter, flat: str, trips: list[str]) -> list[str]:
    """For each dimension: which row of that depth holds iteration ``flat``, counting all rows."""
    found = [flat]
    for trip in reversed(trips[1:]):
        found.insert(0, e.inst(f"udiv i64 {found[0]}, {trip}"))
    return found

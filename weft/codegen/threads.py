"""Threads: a kernel as functions that share its iterations.

A kernel becomes two LLVM functions. The *entry* computes the sizes, has ``pool`` run the chunks,
and combines what they reduced. The *chunk* is a range of the flattened iteration space, run as a
real nest of loops: only its two ends are taken apart by division. Between them stands the *body*,
which hands the chunk its pointers as arguments, for only arguments can be told apart by LLVM.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

from weft.codegen import pool, private
from weft.codegen.accumulations import accumulations
from weft.codegen.arith import combine, from_word, word
from weft.codegen.collapse import rows
from weft.codegen.cpu_target import CpuTarget
from weft.codegen.emit import INDEX_BITS, Emitter, Module, View, llvm_type, symbol_of
from weft.codegen.interface import Slot
from weft.codegen.interrupt import clock, polled_loops, runs_once
from weft.codegen.lanes import tile_of
from weft.codegen.llvm import emit_block, emit_op, loop, rows_follow
from weft.codegen.tiles import emit_tile
from weft.ir import trips
from weft.ir.builder import identity
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, ScalarType, index
from weft.ir.views import CheckRace, For, Parallel
from weft.schedule.default_cpu import outermost
from weft.schedule.language import Schedule
from weft.schedule.machine import CpuMachine

UNKNOWN_TRIPS = 16.0  # iterations assumed of a loop whose bounds are not known beforehand


def argument_slots(function: Function) -> tuple[Slot, ...]:
    """The layout of the argument block that the compiled function takes."""
    memrefs = [(k, v.type) for k, v in enumerate(function.args) if isinstance(v.type, MemRefType)]
    slots = [Slot("pointer", k) for k, _ in memrefs]
    for k, value in enumerate(function.args):
        if isinstance(value.type, ScalarType):
            slots.append(Slot("float" if value.type.is_float else "int", k))
    for k, type in memrefs:
        slots += [Slot("size", k, axis) for axis in range(type.rank)]
        slots += [Slot("stride", k, axis) for axis in range(_stored_strides(type))]
    slots.append(Slot("record", -1))
    watched = {CheckRace(op).memref: op.attrs["words"] for op in walk(function.body)
               if op.name == "weft.check_race"}  # fmt: skip
    for k, _ in memrefs:
        words = watched.get(function.args[k])
        if words is not None:
            slots += [Slot("shadow", k, words), Slot("shift", k)]
    return tuple(slots)


def _stored_strides(type: MemRefType) -> int:
    return {"contiguous": 0, "unit": max(type.rank - 1, 0), "strided": type.rank}[type.layout]


class CpuModule:
    """The LLVM module of one kernel while it is written."""

    def __init__(
        self, function: Function, machine: CpuMachine, schedule: Schedule, *,
        strict_math: bool, noalias: bool,
    ) -> None:  # fmt: skip
        self.function = function
        self.schedule = schedule
        self.strict_math = strict_math
        self.noalias = noalias
        self.cpu = CpuTarget(function, machine)
        self.module = Module(accumulations=accumulations(function))
        self.symbol = symbol_of(function.name)
        self.slots = argument_slots(function)
        self.record = next(k for k, slot in enumerate(self.slots) if slot.kind == "record")
        self.memrefs = [v for v in function.args if isinstance(v.type, MemRefType)]
        self.parallel = outermost(function)
        self.split = function.body.ops.index(self.parallel) if self.parallel else 0
        self.shared = _shared_values(function, self.parallel) if self.parallel else []
        self.tile = tile_of(self.parallel, schedule) if self.parallel else None
        self.private = private.private_arrays(function, schedule)
        if self.parallel is not None and self.tile is None and runs_once(self.parallel):
            self.cpu.polled = polled_loops(self.parallel.body)
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
        return Emitter(self.module, self.cpu, strict_math=self.strict_math)

    def _arguments(self, e: Emitter, pointers: Sequence[str] | None = None) -> None:
        """Binds the kernel's arguments: what is not a pointer is loaded from ``%slots``."""
        args = self.function.args
        for k, slot in enumerate(self.slots):
            if slot.kind == "record":  # belongs to no argument: there may be none
                continue
            value = args[slot.arg]
            if slot.kind == "pointer":
                pointer = pointers[k] if pointers else _load(e, "%slots", k, "ptr")
                e.views[value] = View(pointer, value.memref, [], [])
            elif slot.kind in ("int", "float"):
                e.names[value] = from_word(e, _load(e, "%slots", k), value.scalar)
            elif slot.kind == "size":
                e.views[value].sizes.append(_load(e, "%slots", k))
            elif slot.kind == "stride":
                e.views[value].strides.append(_load(e, "%slots", k))
            elif slot.kind == "shadow":
                pair = _load(e, "%slots", k, "ptr"), _load(e, "%slots", k + 1)
                self.cpu.shadows[value] = pair
        for value in self.memrefs:
            if value.memref.layout == "unit" and value.memref.rank:
                e.views[value].strides.append("1")
        if self.cpu.checks:
            self.cpu.record = _load(e, "%slots", self.record, "ptr")
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
            self._launch(e, self.parallel)
            self.split += 1
        for op in ops[self.split :]:
            emit_op(e, op)
        self._finish(e, f"define void @{self.symbol}(ptr %slots)")

    def _launch(self, e: Emitter, op: Op) -> None:
        trips = [trip_count(e, *bounds) for bounds in Parallel(op).axes]
        total = _product(e, trips)
        work = self._work(e, op, trips, total)
        self._flatten(e, op, trips)
        lengths = self._tiled(e, trips)
        if lengths:
            total = _product(e, trips)
        kinds: tuple[str, ...] = op.attrs["kinds"]
        partials, body, own = "null", "@body", str(len(kinds))
        alone = "true" if self.cpu.prints else "false"
        way = None
        if self.private:
            way = private.way(e, list(self.private), work)
            partials, body, own, work = way.memory, way.body, way.words, way.work
            alone = e.inst(f"or i1 {alone}, {way.alone}")
        if kinds:
            partials = e.fresh("partials")
            words = pool.MAX_CHUNKS * len(kinds)
            e.allocas.append(f"{partials} = alloca [{words} x i64], align 64")
        frame = self._frame(e, total, partials, (body, own), [*trips, *lengths])
        row = str((1 << 63) - 1)
        if len(trips) > 1:
            row = e.extreme("smax", trips[-1], "1")
        e.declare(pool.DECLARATION)
        chunks = e.inst(f"call i64 @{pool.RUN}(ptr {frame}, i64 {row}, double {work}, i1 {alone})")
        if kinds:
            self._combine(e, op, partials, chunks)
        if way is not None:
            ends = [_load(e, _load(e, frame, pool.RECORD, "ptr"), 0), _load(e, frame, pool.STOP)]
            failed = e.inst(f"icmp ne i64 {e.inst(f'or i64 {ends[0]}, {ends[1]}')}, 0")
            private.added(e, self.private, way, chunks, failed)

    def _frame(
        self, e: Emitter, total: str, partials: str, chunk: tuple[str, str], own: list[str]
    ) -> str:
        """What the pool and the chunks are told: a block of words. ``chunk``: the function that
        runs one, and the words of its own among the ``partials``."""
        frame = e.fresh("frame")
        size = pool.FIRST + len(own) + len(self.shared)
        e.allocas.append(f"{frame} = alloca [{size} x i64], align 64")
        record = self.cpu.record if self.cpu.checks else _place(e, frame, pool.STOP)
        words = {
            pool.SLOTS: ("ptr", "%slots"), pool.TOTAL: ("i64", total),
            pool.PARTIALS: ("ptr", partials), pool.STOP: ("i64", "0"),
            pool.CHUNK: ("ptr", chunk[0]), pool.KINDS: ("i64", chunk[1]),
            pool.RECORD: ("ptr", record),
        }  # fmt: skip
        words |= {k: ("i64", count) for k, count in enumerate(own, pool.FIRST)}
        for k, value in enumerate(self.shared, pool.FIRST + len(own)):
            if isinstance(value.type, MemRefType):
                words[k] = ("ptr", e.name(value))
            else:
                words[k] = ("i64", word(e, e.name(value), value.scalar))
        for k, (ty, value) in words.items():
            e.line(f"store {ty} {value}, ptr {_place(e, frame, k)}")
        return frame

    def _flatten(self, e: Emitter, op: Op, trips: list[str]) -> None:
        """Makes ``trips`` count neighbouring indices as one where ``flat`` allows it."""
        if self.tile is not None:
            return
        dims, body, loop = op.attrs["dims"], op.body, Parallel(op)
        allowed, deeper = "true", trips[-1]
        for axis in reversed(range(dims - 1)):
            if not all(e.constants.get(step) == 1 for step in loop.steps[axis : axis + 2]):
                return
            memrefs = rows(body, body.args[axis], body.args[axis + 1], behind=dims - 2 - axis)
            if memrefs is None or e.constants.get(loop.lowers[axis + 1]) != 0:
                return
            same = rows_follow(e, memrefs, dims - 2 - axis, trips[axis + 1], deeper)
            allowed = e.inst(f"and i1 {allowed}, {same}")
            deeper = e.inst(f"mul nsw i64 {deeper}, {trips[axis]}")
            one = e.inst(f"select i1 {allowed}, i64 1, i64 {trips[axis]}")
            trips[-1] = e.inst(f"select i1 {allowed}, i64 {deeper}, i64 {trips[-1]}")
            trips[axis] = one

    def _tiled(self, e: Emitter, trips: list[str]) -> list[str]:
        """Makes ``trips`` count tiles; gives the iterations along a tile's two sides."""
        tile = self.tile
        if tile is None:
            return []
        rows, columns = "1", trips[tile.column]
        if tile.row is not None:
            rows = trips[tile.row]
            trips[tile.row] = _ceil_div(e, rows, str(tile.rows))
        trips[tile.column] = _ceil_div(e, columns, str(tile.columns))
        return [rows, columns]

    def _combine(self, e: Emitter, op: Op, partials: str, chunks: str) -> None:
        """The initial values with what each chunk reduced, in the order of the chunks."""
        kinds = op.attrs["kinds"]
        types = [v.scalar for v in op.results]
        inits = [e.name(v) for v in Parallel(op).inits]

        def body(chunk: str, carried: list[str]) -> list[str]:
            first = e.inst(f"mul nsw i64 {chunk}, {len(kinds)}")
            row = e.inst(f"getelementptr i64, ptr {partials}, i64 {first}")
            parts = [from_word(e, _load(e, row, k), t) for k, t in enumerate(types)]
            return _combine_all(e, op, carried, parts)

        # Short, and LLVM would take as long to make vectors of it as of the loop.
        plain = self.module.node('!{!"llvm.loop.disable_nonforced"}')
        metadata = self.module.node(f"!{{{{self}}, {plain}}}")
        names = [llvm_type(t) for t in types]
        results = loop(e, "0", chunks, "1", inits, names, body, metadata=metadata)
        e.names.update(zip(op.results, results, strict=True))

    def _work(self, e: Emitter, op: Op, trips: list[str], total: str) -> str:
        """A guess of the number of operations, as a double."""
        body = op.body
        for value, trip in zip(body.args, trips, strict=True):
            e.names[value] = e.inst(f"ashr i64 {trip}, 1")  # the iteration in the middle
        each = _cost(e, body)
        for value in body.args:
            del e.names[value]
        return e.inst(f"fmul double {e.inst(f'sitofp i64 {total} to double')}, {each}")

    # -- the body

    def _body(self, *, alone: bool) -> None:
        """What the pool calls: the chunk, with the tensors' memory. ``alone``: with copies of its
        own, where there are some."""
        e = self._emitter()
        pointers = [_load(e, "%slots", k, "ptr") for k in range(len(self.memrefs))]
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
        trips = [_load(e, "%frame", pool.FIRST + k) for k in range(dims)]
        e.line("%last = sub nsw i64 %end, 1")
        sides = [_load(e, "%frame", pool.FIRST + dims + k) for k in range(2 if self.tile else 0)]
        self._bind_shared(e, pool.FIRST + dims + len(sides))
        if self.cpu.polled:
            self.cpu.clock = clock(e, self.cpu.machine.clock)
        firsts, lasts = _prefixes(e, "%begin", trips), _prefixes(e, "%last", trips)
        body, kinds = op.body, op.attrs["kinds"]
        types = [v.scalar for v in op.results]
        names = [llvm_type(t) for t in types]
        plain = not any(inner.regions and inner.name != "scf.if" for inner in walk(body))
        group = self.module.node("!{}") if plain else ""

        counts = [""] * dims

        def index(value: Value, count: str) -> str:
            lower, _, step = Parallel(op).axes[body.args.index(value)]
            return self._index(e, value, count, lower, step)

        def nest(depth: int, prefix: str, carried: list[str]) -> list[str]:
            begin, end = firsts[depth], e.inst(f"add nsw i64 {lasts[depth]}, 1")
            passed = "0"  # iterations of this depth in rows that come before this one
            if depth:  # no branches on "first row?": LLVM would write the loops twice for them
                passed = e.inst(f"mul nsw i64 {prefix}, {trips[depth]}")
                begin = e.extreme("smax", "0", e.inst(f"sub nsw i64 {begin}, {passed}"))
                end = e.extreme("smin", trips[depth], e.inst(f"sub nsw i64 {end}, {passed}"))

            def inside(count: str, values: list[str]) -> list[str]:
                counts[depth] = count
                e.names[body.args[depth]] = index(body.args[depth], count)
                if depth + 1 < dims:
                    flat = e.inst(f"add nsw i64 {passed}, {count}") if depth else count
                    return nest(depth + 1, flat, values)
                if self.tile is not None:
                    self._tile(e, counts, (sides[0], sides[1]), index)
                    return []
                e.groups = [group] if group else []
                parts = emit_block(e, body)
                e.groups = []
                return _combine_all(e, op, values, parts)

            metadata = ""
            if depth + 1 == dims and group:
                accesses = self.module.node(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
                metadata = self.module.node(f"!{{{{self}}, {accesses}}}")
            return loop(e, begin, end, "1", carried, names, inside, metadata=metadata)

        neutral = [e.literal(identity(kind, t), t) for kind, t in zip(kinds, types, strict=True)]
        results = nest(0, "", neutral)
        for k, (value, t) in enumerate(zip(results, types, strict=True)):
            e.line(f"store i64 {word(e, value, t)}, ptr {_place(e, '%partial', k)}")
        alias = "noalias " if self.noalias else ""
        memrefs = "".join(f", ptr {alias}{p}" for p in pointers)
        own = "ptr noalias readonly %slots, ptr noalias readonly %frame, i64 %begin, i64 %end"
        signature = f"@chunk{'.plain' if alone else ''}({own}, ptr noalias %partial{memrefs})"
        self._finish(e, f"define internal void {signature} noinline")

    def _tile(
        self, e: Emitter, counts: list[str], sides: tuple[str, str],
        index: Callable[[Value, str], str],
    ) -> None:  # fmt: skip
        tile = self.tile
        assert tile is not None
        column = e.inst(f"mul nsw i64 {counts[tile.column]}, {tile.columns}")
        row = "0"
        if tile.row is not None:
            row = e.inst(f"mul nsw i64 {counts[tile.row]}, {tile.rows}")
        emit_tile(e, tile, self.cpu.machine, sides, (row, column), index)

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
                    pointer = _load(e, "%frame", shared[value], "ptr")
                    e.views[value] = View(pointer, value.type, sizes, [])
                else:
                    e.names[value] = from_word(e, _load(e, "%frame", shared[value]), value.scalar)


def _combine_all(e: Emitter, op: Op, left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Combines the values of a loop's reductions, pair by pair."""
    rows = zip(op.attrs["kinds"], op.results, left, right, strict=True)
    return [combine(e, kind, value.scalar, a, b) for kind, value, a, b in rows]


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


def _place(e: Emitter, block: str, k: int) -> str:
    return block if k == 0 else e.inst(f"getelementptr inbounds i64, ptr {block}, i64 {k}")


def _load(e: Emitter, block: str, k: int, ty: str = "i64") -> str:
    """Loads word ``k`` of a block of words."""
    return e.inst(f"load {ty}, ptr {_place(e, block, k)}, align 8")


def _product(e: Emitter, factors: Sequence[str]) -> str:
    return functools.reduce(lambda a, b: e.inst(f"mul nsw i64 {a}, {b}"), factors)


def _ceil_div(e: Emitter, a: str, b: str) -> str:
    raised = e.inst(f"add i64 {a}, {e.inst(f'sub i64 {b}, 1')}")
    return e.inst(f"udiv i64 {raised}, {b}")


def _prefixes(e: Emitter, flat: str, trips: list[str]) -> list[str]:
    """For each dimension: which row of that depth holds iteration ``flat``, counting all rows."""
    found = [flat]
    for trip in reversed(trips[1:]):
        found.insert(0, e.inst(f"udiv i64 {found[0]}, {trip}"))
    return found


def _cost(e: Emitter, block: Block) -> str:
    """A guess of the operations in a block, as a double that the code computes."""
    own, parts = 0.0, []
    for op in block.ops:
        for region in op.regions:
            inside = _cost(e, region)
            trips = _trips(e, op)
            parts.append(inside if trips is None else e.inst(f"fmul double {inside}, {trips}"))
        if op.name.startswith("math.") or op.name in ("memref.atomic_rmw", "arith.divf"):
            own += 8.0
        elif op.name not in ("arith.constant", "memref.dim") and not OPS[op.name].terminator:
            own += 1.0
    total = repr(own)
    for part in parts:
        total = e.inst(f"fadd double {total}, {part}")
    return total


def _trips(e: Emitter, op: Op) -> str | None:
    """How often an operation's regions run, as a double; None: once."""
    if op.name == "scf.if":
        return None
    if op.name != "scf.for" or not all(_known(e, v) for v in For(op).bounds):
        return repr(UNKNOWN_TRIPS)
    return e.inst(f"sitofp i64 {trip_count(e, *For(op).bounds)} to double")


def _known(e: Emitter, value: Value) -> bool:
    """Makes a value known in this function, if it follows from what is: index arithmetic only."""
    if value in e.names or value in e.constants:
        return True
    op = value.op
    if op is None or not OPS[op.name].pure or value.scalar is not index:
        return False
    if op.name != "memref.dim" and not all(_known(e, v) for v in op.operands):
        return False
    emit_op(e, op)
    return True


class _Instructions:
    """Integers of LLVM's type ``ty``, by their names."""

    # The dividend of a trip count is never negative, and may need all bits.
    _OPS: ClassVar = {"addi": "add", "subi": "sub nsw", "floordivsi": "udiv"}

    def __init__(self, e: Emitter, ty: str) -> None:
        self.e = e
        self.ty = ty

    def constant(self, value: str) -> int | None:
        return None if value.startswith("%") else int(value)

    def number(self, value: int) -> str:
        return str(value)

    def op(self, name: str, a: str, b: str) -> str:
        if name == "maxsi":
            return self.e.extreme("smax", a, b, self.ty)
        return self.e.inst(f"{self._OPS[name]} {self.ty} {a}, {b}")


def trip_count(e: Emitter, lower: Value, upper: Value, step: Value, ty: str = "i64") -> str:
    """How many iterations a loop with these bounds has."""
    return trips.trip_count(_Instructions(e, ty), e.name(lower), e.name(upper), e.name(step))

"""Grids: a kernel as a function that each thread of a GPU runs, for its iterations.

A thread finds its iterations from its place in the grid, along the dimensions that its schedule
puts on it. Where the grid covers the iterations there are no loops over them, and no division but
one for each block of a fourth dimension. A reduction ends in each block with shuffles and shared
memory; what blocks leave is combined by a second function of one block, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.abreast import Abreast
from weft.codegen.accumulations import accumulations
from weft.codegen.arith import from_word, identity, narrow, word
from weft.codegen.device import ORDERING, Cuda
from weft.codegen.emit import Emitter, Module, View, llvm_type, memory_type, symbol_of
from weft.codegen.llvm import emit_block, emit_op, loop
from weft.codegen.members import Members, column, in_whole_block, pairs, row, shared_words
from weft.codegen.threads import argument_slots
from weft.codegen.threadwise import (
    Bounds,
    barrier,
    between,
    block_number,
    in_block,
    index_of,
    position,
    to,
    updates,
    written,
)  # fmt: skip
from weft.codegen.trips import divide, trip_count
from weft.ir.core import Function, Op, Value
from weft.ir.trips import unravel
from weft.ir.types import MemRefType, ScalarType, f64
from weft.ir.views import Parallel
from weft.schedule.grid import THREADS, WARP, threads_of
from weft.schedule.language import (
    Align,
    Cooperate,
    Cover,
    FastDivision,
    IndexWidth,
    Privatize,
    Schedule,
    StreamingStores,
    Vectorize,
    only,
    several,
)
from weft.schedule.nest import arrays_of

_SHARED = "weft_warps"  # what the warps of a block hand over
_PRIVATE = "weft_private"  # a block's own copy of what it accumulates into

_ATOMIC = {
    "addi": "add", "maxsi": "max", "minsi": "min", "maxui": "umax", "minui": "umin",
    "andi": "and", "ori": "or", "xori": "xor", "addf": "fadd",
}  # fmt: skip


class Grid:
    """The LLVM module of one kernel while it is written. ``parallel`` is None where the whole
    function runs in one thread."""

    def __init__(
        self, function: Function, parallel: Op | None, order: Sequence[int], schedule: Schedule, *,
        strict_math: bool, noalias: bool, divisors: int = 0,
    ) -> None:  # fmt: skip
        """``order``: the parallel dimensions, that along x first. ``divisors``: how many the
        argument block has reciprocals of, where divisions are fast."""
        self.function = function
        self.parallel = parallel
        self.order = order
        self.narrow = only(schedule, IndexWidth) is not None
        self.covers = only(schedule, Cover) is not None
        self.vector = only(schedule, Vectorize)
        self.together = only(schedule, Cooperate)
        arrays = arrays_of(function)
        own = only(schedule, Privatize)
        self.private = function.args[arrays.index(own.array)] if own else None
        # Of each argument that is accessed in whole vectors, their bytes.
        self.limits = {arrays.index(a.array): a.bytes for a in several(schedule, Align)}
        self.strict_math = strict_math
        self.noalias = noalias
        self.divisors = divisors if only(schedule, FastDivision) else 0
        self.cuda = Cuda(function)
        self.module = Module(accumulations=accumulations(function))
        self.symbol = symbol_of(function.name)
        self.slots = argument_slots(function)
        self.written = written(function)
        usual = 2 * THREADS if only(schedule, StreamingStores) else THREADS
        group = self.together.threads if self.together else 0
        threads = max(usual, threads_of(schedule), group)
        self.traits = self.module.attribute(f'nounwind "nvvm.maxntid"="{threads}"')
        self.kinds: tuple[str, ...] = parallel.attrs["kinds"] if parallel else ()
        ops = function.body.ops
        self.split = ops.index(parallel) if parallel else len(ops)

    def emit(self) -> str:
        """The module's text: the kernel, and what finishes a reduction."""
        self._main()
        if self.kinds:
            self._finish_kernel()
        return str(self.module)

    # -- what both functions start with

    def _begin(self) -> Emitter:
        e = Emitter(self.module, self.cuda, strict_math=self.strict_math)
        e.ordering = ORDERING
        e.offset_type = "i32" if self.narrow else "i64"
        args = self.function.args
        for k, slot in enumerate(self.slots):
            if slot.kind == "record":  # belongs to no argument: there may be none
                self.cuda.record = self._generic(e, k) if self.cuda.checks else ""
                continue
            value = args[slot.arg]
            match slot.kind:
                case "pointer":
                    e.views[value] = View(self._generic(e, k), value.memref, [], [])
                case "int":
                    e.names[value] = from_word(e, f"%s{k}", value.scalar)
                case "float":
                    e.names[value] = narrow(e, f64, value.scalar, f"%s{k}")
                case "size":
                    e.views[value].sizes.append(self._extent(e, k, value, slot.axis))
                case _:
                    e.views[value].strides.append(self._extent(e, k, value, slot.axis))
        for value in args:
            if (
                isinstance(value.type, MemRefType)
                and value.type.layout == "unit"
                and value.type.rank
            ):
                e.views[value].strides.append("1")
        self.cuda.reciprocals = [self._reciprocal(e, k) for k in range(self.divisors)]
        self.cuda.leave, self.cuda.failed = "leave", []
        for op in self.function.body.ops[: self.split]:
            emit_op(e, op)
        return e

    def _reciprocal(self, e: Emitter, k: int) -> tuple[str, str]:
        """Multiplier and shift of a divisor, in 32 bits."""
        multiplier = e.inst(f"trunc i64 %d{k} to i32")
        shift = e.inst(f"trunc i64 {e.inst(f'lshr i64 %d{k}, 32')} to i32")
        return multiplier, shift

    def _generic(self, e: Emitter, k: int) -> str:
        return e.inst(f"addrspacecast ptr addrspace(1) %s{k} to ptr")

    def _extent(self, e: Emitter, k: int, value: Value, axis: int) -> str:
        """A size or stride. Those that rows of aligned vectors depend on are multiples of
        vectors."""
        name = f"%s{k}"
        type = value.memref
        if self.narrow:
            name = e.inst(f"trunc i64 {name} to i32")
        aligned = self.limits
        position = self.function.args.index(value)
        slot = self.slots[k]
        row = slot.kind == "stride" if type.layout == "unit" else axis == type.rank - 1
        if position in aligned and type.rank > 1 and row:
            name = e.inst(
                f"and {e.offset_type} {name}, {-(aligned[position] // type.element.bytes)}"
            )
        return name

    def _end(self, e: Emitter, name: str) -> None:
        if self.cuda.checks:
            e.jump("leave")
            e.start("leave")
        e.line("ret void")
        types = {"pointer": "ptr addrspace(1)", "record": "ptr addrspace(1)", "float": "double"}
        params = []
        for k, slot in enumerate(self.slots):
            traits = ""
            if slot.kind == "pointer":
                traits = " noalias" if self.noalias else ""
                traits += "" if slot.arg in self.written else " readonly"
                traits += f" align {self._alignment(slot.arg)}"
            params.append(f"{types.get(slot.kind, 'i64')}{traits} %s{k}")
        params += ["ptr addrspace(1) noalias %partials", "i64 %blocks"]
        params += [f"i64 %d{k}" for k in range(self.divisors)]
        e.finish(f"define ptx_kernel void @{name}({', '.join(params)}) {self.traits}")

    def _alignment(self, position: int) -> int:
        type = self.function.args[position].memref
        return self.limits.get(position, type.element.bytes)

    # -- the kernel

    def _main(self) -> None:
        e = self._begin()
        if self.parallel is None:
            self._end(e, self.symbol)
            return
        if self.private is not None:
            self._private(e, self.private)
        accumulators = self._nest(e, self.parallel)
        if self.private is not None:
            self._flush(e, self.private)
        if self.kinds:
            self._reduce(e, self.parallel, accumulators)
        else:
            for op in self.function.body.ops[self.split + 1 :]:
                emit_op(e, op)
        self._end(e, self.symbol)

    def _nest(self, e: Emitter, op: Op) -> list[str]:
        """The thread's iterations: along z (all dimensions but two), y and x. Gives what it
        reduced."""
        bounds = Parallel(op).axes
        args = op.body.args
        trips = {
            k: trip_count(e, lower, upper, step, llvm_type(args[k].type))
            for k, (lower, upper, step) in enumerate(bounds)
        }
        if self.together is not None:
            self._rows(e, op, self.together, bounds, trips)
            return []
        types = [v.scalar for v in op.results]
        neutral = [
            e.literal(identity(kind, t), t) for kind, t in zip(self.kinds, types, strict=True)
        ]
        names = [llvm_type(t) for t in types]
        x, *outer = self.order

        def bind(axis: int, count: str) -> None:
            e.names[args[axis]] = index_of(e, count, bounds[axis], llvm_type(args[axis].type))

        def along_x(carried: list[str]) -> list[str]:
            return self._along_x(e, op, x, trips[x], bounds[x], carried, names, bind)

        def along_y(carried: list[str]) -> list[str]:
            if not outer:
                return along_x(carried)

            def inside(count: str, values: list[str]) -> list[str]:
                bind(outer[0], count)
                return along_x(values)

            return self._span(
                e, "y", trips[outer[0]], llvm_type(args[outer[0]].type), carried, names, inside
            )

        def along_z(carried: list[str]) -> list[str]:
            rest = outer[1:]
            if not rest:
                return along_y(carried)
            ty = (
                "i32"
                if all(llvm_type(args[k].type) == "i32" for k in rest) and len(rest) == 1
                else "i64"
            )
            wide = {k: to(e, trips[k], llvm_type(args[k].type), ty) for k in rest}
            total = wide[rest[0]]
            for k in rest[1:]:
                total = e.inst(f"mul nsw {ty} {total}, {wide[k]}")

            def inside(count: str, values: list[str]) -> list[str]:
                parts = unravel(count, (wide[k] for k in rest[:-1]), divide(e, ty))
                for k, part in zip(rest, parts, strict=True):
                    bind(k, to(e, part, ty, llvm_type(args[k].type)))
                return along_y(values)

            return self._span(e, "z", total, ty, carried, names, inside)

        return along_z(neutral)

    def _rows(
        self, e: Emitter, op: Op, together: Cooperate, bounds: list[Bounds], trips: dict[int, str]
    ) -> None:
        """The iteration of the thread's team."""
        members = Members(e, together.threads, op, together.columns)
        self.cuda.members = members
        if members.columns:
            column(e, members, op, bounds, trips, self.order[0])
            emit_block(e, op.body)
            return
        there, bind = row(e, op, bounds, trips)

        def body() -> None:
            bind()
            emit_block(e, op.body)

        self._guarded(e, there, body)

    def _span(
        self, e: Emitter, side: str, trip: str, ty: str, carried: list[str], names: list[str],
        body: Callable[[str, list[str]], list[str]],
    ) -> list[str]:  # fmt: skip
        """Runs ``body`` for the thread's iterations along y or z."""
        start, stride = position(e, side, ty)
        if self.covers:
            self._guarded(e, e.inst(f"icmp slt {ty} {start}, {trip}"), lambda: body(start, []))
            return []
        return loop(e, start, trip, stride, carried, names, body, metadata=self._rolled(), type=ty)

    def _guarded(self, e: Emitter, condition: str, body: Callable[[], object]) -> None:
        yes, out = e.label("mine"), e.label("past")
        e.branch(condition, yes, out)
        e.start(yes)
        body()
        e.jump(out)
        e.start(out)

    def _rolled(self) -> str:
        """Metadata of a loop that is not worth unrolling: it mostly runs once."""
        off = self.module.node('!{!"llvm.loop.unroll.disable"}')
        return self.module.node(f"!{{{{self}}, {off}}}")

    def _along_x(
        self, e: Emitter, op: Op, axis: int, trip: str, bounds: Bounds, carried: list[str],
        names: list[str], bind: Callable[[int, str], None],
    ) -> list[str]:  # fmt: skip
        """The thread's iterations along x, where neighbours are neighbouring threads."""
        ty = llvm_type(op.body.args[axis].type)
        start, stride = position(e, "x", ty)
        one = lambda count, values: self._iteration(e, op, lambda: bind(axis, count), values)  # noqa: E731
        if self.vector is None:
            if self.covers:
                self._guarded(e, e.inst(f"icmp slt {ty} {start}, {trip}"), lambda: one(start, []))
                return []
            return loop(e, start, trip, stride, carried, names, one, type=ty)
        shift, wide = self.vector.peel, self.vector.copies
        lower, _, step = bounds
        known = e.constants.get(lower) is not None and e.constants.get(step) == 1
        args = self.function.args
        whole = known or self.vector.divisible
        limits = {args[k]: limit for k, limit in self.limits.items()} if whole else {}
        abreast = Abreast(op, axis, self.vector, self.cuda, limits)
        if abreast.scattered:
            base = between(e, start, ty, wide, abreast.side)
        else:
            base = e.inst(f"mul nsw {ty} {start}, {wide}")
        if shift:  # so that vectors begin at multiples of their length in memory, not in the loop
            base = e.inst(f"sub nsw {ty} {base}, {shift}")

        def neighbours(first: str, values: list[str]) -> list[str]:
            return self._neighbours(e, abreast, op, first, trip, ty, values, names, bind)

        if self.covers:
            neighbours(base, [])
            return []
        stride = e.inst(f"mul nsw {ty} {stride}, {wide}")
        return loop(e, base, trip, stride, carried, names, neighbours, type=ty)

    def _neighbours(
        self, e: Emitter, abreast: Abreast, op: Op, first: str, trip: str, ty: str,
        carried: list[str], names: list[str], bind: Callable[[int, str], None],
    ) -> list[str]:  # fmt: skip
        """``vector`` iterations from ``first`` on: without branches if all of them exist."""
        length = abreast.length
        end = e.inst(f"add nsw {ty} {first}, {length}")
        inside = e.inst(f"and i1 {e.inst(f'icmp sge {ty} {first}, 0')}, "
                        f"{e.inst(f'icmp sle {ty} {end}, {trip}')}")  # fmt: skip
        for divisor in dict.fromkeys(q.right for q in op.body.ops if q in abreast.quotients):
            kind = llvm_type(divisor.type)
            enough = e.inst(f"icmp sge {kind} {e.name(divisor)}, {length}")
            inside = e.inst(f"and i1 {inside}, {enough}")
        full, part, out = e.label("full"), e.label("part"), e.label("joined")
        e.branch(inside, full, part)
        e.start(full)
        types = [v.scalar for v in op.results]
        parts = abreast.emit(e, first, ty, bind)
        while len(parts) > 1:
            parts = [self._combined(e, types, a, b)
                     for a, b in zip(parts[::2], parts[1::2], strict=True)]  # fmt: skip
        whole, block = self._combined(e, types, carried, parts[0]) if carried else [], e.block
        e.jump(out)
        e.start(part)
        low = e.intrinsic(f"llvm.smax.{ty}", ty, (ty, first), (ty, "0"))
        high = e.intrinsic(f"llvm.smin.{ty}", ty, (ty, end), (ty, trip))

        def one(count: str, values: list[str]) -> list[str]:
            return self._iteration(e, op, lambda: bind(abreast.axis, count), values)

        def side_by_side(count: str, values: list[str]) -> list[str]:
            behind = e.inst(f"add nsw {ty} {count}, {abreast.side}")
            last = e.intrinsic(f"llvm.smin.{ty}", ty, (ty, behind), (ty, high))
            return loop(e, count, last, "1", values, names, one, metadata=self._rolled(), type=ty)

        nested = abreast.scattered and abreast.side > 1
        single = loop(
            e, low, high, str(abreast.apart if abreast.scattered else 1), carried, names,
            side_by_side if nested else one, metadata=self._rolled(), type=ty,
        )  # fmt: skip
        other = e.block
        e.jump(out)
        e.start(out)
        results = []
        for name, a, b in zip(names, whole, single, strict=True):
            phi, slot = e.phi(name)
            e.fill(slot, (a, block), (b, other))
            results.append(phi)
        return results

    def _iteration(
        self, e: Emitter, op: Op, bind: Callable[[], None], carried: list[str]
    ) -> list[str]:
        types = [v.scalar for v in op.results]
        outer, before = self.cuda.leave, self.cuda.failed
        self.cuda.leave, self.cuda.failed = e.label("leave"), []
        bind()
        parts = emit_block(e, op.body)
        new = self._combined(e, types, carried, parts) if carried else []
        failed, label = self.cuda.failed, self.cuda.leave
        self.cuda.leave, self.cuda.failed = outer, before
        if not failed:
            return new
        block = e.block
        e.jump(label)
        e.start(label)
        results = []
        for t, old, value in zip(types, carried, new, strict=True):
            phi, slot = e.phi(llvm_type(t))
            e.fill(slot, (value, block), *((old, b) for b in failed))
            results.append(phi)
        return results

    def _combined(
        self, e: Emitter, types: Sequence[ScalarType], a: list[str], b: list[str]
    ) -> list[str]:
        return pairs(e, self.kinds, types, a, b)

    # -- reductions

    def _reduce(self, e: Emitter, op: Op, values: list[str]) -> None:
        """Combines the block's ``values``; its first thread finishes, or hands over what they
        are."""
        types = [v.scalar for v in op.results]
        thread, _ = in_block(e)
        values = self._block_combined(e, types, values)

        def first() -> None:
            done, more, out = e.label("alone"), e.label("several"), e.label("stored")
            e.branch(e.inst("icmp eq i64 %blocks, 1"), done, more)
            e.start(done)
            self._conclude(e, op, types, values)
            e.jump(out)
            e.start(more)
            number = e.inst(f"zext i32 {block_number(e)} to i64")
            row = e.inst(f"mul nuw nsw i64 {number}, {len(types)}")
            for k, (value, t) in enumerate(zip(values, types, strict=True)):
                place = e.inst(f"add nuw nsw i64 {row}, {k}")
                pointer = e.inst(f"getelementptr i64, ptr addrspace(1) %partials, i64 {place}")
                e.line(f"store i64 {word(e, value, t)}, ptr addrspace(1) {pointer}")
            e.jump(out)
            e.start(out)

        self._guarded(e, e.inst(f"icmp eq i32 {thread}, 0"), first)

    def _conclude(self, e: Emitter, op: Op, types: list[ScalarType], values: list[str]) -> None:
        """The initial values join, and the rest of the function runs: in one thread of all."""
        inits = [e.name(v) for v in Parallel(op).inits]
        for value, name in zip(op.results, self._combined(e, types, inits, values), strict=True):
            e.names[value] = name
        for rest in self.function.body.ops[self.split + 1 :]:
            emit_op(e, rest)

    def _block_combined(self, e: Emitter, types: list[ScalarType], values: list[str]) -> list[str]:
        """What a block's threads hold, combined."""
        shared_words(e, _SHARED, WARP * len(types))
        return in_whole_block(e, self.kinds, types, values, _SHARED)

    def _finish_kernel(self) -> None:
        """The second stage of a reduction: one block combines what the blocks left, in their
        order."""
        assert self.parallel is not None
        e = self._begin()
        op = self.parallel
        types = [v.scalar for v in op.results]
        thread, threads = in_block(e)
        neutral = [
            e.literal(identity(kind, t), t) for kind, t in zip(self.kinds, types, strict=True)
        ]

        def body(block: str, carried: list[str]) -> list[str]:
            row = e.inst(f"mul nuw nsw i64 {block}, {len(types)}")
            parts = []
            for k, t in enumerate(types):
                place = e.inst(f"add nuw nsw i64 {row}, {k}")
                pointer = e.inst(f"getelementptr i64, ptr addrspace(1) %partials, i64 {place}")
                parts.append(from_word(e, e.inst(f"load i64, ptr addrspace(1) {pointer}"), t))
            return self._combined(e, types, carried, parts)

        first, stride = (e.inst(f"zext i32 {v} to i64") for v in (thread, threads))
        values = loop(e, first, "%blocks", stride, neutral, [llvm_type(t) for t in types], body)
        values = self._block_combined(e, types, values)
        self._guarded(
            e, e.inst(f"icmp eq i32 {thread}, 0"), lambda: self._conclude(e, op, types, values)
        )
        self._end(e, f"{self.symbol}_finish")

    # -- accumulation in shared memory

    def _each(self, e: Emitter, view: View, body: Callable[[str], None]) -> None:
        """Shares the elements of ``view`` among the block's threads."""
        ty = e.offset_type
        count = "1"
        for size in view.sizes:
            count = e.inst(f"mul nsw {ty} {count}, {size}")
        thread, threads = (to(e, v, "i32", ty, unsigned=True) for v in in_block(e))

        def one(k: str, _: list[str]) -> list[str]:
            body(k)
            return []

        loop(e, thread, count, threads, [], [], one, metadata=self._rolled(), type=ty)

    def _private(self, e: Emitter, value: Value) -> None:
        """Lets the block accumulate into a copy of its own, which starts at the identity."""
        type = value.type
        assert isinstance(type, MemRefType)
        e.declare(f"@{_PRIVATE} = external addrspace(3) global [0 x i8], align 16")
        self.public = e.views[value]
        pointer = e.inst(f"addrspacecast ptr addrspace(3) @{_PRIVATE} to ptr")
        e.views[value] = View(pointer, type, self.public.sizes, [])
        ty = memory_type(type.element)
        neutral = e.literal(identity(self._private_kind(value), type.element), type.element)

        def clear(k: str) -> None:
            place = e.inst(f"getelementptr {ty}, ptr addrspace(3) @{_PRIVATE}, {e.offset_type} {k}")
            e.line(f"store {ty} {neutral}, ptr addrspace(3) {place}")

        self._each(e, self.public, clear)
        barrier(e)

    def _private_kind(self, value: Value) -> str:
        assert self.parallel is not None
        return next(kind for kind, memref in updates(self.parallel.body.ops) if memref is value)

    def _flush(self, e: Emitter, value: Value) -> None:
        """Adds the block's copy to the argument, element by element."""
        barrier(e)
        type = value.type
        assert isinstance(type, MemRefType)
        e.views[value] = self.public
        element = type.element
        ty, kind = memory_type(element), self._private_kind(value)
        neutral = e.literal(identity(kind, element), element)
        name = _ATOMIC[kind]

        def add(k: str) -> None:
            place = e.inst(f"getelementptr {ty}, ptr addrspace(3) @{_PRIVATE}, {e.offset_type} {k}")
            part = e.inst(f"load {ty}, ptr addrspace(3) {place}")
            differs = f"fcmp une {ty}" if element.is_float else f"icmp ne {ty}"

            def change() -> None:
                target = e.inst(
                    f"getelementptr {ty}, ptr {self.public.pointer}, {e.offset_type} {k}"
                )
                change = f"{name} ptr {target}, {ty} {part}"
                e.inst(f"atomicrmw {change} {e.ordering}, align {element.bytes}")

            self._guarded(e, e.inst(f"{differs} {part}, {neutral}"), change)

        self._each(e, self.public, add)

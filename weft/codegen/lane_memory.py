"""Accesses to memory by the lanes of a register tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

from weft.codegen.emit import View, memory_type
from weft.codegen.lane_values import Instance, LaneValues, Masks
from weft.codegen.llvm import address
from weft.ir.core import Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import memory
from weft.schedule.known_rows import Rows


class LaneMemory:
    """Loads and stores of ``values``, by how their places vary with the lane: scalars, vectors of
    neighbours, or each lane by itself. ``rows``: of arrays, the sizes of the last axes for which
    neighbouring lanes load whole rows, and part their elements."""

    def __init__(self, values: LaneValues, rows: Rows) -> None:
        self.v, self.e, self.rows = values, values.e, rows

    def load(self, op: Op) -> None:
        memref, indices, _ = memory(op)
        view, step = self.e.views[memref], self.v.stride(op)
        if step in (1, -1):
            places = self.places(op, view, indices, step)

            kept = op in self.e.overwritten

            def one(at: Instance) -> str:
                place = places.get(at, places[0, at[1]])
                return self.load_vector(view, place, at, step, kept)
        else:
            each = self.in_rows if self.has_row(op) else self.gather
            one = partial(self.load_scalar if step == 0 else each, op)
        self.v.names[op.result] = {at: one(at) for at in self.v.copies(op.result)}

    def places(
        self, op: Op, view: View, indices: Sequence[Value], step: int
    ) -> dict[Instance, str]:
        """For each vector of an access with ``step`` 1 or -1, the address of its lowest lane."""
        ty, v = memory_type(view.type.element), self.v
        found: dict[Instance, str] = {}
        for j in range(v.jam) if not v.shared(*op.operands) else (0,):
            first = address(self.e, view, [v.name(i, (j, 0)) for i in indices])
            for m in range(v.vectors):
                offset = m * v.width if step == 1 else 1 - (m + 1) * v.width
                found[j, m] = first if offset == 0 else self.e.inst(
                    f"getelementptr {ty}, ptr {first}, i64 {offset}")  # fmt: skip
        return found

    def load_scalar(self, op: Op, at: Instance) -> str:
        memref, indices, _ = memory(op)
        v, view = self.v, self.e.views[memref]
        ty, size = memory_type(view.type.element), view.type.element.bytes
        pointer = address(self.e, view, [v.name(i, at) for i in indices])
        if not v.certain:
            assert v.mask is not None
            rows = range(v.jam) if v.shared(op.result) else (at[0],)
            masks = {(j, m): v.mask[j, m] for j in rows for m in range(v.vectors)}
            pointer = self.if_any(pointer, masks)
        return self.e.inst(f"load {ty}, ptr {pointer}, align {size}")

    def load_vector(
        self, view: View, pointer: str, at: Instance, step: int, overwritten: bool
    ) -> str:
        v, ty, size = self.v, memory_type(view.type.element), view.type.element.bytes
        kind, mask = v.of(ty), v.active(at)
        if mask is None:
            value = self.e.inst(f"load {kind}, ptr {pointer}, align {size}")
        else:
            mask = v.reverse(mask, "i1") if step == -1 else mask
            value = self.e.intrinsic(
                self.masked("load", ty), kind, ("ptr", pointer), ("i32", str(size)),
                (v.bits, mask), (kind, "zeroinitializer"),
            )  # fmt: skip
            if overwritten:
                value = self.e.inst(f"freeze {kind} {value}")
        return v.reverse(value, ty) if step == -1 else value

    def if_any(self, pointer: str, masks: Masks) -> str:
        """``pointer`` where a lane of ``masks`` is active, or else memory of ours."""
        e, any_lane = self.e, self.v.across_all("or", masks)
        if not any("%nowhere =" in line for line in e.allocas):
            e.allocas.append("%nowhere = alloca i64, align 8")
        return e.inst(f"select i1 {any_lane}, ptr {pointer}, ptr %nowhere")

    def gather(self, op: Op, at: Instance) -> str:
        """Loads an element for each lane on its own."""
        memref, indices, _ = memory(op)
        element = memref.memref.element
        ty, vector = memory_type(element), self.v.of(memory_type(element))
        if not self.e.target.gathers:
            return self.loads(element, *self.offsets(memref, indices, at), at)
        return self.e.intrinsic(
            self.masked("gather", ty), vector, self.pointers(memref, indices, at),
            *self.by(element, at), (vector, "zeroinitializer"),
        )  # fmt: skip

    def has_row(self, op: Op) -> bool:
        """Whether neighbouring lanes load from neighbouring rows, each the same element."""
        memref, indices, _ = memory(op)
        last = len(indices) - len(self.rows.get(memref, indices))
        slopes = [self.v.slope(i) for i in indices[:last]]
        return last > 0 and slopes == [*[0] * (last - 1), 1]

    def in_rows(self, op: Op, at: Instance) -> str:
        """Loads an element of each lane's row: with all that they have, where rows have as many
        elements as is thought, and all lanes are active."""
        (memref, indices, _), e, v = memory(op), self.e, self.v
        sizes, view = self.rows[memref], e.views[memref]
        vector = v.of(memory_type(view.type.element))
        known = "true" if v.mask is None else v.across_all("and", {at: v.mask[at]})
        for size, wanted in zip(view.sizes[-len(sizes) :], sizes, strict=True):
            known = e.inst(f"and i1 {known}, {e.inst(f'icmp eq i64 {size}, {wanted}')}")
        whole, apart, join, splats = e.label("rows"), e.label("apart"), e.label("on"), v.splats
        e.branch(known, whole, apart)
        e.start(whole)
        v.splats = dict(splats)
        parted, first = self.parted(view, indices, sizes, at), e.block
        e.jump(join)
        e.start(apart)
        v.splats = dict(splats)
        gathered, second = self.gather(op, at), e.block
        e.jump(join)
        v.splats = splats
        e.start(join)
        name, slot = e.phi(vector)
        e.fill(slot, (parted, first), (gathered, second))
        return name

    def parted(
        self, view: View, indices: Sequence[Value], sizes: Sequence[int], at: Instance
    ) -> str:
        """The elements of rows of ``sizes`` that lie behind each other, one of each row."""
        e, v, length, number = self.e, self.v, prod(sizes), 0
        outer, inner = indices[: -len(sizes)], indices[-len(sizes) :]
        for size, index in zip(sizes, inner, strict=True):
            number = number * size + int(e.constants[index])
        element, count = view.type.element, length * v.width
        ty, zeros = memory_type(element), ["0"] * len(inner)
        pointer = address(e, view, [*(v.name(i, (at[0], 0)) for i in outer), *zeros])
        if at[1]:
            pointer = e.inst(f"getelementptr {ty}, ptr {pointer}, i64 {at[1] * count}")
        kind = f"<{count} x {ty}>"
        rows = e.inst(f"load {kind}, ptr {pointer}, align {element.bytes}")
        order = ", ".join(f"i32 {number + length * lane}" for lane in range(v.width))
        return e.inst(f"shufflevector {kind} {rows}, {kind} poison, {v.of('i32')} <{order}>")

    def loads(self, element: ScalarType, base: str, offsets: str, at: Instance) -> str:
        """The elements at ``offsets`` from ``base``, one by one. Lanes that are not active load
        what is at ``base``: the lanes share what leads there, so that it is an element where one
        of them is active."""
        e, v, mask = self.e, self.v, self.v.active(at)
        ty, ty64 = memory_type(element), v.of("i64")
        if mask is not None:
            none = f"{ty64} zeroinitializer"
            offsets = e.inst(f"select {v.bits} {mask}, {ty64} {offsets}, {none}")
            base = self.if_any(base, {at: mask})
        found = "poison"
        for lane in range(v.width):
            offset = e.inst(f"extractelement {ty64} {offsets}, i64 {lane}")
            pointer = e.inst(f"getelementptr {ty}, ptr {base}, i64 {offset}")
            loaded = e.inst(f"load {ty}, ptr {pointer}, align {element.bytes}")
            found = e.inst(f"insertelement {v.of(ty)} {found}, {ty} {loaded}, i64 {lane}")
        return found

    def scatter(self, op: Op, at: Instance) -> None:
        """Stores an element of each lane on its own."""
        memref, indices, (stored,) = memory(op)
        element = memref.memref.element
        ty, pointers = memory_type(element), self.pointers(memref, indices, at)
        value = self.v.of(ty), self.v.vector(stored, at)
        self.e.call_void(self.masked("scatter", ty), value, pointers, *self.by(element, at))

    def masked(self, name: str, ty: str) -> str:
        """The intrinsic for vectors."""
        width, suffix = self.v.width, {"float": "f32", "double": "f64", "half": "f16"}.get(ty, ty)
        places = f"v{width}p0" if name in ("gather", "scatter") else "p0"
        return f"llvm.masked.{name}.v{width}{suffix}.{places}"

    def by(self, element: ScalarType, at: Instance) -> list[tuple[str, str]]:
        """What it is told of alignment, and of the lanes that take part."""
        mask = self.v.active(at) or "splat (i1 true)"
        return [("i32", str(element.bytes)), (self.v.bits, mask)]

    def pointers(self, memref: Value, indices: Sequence[Value], at: Instance) -> tuple[str, str]:
        """Type and name of the addresses of the lanes' elements."""
        base, offsets = self.offsets(memref, indices, at)
        ty = memory_type(memref.memref.element)
        found = self.e.inst(f"getelementptr {ty}, ptr {base}, {self.v.of('i64')} {offsets}")
        return self.v.of("ptr"), found

    def offsets(self, memref: Value, indices: Sequence[Value], at: Instance) -> tuple[str, str]:
        """An address that the lanes share, and how many elements from there each lane's is."""
        e, v, view = self.e, self.v, self.e.views[memref]
        alike, ty64, offset = [v.slope(i) == 0 for i in indices], v.of("i64"), ""
        shared = [v.name(i, at) if same else "0" for i, same in zip(indices, alike, strict=True)]
        for axis, (value, same) in enumerate(zip(indices, alike, strict=True)):
            index = "" if same else v.vector(value, at)
            if view.strides and index:
                index = e.inst(f"mul {ty64} {index}, {v.splat(view.strides[axis], 'i64')}")
            elif offset and not view.strides:
                offset = e.inst(f"mul {ty64} {offset}, {v.splat(view.sizes[axis], 'i64')}")
            if index:
                offset = e.inst(f"add {ty64} {offset}, {index}") if offset else index
        return address(e, view, shared), offset or "zeroinitializer"

    def store(self, op: Op) -> None:
        memref, indices, (stored,) = memory(op)
        v, view, step = self.v, self.e.views[memref], self.v.stride(op)
        if step not in (1, -1):
            for at in v.instances:
                self.scatter(op, at)
            return
        element = view.type.element
        kind, places = v.of(memory_type(element)), self.places(op, view, indices, step)
        if v.mask is not None:  # a row that does not depend on the jammed index may be one's own
            places = {at: places.get(at, places[0, at[1]]) for at in v.mask}
        for at, pointer in places.items():
            value, mask = v.vector(stored, at), v.active(at)
            if step == -1:
                value = v.reverse(value, memory_type(element))
                mask = mask and v.reverse(mask, "i1")
            if mask is None:
                self.store_vector(op, f"{kind} {value}", pointer)
                continue
            self.e.call_void(
                self.masked("store", memory_type(element)), (kind, value), ("ptr", pointer),
                ("i32", str(element.bytes)), (v.bits, mask),
            )  # fmt: skip

    def store_vector(self, op: Op, value: str, pointer: str) -> None:
        """Stores a vector at once. Only whole ones stream, where such a one may begin: others are
        stored as usual."""
        e, bytes = self.e, memory(op)[0].memref.element.bytes
        usual = f"store {value}, ptr {pointer}, align {bytes}"
        if "streaming" not in op.attrs:
            e.line(usual)
            return
        whole = bytes * self.v.width
        past = e.inst(f"and i64 {e.inst(f'ptrtoint ptr {pointer} to i64')}, {whole - 1}")
        begins, off, on = e.label("streams"), e.label("usual"), e.label("stored")
        e.branch(e.inst(f"icmp eq i64 {past}, 0"), begins, off)
        e.start(begins)
        hint = e.module.node("!{i32 1}")
        e.line(f"store {value}, ptr {pointer}, align {whole}, !nontemporal {hint}")
        e.jump(on)
        e.start(off)
        e.line(usual)
        e.jump(on)
        e.start(on)

"""Copies of arrays for the chunks of a loop, and the memory that they take."""

from __future__ import annotations

from collections.abc import Sequence

from weft.codegen.arith import rule
from weft.codegen.emit import Emitter, View
from weft.ir.core import Op
from weft.ir.views import Copies, CopyOf

LINE = 64  # bytes of a cache line, where each copy begins


@rule("weft.copies")
def _copies(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    count, *_ = operands
    rows = Copies(op).rows
    sizes = [_copy_size(e, e.views[array]) for array, _ in rows]
    bytes, offsets = "0", list[str]()
    for size in sizes:
        offsets.append(e.inst(f"mul nsw i64 {count}, {bytes}"))
        bytes = e.inst(f"add nsw i64 {bytes}, {size}")
    place, ask, on, before = e.fresh("owned"), e.label("copies"), e.label("on"), e.block
    e.allocas += [f"{place} = alloca ptr", f"store ptr null, ptr {place}"]
    e.owned.append(place)
    e.declare("declare noalias ptr @aligned_alloc(i64, i64)")
    e.branch(e.inst(f"icmp sgt i64 {count}, 1"), ask, on)
    e.start(ask)
    total = e.inst(f"mul nsw i64 {count}, {bytes}")
    given = e.inst(f"call ptr @aligned_alloc(i64 {LINE}, i64 {total})")
    e.line(f"store ptr {given}, ptr {place}")
    there = e.inst(f"icmp ne ptr {given}, null")
    some = e.inst(f"select i1 {there}, i64 {count}, i64 0")
    e.jump(on)
    e.start(on)
    memory, slot = e.phi("ptr")
    e.fill(slot, ("null", before), (given, ask))
    made, slot = e.phi("i64")
    e.fill(slot, (count, before), (some, ask))
    there = e.inst(f"icmp ne ptr {memory}, null")
    names = [made]
    for (_, value), offset in zip(rows, offsets, strict=True):
        first = e.inst(f"getelementptr i8, ptr {memory}, i64 {offset}")
        pointer = e.inst(f"select i1 {there}, ptr {first}, ptr null")
        e.views[value] = View(pointer, value.memref, [], [])
        names.append(pointer)
    return names


@rule("weft.copy_of")
def _copy_of(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    copies, number, array = operands
    view = e.views[CopyOf(op).array]
    offset = e.inst(f"mul nsw i64 {number}, {_copy_size(e, view)}")
    own = e.inst(f"getelementptr i8, ptr {copies}, i64 {offset}")
    there = e.inst(f"icmp ne ptr {copies}, null")
    pointer = e.inst(f"select i1 {there}, ptr {own}, ptr {array}")
    e.views[op.result] = View(pointer, op.result.memref, view.sizes, [], parallel=False)
    return [pointer]


def _copy_size(e: Emitter, view: View) -> str:
    """The bytes of a copy of a contiguous array, in whole lines."""
    count = "1"
    for size in view.sizes:
        count = e.inst(f"mul nsw i64 {count}, {size}")
    size = e.inst(f"mul nsw i64 {count}, {view.type.element.bytes}")
    return e.inst(f"and i64 {e.inst(f'add nsw i64 {size}, {LINE - 1}')}, {-LINE}")


def release(e: Emitter) -> None:
    """Frees the memory of all copies."""
    for place in e.owned:
        e.call_void("free", ("ptr", e.inst(f"load ptr, ptr {place}")))

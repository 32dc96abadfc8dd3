"""Tables of constants, in memory that nobody writes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from weft.codegen.emit import Emitter, literal, llvm_type
from weft.ir.core import Op
from weft.ir.types import i1


def looked_up(e: Emitter, op: Op, operands: list[str]) -> Sequence[str]:
    """The rule of ``arith.table``: each lane loads its element."""
    values, t, at, space = op.attrs["values"], op.result.scalar, op.left.scalar, e.target.constants
    ty, offset, pointer = llvm_type(t), llvm_type(at), f"ptr{space}"
    kind = f"[{len(values)} x {ty}]"
    elements = ", ".join(f"{ty} {literal(v, t)}" for v in values)
    name = f"@table.{hashlib.sha256(f'{ty} {elements}'.encode()).hexdigest()[:16]}"
    e.declare(f"{name} = private unnamed_addr{space} constant {kind} [{elements}], align 64")
    last = e.literal(len(values) - 1, at)
    known = e.inst(f"icmp ult {e.type(at)} {operands[0]}, {last}")
    place = e.inst(f"select {e.type(i1)} {known}, {e.type(at)} {operands[0]}, {e.type(at)} {last}")

    def load(place: str) -> str:
        address = e.inst(
            f"getelementptr inbounds {kind}, {pointer} {name}, i64 0, {offset} {place}"
        )
        return e.inst(f"load {ty}, {pointer} {address}, align {t.bits // 8}")

    if e.lanes == 1:
        return [load(place)]
    found = "poison"
    for k in range(e.lanes):
        one = load(e.inst(f"extractelement {e.type(at)} {place}, i64 {k}"))
        found = e.inst(f"insertelement {e.type(t)} {found}, {ty} {one}, i64 {k}")
    return [found]

"""What operations write, and which memrefs may be the same memory."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import constant_of, written_by


def writes(function: Function) -> dict[Op, set[Value]]:
    """For each operation with regions, the memrefs that are written anywhere inside it."""
    summary: dict[Op, set[Value]] = {}
    _collect(function.body, summary)
    return summary


def _collect(block: Block, summary: dict[Op, set[Value]]) -> set[Value]:
    found: set[Value] = set()
    for op in block.ops:
        if op.regions:
            inside: set[Value] = set()
            for region in op.regions:
                inside |= _collect(region, summary)
            summary[op] = inside
            found |= inside
        else:
            memref = written_by(op)
            if memref is not None:
                found.add(memref)
    return found


def is_local(memref: Value) -> bool:
    """True for a local array: it shares memory with nothing else."""
    return isinstance(memref.owner, Op) and memref.owner.name == "memref.alloca"


def may_alias(a: Value, b: Value, noalias: bool) -> bool:
    """Whether two memrefs may share memory. ``noalias``: the function's arguments do not."""
    if a is b:
        return True
    return not (noalias or is_local(a) or is_local(b))


def subscripts_differ(a: Sequence[Value], b: Sequence[Value]) -> bool:
    """True if some subscript of ``a`` certainly differs from that of ``b``: i and i + 1."""
    return any(x is not y and _offsets_differ(x, y) for x, y in zip(a, b, strict=True))


def _offsets_differ(x: Value, y: Value) -> bool:
    (x_base, x_offset), (y_base, y_offset) = offset_of(x), offset_of(y)
    return x_base is y_base and x_offset != y_offset


def offset_of(value: Value) -> tuple[Value | None, int]:
    """(base, n) of a value base + n; the base of a constant is None."""
    number = constant_of(value)
    if number is not None:
        return None, int(number)
    op = value.op
    if op is not None and op.name == "arith.addi":
        number = constant_of(op.right)
        if number is not None:
            return op.left, int(number)
    return value, 0

"""What operations write, and which memrefs may be the same memory."""

from __future__ import annotations

from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import written_by


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

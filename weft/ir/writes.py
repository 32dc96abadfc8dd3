"""What operations write to memory."""

from __future__ import annotations

from collections.abc import Iterable, KeysView

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import WRITES


def written_by(op: Op) -> Value | None:
    """The memref that ``op`` itself (not what is inside it) writes."""
    position = WRITES.get(op.name)
    return None if position is None else op.operands[position]


def written_at(op: Op) -> tuple[Value, ...]:
    """The subscripts of the element that ``op``, one of ``WRITES``, writes."""
    return tuple(op.operands[WRITES[op.name] + 1 :])


def written(where: Function | Block | Op | Iterable[Op]) -> KeysView[Value]:
    """The memrefs written anywhere in ``where``, each once, in the order of the program."""
    found: dict[Value, None] = {}
    match where:
        case Function():
            ops = walk(where.body)
        case Block():
            ops = walk(where)
        case Op():
            ops = (where, *(inner for region in where.regions for inner in walk(region)))
        case _:
            ops = where
    for op in ops:
        memref = written_by(op)
        if memref is not None:
            found[memref] = None
    return found.keys()

"""What operations write to memory, and what they access."""

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


def _place(op: Op) -> int | None:
    """Where among its operands ``op`` has the memref that it loads from or writes to."""
    return 0 if op.name == "memref.load" else WRITES.get(op.name)


def accessed_by(op: Op) -> Value | None:
    """The memref that ``op`` itself loads from or writes to."""
    position = _place(op)
    return None if position is None else op.operands[position]


def accessed_at(op: Op) -> tuple[Value, ...]:
    """The subscripts of the element that ``op``, which loads or writes, accesses."""
    position = _place(op)
    assert position is not None
    return tuple(op.operands[position + 1 :])


def redirected(op: Op, memref: Value) -> None:
    """Lets ``op``, which loads or writes, access ``memref``. It is changed in place."""
    position = _place(op)
    assert position is not None
    op.operands[position] = memref


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

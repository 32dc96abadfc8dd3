"""Which memrefs are written, and which are loaded from."""

from __future__ import annotations

from collections.abc import Iterable, KeysView

from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.views import written_by

Where = Function | Block | Op | Iterable[Op]


def written(where: Where) -> KeysView[Value]:
    """The memrefs written anywhere in ``where``, each once, in the order of the program."""
    found = {m: None for op in _ops(where) if (m := written_by(op)) is not None}
    return found.keys()


def loaded(where: Where) -> KeysView[Value]:
    """The memrefs loaded from anywhere in ``where``, likewise."""
    return dict.fromkeys(op.operands[0] for op in _ops(where) if op.name == "memref.load").keys()


def _ops(where: Where) -> Iterable[Op]:
    match where:
        case Function():
            return walk(where.body)
        case Block():
            return walk(where)
        case Op():
            return below(where)
        case _:
            return where

"""Which memrefs are written, and which are loaded from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import written_by

Where = Function | Block | Op | Iterable[Op]


def written(where: Where) -> KeysView[Value]:
    """The memrefs written anywhere in ``where``, each once, in the order of the program."""
    found = (written_by(op) for op in _ops(where))
    return dict.fromkeys(memref for memref in found if memref is not None).keys()


def loaded(where: Where) -> KeysView[Value]:
    """The memrefs loaded from anywhere in ``where``, likewise."""
    return dict.fromkeys(op.operands[0] for op in _ops(where) if op.name == "memref.load").keys()


def _ops(where: Where) -> Iterator[Op]:
    match where:
        case Function():
            yield from walk(where.body)
        case Block():
            yield from walk(where)
        case Op():
            yield where
            for region in where.regions:
                yield from walk(region)
        case _:
            yield from where

"""What a sequential loop carries, kept for its iterations: for all, or at checkpoints."""

from __future__ import annotations

from weft.autodiff.adjoint import Extent
from weft.index.access import accesses
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import ScalarType, i64, index


class Tape:
    """Buffers for what one loop carries, with a place for each number below ``extent``.

    ``segment``: of a tape of checkpoints, the tape of the iterations between two of them.
    ``trips``: the number of iterations of a ``scf.while``, known after it was redone.
    """

    def __init__(self, carried: list[Value], arrays: list[Value], extent: Extent) -> None:
        self.carried = carried
        self.extent = extent
        self.arrays = arrays
        self.buffers: list[Value] = []
        self.trips: Value | None = None
        self.segment: Tape | None = None


def are_neighbours(function: Function) -> bool:
    """Whether neighbouring iterations of the parallel loop touch neighbouring elements in most of
    what its sequential loops read and write. Tapes are then laid out so that they do as well: they
    can be vectors of a CPU, and are coalesced on a GPU."""
    votes = 0
    for access in accesses(function):
        if access.parallel and access.serial and not access.local:
            iv = access.parallel[-1]
            if access.stride(iv) in (1, -1):
                votes += 1
            elif any(p is None or p.mentions(iv) for p in access.subscripts):
                votes -= 1
    return votes > 0


def stored(type: object) -> ScalarType:
    """The element type of a tape for values of ``type``: no tensor has elements of type index."""
    assert isinstance(type, ScalarType)
    return i64 if type is index else type


def to_memory(b: Builder, value: Value) -> Value:
    type = stored(value.type)
    return value if type is value.type else b.op("arith.index_cast", value, type=type)


def from_memory(b: Builder, value: Value, type: object) -> Value:
    return value if value.type is type else b.op("arith.index_cast", value, type=type)  # type: ignore[arg-type]

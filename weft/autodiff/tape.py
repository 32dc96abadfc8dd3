"""What a sequential loop carries, kept for its iterations: for all, or at checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.autodiff.adjoint import Extent
from weft.index.access import accesses, parallel_dims_of
from weft.ir.builder import Builder
from weft.ir.core import Function, Value
from weft.ir.types import ScalarType, i64, index

if TYPE_CHECKING:
    from weft.autodiff.state import State


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

    def write(self, number: Value, r: State) -> None:
        for value, buffer in zip(self.carried, self.buffers, strict=False):
            r.b.store(_to_memory(r.b, r.env[value]), buffer, _scalar_at(r, number))
        for memref, buffer in zip(self.arrays, self.buffers[len(self.carried) :], strict=True):
            type = memref.memref
            r.copy_array(
                type.shape or (),
                lambda at, m=memref: r.b.load(r.env[m], at),
                lambda v, at, t=buffer: r.b.store(v, t, [*r.places(), number, *at]),
            )

    def read(self, number: Value, r: State) -> None:
        for value, buffer in zip(self.carried, self.buffers, strict=False):
            loaded = r.b.load(buffer, _scalar_at(r, number))
            r.env[value] = _from_memory(r.b, loaded, value.type)
        for memref, buffer in zip(self.arrays, self.buffers[len(self.carried) :], strict=True):
            type = memref.memref
            r.copy_array(
                type.shape or (),
                lambda at, t=buffer: r.b.load(t, [*r.places(), number, *at]),
                lambda v, at, m=memref: r.b.store(v, r.env[m], at),
            )


def _scalar_at(r: State, number: Value) -> list[Value]:
    if r.interleaved:
        return [*r.numbers(), number, *r.indices]
    return [*r.places(), number]


def are_neighbours(function: Function) -> bool:
    """Whether neighbouring iterations of the parallel loop touch neighbouring elements in most of
    what its sequential loops read and write. Tapes are then laid out so that they do as well: they
    can be vectors of a CPU, and are coalesced on a GPU."""
    votes = 0
    for access in accesses(function):
        if access.parallel and access.serial and not access.local:
            use = parallel_dims_of(access)[-1]
            if use.stride in (1, -1):
                votes += 1
            elif any(p is None or use.iv in p.leaves() for p in access.subscripts):
                votes -= 1
    return votes > 0


def stored(type: object) -> ScalarType:
    """The element type of a tape for values of ``type``: no tensor has elements of type index."""
    assert isinstance(type, ScalarType)
    return i64 if type is index else type


def _to_memory(b: Builder, value: Value) -> Value:
    type = stored(value.type)
    return value if type is value.type else b.op("arith.index_cast", value, type=type)


def _from_memory(b: Builder, value: Value, type: object) -> Value:
    return value if value.type is type else b.op("arith.index_cast", value, type=type)  # type: ignore[arg-type]

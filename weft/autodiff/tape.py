"""Tapes: what sequential loops carry and local arrays hold, kept for the sweep backwards."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.adjoint import Buffer, Extent, Part
from weft.autodiff.recompute import Recomputation
from weft.ir.core import Op, Value
from weft.ir.types import MemRefType, ScalarType, i64, index
from weft.ir.writes import written

SCOPES = ("scf.for", "scf.while", "scf.if")


class Tape:
    """Buffers for what one loop carries, with a place for each number below ``extent``.

    ``values`` and ``arrays``: each with its buffer. ``segment``: of a tape of checkpoints, the tape
    of the iterations between two of them. ``trips``: the number of iterations of a ``scf.while``,
    known after it was carried out again.
    """

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        self.values: list[tuple[Value, Value]] = []
        self.arrays: list[tuple[Value, Value]] = []
        self.trips: Value | None = None
        self.segment: Tape | None = None


class Tapes:
    """The tapes of the loops of ``new``, and snapshots of its local arrays.

    ``lasting``: no place is written twice, though the loop be carried out many times.
    ``checkpoints``: loops that keep the starts of segments. ``around``: the extents of the loops
    that are being reversed around this point, and the iteration of each.
    """

    def __init__(
        self, new: Recomputation, buffers: list[Buffer], lasting: bool, checkpoints: Collection[Op]
    ) -> None:
        self.new, self.b, self.env = new, new.b, new.env
        self.buffers = buffers
        self.lasting = lasting
        self.checkpoints = checkpoints
        self.interleaved = new.primal.interleaved
        self.around: list[tuple[Extent, Value]] = []
        self.segments: dict[Op, Value] = {}  # the argument that says how long segments are
        self._tapes: dict[Op, Tape] = {}
        self._snapshots: dict[Op, list[tuple[Value, Value]]] = {}

    def __getitem__(self, op: Op) -> Tape:
        return self._tapes[op]

    def of(self, op: Op, carried: Sequence[Value]) -> Tape:
        """The tape of a loop, made when it is first asked for."""
        tape = self._tapes.get(op)
        if tape is None and op not in self.checkpoints:
            tape = self._tapes[op] = self._made(op, "all", carried)
        elif tape is None:
            tape = self._tapes[op] = self._made(op, "starts", carried)
            tape.segment = self._made(op, "segment", carried)
            name = f"segment{self.new.primal.order}.{len(self.segments)}"
            self.segments[op] = self.new.argument(name, i64)
        return tape

    def _made(self, op: Op, part: Part, carried: Sequence[Value]) -> Tape:
        tape = Tape(Extent(op, part))
        tape.values = [(v, self._buffer(tape, v, v.scalar)) for v in carried]
        owned = self._owned(op)
        for memref in self.new.primal.locals_stored(op):
            if memref in owned:  # see ``snapshot``
                continue
            type = memref.memref
            tape.arrays.append((memref, self._buffer(tape, memref, type.element, type.shape or ())))
        return tape

    def _buffer(
        self, tape: Tape, value: Value, element: ScalarType, shape: tuple[int, ...] | None = None
    ) -> Value:
        around = [x for x, _ in self.around] if self.lasting else []
        # No tensor has elements of type index.
        element = i64 if element is index else element
        primal = self.new.primal
        name = f"tape{primal.order}.{len(self.buffers)}.{value.name or 'v'}"
        rank = len(self.new.indices) + len(around) + 1 + len(shape or ())
        self.buffers.append(
            Buffer(name, element.name, primal.parallel, (*around, tape.extent), shape or (),
                   interleaved=self.interleaved and shape is None)
        )  # fmt: skip
        return self.new.argument(name, MemRefType(element, rank))

    # --- writing and reading ----------------------------------------------------------------------
    def write(self, tape: Tape, number: Value) -> None:
        for value, buffer in tape.values:
            given = self._cast(self.env[value], buffer.memref.element)
            self.b.store(given, buffer, self._at(number))
        for memref, buffer in tape.arrays:
            self._copy(memref, self.env[memref], (), buffer, self._at(number, array=True))

    def read(self, tape: Tape, number: Value) -> None:
        for value, buffer in tape.values:
            loaded = self.b.load(buffer, self._at(number))
            self.env[value] = self._cast(loaded, value.scalar)
        for memref, buffer in tape.arrays:
            self._copy(memref, buffer, self._at(number, array=True), self.env[memref], ())

    def _cast(self, value: Value, type: ScalarType) -> Value:
        return value if value.type is type else self.b.op("arith.index_cast", value, type=type)

    def _copy(
        self, like: Value, source: Value, first: Sequence[Value], target: Value,
        place: Sequence[Value],
    ) -> None:  # fmt: skip
        """All elements of a local array as large as ``like``, behind the subscripts ``first`` and
        ``place``."""

        def element(at: list[Value]) -> None:
            self.b.store(self.b.load(source, [*first, *at]), target, [*place, *at])

        self.b.each_element(like, element)

    def _at(self, number: Value, *, array: bool = False) -> list[Value]:
        """The place of ``number`` on a tape, after those of the loops around, where each of these
        has its own."""
        numbers = [k for _, k in self.around if self.lasting]
        if self.interleaved and not array:
            return [*numbers, number, *self.new.indices]
        return [*self.new.indices, *numbers, number]

    @contextmanager
    def inside(self, extent: Extent, number: Value) -> Generator[None]:
        """In iteration ``number`` of a loop that is being reversed."""
        self.around.append((extent, number))
        yield
        self.around.pop()

    # --- local arrays -----------------------------------------------------------------------------
    def snapshot(self, op: Op, later: Sequence[Op], known: dict[Value, Value]) -> None:
        """Copies the local arrays that ``op`` reads, and that it or ``later`` change before it is
        reversed. ``known``: copies of what is in arrays here, to which it adds."""
        read, primal = self.new.primal.locals_read(op), self.new.primal
        changed = {memref for x in (later if read else ()) for memref in written(x)}
        changed.update(primal.locals_stored(op) if op.name == "scf.if" else self._owned(op))
        copies = [memref for memref in read if memref in changed]
        for memref in copies:
            if memref not in known:
                known[memref] = self.b.alloca(memref.memref.element, memref.memref.shape or ())
                self._copy(memref, self.env[memref], (), known[memref], ())
        self._snapshots[op] = [(memref, known[memref]) for memref in copies]

    def _owned(self, op: Op) -> list[Value]:
        """The arrays that are what they were before ``op`` where its iterations are reversed:
        nothing else is carried out in between, as segments are."""
        return [] if op in self.checkpoints else self.new.primal.owned(op)

    def restore(self, op: Op) -> None:
        """Lets local arrays be what they were before ``op``."""
        for memref, copy in self._snapshots.get(op, ()):
            self._copy(memref, copy, (), self.env[memref], ())

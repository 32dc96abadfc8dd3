"""Tapes: what sequential loops carry and local arrays hold, kept for the sweep backwards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.adjoint import Buffer, Extent, Part
from weft.autodiff.recompute import Recomputation
from weft.ir.core import Op, Value, below
from weft.ir.types import MemRefType, ScalarType, i64, index
from weft.ir.writes import written
from weft.schedule.unroll import turns

_MOST_WRITTEN_OUT = 1024  # operations of a chunk, before it is reversed
MOST_KEPT = 32  # elements of local arrays, in all turns of a chunk
Place = Callable[[list[Value]], list[Value]]
Copy = tuple[Value, Place]  # of an array: where, and the subscripts there of its elements
SCOPES = ("scf.for", "scf.while", "scf.if")


class Tape:
    """Buffers for what one loop carries, with a place for each number below ``extent``.

    ``values`` and ``arrays``: each with its buffer. ``segment``: of a tape of checkpoints, the tape
    of the iterations between two of them. ``trips``: the number of iterations of a ``scf.while``,
    known after it was carried out again. ``local``: its buffers are local arrays.
    """

    def __init__(self, extent: Extent, local: bool = False) -> None:
        self.extent, self.local = extent, local
        self.values: list[tuple[Value, Value]] = []
        self.arrays: list[tuple[Value, Value]] = []
        self.trips: Value | None = None
        self.segment: Tape | None = None


class Tapes:
    """The tapes of the loops of ``new``, and snapshots of its local arrays.

    ``lasting``: no place is written twice, though the loop be carried out many times.
    ``checkpoints``: loops that keep the starts of segments. ``chunk``: how many iterations these
    have where a loop carries some numbers only, if not 0: their tape is a local array then, and in
    others neighbouring iterations of the parallel loop are neighbours, also of arrays. ``around``:
    the extents of the loops that are being reversed around this point, and the iteration of each.
    """

    def __init__(
        self, new: Recomputation, buffers: list[Buffer], lasting: bool,
        checkpoints: Collection[Op], chunk: int,
    ) -> None:  # fmt: skip
        self.new, self.b, self.env = new, new.b, new.env
        self.buffers = buffers
        self.lasting = lasting
        self.checkpoints, self.chunk = checkpoints, chunk
        self.interleaved = new.primal.interleaved
        self.around: list[tuple[Extent, Value]] = []
        self.segments: dict[Op, Value] = {}  # the argument that says how long segments are
        self._tapes: dict[Op, Tape] = {}
        self._snapshots: dict[Op, list[tuple[Value, Copy]]] = {}
        self._read: dict[Op, dict[Value, Copy]] = {}

    def __getitem__(self, op: Op) -> Tape:
        return self._tapes[op]

    def of(self, op: Op, carried: Sequence[Value]) -> Tape:
        """The tape of a loop, made when it is first asked for."""
        tape = self._tapes.get(op)
        if tape is None and op not in self.checkpoints:
            tape = self._tapes[op] = self._made(op, "all", carried)
        elif tape is None and self.in_chunks(op):
            tape = self._tapes[op] = self._made(op, "starts", carried, self.chunk)
        elif tape is None:
            tape = self._tapes[op] = self._made(op, "starts", carried)
            tape.segment = self._made(op, "segment", carried)
            name = f"segment{self.new.primal.order}.{len(self.segments)}"
            self.segments[op] = self.new.argument(name, i64)
        return tape

    @property
    def arrays_in_chunks(self) -> bool:
        """Whether chunks of a loop keep local arrays in registers."""
        return any(self.in_chunks(op) and tape.arrays for op, tape in self._tapes.items())

    def in_chunks(self, op: Op) -> bool:
        """Whether ``op`` is a loop whose segments are short enough to be written out."""
        if not self.chunk or op not in self.checkpoints or op.name != "scf.for":
            return False
        body, arrays = list(below(op)), self.new.primal.locals_stored(op)
        elements = sum(math.prod(a.memref.shape or (MOST_KEPT + 1,)) for a in arrays)
        inner = [o for o in body[1:] if o.name in ("scf.for", "scf.while", "memref.alloca")]
        plain = all(o.name == "scf.for" and elements and turns(o) >= 0 for o in inner)
        return (
            plain and elements * self.chunk <= MOST_KEPT
            and len(body) * self.chunk <= _MOST_WRITTEN_OUT
        )  # fmt: skip

    def of_chunk(self, op: Op) -> Tape:
        """A tape of one chunk of ``op``, in local arrays that are made here."""
        tape = Tape(self._tapes[op].extent, local=True)
        tape.values = [
            (v, self.b.alloca(i64 if v.type is index else v.scalar, (self.chunk,)))
            for v, _ in self._tapes[op].values
        ]
        tape.arrays = [
            (m, self.b.alloca(m.memref.element, (self.chunk, *(m.memref.shape or ()))))
            for m, _ in self._tapes[op].arrays
        ]
        return tape

    def _made(self, op: Op, part: Part, carried: Sequence[Value], chunk: int = 0) -> Tape:
        tape = Tape(Extent(op, part, chunk))
        tape.values = [(v, self._buffer(tape, v, v.scalar)) for v in carried]
        left = {*self._owned(op), *self.new.primal.unread(op)}  # see ``snapshot``
        for memref in self.new.primal.locals_stored(op):
            if memref in left:
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
        interleaved = self.interleaved and (shape is None or self.chunk > 0)
        self.buffers.append(
            Buffer(name, element.name, primal.parallel, (*around, tape.extent), shape or (),
                   interleaved=interleaved)
        )  # fmt: skip
        return self.new.argument(name, MemRefType(element, rank))

    # --- writing and reading ----------------------------------------------------------------------
    def write(self, tape: Tape, number: Value) -> None:
        for value, buffer in tape.values:
            given = self._cast(self.env[value], buffer.memref.element)
            self.b.store(given, buffer, self._at(tape, number))
        for memref, buffer in tape.arrays:
            place = self._of_array(tape, number)
            self._copy(memref, self.env[memref], list, buffer, place)

    def read(self, tape: Tape, number: Value) -> None:
        for value, buffer in tape.values:
            loaded = self.b.load(buffer, self._at(tape, number))
            self.env[value] = self._cast(loaded, value.scalar)
        found = self._read[tape.extent.op] = dict[Value, Copy]()
        for memref, buffer in tape.arrays:
            place = self._of_array(tape, number)
            self._copy(memref, buffer, place, self.env[memref], list)
            found[memref] = buffer, place

    def _cast(self, value: Value, type: ScalarType) -> Value:
        return value if value.type is type else self.b.op("arith.index_cast", value, type=type)

    def _copy(
        self, like: Value, source: Value, there: Place, target: Value, here: Place
    ) -> None:  # fmt: skip
        """All elements of a local array as large as ``like``. Where an element is in ``source`` and
        ``target``, ``there`` and ``here`` say."""

        def element(at: list[Value]) -> None:
            self.b.store(self.b.load(source, there(at)), target, here(at))

        shape = like.memref.shape or ()
        if there is not list and 0 < math.prod(shape) * self.chunk <= MOST_KEPT:
            for at in itertools.product(*map(range, shape)):  # loads that can stand a chunk ahead
                element(list(map(self.b.index, at)))
        else:
            self.b.each_element(like, element)

    def _at(self, tape: Tape, number: Value) -> list[Value]:
        """The place of ``number`` on a tape, after those of the loops around, where each of these
        has its own."""
        if tape.local:
            return [number]
        numbers = [k for _, k in self.around if self.lasting]
        if self.interleaved:
            return [*numbers, number, *self.new.indices]
        return [*self.new.indices, *numbers, number]

    def _of_array(self, tape: Tape, number: Value) -> Place:
        """The places of the elements of a local array on a tape."""
        if tape.local:
            return lambda at: [number, *at]
        numbers = [*(k for _, k in self.around if self.lasting), number]
        if self.interleaved and self.chunk:
            return lambda at: [*numbers, *at, *self.new.indices]
        return lambda at: [*self.new.indices, *numbers, *at]

    @contextmanager
    def inside(self, extent: Extent, number: Value) -> Generator[None]:
        """In iteration ``number`` of a loop that is being reversed."""
        self.around.append((extent, number))
        yield
        self.around.pop()

    # --- local arrays -----------------------------------------------------------------------------
    def snapshot(self, op: Op, later: Sequence[Op], known: dict[Value, Copy]) -> None:
        """Copies the local arrays that ``op`` reads, and that it or ``later`` change before it is
        reversed. ``known``: copies of what is in arrays here, to which it adds."""
        read, primal = self.new.primal.locals_read(op), self.new.primal
        changed = {memref for x in (later if read else ()) for memref in written(x)}
        changed.update(primal.locals_stored(op) if op.name == "scf.if" else self._owned(op))
        copies = [memref for memref in read if memref in changed]
        for memref in copies:
            if memref not in known:
                copy = self.b.alloca(memref.memref.element, memref.memref.shape or ())
                self._copy(memref, self.env[memref], list, copy, list)
                known[memref] = copy, list
        self._snapshots[op] = [(memref, known[memref]) for memref in copies]

    def starts(self, op: Op) -> dict[Value, Copy]:
        """Of the arrays that were just read from the tape of ``op``, where they are on it."""
        return dict(self._read.get(op, {}))

    def _owned(self, op: Op) -> list[Value]:
        """The arrays that are what they were before ``op`` where its iterations are reversed:
        nothing else is carried out in between, as segments are."""
        return [] if op in self.checkpoints else self.new.primal.owned(op)

    def restore(self, op: Op) -> None:
        """Lets local arrays be what they were before ``op``."""
        for memref, (copy, place) in self._snapshots.get(op, ()):
            self._copy(memref, copy, place, self.env[memref], list)

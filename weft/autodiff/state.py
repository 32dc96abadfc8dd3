"""What the walks that make an adjoint share: where they build, and what stands for what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from weft.autodiff.activity import activity
from weft.autodiff.adjoint import Buffer, Extent
from weft.autodiff.memory import contents, element_written_once
from weft.autodiff.names import adjoint_prefix, before_name, unique_names
from weft.autodiff.rules import adjoint_type
from weft.autodiff.tape import Tape, are_neighbours, from_memory, to_memory
from weft.errors import GradientError
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import MemRefType, compute_type, index
from weft.ir.views import For, accessed_by
from weft.ir.writes import written

# What the redoing leaves out: the loop itself has done it, and its result stands.
DONE = ("weft.assert", "weft.bounds", "weft.print")
SCOPES = ("scf.for", "scf.while", "scf.if")
FINDS = ("memref.load", "memref.atomic_rmw", "memref.atomic_cas")  # what is in an element


def walk_regions(op: Op) -> list[Op]:
    return [inner for region in op.regions for inner in walk(region)]


def _loops(block: Block, around: tuple[Op, ...]) -> dict[Op, tuple[Op, ...]]:
    """The sequential loops around each operation, outermost first."""
    found: dict[Op, tuple[Op, ...]] = {}
    for op in block.ops:
        found[op] = around
        inside = (*around, op) if op.name in ("scf.for", "scf.while") else around
        for region in op.regions:
            found |= _loops(region, inside)
    return found


_ATOMIC = {"maximumf": "maximum", "minimumf": "minimum", "mulf": "product"}


def update_error(op: Op) -> GradientError:
    """The refusal of an update of an element of floats that is no sum."""
    kind = op.attrs.get("kind", "")
    if kind == "mulf":
        what, way = (
            "a product accumulated into an element",
            "multiply in a local variable, and store it once",
        )
    elif kind in _ATOMIC:
        what = f"an atomic {_ATOMIC[kind]}"
        way = (
            f"take the {_ATOMIC[kind]} in a local variable; or, if its derivative is not wanted, "
            "of x.detach(), made in the host part"
        )
    else:
        what, way = "an atomic compare-and-swap", "accumulate with +="
    return GradientError(f"{what} of floats has no derivative", op.span, help=way)


class State:
    """The function that is being built, and for every value of the primal what stands for it."""

    def __init__(
        self, function: Function, wanted: Collection[int], kept: Collection[int], lasting: bool,
        checkpoints: Collection[Op],
    ) -> None:  # fmt: skip
        self.lasting = lasting
        self.checkpoints = checkpoints
        self.primal = function
        self.names = unique_names(function)
        args = function.args
        self.activity = activity(function, [args[k] for k in wanted])
        self.contents = contents(function)
        self.written = written(function) & set(args)
        self.asked = {args[k] for k in wanted}
        self.kept = {args[k] for k in kept}
        self.once = {m for m in self.written & self.activity.arrays & self.kept
                     if element_written_once(function, m)}  # fmt: skip
        self.order = function.attrs.get("order", 0) + 1
        self.prefix = adjoint_prefix(function)
        self.new = Function(f"{function.name}_adjoint", [a.type for a in args], self.names,
                            {**function.attrs, "order": self.order}, function.span)  # fmt: skip
        self.b = Builder(self.new.body, function.span)
        self.env: dict[Value, Value] = dict(zip(args, self.new.args, strict=True))
        self.adj: dict[Value, Value] = {}
        self.frozen: set[Value] = set()  # adjoints that are known, and not to be added to
        self.shadow: dict[Value, Value] = {}  # arrays -> their adjoints
        self.before: dict[Value, Value] = {}
        self.buffers: list[Buffer] = []
        self.segments: dict[Op, Value] = {}  # the argument that says how long segments are
        self.tapes: dict[Op, Tape] = {}
        self.interleaved = are_neighbours(function)
        # Loops of the primal: a loop of the adjoint that undoes all iterations of one has the place
        # of that one here as its attribute "undoes".
        self.undone: list[Op] = []
        # The sequential loops that are being undone around this point, and the iteration of each.
        self.around: list[tuple[Extent, Value]] = []
        self.inner: dict[Value, Value] = {}  # adjoints at the end of the iteration just undone
        self.snapshots: dict[Op, list[tuple[Value, Value]]] = {}
        self.parallel: Op | None = None
        self.first: list[Function] = []  # launched before the adjoint
        self.indices: list[Value] = []  # of the iteration, from 0: where it writes on tapes
        # The iteration, counted from 0, of each sequential loop around what is built.
        self.number: dict[Op, Value] = {}
        self.versions = {
            op: f"version{self.order}.{k}.{self._name(self._array(op))}"
            for k, op in enumerate(self.contents)
            if self.contents[op] == "tape"
        }
        self.loops = _loops(function.body, ()) if self.versions else {}
        self.work: dict[Value, Value] = {}
        self.recorded: set[Op] | None = None  # while the loop is carried out again on ``work``
        for op, which in self.contents.items():
            memref = self._array(op)
            if which == "before" and memref not in self.before:
                self.before[memref] = self._argument(before_name(self._name(memref)), memref.type)
        for k, memref in enumerate(args):
            if memref in self.activity.arrays:
                type = MemRefType(compute_type(memref.memref.element), memref.memref.rank)
                self.shadow[memref] = self._argument(self.prefix + self.names[k], type)

    def _version(self, op: Op) -> tuple[Value, list[Value]]:
        """The tape of what ``op`` saw, and where on it this time is."""
        name = self.versions[op]
        numbers = [self.number[loop] for loop in self.loops[op]]
        at = [*numbers, *self.indices] if self.interleaved else [*self.indices, *numbers]
        tape = next((a for a in self.new.args if a.name == name), None)
        type = self._array(op).type
        assert isinstance(type, MemRefType)
        return tape or self._argument(name, MemRefType(type.element, len(at))), at

    def _version_buffers(self) -> list[Buffer]:
        found: list[Buffer] = []
        for op, name in self.versions.items():
            type = self._array(op).type
            assert isinstance(type, MemRefType)
            extents = tuple(map(Extent, self.loops[op]))
            found.append(Buffer(name, type.element.name, self.parallel, extents,
                                interleaved=self.interleaved))  # fmt: skip
        return found

    def _array(self, op: Op) -> Value:
        """The array of which ``op``, one of ``contents``, sees an element."""
        memref = accessed_by(op)
        assert memref is not None
        return memref

    def _name(self, memref: Value) -> str:
        return self.names[self.primal.args.index(memref)]

    def _argument(self, name: str, type: object) -> Value:
        value = Value(type, name, self.new.body)  # type: ignore[arg-type]
        self.new.body.args.append(value)
        return value

    def _number(self, value: float, like: Value) -> Value:
        return self.b.constant(value, like.scalar)

    def _zero(self, value: Value) -> Value:
        return self.b.constant(0.0, adjoint_type(value.scalar))

    def _adjoint(self, value: Value) -> Value:
        found = self.adj.get(value)
        return self._zero(value) if found is None else found

    def _add(self, value: Value, g: Value | None) -> None:
        if g is None or value not in self.activity.values or value in self.frozen:
            return
        known = self.adj.get(value)
        self.adj[value] = g if known is None else self.b.op("arith.addf", known, g)

    def _one(self) -> Value:
        return self.b.constant(1, index)

    def _free(self, blocks: Sequence[Block], op: Op) -> list[Value]:
        """The values with adjoints that are used in ``blocks`` and come from outside."""
        inside: set[Value] = set()
        used: dict[Value, None] = {}
        for block in blocks:
            inside.update(block.args)
            for inner in walk(block):
                inside.update(inner.results)
                for region in inner.regions:
                    inside.update(region.args)
                used.update(dict.fromkeys(inner.operands))
        return [v for v in used if v not in inside and v in self.activity.values
                and v not in self.frozen]  # fmt: skip

    def _stored_in(self, op: Op) -> list[Value]:
        """The local arrays from outside of ``op`` that it writes."""
        inner = {v for o in walk_regions(op) for v in o.results}
        return [m for m in written(walk_regions(op)) if m not in self.written and m not in inner]

    def _loaded_in(self, op: Op) -> list[Value]:
        inner = {v for o in walk_regions(op) for v in o.results}
        found = {accessed_by(o): None for o in walk_regions(op) if o.name in FINDS}
        args = set(self.primal.args)
        return [m for m in found if m is not None and m not in args and m not in inner]

    def copy_array(
        self, shape: Sequence[int], read: Callable[[list[Value]], Value],
        write: Callable[[Value, list[Value]], object], at: tuple[Value, ...] = (),
    ) -> None:  # fmt: skip
        """For every subscript of an array of ``shape``: ``write(read(at), at)``."""
        if not shape:
            write(read(list(at)), list(at))
            return
        zero, n, one = (self.b.constant(k, index) for k in (0, shape[0], 1))
        loop = self.b.for_(zero, n, one)
        with self.b.at(loop.body):
            self.copy_array(shape[1:], read, write, (*at, For(loop).index))
            self.b.do("scf.yield")

    def places(self) -> list[Value]:
        """The subscripts on a tape that come before the number of the iteration."""
        return [*self.indices, *self.numbers()]

    def numbers(self) -> list[Value]:
        """The iterations of the loops around, where each has a place of its own."""
        return [number for _, number in self.around if self.lasting]

    # --- tapes ------------------------------------------------------------------------------------
    def _write(self, tape: Tape, number: Value) -> None:
        for value, buffer in zip(tape.carried, tape.buffers, strict=False):
            self.b.store(to_memory(self.b, self.env[value]), buffer, self._scalar_at(number))
        for memref, buffer in zip(tape.arrays, tape.buffers[len(tape.carried) :], strict=True):
            type = memref.memref
            self.copy_array(
                type.shape or (),
                lambda at, m=memref: self.b.load(self.env[m], at),
                lambda v, at, t=buffer: self.b.store(v, t, [*self.places(), number, *at]),
            )

    def _read(self, tape: Tape, number: Value) -> None:
        for value, buffer in zip(tape.carried, tape.buffers, strict=False):
            loaded = self.b.load(buffer, self._scalar_at(number))
            self.env[value] = from_memory(self.b, loaded, value.type)
        for memref, buffer in zip(tape.arrays, tape.buffers[len(tape.carried) :], strict=True):
            type = memref.memref
            self.copy_array(
                type.shape or (),
                lambda at, t=buffer: self.b.load(t, [*self.places(), number, *at]),
                lambda v, at, m=memref: self.b.store(v, self.env[m], at),
            )

    def _scalar_at(self, number: Value) -> list[Value]:
        if self.interleaved:
            return [*self.numbers(), number, *self.indices]
        return [*self.places(), number]

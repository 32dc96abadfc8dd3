"""The loop that is differentiated, and what is known of it, which nothing here changes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.autodiff.activity import activity
from weft.autodiff.memory import contents, element_written_once
from weft.autodiff.names import numbered, order_of, unique_names
from weft.errors import GradientError
from weft.index.access import Access, accesses
from weft.ir.core import Block, Function, Op, Value, below, defined, parents, walk
from weft.ir.ops import OPS
from weft.ir.views import accessed_by, written_by
from weft.ir.writes import loaded, written

# A recomputation leaves these out: the loop itself has done them, and their results stand.
DONE = ("weft.assert", "weft.bounds", "weft.print", "func.return")


class Primal:
    """``function`` with its parallel loop, ``head`` and ``tail`` around it, and answers to what a
    recomputation and a reverse sweep ask of its operations.

    ``asked``: the arguments whose gradient is wanted. ``once``: those whose elements are stored at
    most once, and were fresh: their adjoints need no resetting. ``interleaved``: tapes are laid out
    so that neighbouring iterations of the parallel loop are neighbours. ``versions``: the name of
    the tape of each read that saw contents which are overwritten later.
    """

    def __init__(self, function: Function, wanted: Collection[int], kept: Collection[int]) -> None:
        args, every = function.args, accesses(function)
        ops = function.body.ops
        places = [k for k, op in enumerate(ops) if op.name == "scf.parallel"]
        if len(places) != 1:
            raise GradientError("a loop without iterations has no gradient", function.span)
        (at,) = places
        self.function = function
        self.head, self.parallel, self.tail = ops[:at], ops[at], ops[at + 1 :]
        self.names = unique_names(function)
        self.activity = activity(function, [args[k] for k in wanted])
        self.contents = contents(function, every)
        self.written = written(function) & set(args)
        self.asked = {args[k] for k in wanted}
        fresh = self.activity.arrays & {args[k] for k in kept}
        self.once = {m for m in self.written & fresh if element_written_once(function, every, m)}
        self.order = order_of(function)
        self.prefix = numbered("d", self.order)
        self.interleaved = _are_neighbours(every)
        self.versions = {
            op: f"version{self.order}.{k}.{self.name(array_of(op))}"
            for k, (op, which) in enumerate(self.contents.items()) if which == "tape"
        }  # fmt: skip
        self._parents = parents(function.body) if self.versions else {}
        self.accesses = every
        self._owned: dict[Op, list[Value]] = {}
        self._operands = _asked(function.body)
        self._checking = _checking(function.body, self._operands)

    def name(self, memref: Value) -> str:
        return self.names[self.function.args.index(memref)]

    def before(self, memref: Value) -> str:
        """The name of the argument that holds its contents from before the loop."""
        return numbered("before", self.order) + self.name(memref)

    def copy(self, memref: Value) -> str:
        """The name of the argument in which the loop is carried out again on these contents."""
        return numbered("work", self.order) + self.name(memref)

    @property
    def copies(self) -> dict[str, str]:
        """What each of these arguments is to be a fresh copy of, by name."""
        return {self.copy(a): self.before(a) for a in self.function.args}

    def varies(self, value: Value) -> bool:
        """Whether ``value`` is a float that depends on what is differentiated."""
        return value in self.activity.values

    def loops_around(self, op: Op) -> list[Op]:
        """The sequential loops around ``op``, outermost first."""
        found: list[Op] = []
        parent = self._parents[op]
        while parent is not None:
            if parent.name in ("scf.for", "scf.while"):
                found.insert(0, parent)
            parent = self._parents[parent]
        return found

    def used_in(self, blocks: Sequence[Block]) -> list[Value]:
        """The values that vary, are used in ``blocks`` and come from outside."""
        inside = defined(blocks)
        used = dict.fromkeys(v for block in blocks for op in walk(block) for v in op.operands)
        return [v for v in used if v not in inside and self.varies(v)]

    def touches(self, op: Op) -> bool:
        """Whether anything in ``op`` reads or writes memory that has an adjoint."""
        return any(accessed_by(o) in self.activity.arrays for o in below(op))

    def overwrites(self, op: Op) -> bool:
        """Whether an element of an argument that has an adjoint may be written by several
        iterations of ``op``, or written by one and read by another."""
        read = loaded(op)
        mine = written(op) & self.written & self.activity.arrays
        return any(m not in self.once or m in read for m in mine)

    def locals_stored(self, op: Op) -> list[Value]:
        """The local arrays from outside of ``op`` that it writes."""
        inside = {*self.function.args, *defined(op.regions)}
        return [m for m in written(op) if m not in inside]

    def owned(self, op: Op) -> list[Value]:
        """The local arrays from outside of the ``scf.for`` ``op`` that it writes, and of which each
        of its iterations accesses elements of its own: what an iteration finds there is what was
        there before the loop."""
        if op not in self._owned:
            found = self.locals_stored(op) if op.name == "scf.for" else []
            inside = defined(op.regions)
            self._owned[op] = [m for m in found if self._owns(op, m, inside)]
        return self._owned[op]

    def _owns(self, op: Op, memref: Value, inside: Collection[Value]) -> bool:
        iv = op.body.args[0]
        mine = [a.subscripts for a in self.accesses if a.memref is memref and iv in a.serial]
        return any(
            poly is not None and poly.slope(iv) and all(other == poly for other in axis)
            and not any(leaf in inside for leaf in poly.leaves() if leaf is not iv)
            for poly, *axis in zip(*mine, strict=True)
        )  # fmt: skip

    def locals_read(self, op: Op) -> list[Value]:
        """The local arrays from outside of ``op`` in which it finds something that it asks for: not
        what it only adds to."""
        inside = {*self.function.args, *defined(op.regions)}
        found = dict.fromkeys(
            accessed_by(o) for o in below(op) if o.name != "memref.store" and not self._adds(o)
        )
        return [m for m in found if m is not None and m not in inside]

    def unread(self, op: Op) -> list[Value]:
        """The local arrays from outside of ``op`` that it writes, and in which it finds nothing."""
        read = self.locals_read(op)
        return [m for m in self.locals_stored(op) if m not in read]

    def hands_on(self, op: Op) -> bool:
        """Whether an iteration of the ``scf.for`` ``op`` leaves in local arrays what another one,
        or its adjoint, depends on: other elements than its own, to which it does not only add."""
        stored = written(o for o in below(op) if not self._adds(o))
        left = {*self.owned(op), *(m for m in self.unread(op) if m not in stored)}
        return any(m not in left for m in self.locals_stored(op))

    def is_done(self, op: Op) -> bool:
        """Whether ``op`` is not carried out again: a check, and what that computes of what an
        atomic operation found."""
        return op.name in DONE or op in self._checking

    def _adds(self, op: Op) -> bool:
        """Whether ``op`` adds to an element, and nobody asks for what was there."""
        if op.name != "memref.atomic_rmw" or op.attrs["kind"] not in ("addf", "addi"):
            return False
        return op.result not in self._operands

    def check(self) -> None:
        """Raises ``GradientError`` for what a reverse sweep cannot go through."""
        if any(op.regions for op in (*self.head, *self.tail)):
            raise GradientError(
                "a loop or branch that is carried out before the device loop has no gradient: what "
                "a function computes for its bounds", self.function.span,
                help="compute the bounds in the host part, and give the device loop numbers",
            )  # fmt: skip
        for op in walk(self.function.body):
            memref = written_by(op)
            if memref in self.written and not self._operands.isdisjoint(op.results):
                raise GradientError(
                    f"what an atomic operation found in `{memref.name}` is different when the "
                    "loop is carried out again, as a gradient needs", op.span,
                    help="compute such numbers in a loop of their own, before",
                )  # fmt: skip


def _asked(block: Block) -> set[Value]:
    """The values that something asks for, apart from checks."""
    found = set[Value]()
    for op in reversed([*walk(block)]):
        dead = OPS[op.name].pure and found.isdisjoint(op.results)
        found.update(() if dead or op.name in DONE else op.operands)
    return found


def _checking(block: Block, asked: set[Value]) -> set[Op]:
    """What is computed of what atomic operations found, where nobody but checks asks for it."""
    found, stale = set[Op](), set[Value]()
    for op in walk(block):
        dead = asked.isdisjoint(op.results)
        if dead and OPS[op.name].pure and not stale.isdisjoint(op.operands):
            found.add(op)
            stale.update(op.results)
        elif dead and op.name in ("memref.atomic_rmw", "memref.atomic_cas"):
            stale.update(op.results)
    return found


def array_of(op: Op) -> Value:
    """The array that ``op`` accesses."""
    memref = accessed_by(op)
    assert memref is not None
    return memref


def _are_neighbours(every: Sequence[Access]) -> bool:
    """Whether neighbouring iterations of the parallel loop touch neighbouring elements in most of
    what its sequential loops read and write. Tapes are then laid out so that they do as well: they
    can be vectors of a CPU, and are coalesced on a GPU."""
    votes = 0
    for access in every:
        if access.parallel and access.serial and not access.local:
            iv = access.parallel[-1]
            if access.stride(iv) in (1, -1):
                votes += 1
            elif any(p is None or p.mentions(iv) for p in access.subscripts):
                votes -= 1
    return votes > 0

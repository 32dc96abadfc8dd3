"""Loops whose iterations accumulate anywhere, in stages: vectors compute where and what, and then
one iteration after the other accumulates.

A serial loop that adds to elements which data choose goes one by one, and so does all that it
computes for them. Here a strip of as many iterations as a vector has lanes first computes, by
lanes, what does not depend on what the loop writes, into local arrays; then its iterations do the
rest in their order; then lanes compute, and iterations store, what nothing in the loop asks for. So
every element has its additions in the order that they had.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import contextmanager

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, below, defined, inputs, walk
from weft.ir.ops import OPS, is_slow
from weft.ir.types import MemRefType, ScalarType, f32, f64, i1, i32, i64, index
from weft.ir.views import For, accessed_by, constant_of, is_constant, memory
from weft.schedule.legal_cpu import fits_lanes
from weft.schedule.machine import CpuMachine
from weft.schedule.variation import Variation
from weft.values import frozen

LEAST = 16  # operations that lanes save for an iteration
SHARE = 4  # one of so many operations of an iteration, at least
VECTORS = 4  # of a strip
MOST_KEPT = 48  # values: 24 KB for a strip
FEWEST = 32  # iterations of a loop that is known to be short
_DEAR = 8  # operations that a function, a division or a conversion is
_KEPT = (f32, f64, i1, i32, i64, index)  # of which there are local arrays


def in_stages(function: Function, machine: CpuMachine) -> Function:
    """``function``, whose loops that accumulate go in stages where that pays.

    Precondition: threads share the function's loops. Where arguments may overlap nothing changes,
    and loops stay as they are that check or print something, that carry values, or that hold loops
    without an end or arrays of their own.
    """
    if machine.vector_bytes < 64 or not function.attrs.get("noalias"):
        return function
    found, done = dict[Op, _Stages](), set[Op]()
    for op in walk(function.body):
        if "vector" in op.attrs:
            done |= {*below(op)}
        elif op.name == "scf.for" and op not in done and (made := _Cut(op, machine).stages()):
            found[op] = made
            done |= {*below(op)}
    return _Staged(found).function(function) if found else function


# -- which operation goes where


@frozen
class _Stages:
    """The operations of an iteration. ``places``: subscripts of the index alone, and constants,
    which each stage computes; ``ahead`` and ``behind`` go by lanes, ``core`` and ``stores`` one by
    one. ``kept``: what goes from stage to stage. ``width``: lanes."""

    places: tuple[Op, ...]
    ahead: tuple[Op, ...]
    core: tuple[Op, ...]
    behind: tuple[Op, ...]
    stores: tuple[Op, ...]
    kept: tuple[Value, ...]
    width: int


class _Cut:
    """Cuts the body of ``loop``."""

    def __init__(self, loop: Op, machine: CpuMachine) -> None:
        self.loop, self.machine = loop, machine
        self.ops, self.every = loop.body.ops[:-1], list(walk(loop.body))
        self.made = defined([loop.body])
        loaded = [
            v.scalar.bytes for op in self.every if op.name == "memref.load" for v in op.results
        ]
        self.width = machine.vector_bytes // max(4, *loaded) if loaded else 0

    def stages(self) -> _Stages | None:
        """The stages, if the loop may go in some, and that pays."""
        if not self.width or not self._may():
            return None
        writes = [op for op in self.every if op.name in _WRITES]
        reads = [op for op in self.every if op.name != "memref.store" and accessed_by(op)]
        written, read = self._roots(writes), self._roots(reads)
        along = Variation(self.loop.body, {For(self.loop).index: 1})
        anywhere = any(along.slope(v) is None for op in writes if self._roots([op]) & read
                       for v in memory(op)[1])  # fmt: skip
        if not anywhere:  # nothing accumulates, or along rows, as LLVM has vectors for
            return None
        places, ahead = self._ahead(written)
        left = [op for op in self.ops if op not in places and op not in ahead]
        alone = [op for op in left if op.name == "memref.store"]
        within = [op for op in writes if op not in alone]
        stores = [op for op in alone if self._roots([op]).isdisjoint(read | self._roots(within))]
        behind = self._behind(left, stores)
        if _cost(behind) < LEAST:
            behind, stores = [], []
        core = [op for op in left if op not in behind and op not in stores]
        groups = ahead, core, behind, stores
        kept = list(self._kept(groups))
        lanes, single = _cost([*ahead, *behind]), _cost(core)
        alike = {
            v for v in kept if v.op in ahead and not any(v in inputs(o) for o in (*core, *stores))
        }
        saved = lanes - 2 * (len(kept) - len(alike))
        few = len(kept) <= MOST_KEPT and all(v.type in _KEPT for v in kept)
        if not few or saved < LEAST or saved * SHARE < single:
            return None
        return _Stages(
            tuple(places), tuple(ahead), tuple(core), tuple(behind), tuple(stores), tuple(kept),
            self.width,
        )  # fmt: skip

    def _may(self) -> bool:
        view = For(self.loop)
        first, last = map(constant_of, view.bounds[:2])
        short = first is not None and last is not None and last - first < FEWEST
        single = {"poll", "strips", "short", "unroll"} & {*self.loop.attrs}
        ends = any(op.name.startswith("weft.") or op.name in ("scf.while", "memref.alloca")
                   or "vector" in op.attrs for op in self.every)  # fmt: skip
        return not (view.inits or short or single or ends) and is_constant(view.step, 1)

    def _roots(self, accesses: Collection[Op]) -> set[Value]:
        """The arrays that these access: a copy of one counts as that."""
        found, waiting = set[Value](), [m for op in accesses if (m := accessed_by(op)) is not None]
        while waiting:
            memref = waiting.pop()
            of = [] if memref.op is None else [
                v for v in memref.op.operands if isinstance(v.type, MemRefType)
            ]  # fmt: skip
            waiting += of
            found |= set() if of else {memref}
        return found

    def _ahead(self, written: set[Value]) -> tuple[list[Op], list[Op]]:
        """The subscripts of the index alone, and what depends on nothing that the loop writes."""
        places, ahead = list[Op](), list[Op]()
        place, known = {For(self.loop).index}, {For(self.loop).index}
        for op in self.ops:
            if op.regions or len(op.results) != 1:
                continue
            if _is_place(op) and all(v in place or v not in self.made for v in op.operands):
                places.append(op)
                place.add(op.result)
                known.add(op.result)
            elif self._by_lanes(op, written) and all(
                v in known or v not in self.made for v in op.operands
            ):
                ahead.append(op)
                known.add(op.result)
        return places, ahead

    def _by_lanes(self, op: Op, written: set[Value]) -> bool:
        pure = OPS[op.name].pure and not op.name.startswith("memref.")
        loads = op.name == "memref.load" and self._roots([op]).isdisjoint(written)
        return (pure or loads) and fits_lanes(op, self.width, self.machine)

    def _behind(self, left: Sequence[Op], stores: Sequence[Op]) -> list[Op]:
        """What is computed for these stores alone."""
        late, found = {*stores}, list[Op]()
        users: dict[Value, list[Op]] = {}
        for op in self.every:
            for value in op.operands:
                users.setdefault(value, []).append(op)
        for op in reversed(left):
            asked = [user for v in op.results for user in users.get(v, ())]
            plain = OPS[op.name].pure and not op.regions and not op.name.startswith("memref.")
            if (
                plain
                and asked
                and late.issuperset(asked)
                and fits_lanes(op, self.width, self.machine)
            ):
                late.add(op)
                found.insert(0, op)
        return found

    def _kept(self, groups: Sequence[Sequence[Op]]) -> Iterator[Value]:
        """What a group makes and a later one uses."""
        for k, group in enumerate(groups):
            used = {v for later in groups[k + 1 :] for op in later for v in inputs(op)}
            yield from (v for op in group for v in op.results if v in used)


_WRITES = ("memref.store", "memref.atomic_rmw", "memref.atomic_cas")


def _is_place(op: Op) -> bool:
    if op.name in ("arith.constant", "memref.dim"):
        return True
    return OPS[op.name].pure and op.result.type is index and not op.name.startswith("memref.")


def _cost(ops: Sequence[Op]) -> int:
    """The operations of an iteration, about: inside of loops those of one turn."""
    return sum(_cost_of(op) for outer in ops for op in below(outer))


def _cost_of(op: Op) -> int:
    if op.name in ("arith.constant", "memref.dim", "arith.index_cast") or OPS[op.name].terminator:
        return 0
    return _DEAR if is_slow(op.name) or op.name in _SLOW else 1


_SLOW = ("arith.divf", "arith.remf", "arith.fptosi", "arith.fptoui")


# -- the stages


class _Staged(Rewriter):
    def __init__(self, found: dict[Op, _Stages]) -> None:
        super().__init__(None, self._around)
        self.found = found
        self.arrays: dict[Value, Value] = {}

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        stages = self.found.get(op)
        if stages is None:
            return None
        lower, upper, _step = map(self.lookup, For(op).bounds)
        length = VECTORS * stages.width
        self.arrays = {v: self.alloca(_element(v), (length,)) for v in stages.kept}
        size = self.index(length)
        strip = self._loop(op, lower, upper, size)
        begin = strip.body.args[0]

        def body() -> None:
            end = self._least(begin, size, upper)
            for ops, write in zip(
                (stages.ahead, stages.core, stages.behind, stages.stores),
                (self._lanes, self._single, self._lanes, self._single), strict=True,
            ):  # fmt: skip
                if ops:
                    write(op, stages, ops, (begin, end))

        self.fill(strip.body, body)
        return ()

    def _loop(self, op: Op, lower: Value, upper: Value, step: Value) -> Op:
        """A loop over iterations of ``op``."""
        made = self.for_(lower, upper, step)
        made.attrs |= {"counts": True} if "counts" in op.attrs else {}
        return made

    def _least(self, begin: Value, size: Value, end: Value) -> Value:
        return self.op("arith.minsi", self.op("arith.addi", begin, size, overflow="nsw"), end)

    def _lanes(self, op: Op, stages: _Stages, ops: Sequence[Op], ends: tuple[Value, Value]) -> None:
        """``ops`` of the iterations of a strip, by vectors."""
        begin, end = ends
        width, one = self.index(stages.width), self.index(1)
        loop = self._loop(op, begin, end, width)
        first = loop.body.args[0]

        def body() -> None:
            made = self.parallel([first], [self._least(first, width, end)], [one])
            made.attrs |= {"vector": (1, stages.width, stages.width), "masked": True}
            with self._stage(op, made.body, begin, stages.places, ops):
                self.do("scf.reduce")

        self.fill(loop.body, body)

    def _single(
        self, op: Op, stages: _Stages, ops: Sequence[Op], ends: tuple[Value, Value]
    ) -> None:
        """``ops`` of the iterations of a strip, one by one."""
        made = self._loop(op, *ends, self.index(1))
        # Its turns wait for memory, one for another.
        made.attrs |= {"scalar": True, "staged": True, "unroll": 1}
        with self._stage(op, made.body, ends[0], stages.places, ops):
            self.do("scf.yield")

    @contextmanager
    def _stage(
        self, loop: Op, body: Block, begin: Value, places: Sequence[Op], ops: Sequence[Op]
    ) -> Generator[None]:
        """``ops`` of an iteration as the ``body`` of a loop, which the ``with`` ends."""
        old, iv = For(loop).index, body.args[0]
        iv.name = old.name
        with self.at(body):
            self.replacement[old] = iv
            used = {v for op in ops for v in inputs(op)}
            for op in places:
                self.rewrite(op)
            at = self.op("arith.subi", iv, begin, overflow="nsw")
            own = {v for op in ops for v in op.results}
            for value, array in self.arrays.items():
                if value in used and value not in own:
                    self.replacement[value] = self._loaded(value, array, at)
            for op in ops:
                self.rewrite(op)
            for value, array in self.arrays.items():
                if value in own:
                    self.store(self._stored(self.lookup(value)), array, [at])
            yield

    def _loaded(self, value: Value, array: Value, at: Value) -> Value:
        found = self.load(array, [at])
        if value.type is i1:
            return self.op("arith.cmpi", found, self.constant(0, i32), predicate="ne")
        return found if value.type is not index else self.op("arith.index_cast", found, type=index)

    def _stored(self, value: Value) -> Value:
        if value.type is i1:
            return self.op("arith.select", value, self.constant(1, i32), self.constant(0, i32))
        return value if value.type is not index else self.op("arith.index_cast", value, type=i64)


def _element(value: Value) -> ScalarType:
    """Of which type an array of ``value`` is."""
    return i32 if value.type is i1 else i64 if value.type is index else value.scalar

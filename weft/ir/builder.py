"""Building operations: ``Builder`` appends to a block, ``Rewriter`` rebuilds a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.trips import trip_bound, trip_count, whole_trip_count
from weft.ir.types import MemRefType, ScalarType, Type, compute_type, i1, index
from weft.ir.views import constant_of, made_by


class Builder:
    """Appends operations to ``block``; ``span`` is put on each."""

    def __init__(self, block: Block, span: Any = None) -> None:
        self.block = block
        self.span = span

    @contextmanager
    def at(self, block: Block) -> Generator[Block]:
        """Appends to ``block`` for the length of a ``with``."""
        saved, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = saved

    def here(self) -> tuple[Block, Op | None]:
        """Where the next operation goes: the block, and the operation before it, if any."""
        return self.block, self.block.ops[-1] if self.block.ops else None

    @contextmanager
    def about(self, span: Any) -> Generator[None]:
        """Puts ``span`` on what is built in a ``with``."""
        saved, self.span = self.span, span
        try:
            yield
        finally:
            self.span = saved

    def append(self, op: Op) -> Op:
        if op.span is None:
            op.span = self.span
        self.block.ops.append(op)
        return op

    def op(self, name: str, *operands: Value, type: Type | None = None, **attrs: Any) -> Value:
        """One operation with one result, whose type follows from the table or is ``type``."""
        if type is None:
            type = result_type(name, operands)
        return self.append(Op(name, list(operands), [type], attrs)).result

    def do(self, name: str, *operands: Value, **attrs: Any) -> Op:
        """One operation without a result."""
        return self.append(Op(name, list(operands), (), attrs))

    def constant(self, value: bool | int | float, type: ScalarType) -> Value:
        value = bool(value) if type is i1 else float(value) if type.is_float else int(value)
        return self.op("arith.constant", type=type, value=value)

    def index(self, value: int) -> Value:
        return self.constant(value, index)

    def number(self, value: int, like: Value) -> Value:
        return self.constant(value, like.scalar)

    def addi(self, a: Value, b: Value) -> Value:
        return self.op("arith.addi", a, b)

    def subi(self, a: Value, b: Value) -> Value:
        return self.op("arith.subi", a, b)

    def muli(self, a: Value, b: Value) -> Value:
        return self.op("arith.muli", a, b)

    def if_equal(self, x: Value, y: Value, yes: Value, no: Value) -> Value:
        """``yes`` where two floats are equal, else ``no``."""
        same = self.op("arith.cmpf", x, y, predicate="oeq")
        return self.op("arith.select", same, yes, no)

    def copied(self, op: Op, lookup: Callable[[Value], Value]) -> Op:
        """A copy of ``op``, which has no regions, of the operands that ``lookup`` gives."""
        operands, types = [lookup(v) for v in op.operands], [r.type for r in op.results]
        return self.append(Op(op.name, operands, types, dict(op.attrs), span=op.span))

    def load(self, memref: Value, indices: Sequence[Value]) -> Value:
        return self.op("memref.load", memref, *indices, type=memref.memref.element)

    def store(self, value: Value, memref: Value, indices: Sequence[Value]) -> Op:
        return self.do("memref.store", value, memref, *indices)

    def atomic_rmw(self, kind: str, value: Value, memref: Value, indices: Sequence[Value]) -> Value:
        return self.op(
            "memref.atomic_rmw", value, memref, *indices,
            type=compute_type(memref.memref.element), kind=kind, atomic=True,
        )  # fmt: skip

    def alloca(self, element: ScalarType, shape: tuple[int, ...]) -> Value:
        return self.op("memref.alloca", type=MemRefType(element, len(shape), "contiguous", shape))

    def trip_count(self, lower: Value, upper: Value, step: Value) -> Value:
        """How many iterations a loop with these bounds has."""
        return trip_count(Integers(self, lower.scalar), lower, upper, step)

    def whole_trip_count(self, lower: Value, upper: Value, step: Value) -> Value:
        """The same of any 64-bit numbers."""
        return whole_trip_count(Integers(self, lower.scalar), lower, upper, step)

    def steps(self, iv: Value, lower: Value, step: Value) -> Value:
        """The number of the iteration, from 0, where the index of a loop is ``iv``."""
        return self.op("arith.floordivsi", self.op("arith.subi", iv, lower), step)

    def trip_bound(self, lower: Value, upper: Value, step: Value) -> Value:
        """A bound for a loop that has as many iterations as one with these bounds."""
        return trip_bound(Integers(self, lower.scalar), lower, upper, step)

    def for_(
        self, lower: Value, upper: Value, step: Value, inits: Sequence[Value] = (), **attrs: Any
    ) -> Op:  # fmt: skip
        """An ``scf.for`` with an empty region: fill ``op.regions[0]``, end it with scf.yield."""
        types = [v.type for v in inits]
        block = Block([lower.type, *types])
        return self.append(Op("scf.for", [lower, upper, step, *inits], types, attrs, [block]))

    def if_(self, condition: Value, types: Sequence[Type] = ()) -> Op:
        return self.append(Op("scf.if", [condition], list(types), {}, [Block(), Block()]))

    def either(
        self, condition: Value, yes: Callable[[], Sequence[Value] | None],
        no: Callable[[], Sequence[Value] | None], types: Sequence[Type] = (), **attrs: bool,
    ) -> list[Value]:  # fmt: skip
        """What ``yes`` makes where ``condition`` holds, else what ``no`` makes."""
        op = self.if_(condition, types)
        op.attrs |= attrs
        for region, side in zip(op.regions, (yes, no), strict=True):
            self.fill(region, side)
        return op.results

    def fill(self, region: Block, body: Callable[[], Sequence[Value] | None]) -> None:
        """Builds an empty region, which hands on what ``body`` makes."""
        with self.at(region):
            self.do("scf.yield", *(body() or ()))

    @contextmanager
    def when(self, condition: Value) -> Generator[None]:
        """What is built in the ``with`` happens where ``condition`` holds."""
        then, otherwise = self.if_(condition).regions
        with self.at(then):
            yield
            self.do("scf.yield")
        with self.at(otherwise):
            self.do("scf.yield")

    def nest(
        self, extents: Sequence[Callable[[], Value]], body: Callable[[list[Value]], object],
        at: Sequence[Value] = (),
    ) -> None:  # fmt: skip
        """``body`` for every subscript of an array of ``extents``, behind the subscripts ``at``."""
        if not extents:
            body(list(at))
            return
        inner = self.for_(self.index(0), extents[0](), self.index(1)).body
        self.fill(inner, lambda: self.nest(extents[1:], body, [*at, inner.args[0]]))

    def each_element(self, memref: Value, body: Callable[[list[Value]], object]) -> None:
        """``body`` for every subscript of a local array."""
        self.nest([partial(self.index, n) for n in memref.memref.shape or ()], body)

    def while_(self, inits: Sequence[Value], types: Sequence[Type]) -> Op:
        """An ``scf.while``; ``types`` are those that scf.condition hands on (and the results)."""
        before = Block([v.type for v in inits])
        regions = [before, Block(list(types))]
        return self.append(Op("scf.while", list(inits), list(types), {}, regions))

    def parallel(
        self,
        lowers: Sequence[Value],
        uppers: Sequence[Value],
        steps: Sequence[Value],
        inits: Sequence[Value] = (),
        kinds: Sequence[str] = (),
    ) -> Op:
        block = Block((index,) * len(lowers))
        operands = [*lowers, *uppers, *steps, *inits]
        attrs = {"dims": len(lowers), "kinds": tuple(kinds)}
        return self.append(Op("scf.parallel", operands, [v.type for v in inits], attrs, [block]))


def identity(kind: str, type: ScalarType) -> bool | int | float:
    """The value that the combiner ``kind`` makes of anything that thing with."""
    unsigned, bits = kind.endswith("ui"), type.bits
    low = 0 if unsigned else -(1 << (bits - 1))
    high = (1 << bits) - 1 if unsigned else (1 << (bits - 1)) - 1
    ones = True if type is i1 else -1
    return {
        "addf": -0.0, "mulf": 1.0, "maximumf": -math.inf, "minimumf": math.inf,
        "maxnumf": math.nan, "minnumf": math.nan,
        "addi": 0, "muli": 1, "maxsi": low, "maxui": low, "minsi": high, "minui": high,
        "andi": ones, "ori": 0, "xori": 0,
    }[kind]  # fmt: skip


class Integers:
    """Integers of one type, whose operations ``builder`` appends."""

    def __init__(self, builder: Builder, type: ScalarType) -> None:
        self.builder = builder
        self.type = type

    def constant(self, value: Value) -> int | None:
        number = constant_of(value)
        return None if number is None else int(number)

    def number(self, value: int) -> Value:
        return self.builder.constant(value, self.type)

    def op(self, name: str, a: Value, b: Value) -> Value:
        return self.builder.op(f"arith.{name}", a, b)


def result_type(name: str, operands: Sequence[Value]) -> Type:
    """The type of the result of operation ``name``; ValueError where the table leaves it open."""
    words = OPS[name].operands.split()
    result = OPS[name].results
    if result == "i1":
        return i1
    if result == "index":
        return index
    if result == "T":
        position = next(k for k, word in enumerate(words) if word.startswith("T"))
        return operands[position].type
    raise ValueError(f"{name}: the result type must be given")


def annotated(function: Function, *notes: Mapping[Op, Mapping[str, Any]]) -> Function:
    """``function``, in which operations have the attributes of ``notes``, too: a copy of it, where
    there are any."""
    return _Annotating(notes).function(function) if any(notes) else function


def replaced(function: Function, same: Mapping[Value, Value]) -> Function:
    """``function``, in which operations without regions, whose results ``same`` has, give way to
    what it has for them, which is in scope there: a copy of it, where there are any."""
    return _Replacing(same).function(function) if same else function


class Rewriter(Builder):
    """Rebuilds a function in one forward walk.

    ``visit(op, rewriter)``, if given, sees each operation after its operands were replaced and its
    regions rebuilt. It returns None to keep it, or the list of values that stand for its results
    (which it built itself by calling the rewriter's methods, or which were there already).
    ``around(op, rewriter)``, if given, sees each *old* operation that has regions before anything
    is done with it. It returns None for the usual rebuilding, or the values that stand for its
    results, after it did all by itself (with ``copy``, ``region``, ``inline`` and ``append``).
    The old function is left untouched.
    """

    def __init__(
        self,
        visit: Callable[[Op, Rewriter], Sequence[Value] | None] | None = None,
        around: Callable[[Op, Rewriter], Sequence[Value] | None] | None = None,
    ) -> None:
        super().__init__(Block())
        self.visit = visit
        self.around = around
        self.replacement: MutableMapping[Value, Value] = {}
        self.depth = 0

    def lookup(self, value: Value) -> Value:
        return self.replacement.get(value, value)

    def function(self, function: Function) -> Function:
        return self.into(function, function.without_body())

    def into(self, function: Function, new: Function) -> Function:
        """Rebuilds ``function`` as ``new``, which has arguments like its own first."""
        self.replacement.update(zip(function.args, new.args, strict=False))
        self.block = new.body
        for op in function.body.ops:
            self.rewrite(op)
        return new

    def copy(self, op: Op) -> Op:
        """``op`` with its operands replaced and with regions that are still empty."""
        # Most of a pass's time is spent here, hence no calls that simple operations can do without.
        replacement = self.replacement
        operands = [replacement.get(v, v) for v in op.operands] if op.operands else []
        attrs = op.attrs.copy() if op.attrs else {}
        copy = Op(op.name, operands, (), attrs, None, op.span)
        results = op.results
        if len(results) == 1:
            old = results[0]
            copy.results.append(Value(old.type, old.name, copy))
        elif results:
            copy.results = [Value(v.type, v.name, copy) for v in results]
        if op.regions:
            copy.regions = [Block([a.type for a in r.args]) for r in op.regions]
        return copy

    def region(self, old: Block, new: Block) -> None:
        """Rebuilds the old block ``old`` into the empty block ``new``."""
        self.depth += 1
        for before, after in zip(old.args, new.args, strict=True):
            after.name = before.name
            self.replacement[before] = after
        saved, self.block = self.block, new
        for op in old.ops:
            self.rewrite(op)
        self.block = saved
        self.depth -= 1

    def inline(self, old: Block, args: Sequence[Value]) -> list[Value]:
        """Rebuilds the operations of ``old`` in place, ``args`` standing for its arguments.

        Returns what its terminator hands on; the terminator itself is dropped.
        """
        self.replacement.update(zip(old.args, args, strict=True))
        for op in old.ops[:-1]:
            self.rewrite(op)
        return [self.lookup(v) for v in old.terminator.operands]

    def in_front(self, value: Value, inside: Collection[Value], known: dict[Value, Value]) -> Value:
        """``value``, made by pure operations of values ``inside`` of what is rebuilt, computed in
        front of that. ``known``: of some of these what they are there; the others are added."""
        if value not in known:
            op = value.op
            if value not in inside or op is None:
                return self.lookup(value)
            for operand in op.operands:
                self.in_front(operand, inside, known)
            known[value] = self.copied(op, lambda v: known.get(v) or self.lookup(v)).result
        return known[value]

    def rewrite(self, op: Op) -> None:
        """Rebuilds one old operation at the end of the current block. What is built meanwhile is of
        the same source text."""
        outer, self.span = self.span, op.span or self.span
        self._rewrite(op)
        self.span = outer

    def _rewrite(self, op: Op) -> None:
        values = None
        if not op.regions:
            copy = self.copy(op)
        else:
            if self.around:
                values = self.around(op, self)
            if values is not None:
                self.stand_for(op.results, values)
                return
            copy = self.copy(op)
            for before, after in zip(op.regions, copy.regions, strict=True):
                self.region(before, after)
        values = self.visit(copy, self) if self.visit else None
        if values is None:
            self.block.ops.append(copy)
            results = op.results
            if len(results) == 1:
                self.replacement[results[0]] = copy.results[0]
            elif results:
                self.replacement.update(zip(results, copy.results, strict=True))
        else:
            self.stand_for(op.results, values)

    def stand_for(self, old: Sequence[Value], new: Sequence[Value]) -> None:
        """Lets ``new`` be what becomes of ``old``; what has no name gets the old one."""
        for before, after in zip(old, new, strict=True):
            if not after.name:
                after.name = before.name
            self.replacement[before] = after


class _Replacing(Rewriter):
    def __init__(self, same: Mapping[Value, Value]) -> None:
        super().__init__()
        self.same = same

    def rewrite(self, op: Op) -> None:
        found = self.same.get(op.results[0]) if op.results else None
        if found is None:
            super().rewrite(op)
        else:
            self.stand_for(op.results, [self.lookup(found)])


class _Annotating(Rewriter):
    def __init__(self, notes: Sequence[Mapping[Op, Mapping[str, Any]]]) -> None:
        super().__init__()
        self.notes = [each for each in notes if each]

    def copy(self, op: Op) -> Op:
        new = super().copy(op)
        for each in self.notes:
            new.attrs |= each.get(op, {})
        return new


def chosen_by(builder: Builder, condition: Value, x: Value, y: Value) -> Value:
    """What an ``if`` of the program hands on, as a select: where it compares these and they are
    equal, a derivative goes to the one that is taken (as of the ``if``), and is not shared."""
    compare = made_by(condition, "arith.cmpf")
    compares = compare is not None and {*compare.operands} == {x, y}
    attrs: dict[str, Any] = {"unshared": True} if compares else {}
    return builder.op("arith.select", condition, x, y, **attrs)

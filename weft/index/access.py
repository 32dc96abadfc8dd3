"""Every access of a function: what is touched, with which subscripts, under which loops and ifs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from weft.index.expression import (
    Condition,
    Dim,
    Pick,
    Poly,
    atom,
    condition_polys,
    known,
    negate,
    substituted_condition,
)
from weft.index.integers import Integers
from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import For, If, Parallel, memory
from weft.settings import deep
from weft.values import frozen, mutable

KINDS = {
    "memref.load": "load",
    "memref.store": "store",
    "memref.atomic_rmw": "rmw",
    "memref.atomic_cas": "cas",
}


@frozen
class Loop:
    """One loop index with ``lower <= iv < upper``; None where a bound is not known.

    ``step`` is positive: ``iv`` is ``lower`` plus a multiple of it.
    """

    iv: Value
    lower: Poly | None
    upper: Poly | None
    step: Poly | None
    parallel: bool


@mutable
class Access:
    """One operation that touches memory.

    ``kind`` is "load", "store", "rmw" or "cas". ``subscripts`` has an expression for each
    dimension, None where it is unknown (it depends on data, or on arithmetic that is not followed).
    ``loops`` are the indices around it, outermost first; ``guards`` the conditions that hold where
    it is carried out, None among them for one that is not known. ``exact`` says that the iterations
    which carry it out, and the elements, are known without approximation. ``local``: the array
    belongs to one iteration (an alloca inside of the parallel loop).
    """

    op: Op
    kind: str
    memref: Value
    subscripts: tuple[Poly | None, ...]
    loops: tuple[Loop, ...]
    guards: tuple[Condition | None, ...]
    exact: bool
    local: bool = False

    @property
    def combiner(self) -> str | None:
        """The kind of an atomic_rmw."""
        return self.op.attrs["kind"] if self.kind == "rmw" else None

    @property
    def writes(self) -> bool:
        return self.kind != "load"

    @property
    def where(self) -> str:
        """The source text and line of it, for people."""
        span = self.op.span
        if span is None or span.end_line != span.line:
            return f"`{self.memref.name or '?'}`" + (f" at line {span.line}" if span else "")
        return f"`{span.text[span.column : span.end_column]}` at line {span.line}"

    @property
    def parallel(self) -> tuple[Value, ...]:
        return tuple(loop.iv for loop in self.loops if loop.parallel)

    @property
    def serial(self) -> tuple[Value, ...]:
        return tuple(loop.iv for loop in self.loops if not loop.parallel)

    def ranges(self) -> list[tuple[Value, Poly | None, Poly | None]]:
        """Index, least value and end of each loop, innermost first (see ``expression.extreme``)."""
        return [(loop.iv, loop.lower, loop.upper) for loop in reversed(self.loops)]

    def stride(self, iv: Value) -> int | None:
        """By how many elements of a row it moves when the index ``iv`` grows by one, in whatever
        rows; None where that is not a number."""
        last = self.subscripts[-1] if self.subscripts else None
        return None if last is None else last.slope(iv)

    def polys(self) -> Iterator[Poly]:
        """Every expression that takes part: subscripts, bounds, conditions."""
        yield from (s for s in self.subscripts if s is not None)
        for loop in self.loops:
            yield from (p for p in (loop.lower, loop.upper, loop.step) if p is not None)
        for guard in self.guards:
            yield from condition_polys(guard)

    def substitute(self, change: Callable[[Value | Dim], Poly | None]) -> Access:
        """The same access with symbols replaced in all its expressions."""

        def of(poly: Poly | None) -> Poly | None:
            return None if poly is None else poly.substitute(change)

        return replace(
            self,
            subscripts=tuple(map(of, self.subscripts)),
            loops=tuple(
                Loop(x.iv, of(x.lower), of(x.upper), of(x.step), x.parallel) for x in self.loops
            ),
            guards=tuple(substituted_condition(g, change) for g in self.guards),
        )


def accesses(function: Function) -> list[Access]:
    """Every load, store, atomic_rmw and atomic_cas of ``function``, in program order."""
    return Extraction(function).found


class Extraction(Integers):
    """One walk over a function, for all that is accessed there."""

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self.found: list[Access] = []
        self.bounds: list[tuple[Op, Access]] = []  # weft.bounds operations, as accesses in shape
        self.loops: dict[Op, tuple[Loop, ...]] = {}  # each loop's index, and those around it
        self._locals: set[Value] = set()
        with deep(function.span):
            self._walk(function.body, (), ())

    def _walk(
        self, block: Block, loops: tuple[Loop, ...], guards: tuple[Condition | None, ...]
    ) -> None:
        inside = any(loop.parallel for loop in loops)
        for op in block.ops:
            match op.name:
                case "scf.parallel":
                    loop = Parallel(op)
                    pairs = zip(loop.indices, loop.axes, strict=True)
                    new = [self._loop(iv, *bounds, True) for iv, bounds in pairs]
                    self.loops[op] = *loops, *new
                    self._walk(op.body, self.loops[op], guards)
                case "scf.for":
                    self.loops[op] = *loops, self._loop(For(op).index, *For(op).bounds, False)
                    self._walk(op.body, self.loops[op], guards)
                case "scf.if":
                    condition = self.condition(If(op).condition)
                    self._walk(If(op).then, loops, (*guards, condition))
                    self._walk(If(op).otherwise, loops, (*guards, negate(condition)))
                case "scf.while":
                    for region in op.regions:
                        self._walk(region, loops, (*guards, None))
                case "memref.alloca":
                    if inside:
                        self._locals.add(op.result)
                case "weft.bounds":
                    pair = tuple(map(self.poly, op.operands))
                    self.bounds.append((op, Access(op, "load", op.left, pair, loops, guards,
                                                   self._exact(pair, loops, guards))))  # fmt: skip
                case name if name in KINDS:
                    memref, at, _ = memory(op)
                    subscripts = tuple(map(self.poly, at))
                    exact = self._exact(subscripts, loops, guards)
                    self.found.append(
                        Access(op, KINDS[name], memref, subscripts, loops, guards, exact,
                               memref in self._locals)
                    )  # fmt: skip
                case _:
                    pass

    def _loop(self, iv: Value, lower: Value, upper: Value, step: Value, parallel: bool) -> Loop:
        begin, end = self.poly(lower), self.poly(upper)
        return Loop(iv, begin, end and _plain_end(begin, end), self.poly(step), parallel)

    def _exact(
        self,
        subscripts: tuple[Poly | None, ...],
        loops: tuple[Loop, ...],
        guards: tuple[Condition | None, ...],
    ) -> bool:
        """Everything is known, and the symbols are sizes and arguments that may have any value."""
        polys: list[Poly | None] = [*subscripts]
        for loop in loops:
            polys += [loop.lower, loop.upper, loop.step]
        if not all(map(known, guards)):
            return False
        for guard in guards:
            polys += condition_polys(guard)
        for poly in polys:
            if poly is None:
                return False
            for leaf in poly.leaves():
                if isinstance(leaf, Value) and leaf not in self._args and leaf not in self._ivs:
                    return False
        return all(loop.step is not None and loop.step.constant is not None for loop in loops)


def _plain_end(begin: Poly | None, end: Poly) -> Poly:
    """An end of ``max(n, 0)`` is as good as ``n`` for an index that starts at 0."""
    atoms = list(end.atoms())
    least = None if begin is None else begin.constant
    if least is None or len(atoms) != 1 or end != atom(atoms[0]):
        return end
    match atoms[0]:
        case Pick("max", left, right) if right.constant is not None and right.constant <= least:
            return left
        case Pick("max", left, right) if left.constant is not None and left.constant <= least:
            return right
        case _:
            return end

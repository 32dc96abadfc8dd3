"""Loads and stores of four neighbouring words, which a shading language says as one.

A driver must not join them itself: sums of integers wrap in a shader, so it does not know that
``a[i]`` and ``a[i + 1]`` lie side by side. Schedules mark the first of such neighbours with the
bytes that its address is a multiple of ("align").
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import f32, i32
from weft.ir.views import constant_of, memory
from weft.ir.writes import written
from weft.values import frozen

WIDTH = 4
_SPAN = 256  # operations, between the first and the last of a run

Form = tuple[frozenset[tuple[int, int]], int]  # factors and how often each is there; a constant


@frozen
class Place:
    """One of four neighbours: ``run[k]``, or a later load of the same element."""

    run: tuple[Op, ...]
    k: int


def runs(function: Function, forms: Forms) -> dict[Op, Place]:
    """Of each load or store of a run, its place; the operations of a run are in the order of their
    addresses. All loads may be done where the first is, all stores where the last is."""
    found: dict[Op, Place] = {}
    changed = written(function)
    for block in _blocks(function.body):
        for begin, op in enumerate(block.ops):
            if op in found or not _begins(op):
                continue
            run = _run(block.ops[begin:], forms)
            found.update((o, Place(run, k)) for k, o in enumerate(run))
            if run and memory(op)[0] not in changed:
                for later in block.ops[begin:]:
                    if later.name == "memref.load" and later not in found:
                        k = forms.between(op, later)
                        if 0 <= k < WIDTH:
                            found[later] = Place(run, k)
    return found


def lanes(function: Function, joined: Mapping[Op, Place], forms: Forms) -> dict[Op, int]:
    """Of each other load or store beside a run in its block, which place in a vector it has."""
    found: dict[Op, int] = {}
    for block in _blocks(function.body):
        firsts = [place.run[0] for op in block.ops
                  if (place := joined.get(op)) is not None and place.run[0] is op]  # fmt: skip
        for op in block.ops if firsts else ():
            if op.name in ("memref.load", "memref.store") and op not in joined:
                away = (forms.apart(first, op) for first in firsts)
                if (known := next((n for n in away if n is not None), None)) is not None:
                    found[op] = known % WIDTH
    return found


def _blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in walk(block):
        yield from op.regions


def _begins(op: Op) -> bool:
    if op.name not in ("memref.load", "memref.store") or op.attrs.get("align", 0) < 4 * WIDTH:
        return False
    memref, subscripts, _ = memory(op)
    type = memref.memref
    return type.element in (f32, i32) and type.row_major and bool(subscripts) and _lasts(memref)


def _lasts(memref: Value) -> bool:
    """Whether it is not a thread's own array."""
    return memref.op is None or memref.memref.space == "shared"


def _run(ops: Sequence[Op], forms: Forms) -> tuple[Op, ...]:
    """The run that the first of ``ops`` begins; () where it does not."""
    first = ops[0]
    memref = memory(first)[0]
    found: dict[int, Op] = {}
    for op in ops[:_SPAN]:
        if op.regions:
            break
        if op.name in ("memref.load", "memref.store") and memory(op)[0] is memref:
            away = forms.between(first, op)
            if op.name == first.name and 0 <= away < WIDTH and away not in found:
                found[away] = op
                if len(found) == WIDTH:
                    return tuple(found[k] for k in range(WIDTH))
                continue
            if "memref.store" in (op.name, first.name):
                break
        elif op.name not in ("memref.load", "memref.store", "memref.dim") and not OPS[op.name].pure:
            break
    return ()


class Forms:
    """Integers as sums of products: two that are equal have the same form."""

    def __init__(self) -> None:
        self.known: dict[Value, Form] = {}
        self.factors: dict[Hashable, int] = {}  # numbers of what is no sum
        self.places: dict[Op, tuple[Value, tuple[Form, ...], Form]] = {}

    def place(self, op: Op) -> tuple[Value, tuple[Form, ...], Form]:
        """What a load or store accesses: the memref, its row, and the place in that."""
        found = self.places.get(op)
        if found is None:
            memref, subscripts, _ = memory(op)
            *outer, last = map(self.of, subscripts)
            terms, constant = last
            offset = op.attrs.get("offset", 0)
            found = self.places[op] = memref, tuple(outer), (terms, constant + offset)
        return found

    def between(self, first: Op, other: Op) -> int:
        """How many elements of a row ``other`` accesses behind ``first``; below zero where that is
        not known, too."""
        found = self.apart(first, other)
        return -1 if found is None else found

    def apart(self, first: Op, other: Op) -> int | None:
        """How many elements of a row ``other`` accesses behind ``first``."""
        memref, rows, (terms, begin) = self.place(first)
        if memory(other)[0] is not memref:
            return None
        _, others, (own, at) = self.place(other)
        return at - begin if others == rows and own == terms else None

    def of(self, value: Value) -> Form:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._made(value)
        return found

    def _made(self, value: Value) -> Form:
        number, op = constant_of(value), value.op
        if number is not None:
            return frozenset(), int(number)
        if op is None or not OPS[op.name].pure or op.regions or not op.operands:
            return self.factor(value)
        if op.name in ("arith.addi", "arith.subi"):
            return _sum(self.of(op.left), self.of(op.right), -1 if op.name == "arith.subi" else 1)
        parts = tuple(map(self.of, op.operands))
        if op.name == "arith.muli":
            for (terms, factor), other in (parts, parts[::-1]):
                if not terms:
                    return _sum((frozenset(), 0), other, factor)
        attrs = tuple((k, str(v)) for k, v in sorted(op.attrs.items()) if k != "overflow")
        return self.factor((op.name, op.result.type, attrs, parts))

    def factor(self, what: Hashable) -> Form:
        return frozenset({(self.factors.setdefault(what, len(self.factors)), 1)}), 0


def _sum(a: Form, b: Form, factor: int) -> Form:
    terms = dict(a[0])
    for term, count in b[0]:
        terms[term] = terms.get(term, 0) + factor * count
    return frozenset((t, n) for t, n in terms.items() if n), a[1] + factor * b[1]

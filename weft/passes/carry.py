"""Elements of memory as values that structured operations hand on: what scalar promotion needs."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence

from weft.ir.builder import Rewriter, identity
from weft.ir.core import Block, Op, Value, below, defined, walk
from weft.ir.views import constant_of, memory

Element = tuple[Value, ...]  # a memref and subscripts


class Carrying(Rewriter):
    """Rewrites what accesses ``current`` elements; ``carry`` hands these through loops and
    branches."""

    current: dict[Element, Value]  # of each element that is carried: what it is here

    def carry(self, op: Op, carried: Sequence[Element]) -> Sequence[Value]:
        """Rebuilds ``op``, an ``scf.for`` or ``scf.if``, with what becomes of the elements
        ``carried`` as further results; gives those that it had."""
        is_loop, before = op.name == "scf.for", [self.current[element] for element in carried]
        more = [v.type for v in before]
        copy = self.copy(op)
        new = Op(op.name, copy.operands + before * is_loop, [r.type for r in op.results] + more,
                 copy.attrs, [Block([a.type for a in r.args] + more * is_loop) for r in op.regions],
                 op.span)  # fmt: skip
        for old, region in zip(op.regions, new.regions, strict=True):
            count = len(old.args)
            self.stand_for(old.args, region.args[:count])
            self.current |= zip(carried, region.args[count:] if is_loop else before, strict=True)
            with self.at(region):
                self.fill_from(old)
            region.terminator.operands += [self.current[element] for element in carried]
        self.append(new)
        count = len(op.results)
        for element, value in zip(carried, new.results[count:], strict=True):
            value.name = element[0].name
            self.current[element] = value
        return new.results[:count]

    def fill_from(self, old: Block) -> None:
        """Rebuilds the operations of a region."""
        for inner in old.ops:
            self.rewrite(inner)


class Accumulating(Carrying, abc.ABC):
    """Rewrites parallel ``loops``, whose accumulations into some elements become values."""

    def __init__(self, loops: Mapping[Op, Mapping[Op, Element]]) -> None:
        """``loops``: of each the updates that do, in ``for`` loops and branches, too."""
        super().__init__(self._visit, self._around)
        self.loops, self.current = loops, {}
        self.updates: Mapping[Op, Element] = {}  # those of the loop that is rebuilt
        self.order: Iterator[Element | None] = iter(())  # of its updates, which come as copies
        self.places: dict[Element, list[Value]] = {}  # subscripts, in front of what carries
        self.kinds: dict[Element, str] = {}  # combiners

    @abc.abstractmethod
    def loop(self, op: Op) -> Sequence[Value]:
        """Rebuilds one of the loops."""

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op not in self.loops:
            carried = dict.fromkeys(self.updates[o] for o in below(op) if o in self.updates)
            return self.carry(op, list(carried)) if carried else None
        self.span = op.span
        self.updates, ops = self.loops[op], walk(op.body)
        self.order = iter([self.updates.get(o) for o in ops if o.name == "memref.atomic_rmw"])
        self.kinds = {element: update.attrs["kind"] for update, element in self.updates.items()}
        results = self.loop(op)
        self.updates, self.order = {}, iter(())
        return results

    def _visit(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        element = next(self.order, None) if op.name == "memref.atomic_rmw" else None
        if element is None:
            return None
        value = self.op(f"arith.{op.attrs['kind']}", self.current[element], memory(op)[2][0])
        self.current[element] = value
        return [value]  # nobody asks for it

    def place(self, parallel: Op) -> None:
        """Computes the subscripts of the elements, which follow from what there is here."""
        inside, known = defined([parallel.body]), dict[Value, Value]()
        inside -= {*parallel.body.args}
        self.places = {e: [self.in_front(v, inside, known) for v in e[1:]] for e in self.kinds}

    def neutral(self, element: Element) -> Value:
        """What changes nothing."""
        type = element[0].memref.element
        return self.constant(identity(self.kinds[element], type), type)

    def loaded(self, element: Element, guard: Value | None) -> Value:
        """What the element is, if ``guard`` holds; else nothing asks for it."""
        memref, type = self.lookup(element[0]), element[0].memref.element
        if guard is None:
            return self.load(memref, self.places[element])
        there = lambda: [self.load(memref, self.places[element])]  # noqa: E731
        return self.either(guard, there, lambda: [self.neutral(element)], [type])[0]

    def stored(self, value: Value, element: Element, guard: Value | None) -> None:
        """Stores what becomes of the element, if ``guard`` holds."""
        value.name = value.name or element[0].name
        memref, at = self.lookup(element[0]), self.places[element]
        if guard is None:
            self.store(value, memref, at)
        else:
            with self.when(guard):
                self.store(value, memref, at)

    def within(self, element: Element, axes: Sequence[int] = ()) -> Value | None:
        """Whether the element is one of its array, by its subscripts along ``axes`` (all if none
        is said); None if it surely is. Iterations that never update it may subscript anything."""
        memref, at, found = self.lookup(element[0]), self.places[element], list[Value]()
        for axis in axes or range(len(at)):
            size = self.op("memref.dim", memref, axis=axis)
            found.append(self.op("arith.cmpi", at[axis], size, predicate="slt"))
            if (number := constant_of(at[axis])) is None or number < 0:
                found.append(self.op("arith.cmpi", self.index(0), at[axis], predicate="sle"))
        return self.all_of(found)

    def all_of(self, conditions: Sequence[Value]) -> Value | None:
        """Whether all of these hold; None of none."""
        found: Value | None = None
        for each in conditions:
            found = each if found is None else self.op("arith.andi", found, each)
        return found

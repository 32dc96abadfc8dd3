"""Loop rerolling: accumulations that differ in numbers alone become one, with indices of its own.

A window that is written out accumulates into each element of a gradient by itself:
``gw[0, 0] += x[i - 1, j - 1] * g``, ``gw[0, 1] += x[i - 1, j] * g`` and so on. That is
``gw[k, l] += x[i + k - 1, j + l - 1] * g`` for all ``k`` and ``l`` of a box, which is one loop nest
to compile in place of one for each element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from weft.autodiff.fibre import in_bounds
from weft.autodiff.slices import Slicer, accumulated
from weft.autodiff.write import Writer
from weft.index.access import Access, Loop
from weft.index.expression import ONE, Both, Compare, Condition, Poly, atom, number
from weft.index.integers import Integers
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType, i1, index
from weft.ir.views import If
from weft.passes import constants
from weft.values import frozen, mutable

LEAST = 3  # accumulations that are worth it


@frozen
class Node:
    """A value in terms of the indices: ``number``, an operation like that of ``value`` on
    ``operands``, or ``value`` itself, which all accumulations have in common."""

    value: Value
    number: Poly | None = None
    operands: tuple[Node, ...] | None = None


@mutable
class Rolled(Access):
    """The one accumulation, in the indices. ``nodes``: what is accumulated, and conditions around
    it that loops' bounds do not say."""

    nodes: dict[Value, Node] = field(default_factory=dict)

    def symbols(self) -> set[Value]:
        """What ``nodes`` are made of besides the indices of loops."""
        todo, found = [*self.nodes.values()], set[Value]()
        while todo:
            node = todo.pop()
            todo += node.operands or ()
            if node.number is not None:
                found.update(leaf for leaf in node.number.leaves() if isinstance(leaf, Value))
        return found - {loop.iv for loop in self.loops}

    def copied(self, value: Value, w: Writer, kept: Sequence[Value], slicer: Slicer) -> Value:
        """``value``, what is accumulated or a condition around it, as ``Slicer.copied``."""
        made: dict[int, Value] = {}

        def write(node: Node) -> Value:
            if id(node) not in made:
                made[id(node)] = of(node)
            return made[id(node)]

        def of(node: Node) -> Value:
            if node.number is not None:
                at, type = w.poly(node.number), node.value.type
                return at if type is index else w.b.op("arith.index_cast", at, type=type)
            old = node.value.op
            if node.operands is None or old is None:
                return slicer.copied(node.value, w, kept)
            operands = iter([*map(write, node.operands)])
            return w.b.copied(old, lambda _: next(operands)).result

        return write(self.nodes[value])


def reroll(function: Function, found: Sequence[Access], slicer: Slicer) -> list[Access]:
    """The accumulations ``found``, of which those in the same loops are one where that can be: for
    all of the iterations of a loop and for what comes behind it, say."""
    groups: dict[tuple[tuple[Loop, ...], int], list[Access]] = {}
    for access in found:
        groups.setdefault((access.loops, len(access.guards)), []).append(access)
    made: list[Access] = []
    for group in groups.values():
        one = _rolled(function, group, slicer)
        made += group if one is None else [one]
    return made


def _rolled(function: Function, found: Sequence[Access], slicer: Slicer) -> Rolled | None:
    """The accumulations ``found`` as one. None where they do not each go to one element of a box,
    differ in more than numbers, or are few."""
    if len(found) < LEAST:
        return None
    columns = [*zip(*(a.subscripts for a in found), strict=True)]
    numbered = [k for k, column in enumerate(columns) if len({*column}) > 1
                and all(p is not None and p.constant is not None for p in column)]  # fmt: skip
    places = {_key(a, numbered): a for a in found}
    ends = [(min(column), max(column)) for column in zip(*places, strict=True)]
    if not len(found) == len(places) == math.prod(high - low + 1 for low, high in ends):
        return None
    return _Reroll(function, dict(sorted(places.items())), slicer).rolled(numbered, ends)


def _key(access: Access, numbered: Sequence[int]) -> tuple[int, ...]:
    subscripts = [access.subscripts[k] for k in numbered]
    return tuple(p.constant or 0 for p in subscripts if p is not None)


class _Reroll:
    """The accumulations of each element of a box, of which the first is the pattern."""

    def __init__(
        self, function: Function, places: dict[tuple[int, ...], Access], slicer: Slicer
    ) -> None:
        self.keys, self.every, self.slicer = [*places], [*places.values()], slicer
        self.integers = Integers(function)
        self.indices = [Value(index, f"k{axis}") for axis in range(len(self.keys[0]))]
        self.nodes: dict[tuple[Value, ...], Node | None] = {}

    def rolled(self, numbered: Sequence[int], ends: Sequence[tuple[int, int]]) -> Rolled | None:
        first = self.every[0]
        subscripts = [self.poly([a.subscripts[k] for a in self.every])
                      for k in range(len(first.subscripts))]  # fmt: skip
        for iv, k in zip(self.indices, numbered, strict=True):
            subscripts[k] = atom(iv)
        guards = [self.condition([a.guards[k] for a in self.every])
                  for k in range(len(first.guards))]  # fmt: skip
        own = [Loop(iv, number(low), number(high + 1), ONE, False)
               for iv, (low, high) in zip(self.indices, ends, strict=True)]  # fmt: skip
        made = Rolled(first.op, first.kind, first.memref, tuple(subscripts),
                      (*first.loops, *own), tuple(guards), first.exact, first.local)  # fmt: skip
        roots = [[accumulated(a) for a in self.every]]
        around = [reversed(self.slicer.around(a.op)) for a in self.every]
        branches = [[pair for pair in pairs if pair[0].name == "scf.if"] for pairs in around]
        for k, guard in enumerate(guards):
            if guard is None:  # no bounds of loops: a condition that is asked
                ifs = [If(pairs[k][0]) for pairs in branches]
                if len({pairs[k][1] in view.then.ops
                        for pairs, view in zip(branches, ifs, strict=True)}) > 1:  # fmt: skip
                    return None
                roots.append([view.condition for view in ifs])
        for values in roots:
            node = self.node(tuple(values))
            if node is None or made.nodes.setdefault(values[0], node) is not node:
                return None
        return None if None in subscripts else made

    def poly(self, each: Sequence[Poly | None]) -> Poly | None:
        """What is each of these at its place: the first, plus multiples of the indices."""
        first, corner = each[0], self.keys[0]
        if first is None or any(p is None for p in each):
            return None
        apart = {
            key: (p - first).constant
            for key, p in zip(self.keys, each, strict=True)
            if p is not None
        }
        total, slopes = first, [0] * len(corner)
        for axis, iv in enumerate(self.indices):
            slopes[axis] = apart.get((*corner[:axis], corner[axis] + 1, *corner[axis + 1 :])) or 0
            total = total + (atom(iv) - number(corner[axis])).scaled(slopes[axis])
        for key, distance in apart.items():
            steps = zip(slopes, key, corner, strict=True)
            if distance != sum(slope * (at - start) for slope, at, start in steps):
                return None
        return total

    def condition(self, each: Sequence[Condition | None]) -> Condition | None:
        """The same of conditions that loops' bounds can say; None of others."""
        first = each[0]
        if not all(map(in_bounds, each)) or any(type(c) is not type(first) for c in each):
            return None
        if isinstance(first, Compare):
            poly = self.poly([c.poly for c in each if isinstance(c, Compare)])
            return None if poly is None else Compare("ge", poly)
        parts = [c.parts for c in each if isinstance(c, Both)]
        if len({*map(len, parts)}) != 1:
            return None
        made = tuple(map(self.condition, zip(*parts, strict=True)))
        return None if None in made else Both(made)

    def node(self, each: tuple[Value, ...]) -> Node | None:
        """What is each of these values at its place, None where that is not one computation."""
        if each not in self.nodes:
            self.nodes[each] = self._node(each)
        return self.nodes[each]

    def _node(self, each: tuple[Value, ...]) -> Node | None:
        first, type = each[0], each[0].type
        if all(v is first for v in each):
            return Node(first)
        if any(v.type != type for v in each):
            return None
        if isinstance(type, ScalarType) and type.is_integer and type is not i1:
            poly = self.poly([self.integers.poly(v) for v in each])
            return None if poly is None else Node(first, number=poly)
        ops = [v.op for v in each if v.op is not None]
        like = [op for op in ops if op.name == ops[0].name and _alike(op, ops[0])
                and len(op.operands) == len(ops[0].operands) and not op.regions]  # fmt: skip
        if len(like) != len(each) or any(map(self.slicer.spills, each)):
            return None
        operands = [self.node(row) for row in zip(*(op.operands for op in ops), strict=True)]
        found = tuple(node for node in operands if node is not None)
        return Node(first, operands=found) if len(found) == len(operands) else None


def _alike(a: Op, b: Op) -> bool:
    """Whether attributes are the same; of constants, whether the bits are."""
    if a.name == b.name == "arith.constant":
        one, two = (constants.key(op.attrs["value"], op.result.scalar) for op in (a, b))  # type: ignore[arg-type]
        return one == two
    return a.attrs == b.attrs

"""Loops that run side by side: the same iterations, one loop after the other in one block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.ops import DIVISIONS, OPS, is_slow
from weft.ir.views import For, accessed_by, memory
from weft.passes.constants import identity

# What takes as long as a function does.
_EXPENSIVE = {"arith.remf", *DIVISIONS}


def is_expensive(op: Op, body: Block) -> bool:
    """Whether ``op``, in the ``body`` of a loop, is worth a load from a cache to avoid. A division
    by what does not change in the loop is not (see ``reciprocal``)."""
    if op.name == "arith.divf":
        return op.right in body.args or op.right.op in body.ops
    return op.name in _EXPENSIVE or is_slow(op.name)


def touches(op: Op) -> Iterator[tuple[Op, Value]]:
    """Each operation in ``op``, itself included, that reads or writes memory, with the memref."""
    for inner in below(op):
        if (memref := accessed_by(inner)) is not None:
            yield inner, memref


class Touched:
    """What the operations of ``block`` touch, by their places; each is walked once."""

    def __init__(self, block: Block) -> None:
        self._by_place = [list[tuple[Op, Value]](touches(op)) for op in block.ops]
        self._places: dict[Value, list[int]] = {}
        for place, found in enumerate(self._by_place):
            for memref in dict.fromkeys(memref for _, memref in found):
                self._places.setdefault(memref, []).append(place)

    def at(self, place: int, memref: Value) -> list[Op]:
        """What touches ``memref`` in the operation at ``place``."""
        return [op for op, touched in self._by_place[place] if touched is memref]

    def within(self, memref: Value, first: int, last: int) -> list[int]:
        """The places from ``first`` to ``last`` that touch ``memref``."""
        return [place for place in self._places.get(memref, ()) if first <= place <= last]

    def changed(self, first: int, last: int) -> set[Value]:
        """What the operations from ``first`` to ``last`` write."""
        return {memref for found in self._by_place[first : last + 1] for op, memref in found
                if op.name != "memref.load"}  # fmt: skip


def walk_blocks(block: Block) -> Iterator[Block]:
    """``block`` and all blocks in it."""
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from walk_blocks(region)


def same_range_loops(block: Block) -> list[list[int]]:
    """The places in ``block`` of loops that have the same bounds and step, in groups of two or
    more."""
    groups: dict[Hashable, list[int]] = {}
    for place, op in enumerate(block.ops):
        if op.name == "scf.for":
            groups.setdefault(For(op).bounds, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def may_reuse_memory(function: Function) -> bool:
    """Whether memory may be used in other ways than the loops say: arguments do not overlap, and
    nothing checks or prints on the way."""
    return bool(function.attrs.get("noalias")) and not any(
        op.name.startswith("weft.") for op in walk(function.body)
    )


def same_place(at: Sequence[Value], iv: Value, other: Sequence[Value], other_iv: Value) -> bool:
    """Whether subscripts in two loops are equal at the same iteration, and different at others."""
    return iv in at and all(
        (a is iv and b is other_iv) or (a is b and a is not iv)
        for a, b in zip(at, other, strict=True)
    )


class ValueNumbers:
    """What one loop computes of what another does: equal values of iterations with one number.

    ``constant(memref)`` says whether nothing writes ``memref`` from one loop to the other.
    """

    def __init__(self, loop: Op, constant: Callable[[Value], bool]) -> None:
        self.constant = constant
        self.iv = For(loop).index
        self.known: dict[Hashable, Value] = {}
        for op in loop.body.ops[:-1]:
            number = self._number(op, {})
            if number is not None:
                self.known.setdefault(number, op.result)

    def matched(self, loop: Op) -> dict[Value, Value]:
        """For values of ``loop``, those of the first loop that are equal."""
        found = {For(loop).index: self.iv}
        for op in loop.body.ops[:-1]:
            number = self._number(op, found)
            value = self.known.get(number) if number is not None else None
            if value is not None:
                found[op.result] = value
        return found

    def _number(self, op: Op, found: dict[Value, Value]) -> Hashable | None:
        if op.regions or len(op.results) != 1:
            return None
        read = op.name == "memref.load" and self.constant(memory(op)[0])
        if not (read or OPS[op.name].pure):
            return None
        return identity(op, [found.get(v, v) for v in op.operands])

"""Loops that run side by side: the same iterations, one loop after the other in one block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType
from weft.ir.writes import written_by
from weft.passes.constants import key

# What takes many times longer than an addition.
_CHEAP = {"math.absf", "math.absi", "math.floor", "math.ceil", "math.trunc", "math.roundeven",
          "math.copysign", "math.fma", "math.isnan", "math.isinf", "math.ctpop"}  # fmt: skip
_DEAR = {"arith.remf", "arith.floordivsi", "arith.divui", "arith.remsi", "arith.remui"}


def is_dear(op: Op, body: Block) -> bool:
    """Whether ``op``, in the ``body`` of a loop, is worth a load from a cache to avoid. A division
    by what does not change in the loop is not (see ``reciprocal``)."""
    if op.name == "arith.divf":
        divisor = op.operands[1]
        return divisor in body.args or divisor.owner in body.ops
    return op.name in _DEAR or (op.name.startswith("math.") and op.name not in _CHEAP)


def touches(op: Op) -> Iterator[tuple[Op, Value]]:
    """Each operation in ``op``, itself included, that reads or writes memory, with the memref."""
    for inner in (op, *(o for region in op.regions for o in walk(region))):
        if inner.name == "memref.load":
            yield inner, inner.operands[0]
        elif (memref := written_by(inner)) is not None:
            yield inner, memref


def blocks(block: Block) -> Iterator[Block]:
    """``block`` and all blocks in it."""
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks(region)


def siblings(block: Block) -> list[list[int]]:
    """The places in ``block`` of loops that have the same bounds and step, in groups of two or
    more."""
    groups: dict[Hashable, list[int]] = {}
    for place, op in enumerate(block.ops):
        if op.name == "scf.for":
            groups.setdefault(tuple(op.operands[:3]), []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def is_plain(function: Function) -> bool:
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


class Numbers:
    """What one loop computes of what another does: equal values of iterations with one number.

    ``constant(memref)`` says whether nothing writes ``memref`` from one loop to the other.
    """

    def __init__(self, loop: Op, constant: Callable[[Value], bool]) -> None:
        self.constant = constant
        self.iv = loop.regions[0].args[0]
        self.known: dict[Hashable, Value] = {}
        for op in loop.regions[0].ops[:-1]:
            identity = self._identity(op, {})
            if identity is not None:
                self.known.setdefault(identity, op.result)

    def matched(self, loop: Op) -> dict[Value, Value]:
        """For values of ``loop``, those of the first loop that are equal."""
        found = {loop.regions[0].args[0]: self.iv}
        for op in loop.regions[0].ops[:-1]:
            identity = self._identity(op, found)
            value = self.known.get(identity) if identity is not None else None
            if value is not None:
                found[op.result] = value
        return found

    def _identity(self, op: Op, found: dict[Value, Value]) -> Hashable | None:
        if op.regions or len(op.results) != 1:
            return None
        read = op.name == "memref.load" and self.constant(op.operands[0])
        if not (read or OPS[op.name].pure):
            return None
        if isinstance(op.result.type, MemRefType):
            return None
        if not op.operands:
            return op.name, key(op.attrs["value"], op.result.type)
        operands = [found.get(v, v) for v in op.operands]
        if OPS[op.name].commutative and id(operands[0]) > id(operands[1]):
            operands = [operands[1], operands[0], *operands[2:]]
        return op.name, op.result.type.name, *operands, *op.attrs.values()

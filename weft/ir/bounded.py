"""Loops that have no more iterations than a tensor has elements.

A nest is one if its indices run along dimensions of a tensor, each along another one; or if one of
its bodies accesses an element that is another one in each iteration: each index stands, perhaps
with a distance added, in a subscript of its own. The others may be of any length: what bounds them
is a number that somebody passes, or that memory holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from weft.ir.core import Block, Op, Value, below, walk
from weft.ir.trips import NUMBERS, trip_count
from weft.ir.views import accessed_by, constant_of, loop_of, made_by, memory

LOOPS = ("scf.for", "scf.while")
FEW = 4096  # iterations that are few, whatever is in them


def is_bounded(nest: Sequence[Op]) -> bool:
    """Whether ``nest``, loops each of which stands in the one before, is bounded by a tensor's
    elements: ``scf.parallel``, ``scf.for`` and ``scf.while`` operations, the outermost first."""
    if any("independent" in op.attrs for op in nest):  # a part of a short strip
        return True
    nest = [op for op in nest if "short" not in op.attrs]
    if any(op.name == "scf.while" for op in nest):
        return False
    along: dict[Value, set[tuple[Value, int]]] = {}
    fixed = 1
    for op in nest:
        for index, (lower, upper, step) in zip(loop_of(op).indices, loop_of(op).axes, strict=True):
            low, high, by = map(constant_of, (lower, upper, step))
            if low is None or high is None or by is None:
                along[index] = _dimensions(upper) if _is_positive(lower) else set()
            else:
                fixed *= trip_count(NUMBERS, int(low), int(high), int(by))
    if fixed > FEW:
        return False
    if not along or _are_of_one(list(along.values())):
        return True
    inside = set(walk(nest[0].body))
    blocks = {nest[0].body, *(region for op in inside for region in op.regions)}

    def is_fixed(value: Value) -> bool:
        """Whether ``value`` is one number in all iterations."""
        return value.owner not in inside | blocks or constant_of(value) is not None

    def index_of(value: Value) -> Value:
        """``value`` without what is added and fixed."""
        while (op := made_by(value, "arith.addi") or made_by(value, "arith.subi")) in inside:
            moving = [v for v in op.operands if not is_fixed(v)]
            if len(moving) != 1:
                break
            value = moving[0]
        return value

    accesses = (memory(op)[1] for loop in nest for op in loop.body.ops if accessed_by(op))
    return any({*map(index_of, found)} >= {*along} for found in accesses)


def _are_of_one(along: Sequence[set[tuple[Value, int]]]) -> bool:
    """Whether there is a tensor with a dimension of its own for each of ``along``."""
    for memref in {memref for memref, _ in along[0]}:
        axes = [{axis for m, axis in found if m is memref} for found in along]
        if any(len({*choice}) == len(axes) for choice in itertools.product(*axes)):
            return True
    return False


def _dimensions(value: Value) -> set[tuple[Value, int]]:
    """The dimensions that ``value`` is at most, but for constants that are added."""
    found, asked, open_ = set[tuple[Value, int]](), set[Value](), [value]
    while open_:
        value = open_.pop()
        op = value.op
        if op is None or value in asked:
            continue
        asked.add(value)
        match op.name:
            case "memref.dim":
                found.add((op.operand, op.attrs["axis"]))
            case "arith.minsi":
                open_ += op.operands
            case "arith.addi" | "arith.subi":
                distance = constant_of(op.right)
                if isinstance(distance, int) and abs(distance) <= FEW:
                    open_.append(op.left)
            case _:
                pass
    return found


def _is_positive(lower: Value) -> bool:
    """Whether a loop may be known to start at 0 or later. Where it starts at another loop's index,
    that one is taken to be one of a tensor."""
    asked, open_ = set[Value](), [lower]
    while open_:
        lower = open_.pop()
        number, most = constant_of(lower), made_by(lower, "arith.maxsi")
        if most is not None and lower not in asked:
            open_ += most.operands
        elif number >= 0 if number is not None else lower.op is None:
            return True
        asked.add(lower)
    return False


def has_few(op: Op) -> bool:
    """Whether ``op`` runs few iterations where tensors have few elements, and none with loops in
    it. ``op``: a parallel loop, or something else with regions."""
    if any(inner.name in LOOPS for inner in below(op)):
        return False
    return all(is_bounded([inner]) for inner in below(op) if inner.name == "scf.parallel")


def unbounded(block: Block) -> Iterator[Op]:
    """The serial loops in ``block`` that alone, or with those inside them, may take long."""
    for op in serial_loops(block):
        if not all(is_bounded(nest) for nest in _nests(op)):
            yield op
        for region in op.regions:
            yield from unbounded(region)


def _nests(op: Op) -> Iterator[list[Op]]:
    """The nests that ``op`` is the outermost loop of, each down to an innermost one."""
    inner = [loop for region in op.regions for loop in serial_loops(region)]
    if not inner:
        yield [op]
    for loop in inner:
        yield from ([op, *nest] for nest in _nests(loop))


def serial_loops(block: Block) -> Iterator[Op]:
    """The serial loops in ``block`` that stand in no other one of it."""
    for op in block.ops:
        if op.name in LOOPS:
            yield op
        else:
            for region in op.regions:
                yield from serial_loops(region)

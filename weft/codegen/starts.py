"""Which of the numbers that a loop starts from LLVM must take for numbers of their own.

The terms of a sum may be added in any order (``reassociate``), its start is no term: beside a first
term that is a multiple of it, LLVM would make (1 + c) * x of x + c * x, which differs where x is
infinite.
"""

from __future__ import annotations

from weft.ir.core import Block, Op, Value, walk
from weft.ir.types import f16, f32, f64
from weft.ir.views import For, constant_of

# What hands a sum on to a name of its own. (A number that a loop keeps as a factor reaches no sum.)
_HAND_ON = {"arith.select", "arith.extf", "arith.truncf", "arith.negf", "arith.addf", "arith.subf",
            "arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"}  # fmt: skip


def fenced(op: Op) -> list[bool]:
    """Of each number that the loop ``op`` carries, whether sums in it start from it."""
    view = For(op)
    if not any("reassociate" in inner.attrs for inner in walk(op.body)):
        return [False] * len(view.inits)
    return [_is_own(value) and _are_added_to(view, {arg})
            for value, arg in zip(view.inits, view.carried, strict=True)]  # fmt: skip


def _is_own(value: Value) -> bool:
    """Whether LLVM could make a factor of it. Other types are carried as their bits."""
    known = value.scalar not in (f16, f32, f64) or constant_of(value) is not None
    return not known and not _is_handed_on(value)


def _is_handed_on(value: Value) -> bool:
    """Whether a loop around carries it for a loop inside and nothing else."""
    block = value.owner
    if not isinstance(block, Block):
        return False
    return sum(v is value for inner in walk(block) for v in inner.operands) == 1


def _are_added_to(view: For, sums: set[Value]) -> bool:
    """Whether the loop adds a sum's terms to one of ``sums`` or to what they are handed on as, in
    its later turns, too; all of these are put there."""
    known = -1
    while known < len(sums):
        known = len(sums)
        turns = zip(view.carried, view.yielded, view.inits, strict=True)
        sums.update(arg for arg, *of in turns if not sums.isdisjoint(of))
        if _adds_to(view.op.body, sums):
            return True
    return False


def _adds_to(block: Block, sums: set[Value]) -> bool:
    for op in block.ops:
        given = not sums.isdisjoint(op.operands)
        if given and "reassociate" in op.attrs:
            return True
        ends: list[list[Value]] = []
        if op.name == "scf.for":
            view = For(op)
            if _are_added_to(view, sums):
                return True
            ends = [view.yielded, view.inits]
        elif op.name == "scf.if":
            if any(_adds_to(region, sums) for region in op.regions):
                return True
            ends = [region.ops[-1].operands for region in op.regions]
        elif op.regions:  # it is not asked what it hands on
            inside = (inner for region in op.regions for inner in walk(region))
            if given or any(not sums.isdisjoint(inner.operands) for inner in inside):
                return True
        if given and op.name in _HAND_ON:
            sums.update(op.results)
        for result, *of in zip(op.results, *ends, strict=True) if ends and op.results else ():
            if not sums.isdisjoint(of):
                sums.add(result)
    return False

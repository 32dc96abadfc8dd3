"""Loads of what their iteration overwrites afterwards, where a condition is around one of the two.

LLVM makes masked loads of loads under a condition. Where such a number is chosen by the same mask,
InstCombine has the masked load carried out where it is chosen, in place of where it was, and does
not look at the stores between: ``select(mask, masked.load(p, mask, _), x)`` becomes
``masked.load(p, mask, x)``, so that ``if c: v = a[i]; a[i] = 0`` would give the 0. A ``freeze`` of
what was loaded is no masked load: that stays where it is.
"""

from __future__ import annotations

from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import accessed_by

_LOOPS = ("scf.parallel", "scf.for", "scf.while")
_Access = tuple[Op, Value, bool, bool]  # the array, whether it stores, whether under a condition


def overwritten(function: Function) -> dict[Op, bool]:
    """The operations that load so, and whether a condition is around one of the two."""
    found: dict[Op, bool] = {}
    _accesses(function.body, False, found)
    return found


def _accesses(block: Block, guarded: bool, found: dict[Op, bool]) -> list[tuple[_Access, bool]]:
    """What ``block`` accesses, in order, and whether outside of loops in it."""
    listed: list[tuple[_Access, bool]] = []
    for op in block.ops:
        if (accessed := accessed_by(op)) is not None:
            memref = _memory(accessed)
            if op.name != "memref.store":
                listed.append(((op, memref, False, guarded), True))
            if op.name != "memref.load":
                listed.append(((op, memref, True, guarded), True))
        for region in op.regions:
            if op.name not in _LOOPS:
                listed += _accesses(region, guarded or op.name == "scf.if", found)
                continue
            inside = _accesses(region, "tail" in op.attrs, found)  # which is under a mask
            _note([access for access, _ in inside], {a[0] for a, own in inside if own}, found)
            listed += [((o, m, s, g or guarded), False) for (o, m, s, g), _ in inside]
    return listed


def _note(accesses: list[_Access], own: set[Op], found: dict[Op, bool]) -> None:
    """Notes the loads of a loop's body, those in ``own``, that a later access overwrites."""
    stored: dict[Value, bool] = {}  # by what comes later, and whether under a condition
    for op, memref, stores, guarded in reversed(accesses):
        if stores:
            stored[memref] = stored.get(memref, False) or guarded
        elif op in own and memref in stored:
            found[op] = found.get(op, False) or guarded or stored[memref]


def _memory(memref: Value) -> Value:
    while memref.op is not None and memref.op.name == "memref.flatten":
        memref = memref.op.operand
    return memref

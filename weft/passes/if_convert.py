"""If-conversion of sums: a sum under a condition adds always, and what changes nothing if not."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter, chosen_by, identity
from weft.ir.core import Function, Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, index
from weft.ir.views import If, made_by

MOST = 8  # operations of both arms
_SUMS = ("arith.addf", "arith.addi")
_EXPENSIVE = ("arith.divf", "arith.remf", "arith.floordivsi", "arith.divui", "arith.remsi",
              "arith.remui")  # fmt: skip


def if_convert(function: Function) -> Function:
    """``if c: s += v`` in a serial loop becomes ``s += v if c else -0.0``, with a choice between
    values (``arith.select``) where nothing is loaded for them: loops that do nothing but sum are
    known as such, and vectorise. Both arms together have a few operations.

    Adding -0.0 (0 to integers) leaves every number, also 0.0, -0.0, NaN and infinity, what it was.

    Precondition: a verified function. Non-goals: loads are not carried out where the condition
    does not hold; products of what is loaded there (one operation multiplies and adds, as they
    are); sums that the branch uses otherwise.
    """
    if not any(_convertible(op) for op in walk(function.body)):  # nor is what is around them
        return function
    return Rewriter(_visit).function(function)


_Sum = tuple[Value, str, list[Value | None]]  # see ``_sum``


def _convertible(op: Op) -> dict[int, _Sum]:
    """The sums of a small branch that adds always, by the number of their result."""
    if op.name != "scf.if" or not op.results or not _is_small(op):
        return {}
    found = {k: sums for k in range(len(op.results)) if (sums := _sum(op, k)) is not None}
    always = _is_pure(op)
    parts = [v for *_, added in found.values() for v in added if v is not None]
    products = any(made_by(v, "arith.mulf") is not None for v in parts)
    return {} if products and not always else found


def _visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    found = _convertible(op)
    if not found:
        return None
    always = _is_pure(op)
    for k, (total, name, parts) in found.items():
        for region, part in zip(op.regions, parts, strict=True):
            if part is None:
                with rewriter.at(region):
                    last = region.ops.pop()
                    type = total.scalar
                    part = rewriter.constant(identity(name.removeprefix("arith."), type), type)
                    region.ops.append(last)
            else:
                region.ops = [o for o in region.ops if o is not region.terminator.operands[k].op]
            region.terminator.operands[k] = part
    inner = [o for region in op.regions for o in region.ops[:-1]]
    if always:
        rewriter.block.ops += inner
        arms = [If(op).arms(k) for k in range(len(op.results))]
        chosen = [chosen_by(rewriter, If(op).condition, *pair) for pair in arms]
    else:
        chosen = rewriter.append(op).results
    return [
        rewriter.op(found[k][1], found[k][0], value) if k in found else value
        for k, value in enumerate(chosen)
    ]


def _is_pure(op: Op) -> bool:
    return all(OPS[o.name].pure for region in op.regions for o in region.ops[:-1])


def _is_small(op: Op) -> bool:
    """Whether the arms of a branch have a few operations and loads, and nothing else."""
    inner = [o for region in op.regions for o in region.ops[:-1] if o.name != "arith.constant"]
    plain = (OPS[o.name].pure or o.name == "memref.load" for o in inner)
    heavy = (o.name.startswith("math.") or o.name in _EXPENSIVE for o in inner)
    return len(inner) <= MOST and all(plain) and not any(heavy)


def _sum(op: Op, place: int) -> _Sum | None:
    """The sum that the branch ``op`` hands on as a result, its addition, and what each arm adds
    (None: nothing); None if it is no such sum."""
    ends = If(op).arms(place)
    own = [_added(region.ops, end) for region, end in zip(op.regions, ends, strict=True)]
    inside = {v for region in op.regions for o in walk(region) for v in o.results}
    given = dict.fromkeys(v for add in own if add is not None for v in add.operands)
    for total in (v for v in given if v not in inside and _is_total(v)):
        parts: list[Value | None] = []
        for add, end in zip(own, ends, strict=True):
            if add is not None and total in add.operands:
                parts.append(add.right if add.left is total else add.left)
            elif end is total:
                parts.append(None)
        names = {add.name for add in own if add is not None}
        if len(parts) == 2 and len(names) == 1:
            return total, names.pop(), parts
    return None


def _is_total(value: Value) -> bool:
    """Whether ``value`` is what a loop carries, or came to be before in its turn."""
    carried = value.op is None or value.op.name in _SUMS
    return carried and not isinstance(value.type, MemRefType) and value.type is not index


def _added(ops: Sequence[Op], end: Value) -> Op | None:
    """The addition among ``ops`` that makes ``end``, of which nothing else asks."""
    add = end.op
    if add is None or add.name not in _SUMS or add not in ops:
        return None
    users = sum(v is end for o in ops for inner in below(o) for v in inner.operands)
    return add if users == 1 else None

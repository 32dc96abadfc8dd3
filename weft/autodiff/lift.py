"""Accumulations out of sequential loops: one addition to memory after the loop."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.types import ScalarType


def lift(function: Function, names: Collection[str]) -> Function:
    """Where a ``scf.for`` accumulates into one element of one of ``names``, it sums in a carried value,
    and adds that to the element when it is done (and has run at all).

    Precondition: nothing reads, in the loop, what is accumulated into: so it is with gradients. Lifting makes more loops' sums liftable:
    inner loops come first.
    """
    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op.name != "scf.for":
            return None
        body = op.regions[0]
        inside = _defined(body)
        sums = [o for o in body.ops if _is_sum(o, names) and not inside & set(o.operands[1:])]
        if not sums:
            return None
        count = len(op.results)
        carried: dict[Op, Value] = {}
        for o in sums:
            type = o.operands[0].type
            assert isinstance(type, ScalarType)
            op.operands.append(rewriter.constant(0.0, type))
            body.args.append(Value(type, "", body))
            op.results.append(Value(type, "", op))
            carried[o] = body.args[-1]
        kept: list[Op] = []
        finals: list[Value] = []
        for o in body.ops[:-1]:
            if o in carried:
                operands = [carried[o], o.operands[0]]
                add = Op("arith.addf", operands, [o.operands[0].type], span=o.span)
                kept.append(add)
                finals.append(add.result)
            else:
                kept.append(o)
        end = body.terminator
        end.operands = [*end.operands, *finals]
        body.ops[:] = [*kept, end]
        rewriter.append(op)
        ran = rewriter.op("arith.cmpi", op.operands[0], op.operands[1], predicate="slt")
        branch = rewriter.if_(ran)
        with rewriter.at(branch.regions[0]):
            for o, value in zip(sums, op.results[count:], strict=True):
                rewriter.atomic_rmw("addf", value, o.operands[1], o.operands[2:])
            rewriter.do("scf.yield")
        with rewriter.at(branch.regions[1]):
            rewriter.do("scf.yield")
        return op.results[:count]

    return Rewriter(visit).function(function)


def _is_sum(op: Op, names: Collection[str]) -> bool:
    return (op.name == "memref.atomic_rmw" and op.attrs["kind"] == "addf"
            and op.operands[1].name in names)  # fmt: skip


def _defined(block: Block) -> set[Value]:
    found = set(block.args)
    for op in walk(block):
        found.update(op.results)
        for region in op.regions:
            found.update(region.args)
    return found

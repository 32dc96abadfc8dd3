"""Accumulations out of sequential loops: one addition to memory after the loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.autodiff.fibre import same_sizes
from weft.index.access import Access, accesses
from weft.index.bounds import in_range
from weft.index.expression import Dim, atom
from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, defined
from weft.ir.views import For, constant_of, memory


def accumulate_after_loop(function: Function, names: Collection[str]) -> Function:
    """Where a ``scf.for`` accumulates into one element of one of ``names``, it sums in a carried
    value, and adds that to the element when it is done (and has run at all).

    Precondition: nothing reads, in the loop, what is accumulated into: so it is with gradients.
    Lifting makes more loops' sums liftable: inner loops come first.
    """
    ranges = iter([_in_range(a) for a in accesses(function) if a.kind == "rmw"])
    safe: set[Op] = set()  # whose subscripts are in range whether or not the loop runs

    def visit(op: Op, rewriter: Rewriter) -> list[Value] | None:
        if op.name == "memref.atomic_rmw" and next(ranges):
            safe.add(op)
        if op.name != "scf.for":
            return None
        body = op.body
        inside = defined([body])
        sums = [o for o in body.ops if _is_sum(o, names) and not inside & {*memory(o)[1]}]
        if not sums:
            return None
        count = len(op.results)
        carried: dict[Op, Value] = {}
        for o in sums:
            (value,) = memory(o)[2]
            type = value.scalar
            op.operands.append(rewriter.constant(0.0, type))
            body.args.append(Value(type, "", body))
            op.results.append(Value(type, "", op))
            carried[o] = body.args[-1]
        kept: list[Op] = []
        finals: list[Value] = []
        for o in body.ops[:-1]:
            if o in carried:
                (value,) = memory(o)[2]
                add = Op("arith.addf", [carried[o], value], [value.type], span=o.span)
                kept.append(add)
                finals.append(add.result)
            else:
                kept.append(o)
        end = body.terminator
        end.operands = [*end.operands, *finals]
        body.ops[:] = [*kept, end]
        rewriter.append(op)
        for o, value in zip(sums, op.results[count:], strict=True):
            _add(rewriter, o, value, safe, For(op).bounds[:2])
        return op.results[:count]

    return Rewriter(visit).function(function)


def _add(
    rewriter: Rewriter, op: Op, value: Value, safe: set[Op], ends: Sequence[Value]
) -> None:  # fmt: skip
    """Accumulates ``value`` where ``op`` did: only if the loop ran, unless that does not matter."""
    memref, subscripts, _ = memory(op)
    add = Op(op.name, [value, memref, *subscripts], [v.type for v in op.results], dict(op.attrs),
             span=op.span)  # fmt: skip
    if op in safe or _runs(*ends):
        rewriter.append(add)
        if op in safe:
            safe.add(add)
        return
    with rewriter.when(rewriter.op("arith.cmpi", *ends, predicate="slt")):
        rewriter.append(add)


def _runs(lower: Value, upper: Value) -> bool:
    """Whether the loop certainly runs at all: its ends are numbers."""
    first, end = constant_of(lower), constant_of(upper)
    return first is not None and end is not None and first < end


def _in_range(access: Access) -> bool:
    """Proves from the loops alone that the subscripts are valid."""
    same = same_sizes(access)
    moved = access.substitute(same)
    return all(
        in_range(moved, poly, atom(Dim(access.memref, axis)), isl=False)
        for axis, poly in enumerate(moved.subscripts)
    )


def _is_sum(op: Op, names: Collection[str]) -> bool:
    return (op.name == "memref.atomic_rmw" and op.attrs["kind"] == "addf"
            and memory(op)[0].name in names)  # fmt: skip

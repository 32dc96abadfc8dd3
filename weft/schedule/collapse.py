"""Which neighbouring loops may be counted as one.

Where rows lie behind each other in memory, and a loop over ``j`` and ``k`` uses its indices only in
subscripts ``[..., j + s, k]``, element (j, k) of every access is n * j + k elements from the first:
the loop may run with j = 0 alone and k up to the product of both lengths. That makes one long loop
of many short ones (the channels of an image). It pays wherever the lengths agree, which is known at
run time only: loops get the attribute `collapse`, and their code asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.views import For, Parallel, is_constant, memory

_ADDITIVE = ("arith.addi", "arith.subi")
_ACCESSES = ("memref.load", "memref.store", "memref.atomic_rmw")


def collapsed(function: Function, parallel: Op | None) -> Mapping[Op, Mapping[str, int]]:
    """For each loop: how many of the loops inside of it may be counted as one with the one around
    them, the innermost first; of the ``parallel`` loop, indices."""
    found = {op: {"collapse": 1} for op in walk(function.body) if op.name == "scf.for"
             and _over_runs(op)}  # fmt: skip
    if parallel is not None and (depth := _depth(parallel)):
        found[parallel] = {"collapse": depth}
    return found


def _over_runs(op: Op) -> bool:
    inner = nested(op)
    if inner is None or not inner.attrs.get("independent"):
        return False
    first, count, step = For(inner).bounds
    fixed = is_constant(first, 0) and is_constant(step, 1) and is_constant(For(op).step, 1)
    return (
        fixed and count.owner not in op.body.ops
        and bool(rows(op.body, For(op).index, For(inner).index))
    )  # fmt: skip


def _depth(parallel: Op) -> int:
    loop, body = Parallel(parallel), parallel.body
    last = len(loop.indices) - 1
    for depth in range(last):
        axis = last - 1 - depth
        fixed = all(is_constant(step, 1) for step in loop.steps[axis : axis + 2])
        memrefs = rows(body, loop.indices[axis], loop.indices[axis + 1], behind=depth)
        if not fixed or memrefs is None or not is_constant(loop.lowers[axis + 1], 0):
            return depth
    return last


def rows(body: Block, outer: Value, inner: Value, behind: int = 0) -> list[Value] | None:
    """The memrefs whose rows must follow each other for ``outer`` and ``inner`` to become one
    index; None if the two are used for more than subscripts.

    ``behind`` is the number of subscripts that come after ``inner``'s. The rows of a memref of rank
    r follow each other if axis ``r - 1 - behind`` is as long as the loop over ``inner`` (of layout
    "contiguous"), or if the stride of the axis before it is the product of the lengths of the loops
    from ``inner`` on ("unit"). ``inner`` must start at 0, and both must have step 1.
    """
    moved = {outer}  # outer, and outer plus what does not depend on either
    found: dict[Value, None] = {}
    for op in walk(body):
        uses_outer = [k for k, value in enumerate(op.operands) if value in moved]
        uses_inner = [k for k, value in enumerate(op.operands) if value is inner]
        if not uses_outer and not uses_inner:
            continue
        if op.name in _ADDITIVE and uses_outer == [0] and not uses_inner:
            moved.add(op.result)
            continue
        if op.name == "arith.addi" and uses_outer == [1] and not uses_inner:
            moved.add(op.result)
            continue
        place = len(op.operands) - 1 - behind
        if op.name not in _ACCESSES or uses_inner != [place] or uses_outer != [place - 1]:
            return None
        memref, subscripts, _ = memory(op)
        type = memref.memref
        if len(subscripts) < behind + 2 or type.layout == "strided" or type.shape is not None:
            return None
        found[memref] = None
    return list(found) or None


def accessed(body: Block, inner: Value) -> list[Value]:
    """The memrefs of which ``body`` accesses elements by the index ``inner``."""
    ops = (op for op in walk(body) if op.name in _ACCESSES and inner in op.operands)
    return list(dict.fromkeys(memory(op)[0] for op in ops))


def nested(loop: Op) -> Op | None:
    """The loop that holds all accesses of ``loop``, right inside it; None if there is none."""
    inner = [op for op in loop.body.ops if op.name == "scf.for"]
    if len(inner) != 1 or loop.results or inner[0].results:
        return None
    rest = [op for op in loop.body.ops if op is not inner[0]]
    return None if any(op.regions or op.name.startswith("memref.") for op in rest) else inner[0]

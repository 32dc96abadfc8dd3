"""Unroll: every turn of a serial loop is written out.

Subscripts of local arrays become numbers, so that the arrays stay in registers: a subscript that a
turn computes would put them into memory.
"""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.views import For, constant_of, memory
from weft.schedule.nest import loops_of

MOST_TURNS = 64
_MOST_ELEMENTS = 128  # of local arrays in registers
_MOST_OPS = 8192  # of all turns that are written out


def written_out(op: Op, rewriter: Rewriter) -> list[Value]:
    """Writes every turn of the old loop ``op``; gives what stands for its results."""
    loop, values = For(op), list(map(rewriter.lookup, For(op).inits))
    first = int(constant_of(loop.lower) or 0)
    for k in range(turns(op)):
        index = rewriter.constant(first + k, loop.index.scalar)
        values = rewriter.inline(op.body, [index, *values])
    return values


def turns(loop: Op) -> int:
    """How many turns a loop has whose bounds are numbers, and that goes by one; else -1."""
    lower, upper, step = map(constant_of, For(loop).bounds)
    return -1 if lower is None or upper is None or step != 1 else max(int(upper - lower), 0)


def for_registers(parallel: Op, each: int = _MOST_ELEMENTS) -> tuple[str, ...]:
    """The loops that keep local arrays in memory, if writing them out keeps these in registers.
    ``each``: elements of an array, at most."""
    names = {For(op).index: (name, op) for name, op in loops_of(parallel).items()
             if 0 < turns(op) <= MOST_TURNS and "unroll" not in op.attrs}  # fmt: skip
    arrays = [op.result for op in walk(parallel.body) if op.name == "memref.alloca"]
    inner = list(walk(parallel.body))
    found: dict[Op, str] = {}
    left = _MOST_ELEMENTS
    for array in arrays:
        indices = [v for op in inner if array in op.operands for v in leaves(op, array, names)]
        elements = 1
        for size in array.memref.shape or (left + 1,):
            elements *= size
        if not indices or elements > min(each, left) or not all(v in names for v in indices):
            continue
        left -= elements
        found |= {names[v][1]: names[v][0] for v in indices}
    if size_of(parallel.body, found) > _MOST_OPS:
        return ()
    return tuple(name for name in loops_of(parallel) if name in found.values())


def leaves(op: Op, array: Value, known: Collection[Value]) -> list[Value]:
    """What the subscripts of an access depend on, but for numbers."""
    accesses = ("memref.load", "memref.store", "memref.atomic_rmw")
    if op.name not in accesses or memory(op)[0] is not array:
        return [array]  # it is handed on
    found, waiting = [], list(memory(op)[1])
    while waiting:
        value = waiting.pop()
        if value in known or value.op is None or not OPS[value.op.name].pure:
            found.append(value)
        else:
            waiting += value.op.operands
    return found


def size_of(block: Block, unrolled: Collection[Op]) -> int:
    """How many operations ``block`` has when these loops are written out."""
    return sum(
        1 + sum(size_of(region, unrolled) for region in op.regions)
        * (turns(op) if op in unrolled else 1)
        for op in block.ops
    )  # fmt: skip

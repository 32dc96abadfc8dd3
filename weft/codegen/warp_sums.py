"""Additions of a warp's threads to elements that they share: by shuffles, then by few of them.

One such addition is a sum over lanes, which one lane adds to memory. Several of a block of code, to
elements of one array that nothing else accesses in between, are summed together: each lane hands on
half of the sums that it has, to the lane that keeps that half, until each has one (reduce-scatter,
by recursive halving: Thakur, Rabenseifner and Gropp, "Optimization of collective communication
operations in MPICH", 2005). Terms of a sum are added in the same order either way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.codegen.arith import RULES
from weft.codegen.emit import Emitter, llvm_type, memory_type
from weft.codegen.llvm import address
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import ScalarType
from weft.ir.views import accessed_by, memory

WARP = 32
_MOST = 16  # additions that are carried out together
Handed = Callable[[str, int], str]  # what the lane so far apart has in place of a value


def together(function: Function) -> dict[Op, list[Op]]:
    """Of the marked additions those that may be carried out together, by the last one of them."""
    found: dict[Op, list[Op]] = {}
    noalias = bool(function.attrs.get("noalias", True))

    def visit(block: Block) -> None:
        waiting: dict[Value, list[Op]] = {}
        for op in block.ops:
            memref = accessed_by(op)
            if "warp_aggregate" in op.attrs and memref is not None:
                if not noalias:
                    continue
                waiting.setdefault(memref, []).append(op)
                if len(waiting[memref]) == _MOST:
                    _close(waiting, [memref], found)
            elif memref is not None:
                _close(waiting, [memref], found)
            elif not OPS[op.name].pure:
                _close(waiting, [*waiting], found)
            for region in op.regions:
                visit(region)
        _close(waiting, [*waiting], found)

    visit(function.body)
    return found


def _close(
    waiting: dict[Value, list[Op]], memrefs: Sequence[Value], found: dict[Op, list[Op]]
) -> None:  # fmt: skip
    for memref in memrefs:
        ops = waiting.pop(memref, [])
        if len(ops) > 1:
            found[ops[-1]] = ops


def add_up(e: Emitter, ops: Sequence[Op], labels: Sequence[str], lane: str, handed: Handed) -> None:
    """Carries out additions of one type to one array, at the first of ``labels`` all lanes of a
    warp together, of which this one is ``lane``, at the second each by itself."""
    shared, apart, one, done = labels
    t, every = ops[0].result.scalar, [[e.name(v) for v in op.operands] for op in ops]
    e.start(shared)
    sums, pointers = list[str](), list[str]()
    for op, operands in zip(ops, every, strict=True):
        view, subscripts, (value,) = e.access(op, operands)
        sums.append(value)
        pointers.append(address(e, view, subscripts))
    total, pointer, mine = _scattered(e, t, sums, pointers, lane, handed)
    e.branch(mine, one, done)
    e.start(one)
    element = memory(ops[0])[0].memref.element
    place = f"ptr {pointer}, {memory_type(element)} {total} {e.ordering}, align {element.bytes}"
    e.inst(f"atomicrmw fadd {place}")
    e.jump(done)
    e.start(apart)
    for op, operands in zip(ops, every, strict=True):
        RULES["memref.atomic_rmw"](e, op, operands)
    e.jump(done)
    e.start(done)


def _scattered(
    e: Emitter, t: ScalarType, sums: list[str], pointers: list[str], lane: str, handed: Handed
) -> tuple[str, str, str]:
    """The lane's sum, where it belongs, and whether this lane is to add it there."""
    ty, count = llvm_type(t), len(sums)
    size = 1 << (count - 1).bit_length()
    sums = [*sums, *[e.literal(-0.0, t)] * (size - count)]
    pointers = [*pointers, *pointers[:1] * (size - count)]
    far, half = WARP // 2, size // 2
    while half:
        bit = e.inst(f"and i32 {lane}, {far}")
        up = e.inst(f"icmp ne i32 {bit}, 0")
        for k in range(half):
            a, b = sums[k], sums[k + half]
            given = e.inst(f"select i1 {up}, {ty} {a}, {ty} {b}")
            kept = e.inst(f"select i1 {up}, {ty} {b}, {ty} {a}")
            sums[k] = e.inst(f"fadd {ty} {kept}, {handed(given, far)}")
            a, b = pointers[k], pointers[k + half]
            pointers[k] = e.inst(f"select i1 {up}, ptr {b}, ptr {a}")
        half, far = half // 2, far // 2
    total, left = sums[0], far
    while left:
        total, left = e.inst(f"fadd {ty} {total}, {handed(total, left)}"), left // 2
    rest = e.inst(f"and i32 {lane}, {2 * far - 1 if far else 0}")
    mine = e.inst(f"icmp eq i32 {rest}, 0")
    if count < size:
        number = e.inst(f"udiv i32 {lane}, {WARP // size}")
        mine = e.inst(f"and i1 {mine}, {e.inst(f'icmp ult i32 {number}, {count}')}")
    return total, pointers[0], mine

"""Accumulations of a sequential loop's turns into few elements: in a local array, then in memory.

``for t: for j: gx[i, j] += ...``, with ``i`` of the parallel loop and a known number of ``j``, adds
to the same elements in each turn ``t``. A thread has sums of its own for these, and adds them to
memory once, behind the loop: written out, they are registers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from weft.ir.builder import Builder, Rewriter
from weft.ir.core import Block, Function, Op, Value, defined, walk
from weft.ir.types import compute_type, i1
from weft.ir.views import For, is_constant, memory
from weft.schedule.unroll import turns

_MOST = 16  # elements of all such arrays
_Place = tuple[Value, tuple[Value | int, ...]]  # a gradient and subscripts; turns of an inner loop


def accumulate_in_arrays(function: Function, names: Collection[str]) -> Function:
    """``function``, in which each iteration of the parallel loop adds to elements of ``names`` that
    all turns of a sequential loop share when that is done, if it has run at all.

    Precondition: nothing reads, in the loop, what is accumulated into: so it is with gradients.
    """
    made = Rewriter().function(function)
    for parallel in (op for op in made.body.ops if op.name == "scf.parallel"):
        _in_front(parallel)
        found: dict[_Place, list[tuple[Op, Op, Block, list[Value]]]] = {}
        for loop in parallel.body.ops:
            if loop.name != "scf.for" or turns(loop) >= 0:
                continue
            inside = defined([loop.body])
            for op, block, around in _sums(loop, names):
                subscripts = [_subscript(v, inside, around) for v in memory(op)[1]]
                if None not in subscripts and any(isinstance(s, int) for s in subscripts):
                    place = memory(op)[0], tuple(s for s in subscripts if s is not None)
                    found.setdefault(place, []).append((loop, op, block, memory(op)[1]))
        left = _MOST
        for (memref, subscripts), sums in found.items():
            shape = tuple(s for s in subscripts if isinstance(s, int))
            if math.prod(shape) <= left:
                left -= math.prod(shape)
                _moved(parallel, memref, subscripts, shape, sums)
    return made


def _in_front(parallel: Op) -> None:
    """Local arrays that each turn of a loop has for itself are made once: a turn that makes one is
    not loaded ahead of."""
    moved: list[Op] = []
    for op in walk(parallel.body):
        for region in op.regions if op is not parallel else ():
            mine = [o for o in region.ops if o.name == "memref.alloca" and not o.operands]
            region.ops[:] = [o for o in region.ops if o not in mine]
            moved += mine
    parallel.body.ops[:0] = moved


def _sums(
    loop: Op, names: Collection[str], around: Sequence[Op] = ()
) -> Iterator[tuple[Op, Block, Sequence[Op]]]:
    """The accumulations into ``names`` that every turn carries out, and the loops in ``loop``
    around each."""
    for op in loop.body.ops:
        if op.name == "scf.for" and turns(op) > 0:
            yield from _sums(op, names, [*around, op])
        elif op.name == "memref.atomic_rmw" and op.attrs["kind"] == "addf":
            memref = memory(op)[0]
            element = memref.memref.element
            if memref.name in names and compute_type(element) is element:
                yield op, loop.body, around


def _subscript(
    value: Value, inside: Collection[Value], around: Sequence[Op]
) -> Value | int | None:  # fmt: skip
    """A value from in front of the loop, how many turns the loop has whose index it is, or
    neither."""
    if value not in inside:
        return value
    loop = next((op for op in around if For(op).index is value), None)
    first = loop is not None and is_constant(For(loop).lower, 0)
    return turns(loop) if loop is not None and first else None


def _moved(
    parallel: Op, memref: Value, subscripts: Sequence[Value | int], shape: tuple[int, ...],
    sums: Sequence[tuple[Op, Op, Block, list[Value]]],
) -> None:  # fmt: skip
    body, span = parallel.body, sums[0][1].span
    front, behind = Builder(Block(), span), Builder(Block(), span)
    array = front.alloca(memref.memref.element, shape)
    zero = front.constant(0.0, memref.memref.element)
    front.each_element(array, lambda at: front.store(zero, array, at))
    for _, op, block, at in sums:
        mine = [v for v, s in zip(at, subscripts, strict=True) if isinstance(s, int)]
        add = Builder(Block(), op.span)
        total = add.op("arith.addf", add.load(array, mine), memory(op)[2][0])
        add.store(total, array, mine)
        place = block.ops.index(op)
        block.ops[place : place + 1] = add.block.ops
    ran = behind.constant(False, i1)
    for loop in dict.fromkeys(loop for loop, *_ in sums):
        some = behind.op("arith.cmpi", *For(loop).bounds[:2], predicate="slt")
        ran = behind.op("arith.ori", ran, some)

    def added(at: list[Value]) -> None:
        number = iter(at)
        there = [next(number) if isinstance(s, int) else s for s in subscripts]
        behind.atomic_rmw("addf", behind.load(array, at), memref, there)

    with behind.when(ran):
        behind.each_element(array, added)
    body.ops[:0] = front.block.ops
    body.ops[-1:-1] = behind.block.ops

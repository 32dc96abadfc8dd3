"""Partial sums: a serial loop that does nothing but sum, as several sums side by side.

Each addition to a sum waits for the one before it. A register tile of several vectors has as many
sums, and a processor always one that waits for nothing; where a tile is one vector, its turns are
dealt out to ``PARTS`` sums, which are added up in a fixed order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Op, Value, below, walk
from weft.ir.ops import OPS
from weft.ir.views import For, is_constant

PARTS = 8  # an addition takes 3 to 4 cycles, and 2 begin in each


def only_sums(loop: Op, sums: Collection[Op]) -> bool:
    """Whether the serial ``loop`` carries nothing but sums of floats, each by one addition that is
    one of ``sums``, which may be taken in any order; and writes to nothing."""
    inside, view = loop.body.ops[:-1], For(loop)
    if not view.carried or not is_constant(view.step, 1):
        return False
    if not all(map(reads_only, inside)):
        return False
    adds = [_addition(loop, arg, end) for arg, _, end, _ in view.rows]
    used = [v for op in walk(loop.body) for v in op.operands]
    return all(
        add in sums and used.count(arg) == used.count(end) == 1
        for add, arg, end in zip(adds, view.carried, view.yielded, strict=True)
    )


def reads_only(op: Op) -> bool:
    """Whether ``op`` computes and loads, in branches, too, and does nothing else."""
    every = [inner for inner in below(op) if inner.name not in ("memref.load", "scf.if")]
    return all(OPS[inner.name].pure or OPS[inner.name].terminator for inner in every)


def _addition(loop: Op, carried: Value, yielded: Value) -> Op | None:
    op = yielded.op
    if op is None or op not in loop.body.ops or op.name != "arith.addf":
        return None
    return op if carried in op.operands else None


def partial_sums(build: Rewriter, loop: Op) -> None:
    """Writes ``loop``, of which ``only_sums`` holds. Groups of turns that are not whole go to the
    first sums, in the order of the loop."""
    view, many = For(loop), build.index(PARTS)
    lower, upper, one = (build.lookup(v) for v in view.bounds)
    inits = [build.lookup(v) for v in view.inits]
    nothing = [build.constant(-0.0, v.scalar) for _ in range(PARTS - 1) for v in inits]
    count = build.op("arith.subi", upper, lower, overflow="nsw")
    count = build.op("arith.maxsi", build.op("arith.floordivsi", count, many), build.index(0))
    groups = build.for_(build.index(0), count, one, [*inits, *nothing], **loop.attrs)
    groups.span, width = loop.span, len(inits)
    with build.at(groups.body):
        number, *state = groups.body.args
        first = build.op("arith.muli", number, many, overflow="nsw")
        first = build.op("arith.addi", lower, first, overflow="nsw")
        for part in range(PARTS):
            index = build.op("arith.addi", first, build.index(part), overflow="nsw")
            own = slice(part * width, (part + 1) * width)
            state[own] = _turn(build, loop, index, state[own])
        build.do("scf.yield", *state)
    totals = list(groups.results)
    while len(totals) > width:  # the second half to the first
        half = len(totals) // 2
        pairs = zip(totals[:half], totals[half:], strict=True)
        totals = [build.op("arith.addf", a, b) for a, b in pairs]
    begin = build.op("arith.muli", count, many, overflow="nsw")
    begin = build.op("arith.addi", lower, begin, overflow="nsw")
    rest = build.for_(begin, upper, one, totals, **loop.attrs)
    rest.span = loop.span
    build.region(loop.body, rest.body)
    build.stand_for(loop.results, rest.results)


def _turn(build: Rewriter, loop: Op, index: Value, state: Sequence[Value]) -> list[Value]:
    return build.inline(loop.body, [index, *state])

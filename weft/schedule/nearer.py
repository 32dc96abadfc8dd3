"""What registers cannot hold ahead is in the second cache when it is loaded: somebody asked for it.

**Chunks** are several turns of a serial loop, written out: threads keep much of them, and they load
much. A chunk waits for what it loads first, and a loop inside of it waits in every turn, ten times
as long for memory as for the second cache. So each chunk asks for what the next one loads. **Rows**
that several blocks keep in their registers leave no room for others: while these blocks compute and
wait for each other, memory has nothing to do. So they ask for the rows that come next. Neither
changes a number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.views import For, Parallel, constant_of, memory
from weft.ir.writes import written
from weft.schedule.cooperate import Members
from weft.schedule.grid import cluster
from weft.schedule.spmd import Bounds
from weft.schedule.unroll import turns
from weft.values import frozen

_LINE = 128  # bytes that come together
_UNROLLED = 4
_PROCESSORS = 128  # of a GPU with clusters, about


@frozen
class Far:
    """A load of a chunk: directly in it, or in every turn of its loop ``inner``, of which ``step``
    turns load what comes together."""

    load: Op
    inner: Op | None = None
    step: int = 1


def far(function: Function, loop: Op, known: Collection[Op]) -> list[Far]:
    """What a turn of ``loop`` loads that comes from far away, but for ``known`` loads."""
    changing = written(function)

    def asked(load: Op, inner: Op | None) -> bool:
        if load.name != "memref.load" or load in known:
            return False
        memref, subscripts, _ = memory(load)
        used = [_leaves(v, loop, inner) for v in subscripts]
        return (
            memref in function.args and memref not in changing and None not in used
            and any(For(loop).index in found for found in used if found)
            and (inner is None or any(For(inner).index in found for found in used if found))
        )  # fmt: skip

    found = [Far(op) for op in loop.body.ops if asked(op, None)]
    for inner in loop.body.ops:
        if inner.name == "scf.for" and turns(inner) > 1 and "rare" not in inner.attrs:
            found += [Far(op, inner, _together(op, inner, loop))
                      for op in inner.body.ops if asked(op, inner)]  # fmt: skip
    return found


def ask(work: Rewriter, loop: Op, wanted: Collection[Far], position: Value) -> None:
    """Asks for what is ``wanted`` of the turn of ``loop`` at ``position``."""
    work.replacement[For(loop).index] = position
    for each in wanted:
        outer = _needed(each, loop.body.ops)
        for op in outer:
            work.rewrite(op)
        if each.inner is None:
            _prefetch(work, each.load)
            continue
        lower, upper, _ = map(constant_of, For(each.inner).bounds)
        like = For(each.inner).index
        first, last, step = (
            work.constant(int(n), like.scalar) for n in (lower or 0, upper or 0, each.step)
        )
        made = work.for_(first, last, step, unroll=_UNROLLED)
        with work.at(made.body):
            work.replacement[like] = made.body.args[0]
            for op in _needed(each, each.inner.body.ops):
                work.rewrite(op)
            _prefetch(work, each.load)
            work.do("scf.yield")


def ask_for_next(
    work: Members, rows: Collection[tuple[Value, Sequence[Value]]],
    places: Sequence[tuple[Value, Value]], bounds: Sequence[Bounds],
) -> None:  # fmt: skip
    """Asks for those of ``rows`` (the array, and subscripts before the last one) that are loaded by
    the group which comes after this one on its multiprocessors. ``places``: of the member's
    vectors in a row, and whether they are in it."""
    (index, *others), ((_, upper, step), *_) = Parallel(work.outer).indices, bounds
    changing = written(work.old)
    asked = [(memref, outer) for memref, outer in rows if index in outer and memref not in changing]
    if others or not asked:
        return
    here, clusters = work.lookup(index), _PROCESSORS // cluster(work.count)
    later = work.add(here, work.mul(step, work.number(clusters, step)), "nsw")

    def nearer() -> None:
        for memref, outer in asked:
            subscripts = [later if v is index else work.lookup(v) for v in outer]
            for place, there in places:
                given = work.lookup(memref), *subscripts, place
                work.branch(there, lambda g=given: work.do("gpu.prefetch", *g))

    work.branch(work.compare("slt", later, upper), nearer)


def _prefetch(work: Rewriter, load: Op) -> None:
    memref, subscripts, _ = memory(load)
    work.do("gpu.prefetch", work.lookup(memref), *map(work.lookup, subscripts))


def _needed(each: Far, ops: Collection[Op]) -> list[Op]:
    """Those of ``ops`` that compute where ``each`` loads."""
    waiting, found = list(memory(each.load)[1]), set[Op]()
    while waiting:
        op = waiting.pop().op
        if op is not None and OPS[op.name].pure and op not in found:
            found.add(op)
            waiting += op.operands
    return [op for op in ops if op in found]


def _leaves(subscript: Value, loop: Op, inner: Op | None) -> set[Value] | None:
    """What ``subscript`` is computed of that is no operation of the chunk; None where that is more
    than the chunk's number, a turn of ``inner``, and what stays as it is."""
    found, waiting, seen = set[Value](), [subscript], set[Value]()
    inside = {*loop.body.ops, *(inner.body.ops if inner is not None else ())}
    carried = {v for op in (loop, inner) if op is not None for v in For(op).carried}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.op not in inside:
            found.add(value)
        elif not OPS[value.op.name].pure or value.op.regions:
            return None
        else:
            waiting += value.op.operands
    return None if found & carried else found


def _together(load: Op, inner: Op, loop: Op) -> int:
    """How many turns of ``inner`` load from one line: of elements that follow each other, or of
    groups of so many as a remainder says."""
    memref, subscripts, _ = memory(load)
    index, apart = For(inner).index, 1
    for subscript in reversed(subscripts):
        if index in (_leaves(subscript, loop, inner) or ()):
            return max(_LINE // (apart * memref.memref.element.bytes), 1)
        rest = subscript.op
        count = constant_of(rest.right) if rest and rest.name == "arith.remsi" else None
        if count is None:
            return 1
        apart *= int(count)
    return 1

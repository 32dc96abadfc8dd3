"""Running a two-dimensional loop block by block where neighbours in memory are far apart in it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, walk
from weft.ir.types import index
from weft.ir.views import For, Parallel, is_constant, memory
from weft.schedule.variation import Variation

HEIGHT = 32  # iterations of the outer index in a block: of float32, two lines of the cache
WIDTH = 32  # iterations of the innermost index in a block


def tile(function: Function) -> Function:
    """A parallel loop whose last two indices are i and j, and that accesses ``[j, i]`` in one place
    and ``[i, j]`` in another (a transposition), is run in blocks of ``HEIGHT`` times ``WIDTH``
    iterations: what one iteration brings into the cache, others use before it is evicted. Strided
    memrefs count as transposed: their layout is known at run time only.

    The last two parallel indices become those of blocks, with the loops over a block inside. The
    inner one is marked ``independent``: its iterations are those of a parallel loop.

    Precondition: a verified function, after races were checked; both indices have step 1.
    Non-goals: reductions; bodies with loops (see ``schedule.default_cpu``); further indices.
    """
    for op in function.body.ops:
        if op.name == "scf.parallel" and _pays(op):
            return _Blocker(op).function(function)
    return function


def _pays(parallel: Op) -> bool:
    body, steps = parallel.body, Parallel(parallel).steps
    if len(steps) < 2 or parallel.attrs["kinds"]:
        return False
    if not all(is_constant(step, 1) for step in steps[-2:]):
        return False
    if any(op.regions and op.name != "scf.if" for op in walk(body)):
        return False
    outer, inner = (Variation(body, {iv: 1}).uniform for iv in body.args[-2:])
    along, across = False, False
    for op in walk(body):
        if op.name not in ("memref.load", "memref.store"):
            continue
        memref, subscripts, _ = memory(op)
        if memref.memref.shape is not None or not subscripts:
            continue
        by_outer = [not outer(v) for v in subscripts]
        by_inner = [not inner(v) for v in subscripts]
        if memref.memref.layout == "strided":
            across |= any(by_outer) and any(by_inner)
        elif by_outer[-1] and not by_inner[-1] and any(by_inner):
            across = True
        along |= by_inner[-1] and not by_outer[-1] and any(by_outer)
    return along and across


class _Blocker(Rewriter):
    def __init__(self, parallel: Op) -> None:
        super().__init__(around=self._around)
        self.loop = parallel

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        lowers, uppers, steps = (list(map(self.lookup, vs)) for vs in Parallel(op).ranges)
        self.span = op.span
        sizes = [self.constant(n, index) for n in (HEIGHT, WIDTH)]
        new = self.parallel(lowers, uppers, [*steps[:-2], *sizes])
        body, block = op.body, new.body
        self.stand_for(body.args[:-2], block.args[:-2])
        with self.at(block):
            ends = []
            for begin, size, upper in zip(block.args[-2:], sizes, uppers[-2:], strict=True):
                begin.name = "block"
                ends.append(self.op("arith.minsi", self.op("arith.addi", begin, size), upper))
            outer = self.for_(block.args[-2], ends[0], steps[-2])
            with self.at(outer.body):
                inner = self.for_(block.args[-1], ends[1], steps[-1], independent=True)
                self.stand_for(body.args[-2:], [For(outer).index, For(inner).index])
                with self.at(inner.body):
                    for inside in body.ops[:-1]:
                        self.rewrite(inside)
                    self.do("scf.yield")
                self.do("scf.yield")
            self.do("scf.reduce")
        return []

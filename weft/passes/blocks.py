"""Running a two-dimensional loop block by block where neighbours in memory are far apart in it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import MemRefType, index
from weft.passes.constants import constant_of

HEIGHT = 32  # iterations of the outer index in a block: of float32, two lines of the cache
WIDTH = 32  # iterations of the innermost index in a block

_FIRST_SUBSCRIPT = {"memref.load": 1, "memref.store": 2}


def blocks(function: Function) -> Function:
    """A parallel loop whose last two indices are i and j, and that accesses ``[j, i]`` in one place
    and ``[i, j]`` in another (a transposition), is run in blocks of ``HEIGHT`` times ``WIDTH``
    iterations: what one iteration brings into the cache, others use before it is evicted. Strided
    memrefs count as transposed: their layout is known at run time only.

    The last two parallel indices become those of blocks, with the loops over a block inside. The
    inner one is marked ``independent``: its iterations are those of a parallel loop.

    Precondition: a verified function, after races were checked; both indices have step 1.
    Non-goals: reductions; bodies with loops (``codegen.tile`` looks at those); further indices.
    """
    for op in function.body.ops:
        if op.name == "scf.parallel" and _pays(op):
            return _Blocker(op).function(function)
    return function


def _pays(parallel: Op) -> bool:
    dims, body = parallel.attrs["dims"], parallel.regions[0]
    if dims < 2 or parallel.attrs["kinds"]:
        return False
    if any(constant_of(step) != 1 for step in parallel.operands[3 * dims - 2 : 3 * dims]):
        return False
    if any(op.regions and op.name != "scf.if" for op in walk(body)):
        return False
    outer, inner = _dependents(body, body.args[-2]), _dependents(body, body.args[-1])
    along, across = False, False
    for op in walk(body):
        if op.name not in _FIRST_SUBSCRIPT:
            continue
        first = _FIRST_SUBSCRIPT[op.name]
        memref, subscripts = op.operands[first - 1].type, op.operands[first:]
        assert isinstance(memref, MemRefType)
        if memref.shape is not None or not subscripts:
            continue
        by_outer = [v in outer for v in subscripts]
        by_inner = [v in inner for v in subscripts]
        if memref.layout == "strided":
            across |= any(by_outer) and any(by_inner)
        elif by_outer[-1] and not by_inner[-1] and any(by_inner):
            across = True
        along |= by_inner[-1] and not by_outer[-1] and any(by_outer)
    return along and across


def _dependents(body: Block, root: Value) -> set[Value]:
    """``root`` and what pure operations compute from it."""
    found = {root}
    for op in walk(body):
        if OPS[op.name].pure and any(v in found for v in op.operands):
            found.update(op.results)
    return found


class _Blocker(Rewriter):
    def __init__(self, parallel: Op) -> None:
        super().__init__(lambda op, rewriter: None, around=self._around)
        self.loop = parallel

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        dims = op.attrs["dims"]
        lowers, uppers, steps = (
            [self.lookup(v) for v in op.operands[k * dims : (k + 1) * dims]] for k in range(3)
        )
        self.span = op.span
        sizes = [self.constant(n, index) for n in (HEIGHT, WIDTH)]
        new = self.parallel(lowers, uppers, [*steps[:-2], *sizes])
        body, block = op.regions[0], new.regions[0]
        for before, after in zip(body.args[:-2], block.args, strict=False):
            after.name = before.name
            self.replacement[before] = after
        with self.at(block):
            ends = []
            for begin, size, upper in zip(block.args[-2:], sizes, uppers[-2:], strict=True):
                begin.name = "block"
                ends.append(self.op("arith.minsi", self.op("arith.addi", begin, size), upper))
            outer = self.for_(block.args[-2], ends[0], steps[-2])
            with self.at(outer.regions[0]):
                inner = self.for_(block.args[-1], ends[1], steps[-1])
                inner.attrs["independent"] = True
                for before, loop in zip(body.args[-2:], (outer, inner), strict=True):
                    loop.regions[0].args[0].name = before.name
                    self.replacement[before] = loop.regions[0].args[0]
                with self.at(inner.regions[0]):
                    for inside in body.ops[:-1]:
                        self.rewrite(inside)
                    self.do("scf.yield")
                self.do("scf.yield")
            self.do("scf.reduce")
        return []

"""A device loop over samples: what ``vmap`` makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Function, Op, Value, below
from weft.ir.ops import OPS
from weft.ir.types import MemRefType
from weft.ir.views import Parallel, accessed_by, subscripted
from weft.ir.writes import written


def batch(function: Function, levels: Sequence[Sequence[int]], layouts: Sequence[str]) -> Function:
    """``function`` for each sample of one or more batches, as further parallel indices, outermost.

    ``levels``: for each argument the batches that it has samples of, as numbers from 0 in rising
    order: that many dimensions come before its own; and their layouts (a scalar has neither).

    A parallel loop gets the indices before its own. One that reduces, or whose bounds are loaded
    from a batch, runs in order within an iteration of a loop over samples.

    Precondition: a verified function as lowered or derived, not yet scheduled, in which what is
    written has samples of all batches.
    """
    return _Batched(function, levels, layouts).made


class _Batched(Rewriter):
    def __init__(
        self, function: Function, levels: Sequence[Sequence[int]], layouts: Sequence[str]
    ) -> None:
        super().__init__(self._visit, self._around)
        types = [
            MemRefType(a.memref.element, a.memref.rank + len(own), layout)
            if isinstance(a.type, MemRefType) else a.type
            for a, own, layout in zip(function.args, levels, layouts, strict=True)
        ]  # fmt: skip
        attrs = {name: v for name, v in function.attrs.items() if name != "block_dim"}
        new = Function(f"{function.name}_batched", types, [a.name for a in function.args], attrs,
                       function.span)  # fmt: skip
        self.levels = {a: own for a, own in zip(new.args, levels, strict=True) if own}
        self.count = 1 + max(level for own in self.levels.values() for level in own)
        self.samples: list[Value] = []  # the indices of the sample, where there is one
        self.replacement.update(zip(function.args, new.args, strict=True))
        self.block, self.span = new.body, function.span
        batched = {a for a, own in zip(function.args, levels, strict=True) if own}
        self.whole = not all(_is_common(op, batched) for op in function.body.ops)
        self.extents = self._extents([self.lookup(v) for v in written(function)])
        if self.whole:
            loop = self._parallel([], [], [])
            with self.at(loop.body):
                self.samples = loop.body.args
                for op in function.body.ops[:-1]:
                    self.rewrite(op)
                self.do("scf.reduce")
            self.do("func.return")
        else:
            for op in function.body.ops:
                self.rewrite(op)
        self.made = new

    def _extents(self, preferred: Sequence[Value]) -> list[Value]:
        """The sizes of the batches: of what is written, where there is that."""
        found: dict[int, tuple[Value, int]] = {}
        for memref in (*preferred, *self.levels):
            for axis, level in enumerate(self.levels.get(memref, ())):
                found.setdefault(level, (memref, axis))
        return [self.op("memref.dim", m, axis=axis) for _, (m, axis) in sorted(found.items())]

    def _parallel(
        self, lowers: Sequence[Value], uppers: Sequence[Value], steps: Sequence[Value]
    ) -> Op:
        zero, one = self.index(0), self.index(1)
        loop = self.parallel([*[zero] * self.count, *lowers], [*self.extents, *uppers],
                             [*[one] * self.count, *steps])  # fmt: skip
        for k, iv in enumerate(loop.body.args[: self.count]):
            iv.name = f"sample{k or ''}"
        return loop

    def _around(self, op: Op, _: Rewriter) -> Sequence[Value] | None:
        if op.name != "scf.parallel":
            return None
        self.span = op.span
        view = Parallel(op)
        if self.whole:
            axes = [(self.lookup(a), self.lookup(b), self.lookup(c)) for a, b, c in view.axes]
            return self._in_order(op, axes, [], list(map(self.lookup, view.inits)))
        loop = self._parallel(*([self.lookup(v) for v in side] for side in view.ranges))
        loop.attrs |= {n: v for n, v in op.attrs.items() if n not in loop.attrs}
        own = loop.body.args[self.count :]
        for before, after in zip(view.indices, own, strict=True):
            after.name = before.name
        with self.at(loop.body):
            self.samples = loop.body.args[: self.count]
            self.inline(op.body, own)
            self.do("scf.reduce")
        self.samples = []
        return []

    def _in_order(
        self, op: Op, axes: Sequence[tuple[Value, Value, Value]], at: list[Value],
        carried: Sequence[Value],
    ) -> Sequence[Value]:  # fmt: skip
        """The parallel loop ``op`` as serial loops along ``axes``, and what it reduces into."""
        if not axes:
            found = self.inline(op.body, at)
            kinds = Parallel(op).kinds
            return [self.op(f"arith.{kind}", before, own)
                    for kind, before, own in zip(kinds, carried, found, strict=True)]  # fmt: skip
        loop = self.for_(*axes[0], carried)
        iv, *inside = loop.body.args
        iv.name = Parallel(op).indices[len(at)].name
        with self.at(loop.body):
            self.do("scf.yield", *self._in_order(op, axes[1:], [*at, iv], inside))
        return loop.results

    def _visit(self, op: Op, _: Rewriter) -> None:
        memref = accessed_by(op)
        if memref is not None:
            subscripted(op, [self.samples[level] for level in self.levels.get(memref, ())])
        elif op.name == "memref.dim":
            op.attrs["axis"] += len(self.levels.get(op.operand, ()))


def _is_common(op: Op, batched: set[Value]) -> bool:
    """Whether ``op``, at the top of a function, may happen once for all samples, or is a loop that
    gets them as indices."""
    if op.name == "scf.parallel":
        return not Parallel(op).kinds
    return all(
        OPS[o.name].pure or o.name == "func.return"
        or (o.name == "memref.load" and accessed_by(o) not in batched) for o in below(op)
    )  # fmt: skip

"""Elements of memory as values that structured operations hand on: what scalar promotion needs."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Op, Value

Element = tuple[Value, ...]  # a memref and subscripts


class Carrying(Rewriter):
    """Rewrites what accesses ``current`` elements; ``carry`` hands these through loops and
    branches."""

    current: dict[Element, Value]  # of each element that is carried: what it is here

    def carry(self, op: Op, carried: Sequence[Element]) -> Sequence[Value]:
        """Rebuilds ``op``, an ``scf.for`` or ``scf.if``, with what becomes of the elements
        ``carried`` as further results; gives those that it had."""
        is_loop, before = op.name == "scf.for", [self.current[element] for element in carried]
        more = [v.type for v in before]
        copy = self.copy(op)
        new = Op(op.name, copy.operands + before * is_loop, [r.type for r in op.results] + more,
                 copy.attrs, [Block([a.type for a in r.args] + more * is_loop) for r in op.regions],
                 op.span)  # fmt: skip
        for old, region in zip(op.regions, new.regions, strict=True):
            count = len(old.args)
            self.stand_for(old.args, region.args[:count])
            self.current |= zip(carried, region.args[count:] if is_loop else before, strict=True)
            with self.at(region):
                self.fill_from(old)
            region.terminator.operands += [self.current[element] for element in carried]
        self.append(new)
        count = len(op.results)
        for element, value in zip(carried, new.results[count:], strict=True):
            value.name = element[0].name
            self.current[element] = value
        return new.results[:count]

    def fill_from(self, old: Block) -> None:
        """Rebuilds the operations of a region."""
        for inner in old.ops:
            self.rewrite(inner)

"""What several loops compute alike, kept in memory that is about to be overwritten."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.views import For, memory
from weft.passes.same_range_loops import (
    Touched,
    ValueNumbers,
    is_expensive,
    may_reuse_memory,
    same_range_loops,
    walk_blocks,
)
from weft.values import frozen


def reuse_output_as_scratch(function: Function) -> Function:
    """Where loops of the same iterations, one after the other, compute the same expensive value (an
    ``exp``), and the last of them stores to an element for each iteration, the first one stores the
    value there, and the others load it.

    Nobody can see it: iterations that look at the element meanwhile would race with the store that
    is there already.
    Precondition: a verified function after ``cse`` and ``merge_updates``; arguments do not overlap.
    Non-goals: elements that are not next to each other; memory of its own for such values.
    """
    if not may_reuse_memory(function):
        return function
    for _ in range(8):
        found = _first(function)
        if found is None:
            break
        function = _Keeper(found).function(function)
    return function


@frozen
class _Kept:
    """``maker`` computes the value, which ``store`` overwrites at ``at``; ``users`` compute it
    again: (operation, index of its loop)."""

    maker: Op
    memref: Value
    at: Sequence[Value]
    iv: Value  # of the loop whose subscripts ``at`` are
    maker_iv: Value
    users: dict[Op, Value]


def _first(function: Function) -> _Kept | None:
    pairs = (
        _kept(block, touched, first, last, group)
        for block in walk_blocks(function.body) if (groups := same_range_loops(block))
        for touched in (Touched(block),) for group in groups
        for k, last in enumerate(group) for first in group[:k]
    )  # fmt: skip
    return next((found for found in pairs if found is not None), None)


def _kept(
    block: Block, touched: Touched, first: int, last: int, group: Sequence[int]
) -> _Kept | None:
    early, late = block.ops[first], block.ops[last]
    numbers: ValueNumbers | None = None
    ops, iv = early.body.ops, For(early).index
    for store in late.body.ops:
        if store.name != "memref.store":
            continue
        memref, at, _ = memory(store)
        late_iv = For(late).index
        if touched.within(memref, first, last) != [last] or len(touched.at(last, memref)) > 1:
            continue
        type = memref.memref
        if type.layout not in ("contiguous", "unit") or at.count(late_iv) != 1:
            continue
        if at[-1] is not late_iv or any(_made_in(late, v) for v in at[:-1]):
            continue
        if not _before(block, first, [memref, *at[:-1]]):  # a local array may be made later
            continue
        if numbers is None:
            changed = touched.changed(first, last)
            numbers = ValueNumbers(early, lambda m, c=changed: m not in c)
        equal = numbers.matched(late)
        values = set(equal.values())
        made = [o for o in ops if len(o.results) == 1 and o.result in values
                and o.result.type is type.element and is_expensive(o, early.body)]  # fmt: skip
        if not made:
            continue
        maker = made[-1]
        users: dict[Op, Value] = {}
        for place in group:
            if first < place <= last:
                loop = block.ops[place]
                match = numbers.matched(loop)
                body = loop.body.ops
                for o in body[: body.index(store)] if loop is late else body:
                    if o.results and match.get(o.results[0]) is maker.result:
                        users[o] = For(loop).index
        if users:
            return _Kept(maker, memref, at, late_iv, iv, users)
    return None


def _made_in(loop: Op, value: Value) -> bool:
    return value in loop.body.args or value.owner in loop.body.ops


def _before(block: Block, place: int, values: Sequence[Value]) -> bool:
    """Whether ``values`` are known at ``place`` in ``block``."""
    later = {v for o in block.ops[place:] for v in o.results}
    return not any(v in later for v in values)


class _Keeper(Rewriter):
    def __init__(self, kept: _Kept) -> None:
        super().__init__()
        self.kept = kept

    def rewrite(self, op: Op) -> None:
        kept = self.kept
        iv = kept.users.get(op)
        if iv is not None:
            self.span = op.span
            value = self.load(self.lookup(kept.memref), self._at(iv))
            value.name = op.result.name
            self.replacement[op.result] = value
            return
        super().rewrite(op)
        if op is kept.maker:
            self.store(self.lookup(op.result), self.lookup(kept.memref), self._at(kept.maker_iv))

    def _at(self, iv: Value) -> list[Value]:
        return [self.lookup(iv if v is self.kept.iv else v) for v in self.kept.at]

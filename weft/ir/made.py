"""What values are made of. Many ways may lead from one to another: each value is looked at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from weft.ir.core import Op, Value
from weft.ir.ops import OPS


def pure_parts(values: Iterable[Value], inside: Collection[Value]) -> set[Value] | None:
    """All that ``values`` are made of, down to what is not ``inside``; None where a part of it is
    not made by a pure operation."""
    found, open_ = set[Value](), [*values]
    while open_:
        value = open_.pop()
        if value in found:
            continue
        found.add(value)
        if value in inside:
            if value.op is None or value.op.regions or not OPS[value.op.name].pure:
                return None
            open_ += value.op.operands
    return found


def made_alike(a: Value, b: Value, alike: Callable[[Op, Op], bool]) -> bool:
    """Whether two values are one, or made by operations that are ``alike`` of operands that are."""
    asked, open_ = set[tuple[Value, Value]](), [(a, b)]
    while open_:
        a, b = pair = open_.pop()
        if a is b or pair in asked:
            continue
        asked.add(pair)
        if a.op is None or b.op is None or not alike(a.op, b.op):
            return False
        open_ += zip(a.op.operands, b.op.operands, strict=True)
    return True

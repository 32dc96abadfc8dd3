"""Numbers of the maps of turns, of which some are 0 or 1 in every turn: these cost nothing."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder
from weft.ir.core import Value

Entry = int | Value


def scaled(to: Builder, a: Entry, b: Entry) -> Entry:
    """The product."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    for one, other in ((a, b), (b, a)):
        if isinstance(one, int) and one in (0, 1):
            return other if one else 0
    return _of_two(to, "mul", a, b)


def summed(to: Builder, a: Entry, b: Entry) -> Entry:
    """The sum."""
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if 0 in (a, b):
        return b if a == 0 else a
    return _of_two(to, "add", a, b)


def _of_two(to: Builder, name: str, a: Entry, b: Entry) -> Value:
    like = a if isinstance(a, Value) else b
    assert isinstance(like, Value)
    return arithmetic(to, name, written(to, a, like), written(to, b, like))


def arithmetic(to: Builder, name: str, a: Value, b: Value) -> Value:
    """``name``, of floats or integers."""
    return to.op(f"arith.{name}{'f' if a.scalar.is_float else 'i'}", a, b)


def written(to: Builder, value: Entry, like: Value) -> Value:
    """As a value."""
    return to.constant(value, like.scalar) if isinstance(value, int) else value


def product_sum(to: Builder, a: Sequence[Entry], b: Sequence[Entry], start: Entry = 0) -> Entry:
    """``start``, and the products of neighbours, from the first on."""
    total = start
    for one, other in zip(a, b, strict=True):
        if isinstance(one, int) or isinstance(other, int) or total == 0:
            total = summed(to, scaled(to, one, other), total)
            continue
        added = written(to, total, one)
        if one.scalar.is_float:
            total = to.op("math.fma", one, other, added)
        else:
            total = to.op("arith.addi", to.op("arith.muli", one, other), added)
    return total

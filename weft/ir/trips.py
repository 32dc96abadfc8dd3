"""How many iterations a loop has: the one formula, for whatever a bound may be.

The interpreter's numbers, values of the IR, instructions of LLVM and polynomials each bring an
``Arithmetic``; none of them writes the formula a second time (``tests/test_structure.py``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Protocol, TypeVar

T = TypeVar("T")


class Arithmetic(Protocol[T]):
    """What a trip count is computed with."""

    def constant(self, value: T) -> int | None:
        """The number that ``value`` always is, if it is one."""
        ...

    def number(self, value: int) -> T: ...

    def op(self, name: str, a: T, b: T) -> T:
        """``addi``, ``subi``, ``maxsi`` or ``floordivsi``, the last of operands >= 0 only; and for
        ``whole_trip_count`` ``minui`` and ``divui``."""
        ...


def trip_count(arithmetic: Arithmetic[T], lower: T, upper: T, step: T) -> T:
    """``max(0, ceil((upper - lower) / step))``, for a step >= 1.

    The distance is clamped before it is divided, so a range that is reversed has no iterations
    whatever its step is, and products of counts are right. A sum with the step may need all bits
    of an unsigned number.
    """
    number, op = arithmetic.number, arithmetic.op
    first, last = arithmetic.constant(lower), arithmetic.constant(upper)
    if first is not None and last is not None:
        if last <= first:
            return number(0)
        length = number(last - first)
    else:
        length = op("maxsi", upper if first == 0 else op("subi", upper, lower), number(0))
    return steps_of(arithmetic, length, step)


def whole_trip_count(arithmetic: Arithmetic[T], lower: T, upper: T, step: T) -> T:
    """The trip count where the distance, or its sum with the step, may need all bits of an unsigned
    number: at most the largest signed one."""
    op = arithmetic.op
    return whole_steps_of(arithmetic, op("subi", op("maxsi", upper, lower), lower), step)


def trip_bound(arithmetic: Arithmetic[T], lower: T, upper: T, step: T) -> T:
    """The trip count as the bound of another loop, which has no iterations either where it is not
    positive. Without the clamp, bounds stay as affine as they are."""
    length = upper if arithmetic.constant(lower) == 0 else arithmetic.op("subi", upper, lower)
    return steps_of(arithmetic, length, step)


def steps_of(arithmetic: Arithmetic[T], length: T, step: T) -> T:
    """``ceil(length / step)``: how many steps a distance takes, for a step >= 1."""
    number, op, by = arithmetic.number, arithmetic.op, arithmetic.constant(step)
    whole = arithmetic.constant(length)
    if by == 1:
        return length
    if by is not None and whole is not None:
        return number(-(-whole // by))
    less = op("subi", step, number(1)) if by is None else number(by - 1)
    return op("floordivsi", op("addi", length, less), step)


def whole_steps_of(arithmetic: Arithmetic[T], length: T, step: T) -> T:
    """The same of unsigned numbers; at most the largest signed one."""
    number, op = arithmetic.number, arithmetic.op
    first = op("minui", length, number(1))
    count = op("addi", op("divui", op("subi", length, first), step), first)
    return op("minui", count, number((1 << 63) - 1))


def unravel(number: T, extents: Iterable[T], divide: Callable[[T, T], tuple[T, T]]) -> Iterator[T]:
    """The index along each of ``extents``, the fastest one first, of what is ``number`` in a row of
    all, and then the index along what is outside of them. ``divide`` gives quotient and remainder
    of numbers that are not negative; it is asked when an index is wanted, not before."""
    for extent in extents:
        number, rest = divide(number, extent)
        yield rest
    yield number


class Numbers:
    """Python's own integers."""

    _OPS: ClassVar = {"addi": operator.add, "subi": operator.sub, "maxsi": max,
            "floordivsi": operator.floordiv}  # fmt: skip

    def constant(self, value: int) -> int:
        return value

    def number(self, value: int) -> int:
        return value

    def op(self, name: str, a: int, b: int) -> int:
        return self._OPS[name](a, b)


NUMBERS = Numbers()

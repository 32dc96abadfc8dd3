"""Which elements an access may touch in one launch: a box, from the numbers of the launch.

A box has the least and the greatest subscript of each dimension. It holds every element that is
touched, and others between them: conditions around the access are not looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from weft.index.access import Access
from weft.index.expression import Atom, Choice, Dim, Floor, Pick, Poly
from weft.ir.core import Value

Interval = tuple[int, int]  # both ends belong to it
Box = tuple[Interval, ...]
# What a leaf may be; a leaf that is missing may be anything.
Ranges = Mapping[Value | Dim, Interval]


def box(access: Access, numbers: Mapping[Value | Dim, int], shape: Sequence[int]) -> Box | None:
    """The box of ``access``; None where no iteration carries it out.

    ``numbers``: scalar arguments and extents. ``shape``: that of the array. A dimension whose
    subscript is not known, or does not stay inside of the array, counts as a whole.
    """
    ranges: dict[Value | Dim, Interval] = {v: (n, n) for v, n in numbers.items()}
    for loop in access.loops:
        least, end = _of(loop.lower, ranges), _of(loop.upper, ranges)
        if least is None or end is None:
            continue
        if least[0] >= end[1]:
            return None
        ranges[loop.iv] = least[0], end[1] - 1
    found: list[Interval] = []
    for poly, extent in zip(access.subscripts, shape, strict=True):
        if extent == 0:
            return None
        interval = _of(poly, ranges)
        inside = interval is not None and interval[0] >= 0 and interval[1] < extent
        found.append(interval if interval is not None and inside else (0, extent - 1))
    return tuple(found)


def boxes(
    accesses: Iterable[Access], numbers: Mapping[Value | Dim, int], shape: Sequence[int]
) -> list[Box]:
    """The boxes of several accesses of one array, each once."""
    found = (box(access, numbers, shape) for access in accesses)
    return list(dict.fromkeys(b for b in found if b is not None))


def disjoint(a: Box, b: Box) -> bool:
    """Whether two boxes of one array have no element in common."""
    return any(x[1] < y[0] or y[1] < x[0] for x, y in zip(a, b, strict=True))


def hull(every: Sequence[Box]) -> Box:
    """The least box that holds some boxes, of which there is at least one."""
    return tuple(
        (min(low for low, _ in sides), max(high for _, high in sides))
        for sides in zip(*every, strict=True)
    )


def _of(poly: Poly | None, ranges: Ranges) -> Interval | None:
    if poly is None:
        return None
    low = high = 0
    for monomial, factor in poly.terms.items():
        term: Interval = factor, factor
        for atom in monomial:
            other = _of_atom(atom, ranges)
            if other is None:
                return None
            term = _product(term, other)
        low, high = low + term[0], high + term[1]
    return low, high


def _product(a: Interval, b: Interval) -> Interval:
    ends = [x * y for x, y in itertools.product(a, b)]
    return min(ends), max(ends)


def _of_atom(atom: Atom, ranges: Ranges) -> Interval | None:
    match atom:
        case Floor(numerator, divisor):
            top, by = _of(numerator, ranges), _of(divisor, ranges)
            if top is None or by is None or by[0] <= 0:
                return None
            ends = [x // y for x, y in itertools.product(top, by)]
            return min(ends), max(ends)
        case Pick(kind, left, right):
            x, y = _of(left, ranges), _of(right, ranges)
            if x is None or y is None:
                return None
            choose = min if kind == "min" else max
            return choose(x[0], y[0]), choose(x[1], y[1])
        case Choice(_, left, right):
            x, y = _of(left, ranges), _of(right, ranges)
            return None if x is None or y is None else (min(x[0], y[0]), max(x[1], y[1]))
        case _:
            return ranges.get(atom)

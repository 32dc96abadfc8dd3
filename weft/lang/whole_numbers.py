"""Functions of integers that are loops of others: formulas, as those of ``formulas.py`` are."""

from __future__ import annotations

from typing import Any

from weft.lang import math
from weft.lang.elements import whole
from weft.lang.loops import static


def math_gcd(x: Any, *others: Any) -> Any:
    """The greatest common divisor, as one of Python's ints: `math.gcd`."""
    found = abs(whole(x))
    for y in static(others):
        found = _gcd(found, whole(y))
    return found


def math_lcm(x: Any, *others: Any) -> Any:
    """The least common multiple, as one of Python's ints: `math.lcm`."""
    found = abs(whole(x))
    for y in static(others):
        found = lcm(found, whole(y))
    return found


def _gcd(x: Any, y: Any) -> Any:
    a, b = abs(x) | 0, abs(y) | 0  # which no float has
    while b != 0:
        a, b = b, a % b
    return a


def gcd(x: Any, *others: Any) -> Any:
    """The greatest common divisor of integers; never negative."""
    found = abs(x) | 0
    for y in static(others):
        found = _gcd(found, y)
    return found


def lcm(x: Any, *others: Any) -> Any:
    """The least common multiple of integers; 0 where one of them is."""
    found = abs(x) | 0
    for y in static(others):
        divisor = _gcd(found, y)
        found = abs(found // math.select(divisor == 0, 1, divisor) * y)
    return found


def isqrt(n: Any) -> Any:
    """The root of an integer, rounded down."""
    assert n >= 0, "`isqrt` of a negative integer"
    found, bits = (n | 0) * 0, 0
    while (n >> (2 * bits)) > 0:
        bits += 1
    better = 1 << bits
    while n > 0 and (found == 0 or better < found):  # Newton's method, from above
        found = better
        better = (found + n // found) >> 1
    return whole(found)


def factorial(n: Any) -> Any:
    """The product of the integers up to ``n``."""
    assert n >= 0, "`factorial` of a negative integer"
    found = 1
    for k in range(2, (n | 0) + 1):
        found *= k
    return found


def perm(n: Any, k: Any = None) -> Any:
    """How many ways there are to arrange ``k`` of ``n`` things (all of them without ``k``)."""
    count = n if static(k is None) else k
    assert math.min(n, count) >= 0, "`perm` of a negative integer"
    found = 1
    for taken in range(count | 0):
        found *= whole(n) - taken
    return found


def comb(n: Any, k: Any) -> Any:
    """How many ways there are to choose ``k`` of ``n`` things."""
    assert math.min(n, k) >= 0, "`comb` of a negative integer"
    things, chosen = whole(n), whole(k)
    least = math.min(chosen, things - chosen)
    found = 1
    for j in range(1, least + 1):
        divisor = _gcd(found, j)  # divided first: no product is larger than the result
        found = found // divisor * ((things - least + j) // (j // divisor))
    return math.select(chosen > things, 0, found)

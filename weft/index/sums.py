"""Sums over loop indices in closed form: how often something is carried out.

The sum of a polynomial over a range is a polynomial of its ends. Where a term has a minimum, a
maximum or a division of the index, the range is cut where that changes its form: at the place where
two sides are equal, by remainders. What is left of these are minima and maxima of the ends, so that
sums of sums are found in the same way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from weft.index.expression import (
    ONE,
    ZERO,
    Atom,
    Choice,
    Compare,
    Condition,
    Dim,
    Either,
    Floor,
    Monomial,
    Pick,
    Poly,
    atom,
    extreme,
    floor,
    nonnegative,
    number,
    parts,
    pick,
)
from weft.ir.core import Value
from weft.values import frozen

# An index, its least value and the value that it stays below.
Range = tuple[Value, Poly | None, Poly | None]
STEPS = 50_000  # some 2 us each


class UncountableError(Exception):
    """The sum is not found in closed form, or not in so many steps."""


@frozen
class Count:
    """The whole number ``poly / over``."""

    poly: Poly
    over: int = 1

    @property
    def number(self) -> int:
        """What it is where nothing in it is unknown."""
        constant = self.poly.constant
        assert constant is not None
        return constant // self.over

    def __add__(self, other: Count) -> Count:
        return count(self.poly.scaled(other.over) + other.poly.scaled(self.over),
                     self.over * other.over)  # fmt: skip

    def times(self, factor: Poly) -> Count:
        return count(self.poly * factor, self.over)

    def picked(self, other: Count, kind: str) -> Count:
        """The minimum or maximum of both."""
        left, right = self.poly.scaled(other.over), other.poly.scaled(self.over)
        return Count(pick("min" if kind == "min" else "max", left, right), self.over * other.over)


def count(poly: Poly, over: int) -> Count:
    """``poly / over``, reduced."""
    by = math.gcd(over, *poly.terms.values())
    return Count(Poly({m: f // by for m, f in poly.terms.items()}), over // by)


NOTHING = Count(ZERO)


# --------------------------------------------------------------------------- rewritten expressions
def rewritten(poly: Poly, change: Callable[[Atom], Poly | None]) -> Poly:
    """``poly`` with atoms replaced, however deep; None for those that stay. A ``Choice`` becomes a
    sum of what is chosen, times 1 or 0."""
    if all(isinstance(a, (Value, Dim)) and change(a) is None for a in poly.atoms()):
        return poly
    total = ZERO
    for monomial, factor in poly.terms.items():
        term = number(factor)
        for a in monomial:
            term = term * _rewritten(a, change)
        total = total + term
    return total


def _rewritten(a: Atom, change: Callable[[Atom], Poly | None]) -> Poly:
    new = change(a)
    if new is not None:
        return new
    match a:
        case Floor(numerator, divisor):
            return floor(rewritten(numerator, change), rewritten(divisor, change))
        case Pick(kind, left, right):
            return pick(kind, rewritten(left, change), rewritten(right, change))
        case Choice(condition, left, right):
            other = rewritten(right, change)
            return other + indicator(condition, change) * (rewritten(left, change) - other)
        case _:
            return atom(a)


def indicator(condition: Condition | None, change: Callable[[Atom], Poly | None]) -> Poly:
    """1 where the condition holds, 0 elsewhere. What is not known of it counts as true."""

    def reaches(poly: Poly) -> Poly:
        return pick("min", ONE, pick("max", ZERO, poly + ONE))

    match condition:
        case None:
            return ONE
        case Compare(kind, poly):
            poly = rewritten(poly, change)
            if kind == "ge":
                return reaches(poly)
            equal = reaches(poly) - reaches(poly - ONE)
            return equal if kind == "eq" else ONE - equal
        case _:
            missing = isinstance(condition, Either)
            product = ONE
            for part in condition.parts:
                holds = indicator(part, change)
                product = product * (ONE - holds if missing else holds)
            return ONE - product if missing else product


def _cut(poly: Poly, iv: Value) -> Atom | None:
    """A compound atom with ``iv`` in it, and none such inside of it."""
    for a in poly.atoms():
        if isinstance(a, (Value, Dim)) or not any(p.mentions(iv) for p in parts(a)):
            continue
        for part in parts(a):
            inner = _cut(part, iv)
            if inner is not None:
                return inner
        return a
    return None


def sign(poly: Poly, ranges: Sequence[Range]) -> int | None:
    """1 where ``poly`` is proven to be at least 0, -1 where at most 0."""
    for side in (1, -1):
        end = extreme(poly, ranges, side < 0)
        if end is not None and nonnegative(end.scaled(side)):
            return side
    return None


# ------------------------------------------------------------------------------------------- sums
class Sums:
    """Finds sums, in so many ``steps`` in all."""

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def over(
        self, value: Count, iv: Value, lower: Poly, upper: Poly, ranges: Sequence[Range]
    ) -> Count:
        """The sum of ``value`` over ``iv`` from ``lower`` to below ``upper``, nothing where that is
        not more than ``lower``. ``ranges``: of the indices around it, innermost first."""
        empty = sign(lower - upper, ranges) == 1
        if sign(upper - lower, ranges) != 1:
            upper = lower if empty else pick("max", upper, lower)
        known = [(iv, lower, upper), *ranges]
        found = self._over(value.poly, iv, lower, upper, known)
        return count(found.poly, found.over * value.over)

    def _over(
        self, value: Poly, iv: Value, lower: Poly, upper: Poly, ranges: Sequence[Range]
    ) -> Count:
        """The same of ``value``, where ``upper`` is no less than ``lower``. ``ranges`` begin with
        what is known of ``iv``."""
        for poly in (value, lower, upper):
            self._pay(poly)
        if not value.terms or lower == upper:
            return NOTHING
        a = _cut(value, iv)
        match a:
            case None:
                return _power_sum(value, iv, lower, upper)
            case Pick():
                return self._picked(a, value, iv, lower, upper, ranges)
            case Floor(numerator, divisor):
                divided, slope = divisor.constant, numerator.slope(iv)
                if divided is not None and divided > 0 and slope:
                    period = divided // math.gcd(divided, slope)
                    whole = (2 * slope + divided) // (2 * divided)  # of the index in the quotient
                    rest = numerator - atom(iv).scaled(whole * divided)
                    values = _quotients(rest, divided, ranges)
                    if values is not None and len(values) <= period and rest.slope(iv):
                        return self._by_value(a, whole, values, value, iv, lower, upper, ranges)
                    return self._by_remainder(period, value, iv, lower, upper, ranges)
            case _:
                pass
        return self._each(value, iv, lower, upper)

    def _pay(self, poly: Poly) -> None:
        """A step for each monomial and atom."""
        for monomial in poly.terms:
            self.left -= 1 + len(monomial)
            if self.left < 0:
                raise UncountableError
            for a in monomial:
                for part in parts(a):
                    self._pay(part)

    def _picked(
        self, a: Pick, value: Poly, iv: Value, lower: Poly, upper: Poly, ranges: Sequence[Range]
    ) -> Count:  # fmt: skip
        difference = a.left - a.right
        slope, side = difference.slope(iv), sign(difference, ranges)
        above, below = (a.left, a.right) if a.kind == "max" else (a.right, a.left)

        def where(side: int) -> Poly:
            """``value`` where the difference is at least, or at most, 0."""
            return rewritten(value, lambda x: (above if side > 0 else below) if x == a else None)

        if side is not None:
            return self._over(where(side), iv, lower, upper, ranges)
        if slope is None:
            return self._each(value, iv, lower, upper)
        if slope == 0:
            apart = pick(a.kind, difference, ZERO) + a.right
            return self._over(rewritten(value, lambda x: apart if x == a else None), iv, lower,
                              upper, ranges)  # fmt: skip
        rest = difference - atom(iv).scaled(slope)
        # The first index on the other side.
        cut = -floor(rest, number(slope)) if slope > 0 else floor(rest, number(-slope)) + ONE
        (_, low, high), *outer = ranges
        if sign(cut - lower, outer) != 1:
            cut = pick("max", cut, lower)
        if sign(upper - cut, outer) != 1:
            cut = pick("min", cut, upper)
        plain = _is_plain(cut)
        halves = ((lower, cut, low, cut if plain else high),
                  (cut, upper, cut if plain else low, high))  # fmt: skip
        sides = (-1, 1) if slope > 0 else (1, -1)
        total = NOTHING
        for side, (begin, end, least, most) in zip(sides, halves, strict=True):
            total += self._over(where(side), iv, begin, end, [(iv, least, most), *outer])
        return total

    def _by_value(
        self, a: Floor, whole: int, values: range, value: Poly, iv: Value, lower: Poly, upper: Poly,
        ranges: Sequence[Range],
    ) -> Count:  # fmt: skip
        """The quotient ``a`` is ``whole`` times the index, and one of ``values``: the range is cut
        where that goes on to the next."""
        (_, low, high), *outer = ranges
        divisor = a.divisor.constant or 1
        numerator = a.numerator - atom(iv).scaled(whole * divisor)
        slope = numerator.slope(iv)
        assert slope
        rest = numerator - atom(iv).scaled(slope)
        total, begin = NOTHING, lower
        ordered = values if slope > 0 else values[::-1]
        for quotient in ordered:
            if quotient == ordered[-1]:
                end = upper
            elif slope > 0:  # the first index whose quotient is beyond this one
                end = -floor(rest - number(divisor * (quotient + 1)), number(slope))
            else:
                end = floor(rest - number(divisor * quotient), number(-slope)) + ONE
            if end is not upper:
                if sign(end - begin, outer) != 1:
                    end = pick("max", end, begin)
                if sign(upper - end, outer) != 1:
                    end = pick("min", end, upper)
            there = atom(iv).scaled(whole) + number(quotient)
            here = rewritten(value, lambda x, there=there: there if x == a else None)
            least, most = (side if _is_plain(side) else bound
                           for side, bound in ((begin, low), (end, high)))  # fmt: skip
            total += self._over(here, iv, begin, end, [(iv, least, most), *outer])
            begin = end
        return total

    def _by_remainder(
        self, by: int, value: Poly, iv: Value, lower: Poly, upper: Poly, ranges: Sequence[Range]
    ) -> Count:
        """``iv`` is ``by`` times another index, and each remainder in turn."""
        total, divisor = NOTHING, number(by)
        for r in range(by):
            place = atom(iv).scaled(by) + number(r)
            turned = rewritten(value, lambda x, place=place: place if x == iv else None)
            begin, end = (-floor(number(r) - side, divisor) for side in (lower, upper))
            total += self._over(turned, iv, begin, end, [(iv, begin, end), *ranges[1:]])
        return total

    def _each(self, value: Poly, iv: Value, lower: Poly, upper: Poly) -> Count:
        """Index by index, where their number is known."""
        begin, end = lower.constant, upper.constant
        if begin is None or end is None or end - begin > self.left:
            raise UncountableError
        self.left -= end - begin
        total = ZERO
        for k in range(begin, end):
            total += rewritten(value, lambda x, k=k: number(k) if x == iv else None)
        return Count(total)


def _is_plain(poly: Poly) -> bool:
    return all(isinstance(a, (Value, Dim)) for a in poly.atoms())


def _quotients(numerator: Poly, divisor: int, ranges: Sequence[Range]) -> range | None:
    """What ``numerator // divisor`` may be, where the numerator has known ends."""
    ends = [extreme(numerator, ranges, upper) for upper in (False, True)]
    least, most = (None if end is None else end.constant for end in ends)
    if least is None or most is None:
        return None
    return range(least // divisor, most // divisor + 1)


def _power_sum(value: Poly, iv: Value, lower: Poly, upper: Poly) -> Count:
    """The sum of a polynomial of ``iv``."""
    by_power: dict[int, dict[Monomial, int]] = {}
    for monomial, factor in value.terms.items():
        rest = tuple(a for a in monomial if a is not iv)
        terms = by_power.setdefault(len(monomial) - len(rest), {})
        terms[rest] = terms.get(rest, 0) + factor
    total = NOTHING
    for power, terms in by_power.items():
        factors, over = faulhaber(power)
        ends = [ZERO, ZERO]
        for k, end in enumerate((lower, upper)):
            raised = ONE
            for factor in factors:
                raised = raised * end
                ends[k] += raised.scaled(factor)
        total += Count(Poly(terms) * (ends[1] - ends[0]), over)
    return total


@functools.cache
def faulhaber(power: int) -> tuple[tuple[int, ...], int]:
    """The sum of ``i ** power`` for i in 0 .. n - 1 as a polynomial of n: what n, n ** 2, ... are
    multiplied by, and what the sum of that is divided by (Bernoulli's formula)."""
    numbers = [Fraction(1)]
    for m in range(1, power + 1):
        below = sum((math.comb(m + 1, k) * b for k, b in enumerate(numbers)), Fraction(0))
        numbers.append(-below / (m + 1))
    factors = [numbers[power + 1 - k] * math.comb(power + 1, k) / (power + 1)
               for k in range(1, power + 2)]  # fmt: skip
    over = math.lcm(*(f.denominator for f in factors))
    return tuple(int(f * over) for f in factors), over

"""Integer expressions over loop indices and sizes: polynomials whose atoms may be divisions.

A ``Poly`` is a sum of integer multiples of monomials. An atom is an IR value (a loop index or a
symbol, that is, something that is the same in all iterations), the extent of a memref, or one of
``Floor``, ``Pick`` and ``Choice``. In an affine expression each monomial has at most one atom.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

from weft.ir.core import Value
from weft.values import frozen


@frozen
class Dim:
    """The extent of one dimension of a memref argument: an integer >= 0."""

    memref: Value
    axis: int


@frozen
class Floor:
    """``numerator // divisor``, rounded down."""

    numerator: Poly
    divisor: Poly


@frozen
class Pick:
    """``min`` or ``max`` of two expressions."""

    kind: Literal["min", "max"]
    left: Poly
    right: Poly


@frozen
class Choice:
    """``left if condition else right``."""

    condition: Condition
    left: Poly
    right: Poly


Atom = Value | Dim | Floor | Pick | Choice
Monomial = tuple[Atom, ...]


class Poly:
    """An immutable polynomial: ``terms`` maps each monomial to its coefficient (never 0)."""

    __slots__ = ("_hash", "_size", "terms")

    def __init__(self, terms: dict[Monomial, int]) -> None:
        self.terms = terms
        self._hash: int | None = None
        self._size: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __add__(self, other: Poly) -> Poly:
        terms = dict(self.terms)
        for monomial, factor in other.terms.items():
            total = terms.get(monomial, 0) + factor
            if total:
                terms[monomial] = total
            else:
                del terms[monomial]
        return Poly(terms)

    def __neg__(self) -> Poly:
        return self.scaled(-1)

    def __sub__(self, other: Poly) -> Poly:
        return self + other.scaled(-1)

    def __mul__(self, other: Poly) -> Poly:
        terms: dict[Monomial, int] = {}
        for m1, f1 in self.terms.items():
            for m2, f2 in other.terms.items():
                monomial = product(m1, m2)
                terms[monomial] = terms.get(monomial, 0) + f1 * f2
        return Poly({m: f for m, f in terms.items() if f})

    def scaled(self, factor: int) -> Poly:
        return Poly({m: f * factor for m, f in self.terms.items()} if factor else {})

    def __repr__(self) -> str:
        return f"Poly({show(self)})"

    @property
    def size(self) -> int:
        """How many terms and atoms there are to walk through, however deep."""
        if self._size is None:
            self._size = len(self.terms) + sum(
                1 + sum(part.size for part in parts(a)) for a in self.atoms()
            )
        return self._size

    @property
    def constant(self) -> int | None:
        """The value, where the polynomial is a plain number."""
        if not self.terms:
            return 0
        if len(self.terms) == 1:
            return self.terms.get(())
        return None

    @property
    def offset(self) -> int:
        """The term without atoms."""
        return self.terms.get((), 0)

    def atoms(self) -> Iterator[Atom]:
        """The atoms of all monomials, not those inside of ``Floor`` and the like."""
        for monomial in self.terms:
            yield from monomial

    def leaves(self) -> Iterator[Value | Dim]:
        """Every value and extent that is mentioned, however deep."""
        for atom in self.atoms():
            if isinstance(atom, (Value, Dim)):
                yield atom
            else:
                for part in parts(atom):
                    yield from part.leaves()

    def coefficient(self, atom: Atom) -> Poly:
        """What ``atom`` is multiplied by; exact where it occurs at most once in each monomial."""
        terms: dict[Monomial, int] = {}
        for monomial, factor in self.terms.items():
            if atom in monomial:
                rest = list(monomial)
                rest.remove(atom)
                terms[tuple(rest)] = factor
        return Poly(terms)

    def mentions(self, leaf: Value | Dim) -> bool:
        return any(found is leaf for found in self.leaves())

    def slope(self, iv: Value) -> int | None:
        """What it grows by when ``iv`` grows by one; None where that is not a number."""
        if not self.mentions(iv):
            return 0
        factor = self.coefficient(iv).constant
        if factor is None or (self - atom(iv).scaled(factor)).mentions(iv):
            return None
        return factor

    def substitute(self, replace: Callable[[Value | Dim], Poly | None]) -> Poly:
        """Replaces leaves, also inside of divisions; ``replace`` gives None for those that stay."""
        total = ZERO
        for monomial, factor in self.terms.items():
            term = number(factor)
            for atom in monomial:
                term = term * _substituted(atom, replace)
            total = total + term
        return total


def _order(atom: Atom) -> tuple[Any, ...]:
    """A key that atoms are sorted by, the same in each process."""
    match atom:
        case Value():
            return 0, atom.serial
        case Dim(memref, axis):
            return 1, memref.serial, axis
        case Floor(numerator, divisor):
            return 2, _terms(numerator), _terms(divisor)
        case Pick(kind, left, right):
            return 3, kind, _terms(left), _terms(right)
        case Choice(condition, left, right):
            return 4, _asked(condition), _terms(left), _terms(right)


def _terms(poly: Poly) -> list[tuple[Any, ...]]:
    return sorted((factor, [_order(a) for a in m]) for m, factor in poly.terms.items())


def _asked(condition: Condition | None) -> tuple[Any, ...]:
    match condition:
        case None:
            return (0,)
        case Compare(kind, poly):
            return 1, kind, _terms(poly)
        case Both(parts):
            return 2, [_asked(part) for part in parts]
        case Either(parts):
            return 3, [_asked(part) for part in parts]


def product(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    return tuple(sorted(left + right, key=_order))


ZERO = Poly({})
ONE = Poly({(): 1})


def number(value: int) -> Poly:
    return Poly({(): value}) if value else ZERO


def atom(atom: Atom) -> Poly:
    return Poly({(atom,): 1})


def floor(numerator: Poly, divisor: Poly) -> Poly:
    """``numerator // divisor``; what a constant divisor divides exactly is taken out."""
    by = divisor.constant
    if by == 1:
        return numerator
    if by is None or by <= 0:
        return atom(Floor(numerator, divisor))
    whole = Poly({m: f // by for m, f in numerator.terms.items() if f // by})
    rest = numerator - whole.scaled(by)
    if rest.constant is not None:  # in 0 .. by - 1
        return whole
    return whole + atom(Floor(rest, divisor))


def pick(kind: Literal["min", "max"], left: Poly, right: Poly) -> Poly:
    difference = (left - right).constant
    if difference is not None:
        return left if (difference <= 0) == (kind == "min") else right
    return atom(Pick(kind, left, right))


class Polynomials:
    """What trip counts of symbolic bounds are made of."""

    _OPS: ClassVar = {"addi": Poly.__add__, "subi": Poly.__sub__, "floordivsi": floor,
                      "maxsi": functools.partial(pick, "max")}  # fmt: skip

    def constant(self, value: Poly) -> int | None:
        return value.constant

    def number(self, value: int) -> Poly:
        return number(value)

    def op(self, name: str, a: Poly, b: Poly) -> Poly:
        return self._OPS[name](a, b)


POLYNOMIALS = Polynomials()


# ------------------------------------------------------------------------------------ conditions


@frozen
class Compare:
    """``poly >= 0``, ``poly == 0`` or ``poly != 0``."""

    kind: Literal["ge", "eq", "ne"]
    poly: Poly


@frozen
class Both:
    parts: tuple[Condition | None, ...]


@frozen
class Either:
    parts: tuple[Condition | None, ...]


# Inside of Both and Either, None is a condition that is not known.
Condition = Compare | Both | Either
TRUE = Both(())
FALSE = Either(())


def negate(condition: Condition | None) -> Condition | None:
    match condition:
        case None:
            return None
        case Compare("ge", poly):
            return Compare("ge", -poly - ONE)
        case Compare("eq", poly):
            return Compare("ne", poly)
        case Compare(_, poly):
            return Compare("eq", poly)
        case Both(parts):
            return Either(tuple(map(negate, parts)))
        case Either(parts):
            return Both(tuple(map(negate, parts)))


def both(*conditions: Condition | None) -> Condition | None:
    """All of them; what is a conjunction itself is taken apart."""
    return _joined(Both, conditions)


def either(*conditions: Condition | None) -> Condition | None:
    """Any of them; what is a disjunction itself is taken apart."""
    return _joined(Either, conditions)


def _joined(
    kind: type[Both | Either], conditions: tuple[Condition | None, ...]
) -> Condition | None:
    found: list[Condition | None] = []
    for condition in conditions:
        for part in condition.parts if isinstance(condition, kind) else (condition,):
            if part is not None or None not in found:  # one that is not known says it all
                found.append(part)
    return found[0] if len(found) == 1 else kind(tuple(found))


def compare(predicate: str, left: Poly, right: Poly) -> Condition | None:
    """The condition for a predicate of ``arith.cmpi``; None for the unsigned ones."""
    match predicate:
        case "eq" | "ne":
            return Compare(predicate, left - right)
        case "slt":
            return Compare("ge", right - left - ONE)
        case "sle":
            return Compare("ge", right - left)
        case "sgt":
            return Compare("ge", left - right - ONE)
        case "sge":
            return Compare("ge", left - right)
        case _:
            return None


def known(condition: Condition | None) -> bool:
    """False where some part of the condition is unknown."""
    if isinstance(condition, (Both, Either)):
        return all(map(known, condition.parts))
    return condition is not None


def condition_polys(condition: Condition | None) -> Iterator[Poly]:
    """Every polynomial that is compared."""
    if isinstance(condition, Compare):
        yield condition.poly
    elif condition is not None:
        for part in condition.parts:
            yield from condition_polys(part)


def substituted_condition(
    condition: Condition | None, replace: Callable[[Value | Dim], Poly | None]
) -> Condition | None:
    match condition:
        case None:
            return None
        case Compare(kind, poly):
            return Compare(kind, poly.substitute(replace))
        case Both(inner) | Either(inner):
            return type(condition)(tuple(substituted_condition(p, replace) for p in inner))


# ---------------------------------------------------------------------------------- atoms, inside


def parts(atom: Atom) -> list[Poly]:
    """The polynomials that a compound atom is made of."""
    match atom:
        case Floor(numerator, divisor):
            return [numerator, divisor]
        case Pick(_, left, right):
            return [left, right]
        case Choice(condition, left, right):
            return [left, right, *condition_polys(condition)]
        case _:
            return []


def _substituted(a: Atom, replace: Callable[[Value | Dim], Poly | None]) -> Poly:
    match a:
        case Floor(numerator, divisor):
            return floor(numerator.substitute(replace), divisor.substitute(replace))
        case Pick(kind, left, right):
            return pick(kind, left.substitute(replace), right.substitute(replace))
        case Choice(condition, left, right):
            inside = substituted_condition(condition, replace)
            assert inside is not None
            return atom(Choice(inside, left.substitute(replace), right.substitute(replace)))
        case _:
            new = replace(a)
            return atom(a) if new is None else new


# -------------------------------------------------------------------- evaluation, division, ranges


def evaluate(poly: Poly, values: Mapping[Value | Dim, int]) -> int:
    """The value at a point (``ZeroDivisionError`` where it divides by zero)."""
    total = 0
    for monomial, factor in poly.terms.items():
        for a in monomial:
            factor *= _evaluate_atom(a, values)
        total += factor
    return total


def _evaluate_atom(atom: Atom, values: Mapping[Value | Dim, int]) -> int:
    match atom:
        case Floor(numerator, divisor):
            return evaluate(numerator, values) // evaluate(divisor, values)
        case Pick(kind, left, right):
            pair = evaluate(left, values), evaluate(right, values)
            return min(pair) if kind == "min" else max(pair)
        case Choice(condition, left, right):
            return evaluate(left if holds(condition, values) else right, values)
        case _:
            return values[atom]


def holds(condition: Condition | None, values: Mapping[Value | Dim, int]) -> bool:
    """Whether a condition holds at a point; it must be known."""
    match condition:
        case Compare(kind, poly):
            value = evaluate(poly, values)
            return value >= 0 if kind == "ge" else (value == 0) == (kind == "eq")
        case Both(inner):
            return all(holds(p, values) for p in inner)
        case Either(inner):
            return any(holds(p, values) for p in inner)
        case None:
            raise ValueError("the condition is not known")


def divide(poly: Poly, divisor: Poly) -> tuple[Poly, Poly]:
    """Polynomial division: ``poly == divisor * quotient + remainder``."""
    lead = max(divisor.terms, key=lambda m: (len(m), [_order(a) for a in m]))
    by = divisor.terms[lead]
    quotient, remainder = ZERO, poly
    for monomial, factor in sorted(poly.terms.items(), key=lambda t: -len(t[0])):
        factor = remainder.terms.get(monomial, 0)
        rest = _without(monomial, lead)
        if rest is not None and factor // by:
            step = Poly({rest: factor // by})
            quotient, remainder = quotient + step, remainder - divisor * step
    return quotient, remainder


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for a in factor:
        if a not in rest:
            return None
        rest.remove(a)
    return tuple(rest)


def nonnegative(poly: Poly) -> bool:
    """Whether it is >= 0 whatever the symbols are: no negative coefficient, extents only."""
    return all(f >= 0 and all(isinstance(a, Dim) for a in m) for m, f in poly.terms.items())


def extreme(
    poly: Poly, ranges: Iterable[tuple[Value, Poly | None, Poly | None]], upwards: bool
) -> Poly | None:
    """An upper (or lower) bound of ``poly`` without loop indices, or None.

    ``ranges`` gives each index with its least value and the value it stays below, innermost first.
    Only indices with constant coefficients are understood, alone or as ``e % constant``.
    """
    poly = _without_remainders(poly, upwards)
    for iv, lower, upper in ranges:
        factor = poly.slope(iv)
        if factor == 0:
            continue
        end = lower
        if factor is not None and (factor > 0) == upwards:
            end = None if upper is None else upper - ONE
        if factor is None or end is None:
            return None
        poly = _without_remainders(poly + (end - atom(iv)).scaled(factor), upwards)
    return poly


def _without_remainders(poly: Poly, upwards: bool) -> Poly:
    """Replaces ``e - c * (e // c)``, a remainder, by the end of its range."""
    for a in list(poly.atoms()):
        if not isinstance(a, Floor):
            continue
        by, factor = a.divisor.constant, poly.terms.get((a,))
        if by is None or by <= 0 or factor is None or factor % by:
            continue
        times = -factor // by
        rest = poly - (a.numerator - atom(a).scaled(by)).scaled(times)
        if len(rest.terms) < len(poly.terms):
            poly = rest + number((by - 1) * times if (times > 0) == upwards else 0)
    return poly


# --------------------------------------------------------------------------------------- printing


def show(poly: Poly, names: Callable[[Value | Dim], str] | None = None) -> str:
    """The expression as a person writes it, ``T - 1 - t + u``."""
    names = names or plain_name
    pieces = []
    for monomial, factor in poly.terms.items():
        body = "*".join(_show_atom(a, names) for a in monomial)
        size = abs(factor)
        body = str(size) if not body else body if size == 1 else f"{size}*{body}"
        pieces.append(("- " if factor < 0 else "+ ") + body)
    text = " ".join(pieces) or "0"
    return text[2:] if text.startswith("+ ") else "-" + text[2:] if text[0] == "-" else text


def plain_name(leaf: Value | Dim) -> str:
    if isinstance(leaf, Dim):
        return f"{leaf.memref.name}.shape[{leaf.axis}]"
    return leaf.name or "?"


def _show_atom(atom: Atom, names: Callable[[Value | Dim], str]) -> str:
    match atom:
        case Floor(numerator, divisor):
            return f"(({show(numerator, names)}) // ({show(divisor, names)}))"
        case Pick(kind, left, right):
            return f"{kind}({show(left, names)}, {show(right, names)})"
        case Choice(condition, left, right):
            test = show_condition(condition, names)
            return f"({show(left, names)} if {test} else {show(right, names)})"
        case _:
            return names(atom)


def show_condition(
    condition: Condition | None, names: Callable[[Value | Dim], str] | None = None
) -> str:
    match condition:
        case None:
            return "?"
        case Compare(kind, poly):
            sign = {"ge": ">=", "eq": "==", "ne": "!="}[kind]
            return f"{show(poly, names)} {sign} 0"
        case Both(inner):
            return " and ".join(f"({show_condition(p, names)})" for p in inner) or "True"
        case Either(inner):
            return " or ".join(f"({show_condition(p, names)})" for p in inner) or "False"

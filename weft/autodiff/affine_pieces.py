"""An access in pieces, in each of which its subscripts are affine.

``x[max(i - 1, 0)]`` reads ``x[i - 1]`` where ``i - 1 >= 0``, and ``x[0]`` elsewhere: minima, maxima
and choices in subscripts are taken apart into cases, each a condition on the iteration. No two
cases have an iteration in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.index.access import Access
from weft.index.expression import (
    ONE,
    ZERO,
    Atom,
    Both,
    Choice,
    Compare,
    Condition,
    Dim,
    Either,
    Floor,
    Pick,
    Poly,
    atom,
    floor,
    negate,
    number,
    parts,
    pick,
)
from weft.ir.core import Value

# Each piece is one more loop over what reads an element, to be compiled.
_MOST = 8

Case = tuple[Compare, ...]  # conditions of the kind "ge", all of which hold


def affine_pieces(access: Access) -> list[Access]:
    """The pieces of ``access``, which have further guards: itself where there are none, or where
    they are too many or not known."""
    indices = {loop.iv for loop in access.loops}
    done: list[Access] = []
    todo = [access]
    while todo:
        piece = todo.pop()
        found = _innermost(piece, indices)
        if found is None:
            done.append(piece)
            continue
        cases = list(_cases(found))
        if not cases or len(done) + len(todo) + len(cases) > _MOST:
            return [access]
        for case, value in reversed(cases):
            if any(c.poly.constant is not None and c.poly.constant < 0 for c in case):
                continue
            subscripts = tuple(s and _replaced(s, found, value) for s in piece.subscripts)
            todo.append(replace(piece, subscripts=subscripts, guards=(*piece.guards, *case)))
    return done


def _innermost(access: Access, indices: set[Value]) -> Pick | Choice | None:
    """A minimum, maximum or choice that varies and has none of its kind in it."""

    def look(poly: Poly) -> Pick | Choice | None:
        for a in poly.atoms():
            if isinstance(a, Value | Dim) or indices.isdisjoint(atom(a).leaves()):
                continue
            for inner in parts(a):
                if (found := look(inner)) is not None:
                    return found
            if isinstance(a, Pick | Choice):
                return a
        return None

    for subscript in access.subscripts:
        if subscript is not None and (found := look(subscript)) is not None:
            return found
    return None


def _cases(found: Pick | Choice) -> Iterator[tuple[Case, Poly]]:
    """When ``found`` is what."""
    if isinstance(found, Pick):
        first = found.right - found.left if found.kind == "min" else found.left - found.right
        yield (Compare("ge", first),), found.left
        yield (Compare("ge", -first - ONE),), found.right
        return
    yes, no = _apart(found.condition), _apart(negate(found.condition))
    if yes is not None and no is not None:
        yield from ((case, found.left) for case in yes)
        yield from ((case, found.right) for case in no)


def _apart(condition: Condition | None) -> list[Case] | None:
    """Cases of which exactly one holds where ``condition`` does; None where it is not known."""
    match condition:
        case Compare("ge"):
            return [(condition,)]
        case Compare("eq", poly):
            return [(Compare("ge", poly), Compare("ge", -poly))]
        case Compare(_, poly):
            return [(Compare("ge", poly - ONE),), (Compare("ge", -poly - ONE),)]
        case Both(()):
            return [()]
        case Both((first, *rest)):
            return _product(_apart(first), _apart(Both(tuple(rest))))
        case Either(()):
            return []
        case Either((first, *rest)):
            others = _product(_apart(negate(first)), _apart(Either(tuple(rest))))
            here = _apart(first)
            return None if here is None or others is None else here + others
        case _:
            return None


def _product(left: list[Case] | None, right: list[Case] | None) -> list[Case] | None:
    if left is None or right is None or len(left) * len(right) > _MOST:
        return None
    return [(*a, *b) for a in left for b in right]


def _replaced(poly: Poly, old: Atom, new: Poly) -> Poly:
    """``poly`` with ``new`` in place of ``old``, however deep."""

    def inside(a: Atom) -> Poly:
        if a == old:
            return new
        match a:
            case Floor(numerator, divisor):
                return floor(of(numerator), of(divisor))
            case Pick(kind, left, right):
                return pick(kind, of(left), of(right))
            case Choice(condition, left, right):
                return atom(Choice(_with(condition, old, new), of(left), of(right)))
            case _:
                return atom(a)

    def of(poly: Poly) -> Poly:
        total = ZERO
        for monomial, factor in poly.terms.items():
            term = number(factor)
            for a in monomial:
                term = term * inside(a)
            total = total + term
        return total

    return of(poly)


def _with(condition: Condition, old: Atom, new: Poly) -> Condition:
    match condition:
        case Compare(kind, poly):
            return Compare(kind, _replaced(poly, old, new))
        case Both(inner):
            return Both(tuple(p and _with(p, old, new) for p in inner))
        case Either(inner):
            return Either(tuple(p and _with(p, old, new) for p in inner))

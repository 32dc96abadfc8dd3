"""Can two different iterations meet on one element? What can be said without isl, in microseconds.

``provably_disjoint`` proves that they cannot: equal subscripts force the parallel indices to be
equal. ``overlap_in_trial`` finds, by trying small sizes, that a proof is not to be had.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from weft.index.access import Access
from weft.index.expression import (
    ONE,
    Atom,
    Dim,
    Floor,
    Monomial,
    Poly,
    atom,
    divide,
    evaluate,
    extreme,
    holds,
    known,
    nonnegative,
    parts,
)
from weft.ir.core import Value

Ranges = list[tuple[Value, Poly | None, Poly | None]]

# All sizes and arguments that ``overlap_in_trial`` does not know are taken to be this.
TRIAL_SIZE = 3
TRIAL_POINTS = 600


def split(poly: Poly, access: Access) -> tuple[tuple[Poly, ...], tuple[Poly, ...]]:
    """Recovers the indices of a flattened subscript.

    For ``(i*H + j)*W + k``, where 0 <= j < H and 0 <= k < W can be proven: the divisors ``(H, W)``
    and the parts ``(i, j, k)``. Two such subscripts with the same divisors are equal exactly where
    their parts are. ``((), (poly,))`` where nothing can be proven.
    """
    return _split(poly, access.ranges(), {loop.iv for loop in access.loops})


def _split(
    poly: Poly, ranges: Ranges, indices: set[Value]
) -> tuple[tuple[Poly, ...], tuple[Poly, ...]]:
    for divisor in _divisors(poly, indices):
        quotient, remainder = divide(poly, divisor)
        if not any(varies(a, indices) for a in quotient.atoms()):
            continue
        for shift in (0, 1, -1):
            rest = remainder + divisor.scaled(shift)
            if inside(rest, divisor, ranges):
                by, pieces = _split(quotient - ONE.scaled(shift), ranges, indices)
                return (*by, divisor), (*pieces, rest)
    return (), (poly,)


def inside(poly: Poly, end: Poly, ranges: Ranges) -> bool:
    """Proves 0 <= poly < end from the ranges of the loop indices (not from conditions)."""
    low = extreme(poly, ranges, upwards=False)
    if low is None or not nonnegative(low):
        return False
    high = extreme(poly - end, ranges, upwards=True)
    return high is not None and nonnegative(-high - ONE)


def _divisors(poly: Poly, indices: set[Value]) -> list[Poly]:
    """The coefficients of the loop indices, those with fewer factors first."""
    found: dict[Poly, None] = {}
    for a in poly.atoms():
        if not varies(a, indices):
            continue
        factor = poly.coefficient(a)
        if any(varies(b, indices) for b in factor.atoms()):
            continue
        if all(f < 0 for f in factor.terms.values()):
            factor = -factor
        if factor.constant is None or factor.constant > 1:
            found[factor] = None
    return sorted(found, key=lambda p: (max(map(len, p.terms)), p.offset))


def varies(atom: Atom, indices: set[Value]) -> bool:
    """Whether an atom depends on one of ``indices``."""
    if isinstance(atom, (Value, Dim)):
        return atom in indices
    return any(leaf in indices for poly in parts(atom) for leaf in poly.leaves())


def aligned(a: Access, b: Access) -> list[tuple[Poly, Poly]] | None:
    """Pairs of expressions that are equal wherever the two accesses touch one element.

    Flattened subscripts are taken apart where both agree how. None where some pair can never be
    equal. Dimensions with an unknown subscript say nothing.
    """
    pairs: list[tuple[Poly, Poly]] = []
    for left, right in zip(a.subscripts, b.subscripts, strict=True):
        if left is None or right is None:
            continue
        by, pieces = split(left, a)
        other_by, other_pieces = (by, pieces) if a is b else split(right, b)
        if by == other_by:
            pairs += zip(pieces, other_pieces, strict=True)
        else:
            pairs.append((left, right))
    for left, right in pairs:
        if (left - right).constant and _invariant(left, a) and _invariant(right, b):
            return None
    return pairs


def _invariant(poly: Poly, access: Access) -> bool:
    indices = {loop.iv for loop in access.loops}
    return not any(varies(atom, indices) for atom in poly.atoms())


def provably_disjoint(a: Access, b: Access) -> bool:
    """Proves that ``a`` in one iteration and ``b`` in another never touch the same element.

    Iterations differ in a parallel index. Both accesses are in the same parallel loop. False means
    that this simple argument does not do; isl may know better.
    """
    pairs = aligned(a, b)
    if pairs is None:
        return True
    equal = {x for x, y in pairs if x == y}
    indices = {loop.iv for loop in (*a.loops, *b.loops)}
    for poly in [*equal]:
        equal.update(_divided(poly, a, indices))
    fixed: set[Atom] = set()
    for loop in a.loops:
        if _single(loop.lower, loop.upper, fixed, indices):
            fixed.add(loop.iv)
    while True:
        before = len(fixed)
        for poly in equal:
            new = _determined(poly, fixed, indices)
            if new is not None:
                fixed.add(new)
        if all(iv in fixed for iv in a.parallel):
            return True
        if len(fixed) == before:
            return False


def _divided(poly: Poly, access: Access, indices: set[Value]) -> tuple[Poly, ...]:
    """What is equal, too, where ``poly`` is: of ``(i + k) % n`` with at most ``n`` values of ``i``
    that is ``i``. Of others nothing."""
    for a in poly.atoms():
        if not isinstance(a, Floor) or poly != a.numerator - atom(a) * a.divisor:
            continue
        own = {m: f for m, f in a.numerator.terms.items() if any(varies(x, indices) for x in m)}
        part = Poly(own)  # all else is the same in all iterations
        low, high = (extreme(part, access.ranges(), upwards=up) for up in (False, True))
        if low is None or high is None or any(varies(x, indices) for x in a.divisor.atoms()):
            continue
        if nonnegative(a.divisor - ONE - high + low):  # they differ by less than the divisor
            return split(part, access)[1]
    return ()


def _single(lower: Poly | None, upper: Poly | None, fixed: set[Atom], indices: set[Value]) -> bool:
    """Whether an index can have but one value, the same in both iterations."""
    if lower is None or upper is None:
        return False
    trips = (upper - lower).constant
    same = all(_is_fixed(a, fixed, indices) for a in lower.atoms())
    return same and trips is not None and trips <= 1


def _determined(poly: Poly, fixed: set[Atom], indices: set[Value]) -> Atom | None:
    """The one atom of ``poly`` that follows from its value when ``fixed`` and symbols are known."""
    open_: list[Monomial] = []
    for monomial in poly.terms:
        if any(not _is_fixed(atom, fixed, indices) for atom in monomial):
            open_.append(monomial)
    return open_[0][0] if len(open_) == 1 and len(open_[0]) == 1 else None


def _is_fixed(atom: Atom, fixed: set[Atom], indices: set[Value]) -> bool:
    if atom in fixed:
        return True
    if isinstance(atom, (Value, Dim)):
        return atom not in indices
    return all(
        leaf in fixed or leaf not in indices for poly in parts(atom) for leaf in poly.leaves()
    )


# ----------------------------------------------------------------------------------------- trials


def overlap_in_trial(a: Access, b: Access) -> bool:
    """Whether two different iterations meet in a small trial run.

    Unknown conditions count as true, unknown subscripts as equal to everything. So True means that
    nothing which looks at subscripts and domains can prove the accesses apart; it does not prove
    that they do meet when the kernel runs.
    """
    dims = [k for k, (x, y) in enumerate(zip(a.subscripts, b.subscripts, strict=True))
            if x is not None and y is not None]  # fmt: skip
    seen: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for iteration, element in _points(a, dims):
        met = seen.setdefault(element, set())
        if len(met) < 2:
            met.add(iteration)
            if a is b and len(met) == 2:
                return True
    if a is b:
        return False
    return any(
        other != iteration
        for iteration, element in _points(b, dims)
        for other in seen.get(element, ())
    )


def _points(access: Access, dims: list[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Parallel index vector and element, for the first iterations of a trial run."""
    values: dict[Value | Dim, int] = {
        leaf: TRIAL_SIZE for poly in access.polys() for leaf in poly.leaves()
    }
    guards = [g for g in access.guards if known(g)]
    subscripts = [poly for k in dims if (poly := access.subscripts[k]) is not None]

    def visit(depth: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        if depth == len(access.loops):
            try:
                if all(holds(g, values) for g in guards):
                    iteration = tuple(values[iv] for iv in access.parallel)
                    yield iteration, tuple(evaluate(p, values) for p in subscripts)
            except ZeroDivisionError:
                return
            return
        loop = access.loops[depth]
        lower = 0 if loop.lower is None else evaluate(loop.lower, values)
        upper = lower + TRIAL_SIZE if loop.upper is None else evaluate(loop.upper, values)
        step = 1 if loop.step is None else evaluate(loop.step, values)
        for value in range(lower, upper, max(step, 1)):
            values[loop.iv] = value
            yield from visit(depth + 1)

    return itertools.islice(visit(0), TRIAL_POINTS)

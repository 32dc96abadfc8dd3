"""The fibre of an access: which iterations touch a given element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace

from weft.errors import WeftError
from weft.index.access import Access, Loop
from weft.index.expression import (
    ONE,
    POLYNOMIALS,
    ZERO,
    Both,
    Choice,
    Compare,
    Condition,
    Dim,
    Floor,
    Pick,
    Poly,
    atom,
    extreme,
    floor,
    number,
    pick,
    show,
)
from weft.ir.core import Value
from weft.ir.trips import steps_of
from weft.ir.types import index
from weft.ir.views import memory
from weft.values import mutable


class NotAffine(WeftError):
    """A fibre that is not found; the message says why."""


@mutable
class Fibre:
    """``element``: a symbol for each subscript. ``loops``: for each index that is summed over, the
    expressions that are its lower and upper (inclusive) bounds. ``solved``: what the other indices
    are. ``outer``: conditions to be checked before the loops, ``inner``: inside them all."""

    element: list[Value]
    loops: list[tuple[Value, list[Poly], list[Poly]]] = field(default_factory=list)
    solved: dict[Value, Poly] = field(default_factory=dict)
    outer: list[Compare] = field(default_factory=list)
    inner: list[Compare] = field(default_factory=list)

    def symbols(self) -> set[Value | Dim]:
        """What the expressions are made of besides the element and the indices."""
        ends = [p for _, lowers, uppers in self.loops for p in (*lowers, *uppers)]
        polys = [*ends, *self.solved.values(), *(c.poly for c in (*self.outer, *self.inner))]
        indices = {*self.element, *self.solved, *(iv for iv, _, _ in self.loops)}
        return {leaf for p in polys for leaf in p.leaves()} - indices


def fibre(access: Access) -> Fibre:
    """Solves ``subscripts = element``. Raises ``NotAffine`` where that is not possible."""
    for poly, value in zip(access.subscripts, memory(access.op)[1], strict=True):
        if poly is None:
            raise NotAffine(f"data-dependent subscript {written(value)}")
    access, stepped = _with_steps(access)
    element = [Value(index, f"j{k}") for k in range(len(access.subscripts))]
    ivs = [loop.iv for loop in access.loops]
    found = Fibre(element)
    turns = _Modulus()
    subscripts = [turns.without(s, e, access) for s, e in
                  zip(access.subscripts, element, strict=True) if s is not None]  # fmt: skip
    constraints = _solve(access, subscripts, element, ivs, found)
    constraints += [*turns.constraints, *_domain(access, found)]
    same = same_sizes(access)
    clean = [part for c in constraints for part in _plain(Compare(c.kind, c.poly.substitute(same)))]
    free = [*turns.places, *(iv for iv in ivs if iv not in found.solved), *turns.numbers]
    _bounds(clean, free, [m.substitute(same) for m in turns.moduli], found, access)
    found.solved |= {iv: _replace(poly, found.solved) for iv, poly in stepped.items()}
    return found


def _with_steps(access: Access) -> tuple[Access, dict[Value, Poly]]:
    """``access`` with loops whose steps are 1: an index of a loop with another one is its lower
    bound plus steps, whose number is the new index. Also says what these indices are."""
    stepped: dict[Value, Poly] = {}
    loops: list[Loop] = []
    for loop in access.loops:
        by = loop.step and loop.step.constant
        lower, upper = loop.lower, loop.upper
        if not by or by == 1 or lower is None or upper is None:
            loops.append(loop)
            continue
        steps = Value(index, loop.iv.name)
        stepped[loop.iv] = _replace(lower, stepped) + atom(steps).scaled(by)
        count = steps_of(POLYNOMIALS, upper - lower, number(by))
        loops.append(Loop(steps, ZERO, count, ONE, loop.parallel))
    if not stepped:
        return access, stepped
    moved = replace(access, loops=tuple(loops))
    return moved.substitute(lambda leaf: stepped.get(leaf)), stepped  # type: ignore[arg-type]


@mutable
class _Modulus:
    """Periodic subscripts: ``e % n = j`` where ``e = j + n * q`` for a number of turns ``q``, which
    is one more index to sum over. Likewise clamped ones, which were not taken apart (``pieces``):
    ``max(e, 0) = j`` where ``e = p``, for each place ``p`` that is clamped to ``j``."""

    numbers: list[Value] = field(default_factory=list)
    places: list[Value] = field(default_factory=list)
    moduli: list[Poly] = field(default_factory=list)
    constraints: list[Compare] = field(default_factory=list)

    def without(self, poly: Poly, element: Value, access: Access) -> Poly:
        """``poly``, or where it is a remainder or clamped what is equal to the same element."""
        clamp = _clamp(poly, access)
        if clamp is not None:
            inside, least, most = clamp
            place = Value(index, f"p{len(self.places)}")
            self.places.append(place)
            at, (lowest, highest) = atom(element), _range(inside, access)
            first = last = at
            if least is not None:
                first = atom(Choice(Compare("ge", at - least - ONE), at, lowest))
            if most is not None:
                last = atom(Choice(Compare("ge", most - at - ONE), at, highest))
            self.constraints += [Compare("ge", atom(place) - first),
                                 Compare("ge", last - atom(place)),
                                 *_reached(poly, at, least, most)]  # fmt: skip
            return inside - atom(place) + at
        for a in poly.atoms():
            if not isinstance(a, Floor) or (poly - a.numerator + atom(a) * a.divisor).terms:
                continue
            if not _is_positive(a.divisor, access):
                continue
            turn = Value(index, f"q{len(self.numbers)}")
            self.numbers.append(turn)
            self.moduli.append(a.divisor)
            self.constraints.append(Compare("ge", a.divisor - ONE - atom(element)))
            return a.numerator - atom(turn) * a.divisor
        return poly


def _range(poly: Poly, access: Access) -> tuple[Poly, Poly]:
    """The least and the greatest value, in what is the same in all iterations."""
    first, last = (extreme(poly, access.ranges(), upwards=up) for up in (False, True))
    if first is None or last is None:
        raise NotAffine(f"subscript {show(poly)} of {_primal(access)} has no bounds")
    return first, last


def _clamp(poly: Poly, access: Access) -> tuple[Poly, Poly | None, Poly | None] | None:
    """What ``poly`` clamps, from below and from above: minima and maxima with what is the same in
    all iterations."""
    indices = {loop.iv for loop in access.loops}
    chosen = _chosen(poly)
    if chosen is None:
        return None
    sides = (chosen.left, chosen.right), (chosen.right, chosen.left)
    for inside, end in sides:
        if indices.isdisjoint(end.leaves()) and not indices.isdisjoint(inside.leaves()):
            inner, least, most = _clamp(inside, access) or (inside, None, None)
            if chosen.kind == "max" and least is None:
                return inner, end, most
            if chosen.kind == "min" and most is None:
                return inner, least, end
    return None


def _chosen(poly: Poly) -> Pick | None:
    """The minimum or maximum that ``poly`` is."""
    atoms = list(poly.atoms())
    alone = len(atoms) == 1 and isinstance(atoms[0], Pick) and poly == atom(atoms[0])
    return atoms[0] if alone and isinstance(atoms[0], Pick) else None


def _reached(poly: Poly, at: Poly, least: Poly | None, most: Poly | None) -> list[Compare]:
    """That the clamped ``poly`` has ``at`` among its values. Where the ends cross, it is always the
    outer one."""
    if least is None or most is None:
        return [Compare("ge", at - least)] if least else [Compare("ge", most - at)] if most else []
    chosen = _chosen(poly)
    if chosen is not None and chosen.kind == "min":
        return [Compare("ge", most - at), Compare("ge", at - pick("min", least, most))]
    return [Compare("ge", at - least), Compare("ge", pick("max", least, most) - at)]


def _is_positive(poly: Poly, access: Access) -> bool:
    """Whether ``poly`` certainly is, where ``access`` is carried out: a positive number, or the
    number of iterations of a loop around it."""
    if poly.constant is not None:
        return poly.constant > 0
    for loop in access.loops:
        if loop.lower is not None and loop.upper is not None:
            low = loop.lower.constant
            if low is not None and low >= 0 and not (loop.upper - poly).terms:
                return True
    return False


_SIGNS = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.floordivsi": "//",
          "arith.remsi": "%"}  # fmt: skip
_CASTS = ("arith.index_cast", "arith.extsi", "arith.extui", "arith.trunci")
_CALLS = {"arith.minsi": "min", "arith.maxsi": "max", "arith.fptosi": "int"}


def written(value: Value, depth: int = 4) -> str:
    """How an index may be written in the source: ``idx[i]``; "..." for what is too long."""
    op = value.op
    if op is None or depth == 0:
        return value.name or "..."
    parts = [written(v, depth - 1) for v in op.operands]
    if op.name == "arith.constant":
        return str(op.attrs["value"])
    if op.name == "memref.load":
        return f"{parts[0]}[{', '.join(parts[1:])}]"
    if op.name in _CASTS:
        return parts[0]
    if op.name in _SIGNS and len(parts) == 2:
        return f"{parts[0]} {_SIGNS[op.name]} {parts[1]}"
    if op.name in _CALLS:
        return f"{_CALLS[op.name]}({', '.join(parts)})"
    return value.name or "..."


def _primal(access: Access) -> str:
    """The name of what ``access`` accumulates the gradient of."""
    return access.memref.name.partition(".")[2]


def same_sizes(access: Access) -> Callable[[Value | Dim], Poly | None]:
    """A gradient is as large as what it is the gradient of."""
    name = _primal(access)

    def change(leaf: Value | Dim) -> Poly | None:
        if isinstance(leaf, Dim) and leaf.memref.name == name:
            return atom(Dim(access.memref, leaf.axis))
        return None

    return change


def _replace(poly: Poly, solved: dict[Value, Poly]) -> Poly:
    while any(leaf in solved for leaf in poly.leaves()):
        poly = poly.substitute(lambda leaf: solved.get(leaf))  # type: ignore[arg-type]
    return poly


def _linear(poly: Poly, iv: Value) -> int | None:
    """The coefficient of ``iv`` where it is a number and ``iv`` is nowhere else in ``poly``."""
    factor = poly.terms.get((iv,))
    if factor is None or list(poly.leaves()).count(iv) != 1:
        return None
    return factor


def _solve(
    access: Access, subscripts: list[Poly], element: list[Value], ivs: list[Value], found: Fibre
) -> list[Compare]:
    open_ = [s - atom(e) for s, e in zip(subscripts, element, strict=True)]
    constraints: list[Compare] = []
    while open_:
        best: tuple[int, Value, Poly] | None = None
        for equation in open_:
            for iv in reversed(ivs):
                factor = None if iv in found.solved else _linear(equation, iv)
                if factor is not None and (best is None or abs(factor) < abs(best[0])):
                    best = factor, iv, equation
        if best is None:
            break
        factor, iv, equation = best
        rest = equation - atom(iv).scaled(factor)
        if abs(factor) == 1:
            found.solved[iv] = rest.scaled(-factor)
        else:
            found.solved[iv] = floor(rest.scaled(-1 if factor > 0 else 1), number(abs(factor)))
            constraints.append(Compare("eq", equation))
        open_.remove(equation)
        for solved, poly in found.solved.items():
            found.solved[solved] = (
                _replace(poly, {iv: found.solved[iv]}) if solved is not iv else poly
            )
        open_ = [_replace(e, found.solved) for e in open_]
    free = set(ivs) - set(found.solved)
    for equation in open_:
        inside = [leaf for leaf in equation.leaves() if leaf in free]
        if not inside:
            constraints.append(Compare("eq", equation))
            continue
        quotients = [a for a in equation.atoms() if isinstance(a, Floor)]
        if len(quotients) != 1 or equation.terms.get((quotients[0],)) not in (1, -1):
            raise NotAffine(f"subscript {show(equation)} of {_primal(access)} is not affine")
        (quotient,) = quotients
        sign = equation.terms[(quotient,)]
        value = (equation - atom(quotient).scaled(sign)).scaled(-sign)
        by = quotient.divisor.constant
        if by is None or by <= 0 or any(leaf in free for leaf in value.leaves()):
            raise NotAffine(f"subscript {show(equation)} of {_primal(access)} is not affine")
        low = quotient.numerator - value.scaled(by)
        constraints += [Compare("ge", low), Compare("ge", number(by - 1) - low)]
    return [Compare(c.kind, _replace(c.poly, found.solved)) for c in constraints]


def _domain(access: Access, found: Fibre) -> Iterator[Compare]:
    for loop in access.loops:
        if loop.lower is None or loop.upper is None or loop.step is None or loop.step.constant != 1:
            raise NotAffine(f"the bounds of the loop over {loop.iv.name} are not affine")
        iv = atom(loop.iv)
        for poly in (iv - loop.lower, loop.upper - ONE - iv):
            yield Compare("ge", _replace(poly, found.solved))
    for guard in access.guards:
        for part in _conjunction(guard):
            yield Compare(part.kind, _replace(part.poly, found.solved))


def _conjunction(guard: Condition | None) -> Iterator[Compare]:
    """The parts of a condition that certainly hold; they only make loops shorter."""
    if isinstance(guard, Compare) and guard.kind == "ge":
        yield guard
    elif isinstance(guard, Both):
        for part in guard.parts:
            yield from _conjunction(part)


def in_bounds(guard: Condition | None) -> bool:
    """Whether ``guard`` holds wherever the loops and conditions of a ``Fibre`` go."""
    if isinstance(guard, Compare):
        return guard.kind == "ge"
    return isinstance(guard, Both) and all(map(in_bounds, guard.parts))


def _plain(constraint: Compare) -> Iterator[Compare]:
    """The same without ``min`` and ``max`` where it can be said so: ``min(a, b) >= x`` is
    ``a >= x and b >= x``. What is linear in an index then bounds its loop."""
    poly = constraint.poly
    for part in poly.atoms() if constraint.kind == "ge" else ():
        factor = poly.terms.get((part,), 0)
        if isinstance(part, Pick) and factor and (factor > 0) == (part.kind == "min"):
            rest = poly - atom(part).scaled(factor)
            for side in (part.left, part.right):
                yield from _plain(Compare("ge", rest + side.scaled(factor)))
            return
    yield constraint


def _bounds(
    constraints: list[Compare], free: list[Value], moduli: list[Poly], found: Fibre, access: Access
) -> None:
    """Bounds of the indices ``free``, whose coefficients are numbers or, of turns, ``moduli``."""
    place = {iv: k for k, iv in enumerate(free)}
    bounds: list[tuple[list[Poly], list[Poly]]] = [([], []) for _ in free]
    scaled: list[tuple[int, Poly, Poly]] = []
    varying = {*free, *found.solved}
    for constraint in constraints:
        if _trivial(constraint, found.element, access):
            continue
        last = max((place[x] for x in constraint.poly.leaves() if x in place), default=-1)
        if last < 0:
            found.outer.append(constraint)
            continue
        factor = _linear(constraint.poly, free[last])
        turns = constraint.poly.coefficient(free[last])
        rest = constraint.poly - atom(free[last]) * turns
        if factor is None and constraint.kind == "ge" and free[last] not in set(rest.leaves()):
            if turns in moduli:
                bounds[last][0].append(-floor(rest, turns))
                continue
            if -turns in moduli:
                bounds[last][1].append(floor(rest, -turns))
                continue
        if factor is None or constraint.kind != "ge":
            found.inner.append(constraint)
            if constraint.kind == "ge" and varying.isdisjoint(turns.leaves()) and (
                free[last] not in set(rest.leaves())
            ):  # fmt: skip
                scaled.append((last, turns, rest))
            continue
        if factor > 0:  # iv >= -rest / factor, rounded up
            bounds[last][0].append(-floor(rest, number(factor)))
        else:
            bounds[last][1].append(floor(rest, number(-factor)))
    for last, scale, rest in scaled:
        # scale * iv + rest >= 0, and the sign of `scale` (a stride, say) shows when the loop runs.
        lowers, uppers = bounds[last]
        if lowers and uppers:
            up, down = Compare("ge", scale - ONE), Compare("ge", -scale - ONE)
            lowers.append(atom(Choice(up, -floor(rest, scale), lowers[0])))
            uppers.append(atom(Choice(down, floor(rest, -scale), uppers[0])))
    for iv, (lowers, uppers) in zip(free, bounds, strict=True):
        if not lowers or not uppers:
            raise NotAffine(f"the iterations over {iv.name} that read one element have no bound")
        found.loops.append((iv, list(dict.fromkeys(lowers)), list(dict.fromkeys(uppers))))


def _trivial(constraint: Compare, element: list[Value], access: Access) -> bool:
    if constraint.poly.constant is not None:
        value = constraint.poly.constant
        return value >= 0 if constraint.kind == "ge" else value == 0
    for k, e in enumerate(element):
        ends = (atom(e), atom(Dim(access.memref, k)) - ONE - atom(e))
        if constraint.kind == "ge" and any(_at_least(constraint.poly, end) for end in ends):
            return True
    return False


def _at_least(poly: Poly, end: Poly) -> bool:
    difference = (poly - end).constant
    return difference is not None and difference >= ZERO.offset

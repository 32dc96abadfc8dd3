"""The fibre of an access: which iterations touch a given element."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from weft.errors import WeftError
from weft.index.access import Access
from weft.index.expression import (
    ONE,
    ZERO,
    Both,
    Compare,
    Condition,
    Dim,
    Floor,
    Pick,
    Poly,
    atom,
    floor,
    number,
    show,
)
from weft.ir.core import Op, Value
from weft.ir.types import index


class NotAffine(WeftError):
    """A fibre that is not found; the message says why."""


@dataclass(slots=True)
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
    for poly, value in zip(access.subscripts, access.op.operands[2:], strict=True):
        if poly is None:
            raise NotAffine(f"data-dependent subscript {written(value)}")
    element = [Value(index, f"j{k}") for k in range(len(access.subscripts))]
    ivs = [loop.iv for loop in access.loops]
    found = Fibre(element)
    turns = _Turns()
    subscripts = [turns.without(s, e, access) for s, e in
                  zip(access.subscripts, element, strict=True) if s is not None]  # fmt: skip
    constraints = _solve(access, subscripts, element, ivs, found)
    constraints += [*turns.constraints, *_domain(access, found)]
    same = same_sizes(access)
    clean = [part for c in constraints for part in _plain(Compare(c.kind, c.poly.substitute(same)))]
    free = [*(iv for iv in ivs if iv not in found.solved), *turns.numbers]
    _bounds(clean, free, [m.substitute(same) for m in turns.moduli], found, access)
    return found


@dataclass(slots=True)
class _Turns:
    """Periodic subscripts: ``e % n = j`` where ``e = j + n * q`` for a number of turns ``q``, which
    is one more index to sum over."""

    numbers: list[Value] = field(default_factory=list)
    moduli: list[Poly] = field(default_factory=list)
    constraints: list[Compare] = field(default_factory=list)

    def without(self, poly: Poly, element: Value, access: Access) -> Poly:
        """``poly``, or where it is a remainder what is equal to the same element."""
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
    op = value.owner
    if not isinstance(op, Op) or depth == 0:
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
            continue
        if factor > 0:  # iv >= -rest / factor, rounded up
            bounds[last][0].append(-floor(rest, number(factor)))
        else:
            bounds[last][1].append(floor(rest, number(-factor)))
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

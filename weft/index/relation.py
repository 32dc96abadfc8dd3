"""Accesses as isl relations ``{ S[indices] -> A[subscripts] : domain }``, and questions to them.

Sizes and scalar arguments are isl parameters. What is not known is left out, so that a relation
holds at least the pairs that occur; it holds exactly these where ``access.exact`` and the text says
``exact``. Questions that are asked during compilation are bounded: isl stops after
``MAX_OPERATIONS`` steps, which counts as "not known" (``Budget``: for all questions of a kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb
from time import perf_counter
from typing import TYPE_CHECKING, Any

from weft.index.access import Access, Loop, accesses
from weft.index.expression import (
    Atom,
    Both,
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
    negate,
    show,
)
from weft.index.meeting import aligned, apart, varies
from weft.ir.core import Function, Value

if TYPE_CHECKING:
    import islpy

# Steps of isl for one question: 4 to 400 ms. No question of the tests needs 20,000.
MAX_OPERATIONS = 40_000

# Words of isl's own notation, which no name may be.
_RESERVED = frozenset(
    ("and", "or", "not", "exists", "true", "false", "mod", "min", "max", "floor", "ceil", "floord",
     "ceild", "implies", "infty", "NaN", "rat")
)  # fmt: skip


def context() -> islpy.Context:
    """A new isl context with the bound on work."""
    import islpy  # 50 ms: only kernels that the quick arguments do not settle pay for it

    made = islpy.Context()
    made.set_max_operations(MAX_OPERATIONS)
    return made


class Budget:
    """What isl may do for all the questions about one kernel.

    So many questions may end without an answer; the rest is "not known" then. Time counts only far
    beyond what the questions of ordinary kernels take, so that verdicts are the same everywhere.
    """

    UNANSWERED = 3
    SECONDS = 3.0

    def __init__(self) -> None:
        self.asked = 0
        self.unanswered = 0
        self._begin = perf_counter()

    @property
    def spent(self) -> bool:
        late = self.asked > 0 and perf_counter() - self._begin > self.SECONDS
        return late or self.unanswered >= self.UNANSWERED


class Text:
    """Writes expressions in isl's notation, giving each symbol and index a name of its own.

    ``exact`` turns False when something had to be left out or replaced by a free parameter (the
    product of two sizes). ``parameters`` maps names to the symbols they stand for.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, Value | Dim | None] = {}
        self.exact = True
        self.auxiliary: list[str] = []
        self.constraints: list[str] = []
        self._names: dict[object, str] = {}
        self._used: set[str] = set()

    def fresh(self, hint: str) -> str:
        """A name like ``hint`` that nothing else has."""
        stem = "".join(c if c.isalnum() and c.isascii() else "_" for c in hint) or "d"
        stem = stem if stem[0].isalpha() or stem[0] == "_" else f"n{stem}"
        name, k = stem, 1
        while name in self._used or name in _RESERVED:
            name, k = f"{stem}{'_' if stem[-1].isdigit() else ''}{k}", k + 1
        self._used.add(name)
        return name

    def parameter(self, symbol: Value | Dim) -> str:
        if symbol not in self._names:
            hint = f"{symbol.memref.name}_{symbol.axis}" if isinstance(symbol, Dim) else symbol.name
            name = self._names[symbol] = self.fresh(hint or "p")
            self.parameters[name] = symbol
            if isinstance(symbol, Dim):
                self.constraints.append(f"{name} >= 0")
        return self._names[symbol]

    def _opaque(self, key: object, hint: str) -> str:
        """A free parameter for an invariant that is not affine."""
        self.exact = False
        if key not in self._names:
            name = self._names[key] = self.fresh(hint)
            self.parameters[name] = None
        return self._names[key]

    def affine(self, poly: Poly, indices: Mapping[Value, str]) -> str | None:
        """``poly`` as isl text, None (and not exact) where an index is multiplied by a symbol."""
        pieces = []
        for monomial, factor in poly.terms.items():
            body = self._monomial(monomial, indices)
            if body is None:
                self.exact = False
                return None
            pieces.append(body if body and factor == 1 else f"{factor}{body and '*'}{body}")
        return " + ".join(pieces) or "0"

    def _monomial(self, monomial: Monomial, indices: Mapping[Value, str]) -> str | None:
        match monomial:
            case ():
                return ""
            case (single,):
                return self._atom(single, indices)
            case _:
                if any(varies(a, set(indices)) for a in monomial):
                    return None
                return self._opaque(monomial, "_".join(show(atom(a)) for a in monomial))

    def _atom(self, a: Atom, indices: Mapping[Value, str]) -> str | None:
        match a:
            case Floor(numerator, divisor):
                if divisor.constant is None:
                    hint = "quotient"
                    return None if varies(a, set(indices)) else self._opaque(a, hint)
                inner = self.affine(numerator, indices)
                return inner and f"floor(({inner})/{divisor.constant})"
            case Pick(kind, left, right):
                pair = self.affine(left, indices), self.affine(right, indices)
                return None if None in pair else f"{kind}({pair[0]}, {pair[1]})"
            case Choice(condition, left, right):
                return self._choice(condition, left, right, indices)
            case Value() if a in indices:
                return indices[a]
            case _:
                return self.parameter(a)

    def _choice(
        self, condition: Condition, left: Poly, right: Poly, indices: Mapping[Value, str]
    ) -> str | None:
        pair = self.affine(left, indices), self.affine(right, indices)
        if None in pair:
            return None
        name = self.fresh("choice")
        self.auxiliary.append(name)
        yes, no = self.condition(condition, indices), self.condition(negate(condition), indices)
        self.constraints.append(
            f"((({yes}) and {name} = {pair[0]}) or (({no}) and {name} = {pair[1]}))"
        )
        return name

    def condition(self, condition: Condition | None, indices: Mapping[Value, str]) -> str:
        """The condition in isl's notation; an unknown part counts as true."""
        match condition:
            case Compare(kind, poly):
                text = self.affine(poly, indices)
                sign = {"ge": ">=", "eq": "=", "ne": "!="}[kind]
                return "true" if text is None else f"{text} {sign} 0"
            case Both(inner):
                return " and ".join(f"({self.condition(p, indices)})" for p in inner) or "true"
            case Either(inner):
                return " or ".join(f"({self.condition(p, indices)})" for p in inner) or "false"
            case None:
                self.exact = False
                return "true"

    def domain(self, access: Access, indices: Mapping[Value, str]) -> list[str]:
        """The iterations that carry ``access`` out, as constraints."""
        found = []
        for loop in access.loops:
            found += self._range(loop, indices)
        return found + [f"({self.condition(g, indices)})" for g in access.guards]

    def _range(self, loop: Loop, indices: Mapping[Value, str]) -> list[str]:
        name = indices[loop.iv]
        lower = None if loop.lower is None else self.affine(loop.lower, indices)
        upper = None if loop.upper is None else self.affine(loop.upper, indices)
        step = None if loop.step is None else loop.step.constant
        found = [] if lower is None else [f"{name} >= {lower}"]
        if upper is not None:
            found.append(f"{name} < {upper}")
        if step is not None and step > 1 and lower is not None:
            found.append(f"({name} - ({lower})) mod {step} = 0")
        if lower is None or upper is None or step is None:
            self.exact = False
        return found

    def finish(self, body: str, constraints: Sequence[str]) -> str:
        """The whole set or map."""
        text = " and ".join([*self.constraints, *constraints]) or "true"
        if self.auxiliary:
            text = f"exists ({', '.join(self.auxiliary)} : {text})"
        return f"[{', '.join(self.parameters)}] -> {{ {body} : {text} }}"


def relation_text(access: Access) -> str:
    """The relation in isl's notation; unknown dimensions of the element are unconstrained."""
    text = Text()
    indices = {loop.iv: text.fresh(loop.iv.name or "i") for loop in access.loops}
    constraints = text.domain(access, indices)
    element = [
        "*" if poly is None else text.affine(poly, indices) or "*" for poly in access.subscripts
    ]
    memref = text.fresh(access.memref.name or "A")
    body = f"S[{', '.join(indices.values())}] -> {memref}[{', '.join(element)}]"
    return text.finish(body, constraints)


def relation(access: Access) -> islpy.Map:
    """``{ S[parallel and serial indices, outermost first] -> A[subscripts] : domain }``.

    It lives in ``islpy.DEFAULT_CONTEXT``, so that relations can be combined with each other (isl
    finds objects of different contexts unequal); the bound on work does not hold there.
    """
    import islpy  # 50 ms, see context

    return islpy.Map(relation_text(access))


def inverse(access: Access) -> islpy.Map:
    """``{ A[element] -> S[indices] }``: which iterations touch an element."""
    return relation(access).reverse()


def fibre_bounds(access: Access) -> list[tuple[islpy.PwAff, islpy.PwAff]]:
    """For each index (as in ``relation``): its least and greatest value given the element.

    Functions of the element and the parameters, for the loops of a gradient in gather form. Raises
    ``isl.Error`` where an index has no bound (an unknown subscript or loop bound).
    """
    fibres = inverse(access)
    count = len(access.loops)
    return [(fibres.dim_min(k), fibres.dim_max(k)) for k in range(count)]


def is_injective_over_parallel(access: Access) -> bool:
    """Proves that through ``access`` two different parallel iterations never touch one element."""
    import islpy  # 50 ms, see context

    if apart(access, access):
        return True
    try:
        return meeting_set(access, access, Text()).is_empty()
    except islpy.Error:  # more work than MAX_OPERATIONS
        return False


def meeting_set(a: Access, b: Access, text: Text, at_least_zero: bool = False) -> islpy.Set:
    """``{ [parallel a, parallel b, serial a, serial b] }`` of different iterations on one element.

    ``text`` receives names and exactness. ``at_least_zero``: subscripts are not negative.
    """
    import islpy  # 50 ms, see context

    first = {loop.iv: text.fresh(loop.iv.name or "i") for loop in a.loops}
    second = {loop.iv: text.fresh((loop.iv.name or "i") + "_") for loop in b.loops}
    constraints = text.domain(a, first) + text.domain(b, second)
    pairs = aligned(a, b)
    if pairs is None:
        constraints.append("false")
    for left, right in pairs or ():
        x, y = text.affine(left, first), text.affine(right, second)
        if x is not None and y is not None:
            constraints.append(f"{x} = {y}")
            if at_least_zero:
                constraints.append(f"{x} >= 0")
    p = [first[iv] for iv in a.parallel]
    q = [second[iv] for iv in b.parallel]
    constraints.append("(" + _different(p, q, symmetric=a is b) + ")")
    order = [*p, *q, *(first[iv] for iv in a.serial), *(second[iv] for iv in b.serial)]
    made = text.finish(f"[{', '.join(order)}]", constraints)
    return islpy.Set.read_from_str(context(), made)


def _different(p: list[str], q: list[str], symmetric: bool) -> str:
    if not symmetric:
        return " or ".join(f"{x} != {y}" for x, y in zip(p, q, strict=True)) or "false"
    cases = []
    for k, (x, y) in enumerate(zip(p, q, strict=True)):
        same = "".join(f"{u} = {v} and " for u, v in zip(p[:k], q[:k], strict=True))
        cases.append(f"({same}{x} < {y})")
    return " or ".join(cases) or "false"


def covers_all(
    function: Function, memref: Value, sizes: Mapping[tuple[Value, int], Value] | None = None
) -> bool:
    """Proves that ``function`` writes every element of ``memref`` exactly once, by plain stores.

    ``sizes`` says which scalar arguments are known to be extents: ``{(memref, axis): argument}``.
    False means that it is not so, or not known.
    """
    import islpy  # 50 ms, see context

    extents = {Dim(m, axis): atom(value) for (m, axis), value in (sizes or {}).items()}
    writes = [a.substitute(lambda leaf: extents.get(leaf) if isinstance(leaf, Dim) else None)
              for a in accesses(function) if a.memref is memref and a.writes]  # fmt: skip
    if not writes or any(a.kind != "store" or not a.exact for a in writes):
        return False
    ends = [extents.get(Dim(memref, k), atom(Dim(memref, k))) for k in range(memref.memref.rank)]
    if len(writes) == 1 and _is_whole(writes[0], ends):
        return True
    text = Text()
    maps = []
    for a in writes:
        indices = {loop.iv: text.fresh(loop.iv.name or "i") for loop in a.loops}
        constraints = text.domain(a, indices)
        element = [text.affine(p, indices) for p in a.subscripts if p is not None]
        if None in element:
            return False
        maps.append((f"S[{', '.join(indices.values())}] -> [{', '.join(map(str, element))}]",
                     constraints))  # fmt: skip
    names = [text.fresh(f"a{k}") for k in range(memref.memref.rank)]
    box = [f"0 <= {n} < {text.affine(end, {})}" for n, end in zip(names, ends, strict=True)]
    if not text.exact or text.auxiliary:
        return False
    try:
        shared = context()
        whole = islpy.Set.read_from_str(shared, text.finish(f"[{', '.join(names)}]", box))
        written = whole.subtract(whole)
        for body, constraints in maps:
            one = islpy.Map.read_from_str(shared, text.finish(body, constraints))
            image = one.range()
            if not one.is_injective() or not image.is_disjoint(written):
                return False
            written = written.union(image)
        return written.is_equal(whole)
    except islpy.Error:  # more work than MAX_OPERATIONS
        return False


def _is_whole(access: Access, ends: Sequence[Poly]) -> bool:
    """One unconditional store whose subscripts are the loop indices, each over its whole extent."""
    loops = {atom(loop.iv): loop for loop in access.loops}
    if access.guards or len(loops) != len(ends) or set(access.subscripts) != set(loops):
        return False
    for poly, end in zip(access.subscripts, ends, strict=True):
        assert poly is not None
        loop = loops[poly]
        bounds = loop.lower, loop.upper, loop.step
        if bounds[0] is None or bounds[0].terms or bounds[1] != end:
            return False
        if bounds[2] is None or bounds[2].constant != 1:
            return False
    return True


# --------------------------------------------------------------------------------------- counting

Sum = dict[Monomial, Fraction]  # a polynomial with rational coefficients


def count(access: Access) -> Sum | None:
    """How often ``access`` is carried out: a polynomial ``{monomial: coefficient}`` in the symbols.

    Sums over the loops, innermost first (Faulhaber's formula), which covers boxes, triangles and
    the like. It holds where no loop's upper bound is below its lower bound. None where conditions,
    steps other than 1, divisions or unknown bounds are in the way.
    """
    if access.guards:
        return None
    total: Sum = {(): Fraction(1)}
    for loop in reversed(access.loops):
        if loop.lower is None or loop.upper is None or loop.step is None:
            return None
        if loop.step.constant != 1:
            return None
        total = _summed(total, loop.iv, loop.lower, loop.upper)
    compound = (Floor, Pick, Choice)
    return None if any(isinstance(a, compound) for m in total for a in m) else total


def _summed(total: Sum, iv: Value, lower: Poly, upper: Poly) -> Sum:
    """The sum of ``total`` over ``lower <= iv < upper``."""
    result: Sum = {}
    for monomial, factor in total.items():
        rest = tuple(a for a in monomial if a is not iv)
        power = len(monomial) - len(rest)
        for k, share in enumerate(_faulhaber(power)):
            ends = _power(upper, k + 1) - _power(lower, k + 1)
            for m, f in (ends * Poly({rest: 1})).terms.items():
                result[m] = result.get(m, Fraction(0)) + f * share * factor
    return {m: f for m, f in result.items() if f}


def _faulhaber(power: int) -> list[Fraction]:
    """Coefficients of n, n**2, ... in the sum of k**power over 0 <= k < n."""
    bernoulli: list[Fraction] = []
    for m in range(power + 1):
        rest = sum((comb(m + 1, k) * bernoulli[k] for k in range(m)), Fraction(0))
        bernoulli.append(Fraction(m == 0) - rest / (m + 1))
    # sum = 1/(p+1) * sum_k comb(p+1, k) B_k n**(p+1-k)
    return [comb(power + 1, power - k) * bernoulli[power - k] / (power + 1)
            for k in range(power + 1)]  # fmt: skip


def _power(poly: Poly, exponent: int) -> Poly:
    result: Any = Poly({(): 1})
    for _ in range(exponent):
        result = result * poly
    return result

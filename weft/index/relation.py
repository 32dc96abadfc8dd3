"""Accesses as isl relations ``{ S[indices] -> A[subscripts] : domain }``, and questions to them.

Sizes and scalar arguments are isl parameters. What is not known is left out, so that a relation
holds at least the pairs that occur; it holds exactly these where ``access.exact`` and the text says
``exact``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from weft.index.access import Access, Loop
from weft.index.disjoint import aligned, varies
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
from weft.ir.core import Value

if TYPE_CHECKING:
    pass

# Words of isl's own notation, which no name may be.
_RESERVED = frozenset(
    ("and", "or", "not", "exists", "true", "false", "mod", "min", "max", "floor", "ceil", "floord",
     "ceild", "implies", "infty", "NaN", "rat")
)  # fmt: skip


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


def meetings(a: Access, b: Access, text: Text, at_least_zero: bool = False) -> str:
    """``{ [parallel a, parallel b, serial a, serial b] }`` of different iterations on one element.

    ``text`` receives names and exactness. ``at_least_zero``: subscripts are not negative.
    """
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
    return text.finish(f"[{', '.join(order)}]", constraints)


def _different(p: list[str], q: list[str], symmetric: bool) -> str:
    if not symmetric:
        return " or ".join(f"{x} != {y}" for x, y in zip(p, q, strict=True)) or "false"
    cases = []
    for k, (x, y) in enumerate(zip(p, q, strict=True)):
        same = "".join(f"{u} = {v} and " for u, v in zip(p[:k], q[:k], strict=True))
        cases.append(f"({same}{x} < {y})")
    return " or ".join(cases) or "false"

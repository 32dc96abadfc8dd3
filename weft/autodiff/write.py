"""Index expressions as IR."""

from __future__ import annotations

from collections.abc import Sequence

from weft.index.expression import (
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
)
from weft.ir.builder import Builder
from weft.ir.core import Value
from weft.ir.types import i1, index


class Writer:
    """Builds the operations that compute an expression. ``values`` says what its symbols are."""

    def __init__(self, builder: Builder, values: dict[Value, Value]) -> None:
        self.b = builder
        self.values = values

    def poly(self, poly: Poly) -> Value:
        total: Value | None = None
        for monomial, factor in sorted(poly.terms.items(), key=lambda t: t[1] < 0):
            term = None
            for part in monomial:
                value = self.atom(part)
                term = value if term is None else self.b.op("arith.muli", term, value)
            if term is None:
                term = self.b.constant(abs(factor), index)
            elif abs(factor) != 1:
                term = self.b.op("arith.muli", term, self.b.constant(abs(factor), index))
            if total is None and factor > 0:
                total = term
            else:
                total = self.b.constant(0, index) if total is None else total
                total = self.b.op("arith.addi" if factor > 0 else "arith.subi", total, term)
        return self.b.constant(0, index) if total is None else total

    def atom(self, part: Atom) -> Value:
        match part:
            case Dim(memref, axis):
                return self.b.op("memref.dim", self.values[memref], axis=axis)
            case Floor(numerator, divisor):
                pair = self.poly(numerator), self.poly(divisor)
                return self.b.op("arith.floordivsi", *pair)
            case Pick(kind, left, right):
                return self.b.op(f"arith.{kind}si", self.poly(left), self.poly(right))
            case Choice(condition, left, right):
                test = self.condition(condition)
                return self.b.op("arith.select", test, self.poly(left), self.poly(right))
            case _:
                value = self.values[part]
                if value.type is not index:
                    value = self.b.op("arith.index_cast", value, type=index)
                return value

    def condition(self, condition: Condition | None) -> Value:
        match condition:
            case Compare(kind, poly):
                predicate = {"ge": "sge", "eq": "eq", "ne": "ne"}[kind]
                zero = self.b.constant(0, index)
                return self.b.op("arith.cmpi", self.poly(poly), zero, predicate=predicate)
            case Both() | Either():
                parts = condition.parts
                both = isinstance(condition, Both)
                result = self.b.constant(both, i1)
                for inner in parts:
                    name = "arith.andi" if both else "arith.ori"
                    result = self.b.op(name, result, self.condition(inner))
                return result
            case _:
                raise ValueError("the condition is not known")

    def all(self, conditions: Sequence[Condition]) -> Value:
        result = self.condition(conditions[0])
        for condition in conditions[1:]:
            result = self.b.op("arith.andi", result, self.condition(condition))
        return result

    def extreme(self, name: str, polys: Sequence[Poly]) -> Value:
        result = self.poly(polys[0])
        for poly in polys[1:]:
            result = self.b.op(name, result, self.poly(poly))
        return result

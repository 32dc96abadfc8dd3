"""The maps by which turns of a serial loop change what it carries, as IR: see ``recurrences``.

A sum has a map of one number, what is added. An affine map of ``n`` values that belong together has
``n + 1`` for each of them, the factors of all and what is added; other families one, what the value
is combined with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from weft.ir.core import Block, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import ScalarType
from weft.ir.views import For, If
from weft.schedule.combiners import choice, neutral
from weft.schedule.cooperate import Members
from weft.schedule.entries import Entry, arithmetic, product_sum, scaled, summed, written
from weft.schedule.expose import anywhere
from weft.schedule.recurrences import Group, Recurrences

Linear = tuple[tuple[Entry, ...], Value | None]  # factors, and what is added, if anything


class TurnMaps(Members):
    """``serial``: the loop at hand, with ``found``. ``level``: of what is known, see
    ``Recurrences``. Operations of the loop are to be written for one turn before its map is."""

    serial: Op
    found: Recurrences
    level: int

    def carried_at(self, k: int) -> tuple[Value, Value]:
        """What a turn begins and ends with."""
        body = self.serial.body
        return body.args[1 + k], body.terminator.operands[k]

    def scalar_of(self, group: Group) -> ScalarType:
        return For(self.serial).inits[group[0]].scalar

    def anywhere(self, group: Group) -> bool:
        """Whether maps may be computed beyond the loop's last turn."""
        return all(
            anywhere(op) for op in self.serial.body.ops
            if op.regions and any(self.found.moves(v, group) for v in op.results)
        )  # fmt: skip

    def map(self, group: Group) -> list[Entry]:
        """The numbers by which the turn changes values: 0 and 1 where that is so in every turn."""
        family = self.found.families[group]
        if family not in ("sum", "affine"):
            return [*self.evaluated(group, self.values(self.identity(group), group))]
        args, ends = zip(*map(self.carried_at, group), strict=True)
        known: dict[Value, Linear] = {
            arg: (tuple(int(arg is other) for other in args), None) for arg in args
        }
        numbers: list[Entry] = []
        for end in ends:
            factors, added = self.linear(end, group, known)
            none = 0 if len(group) > 1 else self.nothing(self.scalar_of(group))
            numbers += () if family == "sum" else factors
            numbers.append(none if added is None else added)
        return numbers if len(group) > 1 else [*self.values(numbers, group)]

    def evaluated(self, group: Group, carried: Sequence[Value]) -> list[Value]:
        """What the turn makes of ``carried``."""
        args, ends = zip(*map(self.carried_at, group), strict=True)
        known = dict(zip(args, carried, strict=True))
        return [self.value(end, group, known) for end in ends]

    def value(self, value: Value, group: Group, known: dict[Value, Value]) -> Value:
        if value in known:
            return known[value]
        op = value.op
        if op is None or not self.found.moves(value, group):
            return self.lookup(value)
        if op.name == "scf.if":
            condition = self.value(If(op).condition, group, known)
            (made,) = self.of_arms(
                value, condition, 1, lambda v: [self.value(v, group, known.copy())]
            )
        else:
            made = self.copied(op, lambda v: self.value(v, group, known)).result
        known[value] = made
        return made

    def of_arms(
        self, value: Value, condition: Value, count: int, of: Callable[[Value], list[Value]]
    ) -> list[Value]:
        """So many numbers that are ``of`` what a branch has in its arms."""
        op, found = value.op, choice(value)
        assert op is not None
        assert found is not None

        def arm(region: Block, end: Value) -> list[Value]:
            for inner in region.ops[:-1]:
                if self.found.stage(inner) <= self.level:
                    self.rewrite(inner)
            return of(end)

        then, otherwise = (partial(arm, *pair) for pair in zip(op.regions, found[1:], strict=True))
        return self.either(condition, then, otherwise, [value.type] * count)

    # -- affine maps

    def linear(self, value: Value, group: Group, known: dict[Value, Linear]) -> Linear:
        """The factors of what is carried at ``group`` in ``value``, and what is added."""
        if value not in known:
            known[value] = self.form(value, group, known)
        return known[value]

    def form(self, value: Value, group: Group, known: dict[Value, Linear]) -> Linear:
        op = value.op
        if op is None or not self.found.moves(value, group):
            return (0,) * len(group), self.lookup(value)
        if (found := choice(value)) is not None:
            return self.choice(value, found, group, known)
        parts = [self.linear(v, group, known) for v in op.operands]
        match op.name.partition(".")[2]:
            case "addf" | "addi":
                return self.plus(parts[0], parts[1])
            case "subf" | "subi":
                return self.plus(parts[0], self.times(parts[1], -1))
            case "negf":
                return self.times(parts[0], -1)
            case "fma":
                return self.plus(self.product(parts[0], parts[1]), parts[2])
            case "divf":
                by = parts[1][1]
                assert by is not None
                over, added = parts[0]
                factors = [
                    0 if f == 0 and len(group) > 1
                    else self.op("arith.divf", written(self, f, by), by) for f in over
                ]  # fmt: skip
                return tuple(factors), None if added is None else self.op("arith.divf", added, by)
            case _:
                return self.product(parts[0], parts[1])

    def choice(
        self, value: Value, found: tuple[Value, Value, Value], group: Group,
        known: dict[Value, Linear],
    ) -> Linear:  # fmt: skip
        """Of one of two values."""
        none, condition = self.nothing(value.scalar), self.lookup(found[0])

        def numbers(part: Linear) -> list[Value]:
            factors, added = part
            return [none if added is None else added, *(written(self, f, none) for f in factors)]

        if value.op is not None and value.op.name == "scf.if":
            count = 1 + len(group) * (self.found.families[group] == "affine")
            added, *factors = self.of_arms(
                value, condition, count,
                lambda v: numbers(self.linear(v, group, known.copy()))[:count],
            )  # fmt: skip
            return tuple(factors) or (1,), added
        yes, no = (self.linear(v, group, known) for v in found[1:])
        added, *factors = self.chosen(condition, numbers(yes), numbers(no))
        same = zip(yes[0], no[0], factors, strict=True)
        return tuple(a if a == b else made for a, b, made in same), added

    def product(self, a: Linear, b: Linear) -> Linear:
        """Of an affine map and a number."""
        if any(factor != 0 for factor in b[0]):
            a, b = b, a
        assert b[1] is not None
        return self.times(a, b[1])

    def times(self, a: Linear, b: Entry) -> Linear:
        factors, added = a
        factors = tuple(scaled(self, factor, b) for factor in factors)
        if added is not None:
            added = arithmetic(self, "mul", added, written(self, b, added))
        return factors, added

    def plus(self, a: Linear, b: Linear) -> Linear:
        factors = tuple(summed(self, *pair) for pair in zip(a[0], b[0], strict=True))
        if a[1] is None or b[1] is None:
            return factors, b[1] if a[1] is None else a[1]
        return factors, arithmetic(self, "add", a[1], b[1])

    def values(self, numbers: Sequence[Entry], group: Group) -> list[Value]:
        type = self.scalar_of(group)
        return [self.constant(v, type) if isinstance(v, int) else v for v in numbers]

    # -- families

    def identity(self, group: Group) -> list[Value]:
        """The map that changes nothing."""
        type, family = self.scalar_of(group), self.found.families[group]
        if family in ("sum", "affine"):
            return [
                v for row in range(len(group))
                for v in (*(self.constant(int(row == other), type) for other in range(len(group))
                            if family == "affine"), self.nothing(type))
            ]  # fmt: skip
        kind = family if f"arith.{family}" in OPS else f"first.{family}"
        return [self.constant(neutral(kind, type), type)]

    def nothing(self, type: ScalarType) -> Value:
        """What changes no sum."""
        return self.constant(neutral("addf" if type.is_float else "addi", type), type)

    def composed(self, group: Group, one: list[Entry], other: list[Entry]) -> list[Entry]:
        """The map of ``one`` and then ``other``."""
        if self.found.families[group] != "affine":
            return [*self.applied(group, self.values(other, group), self.values(one, group))]
        made: list[Entry] = []
        for factors, added in self.rows(other):
            for column in zip(*(row for row, _ in self.rows(one)), strict=True):
                made.append(product_sum(self, factors, column))
            made.append(product_sum(self, factors, [a for _, a in self.rows(one)], added))
        return made

    def rows(self, map: Sequence[Entry]) -> list[tuple[Sequence[Entry], Entry]]:
        """Of each value of an affine map, the factors and what is added."""
        size = math.isqrt(len(map))
        return [(map[k : k + size], map[k + size]) for k in range(0, len(map), size + 1)]

    def applied(self, group: Group, map: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        """What a map makes of values."""
        family = self.found.families[group]
        if family == "affine":
            return self.values(
                [product_sum(self, factors, values, added) for factors, added in self.rows(map)],
                group,
            )
        (value,) = values
        if family == "sum":
            return [arithmetic(self, "add", value, map[0])]
        if f"arith.{family}" in OPS:
            return [self.op(f"arith.{family}", value, map[0])]
        name = "arith.cmpf" if value.scalar.is_float else "arith.cmpi"
        beyond = self.op(name, map[0], value, predicate=family)
        return self.chosen(beyond, map, values)

    def after(
        self, groups: Sequence[Group], maps: Sequence[Sequence[Value]], state: Sequence[Value]
    ) -> list[Value]:
        """What ``maps`` make of the values of all groups, one after the other."""
        left = iter(state)
        return [
            v for group, map in zip(groups, maps, strict=True)
            for v in self.applied(group, map, [next(left) for _ in group])
        ]  # fmt: skip

    def chosen(self, condition: Value, yes: Sequence[Value], no: Sequence[Value]) -> list[Value]:
        return [
            a if a is b else self.op("arith.select", condition, a, b, type=a.type)
            for a, b in zip(yes, no, strict=True)
        ]

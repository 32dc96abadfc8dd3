"""The maps by which turns of a serial loop change what it carries, as IR: see ``recurrences``.

A sum has a map of one number, what is added; an affine map two, the factor and what is added; other
families one, what the value is combined with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from weft.ir.core import Block, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import ScalarType
from weft.ir.views import For, If
from weft.schedule.combiners import choice, neutral
from weft.schedule.cooperate import Members
from weft.schedule.expose import anywhere
from weft.schedule.recurrences import Recurrences

Linear = tuple[int | Value, Value | None]


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

    def anywhere(self, k: int) -> bool:
        """Whether maps may be computed beyond the loop's last turn."""
        return all(
            anywhere(op) for op in self.serial.body.ops
            if op.regions and any(k in self.found.depends.get(v, ()) for v in op.results)
        )  # fmt: skip

    def map(self, k: int) -> list[Value]:
        """The numbers by which the turn changes a value."""
        (_, end), family = self.carried_at(k), self.found.families[k]
        if family not in ("sum", "affine"):
            return [self.evaluated(end, k, self.identity(k)[0])]
        factor, added = self.linear(end, k)
        added = self.identity(k)[-1] if added is None else added
        return [added] if family == "sum" else [self.written(factor, added), added]

    def evaluated(self, value: Value, k: int, carried: Value) -> Value:
        """``value``, where what is carried at ``k`` is ``carried``."""
        if value is self.carried_at(k)[0]:
            return carried
        op = value.op
        if op is None or k not in self.found.depends.get(value, ()):
            return self.lookup(value)
        if op.name == "scf.if":
            condition = self.evaluated(If(op).condition, k, carried)
            return self.of_arms(value, condition, 1, lambda v: [self.evaluated(v, k, carried)])[0]
        return self.copied(op, lambda v: self.evaluated(v, k, carried)).result

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

    def linear(self, value: Value, k: int) -> Linear:
        """The factor of what is carried in ``value``, and what is added (None: nothing)."""
        if value is self.carried_at(k)[0]:
            return 1, None
        op = value.op
        if op is None or k not in self.found.depends.get(value, ()):
            return 0, self.lookup(value)
        if (found := choice(value)) is not None:
            return self.choice(value, found, k)
        parts = [self.linear(v, k) for v in op.operands]
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
                (factor, added) = parts[0]
                over = self.op("arith.divf", self.written(factor, by), by)
                return over, None if added is None else self.op("arith.divf", added, by)
            case "index_cast":
                factor, added = parts[0]
                return (
                    factor if isinstance(factor, int) else self.to(factor, value.type),
                    None if added is None else self.to(added, value.type),
                )
            case _:
                return self.product(parts[0], parts[1])

    def choice(self, value: Value, found: tuple[Value, Value, Value], k: int) -> Linear:
        """Of one of two values."""
        none, condition = self.nothing(value.scalar), self.lookup(found[0])

        def numbers(part: Linear) -> list[Value]:
            factor, added = part
            return [none if added is None else added, self.written(factor, none)]

        if value.op is not None and value.op.name == "scf.if":
            both = 1 + (self.found.families[k] == "affine")
            made = self.of_arms(value, condition, both, lambda v: numbers(self.linear(v, k))[:both])
            return made[1] if both == 2 else 1, made[0]
        yes, no = (self.linear(v, k) for v in found[1:])
        made = self.chosen(condition, numbers(yes), numbers(no))
        return yes[0] if yes[0] == no[0] else made[1], made[0]

    def product(self, a: Linear, b: Linear) -> Linear:
        """Of an affine map and a number."""
        if b[0] != 0:
            a, b = b, a
        assert b[1] is not None
        return self.times(a, b[1])

    def times(self, a: Linear, b: int | Value) -> Linear:
        factor, added = a
        if isinstance(factor, int) and isinstance(b, int):
            factor *= b
        elif factor == 1:
            factor = b
        elif factor != 0:
            like = factor if isinstance(factor, Value) else b
            assert isinstance(like, Value)
            factor = self.arithmetic("mul", self.written(factor, like), self.written(b, like))
        if added is not None:
            added = self.arithmetic("mul", added, self.written(b, added))
        return factor, added

    def plus(self, a: Linear, b: Linear) -> Linear:
        factor: int | Value
        if isinstance(a[0], int) and isinstance(b[0], int):
            factor = a[0] + b[0]
        elif 0 in (a[0], b[0]):
            factor = b[0] if a[0] == 0 else a[0]
        else:
            like = a[0] if isinstance(a[0], Value) else b[0]
            assert isinstance(like, Value)
            factor = self.arithmetic("add", self.written(a[0], like), self.written(b[0], like))
        if a[1] is None or b[1] is None:
            return factor, b[1] if a[1] is None else a[1]
        return factor, self.arithmetic("add", a[1], b[1])

    def arithmetic(self, name: str, a: Value, b: Value) -> Value:
        return self.op(f"arith.{name}{'f' if a.scalar.is_float else 'i'}", a, b)

    def written(self, value: int | Value, like: Value) -> Value:
        return self.constant(value, like.scalar) if isinstance(value, int) else value

    # -- families

    def identity(self, k: int) -> list[Value]:
        """The map that changes nothing."""
        type, family = For(self.serial).inits[k].scalar, self.found.families[k]
        if family in ("sum", "affine"):
            one = [self.constant(1, type)] if family == "affine" else []
            return [*one, self.nothing(type)]
        kind = family if f"arith.{family}" in OPS else f"first.{family}"
        return [self.constant(neutral(kind, type), type)]

    def nothing(self, type: ScalarType) -> Value:
        """What changes no sum."""
        return self.constant(neutral("addf" if type.is_float else "addi", type), type)

    def composed(self, k: int, one: list[Value], other: list[Value]) -> list[Value]:
        """The map of ``one`` and then ``other``."""
        if self.found.families[k] == "affine":
            return [self.arithmetic("mul", other[0], one[0]), self.applied(k, other, one[1])]
        return [self.applied(k, other, one[0])]

    def applied(self, k: int, map: list[Value], value: Value) -> Value:
        """What a map makes of ``value``."""
        family = self.found.families[k]
        if family == "affine" and value.scalar.is_float:
            return self.op("math.fma", map[0], value, map[1])
        if family == "affine":
            return self.op("arith.addi", self.op("arith.muli", map[0], value), map[1])
        if family == "sum":
            return self.arithmetic("add", value, map[0])
        if f"arith.{family}" in OPS:
            return self.op(f"arith.{family}", value, map[0])
        name = "arith.cmpf" if value.scalar.is_float else "arith.cmpi"
        beyond = self.op(name, map[0], value, predicate=family)
        return self.chosen(beyond, map, [value])[0]

    def chosen(self, condition: Value, yes: Sequence[Value], no: Sequence[Value]) -> list[Value]:
        return [
            a if a is b else self.op("arith.select", condition, a, b, type=a.type)
            for a, b in zip(yes, no, strict=True)
        ]

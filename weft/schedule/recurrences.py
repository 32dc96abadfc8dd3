"""Recurrences: what a serial loop carries and asks for at every turn, where the turns compose.

A turn maps a carried value ``s`` to the next one. Maps of one family compose to one of that family,
in any grouping: ``s + b``, ``s * b``, ``max(s, b)`` and their like, and ``a * s + b``, where ``a``
and ``b`` do not depend on ``s``. Values that depend on each other are a group, with one map: ``s``
is a vector of up to ``MOST_JOINT`` numbers, ``a`` a matrix (a filter of second order, a rotation).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.core import Block, Function, Op, Value, below, walk
from weft.ir.types import f32, f64
from weft.ir.views import For, If, accessed_by, written_by
from weft.ir.writes import written
from weft.schedule.combiners import INEXACT, choice, combiners, exceeds, is_joint
from weft.values import mutable, remembered

LATE = -1  # as a carried value: what a turn stored before
MOST_JOINT = 4  # values of a group
Group = tuple[int, ...]
_LINEAR = {"arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "math.fma",
           "arith.addi", "arith.subi", "arith.muli"}  # fmt: skip
_COMBINED = ("mulf", "muli", "maximumf", "minimumf", "maxnumf", "minnumf", "maxsi", "minsi",
             "maxui", "minui", "andi", "ori", "xori")  # fmt: skip
_INEXACT = (*INEXACT, "sum", "affine")
_REFUSED = ("scf.while", "memref.alloca")


@mutable
class Recurrences:
    """Of what a loop carries: ``kinds``, the combiner of what is asked for behind the loop only;
    ``families`` of the others, by group, the places of what has one map: "sum", "affine", a
    combiner, or the predicate by which a value takes the place of another one; ``levels``: when
    each is known, as its maps may depend on others. ``depends``: of each value in the loop, the
    places of what it depends on."""

    kinds: list[str | None]
    families: dict[Group, str]
    levels: dict[int, int]
    depends: dict[Value, frozenset[int]]

    @property
    def noted(self) -> tuple[tuple[tuple[str | None, int], ...], tuple[tuple[Group, str], ...]]:
        """All but ``depends``, for ``recalled``."""
        kinds = tuple((kind, self.levels.get(k, -1)) for k, kind in enumerate(self.kinds))
        return kinds, tuple(self.families.items())

    def at(self, level: int) -> list[Group]:
        """What is known at a level."""
        return [group for group in self.families if self.levels[group[0]] == level]

    def numbers(self, group: Group) -> int:
        """Of which a map is made."""
        count = len(group)
        return count * (count + 1) if self.families[group] == "affine" else 1

    def moves(self, value: Value, group: Group) -> bool:
        """Whether a value in the loop depends on what is carried at ``group``."""
        return not self.depends.get(value, frozenset()).isdisjoint(group)

    @property
    def last(self) -> int:
        return max(self.levels.values())

    def stage(self, op: Op) -> int:
        """The level from which on a turn may carry out ``op``; beyond the last level where that is
        for what is known by then: it writes, or reads what it wrote."""
        if any(written_by(inner) is not None for inner in below(op)):
            return self.last + 1
        own = {v for inner in below(op) for region in inner.regions for v in region.args}
        found = {k for inner in below(op) for v in inner.operands if v not in own
                 for k in self.depends.get(v, ())}  # fmt: skip
        found |= {k for v in op.results for k in self.depends.get(v, ())}
        return max((self.levels.get(k, self.last) + 1 for k in found), default=0)


def recurrences(loop: Op, *, strict: bool = False) -> Recurrences | str:
    """What ``loop`` carries, or why its turns do not compose. ``strict``: float sums keep their
    order."""
    name, rows = For(loop).index.name, For(loop).rows
    if refused := next((op for op in walk(loop.body) if op.name in _REFUSED), None):
        what = "a local array" if refused.name == "memref.alloca" else "a loop with a condition"
        return f"the loop over `{name}` has {what} inside"
    kinds = combiners(loop).kinds[: len(rows)]
    if any(kind is not None and is_joint(kind) for kind in kinds):
        return f"what is carried along `{name}` belongs together"
    depends = _depends(loop)
    families: dict[int, str] = {}
    asked: dict[int, frozenset[int]] = {}
    for k, (arg, _, end, result) in enumerate(rows):
        value = result.name or arg.name
        if kinds[k] is None:
            family = _family(k, arg, end, depends)
            if family is None:
                return f"`{value}` is carried along `{name}` by no sum, extremum or affine map"
            families[k], asked[k] = family
        rounds = arg.scalar.is_float and (kinds[k] or families[k]) in _INEXACT
        if strict and rounds:
            return f"strict_math keeps the order of `{value}` along `{name}`"
    if not families:
        return f"nothing that is carried along `{name}` is asked for at every turn"
    found = Recurrences(kinds, {}, {}, depends)
    for group in _groups(asked):
        if len(group) > 1 and (refused := _joint(loop, group, depends)) is not None:
            return refused
        others = frozenset[int]().union(*(asked[k] for k in group)).difference(group)
        if not others <= found.levels.keys():
            arg, _, _, result = rows[min(group)]
            value = result.name or arg.name
            return f"`{value}` depends on what its turn stored"
        level = 1 + max((found.levels[k] for k in others), default=-1)
        found.levels |= dict.fromkeys(group, level)
        found.families[group] = families[group[0]] if len(group) == 1 else "affine"
    found.families = dict(sorted(found.families.items()))
    if (late := _late(loop, found)) is not None:
        value = f"`{late.name}`" if late.name else "a value"
        return (f"{value} comes of a branch or loop along `{name}` with what is known later: "
                "give each its own")  # fmt: skip
    return found


def _late(loop: Op, found: Recurrences) -> Value | None:
    """What is asked for earlier than turns carry out the branch or loop that it comes of, whose
    other results depend on more."""
    inside = [op for op in walk(loop.body) if op.name not in ("scf.yield", "scf.reduce")]
    stages = {op: found.stage(op) for op in inside if op.regions and op.results}

    def missing(values: Iterable[Value], level: int) -> Value | None:
        return next((v for v in values if v.op in stages and stages[v.op] > level), None)

    for op in inside if stages else ():
        asked = (v for inner in below(op) for v in inner.operands)
        level = stages[op] if op in stages else found.stage(op)
        if level <= found.last and (value := missing(asked, level)) is not None:
            return value
    for group in found.families if stages else ():
        level, left = found.levels[group[0]], [For(loop).rows[k][2] for k in group]
        seen = set(left)
        while left:
            value = left.pop()
            if not found.moves(value, group):
                if missing([value], level) is not None:
                    return value
            elif (op := value.op) is not None:
                arms = choice(value)
                parts = {*(op.operands if arms is None else arms)} - seen
                seen |= parts
                left += parts
    return None


def _groups(asked: dict[int, frozenset[int]]) -> list[Group]:
    """Places that ask for each other, directly or not; each group behind what it asks for."""
    reached = dict(asked)
    while (wider := {
        k: some.union(*(reached.get(other, ()) for other in some)) for k, some in reached.items()
    }) != reached:  # fmt: skip
        reached = wider
    groups = {
        k: tuple(o for o in asked if o == k or (o in some and k in reached[o]))
        for k, some in reached.items()
    }
    return sorted(dict.fromkeys(groups.values()), key=lambda g: len(reached[g[0]].union(g)))


def _joint(loop: Op, group: Group, depends: dict[Value, frozenset[int]]) -> str | None:
    """Why what depends on each other has no affine map."""
    name, rows = For(loop).index.name, [For(loop).rows[k] for k in group]
    names = ", ".join(f"`{result.name or arg.name}`" for arg, _, _, result in rows)
    shape = _Shape(group, [arg for arg, *_ in rows], depends)
    kinds = {arg.type for arg, *_ in rows}
    affine = len(kinds) == 1 and all(_affine(arg) for arg, *_ in rows)
    if not affine or any(shape.linear(end) is None for _, _, end, _ in rows):
        return f"{names} depend on each other along `{name}`, by no affine map"
    if len(group) > MOST_JOINT:
        return f"{names} depend on each other along `{name}`: {MOST_JOINT} may, at most"
    return None


def composes(function: Function) -> bool:
    """Whether turns of a loop of ``function`` ask for what it carries, and compose."""
    return any(
        isinstance(recurrences(op, strict=function.strict), Recurrences)
        for op in walk(function.body) if op.name == "scf.for" and op.results
    )  # fmt: skip


def divisions(loop: Op) -> set[Op]:
    """Those in the body of ``loop`` that divide what its turns carry and compose."""
    found = recurrences(loop)
    if isinstance(found, str):
        return set()
    places = {k for group in found.families for k in group}
    return {op for op in loop.body.ops if op.name == "arith.divf"
            and not places.isdisjoint(found.depends.get(op.left, ()))}  # fmt: skip


def recalled(loop: Op) -> Recurrences:
    """What was noted of a loop, which may have other types since."""
    kinds, families = loop.attrs["scan"]
    levels = {k: level for k, (_, level) in enumerate(kinds) if level >= 0}
    return Recurrences([kind for kind, _ in kinds], dict(families), levels, _depends(loop))


def _depends(loop: Op) -> dict[Value, frozenset[int]]:
    """Of each value in ``loop``, which carried ones it depends on."""
    found = {arg: frozenset({k}) for k, (arg, *_) in enumerate(For(loop).rows)}
    stored: set[Value] = set()  # by what stands in front

    def of(*values: Value) -> frozenset[int]:
        return frozenset[int]().union(*(found.get(v, ()) for v in values))

    def block(body: Block) -> None:
        for op in body.ops:
            here = of(*op.operands)
            memref = accessed_by(op)
            if memref is not None and memref in stored:
                here |= {LATE}
            if op.name == "scf.for":
                inner = For(op)
                stored.update(written(op.body))
                found[inner.index] = of(*inner.bounds)
                for arg, init, _, _ in inner.rows:
                    found[arg] = of(init, *inner.bounds)
                known: list[frozenset[int]] = []
                while known != (known := [found[arg] for arg, *_ in inner.rows]):
                    block(op.body)
                    for arg, _, end, _ in inner.rows:
                        found[arg] = of(arg, end)
                for arg, _, _, result in inner.rows:
                    found[result] = of(arg)
                if not inner.rows:
                    block(op.body)
            elif op.name == "scf.if":
                for region in op.regions:
                    block(region)
                for k, result in enumerate(op.results):
                    found[result] = of(If(op).condition, *If(op).arms(k))
            else:
                found.update(dict.fromkeys(op.results, here))
            if (memref := written_by(op)) is not None:
                stored.add(memref)

    block(loop.body)
    return {value: places for value, places in found.items() if places}


def _family(
    k: int, arg: Value, end: Value, depends: dict[Value, frozenset[int]]
) -> tuple[str, frozenset[int]] | None:
    """The family of the maps from ``arg`` to ``end``, and what else these depend on."""
    shape = _Shape((k,), [arg], depends)
    slope = shape.linear(end)
    if slope == 1:
        return "sum", frozenset(shape.asked)
    for kind in _COMBINED:
        other = _Shape((k,), [arg], depends)
        if other.combined(end, kind):
            return kind, frozenset(other.asked)
    if (chosen := _taken(end, arg, depends, k)) is not None:
        key, predicate = chosen
        return predicate, depends.get(key, frozenset())
    return None if slope is None or not _affine(arg) else ("affine", frozenset(shape.asked))


def _affine(arg: Value) -> bool:
    """Whether maps of such numbers are composed."""
    return arg.type in (f32, f64) or not arg.scalar.is_float


class _Shape:
    """What a value is of ``args``, carried at ``group``. ``asked``: the places of others that its
    maps depend on."""

    def __init__(
        self, group: Group, args: Sequence[Value], depends: dict[Value, frozenset[int]]
    ) -> None:
        self.group, self.args, self.depends = group, args, depends
        self.asked: set[int] = set()
        self.known: dict[Value, int | None] = dict.fromkeys(args, 1)

    def free(self, value: Value) -> bool:
        """Whether ``value`` is the same for all ``args``."""
        found = self.depends.get(value, frozenset())
        if not found.isdisjoint(self.group):
            return False
        self.asked |= found
        return True

    def linear(self, value: Value) -> int | None:
        """0 for a value that does not depend on ``args``, 1 for one of them plus one, 2 for another
        affine map, None for all else."""
        if value not in self.known:
            self.known[value] = self.slope(value)
        return self.known[value]

    def slope(self, value: Value) -> int | None:
        if self.free(value):
            return 0
        op = value.op
        if op is None:
            return None
        if (chosen := choice(value)) is not None:
            condition, *arms = chosen
            one, other = map(self.linear, arms)
            if one is None or other is None or not self.free(condition):
                return None
            return one if one == other else 2
        if op.name not in _LINEAR:
            return None
        parts = [self.linear(v) for v in op.operands]
        if None in parts:
            return None
        one, other = parts[0], parts[-1]
        match op.name.partition(".")[2]:
            case "addf" | "addi":
                return 1 if {one, other} == {0, 1} else 2
            case "subf" | "subi":
                return 1 if (one, other) == (1, 0) else 2
            case "fma":
                if parts[0] and parts[1]:
                    return None
                return other if not (parts[0] or parts[1]) else 2
            case "divf":
                return None if other else 2
            case "negf":
                return 2
            case _:
                return None if one and other else 2

    @remembered
    def combined(self, value: Value, kind: str) -> bool:
        """Whether ``value`` is what is carried, combined with what does not depend on it, or left
        as it is."""
        if value in self.args:
            return True
        op, (k,) = value.op, self.group
        if op is None or k not in self.depends.get(value, ()):
            return False
        if (chosen := choice(value)) is not None:
            condition, *arms = chosen
            return self.free(condition) and all(self.combined(v, kind) for v in arms)
        if op.name != f"arith.{kind}" or op.left is op.right:
            return False
        chain = [v for v in op.operands if k in self.depends.get(v, ())]
        return len(chain) == 1 and all(self.combined(v, kind) or self.free(v) for v in op.operands)


def _taken(
    value: Value, arg: Value, depends: dict[Value, frozenset[int]], k: int
) -> tuple[Value, str] | None:
    """What takes the place of ``arg`` where a comparison of both says so, and its predicate."""
    if (chosen := choice(value)) is None:
        return None
    condition, key, before = chosen
    predicate = exceeds(condition, key, arg)
    if before is not arg or predicate is None or k in depends.get(key, ()):
        return None
    return key, predicate

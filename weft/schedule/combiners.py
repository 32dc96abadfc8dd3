"""How what a loop carries may be combined, whatever the order of its iterations.

A combiner of one value is an associative operation. Values that belong together have one in common:
the extremum of a key with what was there (arg-max), or the mean, the sum of squared differences
from it, and their count (Welford; merged as Chan, Golub and LeVeque do).
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Builder, identity
from weft.ir.core import Block, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.types import ScalarType, i1, i64, index
from weft.ir.views import For, If, is_constant
from weft.values import mutable, remembered

# How what a loop carries is combined, by the operation that updates it. That of a difference is a
# sum, of what is taken off.
_KINDS = {
    "arith.addf": "addf", "arith.mulf": "mulf", "arith.maximumf": "maximumf",
    "arith.minimumf": "minimumf", "arith.maxnumf": "maxnumf", "arith.minnumf": "minnumf",
    "arith.addi": "addi", "arith.muli": "muli", "arith.maxsi": "maxsi", "arith.minsi": "minsi",
    "arith.maxui": "maxui", "arith.minui": "minui", "arith.andi": "andi", "arith.ori": "ori",
    "arith.xori": "xori",
}  # fmt: skip
_DIFFERENCES = {"arith.subf": "addf", "arith.subi": "addi"}
INEXACT = ("addf", "mulf", "mean")


def _kind(body: Block, arg: Value, end: Value) -> str | None:
    """The combiner that ``end`` is made from ``arg`` with, if nothing else uses what lies between;
    None where it is something else."""
    chain = _Chain()
    kind = chain.follow(arg, end)
    if not kind:
        return None
    chain.ops.add(body.terminator)
    for op in walk(body):
        through = [k for k, v in enumerate(op.operands) if v in chain.values]
        if op in chain.ops and op.name == "arith.select":
            if 0 in through:
                return None
        elif len(through) > (op in chain.ops):  # it is used elsewhere, or goes on twice
            return None
    return kind


class _Chain:
    """The operations from a carried value to the next one: ``values`` it goes through, and the
    ``ops`` that may use these."""

    def __init__(self) -> None:
        self.values: set[Value] = set()
        self.ops: set[Op] = set()

    @remembered
    def follow(self, arg: Value, value: Value) -> str | None:
        """The combiner between ``arg`` and ``value``: "" if they are the same, None if there is
        none."""
        if value is arg:
            self.values.add(value)
            return ""
        op = value.op
        if op is None:
            return None
        kind: str | None = None
        if op.name in _KINDS and op.left is not op.right:
            kind = self.update(arg, _KINDS[op.name], op.operands)
        elif op.name in _DIFFERENCES and op.left is not op.right:
            kind = self.update(arg, _DIFFERENCES[op.name], [op.left])
        elif op.name == "math.fma":
            factor, _, added = op.operands
            kind = None if factor is added else self.update(arg, "addf", [added])
        elif op.name == "arith.select":
            condition, yes, no = op.operands
            kind = self.merge([self.follow(arg, v) for v in (yes, no)])
            kind = None if condition in self.values else kind
        elif op.name == "scf.if":
            k = op.results.index(value)
            kind = self.merge([self.follow(arg, v) for v in If(op).arms(k)])
            self.ops.update(region.terminator for region in op.regions)
        elif op.name == "scf.for":
            start, init, end, _ = For(op).rows[op.results.index(value)]
            before = self.follow(arg, init)
            if before is not None:
                kind = self.merge([before, self.follow(start, end)])
                self.ops.add(op.body.terminator)
        if kind is not None:
            self.values.add(value)
            self.ops.add(op)
        return kind

    def update(self, arg: Value, kind: str, operands: list[Value]) -> str | None:
        found = [(v, self.follow(arg, v)) for v in operands]
        through = [before for _, before in found if before is not None]
        return kind if len(through) == 1 and through[0] in ("", kind) else None

    def merge(self, kinds: list[str | None]) -> str | None:
        known = {kind for kind in kinds if kind}
        return None if None in kinds or len(known) > 1 else next(iter(known), "")


_SWAPPED = {"ogt": "olt", "olt": "ogt", "oge": "ole", "ole": "oge"} | {
    f"{sign}{a}{c}": f"{sign}{b}{c}" for sign in "su" for a, b in ("gl", "lg") for c in "te"
}  # fmt: skip
_FLOAT, _EQUAL = ("ogt", "olt", "oge", "ole"), {"arith.cmpf": "oeq", "arith.cmpi": "eq"}


def exceeds(condition: Value, key: Value, arg: Value) -> str | None:
    """The predicate by which ``key`` has to exceed ``arg`` for ``condition``."""
    test = condition.op
    if test is None or test.name not in _EQUAL or {*test.operands} != {key, arg}:
        return None
    predicate = test.attrs["predicate"]
    predicate = _SWAPPED.get(predicate) if test.left is arg else predicate
    fits = predicate in _SWAPPED and (test.name == "arith.cmpf") == (predicate in _FLOAT)
    return predicate if fits and key.type is not i1 else None


@mutable
class Carried:
    """What a loop carries. ``kinds``: the combiner of each value, or None; then those of values
    that it has to carry besides: for each of these ``more`` has the condition under which it
    becomes the index, or the operation that counts from the index and has to count from it."""

    kinds: list[str | None]
    more: list[Value]


def combiners(loop: Op) -> Carried:
    """How each value that ``loop`` carries is combined. Of values that belong together, that which
    leads is "first.P" or "last.P" (the extremum by predicate P that comes first, or last) or
    "mean"; others name it: "with:0", "at.first:0" (the index), "squares:0", "count:0"."""
    body, rows = loop.body, For(loop).rows
    found = Carried([_kind(body, arg, end) for arg, _, end, _ in rows], [])
    if None in found.kinds:
        search = _Joint(loop)
        for k, (arg, _, end, _) in enumerate(rows):
            if found.kinds[k] is None:
                search.extremum(found, k, arg, end)
        for k, (arg, _, end, _) in enumerate(rows):
            if found.kinds[k] is None:
                search.mean(found, k, arg, end)
    return found


class _Joint:
    def __init__(self, loop: Op) -> None:
        self.loop = loop
        self.body = loop.body
        self.rows = For(loop).rows
        self.uses: dict[Value, list[Op]] = {}
        for op in walk(loop.body):
            for value in op.operands:
                self.uses.setdefault(value, []).append(op)

    def only(self, value: Value, *ops: Op) -> bool:
        """Whether each of ``ops`` uses ``value`` once, and nothing else does."""
        return sorted(map(id, self.uses.get(value, []))) == sorted(map(id, ops))

    # -- extrema

    def extremum(self, found: Carried, k: int, arg: Value, end: Value) -> None:
        """Takes in a key that is kept by a comparison with itself, with what is kept beside it."""
        chosen = choice(end)
        test = chosen[0].op if chosen is not None else None
        if chosen is None or test is None or test not in self.body.ops:
            return
        condition, key, before = chosen
        predicate = exceeds(condition, key, arg)
        if before is not arg or predicate is None:
            return
        kept = {
            i: of for i, (other, _, last, _) in enumerate(self.rows)
            if (of := choice(last)) is not None and of[0] is condition and of[2] is other
        }  # fmt: skip
        choosers = {last.op for i, (_, _, last, _) in enumerate(self.rows) if i in kept and last.op}
        if not self.only(condition, *choosers) or not all(map(self.chooses, choosers)):
            return
        for i in kept:
            other, _, last, _ = self.rows[i]
            assert last.op is not None
            by = last.op if last.op.name == "arith.select" else If(last.op).otherwise.terminator
            if not self.only(last, self.body.terminator):
                return
            if not self.only(other, by, *[test] * (i == k)):
                return
        order = "last" if predicate.endswith("e") else "first"
        for i in kept:
            found.kinds[i] = f"with:{k}"
        found.kinds[k] = f"{order}.{predicate}"
        found.kinds.append(f"at.{order}:{k}")
        found.more.append(condition)

    def chooses(self, op: Op) -> bool:
        """Whether ``op`` does nothing but choose what is carried."""
        inside = [inner for region in op.regions for inner in walk(region)]
        pure = all(OPS[o.name].pure or o.name in ("memref.load", "scf.yield") for o in inside)
        return pure and all(self.only(v, self.body.terminator) for v in op.results)

    # -- mean and variance

    def mean(self, found: Carried, k: int, arg: Value, end: Value) -> None:
        """Takes in ``mean += d / n`` with ``d = x - mean``, and ``squares += d * (x - mean)``."""
        step = _other(end, "arith.addf", arg)
        if step is None or step.name != "arith.divf" or end.op is None:
            return
        difference = step.left.op
        if difference is None or difference.name != "arith.subf" or difference.right is not arg:
            return
        if not self.only(arg, difference, end.op):
            return
        x, d, users, after = difference.left, difference.result, [step], [self.body.terminator]
        squares = None
        for i, (other, _, last, _) in enumerate(self.rows):
            product = _other(last, "arith.addf", other)
            again = _other(product.result, "arith.mulf", d) if product is not None else None
            if (
                product is None or again is None or last.op is None or again.name != "arith.subf"
                or again.left is not x or again.right is not end
            ):  # fmt: skip
                continue
            if not self.only(other, last.op) or not self.only(last, self.body.terminator):
                return
            squares, users, after = i, [*users, product], [*after, again]
            if not (self.only(product.result, last.op) and self.only(again.result, product)):
                return
        count = self.count(step)
        if count is None or not (self.only(d, *users) and self.only(end, *after)):
            return
        if not self.only(step.result, end.op):
            return
        counted = next((i for i, row in enumerate(self.rows) if row[2] is count.result), None)
        if counted is not None:
            if not self.only(self.rows[counted][0], count):
                return
            found.kinds[counted] = f"count:{k}"
        else:
            found.kinds.append(f"count:{k}")
            found.more.append(count.result)
        found.kinds[k] = "mean"
        if squares is not None:
            found.kinds[squares] = f"squares:{k}"

    def count(self, step: Op) -> Op | None:
        """The operation that counts iterations, of which ``step`` divides by the number."""
        value, user = step.right, step
        while value.op is not None and value.op.name in _CASTS and self.only(value, user):
            value, user = value.op.operand, value.op
        op = value.op
        if op is None or op.name not in ("arith.addi", "arith.addf") or op not in self.body.ops:
            return None
        counter = next((v for v in op.operands if not is_constant(v, 1)), None)
        if counter is None or not any(is_constant(v, 1) for v in op.operands):
            return None
        if counter is For(self.loop).index:
            from_0 = is_constant(For(self.loop).lower, 0)
            return op if from_0 and self.only(value, user) else None
        carried = any(arg is counter and end is value for arg, _, end, _ in self.rows)
        return op if carried and self.only(value, user, self.body.terminator) else None


_CASTS = ("arith.index_cast", "arith.sitofp", "arith.extsi", "arith.extf")


def choice(value: Value) -> tuple[Value, Value, Value] | None:
    """Condition and both values, where ``value`` is one of two."""
    op = value.op
    if op is None or op.name not in ("arith.select", "scf.if"):
        return None
    if op.name == "arith.select":
        condition, yes, no = op.operands
        return condition, yes, no
    return (If(op).condition, *If(op).arms(op.results.index(value)))


def _other(value: Value, name: str, operand: Value) -> Op | None:
    """The operation behind the other operand, where ``value`` is made from ``operand`` so."""
    op = value.op
    if op is None or op.name != name or operand not in op.operands:
        return None
    left, right = op.operands
    return (right if left is operand else left).op if left is not right else None


# -- combining


def lead(kind: str) -> int | None:
    """The place of the value that one of this kind belongs to."""
    return int(kind.partition(":")[2]) if ":" in kind else None


def is_joint(kind: str) -> bool:
    return ":" in kind or kind == "mean" or "." in kind


def neutral(kind: str, type: ScalarType) -> bool | int | float:
    """The value that ``kind`` makes of anything that thing with."""
    if not is_joint(kind):
        return identity(kind, type)
    order, _, predicate = kind.partition(":")[0].partition(".")
    if order == "at":  # behind all others; or before them, as what the loop begins with
        return identity("minsi" if predicate == "first" else "maxsi", type)
    if order not in ("first", "last"):
        return 0
    least = predicate[1] == "g"
    if type.is_float:
        return identity("maximumf" if least else "minimumf", type)
    sign = "ui" if predicate[0] == "u" else "si"
    return identity(("max" if least else "min") + sign, type)


def merged(
    b: Builder, kinds: Sequence[str], one: Sequence[Value], other: Sequence[Value]
) -> list[Value]:
    """Each of ``one`` combined with the one of ``other``; sums in any order."""
    made: dict[int, Value] = {}
    for k, kind in enumerate(kinds):
        if kind == "mean":
            made |= _mean(b, kinds, k, one, other)
        elif kind.startswith(("first.", "last.")):
            made |= _extreme(b, kinds, k, one, other)
        elif not is_joint(kind):
            made[k] = b.op(f"arith.{kind}", one[k], other[k])
            op = made[k].op
            if kind == "addf" and op is not None:
                op.attrs["reassociate"] = True
    return [made[k] for k in range(len(kinds))]


def _extreme(
    b: Builder, kinds: Sequence[str], k: int, one: Sequence[Value], other: Sequence[Value]
) -> dict[int, Value]:
    group = [k, *(i for i, kind in enumerate(kinds) if lead(kind) == k)]
    at = next(i for i in group if kinds[i].startswith("at."))
    order, _, predicate = kinds[k].partition(".")
    name = "arith.cmpf" if one[k].scalar.is_float else "arith.cmpi"
    beyond = b.op(name, other[k], one[k], predicate=predicate[:-1] + "t")
    same = b.op(name, other[k], one[k], predicate=_EQUAL[name])
    earlier = "slt" if order == "first" else "sgt"
    before = b.op("arith.cmpi", other[at], one[at], predicate=earlier)
    taken = b.op("arith.ori", beyond, b.op("arith.andi", same, before))
    return {i: b.op("arith.select", taken, other[i], one[i], type=one[i].type) for i in group}


def _mean(
    b: Builder, kinds: Sequence[str], k: int, one: Sequence[Value], other: Sequence[Value]
) -> dict[int, Value]:
    """Chan, Golub and LeVeque, "Updating formulae", 1979."""
    places = {kind.partition(":")[0]: i for i, kind in enumerate(kinds) if lead(kind) == k}
    type, n = one[k].scalar, places["count"]
    count = b.op("arith.addf" if one[n].scalar.is_float else "arith.addi", one[n], other[n])
    before, more, whole = (_number(b, v, type) for v in (one[n], other[n], count))
    none = b.op("arith.cmpf", more, b.constant(0, type), predicate="oeq")
    difference = b.op("arith.subf", other[k], one[k])
    change = b.op("arith.mulf", difference, b.op("arith.divf", more, whole))
    made = {n: count, k: b.op("arith.addf", one[k], change)}
    if "squares" in places:
        i = places["squares"]
        apart = b.op("arith.mulf", b.op("arith.mulf", difference, before), change)
        made[i] = b.op("arith.addf", b.op("arith.addf", one[i], other[i]), apart)
    return {
        i: v if i == n else b.op("arith.select", none, one[i], v, type=type)
        for i, v in made.items()
    }  # fmt: skip


def _number(b: Builder, value: Value, type: ScalarType) -> Value:
    """A count as a float."""
    if value.scalar.is_float:
        narrow = value.scalar.bits < type.bits
        name = "arith.extf" if narrow else "arith.truncf"
        return value if value.type is type else b.op(name, value, type=type)
    if value.type is index:
        value = b.op("arith.index_cast", value, type=i64)
    return b.op("arith.sitofp", value, type=type)


assert all(name in OPS for name in (*_KINDS, *_DIFFERENCES))

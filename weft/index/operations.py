"""How many operations a function carries out, by kind: exactly, from its index sets.

Where data decide, the count has two ends: of a branch the arm with fewer or with more operations,
of a loop whose length data decide none, and no upper end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.index.expression import (
    ONE,
    POLYNOMIALS,
    Atom,
    Both,
    Compare,
    Condition,
    Dim,
    Either,
    Poly,
    atom,
    condition_polys,
    known,
    negate,
    number,
)
from weft.index.integers import Integers
from weft.index.sums import (
    NOTHING,
    STEPS,
    Count,
    Range,
    Sums,
    UncountableError,
    indicator,
    rewritten,
    sign,
)
from weft.ir.builder import identity
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.trips import steps_of
from weft.ir.types import i1, index
from weft.ir.views import For, If, Parallel, Select, While, constant_of, loop_of
from weft.values import mutable

# Kinds, and what each is worth in FLOPs.
FLOPS = {"add": 1, "multiply": 1, "fma": 2, "divide": 1, "square root": 1, "transcendental": 1,
         "compare": 0, "sign and rounding": 0, "integer": 0}  # fmt: skip
_NAMES = {
    "add": "arith.addf arith.subf",
    "multiply": "arith.mulf",
    "fma": "math.fma",
    "divide": "arith.divf arith.remf",
    "square root": "math.sqrt math.rsqrt",
    "compare": "arith.cmpf arith.maximumf arith.minimumf arith.maxnumf arith.minnumf",
    "sign and rounding": "arith.negf math.absf math.copysign math.floor math.ceil math.trunc "
    "math.roundeven math.isnan math.isinf math.detach",
    "integer": "arith.addi arith.subi arith.muli arith.floordivsi arith.divui arith.remsi "
    "arith.remui arith.andi arith.ori arith.xori arith.shli arith.shrsi arith.shrui arith.minsi "
    "arith.maxsi arith.minui arith.maxui arith.cmpi math.absi math.ctpop math.philox",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_SAME_CHAIN = {"addf": ("addf", "subf"), "addi": ("addi", "subi")}

Counts = dict[str, Count]  # by kind, "FLOPs" among them; what is missing is 0
Sizes = Mapping[Value | Dim, int | Poly]
_Axis = tuple[Value, Poly, Poly, Poly]  # an index, its bounds and its step
_COMPARED = 8  # comparisons of a condition: the terms of its product are exponentially many
BLOCKS = 2_000  # that are gone through one by one, some 1 ms each


@mutable
class Operations:
    """The operations of a call: at least and at most. ``most`` is ``least`` where the count is
    exact, and None where data decide how long a loop is."""

    least: Counts
    most: Counts | None

    @property
    def arithmetic(self) -> int:
        """All kinds of a call whose sizes are numbers, at least: a multiplication and addition in
        one as two."""
        kinds = (kind for kind in self.least if kind != "FLOPs")
        return sum(self.least[kind].number * (1 + (kind == "fma")) for kind in kinds)


def operations(function: Function, sizes: Sizes | None = None, steps: int = STEPS) -> Operations:
    """The operations of ``function``: for these arguments and extents, or as polynomials of them.
    Raises ``UncountableError`` where there is no closed form, or none in so many ``steps``."""
    least = _Walk(function, sizes, steps, most=False)
    counts = least.block(function.body, ())
    if least.exact:
        return Operations(counts, counts)
    most = _Walk(function, sizes, steps, most=True)
    found = most.block(function.body, ())
    return Operations(counts, found if most.bounded else None)


def ends(function: Function, sizes: Sizes | None = None) -> Operations:
    """The same without what conditions hold for: of each branch the arm with fewer and the one with
    more. For functions whose exact count has no closed form, or none in so many steps."""
    least, most = (_Walk(function, sizes, STEPS, most=m, decided=False) for m in (False, True))
    counts, found = (walk.block(function.body, ()) for walk in (least, most))
    return Operations(counts, found if most.bounded else None)


def kind_of(op: Op) -> str:
    """The kind of an operation; "" for what is not counted."""
    if op.name == "memref.atomic_rmw":
        return _KINDS.get(f"arith.{op.attrs['kind']}", "")
    if op.name.startswith("math."):
        return _KINDS.get(op.name, "transcendental")
    return _KINDS.get(op.name, "") if op.operands and op.left.type not in (index, i1) else ""


class _Walk:
    """Counts what blocks carry out. ``most``: where data decide, what could be, rather than what
    must be. ``decided``: conditions are looked at, to see for which indices they hold."""

    def __init__(
        self, function: Function, sizes: Sizes | None, steps: int, *, most: bool,
        decided: bool = True,
    ) -> None:  # fmt: skip
        self.integers, self.sizes, self.most = Integers(function), sizes, most
        self.decided = decided
        self.known: set[Value] = {*function.args}
        self.exact = self.bounded = True
        self.sums, self.blocks = Sums(steps), BLOCKS
        self.chosen: dict[Atom, Poly] = {}  # indices that are gone through

    def block(self, block: Block, ranges: Sequence[Range]) -> Counts:
        total: Counts = {}
        for op in block.ops:
            found = self._op(op, ranges)
            if found:
                total = _added(total, found)
        return total

    def _op(self, op: Op, ranges: Sequence[Range]) -> Counts:
        match op.name:
            case "scf.parallel" | "scf.for":
                return self._loop(op, ranges) if _works(op) else {}
            case "scf.if":
                return self._if(If(op), ranges) if _works(op) else {}
            case "scf.while":
                if _works(op):
                    self.exact = self.bounded = False
                return self.block(While(op).before, ranges)  # it is asked once, at least
            case _:
                kind = kind_of(op)
                return _one(kind) if kind else {}

    def _loop(self, op: Op, ranges: Sequence[Range]) -> Counts:
        axes: list[_Axis] = []
        for iv, bounds in zip(loop_of(op).indices, loop_of(op).axes, strict=True):
            lower, upper, step = map(self._poly, bounds)
            if lower is None or upper is None or step is None:
                self.exact = self.bounded = False
                return {}
            axes.append((iv, lower, upper, step))
            ranges = [(iv, lower, upper), *ranges]
            self.known.add(iv)
        try:
            return self._closed(op, axes, ranges)
        except UncountableError:
            return self._each(op, axes, ranges[len(axes) :])

    def _each(self, op: Op, axes: Sequence[_Axis], ranges: Sequence[Range]) -> Counts:
        """The loop's first index number by number, where it has few of them."""
        (iv, lower, upper, step), *others = axes
        numbers = lower.constant, upper.constant, step.constant
        if None in numbers:
            raise UncountableError
        values = range(*(n for n in numbers if n is not None))
        self.blocks -= len(values)
        if self.blocks < 0:
            raise UncountableError
        total: Counts = {}
        around = [*((v, low, high) for v, low, high, _ in reversed(others)), *ranges]
        try:
            for value in values:
                self.chosen[iv] = number(value)
                self.sums.left = max(self.sums.left, STEPS // 10)
                total = _added(total, self._closed(op, others, around))
        finally:
            self.chosen.pop(iv, None)
        return total

    def _closed(self, op: Op, axes: Sequence[_Axis], ranges: Sequence[Range]) -> Counts:
        body = self.block(op.body, ranges)
        if op.name == "scf.parallel":
            for kind, value in zip(Parallel(op).kinds, Parallel(op).contributions, strict=True):
                if not _accumulates(value, kind):
                    body = _added(body, _one(_KINDS[f"arith.{kind}"]))
        for place, (iv, lower, upper, step) in reversed(list(enumerate(axes))):
            around = ranges[len(axes) - place :]
            body = {kind: self._sum(found, iv, lower, upper, step, around)
                    for kind, found in body.items()}  # fmt: skip
        return body

    def _sum(
        self, found: Count, iv: Value, lower: Poly, upper: Poly, step: Poly,
        ranges: Sequence[Range],
    ) -> Count:  # fmt: skip
        if step != ONE:
            if sign(upper - lower, ranges) != 1:
                upper = POLYNOMIALS.op("maxsi", upper, lower)
            begin, place = lower, step * atom(iv) + lower
            found = Count(rewritten(found.poly, lambda a: place if a == iv else None), found.over)
            lower, upper = number(0), steps_of(POLYNOMIALS, upper - begin, step)
        return self.sums.over(found, iv, lower, upper, ranges)

    def _if(self, branch: If, ranges: Sequence[Range]) -> Counts:
        arms = [self.block(region, ranges) for region in branch.op.regions]
        then, otherwise = arms
        if then == otherwise:
            return then
        asked = self.integers.condition(branch.condition) if self.decided else None
        condition = self._open(self._settled(asked), ranges)
        if condition == Both(()):
            return then
        if len(list(condition_polys(condition))) > _COMPARED:
            condition = None
        holds = indicator(condition, self._symbol)
        fails = indicator(negate(condition), self._symbol)
        if condition is not None and known(condition):
            return _added(_times(then, holds), _times(otherwise, fails))
        self.exact = False
        either = holds * fails
        picked = {
            kind: then.get(kind, NOTHING).picked(
                otherwise.get(kind, NOTHING), "max" if self.most else "min"
            ).times(either)
            for kind in {**then, **otherwise}
        }  # fmt: skip
        certain = _added(_times(then, holds - either), _times(otherwise, fails - either))
        return _added(picked, certain)

    # --- numbers ---------------------------------------------------------------------------------
    def _symbol(self, a: Atom) -> Poly | None:
        if not isinstance(a, (Value, Dim)):
            return None
        if a in self.chosen:
            return self.chosen[a]
        if self.sizes is None:
            return None
        value = self.sizes.get(a)
        return number(value) if isinstance(value, int) else value

    def _is_known(self, poly: Poly | None) -> bool:
        """Whether data have no part in it."""
        return poly is not None and all(
            isinstance(leaf, Dim) or leaf in self.known for leaf in poly.leaves()
        )

    def _poly(self, value: Value) -> Poly | None:
        poly = self.integers.poly(value)
        if poly is None or not self._is_known(poly):
            return None
        return rewritten(poly, self._symbol)

    def _settled(self, condition: Condition | None) -> Condition | None:
        """The condition, with None for those parts that data decide."""
        match condition:
            case Both(parts) | Either(parts):
                return type(condition)(tuple(map(self._settled, parts)))
            case Compare(_, poly):
                return condition if self._is_known(poly) else None
            case None:
                return None

    def _open(self, condition: Condition | None, ranges: Sequence[Range]) -> Condition | None:
        """The condition without what holds for all indices; ``Both(())`` is what always holds."""
        match condition:
            case Both(parts):
                left = tuple(p for p in (self._open(p, ranges) for p in parts) if p != Both(()))
                return left[0] if len(left) == 1 else Both(left)
            case Compare("ge", poly) if sign(rewritten(poly, self._symbol), ranges) == 1:
                return Both(())
            case _:
                return condition


def _works(op: Op) -> bool:
    """Whether there is anything to count in it."""
    return bool(op.attrs.get("kinds")) or any(
        kind_of(inner) for region in op.regions for inner in walk(region)
    )


def _one(kind: str) -> Counts:
    worth = FLOPS[kind]
    return {kind: Count(ONE), **({"FLOPs": Count(number(worth))} if worth else {})}


def _added(left: Counts, right: Counts) -> Counts:
    total = {**left}
    for kind, found in right.items():
        total[kind] = total[kind] + found if kind in total else found
    return total


def _times(counts: Counts, factor: Poly) -> Counts:
    return {kind: found.times(factor) for kind, found in counts.items()} if factor.terms else {}


def _accumulates(value: Value, kind: str) -> bool:
    """Whether an iteration's contribution is accumulated from the combiner's identity on: then what
    it does in its body is all that there is to count."""
    op = value.op
    if op is None:
        return False
    starts: Iterable[Value] = ()
    match op.name:
        case "arith.constant":
            return constant_of(value) == identity(kind, value.scalar)
        case "scf.if":
            starts = If(op).arms(op.results.index(value))
        case "arith.select":
            starts = Select(op).yes, Select(op).no
        case "scf.for":
            starts = [For(op).inits[op.results.index(value)]]
        case name if name.removeprefix("arith.") in _SAME_CHAIN.get(kind, (kind,)):
            starts = op.operands
        case _:
            pass
    return any(_accumulates(start, kind) for start in starts)

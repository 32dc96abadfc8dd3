"""Every access of a function: what is touched, with which subscripts, under which loops and ifs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from weft.index.expression import (
    FALSE,
    ONE,
    TRUE,
    Choice,
    Condition,
    Dim,
    Pick,
    Poly,
    atom,
    both,
    compare,
    condition_polys,
    either,
    floor,
    known,
    negate,
    number,
    pick,
    substituted_condition,
)
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import For, If, Parallel, memory
from weft.settings import deep
from weft.values import frozen, mutable

KINDS = {
    "memref.load": "load",
    "memref.store": "store",
    "memref.atomic_rmw": "rmw",
    "memref.atomic_cas": "cas",
}

# Terms and atoms of an expression or a condition that is followed: `k = k - 1 if k > j else k` has
# three times those of the `k` before it.
MOST = 1000


@frozen
class Loop:
    """One loop index with ``lower <= iv < upper``; None where a bound is not known.

    ``step`` is positive: ``iv`` is ``lower`` plus a multiple of it.
    """

    iv: Value
    lower: Poly | None
    upper: Poly | None
    step: Poly | None
    parallel: bool


@mutable
class Access:
    """One operation that touches memory.

    ``kind`` is "load", "store", "rmw" or "cas". ``subscripts`` has an expression for each
    dimension, None where it is unknown (it depends on data, or on arithmetic that is not followed).
    ``loops`` are the indices around it, outermost first; ``guards`` the conditions that hold where
    it is carried out, None among them for one that is not known. ``exact`` says that the iterations
    which carry it out, and the elements, are known without approximation. ``local``: the array
    belongs to one iteration (an alloca inside of the parallel loop).
    """

    op: Op
    kind: str
    memref: Value
    subscripts: tuple[Poly | None, ...]
    loops: tuple[Loop, ...]
    guards: tuple[Condition | None, ...]
    exact: bool
    local: bool = False

    @property
    def combiner(self) -> str | None:
        """The kind of an atomic_rmw."""
        return self.op.attrs["kind"] if self.kind == "rmw" else None

    @property
    def writes(self) -> bool:
        return self.kind != "load"

    @property
    def where(self) -> str:
        """The source text and line of it, for people."""
        span = self.op.span
        if span is None or span.end_line != span.line:
            return f"`{self.memref.name or '?'}`" + (f" at line {span.line}" if span else "")
        return f"`{span.text[span.column : span.end_column]}` at line {span.line}"

    @property
    def parallel(self) -> tuple[Value, ...]:
        return tuple(loop.iv for loop in self.loops if loop.parallel)

    @property
    def serial(self) -> tuple[Value, ...]:
        return tuple(loop.iv for loop in self.loops if not loop.parallel)

    def ranges(self) -> list[tuple[Value, Poly | None, Poly | None]]:
        """Index, least value and end of each loop, innermost first (see ``expression.extreme``)."""
        return [(loop.iv, loop.lower, loop.upper) for loop in reversed(self.loops)]

    def stride(self, iv: Value) -> int | None:
        """By how many elements of a row it moves when the index ``iv`` grows by one, in whatever
        rows; None where that is not a number."""
        last = self.subscripts[-1] if self.subscripts else None
        return None if last is None else last.slope(iv)

    def polys(self) -> Iterator[Poly]:
        """Every expression that takes part: subscripts, bounds, conditions."""
        yield from (s for s in self.subscripts if s is not None)
        for loop in self.loops:
            yield from (p for p in (loop.lower, loop.upper, loop.step) if p is not None)
        for guard in self.guards:
            yield from condition_polys(guard)

    def substitute(self, change: Callable[[Value | Dim], Poly | None]) -> Access:
        """The same access with symbols replaced in all its expressions."""

        def of(poly: Poly | None) -> Poly | None:
            return None if poly is None else poly.substitute(change)

        return replace(
            self,
            subscripts=tuple(map(of, self.subscripts)),
            loops=tuple(
                Loop(x.iv, of(x.lower), of(x.upper), of(x.step), x.parallel) for x in self.loops
            ),
            guards=tuple(substituted_condition(g, change) for g in self.guards),
        )


def accesses(function: Function) -> list[Access]:
    """Every load, store, atomic_rmw and atomic_cas of ``function``, in program order."""
    return Extraction(function).found


class Extraction:
    """One walk over a function, following integer arithmetic back to indices and symbols."""

    def __init__(self, function: Function, atoms: Iterable[Value] = ()) -> None:
        """``atoms``: values that are not followed further."""
        self.found: list[Access] = []
        self.bounds: list[tuple[Op, Access]] = []  # weft.bounds operations, as accesses in shape
        self.loops: dict[Op, tuple[Loop, ...]] = {}  # each loop's index, and those around it
        self._args = set(function.args)
        self._symbols: set[Value] = set(function.args)
        self._locals: set[Value] = set()
        self._ivs: set[Value] = set()
        self._polys: dict[Value, Poly | None] = {value: atom(value) for value in atoms}
        self._conditions: dict[Value, Condition | None] = {}
        with deep(function.span):
            self._walk(function.body, (), ())

    def _walk(
        self, block: Block, loops: tuple[Loop, ...], guards: tuple[Condition | None, ...]
    ) -> None:
        inside = any(loop.parallel for loop in loops)
        for op in block.ops:
            if not inside:
                self._symbols.update(op.results)
            match op.name:
                case "scf.parallel":
                    loop = Parallel(op)
                    pairs = zip(loop.indices, loop.axes, strict=True)
                    new = [self._loop(iv, *bounds, True) for iv, bounds in pairs]
                    self.loops[op] = *loops, *new
                    self._walk(op.body, self.loops[op], guards)
                case "scf.for":
                    self.loops[op] = *loops, self._loop(For(op).index, *For(op).bounds, False)
                    self._walk(op.body, self.loops[op], guards)
                case "scf.if":
                    condition = self.condition(If(op).condition)
                    self._walk(If(op).then, loops, (*guards, condition))
                    self._walk(If(op).otherwise, loops, (*guards, negate(condition)))
                case "scf.while":
                    for region in op.regions:
                        self._walk(region, loops, (*guards, None))
                case "memref.alloca":
                    if inside:
                        self._locals.add(op.result)
                case "weft.bounds":
                    pair = tuple(map(self.poly, op.operands))
                    self.bounds.append((op, Access(op, "load", op.left, pair, loops, guards,
                                                   self._exact(pair, loops, guards))))  # fmt: skip
                case name if name in KINDS:
                    memref, at, _ = memory(op)
                    subscripts = tuple(map(self.poly, at))
                    exact = self._exact(subscripts, loops, guards)
                    self.found.append(
                        Access(op, KINDS[name], memref, subscripts, loops, guards, exact,
                               memref in self._locals)
                    )  # fmt: skip
                case _:
                    pass

    def _loop(self, iv: Value, lower: Value, upper: Value, step: Value, parallel: bool) -> Loop:
        self._ivs.add(iv)
        begin, end = self.poly(lower), self.poly(upper)
        return Loop(iv, begin, end and _plain_end(begin, end), self.poly(step), parallel)

    def _exact(
        self,
        subscripts: tuple[Poly | None, ...],
        loops: tuple[Loop, ...],
        guards: tuple[Condition | None, ...],
    ) -> bool:
        """Everything is known, and the symbols are sizes and arguments that may have any value."""
        polys: list[Poly | None] = [*subscripts]
        for loop in loops:
            polys += [loop.lower, loop.upper, loop.step]
        if not all(map(known, guards)):
            return False
        for guard in guards:
            polys += condition_polys(guard)
        for poly in polys:
            if poly is None:
                return False
            for leaf in poly.leaves():
                if isinstance(leaf, Value) and leaf not in self._args and leaf not in self._ivs:
                    return False
        return all(loop.step is not None and loop.step.constant is not None for loop in loops)

    def poly(self, value: Value) -> Poly | None:
        """The integer ``value`` as an expression, None where it cannot be followed."""
        if value in self._polys:
            return self._polys[value]
        result = None
        if isinstance(value.type, ScalarType) and value.type.is_integer:
            op = value.op
            if op is not None:
                result = self._branches(op, value) if op.name == "scf.if" else self._from_op(op)
            elif value in self._ivs:
                result = atom(value)
            if result is not None and result.size > MOST:
                result = None
            if result is None and value in self._symbols:
                result = atom(value)
        self._polys[value] = result
        return result

    def _from_op(self, op: Op) -> Poly | None:
        if op.name == "arith.constant":
            return number(int(op.attrs["value"]))
        if op.name == "memref.dim":
            memref, axis = op.operand, op.attrs["axis"]
            shape = memref.memref.shape
            return atom(Dim(memref, axis)) if shape is None else number(shape[axis])
        if op.name == "arith.select":
            return self._choice(*op.operands)
        if op.name == "arith.extui":
            condition = self.condition(op.operand)
            if condition is None or not known(condition):
                return None
            return atom(Choice(condition, ONE, number(0)))
        if op.name in ("gpu.thread_id", "gpu.block_id"):
            return atom(op.result)
        rule = _RULES.get(op.name)
        if rule is None or len(op.results) != 1 or not _wide(op):
            return None
        operands = [self.poly(v) for v in op.operands]
        if any(p is None for p in operands):
            return None
        return rule(*operands)

    def _branches(self, op: Op, value: Value) -> Poly | None:
        """An integer result of an ``scf.if``."""
        return self._choice(If(op).condition, *If(op).arms(op.results.index(value)))

    def _choice(self, test: Value, yes: Value, no: Value) -> Poly | None:
        condition = self.condition(test)
        left, right = self.poly(yes), self.poly(no)
        if left is None or right is None:
            return None
        if left == right:
            return left
        if condition is None or not known(condition):
            return None
        return atom(Choice(condition, left, right))

    def condition(self, value: Value) -> Condition | None:
        """The boolean ``value`` as a condition, None where it cannot be followed."""
        if value not in self._conditions:
            found = self._condition(value)
            large = sum(1 + poly.size for poly in condition_polys(found)) > MOST
            self._conditions[value] = None if large else found
        return self._conditions[value]

    def _condition(self, value: Value) -> Condition | None:
        op = value.op
        if op is None:
            return None
        match op.name:
            case "arith.constant":
                return TRUE if op.attrs["value"] else FALSE
            case "arith.cmpi":
                left, right = map(self.poly, op.operands)
                if left is None or right is None:
                    return None
                return compare(op.attrs["predicate"], left, right)
            case "arith.andi":
                return both(*map(self.condition, op.operands))
            case "arith.ori":
                return either(*map(self.condition, op.operands))
            case "arith.xori":
                left, right = map(self.condition, op.operands)
                if right == TRUE:
                    return negate(left)
                return negate(right) if left == TRUE else None
            case "arith.select":
                return self._either(*op.operands)
            case "scf.if":
                return self._either(If(op).condition, *If(op).arms(op.results.index(value)))
            case _:
                return None

    def _either(self, test: Value, yes: Value, no: Value) -> Condition | None:
        """``yes if test else no``, all of them conditions (this is how `and` and `or` arrive): a
        test that stands twice in it would double a chain with each operand."""
        condition = self.condition(test)
        left = TRUE if yes is test else self.condition(yes)
        right = FALSE if no is test else self.condition(no)
        if left == TRUE:
            return either(condition, right)
        if right == FALSE:
            return both(condition, left)
        if left == FALSE:
            return both(negate(condition), right)
        if right == TRUE:
            return either(negate(condition), left)
        return either(both(condition, left), both(negate(condition), right))


def _plain_end(begin: Poly | None, end: Poly) -> Poly:
    """An end of ``max(n, 0)`` is as good as ``n`` for an index that starts at 0."""
    atoms = list(end.atoms())
    least = None if begin is None else begin.constant
    if least is None or len(atoms) != 1 or end != atom(atoms[0]):
        return end
    match atoms[0]:
        case Pick("max", left, right) if right.constant is not None and right.constant <= least:
            return left
        case Pick("max", left, right) if left.constant is not None and left.constant <= least:
            return right
        case _:
            return end


def _wide(op: Op) -> bool:
    """Integers of fewer than 32 bits do wrap in practice: they are not followed."""
    values = [*op.operands, *op.results]
    return all(isinstance(v.type, ScalarType) and v.type.bits >= 32 for v in values)


def _multiply(a: Poly, b: Poly) -> Poly | None:
    # Large factors are hashes, and hashes wrap.
    big = any(abs(f) >= 1 << 20 for p in (a, b) for f in p.terms.values())
    return None if big else a * b


def _floor(a: Poly, b: Poly) -> Poly | None:
    by = b.constant
    return None if by is not None and by <= 0 else floor(a, b)


def _shift_left(a: Poly, b: Poly) -> Poly | None:
    by = b.constant
    return a.scaled(1 << by) if by is not None and 0 <= by < 20 else None


def _shift_right(a: Poly, b: Poly) -> Poly | None:
    by = b.constant
    return floor(a, number(1 << by)) if by is not None and 0 <= by < 31 else None


def _mask(a: Poly, b: Poly) -> Poly | None:
    """``a & (2**k - 1)`` is a remainder, also of negative numbers."""
    if a.constant is not None:
        a, b = b, a
    by = None if b.constant is None else b.constant + 1
    if by is None or by <= 0 or by & (by - 1):
        return None
    return a - floor(a, number(by)).scaled(by)


_RULES: dict[str, Callable[..., Poly | None]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": _multiply,
    "arith.floordivsi": _floor,
    "arith.minsi": lambda a, b: pick("min", a, b),
    "arith.maxsi": lambda a, b: pick("max", a, b),
    "math.absi": lambda a: pick("max", a, -a),
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right,
    "arith.andi": _mask,
    "arith.index_cast": lambda a: a,
    "arith.extsi": lambda a: a,
    "arith.trunci": lambda a: a,
}

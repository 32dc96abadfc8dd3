"""Integers and conditions of a function as expressions, followed back to indices and symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from weft.index.expression import (
    FALSE,
    ONE,
    TRUE,
    Choice,
    Condition,
    Dim,
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
)
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import For, If, Parallel

# Terms and atoms of an expression or a condition that is followed: `k = k - 1 if k > j else k` has
# three times those of the `k` before it.
MOST = 1000


class Integers:
    """What integers of ``function`` are, each followed when somebody asks."""

    def __init__(self, function: Function, atoms: Iterable[Value] = ()) -> None:
        """``atoms``: values that are not followed further."""
        self._args = set(function.args)
        self._symbols: set[Value] = set(function.args)
        self._ivs: set[Value] = set()
        self._polys: dict[Value, Poly | None] = {value: atom(value) for value in atoms}
        self._conditions: dict[Value, Condition | None] = {}
        self._note(function.body, inside=False)

    def _note(self, block: Block, *, inside: bool) -> None:
        """Notes indices, and what is made outside of parallel loops."""
        for op in block.ops:
            if not inside:
                self._symbols.update(op.results)
            if op.name == "scf.parallel":
                self._ivs.update(Parallel(op).indices)
            elif op.name == "scf.for":
                self._ivs.add(For(op).index)
            for region in op.regions:
                self._note(region, inside=inside or op.name == "scf.parallel")

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

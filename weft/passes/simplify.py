"""Constant folding and algebra that is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir.builder import Rewriter, chosen_by, result_type
from weft.ir.core import Block, Function, Op, Value, walk
from weft.ir.ops import OPS
from weft.ir.trips import NUMBERS, trip_count
from weft.ir.types import ScalarType, Type
from weft.ir.views import For, If, Number, condition_of, constant_of, made_by
from weft.passes.algebra import RULES
from weft.passes.constants import canonical, fold, key
from weft.passes.cse import cse


def simplify(function: Function) -> Function:
    """Folds constants and applies algebraic identities that change no bit of a result.

    Precondition: a verified function.
    * Operations on constants are carried out, in the operation's own precision. Each constant is
      made once, at the top of the function.
    * ``algebra.RULES``: x + 0, x * 1, x - x of integers; not not; casts back and forth; division
      by a power of two; select, comparisons; constants go to the right of commutative operations.
    * ``scf.if`` with a known condition, and ``scf.for`` with no or one iteration, are inlined; an
      if without operations becomes selects, and what both branches of another one hand on is taken
      from before it; a for does not carry what no iteration changes.
    * ``weft.assert`` of true and ``weft.bounds`` of constants within bounds are dropped.
    Non-goals: what is right in exact arithmetic only (x + 0.0, x * 0.0, reassociation of floats:
    the code generator has flags for that); unrolling; removing what is left unused (dce).
    """
    return _Simplifier().function(function)


def choices(function: Function) -> Function:
    """Choices that ``algebra.select_again`` is for, of ifs that have become selects meanwhile, are
    simplified; other functions stay as they are.

    Precondition: a verified function after ``cse``, which leaves ifs without operations.
    Non-goals: choices through memory, loops and calls.
    """
    for op in walk(function.body):
        test = _compared(op)
        if test is not None and _chosen_before(test):
            return simplify(cse(simplify(function)))
    return function


def _compared(op: Op | None) -> Op | None:
    """The comparison of floats that an if or a select goes by."""
    test = condition_of(op)
    return None if test is None else made_by(test, "arith.cmpf")


def _chosen_before(test: Op) -> bool:
    """Whether one side of a comparison was chosen by another comparison with the other side."""
    return any(
        (before := _compared(made.op)) is not None and other in before.operands
        for made, other in ((test.left, test.right), (test.right, test.left))
    )


class _Simplifier(Rewriter):
    def __init__(self) -> None:
        super().__init__(_visit, around=_around)
        self.constants: dict[tuple[str, bytes | int], Value] = {}
        self.top: list[Op] = []

    def function(self, function: Function) -> Function:
        new = super().function(function)
        new.body.ops[:0] = self.top
        return new

    def constant(self, value: Number, type: ScalarType) -> Value:
        value = canonical(value, type)
        identity = key(value, type)
        found = self.constants.get(identity)
        if found is None:
            op = Op("arith.constant", [], [type], {"value": value}, span=self.span)
            self.top.append(op)
            found = self.constants[identity] = op.result
        return found

    def op(self, name: str, *operands: Value, type: Type | None = None, **attrs: Any) -> Value:
        """As ``Builder.op``, and simplified in turn."""
        built = Op(name, list(operands), [type or result_type(name, operands)], attrs)
        better = _better(built, self)
        return self.append(built).result if better is None else better


def _visit(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    if op.name in ("weft.assert", "weft.bounds"):
        return () if _never_fails(op) else None
    if op.name == "scf.if":
        return _merged_branches(op, rewriter)
    if len(op.results) != 1:
        return None
    better = _better(op, rewriter)
    return None if better is None else (better,)


def _better(op: Op, rewriter: Rewriter) -> Value | None:
    """A value equal to the result of the pure operation ``op``, or None."""
    operands = op.operands  # which may change places, in ``op``
    if op.name == "arith.constant":
        return rewriter.constant(op.attrs["value"], op.result.type)  # type: ignore[arg-type]
    right = constant_of(operands[-1]) if operands else None
    if right is not None:
        values = [constant_of(v) for v in operands]
        if None not in values:
            value = fold(op, values)  # type: ignore[arg-type]
            if value is not None:
                return rewriter.constant(value, op.result.type)  # type: ignore[arg-type]
    elif len(operands) == 2 and OPS[op.name].commutative and constant_of(op.left) is not None:
        operands.reverse()
        right = constant_of(op.right)
    rules = RULES.get(op.name)
    if rules is not None:
        for rule in rules:
            value = rule(op, right, rewriter)
            if value is not None:
                return value
    return None


def _never_fails(op: Op) -> bool:
    first, *more = map(constant_of, op.operands)
    if op.name == "weft.assert":
        return first is True
    (extent,) = more
    return first is not None and extent is not None and 0 <= first < extent


def _merged_branches(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    """An if whose branches do nothing, as selects; of another one, what both branches hand on."""
    then, otherwise = op.regions
    pairs = [*zip(then.terminator.operands, otherwise.terminator.operands, strict=True)]
    if len(then.ops) == len(otherwise.ops) == 1:
        condition = If(op).condition
        return [a if a is b else chosen_by(rewriter, condition, a, b) for a, b in pairs]
    if not any(a is b for a, b in pairs):
        return None
    made = rewriter.append(op).results
    return [a if a is b else result for result, (a, b) in zip(made, pairs, strict=True)]


def _around(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    if op.name == "scf.if":
        known = constant_of(rewriter.lookup(If(op).condition))
        taken = If(op).then if known else If(op).otherwise
        return None if known is None else rewriter.inline(taken, ())
    return _for(op, rewriter) if op.name == "scf.for" else None


def _for(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    lower, upper, step = bounds = [rewriter.lookup(v) for v in For(op).bounds]
    inits = [rewriter.lookup(v) for v in For(op).inits]
    trips = known_trips(lower, upper, step)
    if trips == 0:
        return inits
    if trips == 1:
        return rewriter.inline(op.body, [lower, *inits])
    kept = [k for k, (arg, _, end, _) in enumerate(For(op).rows) if end is not arg]
    if len(kept) == len(inits):
        return None
    return _with_fewer_carried(op, kept, bounds, inits, rewriter)


def known_trips(lower: Value, upper: Value, step: Value) -> int | None:
    """How often the loop runs: 0 and 1 are told apart from the rest, which is None if not known."""
    if lower is upper:
        return 0
    first, last, by = constant_of(lower), constant_of(upper), constant_of(step)
    if first is None or last is None:
        return None
    if by is None and last > first:
        return None
    return trip_count(NUMBERS, int(first), int(last), int(by or 1))


def _with_fewer_carried(
    op: Op, kept: list[int], bounds: list[Value], inits: list[Value], rewriter: Rewriter
) -> list[Value]:
    """The loop ``op`` that carries ``kept`` only: the others always have their initial values."""
    body = op.body
    carried = [inits[k] for k in kept]
    types = [v.type for v in carried]
    block = Block([body.args[0].type, *types])
    new = Op("scf.for", [*bounds, *carried], types, dict(op.attrs), [block], op.span)
    inside, results = list(inits), list(inits)
    for position, k in enumerate(kept):
        inside[k] = For(new).carried[position]
        inside[k].name = For(op).carried[k].name
        results[k] = new.results[position]
    block.args[0].name = body.args[0].name
    with rewriter.at(block):
        yielded = rewriter.inline(body, [block.args[0], *inside])
        rewriter.do("scf.yield", *(yielded[k] for k in kept))
    rewriter.append(new)
    return results

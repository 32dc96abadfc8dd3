"""Splitting a loop into the runs along which an integer division keeps its value."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.builder import Rewriter
from weft.ir.core import Block, Function, Op, Value
from weft.ir.ops import OPS
from weft.ir.types import index

SHORTEST = 16  # elements of a run, below which two loops cost more than the divisions did


def runs(function: Function) -> Function:
    """``q = (j + s) // d`` in a parallel loop whose innermost index is j becomes two loops: one over
    the values of q, inside it one over the run of j that gives q. Subscripts such as
    ``(j + s) - q * d`` are then contiguous in the inner loop: gathers become plain loads.

    Precondition: a verified function, after races were checked. The innermost parallel index has
    step 1 and there are others outside of it; s and d do not depend on j. The split is chosen at
    run time where d is at least ``SHORTEST``, otherwise the loop is left as it was. The inner loop
    is marked ``independent``: its iterations are those of a parallel loop.
    Non-goals: loops of one index (their iterations are what the threads share); reductions;
    falling numerators (``-j``); more than one division (the first is taken).
    """
    for op in function.body.ops:
        if op.name == "scf.parallel":
            division = _division(op)
            if division is not None:
                return _Split(op, division).function(function)
    return function


def _division(parallel: Op) -> Op | None:
    """The first ``floordivsi`` in the loop's body whose quotient is constant along runs."""
    dims, body = parallel.attrs["dims"], parallel.regions[0]
    if dims < 2 or parallel.attrs["kinds"] or not _is_one(parallel.operands[3 * dims - 1]):
        return None
    slopes: dict[Value, int | None] = {body.args[-1]: 1}
    for op in body.ops:
        if op.name == "arith.floordivsi" and op.result.type is index:
            numerator, divisor = op.operands
            pure = all(_is_pure(v, body) for v in op.operands)
            if slopes.get(numerator, 0) == 1 and slopes.get(divisor, 0) == 0 and pure:
                return op
        for result in op.results:
            slope = _slope(op, [slopes.get(v, 0) for v in op.operands])
            if slope != 0:
                slopes[result] = slope
    return None


def _slope(op: Op, slopes: Sequence[int | None]) -> int | None:
    """By how much the result grows with j: 0 not at all, None for what is not a fixed amount."""
    if op.regions:
        return None
    if not any(s != 0 for s in slopes):
        return 0
    if None in slopes or len(op.results) != 1 or op.result.type is not index:
        return None
    if op.name == "arith.addi":
        return slopes[0] + slopes[1]  # type: ignore[operator]
    if op.name == "arith.subi":
        return slopes[0] - slopes[1]  # type: ignore[operator]
    return None


def _is_one(value: Value) -> bool:
    owner = value.owner
    return isinstance(owner, Op) and owner.name == "arith.constant" and owner.attrs["value"] == 1


def _is_pure(value: Value, body: Block) -> bool:
    """Whether ``value`` is computed by pure operations from what comes from outside of the loop."""
    owner = value.owner
    if not isinstance(owner, Op) or owner not in body.ops:
        return True
    return OPS[owner.name].pure and not owner.regions and all(_is_pure(v, body) for v in owner.operands)


class _Split(Rewriter):
    def __init__(self, parallel: Op, division: Op) -> None:
        super().__init__(lambda op, rewriter: None, around=self._around)
        self.loop = parallel
        self.division = division
        self.inner = parallel.regions[0].args[-1]

    def _around(self, op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        if op is not self.loop:
            return None
        dims = op.attrs["dims"]
        bounds = [[self.lookup(v) for v in op.operands[k * dims : (k + 1) * dims]] for k in range(3)]
        self.span = op.span
        new = self.parallel(*(b[:-1] for b in bounds))
        body, block = op.regions[0], new.regions[0]
        for before, after in zip(body.args, block.args, strict=False):
            after.name = before.name
            self.replacement[before] = after
        with self.at(block):
            self._runs(body, bounds[0][-1], bounds[1][-1])
            self.do("scf.reduce")
        return []

    def _runs(self, body: Block, lower: Value, upper: Value) -> None:
        numerator, divisor = self.division.operands
        zero, one = self.constant(0, index), self.constant(1, index)
        memo = {self.inner: zero}
        start = self._copy(numerator, body, memo)
        length = self._copy(divisor, body, memo)
        long = self.op("arith.cmpi", length, self.constant(SHORTEST, index), predicate="sge")
        choice = self.if_(long)
        with self.at(choice.regions[0]):
            first = self.op("arith.floordivsi", self.op("arith.addi", lower, start), length)
            top = self.op("arith.addi", self.op("arith.subi", upper, one), start)
            last = self.op("arith.addi", self.op("arith.floordivsi", top, length), one)
            outer = self.for_(first, last, one)
            outer.regions[0].args[0].name = "run"
            with self.at(outer.regions[0]):
                quotient = outer.regions[0].args[0]
                begin = self.op("arith.subi", self.op("arith.muli", quotient, length), start)
                end = self.op("arith.addi", begin, length)
                begin = self.op("arith.maxsi", begin, lower)
                end = self.op("arith.minsi", end, upper)
                self._loop(body, begin, end, one, quotient)
                self.do("scf.yield")
            self.do("scf.yield")
        with self.at(choice.regions[1]):
            self._loop(body, lower, upper, one, None)
            self.do("scf.yield")

    def _copy(self, value: Value, body: Block, memo: dict[Value, Value]) -> Value:
        """``value`` computed in front of the loop, with 0 for its index."""
        if value in memo:
            return memo[value]
        owner = value.owner
        if not isinstance(owner, Op) or owner not in body.ops:
            return self.lookup(value)
        operands = [self._copy(v, body, memo) for v in owner.operands]
        copy = self.append(Op(owner.name, operands, [value.type], dict(owner.attrs), None, owner.span))
        memo[value] = copy.result
        return copy.result

    def _loop(self, body: Block, lower: Value, upper: Value, step: Value, quotient: Value | None) -> None:
        loop = self.for_(lower, upper, step)
        loop.attrs["independent"] = True
        iv = loop.regions[0].args[0]
        iv.name = self.inner.name
        self.replacement[self.inner] = iv
        with self.at(loop.regions[0]):
            for op in body.ops[:-1]:
                if op is self.division and quotient is not None:
                    self.replacement[op.result] = quotient
                else:
                    self.rewrite(op)
            self.do("scf.yield")

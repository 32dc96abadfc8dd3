"""Backwards through the reductions of a parallel loop: each iteration's share of a total."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.autodiff.adjoint import Buffer
from weft.autodiff.clean import clean
from weft.autodiff.undo import Undo
from weft.errors import GradientError
from weft.ir.builder import Builder
from weft.ir.core import Function, Op, Value
from weft.ir.types import MemRefType, ScalarType


class Totals(Undo):
    """Adjoints of what iterations contribute to sums, products and extreme values."""

    def _reduction(
        self, kind: str, g: Value, result: Value, given: Value, tail: Sequence[Op]
    ) -> None:
        """The adjoint of one iteration's contribution ``given`` to a total."""
        if given not in self.activity.values:
            return
        if kind == "addf":
            self._add(given, g)
            return
        mine, zero, one = self.env[given], self._number(0.0, g), self._number(1.0, g)
        if kind in ("maximumf", "minimumf"):
            total = self._total(result, tail)
            # The extreme values share the adjoint evenly, as torch.amax has it.
            (ties,) = self._recount(given, [("addf", zero, lambda c: self._select_equal(
                c, self._total(result, tail), one, zero))], result)  # fmt: skip
            share = self.b.op("arith.divf", g, ties)
            self._add(given, self._select_equal(mine, total, share, zero))
        elif kind == "mulf":
            at = self.parallel.results.index(result)  # type: ignore[union-attr]
            first = self.parallel.operands[3 * self.parallel.attrs["dims"] + at]  # type: ignore[union-attr]
            zeros, rest = self._recount(
                given,
                [
                    ("addf", zero, lambda c: self._select_equal(c, self._zero(given), one, zero)),
                    (
                        "mulf",
                        self.env[first],
                        lambda c: self._select_equal(c, self._zero(given), one, c),
                    ),
                ],
                result,
            )
            others = self._select_equal(zeros, zero, self.b.op("arith.divf", rest, mine), zero)
            alone = self._select_equal(zeros, one, rest, zero)
            product = self._select_equal(mine, zero, alone, others)
            self._add(given, self.b.op("arith.mulf", g, product))
        else:
            raise GradientError(f"a parallel reduction by {kind} has no gradient", self.b.span)

    def _select_equal(self, x: Value, y: Value, yes: Value, no: Value) -> Value:
        same = self.b.op("arith.cmpf", x, y, predicate="oeq")
        return self.b.op("arith.select", same, yes, no)

    def _total(self, result: Value, tail: Sequence[Op]) -> Value:
        for op in tail:
            if op.name == "memref.store" and op.operands[0] is result:
                return self.b.load(self.env[op.operands[1]], [])
        raise GradientError("the total of this reduction is not kept in its own type", self.b.span)

    def _recount(
        self, given: Value, wanted: Sequence[tuple[str, Value, Callable[[Value], Value]]],
        result: Value,
    ) -> list[Value]:  # fmt: skip
        """More totals over all iterations, by a loop that is launched before the adjoint.

        Each of ``wanted`` is a combiner, its first value, and what an iteration contributes, made
        of ``given``. Gives the totals, as the adjoint reads them.
        """
        assert self.parallel is not None
        outer, body = self.new.body.args, self.parallel.regions[0]
        types, names = [a.type for a in outer], [a.name for a in outer]
        counting = Function(f"{self.primal.name}_totals{len(self.first)}", types, names,
                            dict(self.new.attrs), self.primal.span)  # fmt: skip
        saved = self.b, self.env, self.before, self.new
        places = dict(zip(outer, counting.args, strict=True))
        self.b, self.new = Builder(counting.body, self.primal.span), counting
        self.env = {old: places[new] for old, new in self.env.items() if new in places}
        self.before = {old: places[new] for old, new in self.before.items()}
        head = self.primal.body.ops[: self.primal.body.ops.index(self.parallel)]
        for op in head:
            self._redo(op)
        dims = self.parallel.attrs["dims"]
        bounds = [self.env[v] for v in self.parallel.operands[: 3 * dims]]
        # First values are constants, or what the head computes.
        inits = [self._again(first, saved[1]) for _, first, _ in wanted]
        loop = self.b.parallel(bounds[:dims], bounds[dims : 2 * dims], bounds[2 * dims :], inits,
                               [kind for kind, _, _ in wanted])  # fmt: skip
        with self.b.at(loop.regions[0]):
            self.env.update(zip(body.args, loop.regions[0].args, strict=True))
            self._redo_block(body, taping=False)
            parts = []
            for _, _, part in wanted:
                parts.append(self._remade(part, self.env[given]))
            self.b.do("scf.reduce", *parts)
        made = []
        for k, total in enumerate(loop.results):
            assert isinstance(total.type, ScalarType)
            name = f"total{self.order}.{len(self.first)}.{k}.{result.name or 'total'}"
            place = Value(MemRefType(total.type, 0), name, counting.body)
            counting.body.args.append(place)
            self.b.store(total, place, [])
            made.append((name, total.type))
        self.b.do("func.return")
        self.first.append(clean(counting))
        self.b, self.env, self.before, self.new = saved
        totals = []
        for name, type in made:
            self.buffers.append(Buffer(name, type.name, None))
            totals.append(self.b.load(self._argument(name, MemRefType(type, 0)), []))
        return totals

    def _again(self, value: Value, before: dict[Value, Value]) -> Value:
        """A constant, or a value of the head, in the function that is being built now."""
        if isinstance(value.owner, Op) and value.owner.name == "arith.constant":
            assert isinstance(value.type, ScalarType)
            return self.b.constant(value.owner.attrs["value"], value.type)
        return self.env[next(old for old, new in before.items() if new is value)]

    def _remade(self, part: Callable[[Value], Value], given: Value) -> Value:
        """``part(given)``, with the constants that it closed over made anew."""
        start = len(self.b.block.ops)
        value = part(given)
        for op in self.b.block.ops[start:]:
            for k, operand in enumerate(op.operands):
                owner = operand.owner
                if (
                    isinstance(owner, Op)
                    and owner.name == "arith.constant"
                    and (owner not in self.b.block.ops)
                ):
                    copy = Op("arith.constant", [], [operand.type], dict(owner.attrs), span=op.span)
                    self.b.block.ops.insert(start, copy)
                    op.operands[k] = copy.result
        return value

"""Backwards through the reductions of a parallel loop: each iteration's share of a total."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.autodiff.adjoint import Buffer
from weft.autodiff.clean import clean
from weft.autodiff.undo import Undo
from weft.errors import GradientError
from weft.ir.core import Op, Value
from weft.ir.types import SCALARS, MemRefType, ScalarType
from weft.ir.views import Parallel, constant_of


class Totals(Undo):
    """Adjoints of what iterations contribute to sums, products and extreme values."""

    def _reduction(self, kind: str, g: Value, result: Value, given: Value) -> None:
        """The adjoint of one iteration's contribution ``given`` to a total."""
        if given not in self.activity.values:
            return
        if kind == "addf":
            self._add(given, g)
            return
        mine, zero, one = self.env[given], self._number(0.0, g), self._number(1.0, g)
        if kind in ("maximumf", "minimumf"):
            # The extreme values share the adjoint evenly, as torch.amax has it. What an iteration
            # contributes is computed once and kept: computed again in another loop it may be
            # rounded in another way, and equal nothing.
            mine, extreme = self._kept(kind, given, result)
            ties = self._ties(mine, extreme, result, one, zero)
            share = self.b.op("arith.divf", g, ties)
            self._add(given, self._select_equal(self._at(mine), self._at(extreme), share, zero))
        elif kind == "mulf":
            assert self.parallel is not None
            first = Parallel(self.parallel).inits[self.parallel.results.index(result)]
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

    def _at(self, buffer: Buffer) -> Value:
        """This iteration's entry of a workspace, or the number that it is."""
        indices = self.indices if buffer.parallel is not None else []
        return self.b.load(self._workspace(buffer), indices)

    def _workspace(self, buffer: Buffer) -> Value:
        found = next((a for a in self.new.args if a.name == buffer.name), None)
        if found is not None:
            return found
        rank = len(self.indices) if buffer.parallel is not None else 0
        return self._argument(buffer.name, MemRefType(SCALARS[buffer.element], rank))

    def _buffer(self, what: str, result: Value, element: ScalarType, *, each: bool) -> Buffer:
        made = Buffer(
            what + (result.name or "total"), element.name, self.parallel if each else None
        )
        self.buffers.append(made)
        return made

    @property
    def _suffix(self) -> str:
        """Of a loop that is launched before the adjoint, in names."""
        return f"{self.order}.{len(self.first)}."

    def _launched_before(
        self, name: str, wanted: Sequence[tuple[str, Value]], totals: Sequence[Buffer],
        parts: Callable[[], Sequence[Value]],
    ) -> None:  # fmt: skip
        """The loop once more, with other totals, launched before the adjoint: ``wanted`` are their
        combiners and first values (constants, or what the head computes), ``totals`` where they go;
        ``parts`` builds what an iteration contributes."""
        assert self.parallel is not None
        before = self.env
        with self._beside(f"{name}{len(self.first)}") as function:
            for op in self.primal.body.ops[: self.primal.body.ops.index(self.parallel)]:
                self._redo(op)
            inits = [self._once_more(first, before) for _, first in wanted]
            loop = self._again(inits, [kind for kind, _ in wanted])
            with self.b.at(loop.body):
                self.b.do("scf.reduce", *parts())
            for total, buffer in zip(loop.results, totals, strict=True):
                self.b.store(total, self._workspace(buffer), [])
            self.b.do("func.return")
        self.first.append(clean(function))

    def _iteration_again(self, given: Value) -> Value:
        assert self.parallel is not None
        self._redo_block(self.parallel.body, taping=False)
        return self.env[given]

    def _kept(self, kind: str, given: Value, result: Value) -> tuple[Buffer, Buffer]:
        """What each iteration contributes to an extreme value, and that value."""
        assert self.parallel is not None
        first = self.env[Parallel(self.parallel).inits[self.parallel.results.index(result)]]
        mine = self._buffer(f"each{self._suffix}", result, given.scalar, each=True)
        extreme = self._buffer(f"extreme{self._suffix}", result, given.scalar, each=False)

        def part() -> list[Value]:
            value = self._iteration_again(given)
            self.b.store(value, self._workspace(mine), self.indices)
            return [value]

        self._launched_before("extreme", [(kind, first)], [extreme], part)
        return mine, extreme

    def _ties(self, mine: Buffer, extreme: Buffer, result: Value, one: Value, zero: Value) -> Value:
        """How many iterations contribute the extreme value."""
        ties = self._buffer(f"ties{self._suffix}", result, one.scalar, each=False)

        def part() -> list[Value]:
            none, single = self._number(0.0, zero), self._number(1.0, one)
            return [self._select_equal(self._at(mine), self._at(extreme), single, none)]

        self._launched_before("ties", [("addf", zero)], [ties], part)
        return self._at(ties)

    def _recount(
        self, given: Value, wanted: Sequence[tuple[str, Value, Callable[[Value], Value]]],
        result: Value,
    ) -> list[Value]:  # fmt: skip
        """More totals over all iterations, as the adjoint reads them: each of ``wanted`` is a
        combiner, its first value, and what an iteration contributes, made of ``given``."""
        totals = [self._buffer(f"total{self._suffix}{k}.", result, first.scalar, each=False)
                  for k, (_, first, _) in enumerate(wanted)]  # fmt: skip

        def parts() -> list[Value]:
            value = self._iteration_again(given)
            return [self._remade(part, value) for _, _, part in wanted]

        firsts = [(kind, first) for kind, first, _ in wanted]
        self._launched_before("totals", firsts, totals, parts)
        return [self._at(total) for total in totals]

    def _once_more(self, value: Value, before: dict[Value, Value]) -> Value:
        """A constant, or a value of the head, in the function that is being built now."""
        number = constant_of(value)
        if number is not None:
            return self.b.constant(number, value.scalar)
        return self.env[next(old for old, new in before.items() if new is value)]

    def _remade(self, part: Callable[[Value], Value], given: Value) -> Value:
        """``part(given)``, with the constants that it closed over made anew."""
        start = len(self.b.block.ops)
        value = part(given)
        for op in self.b.block.ops[start:]:
            for k, operand in enumerate(op.operands):
                number = constant_of(operand)
                if number is not None and operand.op not in self.b.block.ops:
                    copy = Op("arith.constant", [], [operand.type], {"value": number}, span=op.span)
                    self.b.block.ops.insert(start, copy)
                    op.operands[k] = copy.result
        return value

"""Backwards through the reductions of a parallel loop: each iteration's share of a total."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.autodiff import zero_factors
from weft.autodiff.adjoint import Buffer
from weft.autodiff.adjoints import Adjoints
from weft.autodiff.recompute import Recomputation
from weft.errors import GradientError
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType
from weft.ir.views import Parallel

# A reduction: its combiner, and what builds its first value and an iteration's contribution.
Reduction = tuple[str, Callable[[Recomputation], Value], Callable[[Recomputation], Value]]


class Totals:
    """Adjoints of what iterations contribute to sums, products and extreme values.

    ``first``: loops that compute other totals, to be launched before the adjoint.
    """

    def __init__(self, adjoints: Adjoints, buffers: list[Buffer]) -> None:
        self.adjoints, self.new = adjoints, adjoints.new
        self.buffers = buffers
        self.first: list[Function] = []

    def contribution(self, kind: str, g: Value, result: Value, given: Value) -> None:
        """The adjoint of one iteration's contribution ``given`` to a total, whose adjoint is
        ``g``."""
        if not self.new.primal.varies(given):
            return
        if kind == "addf":
            self.adjoints.add(given, g)
        elif kind in ("maximumf", "minimumf"):
            self.adjoints.add(given, self._share_of_extremum(kind, g, result, given))
        elif kind == "mulf":
            factor = self._product_of_others(result, given, g.scalar)
            self.adjoints.add(given, self.new.b.op("arith.mulf", g, factor))
        else:
            message = f"a parallel reduction by {kind} has no gradient"
            raise GradientError(message, self.new.b.span)

    def _share_of_extremum(self, kind: str, g: Value, result: Value, given: Value) -> Value:
        """The extreme values share the adjoint evenly, as torch.amax has it. What an iteration
        contributes is computed once and kept: computed again in another loop it may be rounded in
        another way, and equal nothing."""
        parallel, type, last = self.new.primal.parallel, g.scalar, result.name or "total"
        mine = self._buffer("each", last, given.scalar, parallel)
        extreme = self._buffer("extreme", last, given.scalar, None)

        def contribution(new: Recomputation) -> Value:
            value = _again(new, given)
            new.b.store(value, new.workspace(mine), new.indices)
            return value

        def is_extreme(new: Recomputation) -> Value:
            zero, one = new.b.constant(0.0, type), new.b.constant(1.0, type)
            return new.b.if_equal(_entry(new, mine), _entry(new, extreme), one, zero)

        self._loop("extreme", [(kind, self._start(result), contribution)], [extreme])
        ties = self._buffer("ties", last, type, None)
        self._loop("ties", [_count(type, is_extreme)], [ties])
        b = self.new.b
        share = b.op("arith.divf", g, _entry(self.new, ties))
        extremes = _entry(self.new, mine), _entry(self.new, extreme)
        return b.if_equal(*extremes, share, b.constant(0.0, type))

    def _product_of_others(self, result: Value, given: Value, type: ScalarType) -> Value:
        """The product of what all other iterations contribute, also with zeros among it."""

        def part(k: int) -> Callable[[Recomputation], Value]:
            def of_one(new: Recomputation) -> Value:
                if k == 0:  # the first that is asked for
                    made[:] = zero_factors.parts(new.b, _again(new, given))
                return made[k]

            return of_one

        made: list[Value] = []
        last = result.name or "total"
        kinds = zero_factors.COMBINERS
        totals = [self._buffer("total", f"{k}.{last}", type, None) for k in range(len(kinds))]
        start = self._start(result)
        wanted: list[Reduction] = [
            (kind, start if kind == "mulf" else lambda new: new.b.constant(0.0, type), part(k))
            for k, kind in enumerate(kinds)
        ]
        new = self._loop("totals", wanted, totals)
        zero_factors.mark(new, self.new.primal.function, self.new.b.span)
        found = [_entry(self.new, total) for total in totals]
        return zero_factors.others(self.new.b, found, self.new.env[given])

    def _start(self, result: Value) -> Callable[[Recomputation], Value]:
        parallel = self.new.primal.parallel
        init = Parallel(parallel).inits[parallel.results.index(result)]
        return lambda new: new.env[init]

    def _buffer(self, what: str, last: str, element: ScalarType, parallel: Op | None) -> Buffer:
        name = f"{what}{self.new.primal.order}.{len(self.first)}.{last}"
        self.buffers.append(Buffer(name, element.name, parallel))
        return self.buffers[-1]

    def _loop(self, name: str, wanted: Sequence[Reduction], totals: Sequence[Buffer]) -> Function:
        """The head and the loop once more, with the reductions ``wanted``, to be launched before
        the adjoint. ``totals``: where their results go."""
        new = self.new.beside(f"{name}{len(self.first)}")
        starts = [start(new) for _, start, _ in wanted]
        loop = new.parallel(starts, [kind for kind, _, _ in wanted])
        with new.b.at(loop.body):
            new.b.do("scf.reduce", *[part(new) for _, _, part in wanted])
        for total, buffer in zip(loop.results, totals, strict=True):
            new.b.store(total, new.workspace(buffer), [])
        self.first.append(new.finished())
        return self.first[-1]


def _count(type: ScalarType, one: Callable[[Recomputation], Value]) -> Reduction:
    return "addf", lambda new: new.b.constant(0.0, type), one


def _entry(new: Recomputation, buffer: Buffer) -> Value:
    """This iteration's entry of a workspace, or the number that it is."""
    indices = new.indices if buffer.parallel is not None else []
    return new.b.load(new.workspace(buffer), indices)


def _again(new: Recomputation, given: Value) -> Value:
    """What an iteration contributes, computed once more."""
    new.ops(new.primal.parallel.body.ops[:-1])
    return new.env[given]

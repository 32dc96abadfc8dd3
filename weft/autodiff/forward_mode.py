"""Forward mode: a device loop that carries tangents along with its values (see README.md).

One walk from top to bottom (``tangents.py``) copies every operation and writes behind it what
happens to the tangents. Nothing has to be remembered or done twice, so arrays that a loop reads and
overwrites are no special case. What is here is the parallel loop and its reductions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.autodiff import zero_factors
from weft.autodiff.adjoint import Buffer
from weft.autodiff.jvp import Tangent
from weft.autodiff.lengths import space
from weft.autodiff.tangents import Walk
from weft.errors import GradientError
from weft.index.expression import Poly
from weft.ir.core import Function, Op, Value
from weft.ir.types import SCALARS, MemRefType, ScalarType, i64, index
from weft.ir.views import Parallel, memory
from weft.settings import deeply

_EXTREMA = ("maximumf", "minimumf")


@deeply
def forward_mode(function: Function, wanted: Collection[int]) -> Tangent:
    """``function`` with the tangents that follow from those of its arguments ``wanted``
    (positions of memrefs or float scalars; the tangent of a scalar ``a`` is a scalar ``t.a``).

    Precondition of a launch: no memory that is written overlaps another argument's. Derivatives of
    scalar operations and conventions at ties are those of ``rules.RULES``. Raises
    ``GradientError`` for what has no derivative, or none that can be had correctly.
    """
    return _Forward(function, wanted).run()


class _Forward(Walk):
    """The whole: one function, or several where the parallel loop has a product, maximum or
    minimum: their tangents are known only when all iterations have been carried out."""

    def __init__(self, function: Function, wanted: Collection[int]) -> None:
        super().__init__(function, wanted)
        self.steps: list[Function] = []
        self.space: tuple[Poly, ...] = ()

    def run(self) -> Tangent:
        ops = self.primal.body.ops
        for k, op in enumerate(ops):
            if op.name == "scf.parallel" and self._reduced(op, (*_EXTREMA, "mulf")):
                self._in_steps(ops[:k], op, ops[k + 1 :])
                break
            self.ops([op])
        self.steps.append(self.finish())
        active = [k for k, a in enumerate(self.primal.args)
                  if a in self.arrays or a in self.activity.values]  # fmt: skip
        return Tangent(
            self.primal, tuple(self.names), self.prefix, tuple(active), tuple(self.steps),
            tuple(self.workspaces), self.space, self.notes,
        )  # fmt: skip

    def _reduced(self, op: Op, kinds: Sequence[str]) -> list[int]:
        """The active results of a parallel loop that are reduced by one of ``kinds``."""
        return [k for k in self.active(op.results) if op.attrs["kinds"][k] in kinds]

    def parallel(self, op: Op) -> None:
        self._loop(op)

    # --- the parallel loop ------------------------------------------------------------------------
    def _loop(self, op: Op) -> Sequence[Value]:
        """The loop with tangents of its sums. Gives the totals of each product:
        see ``_factor``."""
        kinds, starts = Parallel(op).kinds, Parallel(op).inits
        sums, products = self._reduced(op, ["addf"]), self._reduced(op, ["mulf"])
        if products:
            zero_factors.mark(self.new, self.primal, op.span)
        for k in self.active(op.results):
            if kinds[k] not in ("addf", "mulf", *_EXTREMA):
                message = f"a parallel reduction by {kinds[k]} has no derivative"
                raise GradientError(message, op.span)
        inits = [self.env[v] for v in starts] + [self.tangent(starts[k]) for k in sums]
        for k in products:
            inits += self._factor(starts[k])
        lowers, uppers, steps = ([self.env[v] for v in vs] for vs in Parallel(op).ranges)
        loop = self.b.parallel(
            lowers, uppers, steps, inits,
            [*kinds, *["addf"] * len(sums), *_PRODUCT * len(products)],
        )  # fmt: skip
        body = op.body
        with self.b.at(loop.body):
            self.stand(body.args, loop.body.args)
            self.ops(body.ops[:-1])
            given = body.terminator.operands
            self.b.span = body.terminator.span
            self._keep(op, loop, given)
            parts = [self.env[v] for v in given] + [self.tangent(given[k]) for k in sums]
            for k in products:
                parts += self._factor(given[k])
            self.b.do("scf.reduce", *parts)
        self.b.span = op.span
        n = len(op.results)
        self.stand(op.results, loop.results[:n])
        for k, total in zip(sums, loop.results[n:], strict=False):
            self.twin[op.results[k]] = total
        return loop.results[n + len(sums) :]

    def _factor(self, value: Value) -> list[Value]:
        """What a factor contributes to the totals of which its product's tangent is made."""
        v = self.env[value]
        return [*zero_factors.parts(self.b, v),
                *zero_factors.parts_of_tangent(self.b, v, self.tangent(value))]  # fmt: skip

    # --- what is known after the loop -------------------------------------------------------------
    def _in_steps(self, head: Sequence[Op], op: Op, tail: Sequence[Op]) -> None:
        """First the loop. For extremes it keeps what each iteration contributes, and a second loop
        finds the mean of the tangents of those that have the extreme value: equal ones share, as
        ``torch.amax`` has it. Last, in a loop of one iteration, what is made of the totals.
        ``head`` was walked already."""
        self._check_head(head)
        extrema, products = self._reduced(op, _EXTREMA), self._reduced(op, ["mulf"])
        if extrema:
            self.space = space(self.primal)
        factors = self._loop(op)
        totals = {k: self._keep_total(f"total.{k}", self.env[r]) for k, r in enumerate(op.results)}
        sums = {k: self._keep_total(f"{self.prefix}total.{k}", self.twin[r])
                for k, r in enumerate(op.results) if r in self.twin}  # fmt: skip
        parts = [self._keep_total(f"factor.{k}", v) for k, v in enumerate(factors)]
        self.steps.append(self.finish())
        winners: list[str] = []
        if extrema:
            self._next("of_extremes", head, op, totals)
            winners = [self._keep_total(f"winner.{k}", v) for k, v in enumerate(self._share(op))]
            self.steps.append(self.finish())
        self.begin(f"{self.primal.name}_tangent_of_totals")
        zero, one = self.b.constant(0, index), self.b.constant(1, index)
        loop = self.b.parallel([zero], [one], [one])
        with self.b.at(loop.body):
            self.ops(head)
            self._totals(op, totals)
            for k, name in sums.items():
                self.twin[op.results[k]] = self._kept(name)
            for j, k in enumerate(products):
                n = len(_PRODUCT)
                mine = [self._kept(name) for name in parts[n * j : n * (j + 1)]]
                self.twin[op.results[k]] = zero_factors.tangent(self.b, mine)
            for j, k in enumerate(extrema):
                count, sum = (self._kept(name) for name in winners[2 * j : 2 * j + 2])
                self.twin[op.results[k]] = self._mean(count, sum, self.env[op.results[k]])
            self.ops(tail)
            self.b.do("scf.reduce")

    def _next(self, name: str, head: Sequence[Op], op: Op, totals: dict[int, str]) -> None:
        self.begin(f"{self.primal.name}_tangent_{name}")
        self.ops(head)
        self._totals(op, totals)

    def _totals(self, op: Op, names: dict[int, str]) -> None:
        for k, name in names.items():
            self.env[op.results[k]] = self._kept(name, op.results[k].scalar)

    def _check_head(self, head: Sequence[Op]) -> None:
        for op in head:
            if op.name == "memref.load" and memory(op)[0] in self.written:
                raise GradientError(
                    "a value that a product, maximum or minimum starts from is overwritten",
                    op.span, help="start from a constant, and combine after the loop",
                )  # fmt: skip

    def _keep_total(self, name: str, value: Value) -> str:
        if value.type is index:  # of which there are no tensors
            value = self.b.op("arith.index_cast", value, type=i64)
        self.workspaces.append(Buffer(name, value.scalar.name, None))
        self.b.store(value, self.argument(name, MemRefType(value.scalar, 0)), [])
        return name

    def _kept(self, name: str, type: ScalarType | None = None) -> Value:
        """What was kept under ``name``, as it was, or as ``type``."""
        element = next(w.element for w in self.workspaces if w.name == name)
        value = self.b.load(self.argument(name, MemRefType(SCALARS[element], 0)), [])
        return self.b.op("arith.index_cast", value, type=index) if type is index else value

    def _keep(self, op: Op, loop: Op, given: Sequence[Value]) -> None:
        """Within an iteration: writes what it contributes to extremes, and the tangents of that."""
        extrema = self._reduced(op, _EXTREMA)
        if not extrema:
            return
        made = Parallel(loop)
        at = [self.b.steps(iv, low, step) for iv, low, step
              in zip(made.indices, made.lowers, made.steps, strict=True)]  # fmt: skip
        for k in extrema:
            for name, value in (("value", self.env[given[k]]), ("tangent", self.tangent(given[k]))):
                full = f"{name}.{k}.{op.results[k].name or 'extreme'}"
                self.workspaces.append(Buffer(full, value.scalar.name, op))
                self.b.store(value, self.argument(full, MemRefType(value.scalar, len(at))), at)
            self.notes[op.results[k].name or "extreme"] = (
                f"{op.attrs['kinds'][k]} of the loop: what each iteration contributes is kept"
            )

    def _share(self, op: Op) -> Sequence[Value]:
        """For each of the loop's extremes, from what was kept: how many iterations gave it, and the
        sum of their tangents."""
        dims, extrema = op.attrs["dims"], self._reduced(op, _EXTREMA)
        zero, one = self.b.constant(0, index), self.b.constant(1, index)
        buffers: list[list[Value]] = []
        inits: list[Value] = []
        for k in extrema:
            name = op.results[k].name or "extreme"
            type = op.results[k].scalar
            buffers.append([self.argument(f"{part}.{k}.{name}", MemRefType(type, dims))
                            for part in ("value", "tangent")])  # fmt: skip
            start = Parallel(op).inits[k]
            total = self.env[op.results[k]]
            if start in self.twin:
                inits += self._winner(self.env[start], self.twin[start], total)
            else:
                inits += [self.number(0.0, type), self.number(0.0, type)]
        sizes = [self.b.op("memref.dim", buffers[0][0], axis=axis) for axis in range(dims)]
        loop = self.b.parallel([zero] * dims, sizes, [one] * dims, inits, ["addf"] * len(inits))
        with self.b.at(loop.body) as block:
            parts: list[Value] = []
            for k, (values, tangents) in zip(extrema, buffers, strict=True):
                value, tangent = self.b.load(values, block.args), self.b.load(tangents, block.args)
                parts += self._winner(value, tangent, self.env[op.results[k]])
            self.b.do("scf.reduce", *parts)
        return loop.results

    def _winner(self, value: Value, tangent: Value, total: Value) -> list[Value]:
        """(1, tangent) where ``value`` is the extreme one, else zeros."""
        zero, one = self.number(0.0, value.type), self.number(1.0, value.type)
        wins = self.b.op("arith.cmpf", value, total, predicate="oeq")
        return [self.b.op("arith.select", wins, x, zero) for x in (one, tangent)]

    def _mean(self, count: Value, sum: Value, total: Value) -> Value:
        """Zero where no iteration gave the extreme value, NaN where that is NaN."""
        zero = self.number(0.0, sum.type)
        none = self.b.op("arith.cmpf", count, zero, predicate="oeq")
        fixed = self.b.op("arith.select", none, zero, self.b.op("arith.divf", sum, count))
        defined = self.b.op("arith.cmpf", total, total, predicate="oeq")
        return self.b.op("arith.select", defined, fixed, total)


# Combiners of what ``_Forward._factor`` gives.
_PRODUCT = [*zero_factors.COMBINERS, *zero_factors.OF_TANGENT]

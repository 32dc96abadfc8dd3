"""The sweep backwards through a scope that was carried out again: from adjoints of results to those
of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.autodiff.adjoints import Adjoints
from weft.autodiff.checkpoints import Loops
from weft.autodiff.extremum import Extremum, extremum
from weft.autodiff.recompute import Recomputation
from weft.autodiff.rules import RULES, ZERO, Local, adjoint_type
from weft.autodiff.sums import is_unread, passes_through
from weft.autodiff.tape import Tapes
from weft.errors import GradientError
from weft.ir.core import Block, Op, Value
from weft.ir.views import For, If, While

# What an element gets of the adjoint of an extremum, as a function of the element.
Share = Callable[[Value], Value]


class Sweep:
    """Goes backwards through operations of the primal, which ``new`` has carried out."""

    def __init__(self, new: Recomputation, tapes: Tapes, loops: Loops, adjoints: Adjoints) -> None:
        self.new, self.b, self.env, self.primal = new, new.b, new.env, new.primal
        self.tapes, self.loops, self.adjoints = tapes, loops, adjoints

    def block(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "memref.alloca":
                self.adjoints.alloca(op)
        self.ops(block.ops[:-1])

    def ops(self, ops: Sequence[Op]) -> None:
        for op in reversed(ops):
            self.b.span = op.span
            match op.name:
                case "memref.load":
                    self.adjoints.load(op)
                case "memref.store":
                    self.adjoints.store(op)
                case "memref.atomic_rmw" | "memref.atomic_cas":
                    self.adjoints.atomic(op)
                case "scf.for":
                    self._for(op)
                case "scf.while":
                    self._while(op)
                case "scf.if":
                    self._if(op)
                case name if name in ZERO or name == "memref.alloca" or self.primal.is_done(op):
                    pass
                case _:
                    self._scalar(op)

    def _scalar(self, op: Op) -> None:
        if op.name not in RULES:
            if any(map(self.primal.varies, op.operands)):
                raise GradientError(f"{op.name} has no derivative", op.span)
            return
        g = self.adjoints.of.get(op.result)
        if g is None:
            return
        result = self.env.get(op.result, g)
        varied = [self.primal.varies(v) for v in op.operands]
        local = Local(self.b, op, self.new.values(op.operands), result, g, varied)
        for operand, share in zip(op.operands, RULES[op.name](local), strict=True):
            self.adjoints.add(operand, share)

    def _used(self, op: Op) -> list[Value]:
        """The values with adjoints that are used in ``op`` and come from outside."""
        used = self.primal.used_in(op.regions)
        return [v for v in used if v not in self.adjoints.frozen]

    def _if(self, op: Op) -> None:
        adjoints, outer = self.adjoints, self._used(op)
        if not outer and not self.primal.touches(op):
            return
        self.tapes.restore(op)
        # What has no adjoint yet begins without one: `0.0 + g` is not `g` to the bit.
        start = {v: g for v in outer if (g := adjoints.of.get(v)) is not None}
        branch = self.b.if_(self.env[If(op).condition], [adjoint_type(v.scalar) for v in outer])
        results = [adjoints.of.get(r) for r in op.results]
        for old, new in zip(op.regions, branch.regions, strict=True):
            with self.b.at(new), adjoints.scope(dict(start)):
                self.loops.taped(old)
                for given, result in zip(old.terminator.operands, results, strict=True):
                    adjoints.add(given, result)
                self.block(old)
                self.b.do("scf.yield", *(adjoints[v] for v in outer))
        adjoints.of.update(zip(outer, branch.results, strict=True))

    # --- loops over a range -----------------------------------------------------------------------
    def _for(self, op: Op) -> None:
        loop, adjoints = For(op), self.adjoints
        carried = [v for v in loop.carried if self.primal.varies(v)]
        outer = self._used(op)
        results = {c: adjoints.of.get(r) for c, r in zip(loop.carried, op.results, strict=True)}
        if not outer and not self.primal.touches(op) and not any(results[c] for c in carried):
            return
        self.tapes.restore(op)
        given = dict(zip(loop.carried, loop.yielded, strict=True))
        sums = [c for c in carried if passes_through(c, given[c], op.body)]
        extrema = [(found, *self._shared(op, found, g)) for c in carried if c not in sums
                   if (found := extremum(op, loop.carried.index(c))) is not None
                   and (g := results[c]) is not None]  # fmt: skip
        apart = {*sums, *(found.carried for found, _, _ in extrema)}
        chain = [c for c in carried if c not in apart]
        starts = [results[c] or adjoints.zero(c) for c in chain] + [adjoints[v] for v in outer]

        def reverse(handed: Sequence[Value]) -> list[Value]:
            self.loops.taped(op.body, of=op)
            with adjoints.scope(dict(zip(outer, handed[len(chain) :], strict=True)), sums):
                for c, g in (*((c, results[c]) for c in sums), *zip(chain, handed, strict=False)):
                    adjoints.add(given[c], g)
                for found, share, _ in extrema:
                    adjoints.add(found.element, share(self.env[found.element]))
                self.block(op.body)
                return [adjoints[v] for v in (*chain, *outer)]

        # Backwards, unless nothing is handed on from iteration to iteration.
        with self.new.without(self.primal.unread(op)):
            if (
                not chain
                and op not in self.tapes.checkpoints
                and not self.primal.hands_on(op)
                and not self.primal.overwrites(op)
                and all(is_unread(v, op.body) for v in loop.carried if v not in apart)
            ):
                totals = self.loops.forwards(op, starts, reverse)
            else:
                trips = self.b.trip_bound(*self.new.values(loop.bounds))
                totals = self.loops.backwards(op, trips, starts, reverse)
        first = dict(zip(loop.carried, loop.inits, strict=True))
        self._after(outer, [first[c] for c in chain], totals)
        for c in sums:
            adjoints.add(first[c], results[c])
        for found, _, rest in extrema:
            adjoints.add(first[found.carried], rest)

    def _after(
        self, outer: Sequence[Value], first: Sequence[Value], totals: Sequence[Value]
    ) -> None:
        """After a loop was reversed: the adjoints of what it used, and of what it started from."""
        self.adjoints.of.update(zip(outer, totals[len(first) :], strict=True))
        for value, g in zip(first, totals, strict=False):
            self.adjoints.add(value, g)

    def _shared(self, op: Op, found: Extremum, g: Value) -> tuple[Share, Value]:
        """What of the adjoint ``g`` of an extremum each element gets, and what the value from
        before the loop does."""
        lower, upper, step = self.new.values(For(op).bounds)
        init = For(op).inits[found.place]
        first, result = self.env[init], self.env[op.results[found.place]]
        zero, one = (self.b.constant(x, g.scalar) for x in (0.0, 1.0))
        # A bound that does not vary gets nothing, and so takes nothing away.
        start = self.b.if_equal(first, result, one, zero) if self.primal.varies(init) else zero
        loop = self.b.for_(lower, upper, step, [start])
        with self.b.at(loop.body) as block:
            self.env[For(op).index] = block.args[0]
            self.new.number[op] = self.b.steps(block.args[0], lower, step)
            self.new.ops(found.slice)
            one_more = self.b.if_equal(self.env[found.element], result, one, zero)
            self.b.do("scf.yield", self.b.op("arith.addf", block.args[1], one_more))
        share = self.b.op("arith.divf", g, loop.result)
        # Nothing equals a NaN, which only the value from before can be.
        nothing = self.b.op("arith.cmpf", loop.result, zero, predicate="oeq")
        mine = self.b.if_equal(first, result, share, zero)
        rest = self.b.op("arith.select", nothing, g, mine)
        return lambda x: self.b.if_equal(x, result, share, zero), rest

    # --- loops with a condition -------------------------------------------------------------------
    def _while(self, op: Op) -> None:
        (before, after), adjoints = op.regions, self.adjoints
        carried = [v for v in before.args if self.primal.varies(v)]
        outer = self._used(op)
        results = [adjoints.of.get(r) for r in op.results]
        if not outer and not self.primal.touches(op) and not any(results):
            return
        self.tapes.restore(op)
        handed_on = While(op).handed
        # The last evaluation of the condition gave the results.
        trips = self.loops.last(op)
        with self.tapes.inside(self.tapes[op].extent, trips):
            self.loops.taped(before)
            with adjoints.scope({v: adjoints[v] for v in outer}):
                for value, g in zip(handed_on, results, strict=True):
                    adjoints.add(value, g)
                self.block(before)
                starts = [adjoints[v] for v in (*carried, *outer)]

        def reverse(handed: Sequence[Value]) -> list[Value]:
            self.loops.taped(before, later=after.ops)
            self.env.update(zip(after.args, self.new.values(handed_on), strict=True))
            incoming = dict(zip(carried, handed, strict=False))
            with adjoints.scope(dict(zip(outer, handed[len(carried) :], strict=True))):
                self.loops.taped(after)
                for arg, value in zip(before.args, after.terminator.operands, strict=True):
                    adjoints.add(value, incoming.get(arg))
                self.block(after)
                for arg, value in zip(after.args, handed_on, strict=True):
                    adjoints.add(value, adjoints.of.get(arg))
                self.block(before)
                return [adjoints[v] for v in (*carried, *outer)]

        with self.new.without(self.primal.unread(op)):
            totals = self.loops.backwards(op, trips, starts, reverse)
        first = dict(zip(before.args, op.operands, strict=True))
        self._after(outer, [first[c] for c in carried], totals)

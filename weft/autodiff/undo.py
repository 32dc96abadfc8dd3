"""Undoing: backwards through a scope that was redone, from adjoints of results to operands."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.activity import is_float
from weft.autodiff.checkpoints import Checkpoints
from weft.autodiff.extremum import Extremum, extremum
from weft.autodiff.memory import UPDATES
from weft.autodiff.rules import REFUSED, RULES, ZERO, Local
from weft.autodiff.state import DONE, update_error, walk_regions
from weft.autodiff.sums import is_unread, passes_through
from weft.errors import GradientError
from weft.ir.core import Block, Op, Value
from weft.ir.types import compute_type
from weft.ir.views import For, If, While, memory
from weft.ir.writes import loaded, written


class Undo(Checkpoints):
    """Goes backwards through operations of the primal."""

    def _undo_block(self, block: Block) -> None:
        for op in block.ops:
            if op.name == "memref.alloca" and op.result in self.activity.arrays:
                self._make_shadow(op.result)
        self._undo_ops(block.ops[:-1])

    def _make_shadow(self, memref: Value) -> None:
        type = memref.memref
        element = compute_type(type.element)
        shadow = self.b.alloca(element, type.shape or ())
        zero = self.b.constant(0.0, element)
        self.copy_array(
            type.shape or (), lambda at: zero, lambda v, at: self.b.store(v, shadow, at)
        )
        shadow.name = f"d.{memref.name}"
        self.shadow[memref] = shadow

    def _undo_ops(self, ops: Sequence[Op]) -> None:
        for op in reversed(ops):
            self.b.span = op.span
            match op.name:
                case "memref.load":
                    self._undo_load(op)
                case "memref.store":
                    self._undo_store(op)
                case "memref.atomic_rmw" | "memref.atomic_cas":
                    self._undo_atomic(op)
                case "scf.for":
                    self._undo_for(op)
                case "scf.while":
                    self._undo_while(op)
                case "scf.if":
                    self._undo_if(op)
                case "memref.alloca" | "func.return" | "memref.dim":
                    pass
                case name if name in DONE:
                    pass
                case _:
                    self._undo_scalar(op)

    def _undo_scalar(self, op: Op) -> None:
        if op.name in ZERO or len(op.results) != 1:
            return
        if op.name in REFUSED or op.name not in RULES:
            if any(v in self.activity.values for v in op.operands):
                raise GradientError(f"{op.name} has no derivative", op.span)
            return
        g = self.adj.get(op.result)
        if g is None:
            return
        operands = [self.env[v] for v in op.operands]
        varied = [v in self.activity.values for v in op.operands]
        local = Local(self.b, op, operands, self.env.get(op.result, g), g, varied)
        for operand, share in zip(op.operands, RULES[op.name](local), strict=True):
            self._add(operand, share)

    def _undo_load(self, op: Op) -> None:
        g = self.adj.get(op.result)
        memref, subscripts, _ = memory(op)
        shadow = self.shadow.get(memref)
        if g is None or shadow is None:
            return
        at = [self.env[v] for v in subscripts]
        if memref in self.primal.args:
            self.b.atomic_rmw("addf", g, shadow, at)
        else:
            self.b.store(self.b.op("arith.addf", self.b.load(shadow, at), g), shadow, at)

    def _undo_store(self, op: Op) -> None:
        memref, subscripts, (value,) = memory(op)
        shadow = self.shadow.get(memref)
        if shadow is None or not is_float(value):
            return
        at = [self.env[v] for v in subscripts]
        g = self.b.load(shadow, at)
        if memref not in self.once:
            self.b.store(self.b.constant(0.0, shadow.memref.element), shadow, at)
        self._add(value, g)

    def _undo_atomic(self, op: Op) -> None:
        memref, subscripts, (*_, value) = memory(op)
        shadow = self.shadow.get(memref)
        if shadow is None:
            return
        local = memref not in self.primal.args
        if op in self.contents or (local and op.attrs.get("kind") in UPDATES):
            found = self.env[op.result] if local else self._seen(op)
            self._undo_update(op, found, shadow)
            return
        if op.attrs.get("kind") != "addf":
            raise update_error(op)
        if op.result in self.adj:
            raise GradientError(
                "the value from before an atomic += has no gradient", op.span,
                help="read it in a loop of its own, before",
            )  # fmt: skip
        self._add(value, self.b.load(shadow, [self.env[v] for v in subscripts]))

    def _undo_update(self, op: Op, found: Value, shadow: Value) -> None:
        """A product or an extreme value, taken in an element that no other iteration updates, with
        what it ``found`` there."""
        _, subscripts, (value,) = memory(op)
        at = [self.env[v] for v in subscripts]
        if found.type is not value.type:  # f16 and bf16 are updated in f32
            found = self.b.op("arith.extf", found, type=value.type)
        name = UPDATES[op.attrs["kind"]]
        operands = [found, self.env[value]]
        update = self.b.append(Op(name, operands, [value.type]))
        g = self.b.load(shadow, at)
        varied = [True, value in self.activity.values]
        mine, share = RULES[name](Local(self.b, update, operands, update.result, g, varied))
        assert mine is not None
        if op.result in self.adj:  # an update gives what it found
            mine = self.b.op("arith.addf", mine, self.adj[op.result])
        self.b.store(mine, shadow, at)
        self._add(value, share)

    @contextmanager
    def _scope(self, adjoints: dict[Value, Value]) -> Generator[None]:
        """Adjoints of a scope of its own; what is undone in it adds to ``adjoints`` only."""
        saved, self.adj = self.adj, adjoints
        try:
            yield
        finally:
            self.adj = saved

    def _undo_if(self, op: Op) -> None:
        outer = self._free(op.regions, op)
        if not outer and not self._touches(op):
            return
        self._restore(op)
        start = [self._adjoint(v) for v in outer]
        branch = self.b.if_(self.env[If(op).condition], [v.type for v in start])
        results = {r: self.adj[r] for r in op.results if r in self.adj}
        for old, new in zip(op.regions, branch.regions, strict=True):
            with self.b.at(new), self._scope(dict(zip(outer, start, strict=True))):
                self._redo_block(old, taping=True)
                for given, result in zip(old.terminator.operands, op.results, strict=True):
                    self._add(given, results.get(result))
                self._undo_block(old)
                self.b.do("scf.yield", *(self.adj[v] for v in outer))
        self.adj.update(zip(outer, branch.results, strict=True))

    def _touches(self, op: Op) -> bool:
        """Whether anything in ``op`` reads or writes memory that has an adjoint."""
        names = ("memref.load", "memref.store", "memref.atomic_rmw", "memref.atomic_cas")
        arrays = self.activity.arrays
        return any(
            o.name in names and any(v in arrays for v in o.operands) for o in walk_regions(op)
        )

    def _undo_for(self, op: Op) -> None:
        body, args = op.body, For(op).carried
        carried = [v for v in args if v in self.activity.values]
        outer = self._free([body], op)
        results = {c: self.adj.get(r) for c, r in zip(args, op.results, strict=True)}
        if not outer and not self._touches(op) and not any(results[c] for c in carried):
            return
        self._restore(op)
        given = dict(zip(args, For(op).yielded, strict=True))
        sums = [c for c in carried if passes_through(c, given[c], body)]
        extrema = self._extrema(op, [c for c in carried if c not in sums], results)
        shares = {found: self._share(op, found, g) for found, g in extrema.items()}
        picked = {found.carried for found in extrema}
        chain = [c for c in carried if c not in sums and c not in picked]
        starts = [results[c] or self._zero(c) for c in chain]
        starts += [self._adjoint(v) for v in outer]
        # Backwards, unless nothing is handed on from iteration to iteration.
        plain = (
            not chain
            and op not in self.checkpoints
            and not self._stored_in(op)
            and not self._overwrites(op)
            and all(is_unread(v, given[v], body) for v in args if v not in sums and v not in picked)
        )

        def undo(handed: Sequence[Value]) -> list[Value]:
            self._undo_iteration(op, sums, chain, outer, handed, results, shares)
            return [self._inner_adj(v) for v in (*chain, *outer)]

        if plain:
            totals = self._forwards(op, starts, undo)
        else:
            trips = self.b.trip_bound(*(self.env[v] for v in For(op).bounds))
            totals = self._backwards(op, trips, starts, undo)
        self._after(For(op), sums, chain, outer, results, totals)
        for found, (_, first) in shares.items():
            self._add(For(op).inits[found.place], first)

    def _extrema(
        self, op: Op, carried: Sequence[Value], results: dict[Value, Value | None]
    ) -> dict[Extremum, Value]:
        """The running extrema among ``carried``, with the adjoints of their results."""
        found = (extremum(op, For(op).carried.index(c)) for c in carried)
        return {f: g for f in found if f is not None and (g := results[f.carried]) is not None}

    def _share(self, op: Op, found: Extremum, g: Value) -> tuple[Callable[[Value], Value], Value]:
        """What of the adjoint ``g`` of an extremum each element gets, as a function of it, and what
        the value from before the loop gets."""
        lower, upper, step = (self.env[v] for v in For(op).bounds)
        init = For(op).inits[found.place]
        first, result = self.env[init], self.env[op.results[found.place]]
        zero, one = self._number(0.0, g), self._number(1.0, g)

        def if_extreme(x: Value, yes: Value, no: Value = zero) -> Value:
            return self.b.op("arith.select", self._same(x, result), yes, no)

        # A bound that does not vary gets nothing, and so takes nothing away.
        varies = init in self.activity.values
        start = if_extreme(first, one) if varies else zero
        loop = self.b.for_(lower, upper, step, [start])
        with self.b.at(loop.body) as block:
            self.env[For(op).index] = block.args[0]
            self.number[op] = self.b.steps(block.args[0], lower, step)
            for inner in found.slice:
                self._redo(inner)
            one_more = if_extreme(self.env[found.element], one)
            self.b.do("scf.yield", self.b.op("arith.addf", block.args[1], one_more))
        share = self.b.op("arith.divf", g, loop.result)
        # Nothing equals a NaN, which only the value from before can be.
        nothing = self._same(loop.result, zero)
        left = self.b.op("arith.select", nothing, g, if_extreme(first, share))
        return lambda x: if_extreme(x, share), left

    def _same(self, x: Value, y: Value) -> Value:
        return self.b.op("arith.cmpf", x, y, predicate="oeq")

    def _overwrites(self, op: Op) -> bool:
        """Whether an element of an argument may be written by several iterations of ``op``, or
        written by one and read by another."""
        inner = walk_regions(op)
        read = loaded(inner)
        return any(
            m in self.shadow and m in self.written and (m not in self.once or m in read)
            for m in written(inner)
        )

    def _undo_iteration(
        self, op: Op, sums: Sequence[Value], chain: Sequence[Value], outer: Sequence[Value],
        args: Sequence[Value], results: dict[Value, Value | None],
        shares: dict[Extremum, tuple[Callable[[Value], Value], Value]],
    ) -> None:  # fmt: skip
        self._redo_block(op.body, taping=True)
        given = dict(zip(For(op).carried, For(op).yielded, strict=True))
        handed = dict(zip(chain, args, strict=False))
        self.inner = dict(zip(outer, args[len(chain) :], strict=True))
        frozen = self.frozen
        self.frozen = frozen | set(sums)
        with self._scope(dict(self.inner)):
            for c in (*sums, *chain):
                self._add(given[c], results[c] if c in sums else handed[c])
            for found, (share, _) in shares.items():
                self._add(found.element, share(self.env[found.element]))
            self._undo_block(op.body)
            self.inner = self.adj
        self.frozen = frozen

    def _inner_adj(self, value: Value) -> Value:
        found = self.inner.get(value)
        return self._zero(value) if found is None else found

    def _after(
        self, loop: For, sums: Sequence[Value], chain: Sequence[Value], outer: Sequence[Value],
        results: dict[Value, Value | None], totals: Sequence[Value],
    ) -> None:  # fmt: skip
        """After a loop was undone: the adjoints of what it used and of what it started from."""
        self.adj.update(zip(outer, totals[len(chain) :], strict=True))
        start = dict(zip(loop.carried, loop.inits, strict=True))
        for c, g in zip(chain, totals, strict=False):
            self._add(start[c], g)
        for c in sums:
            self._add(start[c], results[c])

    def _undo_while(self, op: Op) -> None:
        before, after = op.regions
        carried = [v for v in before.args if v in self.activity.values]
        outer = self._free(op.regions, op)
        results = {r: self.adj.get(r) for r in op.results}
        if not outer and not self._touches(op) and not any(results.values()):
            return
        self._restore(op)
        tape = self.tapes[op]
        # The last evaluation of the condition, which gave the results.
        trips = self.number[op] = self._read_last(tape)
        handed = [results[r] for r in op.results]
        self.around.append((tape.extent, trips))
        self._undo_part(before, While(op).handed, handed, outer)
        self.around.pop()
        starts = [self._inner_adj(v) for v in (*carried, *outer)]

        def undo(handed: Sequence[Value]) -> list[Value]:
            self._redo_block(before, taping=True, later=after.ops)
            for old, value in zip(after.args, While(op).handed, strict=True):
                self.env[old] = self.env[value]
            incoming = dict(zip(carried, handed, strict=False))
            with self._scope(dict(zip(outer, handed[len(carried) :], strict=True))):
                self._redo_block(after, taping=True)
                for arg, value in zip(before.args, after.terminator.operands, strict=True):
                    self._add(value, incoming.get(arg))
                self._undo_block(after)
                for arg, value in zip(after.args, While(op).handed, strict=True):
                    self._add(value, self.adj.get(arg))
                self._undo_block(before)
                return [self._adjoint(v) for v in (*carried, *outer)]

        totals = self._backwards(op, trips, starts, undo)
        self.adj.update(zip(outer, totals[len(carried) :], strict=True))
        start = dict(zip(before.args, op.operands, strict=True))
        for c, g in zip(carried, totals, strict=False):
            self._add(start[c], g)

    def _undo_part(
        self, block: Block, given: Sequence[Value], handed: Sequence[Value | None],
        outer: Sequence[Value],
    ) -> None:  # fmt: skip
        self._redo_block(block, taping=True)
        with self._scope({v: self._adjoint(v) for v in outer}):
            for value, g in zip(given, handed, strict=True):
                self._add(value, g)
            self._undo_block(block)
            self.inner = self.adj

"""The adjoint of a device loop: carried out again, then backwards (see README.md)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection
from typing import Any

from weft.autodiff.accumulate_in_arrays import accumulate_in_arrays
from weft.autodiff.adjoint import Adjoint, Buffer, Extent
from weft.autodiff.adjoints import Adjoints
from weft.autodiff.checkpoints import Loops
from weft.autodiff.clean import sizes_of_gradients
from weft.autodiff.dense import Whole, whole
from weft.autodiff.gather import Form, Prepared, gather, prepared
from weft.autodiff.lengths import lengths
from weft.autodiff.narrow import narrow
from weft.autodiff.primal import Primal, array_of
from weft.autodiff.recompute import Recomputation
from weft.autodiff.stored_results import may_save, stored_results
from weft.autodiff.sweep import Sweep
from weft.autodiff.tape import Tapes
from weft.autodiff.totals import Totals
from weft.autodiff.write_out import write_out
from weft.errors import GradientError
from weft.index.expression import Dim, Poly, atom
from weft.ir.core import Function, Op, Value
from weft.ir.types import ScalarType, compute_type
from weft.ir.views import Parallel
from weft.settings import deep, deeply

# What may follow the parallel loop: totals are converted and written.
_TAIL = ("memref.store", "memref.atomic_rmw", "arith.truncf", "arith.extf")


@deeply
def reverse(
    function: Function,
    wanted: Collection[int],
    kept: Collection[int] = (),
    *,
    lasting: bool = False,
    checkpoints: Collection[Op] = (),
    chunk: int = 0,
    results: Collection[int] = (),
    **form: Any,
) -> Adjoint:
    """The adjoint of ``function`` with respect to its memref arguments ``wanted`` (positions).

    ``kept``: those among the arguments that are written whose adjoint *before* the loop does not
    matter, because they are fresh. ``lasting``: no place on a tape is written twice, as a
    derivative of the adjoint needs; tapes in nested loops are then larger. ``checkpoints``:
    the sequential loops of ``function`` that keep what they carry only at the start of segments
    (see ``checkpoints.py``; not together with ``lasting``). ``chunk``: how many iterations are
    written out of those of ``checkpoints`` that carry some numbers, if not 0 (see ``Tapes``).
    ``results``: those of ``kept`` that the adjoint may read where that saves computing them again,
    in another order.
    ``form``: how sums are computed, see ``gather.Form``. Raises ``GradientError`` for what cannot
    be reversed correctly.
    """
    return undone(
        function, wanted, kept, lasting=lasting, checkpoints=checkpoints, chunk=chunk,
        results=results,
    ).taken_apart(Form(**form))  # fmt: skip


@deeply
def undone(
    function: Function, wanted: Collection[int], kept: Collection[int], *, lasting: bool,
    checkpoints: Collection[Op], chunk: int, results: Collection[int],
) -> Reversal:  # fmt: skip
    """What adjoints of all forms have in common: ``reverse(...)`` is one
    ``undone(...).taken_apart(form)``."""
    primal = Primal(function, wanted, kept)
    primal.check()
    stored = primal.once & {function.args[k] for k in results}
    if stored and may_save(function, stored):
        found = Reversal(primal, lasting, checkpoints, chunk, stored)
        main, usual = stored_results(found.main, {primal.name(m) for m in stored})
        if main is None or {b.name for b in found.buffers} & {a.name for a in main.args}:
            main = usual
        found.main = found.without_sizes(main)
        return found
    return Reversal(primal, lasting, checkpoints, chunk)


class Reversal:
    """The whole, ``main``, from its parts: a function ``new`` that carries the primal out again
    with ``tapes``, and goes backwards through it."""

    def __init__(
        self, primal: Primal, lasting: bool, checkpoints: Collection[Op], chunk: int,
        stored: Collection[Value] = (),
    ) -> None:  # fmt: skip
        self.primal = primal
        self.lasting = lasting
        self.buffers: list[Buffer] = []
        self.new = new = Recomputation(primal, "adjoint")
        new.stored_again = stored
        for op, which in primal.contents.items():
            if which == "before":
                memref = array_of(op)
                new.argument(primal.before(memref), memref.type)
        self.tapes = Tapes(new, self.buffers, lasting, checkpoints, chunk)
        self.loops = Loops(new, self.tapes)
        self.adjoints = Adjoints(new)
        self.sweep = Sweep(new, self.tapes, self.loops, self.adjoints)
        self.totals = Totals(self.adjoints, self.buffers)
        new.ops(primal.head)
        self._tail()
        self._parallel()
        self.sweep.ops(primal.head)
        self.main = self.without_sizes(new.finished())

    def without_sizes(self, main: Function) -> Function:
        """``main``, which takes no argument for the sake of sizes that its gradient has."""
        names = dict(zip(self.primal.function.args, self.primal.names, strict=True))
        shadow = self.adjoints.shadow.items()
        return sizes_of_gradients(main, {names[m]: v.name for m, v in shadow if m in names})

    def taken_apart(self, form: Form) -> Adjoint:
        """``main`` as steps, in which each gradient is accumulated as ``form`` says. It stays as it
        is, for another form."""
        with deep(self.primal.function.span):
            return self._taken_apart(form)

    def _taken_apart(self, form: Form) -> Adjoint:
        primal = self.primal
        prepared, whole = self._prepared
        gathered = gather(prepared, primal.parallel, self.loops.undone, form, whole)
        made = gathered.steps
        if self.tapes.arrays_in_chunks:
            made = [accumulate_in_arrays(step, prepared.names) for step in made]
        steps = [*self.totals.first, *map(write_out, made)]
        used = {a.name for step in steps for a in step.args}
        buffers = [*map(copy.copy, self.buffers)]
        recorded = [op for op, name in primal.versions.items() if name in used]
        if recorded:
            steps.insert(0, self._replay(recorded, buffers))
        if self.lasting:
            for step in steps:
                step.attrs["tapes"] = tuple(b.name for b in buffers if b.extents)
        narrowed: frozenset[str] = frozenset()
        if form.narrow:
            steps, narrowed = narrow(steps, self._elements())
        left = {a.name for step in steps for a in step.args}
        workspaces = [w for w in (*buffers, *gathered.buffers) if w.name in left]
        segments = [(v.name, op) for op, v in self.tapes.segments.items() if v.name in left]
        loops = dict.fromkeys([x.op for w in workspaces for x in w.extents])
        loops |= dict.fromkeys(op for _, op in segments)
        return Adjoint(
            primal.function, tuple(primal.names), tuple(steps), tuple(workspaces), tuple(segments),
            lengths(primal, list(loops)) if workspaces else None,
            gathered.notes, gathered.sums, tuple(gathered.listed), tuple(gathered.sorted),
            frozenset(gathered.defined), gathered.dense, gathered.private,
            primal.copies, narrowed,
        )  # fmt: skip

    @functools.cached_property
    def _prepared(self) -> tuple[Prepared, dict[str, Whole]]:
        primal = self.primal
        names = [v.name for m, v in self.adjoints.shadow.items()
                 if m in primal.asked and m not in primal.written]  # fmt: skip
        return prepared(self.main, names), self._whole()

    def _elements(self) -> dict[str, ScalarType]:
        """The types of the elements that gradients of f16 and bf16 are of."""
        shadows = ((v.name, m.memref.element) for m, v in self.adjoints.shadow.items())
        return {name: own for name, own in shadows if compute_type(own) is not own}

    def _whole(self) -> dict[str, Whole]:
        """The gradients that loads of the primal accumulate into element by element."""
        primal, shadow, env = self.primal, self.adjoints.shadow, self.new.env

        def moved(leaf: Value | Dim) -> Poly:
            if isinstance(leaf, Value):
                return atom(env[leaf])
            return atom(Dim(shadow.get(leaf.memref) or env[leaf.memref], leaf.axis))

        found = {
            v.name: whole(self.adjoints.loads, primal.accesses, m, moved, primal.function.args)
            for m, v in shadow.items() if m in primal.asked and m not in primal.written
        }  # fmt: skip
        return {name: one for name, one in found.items() if one is not None}

    def _replay(self, recorded: Collection[Op], buffers: list[Buffer]) -> Function:
        """Carries the loop out on copies of what it overwrites, and keeps what ``recorded`` find in
        them, in ``buffers`` that are added."""
        primal = self.primal
        for op, name in primal.versions.items():
            extents = tuple(map(Extent, primal.loops_around(op)))
            memref = array_of(op)
            element, of = memref.memref.element.name, primal.name(memref)
            buffers.append(Buffer(name, element, primal.parallel, extents,
                                  interleaved=primal.interleaved, of=of))  # fmt: skip
        replay = self.new.beside("replay")
        replay.on_copies()
        replay.recorded = set(recorded)
        return replay.carry_out()

    def _tail(self) -> None:
        """From the gradients of what a loop reduces into to the adjoints of its totals."""
        for value in self.primal.parallel.results:  # the rules for casts do not look at it
            self.new.env[value] = self.new.b.constant(0, value.scalar)
        for op in self.primal.tail:
            if op.name not in _TAIL and any(map(self.primal.varies, op.results)):
                message = "what follows the parallel loop cannot be differentiated"
                raise GradientError(message, op.span)
            self.new.op(op)
        self.sweep.ops(self.primal.tail)

    def _parallel(self) -> None:
        op, adjoints = self.primal.parallel, self.adjoints
        outer = self.primal.used_in([op.body])
        zeros = list(map(adjoints.zero, outer))
        loop = self.new.parallel(zeros, ["addf"] * len(outer))
        totals = [adjoints.of.get(result) for result in op.results]
        rows = list(zip(Parallel(op).kinds, totals, op.results, strict=True))
        with self.new.b.at(loop.body), adjoints.scope({}):
            self.loops.taped(op.body)
            for (kind, g, result), given in zip(rows, Parallel(op).contributions, strict=True):
                if g is not None:
                    self.totals.contribution(kind, g, result, given)
            self.sweep.block(op.body)
            self.new.b.do("scf.reduce", *(adjoints[v] for v in outer))
        for value, total in zip(outer, loop.results, strict=True):
            adjoints.add(value, total)
        for (kind, g, _), value in zip(rows, Parallel(op).inits, strict=True):
            if self.primal.varies(value) and g is not None:
                if kind != "addf":
                    raise GradientError("this reduction starts from a value that needs a gradient",
                                        op.span, help="combine with it after the loop")  # fmt: skip
                adjoints.add(value, g)

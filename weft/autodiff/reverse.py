"""The adjoint of a device loop: redo, then undo (see README.md)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from weft.autodiff.adjoint import Adjoint
from weft.autodiff.clean import clean
from weft.autodiff.gather import Form, gather
from weft.autodiff.lengths import lengths
from weft.autodiff.names import before_name, work_name
from weft.autodiff.totals import Totals
from weft.errors import GradientError
from weft.ir.core import Function, Op, walk
from weft.ir.views import Parallel, written_by

# What may follow the parallel loop: totals are converted and written.
_TAIL = ("memref.store", "memref.atomic_rmw", "arith.truncf", "arith.extf")


def reverse(
    function: Function,
    wanted: Collection[int],
    kept: Collection[int] = (),
    *,
    lasting: bool = False,
    checkpoints: Collection[Op] = (),
    split: Collection[str] = (),
    wide: bool = True,
    sort: bool = False,
    stored: Collection[str] = (),
    private: Collection[str] = (),
) -> Adjoint:
    """The adjoint of ``function`` with respect to its memref arguments ``wanted`` (positions).

    ``kept``: those among the arguments that are written whose adjoint *before* the loop does not
    matter, because they are fresh. ``lasting``: no place on a tape is written twice, as a
    derivative of the adjoint needs; tapes in nested loops are then larger. ``checkpoints``:
    the sequential loops of ``function`` that keep what they carry only at the start of segments
    (see ``checkpoints.py``; not together with ``lasting``). ``split``: the gradients, of
    ``Adjoint.sums``, whose sums are computed in chunks. ``wide``: a sum may have a workspace of the
    size of the whole iteration space where it needs what a sequential loop carries; it is
    accumulated atomically otherwise. ``sort``: what would be accumulated atomically is listed
    instead (``Adjoint.listed``). ``stored``: gradients of ``Adjoint.dense`` that are stored.
    ``private``: gradients of ``Adjoint.private`` that have private copies. Raises
    ``GradientError`` for what cannot be reversed correctly.
    """
    form = Form(split, wide, sort, stored, private)
    return _Reversal(function, wanted, kept, lasting, checkpoints).run(form)


class _Reversal(Totals):
    """The whole: what comes before the parallel loop, the loop, and what comes after it."""

    def run(self, form: Form) -> Adjoint:
        ops = self.primal.body.ops
        places = [k for k, op in enumerate(ops) if op.name == "scf.parallel"]
        if len(places) != 1:
            raise GradientError("a loop without iterations has no gradient", self.primal.span)
        (at,) = places
        head, self.parallel, tail = ops[:at], ops[at], ops[at + 1 :]
        if any(op.regions for op in (*head, *tail)):
            raise GradientError(
                "a loop or branch that is carried out before the device loop has no gradient: what "
                "a function computes for its bounds", self.primal.span,
                help="compute the bounds in the host part, and give the device loop numbers",
            )  # fmt: skip
        self._check_atomics()
        for op in head:
            self._redo(op)
        self._parallel(self.parallel, tail)
        self._undo_ops(head)
        self.b.do("func.return")
        main = clean(self.new)
        gathered = gather(main, self._gradients(), self.parallel, self.undone, form)
        steps = [*self.first, *gathered.steps]
        used = {a.name for step in steps for a in step.args}
        recorded = [op for op, name in self.versions.items() if name in used]
        if recorded:
            steps = [self._replay(recorded), *steps]
            self.buffers += self._version_buffers()
        if self.lasting:
            for step in steps:
                step.attrs["tapes"] = tuple(b.name for b in self.buffers if b.extents)
        left = {a.name for step in steps for a in step.args}
        workspaces = [w for w in (*self.buffers, *gathered.buffers) if w.name in left]
        segments = [(v.name, op) for op, v in self.segments.items() if v.name in left]
        loops = dict.fromkeys([x.op for w in workspaces for x in w.extents])
        loops |= dict.fromkeys(op for _, op in segments)
        sizes = lengths(self.primal, list(loops), self.contents) if workspaces else None
        return Adjoint(
            self.primal, tuple(self.names), tuple(steps), tuple(workspaces), tuple(segments), sizes,
            gathered.notes, gathered.sums, tuple(gathered.listed), frozenset(gathered.defined),
            gathered.dense, gathered.private,
            {work_name(name): before_name(name) for name in self.names},
        )  # fmt: skip

    def _check_atomics(self) -> None:
        used = {v for op in walk(self.primal.body) for v in op.operands}
        for op in walk(self.primal.body):
            if op.name in ("memref.atomic_rmw", "memref.atomic_cas") and op.result in used:
                memref = written_by(op)
                if memref in self.written:
                    raise GradientError(
                        f"what an atomic operation found in `{memref.name}` is different when the "
                        "loop is carried out again, as a gradient needs", op.span,
                        help="compute such numbers in a loop of their own, before",
                    )  # fmt: skip

    def _gradients(self) -> list[str]:
        """The adjoints into which reads accumulate, of arrays that are not written."""
        return [v.name for m, v in self.shadow.items() if m in self.asked and m not in self.written]

    def _parallel(self, op: Op, tail: Sequence[Op]) -> None:
        lowers, uppers, steps = ([self.env[v] for v in vs] for vs in Parallel(op).ranges)
        self._tail(op, tail)
        body = op.body
        outer = self._free([body], op)
        zeros = [self._zero(v) for v in outer]
        loop = self.b.parallel(lowers, uppers, steps, zeros, ["addf"] * len(outer))
        saved, self.adj = self.adj, {}
        with self.b.at(loop.body):
            for old, new in zip(body.args, loop.body.args, strict=True):
                new.name = old.name
                self.env[old] = new
            self.indices = [
                self.b.steps(iv, lower, step)
                for iv, lower, step in zip(loop.body.args, lowers, steps, strict=True)
            ]
            self._redo_block(body, taping=True)
            for result, kind, given in zip(
                op.results, Parallel(op).kinds, Parallel(op).contributions, strict=True
            ):
                if result in saved:
                    self._reduction(kind, saved[result], result, given)
            self._undo_block(body)
            self.b.do("scf.reduce", *(self._adjoint(v) for v in outer))
        self.adj = saved
        for value, total in zip(outer, loop.results, strict=True):
            self._add(value, total)
        for kind, value, result in zip(
            Parallel(op).kinds, Parallel(op).inits, op.results, strict=True
        ):
            if value in self.activity.values and result in self.adj:
                if kind != "addf":
                    raise GradientError("this reduction starts from a value that needs a gradient",
                                        op.span, help="combine with it after the loop")  # fmt: skip
                self._add(value, self.adj[result])

    def _tail(self, parallel: Op, tail: Sequence[Op]) -> None:
        """From the gradients of what a loop reduces into to the adjoints of its totals."""
        for value in parallel.results:  # the rules for casts do not look at it
            self.env[value] = self.b.constant(0, value.scalar)
        for op in tail:
            if op.name not in _TAIL and any(v in self.activity.values for v in op.results):
                raise GradientError("what follows the parallel loop cannot be differentiated",
                                    op.span)  # fmt: skip
            self._redo(op)
        self._undo_ops(tail)

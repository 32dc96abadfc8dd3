"""Redoing: a scope carried out again, so that every value in it has its name.

What sequential loops carry is written on tapes when the walk backwards follows.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager

from weft.autodiff.adjoint import Buffer, Extent, Part
from weft.autodiff.clean import clean
from weft.autodiff.names import work_name
from weft.autodiff.state import DONE, SCOPES, State
from weft.autodiff.tape import Tape, stored
from weft.ir.builder import Builder
from weft.ir.core import Block, Function, Op, Value
from weft.ir.types import MemRefType, i64, index
from weft.ir.views import For, If, Parallel, While, memory, written_by
from weft.ir.writes import written


class Redo(State):
    """Carries out operations of the primal in the function that is being built."""

    def _redo_block(self, block: Block, *, taping: bool, later: Sequence[Op] = ()) -> None:
        """Carries out ``block`` again, without its terminator.

        ``taping``: the loops directly in it write down what they carry, because this is the pass
        that the walk backwards follows. ``later``: what is carried out after it, before that walk.
        """
        for k, op in enumerate(block.ops[:-1]):
            if taping and op.name in SCOPES:
                self._snapshot(op, [*block.ops[k + 1 :], *later])
            self._redo(op, taping=taping)

    def _redo(self, op: Op, *, taping: bool = False) -> None:
        self.b.span = op.span
        match op.name:
            case name if name in DONE or name == "func.return":
                return
            case "scf.for":
                self._redo_for(op, taping)
            case "scf.while":
                self._redo_while(op, taping)
            case "scf.if":
                self._redo_if(op)
            case "memref.load":
                self._stand(op, self._seen(op))
            case "memref.store" | "memref.atomic_rmw" | "memref.atomic_cas":
                self._redo_write(op)
            case _:
                copy = Op(op.name, [self.env[v] for v in op.operands],
                          [r.type for r in op.results], dict(op.attrs))  # fmt: skip
                self.b.append(copy)
                for old, new in zip(op.results, copy.results, strict=True):
                    new.name = old.name
                    self.env[old] = new

    def _stand(self, op: Op, value: Value) -> None:
        value.name = op.result.name
        self.env[op.result] = value

    def _seen(self, op: Op) -> Value:
        """What a load or an update found in the element that it touches."""
        memref = self._array(op)
        at = [self.env[v] for v in memory(op)[1]]
        which = self.contents.get(op)
        if which == "before":
            return self.b.load(self.before[memref], at)
        if which != "tape":
            return self.b.load(self.env[memref], at)
        if self.recorded is None:
            return self.b.load(*self._version(op))
        value = self.b.load(self.work[memref], at)
        if op in self.recorded:
            self.b.store(value, *self._version(op))
        return value

    def _redo_write(self, op: Op) -> None:
        memref = written_by(op)
        if op in self.contents and memref in self.work:
            self._seen(op)
        if memref not in self.written or memref in self.work:  # a local array, or a copy
            copy = Op(op.name, [self.work.get(v, self.env[v]) for v in op.operands],
                      [r.type for r in op.results], dict(op.attrs))  # fmt: skip
            self.b.append(copy)
            for old, new in zip(op.results, copy.results, strict=True):
                self.env[old] = new
        # Writes to arguments stand. What an atomic found before cannot be had a second time: it is
        # left undefined, and refused where it is used (see ``_check_atomics``).

    def _body(self, old: Block, new: Block, extra: Sequence[Value] = ()) -> None:
        for a, b in zip(old.args, new.args, strict=False):
            b.name = a.name
            self.env[a] = b

    def _redo_for(self, op: Op, taping: bool) -> None:
        lower, upper, step = (self.env[v] for v in For(op).bounds)
        loop = self.b.for_(lower, upper, step, [self.env[v] for v in For(op).inits])
        old, new = op.body, loop.body
        with self.b.at(new):
            self._body(old, new)
            self.number[op] = self.b.steps(new.args[0], lower, step)
            if taping:
                self._write(self._tape(op, For(op).carried), self.number[op])
            self._redo_block(old, taping=False)
            self.b.do("scf.yield", *(self.env[v] for v in old.terminator.operands))
        self._results(op, loop.results)

    def _redo_while(self, op: Op, taping: bool) -> None:
        inits = [self.env[v] for v in op.operands]
        zero = self.b.constant(0, index)
        before, after = op.regions
        types = [r.type for r in op.results]
        loop = self.b.while_([*inits, zero], [*types, index])
        with self.b.at(While(loop).before) as block:
            self._body(before, block)
            count = self.number[op] = block.args[-1]
            if taping:
                self._write_evaluation(self._tape(op, before.args), count)
            self._redo_block(before, taping=False)
            self.b.do("scf.condition", *(self.env[v] for v in before.terminator.operands), count)
        with self.b.at(While(loop).after) as block:
            self._body(after, block)
            self.number[op] = block.args[-1]
            self._redo_block(after, taping=False)
            count = self.b.op("arith.addi", block.args[-1], self._one())
            self.b.do("scf.yield", *(self.env[v] for v in after.terminator.operands), count)
        self._results(op, loop.results[:-1])
        if taping:
            self.tapes[op].trips = loop.results[-1]

    def _write_evaluation(self, tape: Tape, count: Value) -> None:
        """Keeps what a ``scf.while`` carries where its condition is evaluated."""
        self._write(tape, count)

    def _redo_if(self, op: Op) -> None:
        branch = self.b.if_(self.env[If(op).condition], [r.type for r in op.results])
        for old, new in zip(op.regions, branch.regions, strict=True):
            with self.b.at(new):
                self._redo_block(old, taping=False)
                self.b.do("scf.yield", *(self.env[v] for v in old.terminator.operands))
        self._results(op, branch.results)

    def _results(self, op: Op, values: Sequence[Value]) -> None:
        for old, new in zip(op.results, values, strict=True):
            new.name = old.name
            self.env[old] = new

    def _snapshot(self, op: Op, later: Sequence[Op]) -> None:
        """Copies of the local arrays that ``op`` reads and that change before it is undone."""
        own = self._stored_in(op)
        behind = {memref for x in later for memref in written(x)}
        copies = []
        for memref in self._loaded_in(op):
            if memref in behind or (memref in own and op.name == "scf.if"):
                type = memref.memref
                copy = self.b.alloca(type.element, type.shape or ())
                self.copy_array(type.shape or (), lambda at, m=memref: self.b.load(self.env[m], at),
                           lambda v, at, c=copy: self.b.store(v, c, at))  # fmt: skip
                copies.append((memref, copy))
        self.snapshots[op] = copies

    def _restore(self, op: Op) -> None:
        for memref, copy in self.snapshots.get(op, ()):
            type = memref.memref
            self.copy_array(type.shape or (), lambda at, c=copy: self.b.load(c, at),
                       lambda v, at, m=memref: self.b.store(v, self.env[m], at))  # fmt: skip

    def _tape(self, op: Op, carried: Sequence[Value]) -> Tape:
        """The tape of a loop, made when it is first asked for."""
        tape = self.tapes.get(op)
        if tape is None:
            parts: tuple[Part, ...] = ("starts", "segment") if op in self.checkpoints else ("all",)
            made = [self._made_tape(Extent(op, part), carried) for part in parts]
            tape = self.tapes[op] = made[0]
            if op in self.checkpoints:
                tape.segment = made[1]
                name = f"segment{self.order}.{len(self.segments)}"
                self.segments[op] = self._argument(name, i64)
        return tape

    def _made_tape(self, extent: Extent, carried: Sequence[Value]) -> Tape:
        around = [x for x, _ in self.around] if self.lasting else []
        tape = Tape(list(carried), self._stored_in(extent.op), extent)
        assert self.parallel is not None
        for value in (*tape.carried, *tape.arrays):
            element = value.type
            shape: tuple[int, ...] = ()
            if isinstance(element, MemRefType):
                element, shape = element.element, element.shape or ()
            name = f"tape{self.order}.{len(self.buffers)}.{value.name or 'v'}"
            rank = len(self.indices) + len(around) + 1 + len(shape)
            tape.buffers.append(self._argument(name, MemRefType(stored(element), rank)))
            self.buffers.append(
                Buffer(name, stored(element).name, self.parallel, (*around, extent), shape,
                       interleaved=self.interleaved and not isinstance(value.type, MemRefType))
            )  # fmt: skip
        return tape

    # --- in functions of their own ----------------------------------------------------------------
    @contextmanager
    def _beside(self, name: str) -> Generator[Function]:
        """Builds in another function, with the arguments of the one that is built now."""
        outer = self.new.body.args
        types, names = [a.type for a in outer], [a.name for a in outer]
        beside = Function(f"{self.primal.name}_{name}", types, names, dict(self.new.attrs),
                          self.primal.span)  # fmt: skip
        saved = self.b, self.env, self.before, self.new, self.indices, self.number
        places = dict(zip(outer, beside.args, strict=True))
        self.b, self.new = Builder(beside.body, self.primal.span), beside
        self.env = {old: places[new] for old, new in self.env.items() if new in places}
        self.before = {old: places[new] for old, new in self.before.items()}
        self.number = {}
        try:
            yield beside
        finally:
            self.b, self.env, self.before, self.new, self.indices, self.number = saved

    def _again(self, inits: Sequence[Value], kinds: Sequence[str]) -> Op:
        """The parallel loop once more, with reductions of its own: to be filled."""
        assert self.parallel is not None
        lowers, uppers, steps = ([self.env[v] for v in vs] for vs in Parallel(self.parallel).ranges)
        loop = self.b.parallel(lowers, uppers, steps, inits, kinds)
        with self.b.at(loop.body) as block:
            for old, new in zip(self.parallel.body.args, block.args, strict=True):
                new.name = old.name
                self.env[old] = new
            triples = zip(block.args, lowers, steps, strict=True)
            self.indices = [self.b.steps(iv, lower, step) for iv, lower, step in triples]
        return loop

    def _replay(self, recorded: Collection[Op]) -> Function:
        """Carries the loop out on copies of what it overwrites, whose contents are those from
        before it, and keeps what ``recorded`` find in them."""
        assert self.parallel is not None
        with self._beside("replay") as replay:
            for op in self.primal.body.ops[: self.primal.body.ops.index(self.parallel)]:
                self._redo(op)
            for memref in dict.fromkeys(map(self._array, self.versions)):
                self.work[memref] = self._argument(work_name(self._name(memref)), memref.type)
            self.recorded = set(recorded)
            with self.b.at(self._again([], []).body):
                self._redo_block(self.parallel.body, taping=False)
                self.b.do("scf.reduce")
            self.b.do("func.return")
            self.recorded, self.work = None, {}
        return clean(replay)

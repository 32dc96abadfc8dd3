"""Checkpoints: of a long loop, only what it carries at the start of each segment is kept.

A loop of n iterations is cut into segments of S, about the square root of n. Redoing it keeps what
is carried where a segment starts: n / S entries. Undoing it goes through the segments from the last
to the first; each is redone from its start with a tape of S entries, which all of them use, and
then undone. The price is that the loop is carried out once more (Griewank, "Achieving logarithmic
growth of temporal and spatial complexity in reverse automatic differentiation", 1992, with one
level of checkpoints). S is an argument of the adjoint, because a tape is sized when it is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.autodiff.redo import Redo
from weft.autodiff.tape import Tape
from weft.ir.core import Op, Value
from weft.ir.types import index
from weft.ir.views import For, If, While


class Checkpoints(Redo):
    """Sequential loops, forwards with a tape and backwards from it, whole or in segments."""

    # --- forwards, keeping the starts -------------------------------------------------------------
    def _redo_for(self, op: Op, taping: bool) -> None:
        if not taping or op not in self.checkpoints:
            super()._redo_for(op, taping)
            return
        inits = [self.env[v] for v in For(op).inits]
        tape = self._tape(op, For(op).carried)
        n = self.b.trip_bound(*(self.env[v] for v in For(op).bounds))
        loop = self.b.for_(self.b.constant(0, index), self._segments(op, n), self._one(), inits)
        with self.b.at(loop.body) as block:
            number, *carried = block.args
            self._carry(op, carried)
            self._write(tape, number)
            results = self._segment(op, *self._ends(op, number, n), carried, None)
            self.b.do("scf.yield", *results)
        self._results(op, loop.results)

    def _write_evaluation(self, tape: Tape, count: Value) -> None:
        if tape.segment is None:
            super()._write_evaluation(tape, count)
            return
        length = self._length(tape.extent.op)
        number = self.b.op("arith.floordivsi", count, length)
        first = self.b.op("arith.muli", number, length)
        branch = self.b.if_(self.b.op("arith.cmpi", first, count, predicate="eq"))
        with self.b.at(If(branch).then):
            self._write(tape, self._place(tape.extent.op, number))
            self.b.do("scf.yield")
        with self.b.at(If(branch).otherwise):
            self.b.do("scf.yield")
        self._write(tape, self.b.constant(0, index))  # the last one stays

    # --- backwards --------------------------------------------------------------------------------
    def _read_last(self, tape: Tape) -> Value:
        """What a ``scf.while`` carried when its condition was evaluated for the last time. Gives
        the number of its iterations."""
        trips = tape.trips
        assert trips is not None
        self._read(tape, trips if tape.segment is None else self.b.constant(0, index))
        return trips

    def _backwards(
        self, op: Op, n: Value, starts: Sequence[Value],
        undo: Callable[[Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:  # fmt: skip
        """A loop through the iterations ``n - 1`` to 0 of ``op``, each with what it carried in its
        place. ``undo(values)`` undoes one, and gives what is handed on to the one before; the last
        one (the first to be undone) is given ``starts``. Gives what the first one gives.
        """
        tape = self.tapes[op]
        zero = self.b.constant(0, index)
        if tape.segment is None:
            return self._undoing(op, self._span(tape, zero, n, starts, undo)).results
        count = self._segments(op, n)
        loop = self.b.for_(zero, count, self._one(), starts)
        with self.b.at(loop.body) as block:
            number = self.b.op("arith.subi", self.b.op("arith.subi", count, self._one()),
                               block.args[0])  # fmt: skip
            first, end = self._ends(op, number, n)
            self._read(tape, self._place(op, number))
            carried = [self.env[v] for v in tape.carried]
            self._segment(op, first, end, carried, tape.segment)
            handed = self._span(tape.segment, first, end, block.args[1:], undo).results
            self.b.do("scf.yield", *handed)
        return loop.results

    def _forwards(
        self, op: Op, starts: Sequence[Value], undo: Callable[[Sequence[Value]], Sequence[Value]]
    ) -> Sequence[Value]:
        """The same in the order of the iterations, where nothing is handed on from one to the
        next: the loop then is one that other parts of the compiler understand."""
        lower, upper, step = (self.env[v] for v in For(op).bounds)
        loop = self._undoing(op, self.b.for_(lower, upper, step, starts))
        with self.b.at(loop.body) as block:
            iv = block.args[0]
            iv.name = For(op).index.name
            self.env[For(op).index] = iv
            tape, number = self.tapes[op], self.b.steps(iv, lower, step)
            self.number[op] = number
            self._read(tape, number)
            self.around.append((tape.extent, number))
            handed = undo(block.args[1:])
            self.around.pop()
            self.b.do("scf.yield", *handed)
        return loop.results

    def _span(
        self, tape: Tape, first: Value, end: Value, starts: Sequence[Value],
        undo: Callable[[Sequence[Value]], Sequence[Value]],
    ) -> Op:  # fmt: skip
        """A loop through iterations ``end - 1`` to ``first``; ``tape`` begins with ``first``."""
        zero, one = self.b.constant(0, index), self._one()
        count = self.b.op("arith.subi", end, first)
        loop = self.b.for_(zero, count, one, starts)
        with self.b.at(loop.body) as block:
            place = self.b.op("arith.subi", self.b.op("arith.subi", count, one), block.args[0])
            self._read(tape, place)
            self.around.append((tape.extent, block.args[0]))
            self._index(tape.extent.op, self.b.op("arith.addi", first, place))
            handed = undo(block.args[1:])
            self.around.pop()
            self.b.do("scf.yield", *handed)
        return loop

    def _undoing(self, op: Op, loop: Op) -> Op:
        """Notes that ``loop`` undoes every iteration of ``op``."""
        loop.attrs["undoes"] = len(self.undone)
        self.undone.append(op)
        return loop

    # --- segments ---------------------------------------------------------------------------------
    def _segment(
        self, op: Op, first: Value, end: Value, inits: Sequence[Value], tape: Tape | None
    ) -> Sequence[Value]:
        """The iterations ``first`` to ``end - 1``, which certainly take place, carried out on from
        ``inits`` and written on ``tape``. Gives what is carried on."""
        loop = self.b.for_(first, end, self._one(), inits)
        with self.b.at(loop.body) as block:
            number, *carried = block.args
            self._carry(op, carried)
            if tape is not None:
                self._write(tape, self.b.op("arith.subi", number, first))
            self.b.do("scf.yield", *self._iteration(op, number))
        return loop.results

    def _carry(self, op: Op, carried: Sequence[Value]) -> None:
        """Lets what the loop carries be ``carried``."""
        args = While(op).before.args if op.name == "scf.while" else For(op).carried
        for old, new in zip(args, carried, strict=True):
            new.name = old.name
            self.env[old] = new

    def _iteration(self, op: Op, number: Value) -> list[Value]:
        """Carries out one iteration, and gives what it hands on to the next."""
        self._index(op, number)
        last = op.body
        if op.name == "scf.while":
            last = While(op).after
            self._redo_block(While(op).before, taping=False)
            for old, value in zip(last.args, While(op).handed, strict=True):
                self.env[old] = self.env[value]
        self._redo_block(last, taping=False)
        return [self.env[v] for v in last.terminator.operands]

    def _index(self, op: Op, number: Value) -> None:
        """Lets the index of a ``scf.for`` be that of iteration ``number``, counted from 0."""
        self.number[op] = number
        if op.name == "scf.for":
            lower, _, step = (self.env[v] for v in For(op).bounds)
            iv = For(op).index
            self.env[iv] = self.b.op("arith.addi", lower, self.b.op("arith.muli", number, step))
            self.env[iv].name = iv.name

    def _length(self, op: Op) -> Value:
        """How many iterations a segment of ``op`` has."""
        return self.b.op("arith.index_cast", self.segments[op], type=index)

    def _segments(self, op: Op, n: Value) -> Value:
        """In how many segments ``op`` is cut, of ``n`` iterations."""
        length = self._length(op)
        padded = self.b.op("arith.addi", n, self.b.op("arith.subi", length, self._one()))
        return self.b.op("arith.floordivsi", padded, length)

    def _ends(self, op: Op, number: Value, n: Value) -> tuple[Value, Value]:
        """The first iteration of a segment, and the one after its last."""
        length = self._length(op)
        first = self.b.op("arith.muli", number, length)
        end = self.b.op("arith.minsi", self.b.op("arith.addi", first, length), n)
        return first, end

    def _place(self, op: Op, number: Value) -> Value:
        """Where on the tape of starts a segment is."""
        return self.b.op("arith.addi", number, self._one()) if op.name == "scf.while" else number
